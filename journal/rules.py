"""The records' own rules and effects: seed 000's store contract, one function a record.

A rule gets an event whose header was admitted and says which sequence its record gets, or which code voids it; an
effect changes the state for an event that its rule admitted. Bodies are unpacked in schema order, which the tests hold
to the published schemas. Each costs O(1), opening a plan or importing a ledger O(what it names).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast

from journal.errors import Code
from journal.events import NO_LEASE, Event, EventType
from journal.identities import is_holder, is_migration_id
from journal.state import ActiveEntry, Entry, LeaseState, Move, OpenPlan, ScopeState, Unit, UnitKey
from journal.vocabulary import (
    ATTESTABLE,
    Direction,
    GroupEventKind,
    UnitKind,
    completion_violation,
    count_violation,
    observation_violation,
    plan_violation,
    text_violation,
)

# What a rule says: the sequence that the record gets (0 for events that take none), or the code that voids the event.
Ruling: TypeAlias = int | Code

NO_SEQUENCE: Final = 0
_U32: Final = 2**32
# Members are taken from their enums once: in Python 3.11 that is a call, a tenth of a microsecond each time.
_FORWARD, _REVERSE = Direction.FORWARD, Direction.REVERSE
_GROUP, _BACKFILL, _ROLLBACK_STEP = UnitKind.GROUP, UnitKind.BACKFILL, UnitKind.ROLLBACK_STEP
_tuple: Final = tuple.__new__  # what a NamedTuple's own constructor calls, without the call in between


def _never(_: ScopeState, __: Event) -> Ruling:
    return Code.FOREIGN_SCOPE


def _lease_acquired(state: ScopeState, event: Event) -> Ruling:
    if state.moved is not None:
        return Code.SCOPE_MOVED
    holder, _ttl = event.body
    return NO_SEQUENCE if is_holder(holder) and event.lease_id != NO_LEASE else Code.INVALID_HOLDER


def _lease_released(state: ScopeState, event: Event) -> Ruling:
    (holder,) = event.body
    assert state.lease is not None
    return NO_SEQUENCE if holder == state.lease.holder else Code.INVALID_HOLDER


def _plan_opened(state: ScopeState, event: Event) -> Ruling:
    *_, applied, source_frontier, target_frontier, ids, digests, fingerprints = event.body
    code = plan_violation(ids, digests, fingerprints)
    if code is None and not all(map(is_migration_id, (*source_frontier, *target_frontier))):
        code = Code.INVALID_MIGRATION_ID
    if code is None and state.plan is not None:
        code = Code.PLAN_ALREADY_OPEN
    if code is None and not _is_ledger(state, applied):
        code = Code.STALE_APPLIED_SET
    if code is None and any(id in state.active for id in ids):
        code = Code.APPLIED_IDENTITY_CONFLICT
    return state.sequence + 1 if code is None else code


def _rollback_plan_opened(state: ScopeState, event: Event) -> Ruling:
    *_, applied, remaining, ids, digests, fingerprints = event.body
    code = plan_violation(ids, digests, fingerprints)
    if code is None and state.plan is not None:
        code = Code.PLAN_ALREADY_OPEN
    if code is None and not _is_ledger(state, applied):
        code = Code.STALE_APPLIED_SET
    if code is None and not all(_is_active(state, id, digest) for id, digest in zip(ids, digests, strict=True)):
        code = Code.RETIREMENT_CONFLICT
    if code is None and (len(remaining) != len(applied) - len(ids) or set(remaining) != set(applied) - set(ids)):
        code = Code.PLAN_BINDING_MISMATCH
    return state.sequence + 1 if code is None else code


def _is_ledger(state: ScopeState, ids: Sequence[str]) -> bool:
    return len(ids) == len(state.active) and all(id in state.active for id in ids) and len(set(ids)) == len(ids)


def _is_active(state: ScopeState, id: str, digest: bytes) -> bool:
    entry = state.active.get(id)
    return entry is not None and entry.digest == digest


def _group_event(state: ScopeState, event: Event) -> Ruling:
    digest, migration, ordinal, first, delta, end, kind, observed = event.body
    plan = state.plan
    if plan is None or plan.direction is not _FORWARD:
        return Code.NO_OPEN_PLAN
    if plan.members.get(digest) != migration:
        return Code.FOREIGN_EVENT
    if not (0 <= ordinal < _U32 and 0 <= first <= delta and end == delta + 1 and end < _U32):
        return Code.GROUP_POSITION_MISMATCH
    code = observation_violation(kind, observed)
    if code is None:
        code = _transition_violation(plan, (digest, _GROUP, ordinal, _FORWARD), kind, event.fence)
    return state.sequence + 1 if code is None else code


def _rollback_step_event(state: ScopeState, event: Event) -> Ruling:
    digest, migration, ordinal, kind, observed = event.body
    plan = state.plan
    if plan is None or plan.direction is not _REVERSE:
        return Code.NO_OPEN_PLAN
    if plan.members.get(digest) != migration:
        return Code.FOREIGN_EVENT
    if not 0 <= ordinal < _U32:
        return Code.POSITION_LIMIT
    code = observation_violation(kind, observed)
    if code is None:
        key = (digest, _ROLLBACK_STEP, ordinal, _REVERSE)
        code = _transition_violation(plan, key, kind, event.fence)
    return state.sequence + 1 if code is None else code


def _backfill_event(state: ScopeState, event: Event) -> Ruling:
    digest, fingerprint, migration, ordinal, step_index, direction, kind, completion = event.body
    plan = state.plan
    if plan is None or plan.members.get(digest) != migration:
        return Code.FOREIGN_EVENT
    if not (0 <= ordinal < _U32 and 0 <= step_index < _U32):
        return Code.POSITION_LIMIT
    claimed = None if completion is None else completion[:2]
    code = completion_violation(kind, claimed, fingerprint, direction)
    if code is None and completion is not None:
        code = count_violation(*completion[2:])
    if code is None:
        code = _transition_violation(plan, (digest, _BACKFILL, ordinal, direction), kind, event.fence)
    return state.sequence + 1 if code is None else code


def _backfill_checkpoint(state: ScopeState, event: Event) -> Ruling:
    digest, _, migration, ordinal, direction, *counts = event.body
    plan = state.plan
    if plan is None or plan.members.get(digest) != migration:
        return Code.FOREIGN_EVENT
    unit = plan.units.get((digest, _BACKFILL, ordinal, direction))
    if unit is None or unit.kind is not _B:
        return Code.INVALID_EVENT_TRANSITION
    code = count_violation(*counts)
    if code is None and any(new < old for new, old in zip(counts, unit.counts or (), strict=False)):
        code = Code.CHECKPOINT_REGRESSION
    return state.sequence + 1 if code is None else code


# The legal transitions of one unit, as (last kind, next kind) -> whether a strictly greater fence is needed. What is not
# here is illegal. A unit is begun again only by a later lease than the one that began it, so that the attempt before is
# known to be over; whoever finds out that it was aborted may begin it again at once.
_B, _C, _U, _A, _F = (
    GroupEventKind.BEFORE_COMMIT,
    GroupEventKind.COMMITTED,
    GroupEventKind.COMMIT_OUTCOME_UNKNOWN,
    GroupEventKind.DEFINITELY_ABORTED,
    GroupEventKind.FORMAL_ONLY_ADVANCED,
)
TRANSITIONS: Final[Mapping[tuple[GroupEventKind | None, GroupEventKind], bool]] = {
    (None, _B): False,
    (None, _F): False,
    (_B, _C): False,
    (_B, _U): False,
    (_B, _A): False,
    (_U, _C): False,
    (_U, _A): False,
    (_B, _B): True,
    (_U, _B): True,
    (_A, _B): True,
}


def _transition_violation(plan: OpenPlan, key: UnitKey, kind: GroupEventKind, fence: int) -> Code | None:
    unit = plan.units.get(key)
    greater_fence = TRANSITIONS.get((None if unit is None else unit.kind, kind))
    if greater_fence is None or (greater_fence and unit is not None and fence <= unit.fence):
        return Code.INVALID_EVENT_TRANSITION
    return None


def _applied(state: ScopeState, event: Event) -> Ruling:
    digest, *_, migration = event.body
    active = state.active.get(migration)
    if active is not None:
        if active.place is None and _same_record(active.event, event):
            return active.sequence
        return Code.APPLIED_IDENTITY_CONFLICT
    plan = state.plan
    if plan is None or plan.direction is not _FORWARD:
        return Code.NO_OPEN_PLAN
    if plan.members.get(digest) != migration:
        return Code.FOREIGN_APPLIED_RECORD
    return state.sequence + 1


def _rolled_back(state: ScopeState, event: Event) -> Ruling:
    digest, *_, migration = event.body
    if not _is_active(state, migration, digest):
        retired = state.retired.get(migration)
        if retired is not None and _same_record(retired.event, event):
            return retired.sequence
        return Code.RETIREMENT_CONFLICT
    plan = state.plan
    if plan is None or plan.direction is not _REVERSE:
        return Code.NO_OPEN_PLAN
    if plan.members.get(digest) != migration:
        return Code.FOREIGN_APPLIED_RECORD
    return state.sequence + 1


def _same_record(left: Event, right: Event) -> bool:
    return left.fence == right.fence and left.body == right.body


def _ledger_imported(state: ScopeState, event: Event) -> Ruling:
    _, operator, reason, migrations = event.body
    ids = [migration[-1] for migration in migrations]
    code = text_violation(operator, reason)
    if code is None and not ids:
        code = Code.EMPTY_IMPORT
    if code is None and state.plan is not None:
        code = Code.PLAN_ALREADY_OPEN
    if code is None and not all(map(is_migration_id, ids)):
        code = Code.INVALID_MIGRATION_ID
    if code is None and (len(set(ids)) != len(ids) or any(id in state.active for id in ids)):
        code = Code.APPLIED_IDENTITY_CONFLICT
    return state.sequence + 1 if code is None else code


def _recovery_attested(state: ScopeState, event: Event) -> Ruling:
    digest, migration, unit_kind, ordinal, direction, outcome, _, operator, reason = event.body
    plan = state.plan
    if plan is None:
        return Code.NO_OPEN_PLAN
    if plan.members.get(digest) != migration:
        return Code.FOREIGN_EVENT
    code = text_violation(operator, reason)
    unit = plan.units.get((digest, unit_kind, ordinal, direction))
    if code is None and (unit is None or unit.kind not in (_B, _U) or outcome not in ATTESTABLE):
        code = Code.INVALID_EVENT_TRANSITION
    return state.sequence + 1 if code is None else code


def _plan_abandoned(state: ScopeState, event: Event) -> Ruling:
    plan_sequence, direction, operator, reason = event.body
    plan = state.plan
    if plan is None:
        return Code.NO_OPEN_PLAN
    code = text_violation(operator, reason)
    if code is None and (plan.entry.sequence != plan_sequence or plan.direction is not direction):
        code = Code.FOREIGN_PLAN
    if code is None and any(unit.kind in (_B, _U) for unit in plan.units.values()):
        code = Code.UNIT_IN_DOUBT
    return state.sequence + 1 if code is None else code


# Where a scope lives. Of these, `ScopeAwaited` alone is about the log that it lies in: it names the head that it follows,
# so that a late copy says nothing, but stands beside the chain and is never carried. What the others say is part of the history, so their rules, and those of everything behind them, must
# not depend on the log: every copy of a chain gives each of its events the same verdict.


def _scope_awaited(state: ScopeState, event: Event) -> Ruling:
    if event.lease_id != NO_LEASE or event.fence != 0:
        return Code.FOREIGN_SCOPE
    (_place,) = event.body
    return NO_SEQUENCE if state.away or state.incarnation is None else Code.NOT_MOVED


def _scope_moved(state: ScopeState, event: Event) -> Ruling:
    _, destination, operator, reason = event.body
    code = text_violation(destination, operator, reason)
    return state.sequence + 1 if code is None else code


def _scope_arrived(state: ScopeState, event: Event) -> Ruling:
    (place,) = event.body
    moved = state.moved
    return state.sequence + 1 if moved is not None and moved.place == place else Code.NOT_MOVED


def _scope_restored(state: ScopeState, event: Event) -> Ruling:
    _, operator, reason = event.body
    code = text_violation(operator, reason)
    if code is None and (event.fence <= state.fence or event.lease_id == NO_LEASE):
        code = Code.FENCE_NOT_MONOTONIC
    return state.sequence + 1 if code is None else code


RULES: Final[Mapping[EventType, Callable[[ScopeState, Event], Ruling]]] = {
    EventType.SCOPE_CREATED: _never,
    EventType.LEASE_ACQUIRED: _lease_acquired,
    EventType.LEASE_RELEASED: _lease_released,
    EventType.PLAN_OPENED: _plan_opened,
    EventType.GROUP_EVENT: _group_event,
    EventType.BACKFILL_EVENT: _backfill_event,
    EventType.BACKFILL_CHECKPOINT: _backfill_checkpoint,
    EventType.APPLIED: _applied,
    EventType.ROLLBACK_PLAN_OPENED: _rollback_plan_opened,
    EventType.ROLLBACK_STEP_EVENT: _rollback_step_event,
    EventType.ROLLED_BACK: _rolled_back,
    EventType.LEDGER_IMPORTED: _ledger_imported,
    EventType.RECOVERY_ATTESTED: _recovery_attested,
    EventType.PLAN_ABANDONED: _plan_abandoned,
    EventType.SCOPE_AWAITED: _scope_awaited,
    EventType.SCOPE_MOVED: _scope_moved,
    EventType.SCOPE_ARRIVED: _scope_arrived,
    EventType.SCOPE_RESTORED: _scope_restored,
}


# --- the records' effects ---------------------------------------------------------------------------------------------


def _create(state: ScopeState, event: Event, _: int) -> None:
    state.incarnation = event.incarnation
    state.authenticated = event.body[1]


def _begin_lease(state: ScopeState, event: Event, _: int) -> None:
    holder, ttl_micros = event.body
    state.fence = event.fence
    state.lease_id = event.lease_id
    state.lease = LeaseState(event.lease_id, event.fence, holder, ttl_micros, event.recorded_at)
    # A retirement is retried under its own fence only, so those of earlier leases need not be remembered.
    state.retired.clear()


def _end_lease(state: ScopeState, _: Event, __: int) -> None:
    state.lease_id = state.lease = None


def _open_plan(state: ScopeState, event: Event, sequence: int) -> None:
    *_, ids, digests, _ = event.body
    direction = _FORWARD if event.type is EventType.PLAN_OPENED else _REVERSE
    state.plan = OpenPlan(direction, Entry(sequence, event), dict(zip(digests, ids, strict=True)), remaining=set(ids))


def _advance_group(state: ScopeState, event: Event, sequence: int) -> None:
    digest, _, ordinal, _, _, _, kind, _ = event.body
    _advance(state, (digest, _GROUP, ordinal, _FORWARD), kind, event, sequence)


def _advance_backfill(state: ScopeState, event: Event, sequence: int) -> None:
    digest, _, _, ordinal, _, direction, kind, _ = event.body
    _advance(state, (digest, _BACKFILL, ordinal, direction), kind, event, sequence)


def _advance_rollback_step(state: ScopeState, event: Event, sequence: int) -> None:
    digest, _, ordinal, kind, _ = event.body
    _advance(state, (digest, _ROLLBACK_STEP, ordinal, _REVERSE), kind, event, sequence)


def _advance(state: ScopeState, key: UnitKey, kind: GroupEventKind, event: Event, sequence: int) -> None:
    plan = state.plan
    assert plan is not None
    unit = plan.units.get(key)
    begun = event.fence if unit is None or kind is _B else unit.fence
    plan.units[key] = _tuple(Unit, (kind, begun, None))
    plan.events.append(_tuple(Entry, (sequence, event)))


def _advance_counts(state: ScopeState, event: Event, _: int) -> None:
    assert state.plan is not None
    digest, _fingerprint, _migration, ordinal, direction, *counts = event.body
    key = (digest, _BACKFILL, ordinal, direction)
    unit = state.plan.units[key]
    state.plan.units[key] = Unit(unit.kind, unit.fence, cast("tuple[int, int, int, int]", tuple(counts)))


def _attest(state: ScopeState, event: Event, sequence: int) -> None:
    assert state.plan is not None
    digest, _, unit_kind, ordinal, direction, outcome, *_ = event.body
    key = (digest, unit_kind, ordinal, direction)
    unit = state.plan.units[key]
    state.plan.units[key] = Unit(outcome, unit.fence, unit.counts)
    state.plan.events.append(Entry(sequence, event))


def _enter_ledger(state: ScopeState, event: Event, sequence: int) -> None:
    digest, *_, migration = event.body
    state.active[migration] = ActiveEntry(sequence, digest, event, None)
    _close_when_done(state, migration)


def _leave_ledger(state: ScopeState, event: Event, sequence: int) -> None:
    *_, migration = event.body
    del state.active[migration]
    state.retired[migration] = Entry(sequence, event)
    _close_when_done(state, migration)


def _close_when_done(state: ScopeState, migration: str) -> None:
    assert state.plan is not None
    state.plan.remaining.discard(migration)
    if not state.plan.remaining:
        state.plan = None


def _import_ledger(state: ScopeState, event: Event, sequence: int) -> None:
    for index, (digest, *_, migration) in enumerate(event.body[3]):
        state.active[migration] = ActiveEntry(sequence, digest, event, index)


def _abandon_plan(state: ScopeState, _: Event, __: int) -> None:
    state.plan = None


def _note_place(state: ScopeState, event: Event, _: int) -> None:
    (place,) = event.body
    state.away = True
    if place not in state.places:
        state.places = (*state.places, place)


def _move_away(state: ScopeState, event: Event, _: int) -> None:
    # The lease is over with the move; the arrival, written under it wherever the copy is, is admitted by `moved`.
    place, destination, operator, reason = event.body
    state.moved = Move(place, destination, operator, reason, event.recorded_at, event.lease_id, event.fence)
    state.lease_id = state.lease = None
    state.away = True


def _settle_in(state: ScopeState, event: Event, _: int) -> None:
    # Copied to a log that is not the place it names, it says where the scope lived then; it does not live here.
    place, *_said = event.body
    state.away = place not in state.places
    state.places = state.places if state.away else ()
    state.moved = None


def _restore(state: ScopeState, event: Event, sequence: int) -> None:
    state.fence = event.fence
    state.lease_id = state.lease = None
    state.retired.clear()
    _settle_in(state, event, sequence)


EFFECTS: Final[Mapping[EventType | None, Callable[[ScopeState, Event, int], None]]] = {
    EventType.SCOPE_CREATED: _create,
    EventType.LEASE_ACQUIRED: _begin_lease,
    EventType.LEASE_RELEASED: _end_lease,
    EventType.PLAN_OPENED: _open_plan,
    EventType.GROUP_EVENT: _advance_group,
    EventType.BACKFILL_EVENT: _advance_backfill,
    EventType.BACKFILL_CHECKPOINT: _advance_counts,
    EventType.APPLIED: _enter_ledger,
    EventType.ROLLBACK_PLAN_OPENED: _open_plan,
    EventType.ROLLBACK_STEP_EVENT: _advance_rollback_step,
    EventType.ROLLED_BACK: _leave_ledger,
    EventType.LEDGER_IMPORTED: _import_ledger,
    EventType.RECOVERY_ATTESTED: _attest,
    EventType.PLAN_ABANDONED: _abandon_plan,
    EventType.SCOPE_AWAITED: _note_place,
    EventType.SCOPE_MOVED: _move_away,
    EventType.SCOPE_ARRIVED: _settle_in,
    EventType.SCOPE_RESTORED: _restore,
}
