"""How far the model is explored: in a minute by the tests, further by `python -m tests.model`.

All states of a bound without `steps` are explored, whatever their number of steps. A careless writer may do everything
that a careful one may; careful ones have a bound of their own because there are fewer of their states.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.model.protocol import Bound, Habits

CAREFUL: Final = Habits()
CARELESS: Final = Habits(stubborn=True, floorless=True)


def _twice(habits: Habits) -> Habits:
    return replace(habits, grants=2, announcements=2)


MINUTE: Final = (
    Bound("two careless writers, each takes one fence, anything may arrive twice", (CARELESS, CARELESS), doubled=6),
    Bound(
        "the same with leases that are given back, one event arrives twice",
        (replace(CARELESS, releases=True),) * 2,
        doubled=1,
    ),
    Bound("two careless writers, one takes a fence twice", (_twice(CARELESS), CARELESS), doubled=0),
    Bound(
        "two careless writers take fences twice, one event arrives twice, runs of 13 steps",
        (_twice(CARELESS),) * 2,
        doubled=1,
        steps=13,
    ),
)

DEEP: Final = (
    *MINUTE[:2],
    Bound(
        "two careless writers, one takes a fence twice, one event arrives twice",
        (_twice(CARELESS), CARELESS),
        doubled=1,
    ),
    Bound("two careful writers take fences twice", (_twice(CAREFUL),) * 2, doubled=0),
    Bound(
        "two careless writers take fences twice and give leases back, two events arrive twice, runs of 15 steps",
        (replace(_twice(CARELESS), releases=True),) * 2,
        doubled=2,
        steps=15,
    ),
)
