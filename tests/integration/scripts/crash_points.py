"""Run the session in one child after another, each killed by SIGKILL at the next port call: `crash_points.py FOLDER`.

Child i works on `FOLDER/i-before.db` or `FOLDER/i-after.db` and writes what it was told, a line each, to a file beside
it. Ends, printing how many calls there are, with the first child that reaches the end of the session.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path

from journal.codec import published_formats
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from tests.faults import Fuse, StoppingLeases, StoppingLog
from tests.integration.scripts import session
from tests.integration.scripts.forks import was_killed

TTL = timedelta(milliseconds=500)


async def child(path: Path, at: int, *, after: bool) -> None:
    fuse = Fuse.signalling(signal.SIGKILL, at, after=after)
    journal = Journal(StoppingLog(SQLiteLog(path), fuse), StoppingLeases(SQLiteLeases(path), fuse))
    descriptor = os.open(path.with_suffix(".told"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await session.run(journal, "doomed", lambda line: os.write(descriptor, f"{line}\n".encode()) and None, ttl=TTL)
    await journal.close()


def killed_at(path: Path, at: int, *, after: bool) -> bool:
    return was_killed(partial(child, path, at, after=after))


def main(folder: Path) -> None:
    published_formats()  # compiled once, before the forks
    at = 0
    while killed_at(folder / f"{at}-before.db", at, after=False):
        killed_at(folder / f"{at}-after.db", at, after=True)
        at += 1
    print(at)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
