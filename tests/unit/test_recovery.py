"""Both recovery tables, cell by cell, against the seed's rules stated a second time, as predicates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from journal.identities import Fingerprint
from journal.recovery import (
    BACKFILL,
    GROUP_DISTINCT,
    GROUP_EQUAL,
    BackfillObservation,
    BackfillRelation,
    LastEvent,
    RecoveryDecision,
    SchemaRelation,
    decide_backfill_recovery,
    decide_group_recovery,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind
from tests.factories import print_of

EXECUTE = RecoveryDecision.EXECUTE_NORMALLY
REPAIR = RecoveryDecision.REPAIR_CHECKPOINT
OPERATOR = RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY

BEFORE = GroupEventKind.BEFORE_COMMIT
COMMITTED = GroupEventKind.COMMITTED
UNKNOWN = GroupEventKind.COMMIT_OUTCOME_UNKNOWN
ABORTED = GroupEventKind.DEFINITELY_ABORTED
FORMAL = GroupEventKind.FORMAL_ONLY_ADVANCED
EVENTS: tuple[LastEvent, ...] = (None, *GroupEventKind)

SOURCE, TARGET, NEITHER = print_of("source"), print_of("target"), print_of("neither")
PLAN, FOREIGN_PLAN = print_of("plan"), print_of("foreign plan")
COUNTS = BackfillCounts(matched=5, changed=3, skipped=2, transaction_groups=2)


# --- the rules, as the seed states them ---------------------------------------------------------------------------------


def never_begun(last: LastEvent) -> bool:
    """Nothing of the unit can be in the target: it never began, or provably did not commit."""
    return last is None or last is ABORTED


def in_doubt(last: LastEvent) -> bool:
    """A commit may or may not have happened."""
    return last in (BEFORE, UNKNOWN)


def expected_for_group(
    last: LastEvent, observed: Fingerprint | None, source: Fingerprint, target: Fingerprint
) -> RecoveryDecision:
    if observed is None or observed not in (source, target):
        return OPERATOR
    if source == target:
        # What is seen says nothing about whether a commit happened; only the last event does.
        if never_begun(last):
            return EXECUTE
        return REPAIR if last in (COMMITTED, FORMAL) else OPERATOR
    if observed == source:
        return EXECUTE if never_begun(last) or in_doubt(last) else OPERATOR
    return REPAIR if in_doubt(last) or last is COMMITTED else OPERATOR


def expected_for_backfill(last: LastEvent, observation: BackfillObservation, direction: Direction) -> RecoveryDecision:
    if not observation.available:
        return OPERATOR
    completion = observation.completion
    if last is None:
        return EXECUTE
    if last is ABORTED:
        return EXECUTE if completion is None else OPERATOR
    exact = completion is not None and (completion.plan_fingerprint, completion.direction) == (PLAN, direction)
    return REPAIR if exact and last is not FORMAL else OPERATOR


def observations() -> Iterator[BackfillObservation]:
    """Everything that can be observed of a backfill's postcondition."""
    yield BackfillObservation(available=False)
    yield BackfillObservation(available=True)
    for plan, direction in product((PLAN, FOREIGN_PLAN), Direction):
        for available in (True, False):
            yield BackfillObservation(available, BackfillCompletion(plan, direction, COUNTS))


# --- the tables ---------------------------------------------------------------------------------------------------------


def test_there_are_five_kinds_of_last_event_and_none():
    assert len(EVENTS) == 6
    assert set(EVENTS) == {None, BEFORE, COMMITTED, UNKNOWN, ABORTED, FORMAL}


def test_the_group_tables_are_total():
    distinct = set(SchemaRelation) - {SchemaRelation.BOTH}
    equal = set(SchemaRelation) - {SchemaRelation.SOURCE, SchemaRelation.TARGET}
    assert set(GROUP_DISTINCT) == set(product(EVENTS, distinct))
    assert set(GROUP_EQUAL) == set(product(EVENTS, equal))
    assert (len(GROUP_DISTINCT), len(GROUP_EQUAL)) == (24, 18)


def test_the_backfill_table_is_total():
    assert set(BACKFILL) == set(product(EVENTS, BackfillRelation))
    assert len(BACKFILL) == 24


@pytest.mark.parametrize("observed", [SOURCE, TARGET, NEITHER, None], ids=["source", "target", "neither", "unseen"])
@pytest.mark.parametrize("last", EVENTS)
def test_every_cell_of_a_group_with_distinct_ends_is_the_seeds(last, observed):
    decision = decide_group_recovery(last, observed, source=SOURCE, target=TARGET)
    assert decision is expected_for_group(last, observed, SOURCE, TARGET)


@pytest.mark.parametrize("observed", [SOURCE, NEITHER, None], ids=["both", "neither", "unseen"])
@pytest.mark.parametrize("last", EVENTS)
def test_every_cell_of_a_group_with_equal_ends_is_the_seeds(last, observed):
    decision = decide_group_recovery(last, observed, source=SOURCE, target=SOURCE)
    assert decision is expected_for_group(last, observed, SOURCE, SOURCE)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("observation", list(observations()))
@pytest.mark.parametrize("last", EVENTS)
def test_every_cell_of_a_backfill_is_the_seeds(last, observation, direction):
    decision = decide_backfill_recovery(last, observation, plan=PLAN, direction=direction)
    assert decision is expected_for_backfill(last, observation, direction)


def test_the_tables_decide_as_often_as_the_rules_say():
    def count(table: dict[object, RecoveryDecision]) -> tuple[int, int, int]:
        decisions = list(table.values())
        return decisions.count(EXECUTE), decisions.count(REPAIR), decisions.count(OPERATOR)

    assert count(dict(GROUP_DISTINCT)) == (4, 3, 17)
    assert count(dict(GROUP_EQUAL)) == (2, 2, 14)
    assert count(dict(BACKFILL)) == (4, 3, 17)


# --- what the rules mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", EVENTS)
def test_what_cannot_be_seen_is_for_an_operator(last):
    assert decide_group_recovery(last, None, source=SOURCE, target=TARGET) is OPERATOR
    assert decide_group_recovery(last, None, source=SOURCE, target=SOURCE) is OPERATOR
    unseen = BackfillObservation(available=False)
    assert decide_backfill_recovery(last, unseen, plan=PLAN, direction=Direction.FORWARD) is OPERATOR


@pytest.mark.parametrize("last", [BEFORE, UNKNOWN])
def test_equal_ends_prove_nothing_about_an_unknown_commit(last):
    assert decide_group_recovery(last, SOURCE, source=SOURCE, target=SOURCE) is OPERATOR


@pytest.mark.parametrize("last", [BEFORE, UNKNOWN])
def test_an_incomplete_backfill_that_was_begun_is_never_run_again_by_itself(last):
    incomplete = BackfillObservation(available=True)
    assert decide_backfill_recovery(last, incomplete, plan=PLAN, direction=Direction.FORWARD) is OPERATOR


def test_a_unit_that_reached_its_target_is_never_executed():
    decisions = {decide_group_recovery(last, TARGET, source=SOURCE, target=TARGET) for last in EVENTS}
    assert decisions == {REPAIR, OPERATOR}


def test_a_committed_unit_is_never_executed():
    for observed in (SOURCE, TARGET, NEITHER, None):
        for target in (SOURCE, TARGET):
            assert decide_group_recovery(COMMITTED, observed, source=SOURCE, target=target) is not EXECUTE
    for observation in observations():
        decision = decide_backfill_recovery(COMMITTED, observation, plan=PLAN, direction=Direction.FORWARD)
        assert decision is not EXECUTE
