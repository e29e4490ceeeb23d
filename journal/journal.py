"""The journal: open a scope, take its lease, append records, await their verdicts, load what counts.

The operations and their names are seed 000's store contract; what they refuse, and with which code, is decided by
`admission`. Reading needs no lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Final, Self, TypeAlias, TypeVar, cast

from journal.acquisition import Acquisition, Patience
from journal.admission import Admitted, ScopeState, Verdict, admit, empty_state, step
from journal.carriage import Carriage
from journal.codec import Codec
from journal.control import Control
from journal.entries import OpenPlanRecord, OpenRollbackPlanRecord
from journal.errors import (
    Code,
    FencedError,
    JournalError,
    LeaseContendedError,
    OutcomeUnknownError,
    failure,
)
from journal.events import NO_LEASE, NO_PARENT, Event, EventType, Readable
from journal.identities import EventId, HolderId, Incarnation, LeaseId, Position, Scope, Sequence as SequenceNumber
from journal.lease import Lease
from journal.ports import Grant, Leases, Log, Outgoing
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    JournalEntry,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    PlanRecord,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
    ScopeCreatedRecord,
    ScopedRecord,
)
from journal.spine import Spine
from journal.tasks import start
from journal.whereabouts import check_here

DEFAULT_TTL: Final = timedelta(seconds=30)
MAX_TTL: Final = timedelta(days=30)
DEFAULT_APPEND_TIMEOUT: Final = timedelta(seconds=5)

_How: TypeAlias = tuple[Patience, LeaseId | None]
AsOf: TypeAlias = SequenceNumber | Position | datetime
T = TypeVar("T", bound=ScopedRecord)


@dataclass(frozen=True, slots=True)
class Created:
    """A scope that exists now; `created` says whether this very call made it."""

    scope: Scope
    incarnation: Incarnation
    created: bool


class Journal:
    """Reads and writes the scopes of one log, with the leases of one store.

    An `async` context manager; closing it releases its leases and closes both adapters. `append_timeout` bounds every
    append until its verdict. Belongs to one event loop.
    """

    def __init__(
        self,
        log: Log,
        leases: Leases,
        *,
        codec: Codec | None = None,
        append_timeout: timedelta = DEFAULT_APPEND_TIMEOUT,
    ) -> None:
        self._log = log
        self._lease_store = leases
        self._codec = codec or Codec()
        self._append_timeout = append_timeout
        self._spines: dict[Scope, Spine] = {}
        self._held: set[Lease] = set()
        self._releases: dict[Lease, asyncio.Task[None]] = {}
        self._freeing: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release the leases that are still held, stop following, close log and lease store.

        Idempotent, and finished even when the caller is cancelled; calls that come meanwhile wait for the first.
        """
        if self._closing is None:
            self._closing = start(self._close(), "close journal")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            while self._held:
                with contextlib.suppress(JournalError):
                    await self.release(next(iter(self._held)))  # a lease that cannot be given back runs out by itself
            await asyncio.gather(*self._releases.values(), *self._freeing, return_exceptions=True)
        finally:
            self._closed = True
            for spine in self._spines.values():
                await spine.close()
            await self._log.close()
            await self._lease_store.close()

    # --- scopes -------------------------------------------------------------------------------------------------------

    async def scopes(self) -> Sequence[Scope]:
        """All scopes of the log, sorted."""
        return await self._log.scopes()

    async def create(self, scope: Scope) -> Created:
        """Make sure that `scope` exists; with a key, a new one is authenticated. Of two that race one creates.

        Raises:
            IntegrityError: `journal_no_genesis`: its log holds something else.
            ForgedError: it exists and is (not) authenticated with this key.
            UnavailableError, OutcomeUnknownError: asking again is safe.
        """
        self._check_open()
        await self._log.create(scope)
        spine = self._spine(scope)
        state = await spine.catch_up()
        incarnation = Incarnation.random()
        if state.position is None:
            genesis = self._codec.write(
                ScopeCreatedRecord.new(authenticated=self._codec.keyring is not None),
                scope=scope,
                incarnation=incarnation,
                lease_id=NO_LEASE,
                parent=NO_PARENT,
                fence=0,
                recorded_at=time.time_ns() // 1_000,
            )
            try:
                async with asyncio.timeout(self._append_timeout.total_seconds()):
                    await self._log.append(scope, [Outgoing(genesis, self._codec.authenticate(genesis))])
            except TimeoutError:
                raise OutcomeUnknownError(f"the creation of scope {scope} was not confirmed: create it again") from None
            state = await spine.catch_up()
        _check_genesis(state)
        return Created(scope, Incarnation(state.incarnation or b""), state.incarnation == incarnation)

    def carriage(self, scope: Scope) -> Carriage:
        """The scope's log as bytes, to carry its history to another log or here; the scope need not be there yet."""
        self._check_open()
        return Carriage(scope, self._log, self._codec, self._spine(scope), self._append_timeout)

    # --- leases -------------------------------------------------------------------------------------------------------

    async def acquire(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        ttl: timedelta = DEFAULT_TTL,
        wait: timedelta | None = None,
        control: Control | None = None,
        on_wait: Callable[[LeaseContendedError], None] | None = None,
    ) -> Lease:
        """Take the lease of a scope: granted by the store and admitted by the log.

        Waits for another holder as long as `wait` (None: for as long as it takes, zero: not at all), within `control`.
        `on_wait` is told whenever there is a new holder to wait for. The lease renews itself until it is released.

        Raises:
            LeaseContendedError: another holder kept it; says who and until when.
            InvalidContractError: `journal_unknown_scope`; `journal_scope_awaited`: the log holds a copy of the scope.
            FencedError: `journal_scope_moved`: the scope was moved to another log.
            UnavailableError: the store or the log did not answer.
            OperationCancelledError, ResourceLimitError: by `control`; the latter also for a `ttl` over 30 days.
        """
        if not timedelta(0) < ttl <= MAX_TTL:
            raise failure(
                Code.LIMIT_EXCEEDED, f"a lease lasts more than 0 s and at most {MAX_TTL.days} days, not {ttl}"
            )
        return await self._take(scope, holder, ttl, control or Control(), (Patience(wait, on_wait), None))

    @asynccontextmanager
    async def lease(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        ttl: timedelta = DEFAULT_TTL,
        wait: timedelta | None = None,
        control: Control | None = None,
    ) -> AsyncGenerator[Lease, None]:
        """`acquire`, and `release` at the end of the block."""
        lease = await self.acquire(scope, holder, ttl=ttl, wait=wait, control=control)
        try:
            yield lease
        except BaseException:
            with contextlib.suppress(JournalError):  # what went wrong in the block matters more
                await self.release(lease)
            raise
        await self.release(lease)

    async def refresh(self, lease: Lease, *, control: Control | None = None) -> Lease:
        """Take a fresh fence in place of one's own lease, which settles everything that was in doubt under it.

        The old lease is over afterwards. Raises as `acquire`.
        """
        self._check_mine(lease)
        how = (Patience(timedelta(0)), lease.lease_id)
        fresh = await self._take(lease.scope, lease.holder, lease.ttl, control or Control(), how)
        # Nothing may be awaited from here on: a caller who is cancelled could not give the fresh lease back.
        self._held.discard(lease)
        lease.end_renewal()
        return fresh

    async def release(self, lease: Lease) -> None:
        """Give a lease back. Idempotent; finishes even when the caller is cancelled; a superseded one is left alone.

        Raises:
            UnavailableError, OutcomeUnknownError: it could not be given back in time; it runs out by itself.
        """
        self._check_mine(lease)
        if not lease.released:
            lease.released = True
            self._held.discard(lease)
            self._releases[lease] = release = start(self._release(lease), f"release {lease.scope}")
            release.add_done_callback(lambda _: self._releases.pop(lease, None))
        if lease in self._releases:
            await asyncio.shield(self._releases[lease])

    async def lease_in_store(self, scope: Scope) -> Grant | None:
        """The lease as the store has it, expired or not."""
        return await self._lease_store.inspect(scope)

    async def _take(self, scope: Scope, holder: HolderId, ttl: timedelta, control: Control, how: _How) -> Lease:
        spine = self._followed(scope) or await self._open(scope)
        acquisition = Acquisition(
            spine, self._lease_store, holder, ttl, self, partial(self._hold, spine), self._freeing
        )
        return await acquisition.run(control, *how)

    def _hold(self, spine: Spine, lease: Lease) -> None:
        self._check_open()
        self._held.add(lease)
        spine.register(lease)
        lease.start_renewal(lambda: _confirm(spine))

    async def _release(self, lease: Lease) -> None:
        await lease.stop_renewal()
        spine = self._spine(lease.scope)
        try:
            if not lease.in_doubt and spine.state.fence == lease.fence:
                await spine.submit(lease, LeaseReleasedRecord.new(lease.holder))
        except FencedError:
            pass  # superseded meanwhile: there is nothing left to give back
        finally:
            spine.forget(lease)
            await self._lease_store.release(lease.grant)

    # --- the store contract of seed 000 -------------------------------------------------------------------------------

    async def begin_plan(self, lease: Lease, record: PlanRecord) -> JournalEntry[PlanRecord]:
        """Open an apply plan; at most one plan, of either direction, is open in a scope.

        Every write raises, beside the codes of its own:
            FencedError: `migration_execution_stale_fence`: the lease is over, or the record is of another one.
            OutcomeUnknownError: sent, not confirmed; `refresh` settles it.
            UnavailableError: nothing was written.

        Raises: `migration_execution_plan_already_open`, `migration_execution_stale_applied_set`,
            `migration_execution_applied_identity_conflict`.
        """
        return await self.record(lease, record)

    async def record_group_event(self, lease: Lease, record: GroupEventRecord) -> JournalEntry[GroupEventRecord]:
        """Append a commit boundary of one group of the open apply plan.

        Raises: `migration_execution_no_open_plan`, `migration_execution_foreign_event`,
            `migration_execution_invalid_event_transition`.
        """
        return await self.record(lease, record)

    async def record_backfill_event(
        self, lease: Lease, record: BackfillEventRecord
    ) -> JournalEntry[BackfillEventRecord]:
        """Append a commit boundary of one backfill of the open plan.

        Raises: `migration_execution_foreign_event`, `migration_execution_invalid_event_transition`.
        """
        return await self.record(lease, record)

    async def record_backfill_checkpoint(
        self, lease: Lease, record: BackfillCheckpointRecord
    ) -> JournalEntry[BackfillCheckpointRecord]:
        """Append the progress of a backfill that was begun.

        Raises: `migration_execution_foreign_event`, `migration_execution_invalid_event_transition`,
            `migration_backfill_checkpoint_regression`.
        """
        return await self.record(lease, record)

    async def record_applied(self, lease: Lease, record: AppliedRecord) -> JournalEntry[AppliedRecord]:
        """Enter one migration of the open plan into the ledger; the last one closes the plan.

        The exact record again, under the same fence, gives the same entry.

        Raises: `migration_execution_applied_identity_conflict`, `migration_execution_no_open_plan`,
            `migration_execution_foreign_applied_record`.
        """
        return await self.record(lease, record)

    async def load_applied(self, lease: Lease) -> list[JournalEntry[AppliedRecord]]:
        """The active ledger, in order. Every load raises FencedError when the lease is over."""
        return (await self._current(lease)).active_ledger()

    async def load_open_plan(self, lease: Lease) -> OpenPlanRecord | None:
        """The open apply plan with the ordered events of its groups and forward backfills."""
        return (await self._current(lease)).open_plan()

    async def begin_rollback_plan(self, lease: Lease, record: RollbackPlanRecord) -> JournalEntry[RollbackPlanRecord]:
        """Open a rollback plan.

        Raises: `migration_execution_plan_already_open`, `migration_execution_stale_applied_set`,
            `migration_execution_retirement_conflict`.
        """
        return await self.record(lease, record)

    async def record_rollback_step_event(
        self, lease: Lease, record: RollbackStepEventRecord
    ) -> JournalEntry[RollbackStepEventRecord]:
        """Append a commit boundary of one reverse step; raises as `record_group_event`."""
        return await self.record(lease, record)

    async def record_rolled_back(self, lease: Lease, record: RolledBackRecord) -> JournalEntry[RolledBackRecord]:
        """Take one migration of the open rollback plan out of the ledger; the last one closes the plan.

        The exact record again, under the same fence, gives the same entry.

        Raises: `migration_execution_retirement_conflict`, `migration_execution_no_open_plan`,
            `migration_execution_foreign_applied_record`.
        """
        return await self.record(lease, record)

    async def load_rolled_back(self, lease: Lease) -> list[JournalEntry[RolledBackRecord]]:
        """All retirements of the scope's history, in order: reads the log from its start."""
        await self._current(lease)
        retirements: dict[int, JournalEntry[RolledBackRecord]] = {}
        async for event, verdict in self.replay(lease.scope):
            sequence = verdict.sequence if isinstance(verdict, Admitted) else None
            if sequence is not None and isinstance(event, Event) and event.type is EventType.ROLLED_BACK:
                record = cast("RolledBackRecord", event.record)
                retirements.setdefault(sequence, JournalEntry(SequenceNumber(sequence), record))
        return list(retirements.values())

    async def load_open_rollback_plan(self, lease: Lease) -> OpenRollbackPlanRecord | None:
        """The open rollback plan with the ordered events of its steps and reverse backfills."""
        return (await self._current(lease)).open_rollback_plan()

    async def import_ledger(self, lease: Lease, record: LedgerImportedRecord) -> JournalEntry[LedgerImportedRecord]:
        """Adopt migrations that were applied before this journal was there.

        Raises: `migration_execution_plan_already_open`, `migration_execution_applied_identity_conflict`.
        """
        return await self.record(lease, record)

    async def attest_recovery(
        self, lease: Lease, record: RecoveryAttestedRecord
    ) -> JournalEntry[RecoveryAttestedRecord]:
        """Record an operator's statement about a unit that is in doubt.

        Raises: `migration_execution_no_open_plan`, `migration_execution_foreign_event`,
            `migration_execution_invalid_event_transition`.
        """
        return await self.record(lease, record)

    async def abandon_plan(self, lease: Lease, record: PlanAbandonedRecord) -> JournalEntry[PlanAbandonedRecord]:
        """Give up the open plan.

        Raises: `migration_execution_no_open_plan`, `migration_execution_foreign_plan`,
            `migration_execution_unit_in_doubt`.
        """
        return await self.record(lease, record)

    async def record(self, lease: Lease, record: T) -> JournalEntry[T]:
        """Append any record and return its entry once it counts."""
        return await self.send(lease, record)

    async def record_all(self, lease: Lease, records: Sequence[T]) -> list[JournalEntry[T]]:
        """Append records in order, pipelined, and return their entries once all count.

        When one is refused, those before it are written and those behind it are not; its error is raised.
        """
        self._check_mine(lease)
        sending = self._spine(lease.scope).submit_all(lease, _bound(lease, records))
        return cast("list[JournalEntry[T]]", await sending)

    def send(
        self, lease: Lease, record: T, *, event_id: EventId | None = None, linger: bool = False
    ) -> asyncio.Future[JournalEntry[T]]:
        """Append any record without waiting; the future gives its entry once it counts, or raises as `record` does.

        Records that are sent one after the other keep their order, and none counts without those before it. `event_id`
        is the event's identity, drawn when not given: give one to name the event elsewhere before it is written. With
        `linger` it may wait 20 ms for a next record, so that both are written in one commit.
        """
        self._check_mine(lease)
        _check_bound(lease, record)
        future = self._spine(lease.scope).submit(lease, record, event_id, linger=linger)
        return cast("asyncio.Future[JournalEntry[T]]", future)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def state(self, scope: Scope, *, as_of: AsOf | None = None) -> ScopeState:
        """What counts in a scope now, or as it was: after a sequence, at a position, or at a time.

        A time selects the longest prefix in which no event that counts was recorded later; it must be aware of its zone.

        Raises:
            InvalidContractError: `journal_unknown_scope`, or `journal_not_yet_created` at that sequence, position or time.
            IntegrityError, UnknownEventError, HistoryLostError: the scope cannot be read to its end.
        """
        if as_of is None:
            return (await (await self._open(scope)).catch_up()).copy()
        state = empty_state(scope)
        async for event in self._events(scope):
            if _is_later(state, event, as_of):
                break
            step(state, event)
        if state.position is None:
            raise failure(Code.NOT_YET_CREATED, f"scope {scope} was not there yet at {as_of}", scope=str(scope))
        _check_genesis(state)
        return state

    async def replay(
        self, scope: Scope, *, state: ScopeState | None = None
    ) -> AsyncGenerator[tuple[Readable, Verdict], None]:
        """Every event of a scope with its verdict, from genesis. `state`, when given an empty one, follows along."""
        state = empty_state(scope) if state is None else state
        async for event in self._events(scope):
            yield event, step(state, event)

    async def _events(self, scope: Scope) -> AsyncGenerator[Readable, None]:
        await self._known(scope)
        async with aclosing(self._log.read(scope, after=None)) as batches:
            async for batch in batches:
                for position, data, mac in batch:
                    yield self._codec.read(position, data, mac)

    async def _open(self, scope: Scope) -> Spine:
        self._check_open()
        await self._known(scope)
        spine = self._spine(scope)
        _check_genesis(await spine.catch_up())
        return spine

    def _followed(self, scope: Scope) -> Spine | None:
        """The spine of a scope that is open already and kept up to date."""
        self._check_open()
        spine = self._spines.get(scope)
        return self._spine(scope) if spine is not None and spine.is_following() and spine.state.incarnation else None

    async def _known(self, scope: Scope) -> None:
        if scope in self._spines and self._spines[scope].state.position is not None:
            return
        scopes = await self._log.scopes()
        if scope not in scopes:
            near = difflib.get_close_matches(scope, scopes, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise failure(Code.UNKNOWN_SCOPE, f"there is no scope {scope} in this log{hint}", scope=str(scope))

    def _spine(self, scope: Scope) -> Spine:
        if self._closed:
            raise failure(Code.CLOSED, "the journal was closed")
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise failure(Code.FOREIGN_LOOP, "a journal belongs to the event loop that it was first used on")
            self._loop = loop
        if scope not in self._spines:
            self._spines[scope] = Spine(scope, self._log, self._codec, self._append_timeout)
        return self._spines[scope]

    async def _current(self, lease: Lease) -> ScopeState:
        """The state, if this lease is still the one that counts."""
        self._check_mine(lease)
        state = await self._spine(lease.scope).catch_up()
        if lease.released or state.lease_id != lease.lease_id:
            raise failure(
                Code.STALE_FENCE,
                f"the lease of scope {lease.scope} with fence {lease.fence} is over (newest fence: {state.fence})",
            )
        return state

    def _check_open(self) -> None:
        if self._closing is not None:
            raise failure(Code.CLOSED, "the journal was closed, or is being closed")

    def _check_mine(self, lease: Lease) -> None:
        if not lease.is_bound_to(self):
            raise failure(Code.FOREIGN_LEASE, "the lease was issued by another journal object")


def _check_bound(lease: Lease, record: ScopedRecord) -> None:
    if lease.released:
        raise failure(Code.STALE_FENCE, f"the lease of scope {lease.scope} was released: acquire a new one")
    grant = lease.grant
    if record.scope != grant.scope or record.fence != grant.fence:
        raise failure(
            Code.STALE_FENCE,
            f"the record was built for scope {record.scope} and fence {record.fence}, the lease is of scope "
            f"{lease.scope} and fence {lease.fence}",
        )


def _bound(lease: Lease, records: Iterable[T]) -> Iterator[T]:
    """The records up to the first that was not built for this lease; raises there."""
    for record in records:
        _check_bound(lease, record)
        yield record


async def _confirm(spine: Spine) -> None:
    await spine.catch_up()


def _check_genesis(state: ScopeState) -> None:
    if state.incarnation is None:
        check_here(state)  # it may be awaited
        raise failure(
            Code.NO_GENESIS,
            f"the log of scope {state.scope} does not start with its creation: "
            + ("create it first" if state.position is None else "something else was written there first"),
            scope=state.scope,
            is_empty=state.position is None,
        )


def _is_later(state: ScopeState, event: Readable, as_of: AsOf) -> bool:
    match as_of:
        case Position():
            return event.position > as_of
        case SequenceNumber():
            return state.sequence >= as_of
        case datetime():
            if as_of.tzinfo is None:
                raise failure(Code.INVALID_TEXT, "a time must say its zone, as 2026-11-30T12:00:00Z")
            micros = (as_of - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            # Only events that count have a say: a void one may claim any time.
            return isinstance(event, Event) and event.recorded_at > micros and isinstance(admit(state, event), Admitted)
