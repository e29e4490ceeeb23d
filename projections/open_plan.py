"""The open plan as a run finds it: what remains, what is known of its units, and whether it may be given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from journal.errors import Code, JournalError, failure
from journal.identities import Digest, EventId, Incarnation, MigrationId, Scope
from journal.lease import Lease
from journal.migrations.graph import ancestors
from journal.migrations.planner import check_ledger
from journal.migrations.source import MigrationSource
from journal.ports import Database, Guard
from journal.records import (
    BackfillEventRecord,
    GroupEventRecord,
    JournalEntry,
    PlanRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    unit_of,
)
from journal.state import OpenPlan, ScopeState, Unit, UnitKey, journal_entry
from journal.vocabulary import DONE, IN_DOUBT, Direction, GroupEventKind, UnitKind
from projections.ledger import ledger_of
from projections.units import name_of_unit

Member: TypeAlias = tuple[MigrationId, Digest]
UnitRecord: TypeAlias = GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord


@dataclass(slots=True)
class Carried:
    """The open plan as it is carried on.

    `members` are its migrations in their order; `units` say how each begun unit stands, `tokens` under which events it
    was begun, `events` what was recorded of it last.
    """

    direction: Direction
    entry: JournalEntry[PlanRecord] | JournalEntry[RollbackPlanRecord]
    members: list[Member]
    units: dict[UnitKey, Unit] = field(default_factory=dict)
    tokens: dict[UnitKey, list[EventId]] = field(default_factory=dict)
    events: dict[UnitKey, UnitRecord] = field(default_factory=dict)


def floor_of(state: ScopeState) -> int:
    """A fence that the target must have seen: each run raises its own there before it does anything."""
    fences = [entry.event.fence for entry in state.active.values()]
    if state.plan is not None:
        fences += [unit.fence for unit in state.plan.units.values()]
    return max(fences, default=0)


def guard_of(state: ScopeState, lease: Lease) -> Guard:
    """On whose behalf the target is changed under this lease."""
    return Guard(lease.scope, Incarnation(state.incarnation or b""), lease.fence)


def carried(plan: OpenPlan) -> Carried:
    """The open plan from the folded state."""
    entry: JournalEntry[PlanRecord] | JournalEntry[RollbackPlanRecord] = journal_entry(plan.entry)
    record = entry.record
    ids = record.migration_ids if isinstance(record, PlanRecord) else record.rollback_ids
    opened = Carried(plan.direction, entry, list(zip(ids, record.manifest_digests, strict=True)), dict(plan.units))
    for item in plan.events:
        event = item.event.record
        if not isinstance(event, UnitRecord):
            continue  # an attestation
        key = (event.manifest_digest, *unit_of(event))
        opened.events[key] = event
        if event.kind is GroupEventKind.BEFORE_COMMIT:
            opened.tokens.setdefault(key, []).append(EventId(item.event.event_id))
    return opened


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left of an open apply plan: `kept` is carried on, `dropped`, unless it is empty, gives the plan up there.

    `ordered` are the files as the ledger has them.
    """

    opened: Carried
    ordered: tuple[MigrationSource, ...]
    kept: tuple[Member, ...]
    dropped: tuple[Member, ...]


async def rest_to_apply(
    state: ScopeState, ordered: Sequence[MigrationSource], wanted: set[MigrationId] | None, database: Database
) -> Rest:
    """How far an open plan is carried on: up to where a file differs, or what follows is not wanted (None: all is).

    Raises:
        InvalidContractError: `migration_execution_plan_already_open`: it is a rollback plan. Others as `check_ledger`
            and `check_untouched`.
    """
    assert state.plan is not None
    opened = carried(state.plan)
    if opened.direction is not Direction.FORWARD:
        raise other_direction("rollback")
    ordered = check_ledger(ordered, ledger_of(state), allow_out_of_order=True)
    remaining = [member for member in opened.members if str(member[0]) in state.plan.remaining]
    stop = first_that_differs(remaining, ordered, wanted)
    if stop is None:
        return Rest(opened, ordered, tuple(remaining), ())
    await check_untouched(opened, remaining[stop:], ordered, database)
    return Rest(opened, ordered, tuple(remaining[:stop]), tuple(remaining[stop:]))


def rest_to_roll_back(
    state: ScopeState, ordered: Sequence[MigrationSource]
) -> tuple[Carried, tuple[MigrationSource, ...]]:
    """The open rollback plan, and the ledger's migrations in the ledger's order, as it has them. Raises as `rest_to_apply`."""
    assert state.plan is not None
    opened = carried(state.plan)
    if opened.direction is not Direction.REVERSE:
        raise other_direction("apply")
    ledger = ledger_of(state)
    by_id = {source.id: source for source in check_ledger(ordered, ledger, allow_out_of_order=True)}
    return opened, tuple(by_id[entry.id] for entry in ledger)


def history_lost(what: str) -> JournalError:
    """The error for a target that knows more than the log."""
    return failure(
        Code.HISTORY_LOST,
        f"{what}: the log is an older copy. Put the newest one back, or adopt the database under a scope of its own: "
        "`journal import --scope NAME`",
    )


def wanted_by(ordered: Sequence[MigrationSource], target: MigrationId | None) -> set[MigrationId] | None:
    """What a run is about; None for everything."""
    if target is None:
        return None
    return ancestors({source.id: source.dependencies for source in ordered}, [target])


def first_that_differs(
    remaining: Sequence[Member],
    ordered: Sequence[MigrationSource],
    wanted: set[MigrationId] | None,
) -> int | None:
    """The first place in the rest of a plan where this run would do something else."""
    by_id = {source.id: source for source in ordered}
    for index, (id, digest) in enumerate(remaining):
        source = by_id.get(id)
        if source is None or source.digest != digest or (wanted is not None and id not in wanted):
            return index
    return None


async def check_untouched(
    opened: Carried, rest: Sequence[Member], ordered: Sequence[MigrationSource], database: Database
) -> None:
    """A plan can be given up from here on if nothing of what follows was begun, or what was begun left nothing.

    Raises:
        IntegrityError: `journal_migration_edited`. InvalidContractError: `journal_plan_differs`.
    """
    ids = {digest: id for id, digest in rest}
    for key, unit in opened.units.items():
        id = ids.get(Digest(key[0]))
        if id is not None and not await _left_nothing(opened, id, key, unit, database):
            source = next((source for source in ordered if source.id == id), None)
            raise _half_done(id, Digest(key[0]), source, in_doubt=unit.kind in IN_DOUBT)


async def _left_nothing(opened: Carried, id: MigrationId, key: UnitKey, unit: Unit, database: Database) -> bool:
    if unit.kind is not GroupEventKind.DEFINITELY_ABORTED or key[1] is not UnitKind.BACKFILL:
        return unit.kind is GroupEventKind.DEFINITELY_ABORTED
    _, kind, ordinal, direction = key
    cursor = await database.cursor(Scope(opened.entry.record.scope), name_of_unit(id, kind, ordinal, direction))
    mine = cursor is not None and cursor.token in opened.tokens.get(key, ())
    return cursor is None or not mine or cursor.transaction_groups == 0


def _half_done(id: MigrationId, digest: Digest, source: MigrationSource | None, *, in_doubt: bool) -> JournalError:
    now = "is gone" if source is None else f"now has digest {source.digest.hex()}"
    if source is not None and source.digest == digest:
        return failure(
            Code.PLAN_DIFFERS,
            f"{id} is in the open plan and half done, but was not asked for: run `journal apply` without --to, or with a "
            "later migration",
            migration=str(id),
        )
    state = "a step of it is in doubt" if in_doubt else "some of its steps are done"
    return failure(
        Code.MIGRATION_EDITED,
        f"{id} is half done ({state}) with digest {digest.hex()}, but its file {now}: put the file back as it was and "
        "run again; what else is to change goes into a new migration",
        migration=str(id),
        planned=digest.hex(),
        found=None if source is None else source.digest.hex(),
    )


def other_direction(which: str) -> JournalError:
    return failure(
        Code.PLAN_ALREADY_OPEN,
        f"a plan to {which} is open: finish it with `journal {which}`, or give it up with `journal abandon`"
        if which == "apply"
        else "a plan to roll back is open: finish it with `journal rollback`, or give it up with `journal abandon`",
    )


def check_settled(units: dict[UnitKey, Unit], keys: Sequence[UnitKey]) -> None:
    """Units run one after the other: all before the last one that was begun came to their end."""
    for _, kind, ordinal, _ in (key for key in keys if key not in units or units[key].kind not in DONE):
        raise failure(
            Code.INVALID_OPEN_PLAN,
            f"the open plan went on although its {kind.value} {ordinal} had not come to its end: it was written by "
            "something else than this executor",
        )
