"""Import an archive in one child after another, each killed by SIGKILL at the next call of the log: `carry_points.py FOLDER`.

Child i works on a copy of `FOLDER/prepared.db` called `i-before.db` or `i-after.db` and imports `FOLDER/scope.archive`.
Ends, printing how many calls there are, with the first child that reaches the end.
"""

from __future__ import annotations

import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from journal.codec import published_formats
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from projections.archive import Archive
from projections.carry import Manner, bring
from tests.faults import Fuse, StoppingLog
from tests.integration.scripts.forks import was_killed


async def child(path: Path, archive: Path, at: int, *, after: bool) -> None:
    fuse = Fuse.signalling(signal.SIGKILL, at, after=after)
    with archive.open("rb") as file:
        async with Journal(StoppingLog(SQLiteLog(path), fuse), SQLiteLeases(path)) as journal:
            opened = Archive(file, archive.name)
            await bring(journal.carriage(opened.heading.scope), opened, Manner.ARRIVE)


def killed_at(folder: Path, at: int, *, after: bool) -> bool:
    path = folder / f"{at}-{'after' if after else 'before'}.db"
    shutil.copy(folder / "prepared.db", path)
    return was_killed(partial(child, path, folder / "scope.archive", at, after=after))


def main(folder: Path) -> None:
    published_formats()  # compiled once, before the forks
    at = 0
    while killed_at(folder, at, after=False):
        killed_at(folder, at, after=True)
        at += 1
    print(at)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
