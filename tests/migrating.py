"""Folders of migrations, runs of the executor on them, and what a target and its journal show afterwards."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from journal.control import Control
from journal.databases.sqlite import SQLiteDatabase
from journal.errors import JournalError
from journal.identities import HolderId, MigrationId, Scope
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.migrations.files import read_folder
from journal.migrations.source import MigrationSource
from journal.ports import Database, Leases, Log
from journal.state import ScopeState
from projections.audit import verify
from projections.executor import Executor
from projections.outcome import Outcome, Progress
from projections.rehearsal import Rehearsal

SCOPE: Final = Scope("shop")
APP: Final = "shop"
TTL: Final = timedelta(seconds=30)

Wrap = Callable[[Log, Leases, Database], tuple[Log, Leases, Database]]


def _as_they_are(log: Log, leases: Leases, database: Database) -> tuple[Log, Leases, Database]:
    return log, leases, database


@dataclass
class Project:
    """One folder with migrations, a journal and a target."""

    folder: Path
    migrations: dict[str, str] = field(default_factory=dict)

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    @property
    def target(self) -> Path:
        return self.folder / "target.db"

    @classmethod
    def make(cls, folder: Path, migrations: Mapping[str, str]) -> Project:
        """A project with these files, `name` -> SQL."""
        project = cls(folder)
        (folder / "migrations").mkdir(parents=True)
        for name, text in migrations.items():
            project.write(name, text)
        return project

    def write(self, name: str, text: str) -> None:
        """Write one migration."""
        self.migrations[name] = text
        (self.folder / "migrations" / f"{name}.sql").write_text(text)

    def remove(self, name: str) -> None:
        """Take one migration away."""
        del self.migrations[name]
        (self.folder / "migrations" / f"{name}.sql").unlink()

    def copy(self, folder: Path) -> Project:
        """The same project elsewhere; nobody may have its files open."""
        shutil.copytree(self.folder, folder)
        return Project(folder, dict(self.migrations))

    def sources(self) -> tuple[MigrationSource, ...]:
        return read_folder(self.folder / "migrations", APP).migrations

    def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Ask, or change, the target from outside."""
        connection = sqlite3.connect(self.target, isolation_level=None)
        try:
            return connection.execute(query, parameters).fetchall()
        finally:
            connection.close()

    @asynccontextmanager
    async def opened(
        self, holder: str = "runner", *, clock: Callable[[], float] = time.time, wrap: Wrap = _as_they_are, **how: Any
    ) -> AsyncGenerator[Run, None]:
        """A lease, and an executor under it."""
        log, leases, database = wrap(
            SQLiteLog(self.journal, create=True, poll=timedelta(milliseconds=10)),
            SQLiteLeases(self.journal, create=True, clock=clock),
            SQLiteDatabase(self.target, create=True),
        )
        heard: list[Progress] = []
        rehearsal = Rehearsal(SCOPE, database)
        try:
            async with Journal(log, leases) as journal:
                await journal.create(SCOPE)
                lease = await journal.acquire(SCOPE, HolderId(holder), ttl=TTL, wait=how.pop("wait", None))
                executor = Executor(
                    journal, lease, database, rehearsal, observer=how.pop("observer", heard.append), **how
                )
                yield Run(self, journal, executor, heard)
        finally:
            await rehearsal.close()
            await database.close()

    async def apply(self, target: str | None = None, *, allow_out_of_order: bool = False, **how: Any) -> Outcome:
        """Apply from the files as they are now."""
        async with self.opened(**how) as run:
            return await run.apply(target, allow_out_of_order=allow_out_of_order)

    async def roll_back(self, *, to: str | None = None, steps: int | None = None, **how: Any) -> Outcome:
        """Roll back with the files as they are now."""
        async with self.opened(**how) as run:
            return await run.roll_back(to=to, steps=steps)

    async def state(self) -> ScopeState:
        """What counts now."""
        log, leases = SQLiteLog(self.journal, read_only=True), SQLiteLeases(self.journal, read_only=True)
        async with Journal(log, leases) as journal:
            return await journal.state(SCOPE)

    async def shown(self) -> dict[str, Any]:
        """Everything that must be equal at the end of two runs: schema, rows, ledger; the history must verify."""
        log, leases = SQLiteLog(self.journal, read_only=True), SQLiteLeases(self.journal, read_only=True)
        async with Journal(log, leases) as journal:
            assert (await verify(journal, SCOPE)).ok
            state = await journal.state(SCOPE)
        assert state.plan is None
        return {"ledger": [(id, entry.digest.hex()) for id, entry in state.active.items()], **self.content()}

    def content(self) -> dict[str, Any]:
        """Schema and rows of the target, bookkeeping aside."""
        query = (
            "SELECT type, name, sql FROM sqlite_master WHERE tbl_name NOT LIKE '\\_journal%' ESCAPE '\\' ORDER BY 1, 2"
        )
        schema = self.sql(query)
        tables = [name for kind, name, _ in schema if kind == "table"]
        return {"schema": schema, **{name: self.sql(f'SELECT * FROM "{name}" ORDER BY 1') for name in tables}}


@dataclass
class Run:
    """One run under one lease; `heard` is its progress."""

    project: Project
    journal: Journal
    executor: Executor
    heard: list[Progress]

    async def apply(self, target: str | None = None, *, allow_out_of_order: bool = False) -> Outcome:
        wanted = None if target is None else MigrationId(APP, target)
        return await self.executor.apply(self.project.sources(), wanted, allow_out_of_order=allow_out_of_order)

    async def roll_back(self, *, to: str | None = None, steps: int | None = None) -> Outcome:
        wanted = None if to is None else MigrationId(APP, to)
        return await self.executor.roll_back(self.project.sources(), to=wanted, steps=steps)


def error_of(outcome: Outcome) -> JournalError:
    """The error with which a run ended."""
    error = getattr(outcome, "error", None)
    assert isinstance(error, JournalError), outcome
    return error


def cancelled_after(calls: int) -> Control:
    """A control that is cancelled when it has been checked this many times."""
    control = Control()
    left = [calls]

    class Counting(Control):
        def check(self) -> None:
            left[0] -= 1
            if left[0] < 0:
                control.cancellation.cancel()
            super().check()

    return Counting(cancellation=control.cancellation)


# Every step leaves a mark in `effects`, every row that a backfill touches counts up: what ran twice shows.
STORY: Final = {
    "0001_items": """
CREATE TABLE effects (step TEXT NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY, price REAL NOT NULL, touched INTEGER NOT NULL DEFAULT 0);
INSERT INTO items (id, price) WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 10)
  SELECT i, i * 1.5 FROM n;
INSERT INTO effects VALUES ('0001');
-- journal: reverse
DROP TABLE items;
DROP TABLE effects;
""",
    "0002_cents": """
-- journal: assert no price is negative
SELECT NOT EXISTS (SELECT 1 FROM items WHERE price < 0);
-- journal: schema
ALTER TABLE items ADD COLUMN cents INTEGER;
INSERT INTO effects VALUES ('0002 column');
-- journal: reverse
ALTER TABLE items DROP COLUMN cents;
DELETE FROM effects WHERE step = '0002 column';
-- journal: backfill table=items key=id batch=4
UPDATE items SET cents = round(price * 100), touched = touched + 1 WHERE id > :after AND id <= :upto;
-- journal: verify
SELECT NOT EXISTS (SELECT 1 FROM items WHERE id <= :upto AND cents IS NULL);
-- journal: reverse
UPDATE items SET cents = NULL, touched = touched + 100 WHERE id > :after AND id <= :upto;
-- journal: assert every item has cents
SELECT NOT EXISTS (SELECT 1 FROM items WHERE cents IS NULL);
-- journal: assert there are items
SELECT count(*) > 0 FROM items;
-- journal: schema
CREATE INDEX items_by_cents ON items (cents);
INSERT INTO effects VALUES ('0002 index');
-- journal: reverse
DROP INDEX items_by_cents;
DELETE FROM effects WHERE step = '0002 index';
""",
    "0003_nothing": """
-- journal: schema
-- journal: reverse
""",
    "0004_marks": """
INSERT INTO effects VALUES ('0004');
-- journal: reverse
DELETE FROM effects WHERE step = '0004';
""",
}
