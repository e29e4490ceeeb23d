"""Units in doubt: what the journal believes of them, what the target shows, and whether that needs an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from journal.identities import EventId, Fingerprint, MigrationId, Scope
from journal.migrations.source import MigrationSource
from journal.ports import BackfillCursor, Database
from journal.records import (
    BackfillEventRecord,
    GroupEventRecord,
    RollbackStepEventRecord,
    unit_of,
)
from journal.recovery import SchemaRelation, Witness, schema_relation
from journal.state import OpenPlan, ScopeState, UnitKey
from journal.vocabulary import Direction, GroupEventKind, UnitKind
from projections.open_plan import (
    IN_DOUBT,
)
from projections.rehearsal import Rehearsal
from projections.units import SchemaUnit, WorkUnit, forward, name_of_unit, reverse

UnitRecord: TypeAlias = GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord


@dataclass(frozen=True, slots=True)
class Doubt:
    """One unit in doubt: what the journal believes, and what the target shows.

    `witness`: what the target proves. `relation`: how the live schema relates to the unit's source and target, None
    when the files do not have this unit any more. `is_piecemeal`: its statements commit one by one. `settled_by_running`: `journal apply` or `rollback` needs no operator.
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
    is_piecemeal: bool

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
        proofs = {SchemaRelation.SOURCE} if self.is_piecemeal else {SchemaRelation.SOURCE, SchemaRelation.TARGET}
        return self.relation in proofs

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


async def find_doubts(
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
    digests = {**{id: entry.digest for id, entry in state.active.items()}, **{id: digest for digest, id in members}}
    if any(id not in by_id or by_id[id].digest != digests[id] for id in chain):
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
    piecemeal = isinstance(unit, SchemaUnit) and unit.commits_piecemeal
    return Doubt(
        migration,
        kind,
        ordinal,
        direction,
        last.kind,
        last.fence,
        events[-1][1],
        witness,
        relation,
        cursor,
        live,
        piecemeal,
    )


def _events_of(plan: OpenPlan, key: UnitKey) -> list[tuple[EventId, UnitRecord]]:
    records = [(EventId(entry.event.event_id), entry.event.record) for entry in plan.events]
    return [
        (event_id, record)
        for event_id, record in records
        if isinstance(record, GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord)
        and (record.manifest_digest, *unit_of(record)) == key
    ]
