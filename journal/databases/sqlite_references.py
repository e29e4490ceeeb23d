"""Foreign keys that dangle: none may that did not before, in a transaction that ran without them acting."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Final, NamedTuple

from journal.databases.sqlite_names import quoted
from journal.errors import Code, JournalError, failure

_CHILDREN: Final = """
SELECT DISTINCT m.name FROM main.sqlite_master AS m, pragma_foreign_key_list(m.name, 'main') WHERE m.type = 'table'
"""
_NAMED: Final = 5


class Violation(NamedTuple):
    """A row whose foreign key leads nowhere; `key` is None where the whole key cannot be followed, `parent` says why."""

    table: str
    rowid: int | None
    parent: str
    key: int | None


def violations(connection: sqlite3.Connection) -> Counter[Violation]:
    """All that dangles now; those of a table without rowids cannot be told apart, and are counted."""
    try:
        return _violations(connection, "PRAGMA main.foreign_key_check")
    except sqlite3.OperationalError as error:
        _check_mismatch(error)
    # One foreign key that cannot be followed keeps SQLite from looking at all the others.
    found: Counter[Violation] = Counter()
    for (table,) in connection.execute(_CHILDREN).fetchall():
        try:
            found += _violations(connection, f"PRAGMA main.foreign_key_check({quoted(table)})")
        except sqlite3.OperationalError as error:
            _check_mismatch(error)
            found[Violation(table, None, str(error), None)] += 1
    return found


def _violations(connection: sqlite3.Connection, query: str) -> Counter[Violation]:
    return Counter(Violation(*row) for row in connection.execute(query))


def _check_mismatch(error: sqlite3.OperationalError) -> None:
    if not str(error).startswith("foreign key mismatch"):
        raise error


def broken(found: Counter[Violation]) -> JournalError:
    """The error for foreign keys that a commit would leave dangling."""
    table, _, parent, key = next(iter(found))
    alike = Counter({one: n for one, n in found.items() if (one.table, one.parent) == (table, parent)})
    rowids = [one.rowid for one in alike if one.rowid is not None]
    others = found.total() - alike.total()
    what = f"table {table}: {parent}" if key is None else _rows(table, parent, alike.total(), rowids)
    more = f"; {others} more in other tables" if others else ""
    return failure(
        Code.REFERENCES_BROKEN,
        f"foreign keys would dangle: {what}{more}; nothing was committed",
        table=table,
        parent=parent,
        rowids=rowids[:_NAMED],
        rows=found.total(),
    )


def _rows(table: str, parent: str, count: int, rowids: list[int]) -> str:
    named = f" (rowid {', '.join(map(str, rowids[:_NAMED]))}{', ...' if count > _NAMED else ''})" if rowids else ""
    return f"{count} {'row' if count == 1 else 'rows'} of {table} without a row of {parent}{named}"
