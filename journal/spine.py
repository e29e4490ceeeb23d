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
from collections.abc import Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

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
from journal.identities import EventId, LeaseId, Position, Scope, Sequence as SequenceNumber
from journal.lease import Lease
from journal.ports import Log, Outgoing, StoredEvent
from journal.receipt import Receipt, name_of, refusal
from journal.records import JournalEntry, LeaseAcquiredRecord, Record


@dataclass(slots=True, eq=False)
class _Sent:
    """One event on its way."""

    event: Event
    mac: bytes | None
    pending: Pending
    receipt: Receipt
    lease: Lease | None
    deadline: float
    future: asyncio.Future[JournalEntry[Any] | None]
    passed_on: bool = False
    in_doubt: bool = False


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
        self._is_corked = False
        self._is_crowded = False  # many are writing: who was woken with others waits a loop step for their records
        self._doubt: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._failed: JournalError | None = None

    # --- reading ------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> ScopeState:
        """Fold everything that is in the log now; returns the live state, which nobody but the spine may change.

        Raises:
            HistoryLostError, UnknownEventError, ForgedError, IntegrityError: the scope cannot be read any further.
            UnavailableError: the log did not answer.
        """
        self._check_usable()
        if not self._is_following():
            async with self._reading:
                if not self._is_following():
                    await self._read_to_end()
                    return self.state
        before = self.state.position
        end = await self._log.end(self.scope)
        self._check_usable()
        if before is not None and (end is None or end < before):
            self._fail(_vanished(self.scope, before, end))
            self._check_usable()
        if not self._is_following():  # it failed meanwhile, and nobody would pass the barrier
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

    def _is_following(self) -> bool:
        return self._tail is not None

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
                own.pending.note(step(state, own.event))
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

    def _settle(self) -> None:
        answers = settle(self.state, [sent.pending for sent in self._sent])
        waiting: list[_Sent] = []
        counted = {
            sent.event.hash for sent, answer in zip(self._sent, answers, strict=True) if isinstance(answer, Admitted)
        }
        for sent, answer in zip(self._sent, answers, strict=True):
            if answer is None:
                # When what it follows counts, its parent is from now on a head that was read.
                sent.pending.rooted = sent.pending.rooted or sent.pending.parent in counted
                waiting.append(sent)
            else:
                self._answer(sent, answer)
        self._sent = waiting
        if self._doubt is not None:
            self._end_doubt()

    def _answer(self, sent: _Sent, verdict: Verdict) -> None:
        del self._by_data[sent.event.data]
        sent.receipt.settle(verdict)
        if isinstance(verdict, Void):
            self._ahead = None
        if sent.future.done():
            return
        try:
            sent.future.set_result(sent.receipt.result())
        except JournalError as error:
            superseded = sent.lease is not None and self.state.fence > sent.lease.fence
            sent.future.set_exception(_fenced(sent.lease, self.state) if superseded and sent.lease else error)

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
        self, lease: Lease, record: Record, event_id: EventId | None = None
    ) -> asyncio.Future[JournalEntry[Any] | None]:
        """Send one record under a lease and return the future of its entry. Does not wait, keeps the order of calls.

        The event id is drawn when none is given.

        Raises, with nothing written:
            FencedError: the lease is over.
            UnavailableError: `journal_lease_in_doubt`.
            InvalidContractError, IntegrityError: a rule refuses the record.
        """
        self._check_usable()
        if lease.in_doubt:
            raise failure(
                Code.LEASE_IN_DOUBT,
                f"an earlier write to scope {self.scope} is in doubt: take a fresh fence (Journal.refresh) first",
            )
        return self._send(lease, lease.lease_id, lease.fence, record, event_id)

    def announce(self, lease_id: LeaseId, fence: int, record: LeaseAcquiredRecord) -> asyncio.Future[Any]:
        """Send a `LeaseAcquired` on the newest head that was read; raises and returns as `submit`."""
        self._check_usable()
        # What is in doubt is not built upon: this very event is what settles it.
        self._ahead = self.state.copy()
        return self._send(None, lease_id, fence, record)

    def _send(
        self, lease: Lease | None, lease_id: bytes, fence: int, record: Record, event_id: EventId | None = None
    ) -> asyncio.Future[Any]:
        ahead = self._ahead_state()
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
        data = event.data
        verdict = admit(ahead, event)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if isinstance(verdict, Void):
            raise self._refused(verdict.reason, record, lease)
        if not self._sent and verdict.sequence is not None and verdict.sequence <= ahead.sequence:
            # An exact retry of what is in the log already: the log needs no second copy.
            future.set_result(JournalEntry(SequenceNumber(verdict.sequence), record))
            return future
        pending = Pending(event.hash, ahead.head, fence, rooted=ahead.head == self.state.head)
        evolve(ahead, event, verdict)
        sent = _Sent(
            event, mac, pending, Receipt(self.scope, record), lease, loop.time() + self._append_timeout, future
        )
        self._sent.append(sent)
        self._by_data[data] = sent
        self._outbox.append(sent)
        self.follow()
        if not self._is_crowded:
            self._flush()
        elif len(self._outbox) == 1:
            loop.call_soon(self._flush)
        self._arm_watch()
        return future

    def _ahead_state(self) -> ScopeState:
        if self._ahead is None:
            self._ahead = ahead = self.state.copy()
            for sent in self._sent:
                if not sent.in_doubt and isinstance(verdict := admit(ahead, sent.event), Admitted):
                    evolve(ahead, sent.event, verdict)
        return self._ahead

    def _refused(self, reason: Code, record: Record, lease: Lease | None) -> JournalError:
        if lease is not None and self.state.fence > lease.fence:
            return _fenced(lease, self.state)
        return refusal(reason, record, self.scope, written=False)

    @contextmanager
    def corked(self) -> Generator[None, None, None]:
        """What is submitted in the block goes to the log in one append."""
        self._is_corked = True
        try:
            yield
        finally:
            self._is_corked = False
            self._flush()

    def _flush(self) -> None:
        """Give the log what waits, unless an append is under way: then it goes with the next, all of it together."""
        if self._append is not None or self._is_corked or not self._outbox or self._failed is not None:
            return
        batch, self._outbox = self._outbox, []
        self._is_crowded = len(batch) > 1
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
            if not sent.future.done():
                sent.future.set_exception(error)

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
            self._begin_doubt(TimeoutError(f"not confirmed within {self._append_timeout:g} s"))
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
        self._doubt = asyncio.create_task(self._find_out(cause), name=f"doubt {self.scope}")

    async def _find_out(self, cause: BaseException) -> None:
        if self._append is not None and not isinstance(cause, OutcomeUnknownError):
            self._append.cancel()  # its time is over
        try:
            async with asyncio.timeout(self._append_timeout):
                await self.catch_up()
        except (JournalError, TimeoutError) as error:
            cause = error
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
        if sent.future.done():
            return
        error = OutcomeUnknownError(
            f"{name_of(sent.receipt.record)} in scope {self.scope} was sent and not confirmed: it may count or not. "
            "Take a fresh fence (Journal.refresh), which settles it",
            receipt=sent.receipt,
        )
        error.__cause__ = cause
        sent.future.set_exception(error)

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
            sent.receipt.give_up(error)
            self._tell_unknown(sent, error)

    async def close(self) -> None:
        """Stop the tail; what is still in flight gets no answer from here."""
        self._failed = self._failed or failure(Code.CLOSED, f"the journal of scope {self.scope} was closed")
        if self._watch is not None:
            self._watch.cancel()
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
