"""The contract of `Database`, `Transaction` and `Shadow`, sentence by sentence, over every adapter.

A `Target` is one database that an adapter keeps somewhere. `open` gives a new instance on it, as another process would
have; `script` and `rows` go past the adapter, as an application does. The SQL here is understood by every adapter.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.control import Cancellation, Control
from journal.databases.sqlite import SQLiteDatabase
from journal.errors import (
    Code,
    FencedError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    OperationCancelledError,
    ResourceLimitError,
    TargetError,
    UnavailableError,
)
from journal.identities import EventId, Fence, Incarnation, Scope
from journal.ports import BackfillCursor, BackfillProgram, Database, Guard, Program, Shadow, Transaction

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, cents INTEGER)"
CENTS = BackfillProgram(
    "orders", ("id",), 10, "UPDATE orders SET cents = total * 100 WHERE id > :after AND id <= :upto AND cents IS NULL"
)
SCOPE = Scope("shop")
GUARD = Guard(SCOPE, Incarnation(bytes(16)), Fence(1))


@dataclass
class Target:
    """One database, its adapter and the way past it."""

    open: Callable[[], Database]
    missing: Callable[[], Database]
    script: Callable[[str], None]
    rows: Callable[[str], list[tuple[Any, ...]]]


def sqlite_target(folder: Path, opened: list[Database]) -> Target:
    path = folder / "target.db"

    def script(text: str) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(text)

    def rows(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(path)) as connection:
            return connection.execute(query).fetchall()

    def remember(database: Database) -> Database:
        opened.append(database)
        return database

    return Target(
        lambda: remember(SQLiteDatabase(path, create=True)),
        lambda: remember(SQLiteDatabase(folder / "missing.db")),
        script,
        rows,
    )


@pytest.fixture(params=[sqlite_target], ids=["sqlite"])
async def target(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Target]:
    opened: list[Database] = []
    yield request.param(tmp_path, opened)
    for database in opened:
        await database.close()


@pytest.fixture
async def database(target: Target) -> Database:
    """A database whose fence is raised."""
    database = target.open()
    await database.raise_fence(GUARD, Control())
    return database


@pytest.fixture
async def shadow(database: Database) -> AsyncIterator[Shadow]:
    shadow = await database.shadow()
    yield shadow
    await shadow.close()


def guard(fence: int, *, scope: Scope = SCOPE, incarnation: Incarnation = GUARD.incarnation) -> Guard:
    return Guard(scope, incarnation, Fence(fence))


def program(*statements: str, transactional: bool = True, enforce: bool = False) -> Program:
    return Program(statements, tuple(range(1, len(statements) + 1)), transactional, enforce)


async def migrate(database: Database, *statements: str, under: Guard = GUARD) -> None:
    async with database.transaction(under, Control()) as transaction:
        await transaction.execute(program(*statements))
        await transaction.commit()


async def inserted(database: Database, table: str, values: Iterable[str]) -> None:
    await migrate(database, f"INSERT INTO {table} VALUES {', '.join(f'({value})' for value in values)}")


def jumping_clock(seconds: float) -> Callable[[], float]:
    """A clock on which that much time passes between two looks."""
    now = iter(range(10_000))
    return lambda: next(now) * seconds


# --- profiles and observation -----------------------------------------------------------------------------------------


async def test_profiles_are_the_same_for_every_instance(target: Target) -> None:
    one, other = target.open(), target.open()
    assert one.semantic_profile == other.semantic_profile
    assert one.lowering_profile == other.lowering_profile
    assert one.semantic_profile != one.lowering_profile


async def test_bookkeeping_is_no_part_of_the_semantics(target: Target) -> None:
    database = target.open()
    before = await database.observe()
    await database.raise_fence(GUARD, Control())
    assert await database.observe() == before
    assert await database.describe() == {}


async def test_the_live_schema_is_what_was_committed_by_whomever(target: Target, database: Database) -> None:
    empty = await database.observe()
    other = target.open()
    async with other.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS))
        changed = await transaction.observe()
        assert changed != empty
        assert await database.observe() == empty
        await transaction.commit()
    assert await database.observe() == await other.observe() == changed
    target.script("DROP TABLE orders")
    assert await database.observe() == await other.observe() == empty


async def test_a_schema_is_described_object_by_object(database: Database) -> None:
    await migrate(database, ORDERS, "CREATE INDEX by_total ON orders (total)", "CREATE VIEW v AS SELECT id FROM orders")
    assert set(await database.describe()) == {"table orders", "index by_total", "view v"}


async def test_a_database_that_is_missing_is_said_to_be(target: Target) -> None:
    database = target.missing()
    for asked in (database.observe(), database.describe(), database.raise_fence(GUARD, Control())):
        with pytest.raises(InvalidContractError) as raised:
            await asked
        assert raised.value.code is Code.MISSING_TARGET


async def test_a_table_without_rows_or_that_is_not_there_is_empty(database: Database) -> None:
    assert await database.is_empty("orders")
    await migrate(database, ORDERS)
    assert await database.is_empty("orders")
    await inserted(database, "orders", ["1, 10, NULL"])
    assert not await database.is_empty("orders")


# --- fences -----------------------------------------------------------------------------------------------------------


async def test_a_fence_is_raised_once_and_again(database: Database) -> None:
    await database.raise_fence(GUARD, Control())
    await database.raise_fence(guard(7), Control())
    await migrate(database, ORDERS, under=guard(7))


async def test_a_smaller_fence_is_refused(database: Database) -> None:
    await database.raise_fence(guard(3), Control())
    with pytest.raises(FencedError) as raised:
        await database.raise_fence(guard(2), Control())
    assert raised.value.code is Code.TARGET_FENCED
    assert raised.value.details["raised"] == 3


async def test_no_transaction_begins_under_a_smaller_fence(target: Target, database: Database) -> None:
    await target.open().raise_fence(guard(2), Control())
    with pytest.raises(FencedError) as raised:
        async with database.transaction(GUARD, Control()):
            pytest.fail("entered")
    assert raised.value.code is Code.TARGET_FENCED
    with pytest.raises(FencedError):
        await database.execute_outside(GUARD, program("CREATE TABLE t (a INTEGER)", transactional=False))
    assert await database.describe() == {}


async def test_no_transaction_begins_before_a_fence_was_raised(target: Target) -> None:
    database = target.open()
    target.script(ORDERS)
    with pytest.raises(FencedError):
        async with database.transaction(GUARD, Control()):
            pytest.fail("entered")


async def test_raising_a_fence_waits_for_a_transaction_in_flight(target: Target, database: Database) -> None:
    order: list[str] = []
    successor = target.open()

    async def take_over() -> None:
        await successor.raise_fence(guard(2), Control())
        order.append("raised")

    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS))
        taking_over = asyncio.create_task(take_over())
        with pytest.raises(ResourceLimitError):  # so it has to wait
            await target.open().raise_fence(guard(2), Control.within(timedelta(milliseconds=150)))
        await transaction.commit()
        order.append("committed")
    await asyncio.wait_for(taking_over, 10)
    assert order == ["committed", "raised"]
    assert "table orders" in await successor.describe()
    with pytest.raises(FencedError):
        await migrate(database, "DROP TABLE orders")


async def test_waiting_for_the_lock_ends_with_its_deadline(target: Target, database: Database) -> None:
    async with database.transaction(GUARD, Control()):
        with pytest.raises(ResourceLimitError) as raised:
            async with target.open().transaction(GUARD, Control.within(timedelta(milliseconds=50))):
                pytest.fail("entered")
    assert raised.value.code is Code.DEADLINE_EXCEEDED


async def test_waiting_for_the_lock_ends_when_it_is_cancelled(target: Target, database: Database) -> None:
    cancellation = Cancellation()
    async with database.transaction(GUARD, Control()):
        waiting = asyncio.create_task(target.open().raise_fence(guard(2), Control(cancellation)))
        await asyncio.sleep(0)
        cancellation.cancel()
        with pytest.raises(OperationCancelledError):
            await asyncio.wait_for(waiting, 10)
    await migrate(database, ORDERS)


async def test_waiting_for_the_lock_without_a_deadline_ends_some_time(target: Target, database: Database) -> None:
    async with database.transaction(GUARD, Control()):
        with pytest.raises(UnavailableError) as raised:
            await target.open().raise_fence(guard(2), Control(clock=jumping_clock(25)))
    assert raised.value.code is Code.TARGET_BUSY


async def test_nothing_begins_after_a_cancellation(database: Database) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(OperationCancelledError):
        await database.raise_fence(guard(2), Control(cancellation))
    with pytest.raises(OperationCancelledError):
        async with database.transaction(GUARD, Control(cancellation)):
            pytest.fail("entered")


async def test_another_journal_is_refused_under_the_same_scope(database: Database) -> None:
    foreign = guard(9, incarnation=Incarnation(b"\1" * 16))
    with pytest.raises(IntegrityError) as raised:
        await database.raise_fence(foreign, Control())
    assert raised.value.code is Code.FOREIGN_TARGET
    with pytest.raises(IntegrityError):
        async with database.transaction(foreign, Control()):
            pytest.fail("entered")
    await migrate(database, ORDERS)


async def test_a_target_that_is_adopted_belongs_to_the_new_journal(database: Database) -> None:
    await database.raise_fence(guard(9), Control())
    adopted = guard(1, incarnation=Incarnation(b"\1" * 16))
    await database.raise_fence(adopted, Control(), adopt=True)
    await migrate(database, ORDERS, under=adopted)
    with pytest.raises(IntegrityError):
        await migrate(database, "DROP TABLE orders", under=guard(9))


async def test_scopes_know_nothing_of_each_other(database: Database) -> None:
    other = guard(5, scope=Scope("stock"), incarnation=Incarnation(b"\2" * 16))
    await database.raise_fence(other, Control())
    token = EventId.random()
    async with database.transaction(other, Control()) as transaction:
        await transaction.stamp("unit", token)
        await transaction.commit()
    assert await database.witness(other.scope, "unit") == token
    assert await database.witness(SCOPE, "unit") is None
    await migrate(database, ORDERS)


# --- transactions -----------------------------------------------------------------------------------------------------


async def test_leaving_without_a_commit_rolls_back(target: Target, database: Database) -> None:
    before = await database.observe()
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS, "INSERT INTO orders VALUES (1, 10, NULL)"))
        await transaction.stamp("unit", EventId.random())
    assert await database.observe() == before
    assert await database.witness(SCOPE, "unit") is None
    await migrate(target.open(), ORDERS)  # and no lock is left


async def test_an_exception_inside_rolls_back_and_comes_out(database: Database) -> None:
    async def break_off() -> None:
        async with database.transaction(GUARD, Control()) as transaction:
            await transaction.execute(program(ORDERS))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await break_off()
    assert await database.describe() == {}


async def test_a_cancelled_task_leaves_no_transaction(target: Target, database: Database) -> None:
    entered = asyncio.Event()

    async def work() -> None:
        async with database.transaction(GUARD, Control()) as transaction:
            await transaction.execute(program(ORDERS))
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await database.describe() == {}
    await migrate(target.open(), ORDERS)


async def test_what_a_transaction_does_is_there_once_it_is_committed(target: Target, database: Database) -> None:
    token = EventId.random()
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS, "INSERT INTO orders VALUES (1, 10, NULL)"))
        await transaction.stamp("unit", token)
        assert await target.open().witness(SCOPE, "unit") is None
        await transaction.commit()
    assert target.rows("SELECT * FROM orders") == [(1, 10, None)]
    assert await target.open().witness(SCOPE, "unit") == token


async def test_a_transaction_knows_the_schema_that_it_began_with(target: Target, database: Database) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        empty = transaction.source
        left = await transaction.execute(program(ORDERS))
        assert transaction.source == empty
        await transaction.commit()
    target.script("CREATE TABLE t (a INTEGER)")
    async with database.transaction(GUARD, Control()) as transaction:
        assert transaction.source == await transaction.observe()
        assert len({empty, left, transaction.source}) == 3


async def test_a_witness_is_that_of_the_last_transaction_that_committed(database: Database) -> None:
    first, second = EventId.random(), EventId.random()
    for token, commits in ((first, True), (second, True), (EventId.random(), False)):
        async with database.transaction(GUARD, Control()) as transaction:
            await transaction.stamp("unit", token)
            if commits:
                await transaction.commit()
    assert await database.witness(SCOPE, "unit") == second
    assert await database.witness(SCOPE, "another") is None


async def test_a_database_without_bookkeeping_has_no_witness_and_no_cursor(target: Target) -> None:
    target.script(ORDERS)
    database = target.open()
    assert await database.witness(SCOPE, "unit") is None
    assert await database.cursor(SCOPE, "unit") is None


async def test_a_failing_statement_is_numbered_and_nothing_stays(target: Target, database: Database) -> None:
    failing = Program((ORDERS, "INSERT INTO orders VALUES (1, NULL, NULL)", "SELECT 1"), (2, 5, 6))
    async with database.transaction(GUARD, Control()) as transaction:
        with pytest.raises(TargetError) as raised:
            await transaction.execute(failing)
        assert raised.value.code is Code.STATEMENT_FAILED
        assert raised.value.details["statement"] == 5
        assert isinstance(raised.value.__cause__, Exception)
        with pytest.raises(TargetError):
            await transaction.commit()
    assert await database.describe() == {}
    await migrate(target.open(), ORDERS)


async def test_a_transaction_that_is_over_takes_nothing_more(database: Database) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.commit()
        with pytest.raises(TargetError):
            await transaction.execute(program(ORDERS))
    assert await database.describe() == {}


async def test_an_empty_transaction_commits(database: Database) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program())
        await transaction.commit()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT 1 = 1", True),
        ("SELECT 1 = 2", False),
        ("SELECT NULL", False),
        ("SELECT count(*) = 0 FROM orders", True),
        ("SELECT 1 = 1 FROM orders", False),
        ("SELECT 1 = 1 UNION ALL SELECT 1 = 1", False),
        ("SELECT 1 = 1, 1 = 1", False),
        ("SELECT NOT EXISTS (SELECT 1 FROM orders WHERE cents IS NULL)", True),
    ],
)
async def test_a_query_holds_when_it_gives_one_true_value(database: Database, query: str, expected: bool) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS))
        assert await transaction.holds(query) is expected


async def test_after_a_failing_query_there_is_only_the_way_back(database: Database) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS))
        with pytest.raises(TargetError) as raised:
            await transaction.holds("SELECT nothing FROM nowhere")
        assert raised.value.code is Code.STATEMENT_FAILED
        with pytest.raises(TargetError):
            await transaction.commit()
    assert await database.describe() == {}


async def test_observations_follow_every_statement(database: Database, shadow: Shadow) -> None:
    statements = [
        ORDERS,
        "CREATE TABLE other (id INTEGER PRIMARY KEY)",
        "CREATE INDEX by_total ON orders (total)",
        "DROP TABLE other",
        "ALTER TABLE orders ADD COLUMN note TEXT",
        "CREATE VIEW v AS SELECT id FROM orders",
        "DROP VIEW v",
    ]
    seen = []
    async with database.transaction(GUARD, Control()) as transaction:
        for statement in statements:
            await transaction.execute(program(statement))
            seen.append(await transaction.observe())
            assert await shadow.run(program(statement)) == seen[-1]
        await transaction.commit()
    assert await database.observe() == seen[-1]
    assert len(set(seen)) == len(seen) - 1  # without the view it is what it was before the view


async def test_after_a_rollback_the_same_change_is_seen_anew(database: Database) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program("CREATE TABLE t (a INTEGER)"))
        rolled_back = await transaction.observe()
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program("CREATE TABLE t (a TEXT)"))
        other = await transaction.observe()
        await transaction.commit()
    assert rolled_back != other == await database.observe()


async def test_while_a_transaction_is_open_its_own_task_gets_no_second_one(database: Database) -> None:
    async with database.transaction(GUARD, Control()):
        with pytest.raises(JournalError) as raised:
            await database.witness(SCOPE, "unit")
        assert raised.value.code is Code.TARGET_BUSY


async def test_another_task_waits_for_the_open_transaction(database: Database) -> None:
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program(ORDERS))
        asking = asyncio.create_task(database.describe())
        await transaction.commit()
    assert "table orders" in await asyncio.wait_for(asking, 10)


# --- references -------------------------------------------------------------------------------------------------------

PARENT = "CREATE TABLE parent (id INTEGER PRIMARY KEY)"
CHILD = "CREATE TABLE child (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id))"


async def test_a_commit_that_would_leave_references_dangling_is_refused(target: Target, database: Database) -> None:
    await migrate(database, PARENT, CHILD, "INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (7, 1)")
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(program("DELETE FROM parent"))
        with pytest.raises(TargetError) as raised:
            await transaction.commit()
    assert raised.value.code is Code.REFERENCES_BROKEN
    assert raised.value.details["table"] == "child"
    assert raised.value.details["parent"] == "parent"
    assert target.rows("SELECT id FROM parent") == [(1,)]


async def test_references_may_dangle_until_the_commit(target: Target, database: Database) -> None:
    await migrate(database, PARENT, CHILD, "INSERT INTO child VALUES (7, 1)", "INSERT INTO parent VALUES (1)")
    assert target.rows("SELECT count(*) FROM child") == [(1,)]


async def test_enforced_references_act_at_once(database: Database) -> None:
    await migrate(database, PARENT, CHILD)
    async with database.transaction(GUARD, Control(), enforce_references=True) as transaction:
        with pytest.raises(TargetError) as raised:
            await transaction.execute(program("INSERT INTO child VALUES (7, 1)", enforce=True))
    assert raised.value.code is Code.STATEMENT_FAILED


# --- outside of transactions ------------------------------------------------------------------------------------------


async def test_outside_of_transactions_each_statement_stays(database: Database) -> None:
    statements = Program((ORDERS, "CREATE TABLE orders (id INTEGER)", "CREATE TABLE t (a INTEGER)"), (1, 3, 4), False)
    with pytest.raises(TargetError) as raised:
        await database.execute_outside(GUARD, statements)
    assert raised.value.code is Code.STATEMENT_FAILED
    assert raised.value.details["statement"] == 3
    assert set(await database.describe()) == {"table orders"}


async def test_after_a_run_outside_of_transactions_the_schema_is_seen(database: Database, shadow: Shadow) -> None:
    statements = program(ORDERS, "VACUUM", transactional=False)
    await database.execute_outside(GUARD, statements)
    assert await database.observe() == await shadow.run(statements)
    await migrate(database, "CREATE TABLE t (a INTEGER)")
    assert await database.observe() == await shadow.run(program("CREATE TABLE t (a INTEGER)"))


# --- backfills --------------------------------------------------------------------------------------------------------


async def begun(database: Database, of: BackfillProgram, token: EventId) -> BackfillCursor:
    async with database.transaction(GUARD, Control(), enforce_references=True) as transaction:
        cursor = await transaction.begin_backfill("unit", token, of)
        await transaction.commit()
    return cursor


async def advanced(database: Database, of: BackfillProgram, *, under: Guard = GUARD) -> BackfillCursor:
    return await database.advance_backfill(under, Control(), "unit", of)


async def finished(database: Database, of: BackfillProgram) -> BackfillCursor:
    """Run a backfill to its end; it must come, whatever the statement does."""
    await begun(database, of, EventId.random())
    for _ in range(1_000):
        if (cursor := await advanced(database, of)).done:
            return cursor
    pytest.fail("it does not end")


async def with_orders(database: Database, count: int) -> None:
    await migrate(database, ORDERS)
    await inserted(database, "orders", [f"{number}, {number}, NULL" for number in range(1, count + 1)])


async def test_a_backfill_goes_through_its_table_in_batches(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    token = EventId.random()
    assert await begun(database, CENTS, token) == BackfillCursor(token, 25, 0, 0, 0, 0, done=False)
    expected = [(10, 1, False), (20, 2, False), (25, 3, True)]
    for rows, groups, done in expected:
        cursor = await advanced(database, CENTS)
        assert cursor == BackfillCursor(token, 25, rows, rows, 0, groups, done)
        assert await target.open().cursor(SCOPE, "unit") == cursor
    assert target.rows("SELECT count(*) FROM orders WHERE cents = total * 100") == [(25,)]


async def test_a_backfill_ends_with_its_last_full_batch(database: Database) -> None:
    await with_orders(database, 20)
    cursor = await finished(database, CENTS)
    assert (cursor.matched, cursor.transaction_groups) == (20, 2)


async def test_rows_that_the_statement_leaves_alone_are_skipped(database: Database) -> None:
    await with_orders(database, 25)
    await migrate(database, "UPDATE orders SET cents = 0 WHERE id <= 4")
    cursor = await finished(database, CENTS)
    assert (cursor.matched, cursor.changed, cursor.skipped) == (25, 21, 4)


async def test_a_backfill_of_an_empty_table_has_one_batch(database: Database) -> None:
    await migrate(database, ORDERS)
    cursor = await finished(database, CENTS)
    assert (cursor.rows, cursor.matched, cursor.transaction_groups) == (0, 0, 1)


async def test_a_table_without_rows_needs_no_key(database: Database) -> None:
    await migrate(database, "CREATE TABLE orders (id INTEGER, total INTEGER, cents INTEGER)")
    assert (await finished(database, CENTS)).rows == 0


async def test_a_table_that_is_emptied_meanwhile_ends_the_backfill(database: Database) -> None:
    await with_orders(database, 25)
    await begun(database, CENTS, EventId.random())
    await advanced(database, CENTS)
    await migrate(database, "DELETE FROM orders")
    cursor = await advanced(database, CENTS)
    assert (cursor.matched, cursor.transaction_groups, cursor.done) == (10, 2, True)


async def test_rows_that_are_inserted_behind_the_last_key_are_left_out(target: Target, database: Database) -> None:
    await with_orders(database, 15)
    await begun(database, CENTS, EventId.random())
    for number in range(16, 60):
        target.script(f"INSERT INTO orders VALUES ({number}, 1, NULL)")
        if (cursor := await advanced(database, CENTS)).done:
            break
    assert cursor.matched == 15
    assert target.rows("SELECT max(id) FROM orders WHERE cents IS NOT NULL") == [(15,)]


async def test_no_batch_is_run_under_a_smaller_fence(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    cursor = await begun(database, CENTS, EventId.random())
    await target.open().raise_fence(guard(2), Control())
    with pytest.raises(FencedError) as raised:
        await advanced(database, CENTS)
    assert raised.value.code is Code.TARGET_FENCED
    assert await database.cursor(SCOPE, "unit") == cursor
    assert target.rows("SELECT count(*) FROM orders WHERE cents IS NOT NULL") == [(0,)]
    assert (await advanced(target.open(), CENTS, under=guard(2))).matched == 10


async def test_a_batch_waits_for_the_lock_within_its_control(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    await begun(database, CENTS, EventId.random())
    async with database.transaction(GUARD, Control()) as transaction:
        waiting = asyncio.create_task(advanced(target.open(), CENTS))
        with pytest.raises(ResourceLimitError):
            await target.open().advance_backfill(GUARD, Control.within(timedelta(milliseconds=50)), "unit", CENTS)
        await transaction.commit()
    assert (await asyncio.wait_for(waiting, 10)).transaction_groups == 1


async def test_a_batch_enforces_references(target: Target, database: Database) -> None:
    await migrate(database, PARENT, CHILD, "INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (1, 1)")
    orphaning = BackfillProgram("child", ("id",), 10, "UPDATE child SET parent = 99 WHERE id > :after AND id <= :upto")
    await begun(database, orphaning, EventId.random())
    with pytest.raises(TargetError):
        await advanced(database, orphaning)
    assert target.rows("SELECT parent FROM child") == [(1,)]


async def test_a_batch_that_fails_left_nothing(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    await migrate(database, "CREATE TABLE log (id INTEGER PRIMARY KEY)")
    copying = BackfillProgram(
        "orders", ("id",), 10, "INSERT INTO log SELECT id / 20 FROM orders WHERE id > :after AND id <= :upto"
    )
    cursor = await begun(database, copying, EventId.random())
    with pytest.raises(TargetError) as raised:
        await advanced(database, copying)
    assert raised.value.code is Code.STATEMENT_FAILED
    assert await database.cursor(SCOPE, "unit") == cursor
    assert target.rows("SELECT count(*) FROM log") == [(0,)]


async def test_a_statement_that_changes_more_than_its_batch_is_refused(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    greedy = BackfillProgram("orders", ("id",), 10, "UPDATE orders SET cents = 1 WHERE id > :after OR id > :upto")
    await begun(database, greedy, EventId.random())
    with pytest.raises(TargetError) as raised:
        await advanced(database, greedy)
    assert raised.value.code is Code.BACKFILL_ROWS
    assert target.rows("SELECT count(*) FROM orders WHERE cents IS NOT NULL") == [(0,)]


async def test_a_new_begin_replaces_the_cursor(database: Database) -> None:
    await with_orders(database, 25)
    await finished(database, CENTS)
    token = EventId.random()
    assert await begun(database, CENTS, token) == BackfillCursor(token, 25, 0, 0, 0, 0, done=False)
    assert await database.cursor(SCOPE, "unit") == BackfillCursor(token, 25, 0, 0, 0, 0, done=False)


async def test_a_backfill_that_is_done_stays_as_it_is(database: Database) -> None:
    await with_orders(database, 5)
    cursor = await finished(database, CENTS)
    assert await advanced(database, CENTS) == cursor


async def test_a_backfill_that_was_not_begun_does_not_advance(database: Database) -> None:
    await with_orders(database, 5)
    with pytest.raises(TargetError) as raised:
        await advanced(database, CENTS)
    assert raised.value.code is Code.UNEXPECTED_RESULT


async def test_the_last_batch_commits_only_with_a_verification_that_holds(target: Target, database: Database) -> None:
    verified = replace(CENTS, verify="SELECT NOT EXISTS (SELECT 1 FROM orders WHERE id <= :upto AND cents IS NULL)")
    leaving_one = replace(verified, statement=f"{CENTS.statement} AND total <> 3")
    await with_orders(database, 15)
    await begun(database, leaving_one, EventId.random())
    await inserted(database, "orders", ["99, 1, NULL"])  # behind the last key, so nothing of the verification's
    first = await advanced(database, leaving_one)  # not the last, so nothing is verified
    assert not first.done
    for _ in range(2):
        with pytest.raises(TargetError) as raised:
            await advanced(database, leaving_one)
        assert raised.value.code is Code.VERIFY_FAILED
        assert await database.cursor(SCOPE, "unit") == first
        assert target.rows("SELECT count(*) FROM orders WHERE cents IS NOT NULL") == [(9,)]
    target.script("UPDATE orders SET cents = 300 WHERE id = 3")
    assert (await advanced(database, verified)).done


async def test_a_verification_that_fails_is_told_from_a_statement_that_does(database: Database) -> None:
    await with_orders(database, 5)
    for broken, number in (
        (replace(CENTS, verify="SELECT 1 FROM nowhere WHERE :upto"), 2),
        (replace(CENTS, statement="UPDATE nowhere SET a = :after AND :upto", verify="SELECT 1"), 1),
    ):
        before = await begun(database, broken, EventId.random())
        with pytest.raises(TargetError, match="nowhere") as raised:
            await advanced(database, broken)
        assert raised.value.code is Code.STATEMENT_FAILED
        assert raised.value.details.get("statement", 1) == number
        assert await database.cursor(SCOPE, "unit") == before


async def test_a_verification_of_an_empty_table_holds(database: Database) -> None:
    await migrate(database, ORDERS)
    query = "SELECT NOT EXISTS (SELECT 1 FROM orders WHERE id <= :upto)"
    assert (await finished(database, replace(CENTS, verify=query))).rows == 0


async def test_a_statement_that_moves_its_own_keys_ends(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    moving = BackfillProgram(
        "orders", ("id",), 10, "UPDATE orders SET id = id + 1000 WHERE id > :after AND id <= :upto"
    )
    cursor = await finished(database, moving)
    assert (cursor.matched, cursor.changed, cursor.transaction_groups) == (25, 25, 3)
    assert target.rows("SELECT min(id), max(id) FROM orders") == [(1001, 1025)]


async def test_a_statement_that_deletes_its_rows_ends(target: Target, database: Database) -> None:
    await with_orders(database, 25)
    deleting = BackfillProgram("orders", ("id",), 10, "DELETE FROM orders WHERE id > :after AND id <= :upto")
    assert (await finished(database, deleting)).changed == 25
    assert target.rows("SELECT count(*) FROM orders") == [(0,)]


async def test_text_is_a_key(target: Target, database: Database) -> None:
    await migrate(database, "CREATE TABLE words (word VARCHAR(20) PRIMARY KEY, size INTEGER)")
    await inserted(database, "words", [f"'{letter * 3}', NULL" for letter in "azAZ09_-é"])
    sizes = BackfillProgram(
        "words", ("word",), 2, "UPDATE words SET size = 3 WHERE word > :after AND word <= :upto AND size IS NULL"
    )
    assert (await finished(database, sizes)).changed == 9
    assert target.rows("SELECT count(*) FROM words WHERE size IS NULL") == [(0,)]


async def test_several_columns_are_a_key(target: Target, database: Database) -> None:
    await migrate(database, "CREATE TABLE lines (doc VARCHAR(9), line INTEGER, seen INTEGER, PRIMARY KEY (doc, line))")
    await inserted(database, "lines", [f"'{doc}', {line}, NULL" for doc in "abc" for line in range(-4, 4)])
    seen = BackfillProgram(
        "lines",
        ("doc", "line"),
        5,
        "UPDATE lines SET seen = 1 WHERE (doc, line) > (:after_doc, :after_line)"
        " AND (doc, line) <= (:upto_doc, :upto_line) AND seen IS NULL",
    )
    cursor = await finished(database, seen)
    assert (cursor.matched, cursor.changed, cursor.transaction_groups) == (24, 24, 5)
    assert target.rows("SELECT count(*) FROM lines WHERE seen IS NULL") == [(0,)]


@pytest.mark.parametrize(
    ("table", "values", "word"),
    [
        ("id INTEGER, total INTEGER, cents INTEGER", ["1, 1, NULL", "1, 1, NULL"], "primary key"),
        ("id INTEGER UNIQUE, total INTEGER, cents INTEGER", ["1, 1, NULL", "NULL, 1, NULL"], "NULL"),
        ("number INTEGER PRIMARY KEY, total INTEGER, cents INTEGER", ["1, 1, NULL"], "no column id"),
    ],
    ids=["not unique", "null", "missing"],
)
async def test_rows_that_no_batch_would_reach_are_refused(
    database: Database, table: str, values: list[str], word: str
) -> None:
    await migrate(database, f"CREATE TABLE orders ({table})")
    await inserted(database, "orders", values)
    async with database.transaction(GUARD, Control()) as transaction:
        with pytest.raises(InvalidContractError, match=word) as raised:
            await transaction.begin_backfill("unit", EventId.random(), CENTS)
    assert raised.value.code is Code.BACKFILL_KEY
    assert await database.cursor(SCOPE, "unit") is None


# --- the shadow -------------------------------------------------------------------------------------------------------


async def test_a_shadow_is_empty_and_its_own(target: Target, database: Database) -> None:
    empty = await database.observe()
    await migrate(database, ORDERS)
    shadow, other = await database.shadow(), await database.shadow()
    try:
        assert await shadow.observe() == await other.observe() == empty
        await shadow.run(program("CREATE TABLE t (a INTEGER)"))
        assert set(await shadow.describe()) == {"table t"}
        assert await other.observe() == empty
        assert target.rows("SELECT count(*) FROM orders") == [(0,)]
    finally:
        await shadow.close()
        await other.close()


async def test_a_shadow_learns_what_the_target_becomes(database: Database, shadow: Shadow) -> None:
    statements = [ORDERS, "CREATE TABLE t (a INTEGER)", "DROP TABLE t", "INSERT INTO orders VALUES (1, 2, 3)"]
    lowered = await shadow.lower(statements, transactional=True)
    assert lowered == Program(tuple(statements), (1, 2, 3, 4), transactional=True, enforce_references=False)
    learned = await shadow.run(lowered)
    async with database.transaction(GUARD, Control()) as transaction:
        await transaction.execute(lowered)
        assert await transaction.observe() == learned
        await transaction.commit()
    assert await database.describe() == await shadow.describe()


async def test_a_shadow_runs_programs_one_after_the_other(database: Database, shadow: Shadow) -> None:
    programs = [program(ORDERS), program("CREATE TABLE t (a INTEGER)", "DROP TABLE orders"), program("DROP TABLE t")]
    other = await database.shadow()
    expected = [await other.run(item) for item in programs]
    await other.close()
    assert await shadow.run_all(programs) == expected
    assert len(set(expected)) == 3
    assert await shadow.run_all([]) == []


async def test_of_several_programs_the_one_that_fails_is_told(shadow: Shadow) -> None:
    with pytest.raises(TargetError, match="nowhere") as raised:
        await shadow.run_all([program(ORDERS), program("CREATE TABLE t (a INTEGER)", "DROP TABLE nowhere")])
    assert raised.value.code is Code.STATEMENT_FAILED
    assert (raised.value.details["program"], raised.value.details["statement"]) == (1, 2)
    assert set(await shadow.describe()) == {"table orders"}


async def test_a_failing_statement_leaves_nothing_on_the_shadow(shadow: Shadow) -> None:
    before = await shadow.observe()
    with pytest.raises(TargetError) as raised:
        await shadow.run(Program((ORDERS, "DROP TABLE nowhere"), (1, 4)))
    assert raised.value.code is Code.STATEMENT_FAILED
    assert raised.value.details["statement"] == 4
    assert "nowhere" in raised.value.message
    assert await shadow.observe() == before


async def test_rows_of_the_target_are_not_asked_for_on_the_shadow(shadow: Shadow) -> None:
    await shadow.run(program(PARENT, CHILD, ORDERS))
    rows = await shadow.lower(
        ["PRAGMA foreign_keys = ON", "INSERT INTO child VALUES (1, 99)", "INSERT INTO orders SELECT 1, NULL, 1"],
        transactional=True,
    )
    await shadow.run(rows)


@pytest.mark.parametrize(
    "statement", ["SELECT nothing FROM orders", "SELECT no_such_function(1)", "SELECT 1 FROM nowhere", "SELECT ("]
)
async def test_a_query_that_does_not_compile_fails(shadow: Shadow, statement: str) -> None:
    await shadow.run(program(ORDERS))
    with pytest.raises(TargetError) as raised:
        await shadow.check_query(statement)
    assert raised.value.code is Code.STATEMENT_FAILED


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE orders SET total = 1",
        "DELETE FROM orders",
        "SELECT 1; SELECT 2",
        "SELECT 1, 2",
        "SELECT 1 WHERE 1 = :upto",
        "",
    ],
)
async def test_what_is_not_one_query_of_one_value_is_refused(shadow: Shadow, statement: str) -> None:
    await shadow.run(program(ORDERS))
    with pytest.raises(InvalidContractError) as raised:
        await shadow.check_query(statement)
    assert raised.value.code is Code.STATEMENT_REFUSED


async def test_queries_of_one_value_are_taken(shadow: Shadow) -> None:
    await shadow.run(program(ORDERS))
    await shadow.check_query("SELECT NOT EXISTS (SELECT 1 FROM orders WHERE total < 0) -- none")
    await shadow.check_query("WITH t AS (SELECT 1 AS a) SELECT a = 1 FROM t")
    await shadow.check_query("VALUES (1)")
    await shadow.check_query("SELECT count(*) = 0 FROM orders WHERE id <= :upto", CENTS)
    with pytest.raises(InvalidContractError):
        await shadow.check_query("SELECT count(*) = 0 FROM orders WHERE id <= :after", CENTS)


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("UPDATE orders SET cents = 1", ":after, :upto"),
        ("UPDATE orders SET cents = 1 WHERE id > :after", ":upto"),
        ("UPDATE orders SET cents = :rate WHERE id > :after AND id <= :upto", ":rate"),
        ("SELECT 1 FROM orders WHERE id > :after AND id <= :upto", "UPDATE"),
        ("WITH t AS (SELECT 1) SELECT * FROM t, orders WHERE id > :after AND id <= :upto", "UPDATE"),
        ("DROP TABLE orders", "UPDATE"),
        ("DELETE FROM orders WHERE id > :after; DELETE FROM orders WHERE id <= :upto", "one statement"),
    ],
)
async def test_a_backfill_that_does_not_keep_to_its_batch_is_refused(shadow: Shadow, statement: str, word: str) -> None:
    await shadow.run(program(ORDERS))
    with pytest.raises(InvalidContractError, match=word) as raised:
        await shadow.check_backfill(BackfillProgram("orders", ("id",), 10, statement))
    assert raised.value.code is Code.STATEMENT_REFUSED


async def test_a_backfill_that_does_not_compile_fails(shadow: Shadow) -> None:
    await shadow.run(program(ORDERS))
    with pytest.raises(TargetError) as raised:
        await shadow.check_backfill(
            BackfillProgram("orders", ("id",), 10, "UPDATE orders SET nothing = 1 WHERE id > :after AND id <= :upto")
        )
    assert raised.value.code is Code.STATEMENT_FAILED


async def test_backfills_that_keep_to_their_batches_are_taken(shadow: Shadow) -> None:
    await shadow.run(program(ORDERS))
    before = await shadow.observe()
    for statement in (
        CENTS.statement,
        "DELETE FROM orders WHERE id > :after AND id <= :upto",
        "INSERT INTO orders (total) SELECT total FROM orders WHERE id > :after AND id <= :upto",
        "WITH t AS (SELECT 1 AS a) UPDATE orders SET cents = (SELECT a FROM t) WHERE id > :after AND id <= :upto",
    ):
        await shadow.check_backfill(BackfillProgram("orders", ("id",), 10, statement))
    assert await shadow.observe() == before


@pytest.mark.parametrize(
    ("table", "key", "word"),
    [
        ("a INTEGER PRIMARY KEY, b INTEGER", ("a",), None),
        ("a INTEGER, b INTEGER, PRIMARY KEY (a, b)", ("a", "b"), None),
        ("a INTEGER PRIMARY KEY, b INTEGER UNIQUE", ("b",), None),
        ("a INTEGER PRIMARY KEY, b INTEGER", ("b",), "primary key"),
        ("a INTEGER, b INTEGER, PRIMARY KEY (a, b)", ("a",), "primary key"),
        ("a INTEGER, b INTEGER, PRIMARY KEY (a, b)", ("b", "a"), "key=a,b"),
        ("a INTEGER PRIMARY KEY, b INTEGER", ("c",), "no column c"),
        ("a INTEGER PRIMARY KEY, b INTEGER", ("a", "a"), "twice"),
    ],
)
async def test_a_key_is_a_primary_key_or_unique(
    shadow: Shadow, table: str, key: tuple[str, ...], word: str | None
) -> None:
    await shadow.run(program(f"CREATE TABLE t ({table})"))
    problem = await shadow.key_problem(BackfillProgram("t", key, 10, ""))
    if word is None:
        assert problem is None
    else:
        assert problem is not None
        assert word in problem


async def test_what_is_no_table_has_no_key(shadow: Shadow) -> None:
    await shadow.run(program(ORDERS, "CREATE VIEW v AS SELECT id FROM orders"))
    with pytest.raises(InvalidContractError) as refused:
        await shadow.key_problem(BackfillProgram("nowhere", ("id",), 10, ""))
    assert refused.value.code is Code.BACKFILL_KEY
    assert "view" in (await shadow.key_problem(BackfillProgram("v", ("id",), 10, "")) or "")


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_closing_again_does_nothing_and_a_closed_database_says_so(target: Target, database: Database) -> None:
    shadow = await database.shadow()
    await shadow.run(program(ORDERS))
    for closing_one in (database, shadow):
        await closing_one.close()
        await closing_one.close()
        with pytest.raises(InvalidContractError) as raised:
            await closing_one.observe()
        assert raised.value.code is Code.CLOSED
    await target.open().raise_fence(guard(2), Control())


async def test_a_database_that_was_never_used_can_be_closed(target: Target) -> None:
    await target.open().close()


async def test_closing_rolls_back_what_is_open(target: Target, database: Database) -> None:
    async def use(transaction: Transaction) -> None:
        await transaction.execute(program(ORDERS))
        await database.close()
        await transaction.commit()

    async def work() -> None:
        async with database.transaction(GUARD, Control()) as transaction:
            await use(transaction)

    with pytest.raises(InvalidContractError) as raised:
        await work()
    assert raised.value.code is Code.CLOSED
    other = target.open()
    assert await other.describe() == {}
    await migrate(other, ORDERS)
