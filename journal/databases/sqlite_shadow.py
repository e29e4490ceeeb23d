"""A scratch database in memory that files are replayed on.

It has none of the target's rows, so statements that change rows are compiled and not run: what they do is no part of a
schema, and what they would meet here (an empty table, a parent that is missing) says nothing about the target.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from journal.databases import sqlite_bookkeeping as bookkeeping
from journal.databases.sqlite_backfill import parameter_names
from journal.databases.sqlite_errors import DRIVER_ERRORS, translate
from journal.databases.sqlite_keys import key_problem, own_key
from journal.databases.sqlite_lowering import NO_EFFECT, QUERIES, ROWS, forbidden, keyword, lower, refused
from journal.databases.sqlite_names import quoted
from journal.databases.sqlite_session import Session, SessionThread
from journal.errors import Code, JournalError, failure
from journal.identities import Fingerprint
from journal.ports import BackfillProgram, Program

T = TypeVar("T")

_MANY: Final = 1_000
_WHERE: Final = "on an empty database"
_MISSING: Final = (
    "no such function",
    "unknown function",
    "no such module",
    "no such collation",
    "wrong number of arguments",
)
_THERE: Final = "SELECT 1 FROM main.sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?)"
_OWN: Final = r"SELECT name FROM main.sqlite_master WHERE name LIKE '\_journal\_%' ESCAPE '\'"


class SQLiteShadow:
    """`Shadow` on SQLite, in a thread of its own."""

    def __init__(self) -> None:
        self._thread = SessionThread(_WHERE, _open)

    async def lower(self, statements: Sequence[str], *, transactional: bool) -> Program:
        """See `Shadow.lower`."""
        if len(statements) < _MANY:
            return lower(statements, transactional=transactional)
        # Not on the loop, which has leases to renew.
        return await self._thread.call(lambda _: lower(statements, transactional=transactional))

    async def run(self, program: Program) -> Fingerprint:
        """See `Shadow.run`."""
        return await self._thread.call(lambda session: _run(session, program))

    async def run_all(self, programs: Sequence[Program]) -> Sequence[Fingerprint]:
        """See `Shadow.run_all`."""
        return await self._thread.call(lambda session: _run_all(session, programs))

    async def observe(self) -> Fingerprint:
        """See `Shadow.observe`."""
        return await self._thread.call(lambda session: session.observe().fingerprint)

    async def describe(self) -> Mapping[str, str]:
        """See `Shadow.describe`."""
        return await self._thread.call(lambda session: dict(session.observe().objects))

    async def check_query(self, query: str, program: BackfillProgram | None = None) -> None:
        """See `Shadow.check_query`."""
        await self._thread.call(lambda session: _check_query(session, query, program))

    async def check_backfill(self, program: BackfillProgram) -> None:
        """See `Shadow.check_backfill`."""
        await self._thread.call(lambda session: _check_backfill(session, program))

    async def key_problem(self, program: BackfillProgram) -> str | None:
        """See `Shadow.key_problem`."""
        return await self._thread.call(lambda session: _key_problem(session, program))

    async def close(self) -> None:
        """See `Shadow.close`."""
        await self._thread.close()


def _open(_: bool) -> Session:
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=16)
    connection.execute("PRAGMA legacy_alter_table = OFF")
    bookkeeping.make(connection)  # so that statements on these tables are known for what they are
    return Session(connection, _WHERE)


def _run_all(session: Session, programs: Sequence[Program]) -> list[Fingerprint]:
    found: list[Fingerprint] = []
    for program in programs:
        try:
            found.append(_run(session, program))
        except DRIVER_ERRORS as raised:
            raise _of_program(translate(raised, session.where), len(found)) from raised
        except JournalError as error:
            raise _of_program(error, len(found)) from (error.__cause__ or error)
    return found


def _of_program(error: JournalError, number: int) -> JournalError:
    return failure(error.code, error.message, **error.details, program=number)


def _run(session: Session, program: Program) -> Fingerprint:
    session.enforce_references(program.enforce_references)
    if program.transactional:
        session.begin()
        return session.atomically(lambda held: _run_in_transaction(held, program))
    for number, statement in zip(program.numbers, program.statements, strict=True):
        _step(session, statement, number)
    session.schema.forget()  # VACUUM numbers the rows of the schema anew
    return session.observe().fingerprint


def _run_in_transaction(session: Session, program: Program) -> Fingerprint:
    with session.schema.following():
        for number, statement in zip(program.numbers, program.statements, strict=True):
            _step(session, statement, number)
    found = session.observe().fingerprint
    session.commit()
    return found


def _step(session: Session, statement: str, number: int) -> None:
    word = keyword(statement)
    # VACUUM attaches a database of its own and copies every table.
    with session.watch.judging(None if word == "vacuum" else forbidden):
        try:
            session.connection.execute(f"EXPLAIN {statement}" if word in ROWS else statement).close()
        except DRIVER_ERRORS as error:
            if session.watch.refusal is not None:
                raise refused(number, statement, session.watch.refusal) from error
            raise translate(error, session.where, statement=number) from error
    if word == "with" and not session.watch.writes:
        raise refused(number, statement, NO_EFFECT)
    if word == "alter":
        _check_names(session, statement, number)
    for kind, name in session.watch.created if word == "create" else ():
        _check_calls(session, kind, name, (statement, number))


def _check_calls(session: Session, kind: int, name: str, at: tuple[str, int]) -> None:
    """Compile uses of a new object: this finds functions, modules and collations that are not there, and what may not be.

    Tables that are not there are no fault of it: they may come later.
    """
    statement, number = at
    for use in _uses(session, kind, quoted(name), statement):
        with session.watch.judging(forbidden):
            try:
                session.connection.execute(f"EXPLAIN {use}").close()
            except DRIVER_ERRORS as error:
                if session.watch.refusal is not None:
                    raise refused(number, statement, session.watch.refusal) from error
                if str(error).startswith(_MISSING):
                    raise translate(error, session.where, statement=number) from error
    if kind == sqlite3.SQLITE_CREATE_TABLE and bookkeeping.PREFIX in statement.lower():
        parents = [row[2] for row in session.connection.execute(f"PRAGMA foreign_key_list({quoted(name)})")]
        if any(parent.lower() in bookkeeping.TABLES for parent in parents):
            raise refused(number, statement, "a foreign key must not point at the journal's own tables: leave it out")


def _uses(session: Session, kind: int, name: str, statement: str) -> list[str]:
    if kind == sqlite3.SQLITE_CREATE_VIEW:
        return [f"SELECT * FROM {name}"]  # noqa: S608  (a quoted name)
    insert = f"INSERT INTO {name} DEFAULT VALUES"
    if kind == sqlite3.SQLITE_CREATE_TABLE:
        return [insert] if "default" in statement.lower() else []
    columns = [row[1] for row in session.connection.execute(f"PRAGMA table_info({name})")]
    sets = ", ".join(f"{quoted(column)} = NULL" for column in columns)
    return [insert, f"UPDATE {name} SET {sets}", f"DELETE FROM {name}"]  # noqa: S608  (quoted names)


def _check_names(session: Session, statement: str, number: int) -> None:
    """The compiler does not report what a table is renamed to."""
    taken = {name for (name,) in session.connection.execute(_OWN)} - bookkeeping.TABLES
    if taken:
        raise refused(number, statement, f"names like {taken.pop()} are kept for the journal: choose another")


# --- queries and backfills are compiled, not run ----------------------------------------------------------------------


def _key_problem(session: Session, program: BackfillProgram) -> str | None:
    if session.connection.execute(_THERE, (program.table,)).fetchone() is None:
        raise failure(Code.BACKFILL_KEY, f"there is no table {program.table} to go through: correct `table=`")
    return key_problem(session.connection, program)


class _Parameters(dict[str, None]):
    """Parameters that are all NULL, and which of them were asked for: the driver asks for those that there are."""

    def __missing__(self, name: str) -> None:
        self[name] = None


def _check_query(session: Session, query: str, program: BackfillProgram | None) -> None:
    if keyword(query) not in QUERIES:
        raise _refused("it is one query: begin it with SELECT, WITH or VALUES")
    used = _compile(session, query)
    if session.watch.writes:
        raise _refused("a query must not change anything: leave the change out, or make it a step")
    upto = parameter_names("upto", program.key) if program is not None else []
    _check_known(used, upto)
    # Compiling says nothing of the columns; with no row wanted, none is computed.
    wrapped = f"SELECT * FROM ({query}\n) LIMIT 0"  # noqa: S608  (it was compiled by itself before)
    columns = _guarded(session, lambda: session.connection.execute(wrapped, used))
    if len(columns.description) != 1:
        raise _refused(f"it gives {len(columns.description)} columns: let it give one value, true or false")


def _check_backfill(session: Session, program: BackfillProgram) -> None:
    if keyword(program.statement) not in ROWS:
        raise _refused("a backfill is one statement that changes rows: INSERT, UPDATE, DELETE or REPLACE")
    used = _compile(session, program.statement)
    if not session.watch.writes:
        raise _refused("the backfill changes nothing: let it INSERT, UPDATE or DELETE")
    if moved := session.watch.updated & own_key(session.connection, program):
        raise _refused(
            f"it changes {moved.pop()[1]}, the key by which it is taken through its table, so that rows would be reached "
            "again or not at all: use another key"
        )
    wanted = parameter_names("after", program.key) + parameter_names("upto", program.key)
    _check_known(used, wanted)
    if unused := [f":{name}" for name in wanted if name not in used]:
        raise _refused(
            f"it does not use {', '.join(unused)}, so that every batch would change more rows than its own: limit it to "
            "rows whose key is above `:after` and up to `:upto`"
        )


def _check_known(used: _Parameters, known: Sequence[str]) -> None:
    if unknown := [f":{name}" for name in used if name not in known]:
        there = ", ".join(f":{name}" for name in known) or "none"
        raise _refused(f"it has the parameter {unknown[0]}, which nobody gives a value; there is {there}")


def _compile(session: Session, statement: str) -> _Parameters:
    used = _Parameters()
    _guarded(session, lambda: session.connection.execute(f"EXPLAIN {statement}", used).close())
    return used


def _guarded(session: Session, work: Callable[[], T]) -> T:
    with session.watch.judging(forbidden):
        try:
            return work()
        except DRIVER_ERRORS as error:
            if session.watch.refusal is not None:
                raise _refused(session.watch.refusal) from error
            if isinstance(error, sqlite3.ProgrammingError | sqlite3.Warning):
                raise _refused(f"it must be one statement, with no parameters but named ones ({error})") from error
            raise translate(error, session.where) from error


def _refused(reason: str) -> JournalError:
    return failure(Code.STATEMENT_REFUSED, reason)
