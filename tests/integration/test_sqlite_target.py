"""What only SQLite shows: its files and processes, its locks, keys, references, and traps."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from journal.control import Control
from journal.databases.sqlite import SQLiteDatabase
from journal.databases.sqlite_errors import translate
from journal.errors import (
    Code,
    CommitFailedError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    ResourceLimitError,
    TargetError,
    UnavailableError,
    UnknownEventError,
)
from journal.identities import EventId, Fence, Incarnation, Scope
from journal.ports import BackfillCursor, BackfillProgram, Guard, Program, Shadow

SCRIPTS = Path(__file__).parent / "scripts"
SCOPE = Scope("shop")
INCARNATION = Incarnation(bytes(16))
GUARD = Guard(SCOPE, INCARNATION, Fence(1))
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, cents INTEGER)"
ENDLESS = "WITH RECURSIVE n (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) INSERT INTO orders SELECT a, a, a FROM n"
COUNTING = BackfillProgram(
    "orders", ("id",), 10, "UPDATE orders SET cents = coalesce(cents, 0) + 1 WHERE id > :after AND id <= :upto"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "target.db"


Opener = Callable[..., SQLiteDatabase]


@pytest.fixture
async def open_database(path: Path) -> AsyncIterator[Opener]:
    opened: list[SQLiteDatabase] = []

    def opener(file: Path = path, **options: Any) -> SQLiteDatabase:
        opened.append(SQLiteDatabase(file, **options))
        return opened[-1]

    yield opener
    for database in opened:
        await database.close()


@pytest.fixture
async def database(open_database: Opener) -> SQLiteDatabase:
    database = open_database(create=True)
    await database.raise_fence(GUARD, Control())
    return database


@pytest.fixture
async def shadow(open_database: Opener) -> AsyncIterator[Shadow]:
    shadow = await open_database(read_only=True).shadow()
    yield shadow
    await shadow.close()


def script(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(";\n".join(statements))


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def program(*statements: str, transactional: bool = True) -> Program:
    return Program(statements, tuple(range(1, len(statements) + 1)), transactional)


async def migrate(database: SQLiteDatabase, *statements: str, enforce: bool = False) -> None:
    async with database.transaction(GUARD, Control(), enforce_references=enforce) as transaction:
        await transaction.execute(program(*statements))
        await transaction.commit()


def with_orders(path: Path, count: int, *before: str) -> None:
    script(path, *before, ORDERS)
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT INTO orders VALUES (?, 1, NULL)", ((number,) for number in range(count)))
        connection.commit()


def is_there(path: Path) -> bool:
    return path.exists()


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def damage(path: Path) -> None:
    """Leave the first page of a database as it is, and nothing else."""
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(InvalidContractError) as raised:
        SQLiteDatabase(Path(":memory:"))
    assert raised.value.code is Code.MISSING_TARGET


@pytest.mark.parametrize("options", [{"create": True}, {"read_only": True}, {}], ids=["create", "read only", "plain"])
async def test_what_can_be_no_file_is_refused(tmp_path: Path, open_database: Opener, options: dict[str, bool]) -> None:
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path, tmp_path / "pipe", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(InvalidContractError) as raised:
            await open_database(odd, **options).observe()
        assert raised.value.code is Code.MISSING_TARGET


async def test_a_file_is_made_in_a_folder_that_is_there(tmp_path: Path, open_database: Opener) -> None:
    with pytest.raises(InvalidContractError, match="folder") as raised:
        await open_database(tmp_path / "no" / "target.db", create=True).raise_fence(GUARD, Control())
    assert raised.value.code is Code.MISSING_TARGET


async def test_a_file_is_made_when_the_fence_is_raised_and_not_before(path: Path, open_database: Opener) -> None:
    database = open_database(create=True)
    empty = await database.observe()
    assert await database.describe() == {}
    assert await database.witness(SCOPE, "unit") is None
    assert await database.cursor(SCOPE, "unit") is None
    assert await database.is_empty("orders")
    assert not is_there(path)
    await database.raise_fence(GUARD, Control())
    assert is_there(path)
    assert await database.observe() == empty


async def test_a_missing_file_is_an_empty_schema_for_those_that_only_read(path: Path, open_database: Opener) -> None:
    database = open_database(read_only=True)
    empty = await database.observe()
    assert not is_there(path)
    script(path, ORDERS)
    assert await database.observe() != empty


async def test_an_empty_file_is_an_empty_database(path: Path, open_database: Opener) -> None:
    write(path, b"")
    database = open_database()
    assert await database.describe() == {}
    await database.raise_fence(GUARD, Control())


@pytest.mark.parametrize("options", [{"create": True}, {"read_only": True}, {}], ids=["create", "read only", "plain"])
async def test_another_kind_of_file_is_left_as_it_is(
    path: Path, open_database: Opener, options: dict[str, bool]
) -> None:
    write(path, b"PK\3\4" + bytes(range(256)) * 20)
    before = digests(path.parent)
    database = open_database(**options)
    for asked in (database.observe(), database.raise_fence(GUARD, Control())):
        with pytest.raises(IntegrityError) as raised:
            await asked
        assert raised.value.code is Code.FOREIGN_TARGET
        assert isinstance(raised.value.__cause__, sqlite3.Error)
    assert digests(path.parent) == before


async def test_a_damaged_file_is_said_to_be(path: Path, open_database: Opener) -> None:
    with_orders(path, 5_000)
    damage(path)
    database = open_database()
    with pytest.raises(IntegrityError) as raised:
        await database.is_empty("orders")
    assert raised.value.code is Code.DAMAGED_FILE


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_reading_alone_changes_no_byte(path: Path, open_database: Opener, mode: str) -> None:
    script(path, f"PRAGMA journal_mode = {mode}")
    with_orders(path, 10)
    writer = open_database()
    await writer.raise_fence(GUARD, Control())
    await writer.close()
    before = digests(path.parent)
    reader = open_database(read_only=True)
    assert "table orders" in await reader.describe()
    assert await reader.witness(SCOPE, "unit") is None
    assert await reader.cursor(SCOPE, "unit") is None
    with pytest.raises(UnavailableError) as raised:
        await reader.raise_fence(Guard(SCOPE, INCARNATION, Fence(2)), Control())
    assert raised.value.code is Code.TARGET_UNAVAILABLE
    await reader.close()
    assert digests(path.parent).items() >= before.items()


async def test_bookkeeping_of_a_newer_version_is_not_touched(path: Path, database: SQLiteDatabase) -> None:
    script(path, "UPDATE _journal_format SET version = 2")

    async def transact() -> None:
        async with database.transaction(GUARD, Control()):
            pytest.fail("entered")

    asked = (
        database.raise_fence(GUARD, Control()),
        database.witness(SCOPE, "unit"),
        database.cursor(SCOPE, "unit"),
        transact(),
        database.execute_outside(GUARD, program("VACUUM", transactional=False)),
    )
    for one in asked:
        with pytest.raises(UnknownEventError) as raised:
            await one
        assert raised.value.code is Code.FORMAT_TOO_NEW


async def test_a_copy_that_took_the_place_of_the_target_is_noticed(path: Path, database: SQLiteDatabase) -> None:
    script(path, "DELETE FROM _journal_fences")
    with pytest.raises(IntegrityError, match="gone"):
        await migrate(database, ORDERS)
    script(path, f"INSERT INTO _journal_fences VALUES ('shop', x'{bytes(16).hex()}', 0 + 7)")
    with pytest.raises(IntegrityError, match="taken over"):
        await migrate(database, ORDERS)


async def test_a_full_disk_is_no_fault_of_the_statement(database: SQLiteDatabase) -> None:
    filling = program(ORDERS, "PRAGMA max_page_count = 10", "CREATE TABLE big AS SELECT zeroblob(1000000) AS a")
    async with database.transaction(GUARD, Control()) as transaction:
        with pytest.raises(UnavailableError) as raised:
            await transaction.execute(filling)
    assert raised.value.code is Code.TARGET_UNAVAILABLE
    assert raised.value.details["statement"] == 3
    assert await database.describe() == {}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_BUSY_RECOVERY, Code.TARGET_BUSY),
        (sqlite3.SQLITE_FULL, Code.TARGET_UNAVAILABLE),
        (sqlite3.SQLITE_READONLY_DBMOVED, Code.TARGET_UNAVAILABLE),
        (sqlite3.SQLITE_READONLY_ROLLBACK, Code.TARGET_UNAVAILABLE),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, Code.TARGET_UNAVAILABLE),
        (sqlite3.SQLITE_IOERR_FSYNC, Code.TARGET_UNAVAILABLE),
        (sqlite3.SQLITE_NOTADB, Code.FOREIGN_TARGET),
        (sqlite3.SQLITE_CORRUPT_VTAB, Code.DAMAGED_FILE),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, Code.STATEMENT_FAILED),
        (sqlite3.SQLITE_LOCKED, Code.STATEMENT_FAILED),
        (sqlite3.SQLITE_ERROR, Code.STATEMENT_FAILED),
    ],
)
def test_an_error_of_the_driver_is_one_of_the_journal(code: int, expected: Code) -> None:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode = code
    translated = translate(error, "target.db", statement=4)
    assert translated.code is expected
    assert translated.__cause__ is error
    assert translated.details["statement"] == 4
    assert "what SQLite says" in translated.message


# --- locks and processes ----------------------------------------------------------------------------------------------


class Process:
    """A subprocess that obeys one order a line."""

    def __init__(self, *arguments: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(SCRIPTS.parents[2])}
        self.popen = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    async def read(self) -> str:
        assert self.popen.stdout is not None
        return (await asyncio.wait_for(asyncio.to_thread(self.popen.stdout.readline), 30)).strip()

    async def obey(self, order: str) -> str:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{order}\n")
        self.popen.stdin.flush()
        return await self.read()

    def kill(self) -> None:
        self.popen.send_signal(signal.SIGKILL)
        self.popen.communicate(timeout=30)


Starter = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Starter]:
    started: list[Process] = []

    def starter(name: str, *arguments: object) -> Process:
        started.append(Process(str(SCRIPTS / name), *map(str, arguments)))
        return started[-1]

    yield starter
    for process in started:
        process.kill()


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_zombie_commits_before_the_fence_is_raised_or_never(
    path: Path, open_database: Opener, start: Starter, mode: str
) -> None:
    script(path, f"PRAGMA journal_mode = {mode}", ORDERS)
    database = open_database()
    await database.raise_fence(GUARD, Control())
    zombie = start("target_holder.py", path, 1)
    assert [await zombie.obey(order) for order in ("begin", "insert")] == ["begin", "insert"]
    zombie.popen.send_signal(signal.SIGSTOP)
    successor = Guard(SCOPE, INCARNATION, Fence(2))
    with pytest.raises(ResourceLimitError):
        await database.raise_fence(successor, Control.within(timedelta(milliseconds=200)))
    raising = asyncio.create_task(database.raise_fence(successor, Control()))
    zombie.popen.send_signal(signal.SIGCONT)
    assert await zombie.obey("commit") == "commit"
    await asyncio.wait_for(raising, 30)
    assert rows(path, "SELECT count(*) FROM orders") == [(1,)]
    assert await zombie.obey("begin") == Code.TARGET_FENCED
    assert rows(path, "PRAGMA journal_mode") == [(mode,)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_zombie_that_is_killed_lets_its_successor_in(
    path: Path, open_database: Opener, start: Starter, mode: str
) -> None:
    script(path, f"PRAGMA journal_mode = {mode}", ORDERS)
    database = open_database()
    await database.raise_fence(GUARD, Control())
    zombie = start("target_holder.py", path, 1)
    assert [await zombie.obey(order) for order in ("begin", "insert")] == ["begin", "insert"]
    raising = asyncio.create_task(database.raise_fence(Guard(SCOPE, INCARNATION, Fence(2)), Control()))
    zombie.kill()
    await asyncio.wait_for(raising, 30)
    assert rows(path, "SELECT count(*) FROM orders") == [(0,)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_process_killed_within_a_batch_leaves_cursor_and_rows_equal(
    path: Path, open_database: Opener, start: Starter, mode: str
) -> None:
    with_orders(path, 100, f"PRAGMA journal_mode = {mode}")
    database = open_database()
    await database.raise_fence(GUARD, Control())
    await begin_backfill(database, COUNTING)
    killed = start("target_holder.py", path, 1)
    assert [await killed.obey("batch"), await killed.obey("endless batch")] == ["1", "endless batch"]
    await locked(path)
    killed.kill()
    cursor = await database.cursor(SCOPE, "unit")
    assert cursor is not None
    assert (cursor.matched, cursor.transaction_groups) == (10, 1)
    assert rows(path, "SELECT count(*) FROM orders WHERE cents = 1") == [(10,)]
    await finish_backfill(database, COUNTING)
    assert rows(path, "SELECT DISTINCT cents FROM orders") == [(1,)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_a_backfill_ends_while_another_process_inserts(
    path: Path, open_database: Opener, start: Starter, mode: str
) -> None:
    with_orders(path, 200, f"PRAGMA journal_mode = {mode}")
    database = open_database()
    await database.raise_fence(GUARD, Control())
    inserting = start("inserting.py", path)
    assert await inserting.read() == "in"
    begun = await begin_backfill(database, COUNTING)
    cursor = await finish_backfill(database, COUNTING)
    inserting.kill()
    assert cursor.matched == cursor.changed == begun.rows >= 200
    assert rows(path, "SELECT count(*), max(cents) FROM orders WHERE cents IS NOT NULL") == [(begun.rows, 1)]


async def test_what_a_killed_process_left_is_cleared_by_those_that_write(
    path: Path, open_database: Opener, start: Starter
) -> None:
    with_orders(path, 2_000)
    holder = start("half_written.py", path)
    assert await holder.read() == "written"
    holder.kill()
    with pytest.raises(UnavailableError, match="run a command that writes") as raised:
        await open_database(read_only=True).observe()
    assert raised.value.code is Code.TARGET_UNAVAILABLE
    await open_database().raise_fence(GUARD, Control())
    assert rows(path, "SELECT count(*) FROM orders WHERE cents IS NOT NULL") == [(0,)]
    assert "table orders" in await open_database(read_only=True).describe()


async def test_a_commit_waits_for_readers(path: Path, database: SQLiteDatabase) -> None:
    await migrate(database, ORDERS, "INSERT INTO orders VALUES (1, 1, 1)")
    reader = sqlite3.connect(path)
    reading = reader.execute("SELECT * FROM orders")
    reading.fetchone()
    task = asyncio.create_task(migrate(database, "DELETE FROM orders"))
    writer = sqlite3.connect(path, timeout=0)
    await unreadable(writer)  # the commit keeps new readers out, and waits for the old one
    assert not task.done()
    reader.close()
    await asyncio.wait_for(task, 30)
    writer.close()
    assert rows(path, "SELECT count(*) FROM orders") == [(0,)]


async def unreadable(connection: sqlite3.Connection) -> None:
    """Wait until somebody keeps readers out."""
    async with asyncio.timeout(30):
        while True:
            if not readable(connection):
                return
            await asyncio.sleep(0)


def readable(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1 FROM orders").fetchall()
    except sqlite3.OperationalError:
        return False
    return True


async def test_a_commit_that_readers_keep_out_is_proven_not_to_be(path: Path, database: SQLiteDatabase) -> None:
    await migrate(database, ORDERS, "INSERT INTO orders VALUES (1, 1, 1)")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders").fetchall()
        async with database.transaction(GUARD, Control.within(timedelta(milliseconds=300))) as transaction:
            await transaction.execute(program("DELETE FROM orders"))
            with pytest.raises(CommitFailedError) as raised:
                await transaction.commit()
    assert raised.value.aborted
    assert rows(path, "SELECT count(*) FROM orders") == [(1,)]


async def test_the_commit_of_a_batch_waits_for_readers(path: Path, database: SQLiteDatabase) -> None:
    with_orders(path, 20)
    begun = await begin_backfill(database, COUNTING)
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders").fetchall()
        with pytest.raises(CommitFailedError) as raised:
            await database.advance_backfill(GUARD, Control.within(timedelta(milliseconds=300)), "unit", COUNTING)
        assert raised.value.aborted
        assert await database.cursor(SCOPE, "unit") == begun
        waiting = asyncio.create_task(database.advance_backfill(GUARD, Control(), "unit", COUNTING))
        with closing(sqlite3.connect(path, timeout=0)) as another:
            await unreadable(another)
        assert not waiting.done()
    assert (await asyncio.wait_for(waiting, 30)).matched == 10
    await finish_backfill(database, COUNTING)
    assert rows(path, "SELECT DISTINCT cents FROM orders") == [(1,)]


async def test_a_batch_that_is_cancelled_is_interrupted_and_leaves_nothing(
    path: Path, database: SQLiteDatabase, open_database: Opener
) -> None:
    with_orders(path, 20)
    begun = await begin_backfill(database, COUNTING)
    endless = replace(
        COUNTING, batch=1_000, verify=ENDLESS.replace("INSERT INTO orders SELECT a, a, a", "SELECT count(*)")
    )
    batch = asyncio.create_task(database.advance_backfill(GUARD, Control(), "unit", endless))
    await locked(path)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(batch, 30)
    assert await database.cursor(SCOPE, "unit") == begun
    assert rows(path, "SELECT count(*) FROM orders WHERE cents IS NOT NULL") == [(0,)]
    assert (await open_database().advance_backfill(GUARD, Control(), "unit", COUNTING)).matched == 10


async def test_reading_waits_for_a_lock(path: Path, database: SQLiteDatabase) -> None:
    locking = sqlite3.connect(path, isolation_level=None)
    locking.execute("BEGIN EXCLUSIVE")
    asking = asyncio.create_task(database.describe())
    again = asyncio.create_task(asyncio.to_thread(readable, sqlite3.connect(path, timeout=0, check_same_thread=False)))
    assert not await again
    assert not asking.done()
    locking.execute("CREATE TABLE t (a)")
    locking.execute("COMMIT")
    assert "table t" in await asyncio.wait_for(asking, 30)
    locking.close()


# --- cancelling and closing -------------------------------------------------------------------------------------------


async def running(database: SQLiteDatabase, statement: str) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS))
        await transaction.execute(program(statement))


async def test_a_statement_that_runs_is_interrupted_when_its_task_is_cancelled(
    path: Path, database: SQLiteDatabase, open_database: Opener
) -> None:
    task = asyncio.create_task(running(database, ENDLESS))
    await locked(path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    assert await database.describe() == {}
    await open_database().raise_fence(GUARD, Control())


async def test_a_statement_that_runs_is_interrupted_by_closing(path: Path, database: SQLiteDatabase) -> None:
    task = asyncio.create_task(running(database, ENDLESS))
    await locked(path)
    await asyncio.wait_for(database.close(), 30)
    with pytest.raises(InvalidContractError) as raised:
        await task
    assert raised.value.code is Code.CLOSED
    assert rows(path, "SELECT count(*) FROM sqlite_master WHERE name = 'orders'") == [(0,)]


async def locked(path: Path) -> None:
    """Wait until somebody holds the write lock."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        async with asyncio.timeout(30):
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    return
                connection.execute("ROLLBACK")
                await asyncio.sleep(0)


# --- references -------------------------------------------------------------------------------------------------------

PARENT = "CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT)"
CHILD = "CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id) ON DELETE CASCADE)"
REBUILD = (
    "CREATE TABLE parent_new (id INTEGER PRIMARY KEY, name TEXT NOT NULL DEFAULT '')",
    "INSERT INTO parent_new SELECT id, coalesce(name, '') FROM parent",
    "DROP TABLE parent",
    "ALTER TABLE parent_new RENAME TO parent",
)


async def test_a_table_that_others_reference_is_rebuilt_and_they_keep_their_rows(
    path: Path, database: SQLiteDatabase, shadow: Shadow
) -> None:
    await migrate(database, PARENT, CHILD, "INSERT INTO parent VALUES (1, NULL), (2, 'b')")
    await migrate(database, "INSERT INTO child VALUES (1, 1), (2, 1), (3, 2)")
    recipe = ["PRAGMA foreign_keys = OFF", *REBUILD, "PRAGMA foreign_keys = ON"]
    lowered = await shadow.lower(recipe, transactional=True)
    assert not lowered.enforce_references
    assert lowered.numbers == (2, 3, 4, 5)
    async with database.transaction(GUARD, Control(), enforce_references=lowered.enforce_references) as transaction:
        await transaction.execute(lowered)
        await transaction.commit()
    assert rows(path, "SELECT id, parent FROM child") == [(1, 1), (2, 1), (3, 2)]
    assert rows(path, "SELECT id, name FROM parent") == [(1, ""), (2, "b")]
    assert rows(path, "SELECT \"table\" FROM pragma_foreign_key_list('child')") == [("parent",)]


async def test_a_rebuild_that_loses_rows_is_refused(path: Path, database: SQLiteDatabase) -> None:
    await migrate(database, PARENT, CHILD)
    await migrate(database, *(f"INSERT INTO parent VALUES ({number}, NULL)" for number in range(9)))
    await migrate(database, *(f"INSERT INTO child VALUES ({number + 10}, {number})" for number in range(9)))
    losing = [statement.replace("FROM parent", "FROM parent WHERE id = 0") for statement in REBUILD]
    with pytest.raises(TargetError) as raised:
        await migrate(database, *losing)
    assert raised.value.code is Code.REFERENCES_BROKEN
    assert raised.value.details == {
        "table": "child", "parent": "parent", "rowids": [11, 12, 13, 14, 15], "rows": 8
    }  # fmt: skip
    assert rows(path, "SELECT count(*) FROM parent") == [(9,)]


async def test_references_that_dangled_before_are_no_hindrance(path: Path, database: SQLiteDatabase) -> None:
    script(path, PARENT, CHILD, "INSERT INTO child VALUES (1, 99)")
    await migrate(database, "INSERT INTO parent VALUES (1, 'a')", "ALTER TABLE parent ADD COLUMN note TEXT")
    with pytest.raises(TargetError, match="rowid 2"):
        await migrate(database, "INSERT INTO child VALUES (2, 98)")


async def test_a_foreign_key_that_leads_to_no_key_is_no_hindrance_when_it_is_old(
    path: Path, database: SQLiteDatabase
) -> None:
    script(path, PARENT, CHILD, "CREATE TABLE odd (name TEXT REFERENCES parent (name))", "INSERT INTO odd VALUES ('x')")
    await migrate(database, "INSERT INTO parent VALUES (1, 'a')", "INSERT INTO child VALUES (1, 1)")
    with pytest.raises(TargetError, match="without a row of parent"):
        await migrate(database, "DELETE FROM parent")


async def test_a_rebuild_that_takes_away_what_others_reference_is_refused(path: Path, database: SQLiteDatabase) -> None:
    script(path, "CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
    script(path, "CREATE TABLE odd (name TEXT REFERENCES parent (name))")
    with pytest.raises(TargetError, match="foreign key mismatch") as raised:
        await migrate(database, *REBUILD)
    assert raised.value.code is Code.REFERENCES_BROKEN
    assert raised.value.details["table"] == "odd"


async def test_references_of_a_table_without_rowids_are_counted(database: SQLiteDatabase) -> None:
    await migrate(database, PARENT, "CREATE TABLE w (a PRIMARY KEY, p REFERENCES parent (id)) WITHOUT ROWID")
    with pytest.raises(TargetError, match="2 rows of w without a row of parent"):
        await migrate(database, "INSERT INTO w VALUES (1, 1), (2, 1)")


async def test_deferred_references_that_act_are_refused_at_the_commit(path: Path, database: SQLiteDatabase) -> None:
    deferred = CHILD.replace("ON DELETE CASCADE", "DEFERRABLE INITIALLY DEFERRED")
    await migrate(database, PARENT, deferred)
    with pytest.raises(TargetError) as raised:
        await migrate(database, "INSERT INTO child VALUES (5, 1)", enforce=True)
    assert raised.value.code is Code.REFERENCES_BROKEN
    assert raised.value.details["rowids"] == [5]
    assert rows(path, "SELECT count(*) FROM child") == [(0,)]


async def test_backfills_act_on_references(path: Path, database: SQLiteDatabase) -> None:
    await migrate(database, PARENT, CHILD, "INSERT INTO parent VALUES (1, 'a')", "INSERT INTO child VALUES (1, 1)")
    deleting = BackfillProgram("parent", ("id",), 5, "DELETE FROM parent WHERE id > :after AND id <= :upto")
    await begin_backfill(database, deleting)
    await finish_backfill(database, deleting)
    assert rows(path, "SELECT count(*) FROM child") == [(0,)]


# --- observation ------------------------------------------------------------------------------------------------------


async def test_observing_follows_vacuum_drops_and_others(
    path: Path, database: SQLiteDatabase, open_database: Opener
) -> None:
    async def check() -> None:
        fresh = open_database()
        assert await database.observe() == await fresh.observe()
        assert await database.describe() == await fresh.describe()
        await fresh.close()

    await migrate(database, *(f"CREATE TABLE t{number} (a INTEGER)" for number in range(5)))
    await check()
    await migrate(database, "DROP TABLE t4", "CREATE TABLE t9 (a TEXT)")
    await check()
    await database.execute_outside(GUARD, program("VACUUM", transactional=False))
    await migrate(database, "CREATE TABLE t10 (a TEXT)")
    await check()
    script(path, "DROP TABLE t10", "CREATE TABLE other (a)")
    await migrate(database, "CREATE INDEX i ON other (a)")
    await check()
    await migrate(database, "ANALYZE", "CREATE TABLE auto (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    await check()


async def test_tables_that_a_virtual_table_keeps_are_no_part_of_the_semantics(
    database: SQLiteDatabase, shadow: Shadow
) -> None:
    search = "CREATE VIRTUAL TABLE search USING fts5(body)"
    await migrate(database, search)
    assert set(await database.describe()) == {"table search"}
    await migrate(database, "CREATE TABLE t (a)")
    assert set(await database.describe()) == {"table search", "table t"}
    await shadow.run(program(search))
    await shadow.run(program("CREATE TABLE t (a)"))
    assert await shadow.observe() == await database.observe()


_NAMES = st.sampled_from(["a", "b", "c"])
_CHANGES = st.one_of(
    st.builds("CREATE TABLE IF NOT EXISTS {} (x {})".format, _NAMES, st.sampled_from(["INTEGER", "TEXT"])),
    st.builds("DROP TABLE IF EXISTS {}".format, _NAMES),
    st.builds("CREATE TABLE IF NOT EXISTS log_{} (x)".format, _NAMES),
    st.builds("CREATE VIEW IF NOT EXISTS v_{0} AS SELECT 1 AS {0}".format, _NAMES),
    st.builds("DROP VIEW IF EXISTS v_{}".format, _NAMES),
)
_STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "roll back", "elsewhere", "outside"]), st.lists(_CHANGES, max_size=3)),
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
async def test_what_is_read_piece_by_piece_is_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[str]]]
) -> None:
    path = tmp_path_factory.mktemp("observed") / "target.db"
    database = SQLiteDatabase(path, create=True)
    await database.raise_fence(GUARD, Control())
    for how, changes in steps:
        await change(database, path, how, changes)
        fresh = SQLiteDatabase(path)
        assert await database.describe() == await fresh.describe()
        assert await database.observe() == await fresh.observe()
        await fresh.close()
    await database.close()


async def change(database: SQLiteDatabase, path: Path, how: str, changes: Sequence[str]) -> None:
    if how == "elsewhere":
        script(path, *changes)
    elif how == "outside":
        await database.execute_outside(GUARD, program(*changes, "VACUUM", transactional=False))
    else:
        async with database.transaction(GUARD, Control()) as transaction:
            for statement in changes:
                await transaction.execute(program(statement))
                await transaction.observe()
            if how == "commit":
                await transaction.commit()


# --- keys of backfills ------------------------------------------------------------------------------------------------


async def begin_backfill(database: SQLiteDatabase, of: BackfillProgram) -> BackfillCursor:
    async with database.transaction(GUARD, Control(), enforce_references=True) as transaction:
        cursor = await transaction.begin_backfill("unit", EventId.random(), of)
        await transaction.commit()
    return cursor


async def finish_backfill(database: SQLiteDatabase, of: BackfillProgram) -> BackfillCursor:
    for _ in range(2_000):
        cursor = await database.advance_backfill(GUARD, Control(), "unit", of)
        if cursor.done:
            return cursor
    pytest.fail("it does not end")


def create(table: str) -> str:
    """The statement that makes the table `t` of these columns, or of these in parentheses and what comes behind."""
    return f"CREATE TABLE t {table if table.startswith('(') else f'({table})'}"


def marking(*key: str, batch: int = 2) -> BackfillProgram:
    if len(key) == 1:
        condition = f"{key[0]} > :after AND {key[0]} <= :upto"
    else:
        left, after = ", ".join(key), ", ".join(f":after_{column}" for column in key)
        upto = ", ".join(f":upto_{column}" for column in key)
        condition = f"({left}) > ({after}) AND ({left}) <= ({upto})"
    return BackfillProgram("t", key, batch, f"UPDATE t SET mark = coalesce(mark, 0) + 1 WHERE {condition}")


async def marked(database: SQLiteDatabase, path: Path, table: str, key: Sequence[str], values: Iterable[Any]) -> None:
    """Mark every row of a table once, in batches of two."""
    script(path, "DROP TABLE IF EXISTS t", table)
    expected = list(values)
    with closing(sqlite3.connect(path)) as connection:
        marks = ", ".join("?" * len(key))
        filled = [value if isinstance(value, tuple) else (value,) for value in expected]
        connection.executemany(f"INSERT INTO t ({', '.join(key)}) VALUES ({marks})", filled)
        connection.commit()
    await begin_backfill(database, marking(*key))
    cursor = await finish_backfill(database, marking(*key))
    assert rows(path, "SELECT count(*) FROM t WHERE mark = 1") == [(len(expected),)]
    assert cursor.matched == cursor.changed == cursor.rows == len(expected)
    assert cursor.transaction_groups == max(1, (len(expected) + 1) // 2)


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        ("k INTEGER PRIMARY KEY, mark", ["k"], [-(2**63), -1, 0, 1, 2**63 - 1]),
        ("k INTEGER PRIMARY KEY, mark", ["k"], [1, 2]),
        ("k TEXT PRIMARY KEY, mark", ["k"], ["a", "B", "é", "10", "9", "z\0z", "\U0001f600"]),
        ("k TEXT PRIMARY KEY COLLATE NOCASE, mark", ["k"], ["a", "B", "c", "D", "e"]),
        ("k TEXT COLLATE RTRIM UNIQUE, mark", ["k"], ["a ", "b  ", "c", "d"]),
        ("k BLOB PRIMARY KEY, mark", ["k"], [b"", b"\0", b"\0\0", b"\xff", b"a"]),
        ("k TEXT PRIMARY KEY, mark", ["k"], [b"", b"a", "b"]),
        ("k REAL PRIMARY KEY, mark", ["k"], [-1e300, -0.5, 0.25, 1e18, float("inf")]),
        ("k NUMERIC PRIMARY KEY, mark", ["k"], [1, 1.5, "x", b"y"]),
        ("k NUMERIC PRIMARY KEY, mark", ["k"], ["", "x"]),
        ("k PRIMARY KEY, mark", ["k"], [1, "1", b"1", 1.5, "", b""]),
        ("k PRIMARY KEY, mark", ["k"], ["", "a"]),
        ("(k ANY PRIMARY KEY, mark INTEGER) STRICT, WITHOUT ROWID", ["k"], [3, "3", b"3", "", -1.5]),
        ("(k TEXT PRIMARY KEY, mark) WITHOUT ROWID", ["k"], ["a", "b", "c"]),
        ("other TEXT, mark", ["rowid"], range(-3, 4)),
        ("other TEXT, mark", ["_ROWID_"], range(1, 4)),
        ("rowid TEXT UNIQUE, mark", ["rowid"], ["a", "b"]),
        ("a TEXT, b INTEGER, mark, PRIMARY KEY (a, b)", ["a", "b"], [("x", 2), ("x", 1), ("y", -5), ("w", 9)]),
        ("(a, b, c BLOB, mark, PRIMARY KEY (a, b, c)) WITHOUT ROWID", ["a", "b", "c"],
         [(1, "x", b""), (1, b"x", b""), ("1", 1, b"\1"), (1, "x", b"\1"), (0.5, "", b"")]),
        ("a, b, mark, UNIQUE (a, b)", ["A", "B"], [(1, 1), (2, 1), (1, 2)]),
    ],
)  # fmt: skip
async def test_a_backfill_reaches_every_row_once(
    path: Path, database: SQLiteDatabase, table: str, key: list[str], values: Iterable[Any]
) -> None:
    await marked(database, path, create(table), key, values)


_VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=3),
    st.binary(max_size=3),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["", "TEXT", "BLOB", "NUMERIC", "TEXT COLLATE NOCASE"]), values=st.lists(_VALUES, max_size=9)
)
async def test_whatever_the_keys_are_every_row_is_reached_once(
    path: Path, database: SQLiteDatabase, kind: str, values: list[Any]
) -> None:
    with closing(sqlite3.connect(":memory:")) as scratch:
        scratch.execute(f"CREATE TABLE t (k {kind} PRIMARY KEY)")
        scratch.executemany("INSERT OR IGNORE INTO t VALUES (?)", [(value,) for value in values])
        distinct = [value for (value,) in scratch.execute("SELECT k FROM t")]
    await marked(database, path, f"CREATE TABLE t (k {kind} PRIMARY KEY, mark)", ["k"], distinct)


@pytest.mark.parametrize(
    ("table", "value"),
    [("k TEXT PRIMARY KEY", ""), ("k TEXT COLLATE RTRIM PRIMARY KEY", "  "), ("k REAL PRIMARY KEY", float("-inf"))],
)
async def test_a_key_that_nothing_lies_below_is_refused(
    path: Path, database: SQLiteDatabase, table: str, value: object
) -> None:
    script(path, f"CREATE TABLE t ({table}, mark)")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO t (k) VALUES (?)", (value,))
        connection.commit()
    with pytest.raises(InvalidContractError, match="below it") as raised:
        await begin_backfill(database, marking("k"))
    assert raised.value.code is Code.BACKFILL_KEY


@pytest.mark.parametrize(
    ("table", "key", "word"),
    [
        ("a TEXT COLLATE NOCASE, UNIQUE (a COLLATE BINARY)", ("a",), "collation"),
        ("a TEXT COLLATE NOCASE UNIQUE", ("a",), None),
        ("(a INTEGER PRIMARY KEY) WITHOUT ROWID", ("rowid",), "no column rowid"),
        ("(a INTEGER PRIMARY KEY) WITHOUT ROWID", ("a",), None),
        ("a", ("rowid",), None),
        ("rowid", ("rowid",), "primary key"),
        ("a, rowid UNIQUE", ("oid",), None),
        ("a, b AS (a + 1) UNIQUE", ("b",), None),
        ('a, "b c", UNIQUE (a, "b c")', ("a", "b c"), "parameter"),
        ('"b c" UNIQUE', ("b c",), None),
        ('"b "" c" UNIQUE', ('b " c',), None),
        ("a", (), "primary key"),
    ],
)  # fmt: skip
async def test_a_key_tells_rows_apart_as_its_columns_compare(
    shadow: Shadow, table: str, key: tuple[str, ...], word: str | None
) -> None:
    await shadow.run(program(create(table)))
    problem = await shadow.key_problem(BackfillProgram("T", key, 10, ""))
    if word is None:
        assert problem is None
    else:
        assert problem is not None
        assert word in problem


async def test_an_index_of_a_part_or_of_expressions_is_no_key(shadow: Shadow) -> None:
    await shadow.run(program("CREATE TABLE t (a, b, c)"))
    await shadow.run(program("CREATE UNIQUE INDEX i ON t (a) WHERE b", "CREATE UNIQUE INDEX j ON t (b, a + 1)"))
    for column in ("a", "b"):
        assert await shadow.key_problem(BackfillProgram("t", (column,), 10, "")) is not None
    await shadow.run(program("CREATE VIRTUAL TABLE f USING fts5(a)"))
    assert "virtual" in (await shadow.key_problem(BackfillProgram("f", ("rowid",), 10, "")) or "")


async def test_statements_that_begin_with_a_comment_or_return_rows_are_counted(
    path: Path, database: SQLiteDatabase
) -> None:
    with_orders(path, 25)
    odd = BackfillProgram(
        "orders",
        ("id",),
        10,
        "/* x */ WITH t AS (SELECT 2 AS a) UPDATE orders SET cents = (SELECT a FROM t) WHERE id > :after AND id <= :upto"
        " RETURNING id",
    )
    await begin_backfill(database, odd)
    assert (await finish_backfill(database, odd)).changed == 25


# --- what is refused, or honoured in its place ------------------------------------------------------------------------

OFF = "transaction=off"


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("BEGIN", "leave it out"),
        ("begin immediate", "leave it out"),
        ("COMMIT", "one transaction"),
        ("END", "one transaction"),
        ("/* a */ ROLLBACK -- b", "one transaction"),
        ("SAVEPOINT a", "one transaction"),
        ("RELEASE a", "one transaction"),
        ("-- x\nVACUUM", OFF),
        ("VACUUM main", OFF),
        ("VACUUM INTO 'copy.db'", "another file"),
        ("ATTACH 'x.db' AS x", "one database"),
        ("DETACH x", "one database"),
        ("SELECT 1", "journal: assert"),
        ("VALUES (1)", "journal: assert"),
        ("EXPLAIN SELECT 1", "leave it out"),
        ("PRAGMA foreign_keys = ON", "first statement"),
        ("PRAGMA main.foreign_keys(0)", "first statement"),
        ("PRAGMA foreign_keys", "ON or OFF"),
        ("PRAGMA foreign_key_check", "before the commit"),
        ("PRAGMA foreign_key_check(orders)", "before the commit"),
        ("PRAGMA integrity_check", "pragma_integrity_check"),
        ("PRAGMA quick_check", "pragma_quick_check"),
        ("PRAGMA journal_mode = WAL", OFF),
        ("PRAGMA page_size = 8192", OFF),
        ("PRAGMA auto_vacuum = FULL", OFF),
        ("PRAGMA wal_checkpoint", OFF),
        ("PRAGMA encoding = 'UTF-16'", "create the database"),
        ("PRAGMA synchronous = OFF", "application"),
        ("PRAGMA cache_size = -2000", "application"),
        ("PRAGMA recursive_triggers = 1", "application"),
        ("PRAGMA busy_timeout = 5", "application"),
        ("PRAGMA temp_store = MEMORY", "application"),
        ("PRAGMA legacy_alter_table = ON", "application"),
        ("PRAGMA table_info(orders)", "leave it out"),
        ("PRAGMA user_version", "leave it out"),
        ("PRAGMA application_id", "leave it out"),
        ("PRAGMA writable_schema = ON", "statements"),
        ("PRAGMA schema_version = 3", "statements"),
        ("PRAGMA optimize", "ANALYZE"),
        ("PRAGMA forein_keys = ON", "check the name"),
        ("PRAGMA", "check the name"),
    ],
)
async def test_what_would_be_without_effect_or_break_the_step_is_refused(
    shadow: Shadow, statement: str, word: str
) -> None:
    with pytest.raises(InvalidContractError) as raised:
        await shadow.lower([ORDERS, statement, "CREATE TABLE t (a)"], transactional=True)
    assert raised.value.code is Code.STATEMENT_REFUSED
    assert raised.value.details["statement"] == 2
    assert word in raised.value.message


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("BEGIN", "transaction=off"),
        ("COMMIT", "commits by itself"),
        ("ATTACH 'x.db' AS x", "one database"),
        ("VACUUM INTO 'copy.db'", "another file"),
        ("SELECT 1", "journal: assert"),
        ("PRAGMA defer_foreign_keys = ON", "here is none"),
        ("PRAGMA journal_mode = MEMORY", "application"),
        ("PRAGMA journal_mode", "leave it out"),
        ("PRAGMA page_size = 8192", "VACUUM"),
        ("PRAGMA auto_vacuum = 1", "VACUUM"),
        ("PRAGMA encoding = 'UTF-16'", "create the database"),
        ("PRAGMA synchronous = OFF", "application"),
    ],
)
async def test_without_a_transaction_much_is_refused_too(shadow: Shadow, statement: str, word: str) -> None:
    with pytest.raises(InvalidContractError, match=word) as raised:
        await shadow.lower([statement], transactional=False)
    assert raised.value.details["statement"] == 1


@pytest.mark.parametrize(
    ("statements", "kept", "enforces"),
    [
        (["PRAGMA foreign_keys = ON", ORDERS], (2,), True),
        (["PRAGMA foreign_keys=off", ORDERS, "PRAGMA foreign_keys=on"], (2,), False),
        (["PRAGMA foreign_keys = 1", "PRAGMA foreign_keys = 0", ORDERS, "DROP TABLE orders"], (3, 4), False),
        ([ORDERS, "pragma main . foreign_keys ( 'yes' )"], (1,), False),
        (
            ["PRAGMA defer_foreign_keys = ON", "PRAGMA user_version = 7", "PRAGMA application_id = 0x10"],
            (1, 2, 3),
            False,
        ),
        (["ANALYZE", "REINDEX", ORDERS], (1, 2, 3), False),
    ],
)
async def test_what_has_a_place_is_honoured_there(
    shadow: Shadow, statements: list[str], kept: tuple[int, ...], enforces: bool
) -> None:
    lowered = await shadow.lower(statements, transactional=True)
    assert lowered.numbers == kept
    assert lowered.statements == tuple(statements[number - 1] for number in kept)
    assert lowered.enforce_references is enforces
    await shadow.run(lowered)


async def test_a_setting_of_references_alone_is_refused(shadow: Shadow) -> None:
    with pytest.raises(InvalidContractError, match="nothing else"):
        await shadow.lower(["PRAGMA foreign_keys = OFF"], transactional=True)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("CREATE TEMP TABLE x (a)", "x is temporary"),
        ("CREATE TABLE temp.x (a)", "x is temporary"),
        ("CREATE TEMPORARY VIEW x AS SELECT 1", "x is temporary"),
        ("CREATE TEMP TRIGGER x AFTER INSERT ON orders BEGIN SELECT 1; END", "x is temporary"),
        ("WITH a AS (SELECT 1) SELECT * FROM a", "journal: assert"),
        ("INSERT INTO orders SELECT 1, load_extension('x'), 2", "extensions"),
        ("CREATE TABLE x AS SELECT load_extension('x') AS a", "extensions"),
        ("DELETE FROM _journal_fences", "journal's own"),
        ("UPDATE _JOURNAL_witnesses SET token = x''", "journal's own"),
        ("DROP TABLE _journal_cursors", "journal's own"),
        ("ALTER TABLE _journal_fences ADD COLUMN a", "journal's own"),
        ("CREATE INDEX i ON _journal_fences (fence)", "journal's own"),
        ("CREATE TRIGGER x AFTER INSERT ON _journal_fences BEGIN SELECT 1; END", "journal's own"),
        ("INSERT INTO orders SELECT 1, fence, 1 FROM _journal_fences", "journal's own"),
        ("CREATE TABLE _journal_mine (a)", "journal's own"),
        ("ALTER TABLE orders RENAME TO _journal_mine", "kept for the journal"),
    ],
)
async def test_the_compiler_sees_what_words_do_not_show(shadow: Shadow, statement: str, word: str) -> None:
    before = await shadow.run(program(ORDERS))
    with pytest.raises(InvalidContractError) as raised:
        await shadow.run(await shadow.lower(["CREATE TABLE t (a)", statement], transactional=True))
    assert raised.value.code is Code.STATEMENT_REFUSED
    assert raised.value.details["statement"] == 2
    assert word in raised.value.message
    assert await shadow.observe() == before


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("CREATE TABLE t (a CHECK (mine(a)))", "mine"),
        ("CREATE VIRTUAL TABLE t USING mine(a)", "mine"),
        ("CREATE INDEX t ON orders (total COLLATE mine)", "mine"),
        ("INSERT INTO orders SELECT 1, mine(1), 1", "mine"),
        ("UPDATE mine SET a = 1", "mine"),
        ("CREATE TABL mine (a)", "TABL"),
    ],
)
async def test_what_the_database_does_not_have_is_named(shadow: Shadow, statement: str, name: str) -> None:
    await shadow.run(program(ORDERS))
    with pytest.raises(TargetError, match=name) as raised:
        await shadow.run(await shadow.lower([statement], transactional=True))
    assert raised.value.code is Code.STATEMENT_FAILED
    assert raised.value.details["statement"] == 1


async def test_the_compiler_judges_queries_and_backfills(shadow: Shadow) -> None:
    await shadow.run(program(ORDERS))
    own = BackfillProgram(
        "orders", ("id",), 5, "DELETE FROM _journal_witnesses WHERE token > :after AND token <= :upto"
    )
    for checked in (
        shadow.check_query("SELECT count(*) FROM _journal_fences"),
        shadow.check_query("WITH a AS (SELECT 1) DELETE FROM orders"),
        shadow.check_query("SELECT ?"),
        shadow.check_backfill(own),
    ):
        with pytest.raises(InvalidContractError) as raised:
            await checked
        assert raised.value.code is Code.STATEMENT_REFUSED
    await shadow.check_query("SELECT integrity_check = 'ok' FROM pragma_integrity_check")
    await shadow.check_query("SELECT count(*) = 0 FROM pragma_table_info('orders') WHERE name = 'x'")


async def test_settings_that_last_are_made_outside_of_transactions(
    path: Path, database: SQLiteDatabase, shadow: Shadow
) -> None:
    statements = ["PRAGMA page_size = 8192", "PRAGMA auto_vacuum = INCREMENTAL", "VACUUM", "PRAGMA journal_mode = WAL"]
    lowered = await shadow.lower(statements, transactional=False)
    await shadow.run(lowered)
    await database.execute_outside(GUARD, lowered)
    assert rows(path, "PRAGMA page_size") == [(8192,)]
    assert rows(path, "PRAGMA auto_vacuum") == [(2,)]
    assert rows(path, "PRAGMA journal_mode") == [("wal",)]
    with pytest.raises(TargetError, match="page_size stays 8192") as raised:  # which WAL mode does not change
        await database.execute_outside(
            GUARD, await shadow.lower(["PRAGMA page_size = 4096", "VACUUM"], transactional=False)
        )
    assert raised.value.details["statement"] == 1


async def test_a_target_that_fails_between_two_statements_has_them(path: Path, database: SQLiteDatabase) -> None:
    filling = program(
        ORDERS, "PRAGMA max_page_count = 10", "CREATE TABLE b AS SELECT zeroblob(1000000) AS a", transactional=False
    )
    with pytest.raises(TargetError) as raised:
        await database.execute_outside(GUARD, filling)
    assert raised.value.code is Code.STATEMENT_FAILED
    assert raised.value.details["statement"] == 3
    assert rows(path, "SELECT count(*) FROM orders") == [(0,)]


async def test_a_shadow_can_be_interrupted(shadow: Shadow) -> None:
    endless = "CREATE TABLE t AS WITH RECURSIVE n (a) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT max(a) AS a FROM n"
    task = asyncio.create_task(shadow.run(program(endless)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    assert await shadow.describe() == {}


@pytest.mark.parametrize("text", ["CREATE TABLE t (a DEFAULT 'x\0y')", "CREATE TABLE t (a DEFAULT '\ud800')"])
async def test_a_text_that_sqlite_cannot_take_is_an_error_of_its_statement(shadow: Shadow, text: str) -> None:
    with pytest.raises(JournalError) as raised:
        await shadow.run(program(text))
    assert raised.value.code is Code.STATEMENT_FAILED
    assert raised.value.details["statement"] == 1
