"""Run a command in one child after another, each killed by SIGKILL around a port call: `crash_matrix.py FOLDER COMMAND`.

Each child works on a copy of `FOLDER/base`. Every third call is sampled, before and after it. Prints the names of the
folders whose children were killed.
"""

from __future__ import annotations

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final

from journal.codec import published_formats
from journal.ports import Database, Leases, Log
from tests.faults import Fuse, StoppingDatabase, StoppingLeases, StoppingLog
from tests.integration.scripts.forks import was_killed
from tests.integration.test_crash_matrix import COMMANDS
from tests.migrating import Project

STRIDE: Final = 3


async def child(project: Project, command: str, fuse: Fuse) -> None:
    def wrap(log: Log, leases: Leases, database: Database) -> tuple[Log, Leases, Database]:
        return StoppingLog(log, fuse), StoppingLeases(leases, fuse), StoppingDatabase(database, fuse)

    await COMMANDS[command](project, holder="doomed", wrap=wrap)


def main(folder: Path, command: str) -> None:
    published_formats()  # compiled once, before the forks
    at = 0
    while True:
        for after in (False, True):
            name = f"{at}-{'after' if after else 'before'}"
            project = Project(folder / "base").copy(folder / name)
            fuse = Fuse.signalling(signal.SIGKILL, at, after=after)
            if not was_killed(partial(child, project, command, fuse)):
                return
            print(name)
        at += STRIDE


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
