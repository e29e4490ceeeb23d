"""What is measured against: a bare SQLite commit, and the `eventsourcing` library as its documentation uses it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate


class BareCommits:
    """One row, one commit: SQLite in WAL mode with `synchronous=FULL`, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("CREATE TABLE events (key INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def commit(self, data: bytes) -> None:
        """Insert one row; without a BEGIN, returning means that it was committed."""
        self._connection.execute("INSERT INTO events (data) VALUES (?)", (data,))

    def close(self) -> None:
        self._connection.close()


class ThreadedCommits:
    """The same through one dedicated thread: a queue there, `call_soon_threadsafe` back."""

    def __init__(self, path: Path) -> None:
        self._commits = BareCommits(path)
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    async def commit(self, data: bytes) -> None:
        future = self._loop.create_future()
        self._jobs.put((data, future))
        await future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            data, future = job
            self._commits.commit(data)
            self._loop.call_soon_threadsafe(future.set_result, None)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._commits.close()


class Migrations(Aggregate):
    """What the library is asked to keep: the last kind of every unit.

    Its events carry less than ours (no digests, no fingerprints), and are declared as classes with an `apply`, which it
    replays a fifth faster than decorated methods.
    """

    class Moved(Aggregate.Event):
        migration: str
        ordinal: int
        kind: str

        def apply(self, aggregate: Migrations) -> None:
            aggregate.units[self.migration, self.ordinal] = self.kind

    def __init__(self) -> None:
        self.units: dict[tuple[str, int], str] = {}

    def move(self, number: int) -> None:
        """One event, pending until it is saved."""
        kind = "committed" if number & 1 else "before_commit"
        self.trigger_event(self.Moved, migration=f"example/{number % 512:04d}_step", ordinal=0, kind=kind)


class Peer:
    """The library with its SQLite module on a file: no snapshots, no cache, no cipher, no compression."""

    def __init__(self, path: Path) -> None:
        self.application: Application[UUID] = Application(
            env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}
        )
        self.aggregate = Migrations()
        self.application.save(self.aggregate)

    def fill(self, events: int) -> None:
        """Save `events` events in batches."""
        for start in range(0, events, 1_000):
            for number in range(start, min(start + 1_000, events)):
                self.aggregate.move(number)
            self.application.save(self.aggregate)

    def reconstruct(self) -> Migrations:
        """The aggregate, from its stored events."""
        aggregate: Migrations = self.application.repository.get(self.aggregate.id)
        return aggregate

    def pragmas(self) -> str:
        """The durability that it runs with by default."""
        recorder: Any = self.application.recorder
        with recorder.datastore.transaction(commit=False) as cursor:
            cursor.execute("PRAGMA journal_mode")
            mode = cursor.fetchone()[0]
            cursor.execute("PRAGMA synchronous")
            level = cursor.fetchone()[0]
        return f"journal_mode={mode}, synchronous={('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"

    def close(self) -> None:
        self.application.close()
