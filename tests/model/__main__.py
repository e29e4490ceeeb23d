"""`python -m tests.model`: explore the deeper bound, with progress. Exits with 1 when a contradiction was found.

`--minute` explores the bound of the tests, `--most N` stops each search after N states.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.model.bounds import DEEP, MINUTE
from tests.model.protocol import Bound, Model
from tests.model.search import Progress, Result, explore
from tests.model.world import World


def main(arguments: list[str]) -> int:
    """Explore bound after bound; says what was found, and the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--minute", action="store_true", help="only the bound that the tests explore")
    parser.add_argument("--most", type=int, metavar="N", help="stop each search after N states")
    options = parser.parse_args(arguments)
    began, states = time.perf_counter(), 0
    for bound in MINUTE if options.minute else DEEP:
        print(f"{bound.name}:", flush=True)
        result = _explore(bound, options.most)
        print(f"  {result}", flush=True)
        if result.flaw is not None:
            return 1
        states += result.progress.states
    print(f"{states:,} states in {time.perf_counter() - began:.0f} s: no contradiction")
    return 0


def _explore(bound: Bound, most: int | None) -> Result:
    told = time.perf_counter()

    def report(progress: Progress) -> None:
        nonlocal told
        if time.perf_counter() - told >= 5:
            told = time.perf_counter()
            print(f"  {progress}", flush=True)

    return explore(Model(bound, World()), report, most=most)


sys.exit(main(sys.argv[1:]))
