"""Run the session in one child after another, each killed by SIGKILL at a port call: `crash_points.py PLACE FOLDER STRIDE`.

Every STRIDE-th call is taken. Child i works at the siblings `i-before` and `i-after` of PLACE and writes what it was
told, a line each, to `FOLDER/i-before.told` or `FOLDER/i-after.told`. Prints these names, and ends with the first child
that reaches the end of the session.
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
from tests.faults import Fuse, StoppingLeases, StoppingLog
from tests.integration.scripts import session
from tests.integration.scripts.forks import was_killed
from tests.places import Place, place_of

TTL = timedelta(milliseconds=500)


async def child(place: Place, told: Path, at: int, *, after: bool) -> None:
    fuse = Fuse.signalling(signal.SIGKILL, at, after=after)
    journal = Journal(StoppingLog(place.log(), fuse), StoppingLeases(place.leases(), fuse))
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    await session.run(journal, "doomed", lambda line: os.write(descriptor, f"{line}\n".encode()) and None, ttl=TTL)
    await journal.close()


def killed_at(place: Place, folder: Path, at: int, *, after: bool) -> bool:
    name = f"{at}-{'after' if after else 'before'}"
    if not was_killed(partial(child, place.sibling(name), folder / f"{name}.told", at, after=after)):
        return False
    print(name)
    return True


def main(place: Place, folder: Path, stride: int) -> None:
    published_formats()  # compiled once, before the forks
    at = 0
    while killed_at(place, folder, at, after=False):
        killed_at(place, folder, at, after=True)
        at += stride


if __name__ == "__main__":
    main(place_of(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
