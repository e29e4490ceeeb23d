"""Backfills: a cursor that moves through a table in key order, a batch of rows a transaction.

What a batch is gets decided before its statement runs: from behind the cursor up to the key that it moves to. So the
cursor moves on whatever the statement does to its rows, and ends at a last key that was fixed in the beginning,
although rows are inserted all the while.

Keys are compared by SQLite alone, as the columns compare: by their affinity and collation.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from journal.databases import sqlite_bookkeeping as bookkeeping
from journal.databases.sqlite_keys import key_problem
from journal.databases.sqlite_names import quoted
from journal.errors import Code, JournalError, failure
from journal.identities import EventId, Scope
from journal.ports import BackfillCursor, BackfillProgram

Value: TypeAlias = int | float | str | bytes | None
Parameters: TypeAlias = dict[str, Value]

_MIN_INTEGER: Final = -(2**63)
_BELOW_NUMBERS: Final = float("-inf")


class Place(NamedTuple):
    """Whose cursor it is."""

    scope: Scope
    unit: str


class _State(NamedTuple):
    cursor: BackfillCursor
    after: tuple[Value, ...]
    upto: tuple[Value, ...]


def parameter_names(prefix: str, key: Sequence[str]) -> list[str]:
    """Names of the parameters that a bound of the key has: `after`, or for several columns `after_<column>`."""
    return [prefix] if len(key) == 1 else [f"{prefix}_{column}" for column in key]


def read(connection: sqlite3.Connection, place: Place) -> BackfillCursor | None:
    """The cursor as it is; None when none was begun."""
    rows = _rows(connection, place) if bookkeeping.is_there(connection) else []
    return _cursor(rows[0]) if rows else None


def _rows(connection: sqlite3.Connection, place: Place) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT after, upto, token, total, matched, changed, transaction_groups, done FROM _journal_cursors"
        " WHERE scope = ? AND unit = ? ORDER BY part",
        (str(place.scope), place.unit),
    ).fetchall()


def _cursor(row: tuple[Any, ...]) -> BackfillCursor:
    _, _, token, rows, matched, changed, groups, done = row
    return BackfillCursor(EventId(token), rows, matched, changed, matched - changed, groups, bool(done))


def begin(connection: sqlite3.Connection, place: Place, token: EventId, program: BackfillProgram) -> BackfillCursor:
    """Put a new cursor before the first key. Raises as `Transaction.begin_backfill`."""
    table = _table(program.table, program.key)
    rows = table.rows(connection)
    after: tuple[Value, ...] = (None,) * len(program.key)
    last = after
    if rows:  # without any, there is nothing that a key could fail to tell apart
        if (problem := key_problem(connection, program)) is not None:
            raise _bad_key(program, problem)
        _check_nulls(connection, program)
        after, last = _below(connection, program, table.first(connection)), table.last(connection)
    connection.execute("DELETE FROM _journal_cursors WHERE scope = ? AND unit = ?", (str(place.scope), place.unit))
    connection.executemany(
        "INSERT INTO _journal_cursors (scope, unit, part, after, upto) VALUES (?, ?, ?, ?, ?)",
        [(str(place.scope), place.unit, part, *bounds) for part, bounds in enumerate(zip(after, last, strict=True))],
    )
    connection.execute(
        "UPDATE _journal_cursors SET token = ?, total = ?, matched = 0, changed = 0, transaction_groups = 0, done = 0"
        " WHERE scope = ? AND unit = ? AND part = 0",
        (bytes(token), rows, str(place.scope), place.unit),
    )
    return BackfillCursor(token, rows, 0, 0, 0, 0, done=False)


def advance(connection: sqlite3.Connection, place: Place, program: BackfillProgram) -> BackfillCursor:
    """Run the next batch. Raises as `Database.advance_backfill`."""
    cursor, after, last = _state(connection, place, program)
    if cursor.done:
        return cursor
    table = _table(program.table, program.key)
    found = table.skip(connection, after, last, program.batch) if cursor.rows else None
    if found is not None:
        matched, upto = program.batch, found
    else:
        matched, upto = table.count(connection, after, last) if cursor.rows else 0, last
    changed = _run(connection, program, after, upto) if matched else 0
    if changed > matched:
        raise failure(
            Code.BACKFILL_ROWS,
            f"the statement changed {changed} rows, but its batch has {matched}: let it change rows whose key is above "
            "`:after` and up to `:upto`, and no others",
            changed=changed,
            matched=matched,
        )
    return _move(
        connection, place, upto, _moved(cursor, matched, changed, done=matched < program.batch or upto == last)
    )


def last_key(connection: sqlite3.Connection, place: Place, program: BackfillProgram) -> Parameters:
    """The parameters `:upto...` of the last key of all."""
    return _bound("upto", program, _state(connection, place, program).upto)


def _moved(cursor: BackfillCursor, matched: int, changed: int, *, done: bool) -> BackfillCursor:
    total, all_changed = cursor.matched + matched, cursor.changed + changed
    groups = cursor.transaction_groups + 1
    return BackfillCursor(cursor.token, cursor.rows, total, all_changed, total - all_changed, groups, done)


def _move(
    connection: sqlite3.Connection, place: Place, after: tuple[Value, ...], cursor: BackfillCursor
) -> BackfillCursor:
    connection.execute(
        "UPDATE _journal_cursors SET after = ?, matched = ?, changed = ?, transaction_groups = ?, done = ?"
        " WHERE scope = ? AND unit = ? AND part = 0",
        (
            after[0],
            cursor.matched,
            cursor.changed,
            cursor.transaction_groups,
            cursor.done,
            str(place.scope),
            place.unit,
        ),
    )
    for part, value in enumerate(after[1:], 1):
        connection.execute(
            "UPDATE _journal_cursors SET after = ? WHERE scope = ? AND unit = ? AND part = ?",
            (value, str(place.scope), place.unit, part),
        )
    return cursor


def _state(connection: sqlite3.Connection, place: Place, program: BackfillProgram) -> _State:
    rows = _rows(connection, place)
    if len(rows) != len(program.key):
        raise failure(
            Code.UNEXPECTED_RESULT,
            f"the target has no cursor of backfill {place.unit} with this key: it was not begun here, or another copy of "
            "the database took its place",
            unit=place.unit,
        )
    return _State(_cursor(rows[0]), tuple(row[0] for row in rows), tuple(row[1] for row in rows))


def _run(
    connection: sqlite3.Connection, program: BackfillProgram, after: Iterable[Value], upto: Iterable[Value]
) -> int:
    parameters = _bound("after", program, after) | _bound("upto", program, upto)
    for _ in connection.execute(program.statement, parameters):
        pass  # what RETURNING gives is for nobody, but must be taken
    # The driver's `rowcount` knows nothing of statements that begin with WITH.
    return int(connection.execute("SELECT changes()").fetchone()[0])


def _bound(prefix: str, program: BackfillProgram, values: Iterable[Value]) -> Parameters:
    return dict(zip(parameter_names(prefix, program.key), values, strict=True))


class _Table:
    """The queries over one table in key order."""

    def __init__(self, table: str, key: Sequence[str]) -> None:
        columns = [f"t.{quoted(column)}" for column in key]
        self._key = ", ".join(columns)
        self._descending = ", ".join(f"{column} DESC" for column in columns)
        marks = ", ".join("?" * len(columns))
        self._above, self._up_to = f"({self._key}) > ({marks})", f"({self._key}) <= ({marks})"
        self._name = f"main.{quoted(table)}"

    def rows(self, connection: sqlite3.Connection) -> int:
        """How many rows there are."""
        return int(connection.execute(f"SELECT count(*) FROM {self._name}").fetchone()[0])  # noqa: S608

    def first(self, connection: sqlite3.Connection) -> tuple[Value, ...]:
        """The first key of a table that has rows."""
        return self._one(connection, f"ORDER BY {self._key} LIMIT 1") or ()

    def last(self, connection: sqlite3.Connection) -> tuple[Value, ...]:
        """The last key of a table that has rows."""
        return self._one(connection, f"ORDER BY {self._descending} LIMIT 1") or ()

    def skip(
        self, connection: sqlite3.Connection, after: tuple[Value, ...], last: tuple[Value, ...], rows: int
    ) -> tuple[Value, ...] | None:
        """The key of the row that is the `rows`-th in the range; None when there are fewer.

        It is asked only of that row whether it is in the range: to compare all before it takes as long as to reach it.
        """
        query = (
            f"SELECT {self._key}, {self._up_to} FROM {self._name} AS t"  # noqa: S608  (quoted names)
            f" WHERE {self._above} ORDER BY {self._key} LIMIT 1 OFFSET ?"
        )
        *key, is_within = connection.execute(query, (*last, *after, rows - 1)).fetchone() or (0,)
        return tuple(key) if is_within else None

    def count(self, connection: sqlite3.Connection, after: tuple[Value, ...], last: tuple[Value, ...]) -> int:
        """How many rows the range has."""
        query = f"SELECT count(*) FROM {self._name} AS t WHERE {self._above} AND {self._up_to}"  # noqa: S608
        return int(connection.execute(query, (*after, *last)).fetchone()[0])

    def _one(self, connection: sqlite3.Connection, rest: str, *parameters: Value) -> tuple[Value, ...] | None:
        query = f"SELECT {self._key} FROM {self._name} AS t {rest}"  # noqa: S608  (quoted names)
        row: tuple[Value, ...] | None = connection.execute(query, parameters).fetchone()
        return row


@lru_cache(maxsize=8)
def _table(table: str, key: tuple[str, ...]) -> _Table:
    """Made once for all batches."""
    return _Table(table, key)


def rows_problem(connection: sqlite3.Connection, program: BackfillProgram) -> str | None:
    """See `Database.rows_problem`."""
    try:
        _check_nulls(connection, program)
        _below(connection, program, _table(program.table, program.key).first(connection))
    except JournalError as error:
        return error.message
    except sqlite3.OperationalError as error:
        if not str(error).startswith(("no such table", "no such column")):
            raise
    return None


def _check_nulls(connection: sqlite3.Connection, program: BackfillProgram) -> None:
    for column in program.key:
        name = f"t.{quoted(column)}"
        query = f"SELECT 1 FROM main.{quoted(program.table)} AS t WHERE {name} IS NULL LIMIT 1"  # noqa: S608
        if connection.execute(query).fetchone() is not None:
            raise _bad_key(program, f"column {column} is NULL in some rows, which no batch would reach")


def _below(connection: sqlite3.Connection, program: BackfillProgram, first: tuple[Value, ...]) -> tuple[Value, ...]:
    """A key below all others: its first column is, and the others are of the right kind."""
    column = f"t.{quoted(program.key[0])}"
    query = f"SELECT {column} > ? FROM main.{quoted(program.table)} AS t ORDER BY {column} LIMIT 1"  # noqa: S608
    if first[0] is None:
        return first
    for value in _candidates(first[0]):
        if connection.execute(query, (value,)).fetchone()[0]:
            return (value, *first[1:])
    raise _bad_key(
        program,
        f"a row has {first[0]!r} in column {program.key[0]}, and no value lies below it for `:after` to begin with",
    )


def _candidates(first: float | str | bytes) -> list[Value]:
    """Values that may be below the first of all: numbers come before texts, texts before blobs.

    A column that turns numbers into text has nothing below the empty text.
    """
    match first:
        case int() if first > _MIN_INTEGER:
            return [first - 1]
        case int() | float():
            return [_BELOW_NUMBERS]
        case str():
            return ["", _BELOW_NUMBERS]
        case _:
            return [""]


def _bad_key(program: BackfillProgram, problem: str) -> JournalError:
    return failure(
        Code.BACKFILL_KEY,
        f"backfill of {program.table} by {', '.join(program.key)}: {problem}",
        table=program.table,
        key=list(program.key),
    )
