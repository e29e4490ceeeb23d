"""Stop a run by SIGSTOP at a port call, let a successor overtake it, and wake it up again: `zombies.py FOLDER COMMAND`.

Every fourth call is sampled, on a copy of `FOLDER/base` each. While the zombie sleeps inside a transaction of the
target, which keeps SQLite's write lock, the successor waits for it; then the zombie is woken first. Prints a JSON object
a point: `folder`, `call`, `zombie` and `successor` (how their runs ended).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from journal.codec import published_formats
from journal.ports import Database, Leases, Log
from projections.outcome import Outcome
from tests.faults import Fuse, StoppingDatabase, StoppingLeases, StoppingLog
from tests.integration.test_crash_matrix import COMMANDS
from tests.migrating import TTL, Project

STRIDE: Final = 4
OVERTAKING_SECONDS: Final = 1.0


def told(outcome: Outcome) -> str:
    error = getattr(outcome, "error", None)
    return type(outcome).__name__ + ("" if error is None else f" {error.code}")


async def zombie(project: Project, command: str, at: int) -> str:
    fuse = Fuse.signalling(signal.SIGSTOP, at)

    def wrap(log: Log, leases: Leases, database: Database) -> tuple[Log, Leases, Database]:
        return StoppingLog(log, fuse), StoppingLeases(leases, fuse), StoppingDatabase(database, fuse)

    outcome = await COMMANDS[command](project, holder="zombie", wrap=wrap)
    (project.folder / "calls").write_text(json.dumps(fuse.calls))
    return told(outcome)


async def successor(project: Project, command: str) -> str:
    return told(
        await COMMANDS[command](project, holder="successor", clock=lambda: time.time() + TTL.total_seconds() + 1)
    )


def start(project: Project, who: str, work: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            (project.folder / who).write_text(asyncio.run(work()))
        except BaseException as error:
            (project.folder / who).write_text(f"{type(error).__name__} {error}")
        finally:
            os._exit(0)
    return pid


def overtaken(project: Project, command: str, at: int) -> bool:
    """Whether the zombie reached call `at` and was overtaken there."""
    sleeper = start(project, "zombie", lambda: zombie(project, command, at))
    _, status = os.waitpid(sleeper, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        return False
    runner = start(project, "successor", lambda: successor(project, command))
    deadline = time.monotonic() + OVERTAKING_SECONDS
    ended = 0
    while not ended and time.monotonic() < deadline:
        ended, _ = os.waitpid(runner, os.WNOHANG)
        time.sleep(0.01)
    os.kill(sleeper, signal.SIGCONT)
    os.waitpid(sleeper, 0)
    if not ended:
        os.waitpid(runner, 0)
    return True


def main(folder: Path, command: str) -> None:
    published_formats()  # compiled once, before the forks
    at = 0
    while True:
        project = Project(folder / "base").copy(folder / f"zombie-{at}")
        if not overtaken(project, command, at):
            return
        said = {who: (project.folder / who).read_text() for who in ("zombie", "successor")}
        print(json.dumps({"folder": project.folder.name, "call": at, **said}))
        at += STRIDE


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
