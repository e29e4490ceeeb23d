"""A run may die at any call of any port: run again, and the end is that of an uninterrupted run, with no operator."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from journal.errors import Code
from journal.ports import Database, Leases, Log
from projections.outcome import Applied, Outcome, UpToDate
from tests.faults import DeadError, Fuse, StoppingDatabase, StoppingLeases, StoppingLog
from tests.migrating import STORY, TTL, Project

ROOT = Path(__file__).parents[2]

Command = Callable[..., Awaitable[Outcome]]


FENCED = [f"RetrySafe {code}" for code in (Code.STALE_FENCE, Code.TARGET_FENCED)]


def apply(project: Project, **how: Any) -> Awaitable[Outcome]:
    return project.apply(**how)


def roll_back(project: Project, **how: Any) -> Awaitable[Outcome]:
    return project.roll_back(to="0001_items", **how)


COMMANDS: dict[str, Command] = {"apply": apply, "rollback": roll_back}


async def base(folder: Path, command: str) -> Project:
    """The project before the command."""
    project = Project.make(folder, STORY)
    if command == "rollback":
        assert isinstance(await project.apply(), Applied)
    return project


async def doomed(project: Project, command: str, fuse: Fuse) -> Outcome | None:
    """Run until the end, or until the fuse blows; nothing of the run is left then but its files."""
    inner: list[Log | Leases | Database] = []

    def wrap(log: Log, leases: Leases, database: Database) -> tuple[Log, Leases, Database]:
        inner.extend([log, leases, database])
        return StoppingLog(log, fuse), StoppingLeases(leases, fuse), StoppingDatabase(database, fuse)

    asyncio.get_running_loop().set_exception_handler(_ignore_the_dead)
    others = asyncio.all_tasks()
    work = asyncio.ensure_future(COMMANDS[command](project, holder="doomed", wrap=wrap))
    blown = asyncio.create_task(fuse.blown.wait())
    async with asyncio.timeout(20):
        await asyncio.wait([work, blown], return_when=asyncio.FIRST_COMPLETED)
    outcome = work.result() if work.done() and not fuse.blown.is_set() else None
    while remains := asyncio.all_tasks() - others:  # a dead process has no tasks
        for task in remains:
            task.cancel()
        ended, _ = await asyncio.wait(
            remains, timeout=0.01
        )  # one that closes ports starts others that wait for the dead
        for task in ended:
            error = None if task.cancelled() else task.exception()
            assert error is None or isinstance(error, DeadError), error
    for port in inner:
        await port.close()
    return outcome


def _ignore_the_dead(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), DeadError):
        loop.default_exception_handler(context)


async def undisturbed(folder: Path, command: str) -> tuple[Project, dict[str, Any], list[str]]:
    """The project before the command, what it shows after an uninterrupted run, and the port calls of that."""
    start = await base(folder / "base", command)
    whole = start.copy(folder / "whole")
    fuse = Fuse()
    assert isinstance(await doomed(whole, command, fuse), Applied)
    return start, await whole.shown(), fuse.calls


async def finish(project: Project, command: str) -> dict[str, Any]:
    """Run again, when the dead run's lease is over."""
    outcome = await COMMANDS[command](project, holder="successor", clock=lambda: time.time() + TTL.total_seconds() + 1)
    assert isinstance(outcome, Applied | UpToDate), outcome
    return await project.shown()


@pytest.mark.parametrize("command", COMMANDS)
async def test_stopped_around_any_call_of_any_port_a_second_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, command: str
) -> None:
    start, wanted, calls = await undisturbed(tmp_path, command)
    assert len(calls) > 35
    for after in (False, True):
        for at in itertools.count():
            project = start.copy(tmp_path / f"{at}{after}")
            blown = Fuse(at, after=after)
            await doomed(project, command, blown)
            if not blown.blown.is_set():  # how many appends share a commit, and so how many calls there are, varies
                break
            assert await finish(project, command) == wanted, f"call {blown.calls[-1]}, {at}, {after=}"
        assert at > 35


@pytest.mark.parametrize("command", COMMANDS)
async def test_killed_by_sigkill_around_sampled_calls_a_second_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, command: str
) -> None:
    start, wanted, _ = await undisturbed(tmp_path, command)
    script = [sys.executable, "-m", "tests.integration.scripts.crash_matrix", str(tmp_path), command]
    run = await asyncio.to_thread(
        subprocess.run, script, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120
    )
    killed = run.stdout.split()
    assert len(killed) > 20
    for name in killed:
        project = Project(tmp_path / name, dict(start.migrations))
        assert await finish(project, command) == wanted, name


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_run_that_slept_through_its_successor_does_nothing_twice_when_it_wakes(
    tmp_path: Path, command: str
) -> None:
    start, wanted, _ = await undisturbed(tmp_path, command)
    script = [sys.executable, "-m", "tests.integration.scripts.zombies", str(tmp_path), command]
    run = await asyncio.to_thread(
        subprocess.run, script, cwd=ROOT, check=True, capture_output=True, text=True, timeout=180
    )
    points = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(points) > 10
    for point in points:
        assert point["successor"] in ("Applied", "UpToDate"), point
        assert await Project(tmp_path / point["folder"], dict(start.migrations)).shown() == wanted, point
        # What it says of itself: it was overtaken, or it was done before, or after, all that the successor did.
        assert point["zombie"] in (*FENCED, "Applied", "UpToDate"), point
    assert {point["zombie"] for point in points} & set(FENCED)
