"""Use a journal where the operating system sets limits; prints a JSON object a step.

`confined.py write FILE` opens, creates, acquires and writes, and says how it went.
`confined.py write-as UID FILE` the same without root's privileges.
`confined.py read FILE` reads without writing (`read_only`).
`confined.py read-as UID FILE` the same without root's privileges.
`confined.py full FOLDER` fills the file system of FOLDER at several moments, makes room again, and goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

from journal.errors import JournalError
from journal.identities import HolderId
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from tests.factories import SCOPE
from tests.integration.scripts import session
from tests.integration.scripts.journal_writer import clear, cycle
from tests.places import Embedded, journal_at

TTL = timedelta(seconds=30)


def say(step: str, **what: Any) -> None:
    print(json.dumps({"step": step, **what}), flush=True)


async def attempt(step: str, work: Awaitable[Any]) -> Any:
    try:
        result = await work
    except JournalError as error:
        causes, cause = [], error.__cause__
        while cause is not None:
            causes.append(str(cause))
            cause = cause.__cause__
        say(step, error=type(error).__name__, code=error.code, message=error.message, causes=causes)
        return None
    say(step, ok=True)
    return result


async def write(path: Path) -> None:
    async with journal_at(Embedded(path)) as journal:
        await attempt("write", session.run(journal, "confined", lambda _: None, ttl=TTL))


async def read(path: Path) -> None:
    journal = Journal(SQLiteLog(path, create=False, read_only=True), SQLiteLeases(path, create=False, read_only=True))
    async with journal:
        await attempt("scopes", journal.scopes())
        await attempt("state", journal.state(SCOPE))
        await attempt("history", session.read_history(journal))
        await attempt("lease", journal.lease_in_store(SCOPE))
        await attempt("acquire", journal.acquire(SCOPE, HolderId("reader"), wait=timedelta(0)))


async def as_user(uid: int, work: Any, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:  # whatever is imported late is imported now
        await session_once(Path(folder) / "warm.db")
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    await work(path)


async def session_once(path: Path) -> None:
    async with journal_at(Embedded(path)) as journal:
        await session.run(journal, "warm", lambda _: None, ttl=TTL)


# --- a full disk --------------------------------------------------------------------------------------------------------


class Filler:
    """A file that takes all the room there is."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "filler"

    def fill(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    def neighbours(self) -> list[str]:
        return sorted(file.name for file in self.path.parent.iterdir())

    def make_room(self) -> None:
        self.path.unlink()


async def full(folder: Path) -> None:
    filler, path = Filler(folder), folder / "journal.db"
    filler.fill()
    async with journal_at(Embedded(path)) as journal:
        await attempt("create the file", journal.create(SCOPE))
    say("left behind", files=filler.neighbours())
    filler.make_room()
    told: list[str] = []
    async with journal_at(Embedded(path)) as journal:
        await attempt("create the scope", journal.create(SCOPE))
        filler.fill()
        await attempt("acquire on a full disk", fill_and_acquire(journal))
        filler.make_room()
        lease = await attempt("acquire", journal.acquire(SCOPE, HolderId("writer"), ttl=TTL, wait=timedelta(0)))
        await attempt("write", cycle(journal, lease, told.append))
        filler.fill()
        await attempt("write until full", write_on(journal, lease, told))
        say("in doubt", in_doubt=lease.in_doubt)
        filler.make_room()
        lease = await attempt("go on", resume(journal, lease, told))
        await attempt("release", journal.release(lease))
    async with journal_at(Embedded(path)) as journal:
        history = await session.read_history(journal)
        session.check_told(history, told)
        say("verified", entries=len(history.entries), told=len(told))


async def fill_and_acquire(journal: Journal) -> None:
    """Take and give back leases until there is no room left: small writes may still find some in the file."""
    for number in range(2_000):
        lease = await journal.acquire(SCOPE, HolderId(f"writer-{number}"), ttl=TTL, wait=timedelta(0))
        await journal.release(lease)


async def write_on(journal: Journal, lease: Any, told: list[str]) -> None:
    while True:
        await cycle(journal, lease, told.append)


async def resume(journal: Journal, lease: Any, told: list[str]) -> Any:
    if lease.in_doubt:
        lease = await journal.refresh(lease)
    await clear(journal, lease, told.append)
    await cycle(journal, lease, told.append)
    return lease


def main(mode: str, *arguments: str) -> None:
    path = Path(arguments[-1])
    match mode:
        case "write":
            asyncio.run(write(path))
        case "read":
            asyncio.run(read(path))
        case "write-as":
            asyncio.run(as_user(int(arguments[0]), write, path))
        case "read-as":
            asyncio.run(as_user(int(arguments[0]), read, path))
        case "full":
            asyncio.run(full(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
