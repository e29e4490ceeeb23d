"""What operators do beside applying: preview a plan, look at doubts and attest them, abandon, adopt, compare.

Looking has no effect: nothing is written to journal or target, no lease is taken. What writes is done under a lease and
the target fence, and is one event that says who did it and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from journal.control import Control
from journal.errors import Code, IntegrityError, JournalError, failure
from journal.identities import Digest, EventId, Fingerprint, Incarnation, MigrationId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import ManagedState
from journal.migrations.planner import Known, check_files, check_ledger, plan_apply, plan_rollback
from journal.migrations.source import MigrationSource
from journal.ports import BackfillCursor, Database, Guard
from journal.records import (
    BackfillEventRecord,
    GroupEventRecord,
    JournalEntry,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    PlanRecord,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    unit_of,
)
from journal.recovery import SchemaRelation, Witness, schema_relation
from journal.state import OpenPlan, ScopeState, UnitKey, journal_entry
from journal.vocabulary import Direction, GroupEventKind, UnitKind
from projections.drift import Difference, differences, summary
from projections.executor import check_keys, check_limits
from projections.open_plan import (
    DONE,
    IN_DOUBT,
    carried,
    check_untouched,
    first_that_differs,
    ledger_of,
    other_direction,
    wanted_by,
)
from projections.rehearsal import Rehearsal, truncated
from projections.units import SchemaUnit, Work, WorkUnit, forward, name_of_unit, reverse

UnitRecord: TypeAlias = GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord


@dataclass(frozen=True, slots=True)
class Attestation:
    """Who says something, and why."""

    operator: str
    reason: str


# --- preview ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would do now: the rest of the open plan (`is_open`), or what it would plan.

    `live` is the live schema's fingerprint, `expected` the one that the first unit to run starts from.
    `reverse_problems` say which of the works could not be undone afterwards, and why.
    """

    works: tuple[Work, ...]
    is_open: bool
    begun: frozenset[UnitKey]
    live: Fingerprint
    expected: Fingerprint
    drift: tuple[Difference, ...]
    reverse_problems: tuple[str, ...]


async def preview_apply(
    state: ScopeState,
    sources: Sequence[MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    *,
    target: MigrationId | None = None,
    allow_out_of_order: bool = False,
) -> Preview:
    """What `Executor.apply` would do. Raises what it would meet before its first effect."""
    ordered = check_files(sources)
    ledger = ledger_of(state)
    rest: tuple[MigrationSource, ...] = ()
    if state.plan is not None:
        ordered, rest = await _rest_to_apply(state, ordered, database, target)
        ledger += [Known(source.id, source.digest) for source in rest]
    plan = plan_apply(ordered, ledger, target, allow_out_of_order=allow_out_of_order)
    chain = [*plan.applied, *plan.planned]
    count = len(rest) + len(plan.planned)
    prepared = (await rehearsal.prepare(chain))[len(chain) - count :]
    works = [forward(item) for item in prepared]
    check_limits(works, Control())
    await check_keys(prepared[len(rest) :], database)
    problems = await _reverse_problems(rehearsal, chain, count)
    return await _preview(state, ordered, database, rehearsal, works, problems)


async def _rest_to_apply(
    state: ScopeState, ordered: Sequence[MigrationSource], database: Database, target: MigrationId | None
) -> tuple[tuple[MigrationSource, ...], tuple[MigrationSource, ...]]:
    """The files as the ledger has them, and how far an open plan would be carried on before it is given up, if it is."""
    assert state.plan is not None
    opened = carried(state.plan)
    if opened.direction is not Direction.FORWARD:
        raise other_direction("rollback")
    ordered = check_ledger(ordered, ledger_of(state), allow_out_of_order=True)
    remaining = [member for member in opened.members if str(member[0]) in state.plan.remaining]
    stop = first_that_differs(remaining, ordered, wanted_by(ordered, target))
    if stop is not None:
        await check_untouched(opened, remaining[stop:], ordered, database)
    by_id = {source.id: source for source in ordered}
    return tuple(ordered), tuple(by_id[id] for id, _ in remaining[:stop])


async def preview_rollback(
    state: ScopeState,
    sources: Sequence[MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    *,
    to: MigrationId | None = None,
    steps: int | None = None,
) -> Preview:
    """What `Executor.roll_back` would do. Raises what it would meet before its first effect."""
    ordered = check_files(sources)
    if state.plan is None:
        plan = plan_rollback(ordered, ledger_of(state), to=to, steps=steps)
        applied, count = plan.applied, len(plan.retired)
    else:
        opened = carried(state.plan)
        if opened.direction is not Direction.REVERSE:
            raise other_direction("apply")
        plain = {source.id: source for source in check_ledger(ordered, ledger_of(state), allow_out_of_order=True)}
        applied = tuple(plain[entry.id] for entry in ledger_of(state))
        count = len(state.plan.remaining)
    prepared = await rehearsal.prepare(applied)
    await rehearsal.check_reverses(applied, count)
    works = [reverse(item) for item in reversed(prepared[len(prepared) - count :])]
    check_limits(works, Control())
    return await _preview(state, ordered, database, rehearsal, works, ())


async def _reverse_problems(rehearsal: Rehearsal, sources: Sequence[MigrationSource], count: int) -> tuple[str, ...]:
    """What a later rollback would meet; it is no reason not to apply."""
    try:
        await rehearsal.check_reverses(sources, count)
    except JournalError as error:
        return (error.message,)
    return ()


async def _preview(
    state: ScopeState,
    ordered: Sequence[MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    works: Sequence[Work],
    problems: tuple[str, ...],
) -> Preview:
    live = await database.observe()
    comparison = await compare(state, ordered, database, rehearsal) if works else None
    expected = live if comparison is None else comparison.expected
    return Preview(
        works=tuple(works),
        is_open=state.plan is not None,
        begun=frozenset(() if state.plan is None else state.plan.units),
        live=live,
        expected=expected,
        drift=() if comparison is None else comparison.drift,
        reverse_problems=problems,
    )


# --- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edited:
    """A migration whose file is not what was applied; `found` is None when the file is gone."""

    id: MigrationId
    recorded: Digest
    found: Digest | None
    path: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ledger against files against the live schema.

    The schema can only be compared when no file of the ledger is edited or missing; `drift` is then complete. While a
    plan is open, what its finished units made is expected, too.
    """

    edited: tuple[Edited, ...]
    pending: tuple[MigrationId, ...]
    is_open: bool
    in_doubt: bool
    live: Fingerprint
    expected: Fingerprint
    drift: tuple[Difference, ...]

    @property
    def compared(self) -> bool:
        """Whether the live schema could be compared."""
        return not self.edited

    @property
    def agrees(self) -> bool:
        """Whether everything fits and nothing is left to do."""
        return self.compared and not self.drift and not self.pending and not self.is_open


async def compare(
    state: ScopeState, sources: Sequence[MigrationSource], database: Database, rehearsal: Rehearsal
) -> Comparison:
    """Compare what the ledger, the files and the live schema say. Raises as reading and replaying the files do."""
    ordered = check_files(sources)
    by_id = {source.id: source for source in ordered}
    ledger = ledger_of(state)
    gone = tuple(Edited(entry.id, entry.digest, None, None) for entry in ledger if entry.id not in by_id)
    edited = gone
    try:
        by_id |= {
            source.id: source
            for source in check_ledger(
                ordered, [entry for entry in ledger if entry.id in by_id], allow_out_of_order=True
            )
        }
    except IntegrityError as error:
        if error.code is not Code.MIGRATION_EDITED:
            raise
        edited += tuple(map(_edited, error.details["migrations"]))
    active = {entry.id for entry in ledger}
    live = await database.observe()
    expected = live
    drift: tuple[Difference, ...] = ()
    if not edited:
        expected, drift = await _compare_schema(state, by_id, database, rehearsal, live)
    return Comparison(
        edited=edited,
        pending=tuple(source.id for source in ordered if source.id not in active),
        is_open=state.plan is not None,
        in_doubt=any(unit.kind in IN_DOUBT for unit in (state.plan.units.values() if state.plan else ())),
        live=live,
        expected=expected,
        drift=drift,
    )


def _edited(details: dict[str, str]) -> Edited:
    recorded, found = Digest.parse(details["recorded"]), Digest.parse(details["found"])
    return Edited(MigrationId.parse(details["migration"]), recorded, found, details["file"])


async def _compare_schema(
    state: ScopeState,
    by_id: dict[MigrationId, MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    live: Fingerprint,
) -> tuple[Fingerprint, tuple[Difference, ...]]:
    chain = await _done_so_far(state, by_id, rehearsal)
    expected = rehearsal.state_after(await rehearsal.prepare(chain)).semantics
    if expected == live:
        return expected, ()
    return expected, differences(await rehearsal.describe(chain), await database.describe())


async def _done_so_far(
    state: ScopeState, by_id: dict[MigrationId, MigrationSource], rehearsal: Rehearsal
) -> list[MigrationSource]:
    """The ledger, and of a migration that is half done the steps that are done, or not undone yet."""
    chain = [by_id[MigrationId.parse(id)] for id in state.active]
    plan = state.plan
    if plan is None:
        return chain
    done = {key for key, unit in plan.units.items() if unit.kind in DONE and plan.members[key[0]] in plan.remaining}
    source = next((by_id.get(MigrationId.parse(plan.members[key[0]])) for key in done), None)
    if source is None:
        return chain
    before = [item for item in chain if item.id != source.id]
    prepared = (await rehearsal.prepare([*before, source]))[-1]
    work = forward(prepared) if plan.direction is Direction.FORWARD else reverse(prepared)
    steps = [unit.position.step_index for unit in work.units if unit.key in done]
    if not steps:
        return chain  # the file is another by now
    return [*before, truncated(source, steps[-1] + (plan.direction is Direction.FORWARD))]


# --- doubts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Doubt:
    """One unit in doubt: what the journal believes, and what the target shows.

    `witness`: what the target proves. `relation`: how the live schema relates to the unit's source and target, None
    when the files do not have this unit any more. `settled_by_running`: `journal apply` or `rollback` needs no operator.
    """

    migration: MigrationId
    unit: UnitKind
    ordinal: int
    direction: Direction
    last: GroupEventKind
    fence: int
    event: UnitRecord
    witness: Witness
    relation: SchemaRelation | None
    cursor: BackfillCursor | None
    live: Fingerprint

    @property
    def name(self) -> str:
        """How an operator names it."""
        return name_of_unit(self.migration, self.unit, self.ordinal, self.direction)

    @property
    def settled_by_running(self) -> bool:
        """Whether the next run settles it by itself."""
        if self.unit is UnitKind.BACKFILL or self.witness is Witness.ABSENT:
            return self.relation not in (SchemaRelation.NEITHER, SchemaRelation.UNAVAILABLE)
        if self.witness is Witness.PRESENT:
            return self.relation in (SchemaRelation.TARGET, SchemaRelation.BOTH)
        return self.relation in (SchemaRelation.SOURCE, SchemaRelation.TARGET)

    def contradicts(self, outcome: GroupEventKind) -> str | None:
        """What speaks against an outcome; None when nothing does."""
        is_committed = outcome is GroupEventKind.COMMITTED
        if self.witness is not Witness.NONE and is_committed != (self.witness is Witness.PRESENT):
            return f"the target's own bookkeeping shows that it was {'not ' if is_committed else ''}committed"
        if self.unit is UnitKind.BACKFILL:
            return None
        if is_committed and self.relation not in (None, SchemaRelation.TARGET, SchemaRelation.BOTH):
            return "the live schema is not the one after it"
        if not is_committed and self.relation is SchemaRelation.TARGET:
            return "the live schema is the one after it"
        return None


async def doubts(
    state: ScopeState, sources: Sequence[MigrationSource], database: Database, rehearsal: Rehearsal
) -> list[Doubt]:
    """Every unit in doubt, in the order of the log, with a fresh look at the target."""
    plan = state.plan
    if plan is None:
        return []
    live = await database.observe()
    units = await _planned_units(state, sources, rehearsal)
    found: list[Doubt] = []
    for key, unit in plan.units.items():
        if unit.kind in IN_DOUBT:
            found.append(await _doubt(state, key, units.get(key), database, live))
    return found


async def _planned_units(
    state: ScopeState, sources: Sequence[MigrationSource], rehearsal: Rehearsal
) -> dict[UnitKey, WorkUnit]:
    """The units of the open plan that the files still have."""
    plan = state.plan
    assert plan is not None
    by_id = {str(source.id): source for source in sources}
    members = [(digest, id) for digest, id in plan.members.items() if id in plan.remaining]
    chain = list(state.active)
    if plan.direction is Direction.FORWARD:
        chain.extend(id for _, id in members)
    if any(id not in by_id for id in chain):
        return {}
    prepared = {str(item.source.id): item for item in await rehearsal.prepare([by_id[id] for id in chain])}
    make = forward if plan.direction is Direction.FORWARD else reverse
    works = [make(prepared[id]) for _, id in members]
    return {unit.key: unit for work in works for unit in work.units}


async def _doubt(
    state: ScopeState, key: UnitKey, unit: WorkUnit | None, database: Database, live: Fingerprint
) -> Doubt:
    plan = state.plan
    assert plan is not None
    digest, kind, ordinal, direction = key
    migration = MigrationId.parse(plan.members[digest])
    scope, name = Scope(state.scope), name_of_unit(migration, kind, ordinal, direction)
    events = _events_of(plan, key)
    tokens = {event_id for event_id, event in events if event.kind is GroupEventKind.BEFORE_COMMIT}
    cursor = await database.cursor(scope, name) if kind is UnitKind.BACKFILL else None
    witness = Witness.NONE
    if kind is UnitKind.BACKFILL:
        is_complete = cursor is not None and cursor.done and cursor.token in tokens
        witness = Witness.PRESENT if is_complete else Witness.ABSENT
    elif isinstance(unit, SchemaUnit) and unit.program.transactional:
        witness = Witness.PRESENT if await database.witness(scope, name) in tokens else Witness.ABSENT
    relation = schema_relation(live, source=unit.source, target=unit.target) if isinstance(unit, SchemaUnit) else None
    last = plan.units[key]
    return Doubt(
        migration, kind, ordinal, direction, last.kind, last.fence, events[-1][1], witness, relation, cursor, live
    )


def _events_of(plan: OpenPlan, key: UnitKey) -> list[tuple[EventId, UnitRecord]]:
    records = [(EventId(entry.event.event_id), entry.event.record) for entry in plan.events]
    return [
        (event_id, record)
        for event_id, record in records
        if isinstance(record, GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord)
        and (record.manifest_digest, *unit_of(record)) == key
    ]


async def attest(
    journal: Journal, lease: Lease, doubt: Doubt, outcome: GroupEventKind, attestation: Attestation
) -> JournalEntry[RecoveryAttestedRecord]:
    """Record an operator's statement about a unit in doubt.

    Raises:
        InvalidContractError: `journal_attestation_contradicted`: the evidence says otherwise.
    """
    against = doubt.contradicts(outcome)
    if against is not None:
        raise failure(
            Code.ATTESTATION_CONTRADICTED,
            f"{doubt.name} cannot be attested as {outcome.value}: {against}",
            unit=doubt.name,
            outcome=outcome.value,
        )
    record = RecoveryAttestedRecord.new(
        lease,
        doubt.event,
        outcome,
        observed=doubt.live,
        operator=attestation.operator,
        reason=attestation.reason,
    )
    return await journal.attest_recovery(lease, record)


# --- abandoning and adopting ------------------------------------------------------------------------------------------


async def abandon(journal: Journal, lease: Lease, attestation: Attestation) -> JournalEntry[PlanAbandonedRecord]:
    """Give up the open plan.

    Raises:
        InvalidContractError: `migration_execution_no_open_plan`.
        IntegrityError: `migration_execution_unit_in_doubt`.
    """
    state = await journal.state(lease.scope)
    if state.plan is None:
        raise failure(Code.NO_OPEN_PLAN, f"no plan is open in scope {lease.scope}: there is nothing to abandon")
    entry: JournalEntry[PlanRecord] | JournalEntry[RollbackPlanRecord] = journal_entry(state.plan.entry)
    record = PlanAbandonedRecord.new(lease, entry, operator=attestation.operator, reason=attestation.reason)
    return await journal.abandon_plan(lease, record)


async def adopt(
    journal: Journal,
    lease: Lease,
    database: Database,
    rehearsal: Rehearsal,
    sources: Sequence[MigrationSource],
    target: MigrationId | None,
    attestation: Attestation,
    control: Control,
) -> JournalEntry[LedgerImportedRecord] | None:
    """Take migrations into the ledger that the target has already; nothing is executed. None when all are there.

    Raises:
        IntegrityError: `migration_execution_stale_source_state`: the live schema is not what they make; names what differs.
    """
    ordered = check_files(sources)
    state = await journal.state(lease.scope)
    if state.plan is not None:
        raise failure(Code.PLAN_ALREADY_OPEN, "a plan is open: finish it or give it up before you adopt anything")
    plan = plan_apply(ordered, ledger_of(state), target, allow_out_of_order=True)
    if not plan.planned:
        return None
    guard = Guard(lease.scope, Incarnation(state.incarnation or b""), lease.fence)
    await database.raise_fence(guard, control, adopt=True)
    chain = [*plan.applied, *plan.planned]
    prepared = await rehearsal.prepare(chain)
    expected = rehearsal.state_after(prepared)
    live = await database.observe()
    if live != expected.semantics:
        found = differences(await rehearsal.describe(chain), await database.describe())
        raise failure(
            Code.STALE_SOURCE_STATE,
            f"the live schema is not what these {len(chain)} migrations make: {summary(found)}; adopt fewer with --to, "
            "or bring the schema there first",
            objects=[item.name for item in found],
        )
    record = LedgerImportedRecord.from_verified_manifests(
        lease,
        [item.manifest for item in prepared[len(plan.applied) :]],
        ManagedState(lease.scope, expected.declared, live),
        operator=attestation.operator,
        reason=attestation.reason,
    )
    lease.check()
    control.check()
    return await journal.import_ledger(lease, record)
