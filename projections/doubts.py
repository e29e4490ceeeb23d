"""Units in doubt: what the journal believes of them, what the target shows, and whether that needs an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from journal.identities import Fingerprint, MigrationId, Scope
from journal.migrations.source import MigrationSource
from journal.ports import BackfillCursor, Database
from journal.recovery import RecoveryDecision, SchemaRelation, Witness, schema_relation, weigh
from journal.state import ScopeState, UnitKey
from journal.vocabulary import IN_DOUBT, Direction, GroupEventKind, UnitKind
from projections.execution import witness_of
from projections.open_plan import Carried, UnitRecord, carried
from projections.rehearsal import Rehearsal
from projections.units import SchemaUnit, WorkUnit, forward, name_of_unit, reverse


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
    settled_by_running: bool

    @property
    def name(self) -> str:
        """How an operator names it."""
        return name_of_unit(self.migration, self.unit, self.ordinal, self.direction)

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
    opened, live = carried(plan), await database.observe()
    units = await _planned_units(state, sources, rehearsal)
    return [
        await _doubt(opened, Scope(state.scope), key, units.get(key), (database, live))
        for key, unit in opened.units.items()
        if unit.kind in IN_DOUBT
    ]


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
    opened: Carried, scope: Scope, key: UnitKey, unit: WorkUnit | None, target: tuple[Database, Fingerprint]
) -> Doubt:
    (_, kind, ordinal, direction), (database, live) = key, target
    last, event, tokens = opened.units[key], opened.events[key], opened.tokens.get(key, [])
    cursor, witness, relation, settled = None, Witness.NONE, None, False
    if kind is UnitKind.BACKFILL:
        cursor = await database.cursor(scope, name_of_unit(event.migration_id, kind, ordinal, direction))
        is_complete = cursor is not None and cursor.done and cursor.token in tokens
        witness, settled = Witness.PRESENT if is_complete else Witness.ABSENT, True
    elif isinstance(unit, SchemaUnit):
        witness = await witness_of(database, scope, unit, tokens)
        relation = schema_relation(live, source=unit.source, target=unit.target)
        decision = unit.decide(weigh(last.kind, witness), live)
        settled = decision is not RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY
    return Doubt(
        migration=event.migration_id,
        unit=kind,
        ordinal=ordinal,
        direction=direction,
        last=last.kind,
        fence=last.fence,
        event=event,
        witness=witness,
        relation=relation,
        cursor=cursor,
        live=live,
        settled_by_running=settled,
    )
