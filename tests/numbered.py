"""Numbered events, and an account of what their writer was told of each: what a log must hold afterwards, exactly.

An event is a checkpoint of a backfill that is under way, as it needs nothing but the one before it to be smaller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from journal.admission import Admitted
from journal.errors import FencedError, JournalError, OutcomeUnknownError, UnavailableError
from journal.events import Event
from journal.identities import HolderId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.receipt import Receipt
from journal.records import BackfillCheckpointRecord, JournalEntry
from journal.vocabulary import BackfillCounts, GroupEventKind
from tests.factories import backfill_record, group_record, manifest_of, plan_record

TTL = timedelta(seconds=30)
_FIRST_NUMBER = 5  # what comes before: the plan, its group begun and committed, its backfill begun


@dataclass
class Account:
    """What a writer was told, by number: the sequences of what counts, and what does not count or was not written."""

    counted: dict[int, int] = field(default_factory=dict)
    void: set[int] = field(default_factory=set)
    unwritten: set[int] = field(default_factory=set)
    unknown: dict[int, Receipt] = field(default_factory=dict)
    found: int = 0  # that were unknown at first, and count

    def note(self, number: int, outcome: JournalEntry[BackfillCheckpointRecord] | BaseException) -> None:
        """Enter what came of an event; whatever is no answer at all is raised."""
        match outcome:
            case JournalEntry():
                self.counted[number] = outcome.sequence
            case OutcomeUnknownError():
                self.unknown[number] = outcome.receipt
            case FencedError():
                self.void.add(number)
            case UnavailableError():
                self.unwritten.add(number)
            case _:
                raise outcome

    def settle(self) -> None:
        """What was unknown has a verdict now. Raises OutcomeUnknownError when it has not."""
        for number, receipt in self.unknown.items():
            try:
                entry = receipt.result()
            except OutcomeUnknownError:
                raise
            except JournalError:
                self.void.add(number)
            else:
                assert entry is not None
                self.counted[number] = entry.sequence
                self.found += 1
        self.unknown.clear()


@dataclass
class NumberedWriter:
    """Writes the events of one scope, with numbers that grow."""

    journal: Journal
    scope: Scope
    holder: HolderId
    ttl: timedelta = TTL
    account: Account = field(default_factory=Account)
    number: int = 0

    def __post_init__(self) -> None:
        self._manifest = manifest_of(1, scope=self.scope, backfill=True)

    @property
    def lease(self) -> Lease:
        """The lease that `begin` or `recover` took last."""
        return self._lease

    async def begin(self) -> None:
        """Make the scope and write what comes before the first number."""
        await self.journal.create(self.scope)
        await self.take()
        for write in self._beginning():
            await write()

    async def begin_slowly(self, seconds: float) -> None:
        """As `begin`, on a log that may not answer in time: every step is taken until it is done."""
        async with asyncio.timeout(seconds):
            await _insist(lambda: self.journal.create(self.scope))
            await _insist(lambda: self.take(wait=2 * self.ttl))
            for write in self._beginning():
                while not await self._written(write):
                    await self.recover(seconds)

    def _beginning(self) -> Iterable[Callable[[], Awaitable[object]]]:
        journal, manifest = self.journal, self._manifest
        yield lambda: journal.begin_plan(self._lease, plan_record(self._lease, [manifest]))
        for kind in (GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED):
            yield partial(self._record_group_event, kind)
        kind = GroupEventKind.BEFORE_COMMIT
        yield lambda: journal.record_backfill_event(self._lease, backfill_record(self._lease, manifest, kind))

    async def _record_group_event(self, kind: GroupEventKind) -> None:
        await self.journal.record_group_event(self._lease, group_record(self._lease, self._manifest, kind))

    async def _written(self, write: Callable[[], Awaitable[object]]) -> bool:
        try:
            await write()
        except UnavailableError:
            return False
        except OutcomeUnknownError as unknown:
            await self.recover()
            return isinstance(unknown.receipt.verdict, Admitted)
        return True

    async def take(self, wait: timedelta = timedelta(0)) -> None:
        """Take the scope's lease."""
        self._lease = await self.journal.acquire(self.scope, self.holder, ttl=self.ttl, wait=wait)

    async def write(self, count: int = 1) -> None:
        """Send so many events at once, and enter what is said of each."""
        numbers = range(self.number + 1, self.number + 1 + count)
        outcomes = await asyncio.gather(*(self._send(number) for number in numbers), return_exceptions=True)
        for number, outcome in zip(numbers, outcomes, strict=True):
            self.account.note(number, outcome)
        self.number += count

    async def _send(self, number: int) -> JournalEntry[BackfillCheckpointRecord]:
        counts = BackfillCounts(number, number, 0, number)
        record = BackfillCheckpointRecord.new_apply(self._lease, self._manifest, len(self._manifest.steps) - 1, counts)
        return await self.journal.send(self._lease, record)

    async def recover(self, seconds: float = 30) -> None:
        """Take a fresh fence as soon as that is possible; afterwards nothing is unknown any more."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    self._lease = await self.journal.refresh(self._lease)
                    break
                except (UnavailableError, OutcomeUnknownError, FencedError):
                    await asyncio.sleep(0.05)
        self.account.settle()


async def _insist(call: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await call()
            return
        except (UnavailableError, OutcomeUnknownError):
            await asyncio.sleep(0.05)


@dataclass
class Numbers:
    """What a log holds: the numbers that count, by sequence, and those of events that are there, void or not."""

    counted: dict[int, int] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)


async def numbers_of(journal: Journal, scope: Scope) -> Numbers:
    """Read a scope from its beginning."""
    numbers = Numbers()
    async with aclosing(journal.replay(scope)) as events:
        async for event, verdict in events:
            if not isinstance(event, Event) or not isinstance(event.record, BackfillCheckpointRecord):
                continue
            numbers.present.add(event.record.matched)
            if isinstance(verdict, Admitted):
                assert verdict.sequence is not None
                numbers.counted[verdict.sequence] = event.record.matched
    return numbers


def contradictions(account: Account, numbers: Numbers) -> Iterable[str]:
    """Where a log does not hold exactly what its writer was told."""
    sequences = {number: sequence for sequence, number in numbers.counted.items()}
    if len(sequences) < len(numbers.counted):
        yield "an event counts twice"
    for number, sequence in account.counted.items():
        if sequences.get(number) != sequence:
            yield f"{number} counts with sequence {sequence}, its writer was told, but has {sequences.get(number)}"
    for number in account.void & sequences.keys():
        yield f"{number} counts, but its writer was told that it does not"
    for number in account.unwritten & numbers.present:
        yield f"{number} is there, but its writer was told that nothing was written"
    for number in sequences.keys() - account.counted.keys() - account.unknown.keys():
        yield f"{number} counts, and nobody was told"
