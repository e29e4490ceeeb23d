"""Carrying a scope, in every interleaving: see `tests.model.carrying` for what may happen there and what must hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from journal import rules
from journal.events import Event, EventType
from journal.rules import EFFECTS
from journal.state import ScopeState
from tests.model.carrying import Bound, Model, explore
from tests.model.variants import without

THERE = Bound("there")
BACK = Bound("back", comer=1, next=1, back=True)


@pytest.mark.parametrize("bound", [THERE, Bound("stubborn", stubborn=True), BACK], ids=lambda bound: bound.name)
def test_a_history_does_not_fork_when_its_scope_is_carried(
    bound: Bound, record_property: Callable[[str, object], None]
) -> None:
    result = explore(Model(bound))

    print(result)
    record_property("states", result.states)
    assert result.flaw is None, str(result)
    assert result.arrived, "the destination was lived in"


# --- the checker itself: it finds what is wrong -----------------------------------------------------------------------


def _awaits_and_is_lived_in(state: ScopeState, event: Event, _: int) -> None:
    (place,) = event.body
    state.places = (*state.places, place)


def _stays(state: ScopeState, event: Event, sequence: int) -> None:
    EFFECTS_BEFORE[EventType.SCOPE_MOVED](state, event, sequence)
    state.away = False


def _arrives_anywhere(state: ScopeState, event: Event, sequence: int) -> None:
    EFFECTS_BEFORE[EventType.SCOPE_ARRIVED](state, event, sequence)
    state.away = False


EFFECTS_BEFORE = dict(EFFECTS)


@pytest.mark.parametrize(
    ("type", "effect", "flaw"),
    [
        (EventType.SCOPE_AWAITED, _awaits_and_is_lived_in, "lived in at once"),
        (EventType.SCOPE_MOVED, _stays, "lived in at once"),
        (EventType.SCOPE_ARRIVED, _arrives_anywhere, "lived in at once"),
    ],
)
def test_without_what_an_event_says_of_the_log_a_fork_is_found(
    type: EventType,
    effect: Callable[[ScopeState, Event, int], None],
    flaw: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(EFFECTS, type, effect)
    result = explore(Model(THERE))

    print(result)
    assert result.flaw is not None
    assert flaw in result.flaw


def test_without_the_rule_that_a_move_ends_everything_the_last_writer_counts_behind_it() -> None:
    result = explore(Model(THERE, without("behind a move")))

    print(result)
    assert result.flaw == "something counts in the log that the scope has left"


def test_without_the_rule_that_a_move_ends_leases_a_late_comer_counts_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(rules.RULES, EventType.LEASE_ACQUIRED, lambda _state, _event: rules.NO_SEQUENCE)
    result = explore(Model(Bound("stubborn", stubborn=True)))

    print(result)
    assert result.flaw == "something counts in the log that the scope has left"
