"""`python -m tests.model`: explore the deeper bounds, with progress. Exits with 1 when a contradiction was found.

`--minute` explores the bounds of the tests, `--most N` stops each search after N states, `--of` explores the journal's
protocol or the executor's alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from tests.model import bounds, executor_bounds
from tests.model.executor_protocol import ExecutorModel
from tests.model.executor_world import ExecutorWorld
from tests.model.protocol import Model
from tests.model.search import Progress, Result, explore
from tests.model.world import World


def main(arguments: list[str]) -> int:
    """Explore bound after bound; says what was found, and the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--minute", action="store_true", help="only the bound that the tests explore")
    parser.add_argument("--most", type=int, metavar="N", help="stop each search after N states")
    parser.add_argument("--of", choices=("journal", "executor"), help="only one of the two protocols")
    options = parser.parse_args(arguments)
    began, states = time.perf_counter(), 0
    for model in _models(options.of, minute=options.minute):
        print(f"{model.bound.name}:", flush=True)
        result = _explore(model, options.most)
        print(f"  {result}", flush=True)
        if result.flaw is not None:
            return 1
        states += result.progress.states
    print(f"{states:,} states in {time.perf_counter() - began:.0f} s: no contradiction")
    return 0


def _models(protocol: str | None, *, minute: bool) -> Iterator[Model | ExecutorModel]:
    if protocol != "executor":
        for bound in bounds.MINUTE if minute else bounds.DEEP:
            yield Model(bound, World())
    if protocol != "journal":
        for bound in executor_bounds.TESTED if minute else executor_bounds.DEEP:
            yield ExecutorModel(bound, ExecutorWorld(bound.migration, rolls_back=bound.rolls_back))


def _explore(model: Model | ExecutorModel, most: int | None) -> Result:
    told = time.perf_counter()

    def report(progress: Progress) -> None:
        nonlocal told
        if time.perf_counter() - told >= 5:
            told = time.perf_counter()
            print(f"  {progress}", flush=True)

    return explore(model, report, most=most)


sys.exit(main(sys.argv[1:]))
