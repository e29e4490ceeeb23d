"""Writing on the embedded log: one event at a time, by many callers, and pipelined."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import chain

from tests.benchmarks.figures import Figure, Goal, alternate
from tests.benchmarks.references import BareCommits, Peer, ThreadedCommits
from tests.benchmarks.workloads import Scene, Unit, scene, workplace

BATCH = 100
CALLERS = 64
UNITS_A_CALLER = 8


async def append_vs_commit(*, quick: bool) -> list[Figure]:
    """`Journal.record`, one at a time, against committing the very same bytes with nothing around it."""
    folder = workplace("append_vs_commit")
    threaded, bare = ThreadedCommits(folder / "threaded.db"), BareCommits(folder / "bare.db")
    written: list[bytes] = []
    async with scene(folder, 60) as place:

        async def product() -> float:
            records = [make() for unit in await place.open_plan() for make in unit]
            start = time.perf_counter()
            for record in records:
                await place.journal.record(place.lease, record)
            elapsed = time.perf_counter() - start
            written[:] = await place.newest(len(records))
            return _milliseconds(elapsed, len(records))

        async def through_a_thread() -> float:
            start = time.perf_counter()
            for data in written:
                await threaded.commit(data)
            return _milliseconds(time.perf_counter() - start, len(written))

        async def in_this_thread() -> float:
            start = time.perf_counter()
            for data in written:
                bare.commit(data)
            return _milliseconds(time.perf_counter() - start, len(written))

        rounds = 5 if quick else 15
        values, by_thread, inline = await alternate(rounds, product, through_a_thread, in_this_thread)
    threaded.close()
    bare.close()
    return [
        Figure("append_vs_commit", "ms", values, "SQLite WAL FULL commit via one thread", by_thread, Goal("<=", 1.5)),
        Figure("append_vs_commit_inline", "ms", values, "SQLite WAL FULL commit in this thread", inline),
    ]


def _milliseconds(seconds: float, count: int) -> float:
    return seconds * 1_000 / count


async def append_vs_eventsourcing(*, quick: bool) -> list[Figure]:
    """One event at a time, from plain values to its verdict, against triggering and saving one event."""
    folder = workplace("append_vs_eventsourcing")
    peer = Peer(folder / "peer.db")
    async with scene(folder, 60) as place:
        made: list[float] = []
        triggered: list[float] = []

        async def product() -> float:
            units = await place.open_plan()
            making = appending = 0.0
            for make in chain.from_iterable(units):
                start = time.perf_counter()
                record = make()
                ready = time.perf_counter()
                await place.journal.record(place.lease, record)
                appending += time.perf_counter() - ready
                making += ready - start
            made.append(_milliseconds(appending, 3 * len(units)))
            return _milliseconds(making + appending, 3 * len(units))

        async def reference() -> float:
            triggering = saving = 0.0
            for number in range(180):
                start = time.perf_counter()
                peer.aggregate.move(number)
                ready = time.perf_counter()
                peer.application.save(peer.aggregate)
                saving += time.perf_counter() - ready
                triggering += ready - start
            triggered.append(_milliseconds(saving, 180))
            return _milliseconds(triggering + saving, 180)

        values, references = await alternate(5 if quick else 15, product, reference)
    name, note = "append_vs_eventsourcing", f"the library's file: {peer.pragmas()}"
    peer.close()
    return [
        Figure(name, "ms", values, "eventsourcing, one event saved", references, Goal("<=", 1), note),
        Figure(f"{name}_ready", "ms", made[1:], "the same, events made before", triggered[1:]),
    ]


async def append_64_vs_1(*, quick: bool) -> list[Figure]:
    """64 concurrent callers of `Journal.record` against one, on one scope."""
    folder = workplace("append_64_vs_1")
    alone = 100
    async with scene(folder, alone + CALLERS * UNITS_A_CALLER) as place:
        rest: list[Unit] = []

        async def one_caller() -> float:
            units = await place.open_plan()
            rest[:] = units[alone:]
            return await _callers(place, [units[:alone]])

        async def many_callers() -> float:
            return await _callers(place, [rest[caller::CALLERS] for caller in range(CALLERS)])

        one, many = await alternate(4 if quick else 11, one_caller, many_callers)
    return [Figure("append_64_vs_1", "events/s", many, "one caller", one, Goal(">=", 15), "the next goal is 30")]


async def _callers(place: Scene, shares: Sequence[Sequence[Unit]]) -> float:
    """Events a second when each caller appends its share one by one, all of them at once."""
    work = [[make() for unit in share for make in unit] for share in shares]

    async def call(records: Sequence[object]) -> None:
        for record in records:
            await place.journal.record(place.lease, record)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for records in work:
            group.create_task(call(records))
    return sum(map(len, work)) / (time.perf_counter() - start)


async def pipelined_vs_eventsourcing(*, quick: bool) -> list[Figure]:
    """`Journal.record_all` by 100, from plain values to the verdicts, against 100 events triggered and saved at once."""
    folder = workplace("pipelined_vs_eventsourcing")
    peer = Peer(folder / "peer.db")
    events = 2_400
    async with scene(folder, events // 3) as place:
        made: list[float] = []
        triggered: list[float] = []

        async def product() -> float:
            makes = list(chain.from_iterable(await place.open_plan()))
            making = appending = 0.0
            for first in range(0, events, BATCH):
                start = time.perf_counter()
                records = [make() for make in makes[first : first + BATCH]]
                ready = time.perf_counter()
                await place.journal.record_all(place.lease, records)
                appending += time.perf_counter() - ready
                making += ready - start
            made.append(events / appending)
            return events / (making + appending)

        async def reference() -> float:
            triggering = saving = 0.0
            for first in range(0, events, BATCH):
                start = time.perf_counter()
                for number in range(first, first + BATCH):
                    peer.aggregate.move(number)
                ready = time.perf_counter()
                peer.application.save(peer.aggregate)
                saving += time.perf_counter() - ready
                triggering += ready - start
            triggered.append(events / saving)
            return events / (triggering + saving)

        values, references = await alternate(4 if quick else 11, product, reference)
    name, note = "pipelined_vs_eventsourcing", f"the library's file: {peer.pragmas()}"
    peer.close()
    return [
        Figure(name, "events/s", values, "eventsourcing, 100 events saved", references, Goal(">=", 1), note),
        Figure(f"{name}_ready", "events/s", made[1:], "the same, events made before", triggered[1:]),
    ]
