"""Reading: the fold with hash check and admission, from memory and from the embedded log."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import islice, starmap
from pathlib import Path

from fastavro import parse_schema, schemaless_reader

from journal.admission import ScopeState, empty_state, fold
from journal.codec import Codec, published_schemas
from journal.log.sqlite import SQLiteLog
from tests.benchmarks.figures import BUILD, Figure, Goal, alternate
from tests.benchmarks.references import Peer
from tests.benchmarks.workloads import groups_log, mix_of, plans_log, workplace, write_log
from tests.factories import SCOPE


async def replay_vs_decode(*, quick: bool) -> list[Figure]:
    """The fold over bytes in memory against fastavro decoding the same bytes."""
    return [
        await _against_decoding("replay_vs_decode", plans_log(), quick=quick, goal=Goal(">=", 1.2, floor=0.6)),
        await _against_decoding("replay_vs_decode_groups", groups_log(), quick=quick),
    ]


async def _against_decoding(name: str, log: Iterator[bytes], *, quick: bool, goal: Goal | None = None) -> Figure:
    data = list(islice(log, 6_000 if quick else 30_000))
    # The library is spared the lookup of the schema: each body lies ready beside its own.
    schemas = {schema.prefix: parse_schema(schema.json) for schema in published_schemas()}
    bodies = [(event[10:], schemas[event[:10]]) for event in data]
    codec = Codec()

    async def product() -> float:
        start = time.perf_counter()
        state = fold(empty_state(SCOPE), map(codec.read, range(len(data)), data))
        elapsed = time.perf_counter() - start
        _check(state, len(data))
        return len(data) / elapsed

    async def reference() -> float:
        start = time.perf_counter()
        for body, schema in bodies:
            schemaless_reader(io.BytesIO(body), schema, None)
        return len(bodies) / (time.perf_counter() - start)

    values, references = await alternate(5 if quick else 11, product, reference)
    size = sum(map(len, data)) / len(data)
    note = f"{len(data):,} events of {size:.0f} bytes: {mix_of(data)}"
    return Figure(name, "events/s", values, "fastavro.schemaless_reader", references, goal, note)


def _check(state: ScopeState, events: int) -> None:
    if state.admitted != events:
        raise AssertionError(f"{state.admitted} of {events} events were admitted: the workload is faulty")


async def replay_vs_eventsourcing(*, quick: bool) -> list[Figure]:
    """The fold from the SQLite file against the library's reconstruction of an aggregate from its SQLite file."""
    events = 10_000 if quick else 100_000
    folder = workplace("replay")
    await write_log(folder / "journal.db", islice(plans_log(), events))
    peer = Peer(folder / "peer.db")
    peer.fill(events - 1)  # its creation is the first

    async def product() -> float:
        start = time.perf_counter()
        state = await replay_file(folder / "journal.db")
        elapsed = time.perf_counter() - start
        _check(state, events)
        return events / elapsed

    async def reference() -> float:
        start = time.perf_counter()
        aggregate = peer.reconstruct()
        elapsed = time.perf_counter() - start
        if aggregate.version != events:
            raise AssertionError(f"the library has {aggregate.version} of {events} events")
        return events / elapsed

    values, references = await alternate(3 if quick else 5, product, reference)
    peer.close()
    goal = Goal(">=", 5, floor=2.5)
    note = f"{events:,} events"
    name = "replay_vs_eventsourcing"
    return [Figure(name, "events/s", values, "eventsourcing repository.get", references, goal, note)]


async def replay_file(path: Path) -> ScopeState:
    """Read and fold a whole scope from a journal file."""
    state, read = empty_state(SCOPE), Codec().read
    log = SQLiteLog(path, read_only=True)
    async with aclosing(log.read(SCOPE, after=None)) as batches:
        async for batch in batches:
            fold(state, starmap(read, batch))
    await log.close()
    return state


async def replay_million(*, quick: bool) -> list[Figure]:
    """Speed and memory at a million events, each round in a process of its own. Not in a quick run."""
    if quick:
        return []
    events = 1_000_000
    path = workplace("million") / "journal.db"
    await write_log(path, islice(plans_log(), events))
    rounds = [_replay_in_a_process(path, events) for _ in range(3)]
    path.unlink()
    speeds, peaks, idle = zip(*rounds, strict=True)
    return [
        Figure("replay_million", "events/s", speeds, note=f"{events:,} events from the file"),
        Figure("replay_million_memory", "MB", peaks, "the process before it reads", idle, note="peak resident set"),
    ]


def _replay_in_a_process(path: Path, events: int) -> Sequence[float]:
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.million", str(path)],
        check=True,
        capture_output=True,
        cwd=BUILD.parent,
    )
    result = json.loads(run.stdout)
    if result["admitted"] != events:
        raise AssertionError(f"{result['admitted']} of {events} events were admitted")
    return result["events_per_second"], result["peak_megabytes"], result["idle_megabytes"]
