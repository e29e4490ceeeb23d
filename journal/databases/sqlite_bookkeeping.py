"""The journal's own tables in a target database, and the rules of fence and witness over them.

They are read and written in the transaction that they speak of. A later version that needs other tables raises the
number in `_journal_format`, so that this one stops instead of misreading them.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from journal.errors import Code, JournalError, failure
from journal.identities import EventId, Fence, Incarnation, Scope
from journal.ports import Guard

PREFIX: Final = "_journal_"
FORMAT: Final = 1

_TABLES: Final = (
    "CREATE TABLE _journal_format (version INTEGER NOT NULL) STRICT",
    f"INSERT INTO _journal_format (version) VALUES ({FORMAT})",  # noqa: S608  (a number of ours)
    """CREATE TABLE _journal_fences (
        scope TEXT PRIMARY KEY, incarnation BLOB NOT NULL, fence INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID""",
    """CREATE TABLE _journal_witnesses (
        scope TEXT, unit TEXT, token BLOB NOT NULL, PRIMARY KEY (scope, unit)
    ) STRICT, WITHOUT ROWID""",
    # One row for each column of the key; the first has what is said of the whole. One table, so that a batch dirties one
    # page more than its own. ANY keeps a value as it is: a text stays a text, a real a real.
    """CREATE TABLE _journal_cursors (
        scope TEXT, unit TEXT, part INTEGER, after ANY, upto ANY, token BLOB, total INTEGER, matched INTEGER,
        changed INTEGER, transaction_groups INTEGER, done INTEGER, PRIMARY KEY (scope, unit, part)
    ) STRICT, WITHOUT ROWID""",
)

TABLES: Final = frozenset({"_journal_format", "_journal_fences", "_journal_witnesses", "_journal_cursors"})


def make(connection: sqlite3.Connection) -> None:
    """Make the tables where they are missing. Raises as `is_there`."""
    if not is_there(connection):
        for statement in _TABLES:
            connection.execute(statement)


def is_there(connection: sqlite3.Connection) -> bool:
    """Whether the database has the tables. Raises UnknownEventError: `journal_format_too_new`."""
    try:
        (version,) = connection.execute("SELECT version FROM _journal_format").fetchone() or (0,)
    except sqlite3.OperationalError as error:
        if "no such table: _journal_format" in str(error):
            return False
        raise
    if version > FORMAT:
        raise failure(
            Code.FORMAT_TOO_NEW,
            f"the journal's tables in the target have format {version}, this version knows {FORMAT}: "
            "upgrade fenced-journal",
        )
    return True


def raise_fence(connection: sqlite3.Connection, guard: Guard, *, floor: int, adopt: bool) -> None:
    """Raise the fence of a scope, in the transaction that is open. Raises as `Database.raise_fence`."""
    make(connection)
    known = raised_fence(connection, guard.scope)
    if known is None and floor and not adopt:
        raise _older(guard, None, floor)
    if known is not None:
        incarnation, fence = known
        if incarnation == guard.incarnation and fence < floor and not adopt:
            raise _older(guard, fence, floor)
        if incarnation != guard.incarnation and not adopt:
            raise _foreign(guard, incarnation)
        if incarnation == guard.incarnation and fence > guard.fence:
            raise _fenced(guard, fence)
        if incarnation != guard.incarnation:
            _forget(connection, guard.scope)
    connection.execute(
        "INSERT INTO _journal_fences (scope, incarnation, fence) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET incarnation = excluded.incarnation, fence = excluded.fence",
        (str(guard.scope), bytes(guard.incarnation), int(guard.fence)),
    )


def _forget(connection: sqlite3.Connection, scope: Scope) -> None:
    """Drop what another journal left of a scope: its witnesses and cursors mean nothing to the one that adopts it."""
    for table in ("_journal_witnesses", "_journal_cursors"):
        connection.execute(f"DELETE FROM {table} WHERE scope = ?", (str(scope),))  # noqa: S608  (one of our two)


def check_fence(connection: sqlite3.Connection, guard: Guard) -> None:
    """Refuse a transaction whose fence is not the one that was raised last. Raises as `Database.raise_fence`."""
    known = raised_fence(connection, guard.scope) if is_there(connection) else None
    if known is None:
        raise failure(
            Code.TARGET_FENCED,
            f"scope {guard.scope}: the fence that was raised in the target is gone: another copy of the database took "
            "its place; look at it, then run again",
            scope=str(guard.scope),
        )
    incarnation, fence = known
    if incarnation != guard.incarnation:
        raise _foreign(guard, incarnation)
    if fence != guard.fence:
        raise _fenced(guard, fence)


def raised_fence(connection: sqlite3.Connection, scope: Scope) -> tuple[Incarnation, Fence] | None:
    """Whose fence was raised last, and which; None when none was."""
    row = connection.execute("SELECT incarnation, fence FROM _journal_fences WHERE scope = ?", (str(scope),)).fetchone()
    return None if row is None else (Incarnation(row[0]), Fence(row[1]))


def _fenced(guard: Guard, fence: Fence) -> JournalError:
    if fence < guard.fence:
        why = f"has fence {fence} and not {guard.fence}: raise it first, or find who restored an older copy"
    else:
        why = f"was taken over under fence {fence}, this is {guard.fence}: stop"
    return failure(
        Code.TARGET_FENCED,
        f"scope {guard.scope}: the target {why}",
        scope=str(guard.scope),
        fence=int(guard.fence),
        raised=int(fence),
    )


def _older(guard: Guard, fence: Fence | None, floor: int) -> JournalError:
    seen = "no fence of this journal" if fence is None else f"fence {fence} at most"
    return failure(
        Code.TARGET_OLDER,
        f"scope {guard.scope}: the journal has work under fence {floor}, the target has seen {seen}: it is an older copy, "
        "or another database. Put the right one back, or adopt this one under a scope of its own: `journal import "
        "--scope NAME`",
        scope=str(guard.scope),
        seen=None if fence is None else int(fence),
        floor=floor,
    )


def _foreign(guard: Guard, incarnation: Incarnation) -> JournalError:
    return failure(
        Code.FOREIGN_TARGET,
        f"scope {guard.scope}: the target was migrated under this name by another journal (incarnation {incarnation}, "
        f"this is {guard.incarnation}): check which journal and which database belong together, or adopt the database with `journal import`",
        scope=str(guard.scope),
        incarnation=str(incarnation),
    )


def tokens(connection: sqlite3.Connection, scope: Scope) -> dict[str, EventId]:
    """The tokens of all witnesses and cursors, by unit."""
    if not is_there(connection):
        return {}
    query = "SELECT unit, token FROM {} WHERE scope = ? AND token IS NOT NULL"
    found: dict[str, EventId] = {}
    for table in ("_journal_witnesses", "_journal_cursors"):
        rows = connection.execute(query.format(table), (str(scope),))
        found.update((unit, EventId(token)) for unit, token in rows)
    return found


def stamp(connection: sqlite3.Connection, scope: Scope, unit: str, token: EventId) -> None:
    """Write the witness of the transaction that is open."""
    connection.execute(
        "INSERT INTO _journal_witnesses (scope, unit, token) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET token = excluded.token",
        (str(scope), unit, bytes(token)),
    )


def witness(connection: sqlite3.Connection, scope: Scope, unit: str) -> EventId | None:
    """The witness that was stamped last for a unit."""
    if not is_there(connection):
        return None
    row = connection.execute(
        "SELECT token FROM _journal_witnesses WHERE scope = ? AND unit = ?", (str(scope), unit)
    ).fetchone()
    return None if row is None else EventId(row[0])
