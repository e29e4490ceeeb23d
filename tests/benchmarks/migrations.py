"""Migrations on a SQLite file: whole commands against other tools, and what backfills and observing cost inside."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from journal.databases.sqlite import SQLiteDatabase
from projections.outcome import Applied
from tests.benchmarks.figures import Figure, Goal, Side, alternate
from tests.benchmarks.peers.projects import AlembicTool, JournalTool, MigrationTool, YoyoTool, create_table
from tests.benchmarks.workloads import workplace
from tests.migrating import Project as Migrating

ROWS = 200_000
BATCH = 1_000
_EVENTS_A_MIGRATION = 3
_ITEMS = """
CREATE TABLE items (id INTEGER PRIMARY KEY, price REAL NOT NULL, cents INTEGER);
INSERT INTO items (id, price) WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
  SELECT i, i * 1.5 FROM n;
"""
_UPDATE = "UPDATE items SET cents = round(price * 100) WHERE id > :after AND id <= :upto"
_BACKFILL = f"-- journal: backfill table=items key=id batch={BATCH}\n{_UPDATE};\n"


async def migrations_1000(*, quick: bool) -> list[Figure]:
    """Seconds of a whole command that applies 1 000 one-table migrations to a new SQLite file."""
    count = 100 if quick else 1_000
    ours, alembic, yoyo = _tools("migrations_1000", count)
    values, by_alembic, by_yoyo = await alternate(
        2 if quick else 5, _applying(ours, count), _applying(alembic, count), _applying(yoyo, count)
    )
    goal, note = Goal("<=", 1), f"{count} migrations, {await ours.events()} events of ours; the peers keep none"
    return [
        Figure("migrations_1000_vs_alembic", "s", values, "alembic upgrade head", by_alembic, goal, note),
        Figure("migrations_1000_vs_yoyo", "s", values, "yoyo apply --batch", by_yoyo, goal),
    ]


async def noop_1000(*, quick: bool) -> list[Figure]:
    """Seconds of the same commands when all is applied already."""
    count = 100 if quick else 1_000
    tools = _tools("noop_1000", count)
    for tool in tools:
        tool.project.apply()
    values, by_alembic, by_yoyo = await alternate(3 if quick else 11, *(_doing_nothing(tool, count) for tool in tools))
    goal = Goal("<=", 1)
    return [
        Figure("noop_1000_vs_yoyo", "s", values, "yoyo apply --batch", by_yoyo, goal),
        Figure("noop_1000_vs_alembic", "s", values, "alembic upgrade head", by_alembic, goal),
    ]


async def migrations_4000_vs_1000(*, quick: bool) -> list[Figure]:
    """Milliseconds a migration of the whole command at 4 000 migrations, over those at 1 000."""
    folder, sizes = workplace("migrations_4000_vs_1000"), (400, 100) if quick else (4_000, 1_000)
    sides: list[Side] = []
    for size in sizes:
        tool = JournalTool(folder / str(size))
        tool.write(size)
        sides.append(_a_migration(_applying(tool, size), size))
    many, few = await alternate(1 if quick else 3, *sides)
    note = "linear is 1, or a little less: starting is shared out among more"
    return [Figure("migrations_4000_vs_1000", "ms", many, "the same at 1 000", few, Goal("<=", 1.25), note)]


def _tools(name: str, count: int) -> tuple[JournalTool, AlembicTool, YoyoTool]:
    folder = workplace(name)
    tools = JournalTool(folder / "journal"), AlembicTool(folder / "alembic"), YoyoTool(folder / "yoyo")
    for tool in tools:
        tool.write(count)
    return tools


def _applying(tool: MigrationTool, count: int) -> Side:
    async def side() -> float:
        tool.project.reset()
        elapsed = tool.project.apply()
        await _check(tool, count)
        return elapsed

    return side


def _doing_nothing(tool: MigrationTool, count: int) -> Side:
    async def side() -> float:
        elapsed = tool.project.apply()
        await _check(tool, count)
        return elapsed

    return side


async def _check(tool: MigrationTool, count: int) -> None:
    assert tool.project.tables() == count
    if isinstance(tool, JournalTool):
        assert await tool.events() >= _EVENTS_A_MIGRATION * count


def _a_migration(side: Side, size: int) -> Side:
    async def milliseconds() -> float:
        return await side() * 1_000 / size

    return milliseconds


# --- inside the process -----------------------------------------------------------------------------------------------


async def backfill_vs_bare(*, quick: bool) -> list[Figure]:
    """Seconds in which the executor plans and runs a backfill, against its batches run by nobody but SQLite."""
    rows = ROWS // 10 if quick else ROWS
    folder = workplace("backfill_vs_bare")
    filled = Migrating.make(folder / "filled", {"0001_items": _ITEMS.format(rows=rows)})
    assert isinstance(await filled.apply(), Applied)
    filled.write("0002_cents", _BACKFILL)

    async def product() -> float:
        project = filled.copy(_emptied(folder / "product"))
        _settle(project.target)
        async with project.opened() as run:
            start = time.perf_counter()
            outcome = await run.apply()
            elapsed = time.perf_counter() - start
        assert isinstance(outcome, Applied)
        _check_filled(project.target, rows)
        return elapsed

    async def reference() -> float:
        target = _emptied(folder / "reference").with_suffix(".db")
        shutil.copyfile(filled.target, target)
        _settle(target)
        elapsed = _bare_batches(target, rows)
        _check_filled(target, rows)
        return elapsed

    values, bare = await alternate(3 if quick else 9, product, reference)
    note = f"{rows} rows by {BATCH}, synchronous=FULL, journal_mode=delete; lease and files are not in it, the plan is"
    reference_name = "the same batches through sqlite3, bounds known"
    return [Figure("backfill_vs_bare", "s", values, reference_name, bare, Goal("<=", 1.3), note)]


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _settle(target: Path) -> None:
    """Let nobody's first commit pay for writing out a file that was only just copied."""
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _bare_batches(target: Path, rows: int) -> float:
    connection = sqlite3.connect(target, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    start = time.perf_counter()
    for after in range(0, rows, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_UPDATE, {"after": after, "upto": after + BATCH})
        connection.execute("COMMIT")
    elapsed = time.perf_counter() - start
    connection.close()
    return elapsed


def _check_filled(target: Path, rows: int) -> None:
    assert _sql(target, "SELECT count(*) FROM items WHERE cents = round(price * 100)") == [(rows,)]


async def observe_1000(*, quick: bool) -> list[Figure]:
    """Milliseconds to observe a schema of 1 000 tables that somebody else has just changed by one column."""
    target = workplace("observe_1000") / "target.db"
    _sql(target, "BEGIN", *(create_table(number) for number in range(1, 1_001)), "COMMIT")
    database = SQLiteDatabase(target, read_only=True)
    seen = {await database.observe()}

    async def product() -> float:
        _sql(target, f"ALTER TABLE t_1 ADD COLUMN c_{len(seen)} INTEGER")
        start = time.perf_counter()
        observed = await database.observe()
        elapsed = time.perf_counter() - start
        assert observed not in seen
        seen.add(observed)
        return elapsed * 1_000

    (values,) = await alternate(5 if quick else 31, product)
    await database.close()
    return [Figure("observe_1000", "ms", values, note="all rows of sqlite_master are read again, one is parsed")]


def _sql(target: Path, *statements: str) -> Sequence[tuple[object, ...]]:
    connection = sqlite3.connect(target, isolation_level=None)
    try:
        return [row for statement in statements for row in connection.execute(statement)]
    finally:
        connection.close()
