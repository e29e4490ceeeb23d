"""What folding promises for every log: prefixes, copies, retries, late and doubled deliveries, events that stop it."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings, strategies as st

from journal.admission import Admitted, ScopeState, Void, empty_state, fold, step
from journal.codec import Codec
from journal.errors import Code, IntegrityError, UnknownEventError
from journal.events import Event, EventType
from tests.factories import SCOPE, long_log
from tests.stories import ACTIONS, Story, plots, tell
from tests.strategies import DETERMINISTIC

THOROUGH: Final = settings(DETERMINISTIC, max_examples=80)
CODEC: Final = Codec()


def folded(data: list[bytes]) -> ScopeState:
    return fold(empty_state(SCOPE), (CODEC.read(position, item) for position, item in enumerate(data)))


def meaning(state: ScopeState) -> bytes:
    """The state without where it was read and how many void events were on the way."""
    copy = state.copy()
    copy.position = copy.voids = 0
    return copy.canonical()


def test_stories_reach_every_event_type_and_many_reasons():
    generator = random.Random(1)
    types: set[EventType | None] = set()
    reasons: set[Code] = set()
    for _ in range(60):
        story = tell([(generator.randrange(ACTIONS), generator.randrange(1000)) for _ in range(60)])
        for event, verdict in zip(story.read(), story.verdicts, strict=True):
            if isinstance(verdict, Admitted):
                assert isinstance(event, Event)
                types.add(event.type)
            else:
                reasons.add(verdict.reason)
    assert types == set(EventType)
    assert len(reasons) > 20


@THOROUGH
@given(plots, st.integers(0, 60))
def test_folding_a_prefix_and_then_the_rest_is_folding_all(plot: list[tuple[int, int]], cut: int):
    story = tell(plot)
    events = story.read()
    whole = fold(empty_state(SCOPE), events)
    parts = fold(fold(empty_state(SCOPE), story.read()[:cut]), story.read()[cut:])
    assert parts.canonical() == whole.canonical() == story.state.canonical()


@THOROUGH
@given(plots, st.integers(0, 60))
def test_a_copy_and_its_original_go_their_own_ways(plot: list[tuple[int, int]], cut: int):
    story = tell(plot)
    original = fold(empty_state(SCOPE), story.read()[:cut])
    copy, before = original.copy(), original.canonical()
    assert copy.canonical() == before
    fold(original, story.read()[cut:])
    assert copy.canonical() == before
    fold(copy, story.read()[cut:])
    assert copy.canonical() == original.canonical()


@THOROUGH
@given(plots)
def test_every_admitted_event_has_a_record_and_every_state_its_views(plot: list[tuple[int, int]]):
    story = tell(plot)
    state = empty_state(SCOPE)
    for event, verdict in zip(story.read(), story.verdicts, strict=True):
        assert step(state, event) == verdict
        if isinstance(verdict, Admitted):
            assert isinstance(event, Event)
            assert event.record == event.record
        assert len(state.active_ledger()) == len(state.active)
        loaded = [state.open_plan(), state.open_rollback_plan()]
        assert (loaded == [None, None]) == (state.plan is None)


@THOROUGH
@given(plots)
def test_sequences_are_dense_and_fences_of_leases_strictly_grow(plot: list[tuple[int, int]]):
    story = tell(plot)
    admitted = [
        (event, verdict.sequence)
        for event, verdict in zip(story.read(), story.verdicts, strict=True)
        if isinstance(verdict, Admitted) and isinstance(event, Event) and event.type is not EventType.SCOPE_AWAITED
    ]
    first_seen: list[int] = []
    for _, sequence in admitted:
        if sequence is not None and sequence not in first_seen:
            first_seen.append(sequence)
    assert first_seen == list(range(1, story.state.sequence + 1))
    fences = [event.fence for event, _ in admitted if event.type is EventType.LEASE_ACQUIRED]
    assert fences == sorted(set(fences))
    assert all(left.fence <= right.fence for (left, _), (right, _) in pairwise(admitted))
    for (left, _), (right, _) in pairwise(admitted):
        assert right.parent == left.hash


@THOROUGH
@given(plots)
def test_void_events_may_be_left_out(plot: list[tuple[int, int]]):
    story = tell(plot)
    counting = [data for data, verdict in zip(story.data, story.verdicts, strict=True) if isinstance(verdict, Admitted)]
    assert meaning(folded(counting)) == meaning(story.state)


@THOROUGH
@given(plots, st.randoms(use_true_random=False))
def test_copies_of_admitted_events_change_nothing_wherever_they_arrive(
    plot: list[tuple[int, int]], chance: random.Random
):
    story = tell(plot)
    admitted = [data for data, verdict in zip(story.data, story.verdicts, strict=True) if isinstance(verdict, Admitted)]
    noisy = story.data[:1]
    for data in story.data[1:]:
        noisy += chance.choices(admitted, k=chance.randrange(4))
        noisy.append(data)
    noisy += chance.sample(admitted, len(admitted))
    state = folded(noisy)
    assert state.carried() == story.state.carried()
    assert state.admitted == story.state.admitted


@THOROUGH
@given(plots, st.randoms(use_true_random=False))
def test_late_copies_of_any_event_change_nothing(plot: list[tuple[int, int]], chance: random.Random):
    story = tell(plot)
    noisy: list[bytes] = []
    for index, data in enumerate(story.data):
        noisy.append(data)
        noisy += chance.choices(story.data[: index + 1], k=chance.randrange(4))
    assert meaning(folded(noisy)) == meaning(story.state)


@THOROUGH
@given(plots, st.integers(0, 60), st.booleans())
def test_an_event_that_stops_the_fold_leaves_the_state_as_it_was(plot: list[tuple[int, int]], cut: int, known: bool):
    story = Story()
    for action, number in plot[:cut]:
        story.act(action, number)
    if story.state.moved is not None:
        story.carry(2)
    if story.state.lease_id is None:
        story.begin_lease(1)
    lease = story.state.lease
    assert lease is not None
    good = story.encode(story.careless(0), lease_id=lease.lease_id, fence=lease.fence)
    bad = good + b"\0" if known else good[:2] + b"\xee" * 8 + good[10:]
    before = story.state.canonical()
    with pytest.raises(IntegrityError if known else UnknownEventError):
        step(story.state, CODEC.read(len(story.data), bad))
    assert story.state.canonical() == before


def test_positions_may_have_gaps():
    data = long_log(200).data
    dense = folded(data)
    sparse = fold(empty_state(SCOPE), (CODEC.read(3 + 7 * index, item) for index, item in enumerate(data)))
    assert sparse.position == 3 + 7 * (len(data) - 1)
    assert meaning(sparse) == meaning(dense)


def test_a_pipelined_chain_that_arrives_backwards_counts_in_the_order_of_its_parents():
    data = long_log(30).data
    backwards = [data[0], *reversed(data[1:])]
    assert folded(backwards).admitted == 2
    often = [data[0], *list(reversed(data[1:])) * (len(data) - 1)]
    assert meaning(folded(often)) == meaning(folded(data))


def test_two_logs_of_one_scope_do_not_mix():
    left, right = tell([(0, 0)] * 20), Story()
    right.incarnation = type(right.incarnation)(b"r" * 16)
    other = [data.replace(bytes(left.incarnation), b"r" * 16) for data in left.data]
    state = folded([*left.data, *other])
    assert meaning(state) == meaning(left.state)
    assert state.voids == len(other)


def test_the_state_stays_small_while_the_history_grows():
    small, large = (len(long_log(events, plan_size=5).state.canonical()) for events in (40, 2_000))
    assert large < small * 1.2


def test_void_verdicts_are_the_reasons_only():
    verdicts = [
        verdict for verdict in tell([(14, number) for number in range(20)]).verdicts if verdict != Admitted(None)
    ]
    assert verdicts == [Void(Code.UNDECODABLE)] * 20
