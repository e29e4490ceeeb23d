"""The records' own rules: each record, each code, in their order; transitions, retries, closing, loading."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

import pytest

from journal.admission import Admitted, ScopeState, Void
from journal.errors import Code
from journal.identities import MigrationId, Sequence
from journal.migrations.manifest import VerifiedManifest, verify_rollback
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    JournalEntry,
    LedgerImportedRecord,
    MigrationLease,
    PlanAbandonedRecord,
    PlanRecord,
    Record,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
    RolledBackRecord,
    restore,
)
from journal.rules import TRANSITIONS
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind, UnitKind
from tests.factories import (
    Writer,
    altered,
    backfill_record,
    chain_of,
    digest_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    print_of,
    reverse_backfill_record,
    rollback_plan_record,
    step_record,
)

BEGIN, COMMITTED, UNKNOWN, ABORTED, FORMAL = GroupEventKind
ONE, TWO, THREE = chain_of(3)
FILLED: Final = manifest_of(1, backfill=True)
FOREIGN: Final = digest_of("foreign")


class Scene(Writer):
    """A log with a current lease; `says` writes a record under it and returns the verdict."""

    def __init__(self) -> None:
        super().__init__()
        self.lease: MigrationLease = self.acquire()

    def take_over(self) -> MigrationLease:
        self.lease = self.acquire()
        return self.lease

    def says(self, record: Record) -> Code | int | None:
        """The code that voids the record, or the sequence that it gets."""
        verdict = self.write(record, self.lease)
        return verdict.reason if isinstance(verdict, Void) else verdict.sequence


def scene(*, applied: list[VerifiedManifest] | None = None) -> Scene:
    found = Scene()
    if applied:
        found.apply(found.lease, applied)
    return found


def scene_with_plan(planned: list[VerifiedManifest] | None = None) -> Scene:
    found = Scene()
    found.write(plan_record(found.lease, planned or [ONE, TWO]), found.lease)
    return found


def scene_with_rollback(retired: list[VerifiedManifest] | None = None) -> Scene:
    retired = retired or [TWO, ONE]
    found = scene(applied=retired[::-1])
    found.write(rollback_plan_record(found.lease, retired, retired[::-1]), found.lease)
    return found


def applied_record(lease: MigrationLease, manifest: VerifiedManifest) -> AppliedRecord:
    return AppliedRecord.from_verified_manifest(lease, manifest)


def rolled_back_record(lease: MigrationLease, manifest: VerifiedManifest) -> RolledBackRecord:
    return RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest))


def checkpoint_record(lease: MigrationLease, *counts: int) -> BackfillCheckpointRecord:
    return BackfillCheckpointRecord.new_apply(lease, FILLED, 1, BackfillCounts(*counts))


def raw_counts(*counts: int) -> BackfillCounts:
    """Counts that a constructor would refuse."""
    return restore(BackfillCounts, dict(zip(BackfillCounts.__slots__, counts, strict=True)))


# --- the rules of each record, in order ---------------------------------------------------------------------------------

# Each table lists what breaks one rule after the other; a record that breaks rule k and all behind it says k's code.
# "base" breaks the last one already.
Breaks = list[tuple[Code, dict[str, Any]]]


def worst_from(first: int, breaks: Breaks, base: Record) -> Record:
    changes: dict[str, Any] = {}
    for _, change in reversed(breaks[first:]):
        changes |= change
    return altered(base, **changes)


def cases(breaks: Breaks) -> Any:
    ids = [f"{index} {code.value}" for index, (code, _) in enumerate(breaks)]
    return pytest.mark.parametrize("first", range(len(breaks)), ids=ids)


PLAN_STRUCTURE: Final[Breaks] = [
    (Code.EMPTY_PLAN, {"migration_ids": ()}),
    (Code.PLAN_BINDING_MISMATCH, {"migration_ids": (ONE.id, ONE.id)}),
    (Code.PLAN_BINDING_MISMATCH, {"manifest_digests": (TWO.digest, TWO.digest)}),
    (Code.PLAN_BINDING_MISMATCH, {"manifest_digests": (TWO.digest,)}),
    (Code.PLAN_BINDING_MISMATCH, {"manifest_digests": (TWO.digest, THREE.digest, FOREIGN)}),
    (Code.PLAN_BINDING_MISMATCH, {"manifest_plan_fingerprints": ()}),
    (Code.INVALID_MIGRATION_ID, {"migration_ids": ("Example/0002", "example/0001_step")}),
]
PLAN_BREAKS: Final[Breaks] = [
    *PLAN_STRUCTURE,
    (Code.INVALID_MIGRATION_ID, {"source_frontier": ("no slash",)}),
    (Code.INVALID_MIGRATION_ID, {"target_frontier": ("a/b/c",)}),
]
LEDGER_BREAKS: Final[Breaks] = [
    (Code.STALE_APPLIED_SET, {"source_applied": (TWO.id,)}),
    (Code.APPLIED_IDENTITY_CONFLICT, {"migration_ids": (ONE.id, THREE.id)}),
]


def plan_on_one(lease: MigrationLease) -> PlanRecord:
    return plan_record(lease, [TWO, THREE], [ONE])


@cases(PLAN_BREAKS + LEDGER_BREAKS)
def test_a_plan_is_void_by_the_first_rule_that_it_breaks(first: int):
    breaks = PLAN_BREAKS + LEDGER_BREAKS
    here = scene(applied=[ONE])
    assert here.says(worst_from(first, breaks, plan_on_one(here.lease))) == breaks[first][0]
    assert here.says(plan_on_one(here.lease)) == 5


@cases(PLAN_BREAKS)
def test_the_form_of_a_plan_is_checked_before_another_open_plan(first: int):
    here = scene(applied=[ONE])
    here.write(plan_on_one(here.lease), here.lease)
    record = worst_from(first, PLAN_BREAKS + LEDGER_BREAKS, plan_on_one(here.lease))
    assert here.says(record) == PLAN_BREAKS[first][0]


@cases(LEDGER_BREAKS)
def test_another_open_plan_is_checked_before_the_ledger(first: int):
    here = scene(applied=[ONE])
    here.write(plan_on_one(here.lease), here.lease)
    assert here.says(worst_from(first, LEDGER_BREAKS, plan_on_one(here.lease))) == Code.PLAN_ALREADY_OPEN
    assert here.says(plan_on_one(here.lease)) == Code.PLAN_ALREADY_OPEN


@pytest.mark.parametrize("applied", [(), (ONE.id, TWO.id), (THREE.id,), (ONE.id, ONE.id)], ids=str)
def test_a_plan_names_the_whole_ledger_and_nothing_else(applied: tuple[MigrationId, ...]):
    here = scene(applied=[ONE])
    assert here.says(altered(plan_on_one(here.lease), source_applied=applied)) == Code.STALE_APPLIED_SET


def test_a_ledger_named_with_one_migration_twice_is_not_the_ledger():
    here = scene(applied=[ONE, TWO])
    record = altered(plan_record(here.lease, [THREE], [ONE, TWO]), source_applied=(ONE.id, ONE.id))
    assert here.says(record) == Code.STALE_APPLIED_SET


def test_the_ledger_of_a_plan_has_no_order():
    here = scene(applied=[ONE, TWO])
    record = altered(plan_record(here.lease, [THREE], [ONE, TWO]), source_applied=(TWO.id, ONE.id))
    assert here.says(record) == 8


ROLLBACK_STRUCTURE: Final[Breaks] = [
    (code, {name.replace("migration_ids", "rollback_ids"): value for name, value in change.items()})
    for code, change in PLAN_STRUCTURE
]
ROLLBACK_LEDGER: Final[Breaks] = [
    (Code.STALE_APPLIED_SET, {"source_applied": (ONE.id,)}),
    (Code.RETIREMENT_CONFLICT, {"manifest_digests": (THREE.digest, FOREIGN)}),
    (Code.PLAN_BINDING_MISMATCH, {"remaining_applied": ()}),
]


def rollback_to_one(lease: MigrationLease) -> RollbackPlanRecord:
    return rollback_plan_record(lease, [THREE, TWO], [ONE, TWO, THREE])


@cases(ROLLBACK_STRUCTURE + ROLLBACK_LEDGER)
def test_a_rollback_plan_is_void_by_the_first_rule_that_it_breaks(first: int):
    breaks = ROLLBACK_STRUCTURE + ROLLBACK_LEDGER
    here = scene(applied=[ONE, TWO, THREE])
    assert here.says(worst_from(first, breaks, rollback_to_one(here.lease))) == breaks[first][0]
    assert here.says(rollback_to_one(here.lease)) == 11


@cases(ROLLBACK_STRUCTURE)
def test_the_form_of_a_rollback_plan_is_checked_before_another_open_plan(first: int):
    here = scene(applied=[ONE, TWO, THREE])
    here.write(rollback_to_one(here.lease), here.lease)
    record = worst_from(first, ROLLBACK_STRUCTURE + ROLLBACK_LEDGER, rollback_to_one(here.lease))
    assert here.says(record) == ROLLBACK_STRUCTURE[first][0]


@cases(ROLLBACK_LEDGER)
def test_another_open_plan_is_checked_before_the_ledger_of_a_rollback_plan(first: int):
    here = scene(applied=[ONE, TWO, THREE])
    here.write(rollback_to_one(here.lease), here.lease)
    assert here.says(worst_from(first, ROLLBACK_LEDGER, rollback_to_one(here.lease))) == Code.PLAN_ALREADY_OPEN


@pytest.mark.parametrize("remaining", [(), (TWO.id,), (ONE.id, ONE.id), (ONE.id, TWO.id), ("not an id",)], ids=str)
def test_what_stays_applied_is_the_ledger_without_what_is_retired(remaining: tuple[Any, ...]):
    here = scene(applied=[ONE, TWO, THREE])
    record = altered(rollback_to_one(here.lease), remaining_applied=remaining)
    assert here.says(record) == Code.PLAN_BINDING_MISMATCH


def test_a_migration_that_is_not_active_cannot_be_rolled_back():
    here = scene(applied=[ONE])
    record = altered(rollback_plan_record(here.lease, [TWO], [ONE, TWO]), source_applied=(ONE.id,))
    assert here.says(record) == Code.RETIREMENT_CONFLICT


def test_open_plans_of_either_direction_exclude_each_other():
    forward, backward = scene(applied=[ONE]), scene(applied=[ONE])
    plan = plan_on_one(forward.lease)
    rollback = rollback_plan_record(forward.lease, [ONE], [ONE])
    assert forward.says(plan) == backward.says(rollback) == 5
    for here, other in product((forward, backward), (plan, rollback)):
        assert here.says(other) == Code.PLAN_ALREADY_OPEN


# --- the events of one unit ---------------------------------------------------------------------------------------------


GROUP_BREAKS: Final[Breaks] = [
    (Code.FOREIGN_EVENT, {"manifest_digest": FOREIGN}),
    (Code.GROUP_POSITION_MISMATCH, {"end_step_index": 2}),
    (Code.COMMIT_EVIDENCE_MISMATCH, {"observed_target": None}),
    (Code.INVALID_EVENT_TRANSITION, {}),
]
STEP_BREAKS: Final[Breaks] = [
    (Code.FOREIGN_EVENT, {"manifest_digest": FOREIGN}),
    (Code.POSITION_LIMIT, {"step_ordinal": -1}),
    (Code.COMMIT_EVIDENCE_MISMATCH, {"observed_target": None}),
    (Code.INVALID_EVENT_TRANSITION, {}),
]


@cases(GROUP_BREAKS)
def test_a_group_event_is_void_by_the_first_rule_that_it_breaks(first: int):
    here, none, backward = scene_with_plan(), scene(), scene_with_rollback()
    record = worst_from(first, GROUP_BREAKS, group_record(here.lease, ONE, COMMITTED))
    assert here.says(record) == GROUP_BREAKS[first][0]
    assert none.says(record) == backward.says(record) == Code.NO_OPEN_PLAN


@cases(STEP_BREAKS)
def test_a_rollback_step_event_is_void_by_the_first_rule_that_it_breaks(first: int):
    here, none, forward = scene_with_rollback(), scene(), scene_with_plan()
    record = worst_from(first, STEP_BREAKS, step_record(here.lease, ONE, COMMITTED))
    assert here.says(record) == STEP_BREAKS[first][0]
    assert none.says(record) == forward.says(record) == Code.NO_OPEN_PLAN


@pytest.mark.parametrize(
    "change", [{"manifest_digest": TWO.digest}, {"migration_id": TWO.id}, {"migration_id": THREE.id}], ids=str
)
def test_a_digest_and_a_migration_belong_together(change: dict[str, Any]):
    forward, backward = scene_with_plan(), scene_with_rollback()
    assert forward.says(altered(group_record(forward.lease, ONE, BEGIN), **change)) == Code.FOREIGN_EVENT
    assert backward.says(altered(step_record(backward.lease, ONE, BEGIN), **change)) == Code.FOREIGN_EVENT
    filled = scene_with_plan([FILLED])
    assert filled.says(altered(backfill_record(filled.lease, FILLED, BEGIN), **change)) == Code.FOREIGN_EVENT


@pytest.mark.parametrize(
    "positions",
    [
        (-1, 0, 0, 1),
        (2**32, 0, 0, 1),
        (0, -1, 0, 1),
        (0, 1, 0, 1),
        (0, 0, 0, 0),
        (0, 0, 0, 2),
        (0, 0, 2**32 - 1, 2**32),
    ],
)
def test_the_positions_of_a_group_are_one_range_that_ends_with_its_delta(positions: tuple[int, ...]):
    here = scene_with_plan()
    names = ("group_ordinal", "first_step_index", "schema_delta_step_index", "end_step_index")
    record = altered(group_record(here.lease, ONE, BEGIN), **dict(zip(names, positions, strict=True)))
    assert here.says(record) == Code.GROUP_POSITION_MISMATCH


@pytest.mark.parametrize("positions", [(0, 0, 0, 1), (2**32 - 1, 0, 0, 1), (0, 0, 2**32 - 2, 2**32 - 1), (7, 3, 5, 6)])
def test_every_position_in_range_is_admitted(positions: tuple[int, ...]):
    here = scene_with_plan()
    names = ("group_ordinal", "first_step_index", "schema_delta_step_index", "end_step_index")
    assert here.says(altered(group_record(here.lease, ONE, BEGIN), **dict(zip(names, positions, strict=True)))) == 2


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (BEGIN, Code.UNEXPECTED_OBSERVATION),
        (UNKNOWN, Code.UNEXPECTED_OBSERVATION),
        (ABORTED, Code.UNEXPECTED_OBSERVATION),
        (FORMAL, Code.INVALID_FORMAL_ADVANCE),
    ],
)
def test_only_a_committed_unit_carries_an_observation(kind: GroupEventKind, code: Code):
    forward, backward = scene_with_plan(), scene_with_rollback()
    changes = {"kind": kind, "observed_target": print_of("seen")}
    assert forward.says(altered(group_record(forward.lease, ONE, BEGIN), **changes)) == code
    assert backward.says(altered(step_record(backward.lease, ONE, BEGIN), **changes)) == code


BACKFILL_BREAKS: Final[Breaks] = [
    (Code.FOREIGN_EVENT, {"manifest_digest": FOREIGN}),
    (Code.POSITION_LIMIT, {"operation_ordinal": 2**32}),
    (Code.POSITION_LIMIT, {"manifest_step_index": -1}),
    (Code.BACKFILL_COMPLETION_MISMATCH, {"completion": None}),
    (
        Code.BACKFILL_ZERO_TRANSACTION_GROUPS,
        {"completion": BackfillCompletion(print_of("backfill 1"), Direction.FORWARD, raw_counts(1, 0, 0, 0))},
    ),
    (Code.INVALID_EVENT_TRANSITION, {}),
]


@cases(BACKFILL_BREAKS)
def test_a_backfill_event_is_void_by_the_first_rule_that_it_breaks(first: int):
    here, none = scene_with_plan([FILLED]), scene()
    record = worst_from(first, BACKFILL_BREAKS, backfill_record(here.lease, FILLED, COMMITTED))
    assert here.says(record) == BACKFILL_BREAKS[first][0]
    assert none.says(record) == Code.FOREIGN_EVENT


COMPLETE: Final = BackfillCompletion(print_of("backfill 1"), Direction.FORWARD, BackfillCounts(5, 3, 2, 2))


@pytest.mark.parametrize(
    ("kind", "completion", "code"),
    [
        (
            COMMITTED,
            BackfillCompletion(print_of("other"), Direction.FORWARD, COMPLETE.counts),
            Code.BACKFILL_COMPLETION_MISMATCH,
        ),
        (
            COMMITTED,
            BackfillCompletion(COMPLETE.plan_fingerprint, Direction.REVERSE, COMPLETE.counts),
            Code.BACKFILL_COMPLETION_MISMATCH,
        ),
        (BEGIN, COMPLETE, Code.UNEXPECTED_BACKFILL_COMPLETION),
        (UNKNOWN, COMPLETE, Code.UNEXPECTED_BACKFILL_COMPLETION),
        (ABORTED, COMPLETE, Code.UNEXPECTED_BACKFILL_COMPLETION),
        (FORMAL, COMPLETE, Code.BACKFILL_FORMAL_ADVANCE),
        (FORMAL, None, Code.BACKFILL_FORMAL_ADVANCE),
    ],
)
def test_completion_goes_with_a_committed_backfill_of_its_own_program_only(kind: Any, completion: Any, code: Code):
    here = scene_with_plan([FILLED])
    here.write(backfill_record(here.lease, FILLED, BEGIN), here.lease)
    record = altered(backfill_record(here.lease, FILLED, BEGIN), kind=kind, completion=completion)
    assert here.says(record) == code


BAD_COUNTS: Final = [
    ((5, 3, 2, 0), Code.BACKFILL_ZERO_TRANSACTION_GROUPS),
    ((5, 3, 1, 0), Code.BACKFILL_ZERO_TRANSACTION_GROUPS),
    ((2, -1, 3, 1), Code.POSITION_LIMIT),
    ((2, 3, -1, 1), Code.POSITION_LIMIT),
    ((5, 3, 2, -1), Code.POSITION_LIMIT),
    ((5, 3, 2, 2**32), Code.POSITION_LIMIT),
    ((6, 3, 2, 1), Code.BACKFILL_COUNT_MISMATCH),
    ((-1, 0, 0, 1), Code.BACKFILL_COUNT_MISMATCH),
]


@pytest.mark.parametrize(("counts", "code"), BAD_COUNTS)
def test_counts_that_contradict_each_other_void_a_completion_and_a_checkpoint(counts: tuple[int, ...], code: Code):
    here = scene_with_plan([FILLED])
    here.write(backfill_record(here.lease, FILLED, BEGIN), here.lease)
    completion = BackfillCompletion(COMPLETE.plan_fingerprint, Direction.FORWARD, raw_counts(*counts))
    assert here.says(altered(backfill_record(here.lease, FILLED, COMMITTED), completion=completion)) == code
    changes = dict(zip(BackfillCounts.__slots__, counts, strict=True))
    assert here.says(altered(checkpoint_record(here.lease, 5, 3, 2, 1), **changes)) == code


# --- transitions --------------------------------------------------------------------------------------------------------


def legal(last: GroupEventKind | None, following: GroupEventKind, *, greater: bool) -> bool:
    """The rule as DESIGN section 4 has it in words, written without its table."""
    if last is None:
        return following in (BEGIN, FORMAL)
    if following is BEGIN:
        return greater and last in (BEGIN, UNKNOWN, ABORTED)
    if last is BEGIN:
        return following in (COMMITTED, UNKNOWN, ABORTED)
    return last is UNKNOWN and following in (COMMITTED, ABORTED)


def group_unit(lease: MigrationLease, kind: GroupEventKind) -> Record:
    return altered(group_record(lease, ONE, COMMITTED if kind is COMMITTED else BEGIN), kind=kind)


def step_unit(lease: MigrationLease, kind: GroupEventKind) -> Record:
    return altered(step_record(lease, ONE, COMMITTED if kind is COMMITTED else BEGIN), kind=kind)


def backfill_unit(lease: MigrationLease, kind: GroupEventKind) -> Record:
    return altered(backfill_record(lease, FILLED, COMMITTED if kind is COMMITTED else BEGIN), kind=kind)


def reverse_backfill_unit(lease: MigrationLease, kind: GroupEventKind) -> Record:
    return altered(reverse_backfill_record(lease, FILLED, COMMITTED if kind is COMMITTED else BEGIN), kind=kind)


UNITS: Final[dict[str, tuple[Callable[[], Scene], Callable[[MigrationLease, GroupEventKind], Record]]]] = {
    "group": (scene_with_plan, group_unit),
    "rollback step": (scene_with_rollback, step_unit),
    "backfill": (lambda: scene_with_plan([FILLED]), backfill_unit),
    "reverse backfill": (lambda: scene_with_rollback([FILLED]), reverse_backfill_unit),
}
LEADS_TO: Final = {
    None: [],
    BEGIN: [BEGIN],
    COMMITTED: [BEGIN, COMMITTED],
    UNKNOWN: [BEGIN, UNKNOWN],
    ABORTED: [BEGIN, ABORTED],
}
SITUATIONS: Final = [
    (unit, last, following, greater)
    for unit, last, following, greater in product(UNITS, [None, *GroupEventKind], GroupEventKind, (False, True))
    if not (last is FORMAL and "backfill" in unit)  # a backfill never advances formally
]


@pytest.mark.parametrize(("unit", "last", "following", "greater"), SITUATIONS)
def test_a_unit_moves_as_the_design_says(unit: str, last: Any, following: GroupEventKind, greater: bool):
    make, record = UNITS[unit]
    here = make()
    for kind in LEADS_TO.get(last, [last]):
        assert isinstance(here.says(record(here.lease, kind)), int)
    if greater:
        here.take_over()
    sequence = here.state.sequence
    verdict = here.says(record(here.lease, following))
    if "backfill" in unit and following is FORMAL:
        assert verdict == Code.BACKFILL_FORMAL_ADVANCE
    elif legal(last, following, greater=greater):
        assert verdict == sequence + 1
    else:
        assert verdict == Code.INVALID_EVENT_TRANSITION


def test_the_table_of_transitions_is_the_rule():
    for last, following in product([None, *GroupEventKind], GroupEventKind):
        needs_greater = TRANSITIONS.get((last, following))
        assert (needs_greater is not None) == legal(last, following, greater=True)
        assert (needs_greater is False) == legal(last, following, greater=False)


def test_the_fence_that_begins_a_unit_again_exceeds_the_one_that_began_it_before():
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    here.take_over()
    assert here.says(group_record(here.lease, ONE, ABORTED)) == 3  # the successor found out, and may begin at once
    assert here.says(group_record(here.lease, ONE, BEGIN)) == 4
    assert here.says(group_record(here.lease, ONE, ABORTED)) == 5
    assert here.says(group_record(here.lease, ONE, BEGIN)) == Code.INVALID_EVENT_TRANSITION
    here.take_over()
    assert here.says(group_record(here.lease, ONE, BEGIN)) == 6


def test_who_attests_a_unit_as_aborted_may_begin_it_again_at_once():
    here = scene_with_plan()
    begun = group_record(here.lease, ONE, BEGIN)
    here.write(begun, here.lease)
    here.take_over()
    attested = RecoveryAttestedRecord.new(
        here.lease, begun, ABORTED, observed=None, operator="ann", reason="looked at it"
    )
    assert here.says(attested) == 3
    assert here.says(group_record(here.lease, ONE, BEGIN)) == 4


def test_units_move_independently_of_each_other():
    here = scene_with_plan([FILLED, manifest_of(2, backfill=True)])
    second = manifest_of(2, backfill=True)
    for manifest in (FILLED, second):
        assert isinstance(here.says(group_record(here.lease, manifest, BEGIN)), int)
        assert isinstance(here.says(altered(group_record(here.lease, manifest, BEGIN), group_ordinal=1)), int)
        assert isinstance(here.says(backfill_record(here.lease, manifest, BEGIN)), int)
    assert here.says(group_record(here.lease, FILLED, COMMITTED)) == 8
    assert here.says(group_record(here.lease, second, BEGIN)) == Code.INVALID_EVENT_TRANSITION


def test_units_begin_anew_in_a_later_plan():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    here.apply(here.lease, [ONE])
    assert all(isinstance(verdict, Admitted) for verdict in here.verdicts)
    assert list(here.state.active) == ["example/0001_step"]


# --- checkpoints --------------------------------------------------------------------------------------------------------


def begun_backfill() -> Scene:
    here = scene_with_plan([FILLED])
    assert here.says(backfill_record(here.lease, FILLED, BEGIN)) == 2
    return here


CHECKPOINT_BREAKS: Final[Breaks] = [
    (Code.FOREIGN_EVENT, {"manifest_digest": FOREIGN}),
    (Code.INVALID_EVENT_TRANSITION, {"operation_ordinal": 7}),
    (Code.BACKFILL_COUNT_MISMATCH, {"matched": 0}),
    (Code.CHECKPOINT_REGRESSION, {"skipped": 0, "matched": 3}),
]


@cases(CHECKPOINT_BREAKS)
def test_a_checkpoint_is_void_by_the_first_rule_that_it_breaks(first: int):
    here = begun_backfill()
    assert here.says(checkpoint_record(here.lease, 5, 3, 2, 1)) == 3
    record = worst_from(first, CHECKPOINT_BREAKS, checkpoint_record(here.lease, 5, 3, 2, 1))
    assert here.says(record) == CHECKPOINT_BREAKS[first][0]
    assert scene().says(record) == Code.FOREIGN_EVENT


@pytest.mark.parametrize("counts", [(4, 2, 2, 3), (4, 3, 1, 3), (5, 3, 2, 2), (9, 9, 0, 9), (9, 0, 9, 9)])
def test_no_count_of_a_checkpoint_goes_down(counts: tuple[int, ...]):
    here = begun_backfill()
    assert here.says(checkpoint_record(here.lease, 5, 3, 2, 3)) == 3
    assert here.says(checkpoint_record(here.lease, *counts)) == Code.CHECKPOINT_REGRESSION
    assert here.says(checkpoint_record(here.lease, 5, 3, 2, 3)) == 4
    assert here.says(checkpoint_record(here.lease, 9, 5, 4, 4)) == 5


@pytest.mark.parametrize("kinds", [[], [BEGIN, COMMITTED], [BEGIN, UNKNOWN], [BEGIN, ABORTED]], ids=str)
def test_only_a_backfill_under_way_has_checkpoints(kinds: list[GroupEventKind]):
    here = scene_with_plan([FILLED])
    for kind in kinds:
        here.write(backfill_record(here.lease, FILLED, kind), here.lease)
    assert here.says(checkpoint_record(here.lease, 5, 3, 2, 1)) == Code.INVALID_EVENT_TRANSITION


def test_a_checkpoint_of_the_other_direction_is_another_unit():
    here = begun_backfill()
    record = altered(checkpoint_record(here.lease, 5, 3, 2, 1), direction=Direction.REVERSE)
    assert here.says(record) == Code.INVALID_EVENT_TRANSITION


def test_a_checkpoint_is_kept_with_its_unit_and_moves_nothing_else():
    here = begun_backfill()
    here.write(checkpoint_record(here.lease, 5, 3, 2, 1), here.lease)
    plan = here.state.plan
    assert plan is not None
    unit = plan.units[FILLED.digest, UnitKind.BACKFILL, 1, Direction.FORWARD]
    assert unit == (BEGIN, here.lease.fence, (5, 3, 2, 1))
    assert here.says(backfill_record(here.lease, FILLED, BEGIN)) == Code.INVALID_EVENT_TRANSITION
    assert here.says(backfill_record(here.lease, FILLED, COMMITTED)) == 4


def test_a_backfill_that_is_begun_again_counts_anew():
    here = begun_backfill()
    here.write(checkpoint_record(here.lease, 5, 3, 2, 1), here.lease)
    here.take_over()
    assert here.says(backfill_record(here.lease, FILLED, BEGIN)) == 4
    assert here.says(checkpoint_record(here.lease, 1, 1, 0, 1)) == 5


# --- the ledger ---------------------------------------------------------------------------------------------------------


def test_an_applied_record_needs_an_open_plan_that_names_it():
    assert scene().says(applied_record(lease_of(), ONE)) == Code.NO_OPEN_PLAN
    assert scene_with_rollback([ONE]).says(applied_record(lease_of(), TWO)) == Code.NO_OPEN_PLAN
    here = scene_with_plan()
    assert here.says(applied_record(here.lease, THREE)) == Code.FOREIGN_APPLIED_RECORD
    assert here.says(altered(applied_record(here.lease, ONE), manifest_digest=FOREIGN)) == Code.FOREIGN_APPLIED_RECORD
    assert here.says(altered(applied_record(here.lease, ONE), migration_id=TWO.id)) == Code.FOREIGN_APPLIED_RECORD
    assert here.says(applied_record(here.lease, ONE)) == 2


def test_a_plan_closes_when_its_last_migration_is_applied():
    here = scene_with_plan()
    assert here.says(applied_record(here.lease, TWO)) == 2
    assert here.state.plan is not None
    assert here.state.plan.remaining == {"example/0001_step"}
    assert here.says(applied_record(here.lease, ONE)) == 3
    assert here.state.plan is None
    assert [str(entry.record.migration_id) for entry in here.state.active_ledger()] == [str(TWO.id), str(ONE.id)]


def test_a_rollback_plan_closes_when_its_last_migration_is_retired():
    here = scene_with_rollback()
    assert here.says(rolled_back_record(here.lease, TWO)) == 9
    assert here.state.plan is not None
    assert here.says(rolled_back_record(here.lease, ONE)) == 10
    assert here.state.plan is None
    assert here.state.active_ledger() == []


def test_an_exact_retry_of_an_applied_record_gets_its_sequence_again():
    here = scene(applied=[ONE])
    record = applied_record(here.lease, ONE)
    before = here.state.copy()
    assert here.says(record) == here.says(record) == 4
    assert here.state.sequence == 4
    before.head, before.admitted, before.position = here.state.head, here.state.admitted, here.state.position
    assert here.state.canonical() == before.canonical()


def test_a_retry_between_two_migrations_closes_nothing():
    here = scene_with_plan()
    for expected in (2, 2):
        assert here.says(applied_record(here.lease, ONE)) == expected
    assert here.state.plan is not None
    assert here.says(applied_record(here.lease, TWO)) == 3


def test_a_retry_inside_the_next_plan_is_still_the_same_record():
    here = scene(applied=[ONE])
    here.write(plan_record(here.lease, [TWO], [ONE]), here.lease)
    assert here.says(applied_record(here.lease, ONE)) == 4
    assert here.state.plan is not None


@pytest.mark.parametrize(
    "change",
    [
        {"manifest_digest": FOREIGN},
        {"source_declared": print_of("x")},
        {"target_declared": print_of("x")},
        {"source_semantics": print_of("x")},
        {"target_semantics": print_of("x")},
    ],
    ids=str,
)
def test_an_applied_record_with_other_evidence_is_a_conflict(change: dict[str, Any]):
    here = scene(applied=[ONE])
    assert here.says(altered(applied_record(here.lease, ONE), **change)) == Code.APPLIED_IDENTITY_CONFLICT


def test_an_applied_record_under_another_fence_is_a_conflict():
    here = scene(applied=[ONE])
    here.take_over()
    assert here.says(applied_record(here.lease, ONE)) == Code.APPLIED_IDENTITY_CONFLICT


def test_a_conflict_is_found_before_a_missing_plan():
    here = scene(applied=[ONE])
    assert here.state.plan is None
    record = altered(applied_record(here.lease, ONE), target_semantics=print_of("x"))
    assert here.says(record) == Code.APPLIED_IDENTITY_CONFLICT


def test_a_retirement_needs_an_active_migration_then_an_open_plan_then_its_membership():
    assert scene().says(rolled_back_record(lease_of(), ONE)) == Code.RETIREMENT_CONFLICT
    here = scene(applied=[ONE, TWO])
    assert here.says(altered(rolled_back_record(here.lease, TWO), manifest_digest=FOREIGN)) == Code.RETIREMENT_CONFLICT
    assert here.says(rolled_back_record(here.lease, TWO)) == Code.NO_OPEN_PLAN
    here.write(rollback_plan_record(here.lease, [TWO], [ONE, TWO]), here.lease)
    assert here.says(rolled_back_record(here.lease, ONE)) == Code.FOREIGN_APPLIED_RECORD
    assert here.says(rolled_back_record(here.lease, TWO)) == 9


def test_an_open_apply_plan_retires_nothing():
    here = scene(applied=[ONE])
    here.write(plan_record(here.lease, [TWO], [ONE]), here.lease)
    assert here.says(rolled_back_record(here.lease, ONE)) == Code.NO_OPEN_PLAN


def test_an_exact_retry_of_a_retirement_gets_its_sequence_again():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    record = rolled_back_record(here.lease, ONE)
    assert here.says(record) == here.says(record) == 8
    assert here.state.sequence == 8


def test_a_retirement_with_other_evidence_or_under_another_fence_is_a_conflict():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    record = rolled_back_record(here.lease, ONE)
    assert here.says(altered(record, target_semantics=print_of("x"))) == Code.RETIREMENT_CONFLICT
    here.take_over()
    assert here.says(rolled_back_record(here.lease, ONE)) == Code.RETIREMENT_CONFLICT


def test_retirements_of_earlier_leases_are_not_kept():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    assert list(here.state.retired) == [str(ONE.id)]
    here.take_over()
    assert here.state.retired == {}


def test_a_retirement_frees_the_identity_for_another_application():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    assert here.says(applied_record(here.lease, ONE)) == Code.NO_OPEN_PLAN
    here.apply(here.lease, [ONE])
    assert [entry.sequence for entry in here.state.active_ledger()] == [12]


def test_an_identity_can_come_back_with_another_digest():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    here.apply(here.lease, [FILLED])
    assert FILLED.id == ONE.id
    assert [entry.record.manifest_digest for entry in here.state.active_ledger()] == [FILLED.digest]
    assert here.says(rolled_back_record(here.lease, ONE)) == 8  # the retry of the first retirement, under its own fence


def test_an_old_retirement_is_no_retry_once_the_migration_is_active_again():
    here = scene(applied=[ONE])
    here.roll_back(here.lease, [ONE], [ONE])
    here.apply(here.lease, [ONE])
    assert here.says(rolled_back_record(here.lease, ONE)) == Code.NO_OPEN_PLAN


def test_a_second_retirement_of_a_migration_is_a_new_record():
    here = scene(applied=[ONE])
    for expected in (8, 16):
        here.roll_back(here.lease, [ONE], [ONE])
        assert here.says(rolled_back_record(here.lease, ONE)) == expected
        here.apply(here.lease, [ONE])


def test_a_plan_may_be_finished_by_a_later_holder():
    here = scene_with_plan()
    here.write(applied_record(here.lease, ONE), here.lease)
    here.take_over()
    assert here.says(applied_record(here.lease, TWO)) == 3
    assert [entry.record.fence for entry in here.state.active_ledger()] == [1, 2]


# --- import -------------------------------------------------------------------------------------------------------------


def import_record(lease: MigrationLease, manifests: list[VerifiedManifest] | None = None) -> LedgerImportedRecord:
    manifests = manifests or [ONE, TWO]
    return LedgerImportedRecord.from_verified_manifests(
        lease, manifests, manifests[-1].target, operator="Ada", reason="adopted"
    )


IMPORTED: Final = import_record(lease_of()).migrations
TEXTS: Final = ["", "  ", "two\nlines", "tab\t", "\x1b[31m", "r" * 4097, "ü" * 2049]


@pytest.mark.parametrize("field", ["operator", "reason"])
@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:12])
def test_operators_and_reasons_are_one_line_of_printable_text(field: str, text: str):
    assert scene().says(altered(import_record(lease_of()), **{field: text})) == Code.INVALID_TEXT
    here = scene_with_plan()
    assert here.says(altered(abandoned(here), **{field: text})) == Code.INVALID_TEXT
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    assert here.says(altered(attested(here, COMMITTED), **{field: text})) == Code.INVALID_TEXT


def test_texts_up_to_the_limit_are_admitted():
    record = altered(import_record(lease_of()), reason="r" * 4096, operator="表" * 1365)
    assert scene().says(record) == 1


IMPORT_BREAKS: Final[Breaks] = [
    (Code.INVALID_TEXT, {"reason": ""}),
    (Code.EMPTY_IMPORT, {"migrations": ()}),
    (Code.INVALID_MIGRATION_ID, {"migrations": (altered(IMPORTED[0], migration_id="NO"), IMPORTED[0], IMPORTED[0])}),
    (Code.APPLIED_IDENTITY_CONFLICT, {"migrations": (IMPORTED[0], IMPORTED[0])}),
]


@cases(IMPORT_BREAKS)
def test_an_import_is_void_by_the_first_rule_that_it_breaks(first: int):
    record = worst_from(first, IMPORT_BREAKS, import_record(lease_of()))
    assert scene().says(record) == IMPORT_BREAKS[first][0]


@cases(IMPORT_BREAKS)
def test_an_open_plan_is_checked_before_what_an_import_names_and_behind_its_form(first: int):
    here = scene_with_plan()
    expected = IMPORT_BREAKS[first][0] if first < 2 else Code.PLAN_ALREADY_OPEN
    assert here.says(worst_from(first, IMPORT_BREAKS, import_record(here.lease))) == expected


def test_an_import_brings_its_migrations_into_the_ledger_in_order():
    here = scene()
    assert here.says(import_record(here.lease)) == 1
    ledger = here.state.active_ledger()
    assert [(entry.sequence, str(entry.record.migration_id)) for entry in ledger] == [
        (1, str(ONE.id)),
        (1, str(TWO.id)),
    ]
    expected = applied_record(here.lease, TWO)
    assert ledger[1].record == expected


def test_an_import_beside_a_ledger_must_not_meet_it():
    here = scene(applied=[ONE])
    assert here.says(import_record(here.lease)) == Code.APPLIED_IDENTITY_CONFLICT
    assert here.says(import_record(here.lease, [TWO])) == 5


def test_an_import_is_not_repeated():
    here = scene()
    assert here.says(import_record(here.lease)) == 1
    assert here.says(import_record(here.lease)) == Code.APPLIED_IDENTITY_CONFLICT


def test_an_applied_record_is_no_retry_of_an_import():
    here = scene()
    here.write(import_record(here.lease, [ONE]), here.lease)
    assert here.says(applied_record(here.lease, ONE)) == Code.APPLIED_IDENTITY_CONFLICT


def test_an_imported_migration_can_be_rolled_back_and_applied_again():
    here = scene()
    here.write(import_record(here.lease), here.lease)
    here.roll_back(here.lease, [TWO], [ONE, TWO])
    here.apply(here.lease, [TWO], [ONE])
    assert all(isinstance(verdict, Admitted) for verdict in here.verdicts)
    assert list(here.state.active) == [str(ONE.id), str(TWO.id)]


# --- attest -------------------------------------------------------------------------------------------------------------


def attested(here: Scene, outcome: GroupEventKind) -> RecoveryAttestedRecord:
    event = group_record(here.lease, ONE, BEGIN)
    made = outcome if outcome in (COMMITTED, ABORTED) else COMMITTED
    record = RecoveryAttestedRecord.new(here.lease, event, made, observed=None, operator="Ada", reason="looked")
    return altered(record, outcome=outcome)


ATTEST_BREAKS: Final[Breaks] = [
    (Code.FOREIGN_EVENT, {"manifest_digest": FOREIGN}),
    (Code.INVALID_TEXT, {"operator": ""}),
    (Code.INVALID_EVENT_TRANSITION, {"ordinal": 9}),
]


@cases(ATTEST_BREAKS)
def test_an_attestation_is_void_by_the_first_rule_that_it_breaks(first: int):
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    record = worst_from(first, ATTEST_BREAKS, attested(here, COMMITTED))
    assert here.says(record) == ATTEST_BREAKS[first][0]
    assert scene().says(record) == Code.NO_OPEN_PLAN


@pytest.mark.parametrize(
    ("last", "outcome", "greater"), list(product([None, *GroupEventKind], GroupEventKind, (False, True)))
)
def test_only_a_unit_in_doubt_is_attested_and_only_as_committed_or_aborted(last: Any, outcome: Any, greater: bool):
    here = scene_with_plan()
    for kind in LEADS_TO.get(last, [last]):
        here.write(group_unit(here.lease, kind), here.lease)
    if greater:
        here.take_over()
    sequence = here.state.sequence
    allowed = last in (BEGIN, UNKNOWN) and outcome in (COMMITTED, ABORTED)
    expected = sequence + 1 if allowed else Code.INVALID_EVENT_TRANSITION
    assert here.says(attested(here, outcome)) == expected


@pytest.mark.parametrize(
    "change",
    [{"unit": UnitKind.BACKFILL}, {"unit": UnitKind.ROLLBACK_STEP}, {"direction": Direction.REVERSE}, {"ordinal": 1}],
    ids=str,
)
def test_an_attestation_names_one_unit_exactly(change: dict[str, Any]):
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    assert here.says(altered(attested(here, COMMITTED), **change)) == Code.INVALID_EVENT_TRANSITION


def test_an_attested_unit_is_as_if_its_event_had_been_written():
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    here.write(attested(here, ABORTED), here.lease)
    assert here.says(group_record(here.lease, ONE, COMMITTED)) == Code.INVALID_EVENT_TRANSITION
    assert here.says(group_record(here.lease, ONE, BEGIN)) == Code.INVALID_EVENT_TRANSITION
    here.take_over()
    assert here.says(group_record(here.lease, ONE, BEGIN)) == 4


def test_backfills_and_reverse_steps_are_attested_too():
    forward, backward = begun_backfill(), scene_with_rollback()
    backward.write(step_record(backward.lease, ONE, BEGIN), backward.lease)
    for here, event in (
        (forward, backfill_record(forward.lease, FILLED, BEGIN)),
        (backward, step_record(backward.lease, ONE, BEGIN)),
    ):
        record = RecoveryAttestedRecord.new(here.lease, event, COMMITTED, observed=None, operator="Ada", reason="seen")
        assert here.says(record) == here.state.sequence
        assert here.says(record) == Code.INVALID_EVENT_TRANSITION


# --- abandon ------------------------------------------------------------------------------------------------------------


def abandoned(here: Scene, sequence: int = 1, direction: Direction = Direction.FORWARD) -> PlanAbandonedRecord:
    plan = JournalEntry(Sequence(sequence), plan_record(here.lease, [ONE]))
    record = PlanAbandonedRecord.new(here.lease, plan, operator="Ada", reason="superseded")
    return altered(record, direction=direction)


ABANDON_BREAKS: Final[Breaks] = [
    (Code.INVALID_TEXT, {"reason": "\n"}),
    (Code.FOREIGN_PLAN, {"plan_sequence": Sequence(7)}),
    (Code.UNIT_IN_DOUBT, {}),
]


@cases(ABANDON_BREAKS)
def test_an_abandonment_is_void_by_the_first_rule_that_it_breaks(first: int):
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    record = worst_from(first, ABANDON_BREAKS, abandoned(here))
    assert here.says(record) == ABANDON_BREAKS[first][0]
    assert scene().says(record) == Code.NO_OPEN_PLAN


@pytest.mark.parametrize(
    ("sequence", "direction"), [(2, Direction.FORWARD), (1, Direction.REVERSE), (2**40, Direction.FORWARD)]
)
def test_an_abandonment_names_the_open_plan_exactly(sequence: int, direction: Direction):
    here = scene_with_plan()
    assert here.says(abandoned(here, sequence, direction)) == Code.FOREIGN_PLAN


@pytest.mark.parametrize(
    ("kinds", "allowed"),
    [
        ([], True),
        ([BEGIN], False),
        ([BEGIN, UNKNOWN], False),
        ([BEGIN, ABORTED], True),
        ([BEGIN, COMMITTED], True),
        ([FORMAL], True),
    ],
    ids=str,
)
def test_a_plan_is_abandoned_only_when_no_unit_is_in_doubt(kinds: list[GroupEventKind], allowed: bool):
    here = scene_with_plan()
    for kind in kinds:
        here.write(group_unit(here.lease, kind), here.lease)
    expected = here.state.sequence + 1 if allowed else Code.UNIT_IN_DOUBT
    assert here.says(abandoned(here)) == expected
    assert (here.state.plan is None) == allowed


def test_an_attestation_clears_the_way_for_an_abandonment():
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    assert here.says(abandoned(here)) == Code.UNIT_IN_DOUBT
    here.write(attested(here, ABORTED), here.lease)
    assert here.says(abandoned(here)) == 4


def test_after_an_abandonment_another_plan_can_open_and_the_ledger_is_as_it_was():
    here = scene(applied=[ONE])
    here.write(plan_record(here.lease, [TWO], [ONE]), here.lease)
    assert here.says(abandoned(here, 5)) == 6
    assert here.says(group_record(here.lease, TWO, BEGIN)) == Code.NO_OPEN_PLAN
    assert list(here.state.active) == [str(ONE.id)]
    assert here.says(rollback_plan_record(here.lease, [ONE], [ONE])) == 7
    assert here.says(abandoned(here, 7, Direction.REVERSE)) == 8
    assert here.says(abandoned(here, 7, Direction.REVERSE)) == Code.NO_OPEN_PLAN


# --- loading ------------------------------------------------------------------------------------------------------------


def both_directions(here: Scene) -> ScopeState:
    for record in (backfill_record, reverse_backfill_record):
        here.write(record(here.lease, FILLED, BEGIN), here.lease)
        here.write(record(here.lease, FILLED, COMMITTED), here.lease)
    assert all(isinstance(verdict, Admitted) for verdict in here.verdicts)
    return here.state


def test_an_open_plan_is_loaded_with_its_group_events_and_forward_backfills_only():
    here = scene_with_plan([FILLED])
    here.write(group_record(here.lease, FILLED, BEGIN), here.lease)
    plan = both_directions(here).open_plan()
    assert plan is not None
    assert plan.plan.sequence == 1
    assert [entry.sequence for entry in plan.events] == [2]
    assert [(entry.sequence, entry.record.direction) for entry in plan.backfill_events] == [
        (3, Direction.FORWARD),
        (4, Direction.FORWARD),
    ]
    assert here.state.open_rollback_plan() is None


def test_an_open_rollback_plan_is_loaded_with_its_steps_and_reverse_backfills_only():
    here = scene_with_rollback([FILLED])
    here.write(step_record(here.lease, FILLED, BEGIN), here.lease)
    plan = both_directions(here).open_rollback_plan()
    assert plan is not None
    assert plan.plan.sequence == 5
    assert [entry.sequence for entry in plan.events] == [6]
    assert [(entry.sequence, entry.record.direction) for entry in plan.backfill_events] == [
        (9, Direction.REVERSE),
        (10, Direction.REVERSE),
    ]
    assert here.state.open_plan() is None


def test_nothing_is_loaded_when_no_plan_is_open():
    here = scene(applied=[ONE])
    assert here.state.open_plan() is None
    assert here.state.open_rollback_plan() is None


def test_events_of_an_open_plan_carry_the_fences_of_those_who_wrote_them():
    here = scene_with_plan()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    here.take_over()
    here.write(group_record(here.lease, ONE, BEGIN), here.lease)
    here.take_over()
    plan = here.state.open_plan()
    assert plan is not None
    assert [(entry.sequence, entry.record.fence) for entry in plan.events] == [(2, 1), (3, 2)]
