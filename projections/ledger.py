"""What counts in a scope, for people and tools: views over its state, and the timeline of its log.

Views are values, taken from a `ScopeState` that was folded elsewhere; nothing here decides anything. Instants are the
writers' clocks in microseconds since 1970 UTC, as events carry them: informational, never an order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from journal.admission import Admitted, Verdict
from journal.errors import Code, JournalError
from journal.events import Event, EventType, Readable
from journal.identities import Digest, EventId, Fence, HolderId, Incarnation, LeaseId, MigrationId, Place, Scope
from journal.journal import Journal
from journal.ports import Grant
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    PlanRecord,
    Record,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
    ScopeArrivedRecord,
    ScopeAwaitedRecord,
    ScopeCreatedRecord,
    ScopeMovedRecord,
    ScopeRestoredRecord,
)
from journal.state import Move, OpenPlan, ScopeState, UnitKey
from journal.vocabulary import IN_DOUBT, BackfillCounts, Direction, GroupEventKind, UnitKind

if TYPE_CHECKING:
    from journal.migrations.planner import Known

_MICROS: Final = 1_000_000
_REMEMBERED_LEASES: Final = 10_000


# --- views over the state ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One migration of the active ledger. `imported`: it was adopted, not executed under this journal."""

    migration: str
    digest: Digest
    sequence: int
    fence: int
    recorded_at: int
    imported: bool


@dataclass(frozen=True, slots=True)
class UnitRow:
    """One unit of the open plan that was begun: its last event and, for a backfill, the counts so far.

    `in_doubt`: it may or may not have committed, as far as the log tells.
    """

    migration: str
    unit: UnitKind
    ordinal: int
    direction: Direction
    state: GroupEventKind
    fence: int
    counts: BackfillCounts | None

    @property
    def in_doubt(self) -> bool:
        """Whether recovery has to look at the target before this unit goes on."""
        return self.state in IN_DOUBT


@dataclass(frozen=True, slots=True)
class MigrationRow:
    """One migration of the open plan, in the plan's order; `units` are those that were begun, in order of their events."""

    migration: str
    digest: Digest
    done: bool
    units: tuple[UnitRow, ...]


@dataclass(frozen=True, slots=True)
class PlanView:
    """The open plan."""

    direction: Direction
    sequence: int
    fence: int
    recorded_at: int
    migrations: tuple[MigrationRow, ...]

    @property
    def done(self) -> int:
        """How many of its migrations are done."""
        return sum(row.done for row in self.migrations)

    @property
    def units(self) -> Iterator[UnitRow]:
        """Every unit that was begun."""
        return (unit for row in self.migrations for unit in row.units)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease as the log and the lease store have it.

    The log knows holder, fence, when it began and its duration without renewal; the store knows when it ends (UTC
    seconds since 1970). What only one of them knows is None.
    """

    holder: HolderId
    fence: Fence
    lease_id: LeaseId
    acquired_at: int | None
    ttl_seconds: float | None
    expires_at: float | None

    @property
    def in_log(self) -> bool:
        """Whether events under it count."""
        return self.acquired_at is not None

    @property
    def in_store(self) -> bool:
        """Whether the store keeps others from taking its place."""
        return self.expires_at is not None

    def remaining_seconds(self, now: float) -> float | None:
        """Seconds until it ends, zero when it has; None when the store does not have it."""
        return None if self.expires_at is None else max(0.0, self.expires_at - now)

    def expired(self, now: float) -> bool:
        """Whether another holder can take the scope: it ran out, or the store does not have it."""
        return self.expires_at is None or self.expires_at <= now


@dataclass(frozen=True, slots=True)
class MoveView:
    """A move of the scope to another log, as the operator described it."""

    place: Place
    destination: str
    operator: str
    reason: str
    fence: int
    recorded_at: int


@dataclass(frozen=True, slots=True)
class ScopeView:
    """Everything that is active in one scope, with the counts that say how it came about.

    `away`: the scope does not live in this log, so nobody may write here; `moved` says where it was sent, when it was
    sent from here or its arrival is still to come.
    """

    scope: Scope
    incarnation: Incarnation | None
    authenticated: bool
    head: Digest
    position: int | None
    sequence: int
    fence: int
    admitted: int
    voids: int
    ledger: tuple[LedgerRow, ...]
    plan: PlanView | None
    lease: LeaseView | None
    away: bool
    moved: MoveView | None


def view(state: ScopeState, grant: Grant | None = None) -> ScopeView:
    """The view of a state; `grant` is the lease as the store has it."""
    return ScopeView(
        scope=Scope(state.scope),
        incarnation=None if state.incarnation is None else Incarnation(state.incarnation),
        authenticated=state.authenticated,
        head=Digest(state.head),
        position=state.position,
        sequence=state.sequence,
        fence=state.fence,
        admitted=state.admitted,
        voids=state.voids,
        ledger=active_ledger(state),
        plan=None if state.plan is None else _plan_view(state.plan),
        lease=lease_view(state, grant),
        away=state.away,
        moved=None if state.moved is None else _move_view(state.moved),
    )


def _move_view(move: Move) -> MoveView:
    return MoveView(
        Place(move.place), move.destination, move.operator, move.reason, fence=move.fence, recorded_at=move.recorded_at
    )


def active_ledger(state: ScopeState) -> tuple[LedgerRow, ...]:
    """The active ledger in the order in which migrations entered it."""
    return tuple(
        LedgerRow(
            migration=migration,
            digest=Digest(entry.digest),
            sequence=entry.sequence,
            fence=entry.event.fence,
            recorded_at=entry.event.recorded_at,
            imported=entry.place is not None,
        )
        for migration, entry in state.active.items()
    )


def ledger_of(state: ScopeState) -> list[Known]:
    """The active ledger as the planner takes it."""
    from journal.migrations.planner import Known  # noqa: PLC0415  (who only reads needs no planner)

    return [Known(MigrationId.parse(id), Digest(entry.digest)) for id, entry in state.active.items()]


def lease_view(state: ScopeState, grant: Grant | None) -> LeaseView | None:
    """One lease from what log and store say; when they speak of two, the one with the greater fence.

    They do while a lease is being taken (the store grants before the log admits) or after the store lost its memory.
    """
    logged = state.lease
    if grant is not None and (logged is None or grant.fence > logged.fence):
        return store_lease_view(grant)
    if logged is None:
        return None
    same = grant is not None and grant.lease_id == logged.lease_id
    return LeaseView(
        holder=HolderId(logged.holder),
        fence=Fence(logged.fence),
        lease_id=LeaseId(logged.lease_id),
        acquired_at=logged.recorded_at,
        ttl_seconds=logged.ttl_micros / _MICROS,
        expires_at=grant.expires_at if same and grant is not None else None,
    )


def store_lease_view(grant: Grant) -> LeaseView:
    """A lease of which the store alone was asked."""
    return LeaseView(grant.holder, grant.fence, grant.lease_id, None, None, grant.expires_at)


def _plan_view(plan: OpenPlan) -> PlanView:
    units: dict[str, list[UnitRow]] = {}
    counts = _completed_counts(plan)
    for key, unit in plan.units.items():
        digest, kind, ordinal, direction = key
        migration = plan.members[digest]
        known = (
            counts.get(key) if unit.kind is GroupEventKind.COMMITTED else unit.counts and BackfillCounts(*unit.counts)
        )
        row = UnitRow(migration, kind, ordinal, direction, unit.kind, unit.fence, known)
        units.setdefault(migration, []).append(row)
    return PlanView(
        direction=plan.direction,
        sequence=plan.entry.sequence,
        fence=plan.entry.event.fence,
        recorded_at=plan.entry.event.recorded_at,
        migrations=tuple(
            MigrationRow(migration, Digest(digest), migration not in plan.remaining, tuple(units.get(migration, ())))
            for digest, migration in plan.members.items()
        ),
    )


def _completed_counts(plan: OpenPlan) -> Mapping[UnitKey, BackfillCounts]:
    """Terminal counts of the backfills that committed: the state keeps those of checkpoints only."""
    counts: dict[UnitKey, BackfillCounts] = {}
    for _, event in plan.events:
        record = event.record if event.type is EventType.BACKFILL_EVENT else None
        if isinstance(record, BackfillEventRecord) and record.completion is not None:
            key = (record.manifest_digest, UnitKind.BACKFILL, record.operation_ordinal, record.direction)
            counts[key] = record.completion.counts
    return counts


# --- timeline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One event of the log with its verdict.

    `reason` is the code that voids it, None when it counts; `sequence` is that of its record (an exact retry has the
    sequence that it repeats). `holder` is who took the lease that it names, as far as the log tells. What bytes without
    a readable header cannot say is None.
    """

    position: int
    reason: Code | None
    summary: str
    sequence: int | None = None
    type: str | None = None
    fence: int | None = None
    holder: str | None = None
    lease_id: LeaseId | None = None
    recorded_at: int | None = None
    event_id: EventId | None = None
    migration: str | None = None
    kind: str | None = None
    hash: Digest | None = None

    @property
    def admitted(self) -> bool:
        """Whether the event counts."""
        return self.reason is None


async def timeline(journal: Journal, scope: Scope) -> AsyncGenerator[TimelineRow, None]:
    """Every event of a scope, in log order, one at a time.

    Raises:
        InvalidContractError: `journal_unknown_scope`.
        IntegrityError, UnknownEventError, HistoryLostError: where the log cannot be read any further, behind the rows
            before it.
    """
    holders = _Holders()
    async with aclosing(journal.replay(scope)) as events:
        async for event, verdict in events:
            yield _row(event, verdict, holders)


class _Holders:
    """Who took which lease; forgets the oldest, so that a long timeline takes bounded memory."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def note(self, lease_id: bytes, holder: str, *, counts: bool) -> None:
        """A void acquisition tells who wrote under a lease that never began, but cannot rename one that did."""
        if not counts and lease_id in self._names:
            return
        self._names[lease_id] = holder
        if len(self._names) > _REMEMBERED_LEASES:
            del self._names[next(iter(self._names))]

    def name(self, lease_id: bytes) -> str | None:
        return self._names.get(lease_id)


def _row(event: Readable, verdict: Verdict, holders: _Holders) -> TimelineRow:
    reason = None if isinstance(verdict, Admitted) else verdict.reason
    sequence = verdict.sequence if isinstance(verdict, Admitted) else None
    if not isinstance(event, Event):
        return TimelineRow(event.position, reason, f"{len(event.data)} bytes that are no event")
    record = _record(event)
    if isinstance(record, LeaseAcquiredRecord):
        holders.note(event.lease_id, record.holder, counts=reason is None)
    return TimelineRow(
        position=event.position,
        sequence=sequence,
        type=None if event.type is None else event.type.value,
        reason=reason,
        fence=event.fence,
        holder=holders.name(event.lease_id),
        lease_id=LeaseId(event.lease_id),
        recorded_at=event.recorded_at,
        event_id=EventId(event.event_id),
        migration=_migration(record),
        kind=_kind(record),
        summary="unreadable body" if record is None else summarise(record),
        hash=Digest(event.hash),
    )


def _record(event: Event) -> Record | None:
    """The record, None when a void event's body cannot be read (one that counts was read by its rule)."""
    try:
        return event.record
    except JournalError:
        return None


def _migration(record: Record | None) -> str | None:
    id = getattr(record, "migration_id", None)
    return None if id is None else str(id)


def _kind(record: Record | None) -> str | None:
    match record:
        case GroupEventRecord() | BackfillEventRecord() | RollbackStepEventRecord():
            return record.kind.value
        case RecoveryAttestedRecord():
            return record.outcome.value
        case _:
            return None


def summarise(record: Record) -> str:
    """What a record says, in one line for people. Texts in it are the writer's: escape them before showing."""
    match record:
        case ScopeCreatedRecord():
            return f"format {record.format_version}, {'' if record.authenticated else 'not '}authenticated"
        case LeaseAcquiredRecord():
            return f"{record.holder}, for {record.ttl_micros / _MICROS:g} s"
        case LeaseReleasedRecord():
            return record.holder
        case PlanRecord():
            return f"apply {', '.join(map(str, record.migration_ids))}"
        case RollbackPlanRecord():
            return f"roll back {', '.join(map(str, record.rollback_ids))}"
        case GroupEventRecord():
            return f"{record.migration_id} group {record.group_ordinal} {record.kind.value}"
        case RollbackStepEventRecord():
            return f"{record.migration_id} reverse step {record.step_ordinal} {record.kind.value}"
        case BackfillEventRecord():
            counts = "" if record.completion is None else f": {describe_counts(record.completion.counts)}"
            return f"{_backfill(record)} {record.kind.value}{counts}"
        case BackfillCheckpointRecord():
            return f"{_backfill(record)}: {describe_counts(record)}"
        case AppliedRecord() | RolledBackRecord():
            return str(record.migration_id)
        case LedgerImportedRecord():
            return f"{len(record.migrations)} migrations, by {record.operator}: {record.reason}"
        case RecoveryAttestedRecord():
            unit = f"{record.migration_id} {record.unit.value.replace('_', ' ')} {record.ordinal}"
            return f"{unit} {record.outcome.value}, by {record.operator}: {record.reason}"
        case PlanAbandonedRecord():
            return f"plan {record.plan_sequence}, by {record.operator}: {record.reason}"
        case ScopeAwaitedRecord():
            return f"this log is place {record.place}"
        case ScopeMovedRecord():
            return f"to {record.destination} (place {record.place}), by {record.operator}: {record.reason}"
        case ScopeArrivedRecord():
            return f"at place {record.place}"
        case ScopeRestoredRecord():
            return f"at place {record.place}, by {record.operator}: {record.reason}"


def _backfill(record: BackfillEventRecord | BackfillCheckpointRecord) -> str:
    reverse = "reverse " if record.direction is Direction.REVERSE else ""
    return f"{record.migration_id} {reverse}backfill {record.operation_ordinal}"


def describe_counts(counts: BackfillCounts | BackfillCheckpointRecord) -> str:
    """Counts of a backfill in words."""
    batches = counts.transaction_groups
    return f"{counts.matched} rows, {counts.changed} changed, {batches} batch{'es' if batches != 1 else ''}"
