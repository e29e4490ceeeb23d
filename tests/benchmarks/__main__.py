"""Run benchmarks, print their table, write `build/bench.json`. Ends with 0 whatever the figures are."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version

from tests.benchmarks import appends, cluster, migrations, replay, startup
from tests.benchmarks.figures import BUILD, Figure, missed, table, write
from tests.benchmarks.workloads import file_system

Benchmark = Callable[..., Awaitable[list[Figure]]]

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.__name__: benchmark
    for benchmark in (
        replay.replay_vs_decode,
        replay.replay_vs_eventsourcing,
        appends.append_vs_commit,
        appends.append_vs_eventsourcing,
        appends.append_64_vs_1,
        appends.pipelined_vs_eventsourcing,
        startup.import_time,
        startup.status_time,
        migrations.migrations_1000,
        migrations.noop_1000,
        migrations.migrations_4000_vs_1000,
        migrations.backfill_vs_bare,
        migrations.observe_1000,
        cluster.kafka_verdict_vs_send,
        cluster.kafka3_verdict_vs_send,
        cluster.kafka_pipelined_vs_send,
        cluster.kafka_replay_vs_read,
        cluster.lease_vs_calls,
        cluster.kafka_1000_scopes,
        replay.replay_million,
    )
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(BENCHMARKS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and events, no million")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return arguments


async def _run(benchmark: Benchmark, *, quick: bool) -> list[Figure]:
    return await benchmark(quick=quick)


def main() -> None:
    arguments = _arguments()
    BUILD.mkdir(exist_ok=True)
    print(
        f"python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, fastavro {version('fastavro')}, "
        f"eventsourcing {version('eventsourcing')}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"files on {file_system(BUILD)}"
        + (" (quick: few rounds, small logs; not for judging)" if arguments.quick else "")
    )
    figures: list[Figure] = []
    for name in arguments.names or BENCHMARKS:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        figures += asyncio.run(_run(BENCHMARKS[name], quick=arguments.quick))
    _report(figures)


def _report(figures: list[Figure]) -> None:
    print(f"\n{table(figures)}\n\nThe spread is that of the rounds' ratios, of their values where there is no ratio.")
    for figure in figures:
        reference = "" if figure.reference is None else f"reference: {figure.reference}"
        said = "; ".join(part for part in (reference, figure.note) if part)
        if said:
            print(f"  {figure.name}: {said}")
    failing = [missed(figure) for figure in figures if figure.holds is False]
    print("\nGoals that do not hold:" if failing else "\nEvery goal that was measured holds.")
    for sentence in failing:
        print(f"  {sentence}")
    print(f"\nwritten to {write(figures).relative_to(BUILD.parent)}")


if __name__ == "__main__":
    main()
