"""Breadth-first search through a model, in little memory.

A state that was seen is remembered by eight bytes of its hash: of ten million states, two are taken for one with a
probability of three in a million. How a state was reached is kept as (state before, which step), six bytes; a trace is
found again by going through those steps from the start.
"""

from __future__ import annotations

import marshal
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from blake3 import blake3

from tests.model.protocol import Model, State, Step


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is. `depth` is the number of steps of the runs explored."""

    states: int
    transitions: int
    depth: int
    waiting: int
    seconds: float

    def __str__(self) -> str:
        rate = self.states / max(self.seconds, 0.001)
        return (
            f"{self.states:,} states, {self.transitions:,} steps, depth {self.depth}, {self.waiting:,} waiting, "
            f"{rate:,.0f} states/s, {self.seconds:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What a search found: a flaw and the steps that lead to it, or neither. `complete`: no run is longer."""

    progress: Progress
    complete: bool
    flaw: str | None = None
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.flaw is None:
            return f"{self.progress}: no contradiction{'' if self.complete else ' up to here'}"
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.progress}: {self.flaw}\n{steps}"


def explore(model: Model, report: Callable[[Progress], None] | None = None, *, most: int | None = None) -> Result:
    """Go through everything up to the model's bound, or until a contradiction, or until `most` states were seen."""
    return _Search(model, report, most).run()


class _Search:
    def __init__(self, model: Model, report: Callable[[Progress], None] | None, most: int | None) -> None:
        self.model = model
        self.report = report
        self.most = most
        self.seen: set[int] = set()
        self.before = array("L")
        self.ordinal = array("H")
        self.transitions = 0
        self.depth = 0
        self.waiting = 0
        self.began = time.perf_counter()

    def run(self) -> Result:
        frontier: list[tuple[int, State]] = []
        self._enter(frontier, self.model.start(), 0, 0)
        while frontier and self.depth != self.model.bound.steps:
            reached: list[tuple[int, State]] = []
            for done, (index, state) in enumerate(frontier):
                if done % 20_000 == 0 and self.report is not None:
                    self.waiting = len(frontier) - done + len(reached)
                    self.report(self._progress())
                for ordinal, step in enumerate(self.model.steps(state)):
                    self.transitions += 1
                    if step.flaw is not None:
                        return self._contradiction(index, step)
                    self._enter(reached, step.state, index, ordinal)
            self.depth += 1
            self.waiting = len(reached)
            frontier = reached
            if self.most is not None and len(self.seen) >= self.most:
                break
        return Result(self._progress(), complete=not frontier)

    def _enter(self, reached: list[tuple[int, State]], state: State, before: int, ordinal: int) -> None:
        # Version 2 of marshal writes equal values as equal bytes: it knows no references to objects it saw.
        key = int.from_bytes(blake3(marshal.dumps(_plain(state), 2)).digest(length=8), "big")
        if key not in self.seen:
            self.seen.add(key)
            reached.append((len(self.before), state))
            self.before.append(before)
            self.ordinal.append(ordinal)

    def _progress(self) -> Progress:
        seconds = time.perf_counter() - self.began
        return Progress(len(self.seen), self.transitions, self.depth, self.waiting, seconds)

    def _contradiction(self, index: int, last: Step) -> Result:
        ordinals = []
        while index:
            ordinals.append(self.ordinal[index])
            index = self.before[index]
        state, trace = self.model.start(), []
        for ordinal in reversed(ordinals):
            step = list(self.model.steps(state))[ordinal]
            trace.append(self.model.describe(step.move))
            state = step.state
        trace.append(self.model.describe(last.move))
        return Result(self._progress(), complete=False, flaw=last.flaw, trace=trace)


def _plain(state: State) -> tuple[object, ...]:
    *rest, ann, bob = state
    return (*rest, *ann, *bob)
