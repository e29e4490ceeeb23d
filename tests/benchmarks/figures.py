"""A measured figure: rounds of product and reference side by side, and what is said about them."""

from __future__ import annotations

import gc
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

BUILD = Path(__file__).parents[2] / "build"

Side = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of the ratio, or of the value where a figure has no ratio goal. `floor` is what must hold at least."""

    relation: str
    bound: float
    of: str = "ratio"
    floor: float | None = None

    def holds(self, number: float) -> bool:
        return self._within(number, self.bound)

    def holds_floor(self, number: float) -> bool:
        return self.floor is not None and self._within(number, self.floor)

    def _within(self, number: float, bound: float) -> bool:
        return number >= bound if self.relation == ">=" else number <= bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


@dataclass(slots=True)
class Figure:
    """One line of the table. `values` and `reference_values` are those of the rounds, pair by pair."""

    name: str
    unit: str
    values: Sequence[float]
    reference: str | None = None
    reference_values: Sequence[float] = field(default_factory=list)
    goal: Goal | None = None
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.values)

    @property
    def reference_value(self) -> float | None:
        return median(self.reference_values) if self.reference_values else None

    @property
    def ratio(self) -> float | None:
        """Product median over reference median."""
        return None if self.reference_value is None else self.value / self.reference_value

    @property
    def judged(self) -> float:
        """The number that the goal is about."""
        return self.value if self.goal is not None and self.goal.of == "value" else self.ratio or self.value

    @property
    def holds(self) -> bool | None:
        return None if self.goal is None else self.goal.holds(self.judged)

    @property
    def spread(self) -> tuple[float, float]:
        """Least and greatest ratio of a round; of the value where there is no reference."""
        rounds = self.values
        if self.reference_values:
            pairs = zip(self.values, self.reference_values, strict=True)
            rounds = [value / reference for value, reference in pairs]
        return min(rounds), max(rounds)

    def as_json(self) -> dict[str, Any]:
        """The object that `build/bench.json` holds of it."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "reference": self.reference,
            "reference_value": self.reference_value,
            "ratio": self.ratio,
            "goal": None if self.goal is None else str(self.goal),
            "holds": self.holds,
        }


async def alternate(rounds: int, *sides: Side) -> list[list[float]]:
    """Run the sides in turn (A B A B ...), one round to warm up and then `rounds`; the figures of each side."""
    measured: list[list[float]] = [[] for _ in sides]
    for number in range(rounds + 1):
        for side, figures in zip(sides, measured, strict=True):
            gc.collect()
            figure = await side()
            if number:
                figures.append(figure)
    return measured


def table(figures: Sequence[Figure]) -> str:
    """The figures as text."""
    head = ("name", "median", "reference", "unit", "ratio", "spread", "goal", "holds")
    rows = [head, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def _row(figure: Figure) -> tuple[str, ...]:
    low, high = figure.spread
    goal = "" if figure.goal is None else f"{figure.goal}{'' if figure.goal.of == 'ratio' else f' {figure.unit}'}"
    return (
        figure.name,
        _number(figure.value),
        _number(figure.reference_value),
        figure.unit,
        _number(figure.ratio),
        f"{_number(low)} to {_number(high)}",
        goal,
        {None: "", True: "yes", False: "NO"}[figure.holds],
    )


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def missed(figure: Figure) -> str:
    """One sentence on a goal that does not hold."""
    assert figure.goal is not None
    of = "ratio" if figure.goal.of == "ratio" else figure.unit
    sentence = f"{figure.name}: {_number(figure.judged)} ({of}), wanted {figure.goal}"
    if figure.goal.floor is None:
        return sentence
    floor = f"{figure.goal.relation} {figure.goal.floor:g}"
    return f"{sentence}; the floor {floor} {'holds' if figure.goal.holds_floor(figure.judged) else 'does NOT hold'}"


def write(figures: Sequence[Figure]) -> Path:
    """Write `build/bench.json` and return where it is."""
    BUILD.mkdir(exist_ok=True)
    path = BUILD / "bench.json"
    path.write_text(json.dumps([figure.as_json() for figure in figures], indent=2) + "\n", "utf-8")
    return path
