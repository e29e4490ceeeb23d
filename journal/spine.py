"""One scope, followed and written: the state that was folded, what is in flight, and what its writers are told.

A scope has one tail. Everything that it brings is folded into `state`; an append is complete when the tail has brought
its own event and admission has judged it, never because the log confirmed it. Since the chain is computed here, many
events can be in flight: `ahead` is the state as it will be when all of them are admitted, and a record that it refuses
is refused at once and never written.

When an append is not confirmed in time, or the log answers with anything but an explicit nothing-was-written, the spine
reads to the end and lets `admission.settle` decide. What is not settled then is in doubt: its lease writes nothing more
until a fresh fence has been admitted, after which every late copy is void and the answer is definite.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from journal.admission import (
    Admitted,
    Pending,
    ScopeState,
    Verdict,
    Void,
    admit,
    empty_state,
    evolve,
    settle,
    step,
)
from journal.codec import Codec
from journal.errors import Code, FencedError, JournalError, OutcomeUnknownError, UnavailableError, failure
from journal.events import Event
from journal.identities import EventId, LeaseId, Position, Scope
from journal.lease import Lease
from journal.ports import Log, Outgoing, StoredEvent
from journal.receipt import Batch, Receipt, entry_of, name_of, refusal
from journal.records import JournalEntry, LeaseAcquiredRecord, Record

LINGER_SECONDS: Final = 0.02
_CONFIRM_SHARE: Final = 0.75  # of an append's time: what is left is for finding out


class _Sent(Pending):
    """One event on its way: a single object for all that is known of it, because there are so many.

    `expected` is its verdict on the head that it names. `receipt` is for the few whose waiter has to be told that
    nothing is known; `place` is for those in a batch.
    """

    __slots__ = (
        "deadline",
        "event",
        "expected",
        "in_doubt",
        "lease",
        "mac",
        "passed_on",
        "place",
        "receipt",
        "record",
        "waiter",
    )

    def __init__(
        self, event: Event, mac: bytes | None, record: Record, lease: Lease | None, expected: Admitted, waiter: _Waiter
    ) -> None:
        self.hash = event.hash
        self.parent = event.parent
        self.fence = event.fence
        self.rooted = False
        self.verdict = None
        self.event = event
        self.mac = mac
        self.record = record
        self.lease = lease
        self.expected = expected
        self.waiter = waiter
        self.place = waiter.add() if isinstance(waiter, Batch) else 0
        self.receipt: Receipt | None = None
        self.deadline = 0.0
        self.passed_on = False
        self.in_doubt = False

    def tell(self, outcome: JournalEntry[Any] | BaseException | None) -> None:
        """Give the waiter an answer, unless it has one or has gone."""
        waiter = self.waiter
        if isinstance(waiter, Batch):
            waiter.note(self.place, outcome)
        elif waiter.done():
            return
        elif isinstance(outcome, BaseException):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)


_Waiter: TypeAlias = "asyncio.Future[Any] | Batch"


@dataclass(slots=True)
class _Barrier:
    position: int
    reached: asyncio.Future[None] = field(repr=False)


class Spine:
    """Follows one scope and writes to it. Made by `Journal`, one a scope; lives on one event loop."""

    def __init__(self, scope: Scope, log: Log, codec: Codec, append_timeout: timedelta) -> None:
        self.scope = scope
        self.state: ScopeState = empty_state(scope)
        self._log = log
        self._codec = codec
        self._append_timeout = append_timeout.total_seconds()
        self._ahead: ScopeState | None = None
        self._sent: list[_Sent] = []
        self._by_data: dict[bytes, _Sent] = {}
        self._outbox: list[_Sent] = []
        self._leases: dict[bytes, Lease] = {}
        self._told: set[bytes] = set()  # leases whose callers were told that an outcome is unknown
        self._reading = asyncio.Lock()
        self._barriers: list[_Barrier] = []
        self._tail: asyncio.Task[None] | None = None
        self._append: asyncio.Future[None] | None = None
        self._is_crowded = False  # many are writing: who was woken with others waits a loop step for their records
        self._doubt: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._failed: JournalError | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> ScopeState:
        """Fold everything that is in the log now; returns the live state, which nobody but the spine may change.

        Raises:
            HistoryLostError, UnknownEventError, ForgedError, IntegrityError: the scope cannot be read any further.
            UnavailableError: the log did not answer.
        """
        self._check_usable()
        if not self.is_following():
            async with self._reading:
                if not self.is_following():
                    await self._read_to_end()
                    return self.state
        before = self.state.position
        end = await self._log.end(self.scope)
        self._check_usable()
        if before is not None and (end is None or end < before):
            self._fail(_vanished(self.scope, before, end))
            self._check_usable()
        if not self.is_following():  # it failed meanwhile, and nobody would pass the barrier
            return await self.catch_up()
        if end is not None and (self.state.position is None or self.state.position < end):
            barrier = _Barrier(end, asyncio.get_running_loop().create_future())
            self._barriers.append(barrier)
            await self._reach(barrier)
        return self.state

    async def _reach(self, barrier: _Barrier) -> None:
        """Wait for the tail, for as long as it brings something."""
        while True:
            before = self.state.position
            await asyncio.wait([barrier.reached], timeout=self._append_timeout)
            if barrier.reached.done():
                return barrier.reached.result()
            if self.state.position == before:
                self._barriers.remove(barrier)
                self._abandon_tail()
                raise failure(
                    Code.STORAGE_FAILED,
                    f"the log has events of scope {self.scope} that it did not bring within {self._append_timeout:g} s",
                )

    def _abandon_tail(self) -> None:
        tail, self._tail = self._tail, None  # the next operation starts another
        if tail is not None:
            tail.cancel()

    def is_following(self) -> bool:
        """Whether a tail keeps `state` up to date."""
        return self._tail is not None and self._failed is None

    async def _read_to_end(self) -> None:
        async with aclosing(self._log.read(self.scope, after=self._position())) as batches:
            async for batch in batches:
                self._take(batch)
                await asyncio.sleep(0)  # a long replay must not keep the loop from renewing leases

    def _position(self) -> Position | None:
        return None if self.state.position is None else Position(self.state.position)

    def follow(self) -> None:
        """Start the tail, unless it runs."""
        self._check_usable()
        if self._tail is None:
            self._tail = asyncio.create_task(self._follow(), name=f"tail {self.scope}")

    async def _follow(self) -> None:
        async with self._reading:  # a read to the end may be under way; only one may fold
            after = self._position()
        try:
            async with aclosing(self._log.tail(self.scope, after=after)) as batches:
                async for batch in batches:
                    self._take(batch)
            raise failure(Code.STORAGE_FAILED, f"the log stopped telling what is new in scope {self.scope}")
        except asyncio.CancelledError:
            if self._failed is None and self._tail is asyncio.current_task():
                # Not by us: let nobody wait for a tail that is gone.
                self._tail = None
                self._release_barriers(failure(Code.STORAGE_FAILED, f"following scope {self.scope} was cancelled"))
            raise
        except UnavailableError as error:
            self._tail = None  # the next operation starts another
            self._release_barriers(error)
            self._begin_doubt(error)
        except JournalError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  (a defect of the adapter must not leave anybody waiting)
            failed = failure(Code.STORAGE_FAILED, f"following scope {self.scope} failed: {error!r}")
            failed.__cause__ = error
            self._fail(failed)

    def _take(self, batch: Sequence[StoredEvent]) -> None:
        state, read, sent = self.state, self._codec.read, self._by_data
        fence, mine = state.fence, False
        for position, data, mac in batch:
            own = sent.get(data)
            if own is not None and own.mac == mac:
                own.event.position = position
                own.note(self._judge(own))
                mine = True
            else:
                verdict = step(state, read(position, data, mac))
                if isinstance(verdict, Admitted):
                    self._ahead = None  # somebody else wrote
        if mine or (self._sent and fence != state.fence):
            self._settle()
        if fence != state.fence or state.lease_id is None:
            self._tell_leases()
        self._release_barriers(None)

    def _judge(self, own: _Sent) -> Verdict:
        """The verdict of an event of our own that the tail has brought, and its effect on the state.

        A head stands for everything that was admitted before it, and nothing else has a say in a verdict (where an event
        lies matters for the genesis alone, which is never sent from here). So on the head that the event names its
        verdict is the one that was found when it was sent, whatever is void in between.
        """
        state, event = self.state, own.event
        if own.parent != state.head:
            return step(state, event)
        evolve(state, event, own.expected)
        state.position = event.position
        return own.expected

    def _settle(self) -> None:
        chain, self._sent = self._sent, []
        answers = settle(self.state, chain)
        for sent, answer in zip(chain, answers, strict=True):
            if answer is None:
                self._sent.append(sent)
            else:
                self._answer(sent, answer)
        if self._sent:
            counted = {sent.hash for sent, answer in zip(chain, answers, strict=True) if isinstance(answer, Admitted)}
            for sent in self._sent:
                # When what it follows counts, its parent is from now on a head that was read.
                sent.rooted = sent.rooted or sent.parent in counted
        if self._doubt is not None:
            self._end_doubt()

    def _answer(self, sent: _Sent, verdict: Verdict) -> None:
        del self._by_data[sent.event.data]
        outcome: JournalEntry[Any] | JournalError | None
        if isinstance(verdict, Admitted):
            outcome = entry_of(verdict, sent.record)
        else:
            self._ahead = None
            outcome = self._refused(verdict.reason, sent.record, sent.lease, written=True)
        if sent.receipt is not None:
            sent.receipt.settle(verdict, outcome)
        sent.tell(outcome)

    def _tell_leases(self) -> None:
        state = self.state
        for lease_id, lease in list(self._leases.items()):
            if state.fence > lease.fence:
                lease.lose(_fenced(lease, state))
                del self._leases[lease_id]

    def _release_barriers(self, error: JournalError | None) -> None:
        if not self._barriers:
            return
        position = -1 if self.state.position is None else self.state.position
        kept: list[_Barrier] = []
        for barrier in self._barriers:
            if barrier.reached.done():
                continue
            if error is not None:
                barrier.reached.set_exception(error)
            elif barrier.position <= position:
                barrier.reached.set_result(None)
            else:
                kept.append(barrier)
        self._barriers = kept

    # --- writing ------------------------------------------------------------------------------------------------------

    def register(self, lease: Lease) -> None:
        """From now on tell this lease when the log shows a newer one."""
        self._leases[lease.lease_id] = lease
        if self.state.fence > lease.fence:  # the newer one came with the very batch that admitted this one
            lease.lose(_fenced(lease, self.state))

    def forget(self, lease: Lease) -> None:
        """Stop telling a lease that is over."""
        self._leases.pop(lease.lease_id, None)
        self._told.discard(lease.lease_id)

    def submit(
        self, lease: Lease, record: Record, event_id: EventId | None = None, *, linger: bool = False
    ) -> asyncio.Future[JournalEntry[Any] | None]:
        """Send one record under a lease and return the future of its entry. Does not wait, keeps the order of calls.

        The event id is drawn when none is given. With `linger`, the record may wait a moment for another to go with it.

        Raises, with nothing written:
            FencedError: the lease is over.
            UnavailableError: `journal_lease_in_doubt`.
            InvalidContractError, IntegrityError: a rule refuses the record.
        """
        self._check_writable(lease)
        return self._send_alone(lease, (lease.lease_id, lease.fence), record, event_id, linger=linger)

    def submit_all(self, lease: Lease, records: Iterable[Record]) -> asyncio.Future[list[JournalEntry[Any] | None]]:
        """Send records in one append; the future gives their entries once all are settled, or raises the first error.

        Nothing is sent behind a record that cannot be, or that `records` raises for.
        """
        batch, refused = Batch(), None
        identity = lease.lease_id, lease.fence
        try:
            for record in records:
                self._check_writable(lease)
                self._send(lease, identity, record, batch)
        except JournalError as error:
            refused = error
        finally:
            self._attend()
            self._flush()
        batch.seal(refused)
        return batch.future

    def _check_writable(self, lease: Lease) -> None:
        self._check_usable()
        if lease.in_doubt:
            if self.state.fence > lease.fence:
                raise _fenced(lease, self.state)
            raise failure(
                Code.LEASE_IN_DOUBT,
                f"an earlier write to scope {self.scope} is in doubt: take a fresh fence (Journal.refresh) first",
            )

    def announce(self, lease_id: LeaseId, fence: int, record: LeaseAcquiredRecord) -> asyncio.Future[Any]:
        """Send a `LeaseAcquired` on the newest head that was read; raises and returns as `submit`."""
        self._check_usable()
        # What is in doubt is not built upon: this very event is what settles it.
        self._ahead = self.state.copy()
        return self._send_alone(None, (lease_id, fence), record)

    def _send_alone(
        self,
        lease: Lease | None,
        identity: tuple[bytes, int],
        record: Record,
        event_id: EventId | None = None,
        *,
        linger: bool = False,
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._send(lease, identity, record, future, event_id)
        self._attend()
        if linger:
            if self._lingering is None:
                self._lingering = loop.call_later(LINGER_SECONDS, self._end_lingering)
        elif not self._is_crowded or self._lingering is not None:
            self._flush()
        elif len(self._outbox) == 1:
            loop.call_soon(self._flush)
        return future

    def _send(
        self,
        lease: Lease | None,
        identity: tuple[bytes, int],
        record: Record,
        waiter: _Waiter,
        event_id: EventId | None = None,
    ) -> None:
        """Draft an event on what is expected to count, for the next flush; `identity` is its lease id and fence."""
        ahead = self._ahead_state()
        lease_id, fence = identity
        event, mac = self._codec.draft(
            record,
            scope=self.scope,
            incarnation=ahead.incarnation or b"",
            lease_id=lease_id,
            parent=ahead.head,
            fence=fence,
            recorded_at=time.time_ns() // 1_000,
            event_id=event_id,
        )
        verdict = admit(ahead, event)
        if isinstance(verdict, Void):
            raise self._refused(verdict.reason, record, lease, written=False)
        sent = _Sent(event, mac, record, lease, verdict, waiter)
        if not self._sent and verdict.sequence is not None and verdict.sequence <= ahead.sequence:
            # An exact retry of what is in the log already: the log needs no second copy.
            sent.tell(entry_of(verdict, record))
            return
        sent.rooted = ahead.head == self.state.head
        sent.deadline = asyncio.get_running_loop().time() + self._append_timeout * _CONFIRM_SHARE
        evolve(ahead, event, verdict)
        self._sent.append(sent)
        self._by_data[event.data] = sent
        self._outbox.append(sent)

    def _attend(self) -> None:
        """See that somebody looks out for what was sent, and at the time."""
        if self._tail is None and self._outbox:
            self.follow()
        if self._watch is None:
            self._arm_watch()

    def _ahead_state(self) -> ScopeState:
        if self._ahead is None:
            self._ahead = ahead = self.state.copy()
            for sent in self._sent:
                if not sent.in_doubt and isinstance(verdict := admit(ahead, sent.event), Admitted):
                    evolve(ahead, sent.event, verdict)
        return self._ahead

    def _refused(self, reason: Code, record: Record, lease: Lease | None, *, written: bool) -> JournalError:
        if lease is not None and self.state.fence > lease.fence:
            return _fenced(lease, self.state)
        return refusal(reason, record, self.scope, written=written)

    def _end_lingering(self) -> None:
        self._lingering = None
        self._flush()

    def _flush(self) -> None:
        """Give the log what waits, unless an append is under way: then it goes with the next, all of it together."""
        if self._append is not None or not self._outbox or self._failed is not None:
            return
        lingering, self._lingering = self._lingering, None
        if lingering is not None:
            lingering.cancel()
        batch, self._outbox = self._outbox, []
        self._is_crowded = len(batch) > 1 and lingering is None
        for sent in batch:
            sent.passed_on = True
        try:
            appending = self._log.append(self.scope, [Outgoing(sent.event.data, sent.mac) for sent in batch])
        except JournalError as error:
            self._on_failure(batch, error)
            return
        self._append = asyncio.ensure_future(appending)
        self._append.add_done_callback(partial(self._on_appended, batch))

    def _on_appended(self, batch: list[_Sent], append: asyncio.Future[None]) -> None:
        if self._append is append:
            self._append = None
        error = None if append.cancelled() else append.exception()
        if error is not None:
            self._on_failure(batch, error)
        self._flush()

    def _on_failure(self, batch: list[_Sent], error: BaseException) -> None:
        if isinstance(error, JournalError) and not isinstance(error, OutcomeUnknownError):
            for sent in batch:
                sent.passed_on = False
            self._take_back(error)
        else:  # no explicit answer is no answer
            self._begin_doubt(error)

    def _take_back(self, error: BaseException) -> None:
        """Nothing of these was written, for certain: tell their callers so."""
        unwritten = [sent for sent in self._sent if not sent.passed_on]
        self._sent = [sent for sent in self._sent if sent.passed_on]
        self._outbox = []
        self._ahead = None
        for sent in unwritten:
            del self._by_data[sent.event.data]
            sent.tell(error)

    # --- doubt --------------------------------------------------------------------------------------------------------

    def _arm_watch(self) -> None:
        """Have a look when the oldest of what is in flight runs out of time."""
        if self._watch is not None:
            return
        deadline = next((sent.deadline for sent in self._sent if not sent.in_doubt), None)
        if deadline is not None:
            self._watch = asyncio.get_running_loop().call_at(deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._watch = None
        now = asyncio.get_running_loop().time()
        if any(sent.deadline <= now for sent in self._sent if not sent.in_doubt):
            self._begin_doubt(TimeoutError(f"not confirmed within {self._append_timeout * _CONFIRM_SHARE:g} s"))
        else:
            self._arm_watch()

    def _begin_doubt(self, cause: BaseException) -> None:
        """Something that was sent is not confirmed: write nothing more, and find out."""
        doubtful = [sent for sent in self._sent if sent.passed_on and not sent.in_doubt]
        if not doubtful or self._doubt is not None:
            return
        for sent in doubtful:
            sent.in_doubt = True
            if sent.lease is not None:
                sent.lease.in_doubt = True
        unsent = failure(Code.NOT_WRITTEN, f"not written: an earlier append to scope {self.scope} is in doubt")
        unsent.__cause__ = cause
        self._take_back(unsent)
        until = min(sent.deadline for sent in doubtful) + self._append_timeout * (1 - _CONFIRM_SHARE)
        self._doubt = asyncio.create_task(self._find_out(cause, until), name=f"doubt {self.scope}")

    async def _find_out(self, cause: BaseException, until: float) -> None:
        if self._append is not None and not isinstance(cause, OutcomeUnknownError):
            self._append.cancel()  # its time is over
        try:
            async with asyncio.timeout_at(until):
                await self.catch_up()
        except JournalError as error:
            cause = error
        except TimeoutError:
            pass  # that nobody answers says less than what came before
        finally:
            self._doubt = None
        self._end_doubt()
        for sent in self._sent:
            if sent.in_doubt:
                self._tell_unknown(sent, cause)
        self._ahead = None
        self._arm_watch()  # for what was sent while nobody watched

    def _end_doubt(self) -> None:
        """Whoever has nothing left in doubt may go on, unless it was told otherwise."""
        doubtful = {sent.lease for sent in self._sent if sent.in_doubt}
        for lease in self._leases.values():
            if lease.lease_id not in self._told and lease not in doubtful:
                lease.in_doubt = False

    def _tell_unknown(self, sent: _Sent, cause: BaseException) -> None:
        if sent.lease is not None:
            self._told.add(sent.lease.lease_id)
        why = cause.message if isinstance(cause, JournalError) else str(cause)
        error = OutcomeUnknownError(
            f"{name_of(sent.record)} in scope {self.scope} was sent and not confirmed: it may count or not. "
            f"Take a fresh fence (Journal.refresh), which settles it. The cause: {why or type(cause).__name__}",
            receipt=self._receipt_of(sent),
        )
        error.__cause__ = cause
        sent.tell(error)

    def _receipt_of(self, sent: _Sent) -> Receipt:
        sent.receipt = sent.receipt or Receipt(self.scope, sent.record)
        return sent.receipt

    # --- the end ------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise self._failed

    def _fail(self, error: JournalError) -> None:
        self._failed = error
        self._release_barriers(error)
        for lease in self._leases.values():
            lease.lose(error)
        for sent in self._sent:
            self._receipt_of(sent).give_up(error)
            self._tell_unknown(sent, error)

    async def close(self) -> None:
        """Stop the tail; what is still in flight gets no answer from here."""
        self._failed = self._failed or failure(Code.CLOSED, f"the journal of scope {self.scope} was closed")
        for timer in (self._watch, self._lingering):
            if timer is not None:
                timer.cancel()
        tasks = [task for task in (self._tail, self._append, self._doubt) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._fail(self._failed)


def _vanished(scope: Scope, position: int, end: int | None) -> JournalError:
    return failure(
        Code.HISTORY_LOST,
        f"scope {scope}: position {position} was read, but the log now ends at {end}: it was truncated or replaced",
        scope=str(scope),
        position=position,
    )


def _fenced(lease: Lease, state: ScopeState) -> FencedError:
    holder = "another holder" if state.lease is None else state.lease.holder
    return FencedError(
        Code.STALE_FENCE,
        f"scope {lease.scope} was taken over by {holder} with fence {state.fence}; this lease had {lease.fence}: stop, "
        "and acquire a new lease to go on",
        scope=str(lease.scope),
        fence=int(lease.fence),
        newer_fence=state.fence,
        newer_holder=str(holder),
    )
