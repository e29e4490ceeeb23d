"""The protocol, in every interleaving: see `tests.model` for what may happen there and what must hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from journal.admission import Void
from journal.errors import Code
from journal.identities import HolderId, Scope
from journal.ports import Outgoing
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, plan_record
from tests.faults import FaultyLog
from tests.model.bounds import CAREFUL, CARELESS, MINUTE
from tests.model.protocol import END, Bound, Model, State, Writer
from tests.model.search import explore
from tests.model.variants import RULES, without
from tests.model.world import HOLDERS, World

ONE_FENCE_EACH = Bound("one fence each", (CAREFUL, CAREFUL), doubled=1)
CARELESS_ONCE = Bound("careless, one fence each", (CARELESS, CARELESS), doubled=1)
GIVEN_BACK = Bound("leases are given back", (replace(CARELESS, releases=True),) * 2, doubled=1)


# --- the real rules ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", MINUTE, ids=lambda bound: bound.name)
def test_no_writer_is_told_what_the_log_contradicts_and_nothing_counts_twice(
    bound: Bound, record_property: Callable[[str, object], None]
) -> None:
    world = World()

    result = explore(Model(bound, world))

    print(result)
    record_property("states", result.progress.states)
    record_property("steps", result.progress.transitions)
    assert result.flaw is None, str(result)
    assert result.complete == (bound.steps is None)
    told = {verdict.reason for verdict in world.verdicts if isinstance(verdict, Void)}
    assert {Code.STALE_PARENT, Code.STALE_FENCE} <= told, "the situations that the rules are for came up"
    if bound.writers[0].floorless:
        assert Code.FENCE_NOT_MONOTONIC in told


# --- the checker itself: it finds what is wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "bound", "flaw"),
    [
        ("parent", ONE_FENCE_EACH, "is told that it is void"),
        ("parent", replace(ONE_FENCE_EACH, in_flight=1), "is told that it is void"),
        ("lease fence", ONE_FENCE_EACH, "whose fence 2 is not above 2"),
        ("lease fence", CARELESS_ONCE, "whose fence 1 is not above 1"),
        ("fence", ONE_FENCE_EACH, "record 1 (fence 2) with fence 2 counts after fence 3"),
        ("fence", CARELESS_ONCE, "record 1 (fence 2) with fence 2 counts after fence 3"),
        ("lease id", GIVEN_BACK, "counts under a lease that is over"),
        ("settling: a stale parent is not final", ONE_FENCE_EACH, "counts, and its writer is told that it is void"),
        ("settling: the parent may come", ONE_FENCE_EACH, "counts, and its writer is told that it is void"),
        ("settling: the first copy that counts", ONE_FENCE_EACH, "counts, and its writer is told that it is void"),
    ],
)
def test_without_any_one_rule_a_counter_example_is_found(rule: str, bound: Bound, flaw: str) -> None:
    result = explore(Model(bound, World(without(rule))))

    print(result)
    assert result.flaw is not None
    assert flaw in result.flaw
    assert len(result.trace) == result.progress.depth + 1, "it is a shortest one"


def test_every_rule_that_can_be_left_out_is_left_out_by_a_test() -> None:
    (mark,) = test_without_any_one_rule_a_counter_example_is_found.pytestmark

    assert {rule for rule, *_ in mark.args[1]} == set(RULES)


def test_a_variant_differs_from_admission_in_the_rule_that_it_lacks_alone() -> None:
    model, variant = Model(ONE_FENCE_EACH, World()), Model(ONE_FENCE_EACH, World(without("fence")))

    first = [[step.move for step in candidate.steps(candidate.start())] for candidate in (model, variant)]

    assert first[0] == first[1]


# --- the checker itself: it leaves nothing out ------------------------------------------------------------------------


class _Everything(Model):
    """Takes in void copies that nobody waits for, has everybody read them, and lets either writer move first."""

    def _waits(self, writer: Writer, event: int) -> bool:
        return True

    def _untouched(self, state: State) -> bool:
        return False


def _outcomes(model: Model) -> tuple[set[str], int]:
    """Every log, everything that is told beside the log as it is then, readable; and the number of states."""
    world, seen, waiting, outcomes = model.world, {model.start()}, [model.start()], set()
    while waiting:
        for move, state, _ in model.steps(waiting.pop()):
            log = ", ".join(map(world.name, world.counted[state[END]]))
            outcomes.add(log)
            if move.verb == "read":
                outcomes |= {f"{log}: {world.name(event)} is {world.told(answer)}" for event, answer in move.told}
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return outcomes, len(seen)


def _mirrored(outcome: str) -> str:
    ann, bob = HOLDERS
    return re.sub(f"{ann}|{bob}", lambda match: bob if match[0] == ann else ann, outcome)


@pytest.mark.parametrize(
    "bound",
    [
        Bound("alike", (CAREFUL, CAREFUL), doubled=0),
        Bound("twice", (replace(CAREFUL, records=1),) * 2, doubled=1),
        Bound("not alike", (replace(CARELESS, records=1), CAREFUL), doubled=0),
    ],
    ids=lambda bound: bound.name,
)
def test_what_the_model_leaves_out_would_add_no_log_and_nothing_that_is_told(bound: Bound) -> None:
    outcomes, states = _outcomes(Model(bound, World()))
    all_outcomes, all_states = _outcomes(_Everything(bound, World()))

    if bound.writers[0] == bound.writers[1]:
        outcomes |= set(map(_mirrored, outcomes))
    assert outcomes == all_outcomes
    assert states < all_states


# --- the same, in the product -----------------------------------------------------------------------------------------


async def test_a_writer_whose_append_is_doubled_by_the_log_is_told_that_it_counts(open_journal: OpenJournal) -> None:
    class Doubling(FaultyLog):
        async def append(self, scope: Scope, events: Sequence[Outgoing]) -> None:
            await super().append(scope, [event for event in events for _ in range(2)])

    journal = open_journal(wrap_log=Doubling)
    await journal.create(SCOPE)
    lease = await journal.acquire(SCOPE, HolderId("ann"))

    entry = await journal.begin_plan(lease, plan_record(lease, chain_of(2)))

    assert entry.sequence == 1
    assert (await journal.state(SCOPE)).sequence == 1
