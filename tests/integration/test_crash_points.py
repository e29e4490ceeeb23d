"""A writer may die at any call of its ports: nothing that it was told is lost, nothing counts twice, another finishes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.identities import HolderId
from journal.journal import Journal
from tests.factories import SCOPE
from tests.faults import DeadError, Fuse, StoppingLeases, StoppingLog
from tests.integration.scripts import session
from tests.places import Cluster, Embedded, Place, journal_at

ROOT = Path(__file__).parents[2]
TTL = timedelta(seconds=30)


@dataclass
class Doomed:
    """A journal in this process that dies as its fuse says, and what its session was told."""

    place: Place
    fuse: Fuse
    told: list[str] = field(default_factory=list)

    async def run(self) -> bool:
        """Run the session until it ends or the fuse blows; says whether it ended. Nothing of it is left running."""
        log, leases = self.place.log(), self.place.leases()
        journal = Journal(StoppingLog(log, self.fuse), StoppingLeases(leases, self.fuse))
        asyncio.get_running_loop().set_exception_handler(_ignore_the_dead)
        others = asyncio.all_tasks()
        work = asyncio.create_task(session.run(journal, "doomed", self._hear, ttl=TTL))
        blown = asyncio.create_task(self.fuse.blown.wait())
        async with asyncio.timeout(20):
            await asyncio.wait([work, blown], return_when=asyncio.FIRST_COMPLETED)
        ended = work.done() and work.exception() is None
        remains = asyncio.all_tasks() - others
        while remains:  # a dead process has no tasks
            for task in remains:
                task.cancel()
            await asyncio.wait(remains)
            for task in remains:
                error = None if task.cancelled() else task.exception()
                assert error is None or isinstance(error, DeadError), error
            remains = asyncio.all_tasks() - others
        await log.close()
        await leases.close()
        return ended

    def _hear(self, line: str) -> None:
        self.fuse.check()
        self.told.append(line)


def _ignore_the_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), DeadError):
        loop.default_exception_handler(context)


async def finish_after(place: Place, told: list[str], *, late: bool) -> session.History:
    """Another holder takes over, finishes the work, and checks the log."""
    async with journal_at(place, late=late) as journal:
        await journal.create(SCOPE)
        told = list(told)
        async with journal.lease(SCOPE, HolderId("successor"), ttl=TTL, wait=timedelta(seconds=1.5)) as lease:
            await session.finish(journal, lease, told.append)
        return await session.check_finished(journal, told)


async def port_calls(folder: Path) -> list[str]:
    doomed = Doomed(Embedded(folder / "whole.db"), Fuse())
    assert await doomed.run()
    return doomed.fuse.calls


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_stopped_around_any_port_call_the_work_is_finished_by_another(tmp_path: Path, after: bool) -> None:
    calls = await port_calls(tmp_path)
    assert len(calls) > 25
    for at, name in enumerate(calls):
        doomed = Doomed(Embedded(tmp_path / f"{at}.db"), Fuse(at, after=after))
        await doomed.run()
        assert doomed.fuse.blown.is_set(), f"call {at} ({name}) did not happen"
        # The lease runs out in the successor's future: nobody has to wait for it.
        history = await finish_after(doomed.place, doomed.told, late=True)
        assert len(history.fences) <= 2, f"call {at} ({name})"


async def test_an_uninterrupted_session_leaves_nothing_to_do(tmp_path: Path) -> None:
    doomed = Doomed(Embedded(tmp_path / "journal.db"), Fuse())
    assert await doomed.run()
    history = await finish_after(doomed.place, doomed.told, late=False)
    assert len(doomed.told) == len(history.entries)
    assert history.voids == []


STRIDE = {Embedded: 1, Cluster: 4}  # a point takes a second on a cluster


async def test_killed_by_sigkill_around_any_port_call_the_work_is_finished_by_another(
    tmp_path: Path, place: Place
) -> None:
    stride = STRIDE[type(place)]
    script = [sys.executable, "-m", "tests.integration.scripts.crash_points", str(place), str(tmp_path), str(stride)]
    run = await asyncio.to_thread(
        subprocess.run, script, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    points = run.stdout.split()
    assert len(points) * stride > 50

    async def check(point: str) -> None:
        told = tmp_path / f"{point}.told"
        lines = told.read_text().splitlines() if told.exists() else []
        await finish_after(place.sibling(point), lines, late=False)

    for start in range(0, len(points), 8):
        await asyncio.gather(*(check(point) for point in points[start : start + 8]))
