"""The schema of one connection's database, read again only as far as it changed.

Relied on: SQLite's schema cookie (`PRAGMA schema_version`) differs after every committed or pending change of the
schema, by whomever; a new row of `sqlite_master` gets the greatest rowid plus one. The second is no promise of SQLite,
so it is cross-checked by the number of rows, and never relied on when anything but a CREATE ran in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final

from journal.databases.sqlite_schema import SchemaRow, Semantics
from journal.databases.sqlite_watch import Watch

_ROWS: Final = "SELECT rowid, type, name, tbl_name, sql FROM main.sqlite_master WHERE rowid > ? ORDER BY rowid"
_COUNT: Final = "SELECT count(*) FROM main.sqlite_master"
_SHADOWS: Final = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow'"
_IS_SHADOW: Final = "SELECT 1 FROM pragma_table_list(?) WHERE schema = 'main' AND type = 'shadow'"


class Observer:
    """Semantics of the schema as the connection sees it now, its own open transaction included."""

    def __init__(self, connection: sqlite3.Connection, watch: Watch) -> None:
        self._connection = connection
        self._watch = watch
        self._semantics = Semantics()
        self.forget()

    def forget(self) -> None:
        """Read all the next time."""
        self._cookie: int | None = None  # of the schema that was read
        self._extended: int | None = None  # up to here, objects were only added to it, and all by this connection
        self._last = self._count = 0
        self._has_virtual = False
        self._is_provisional = False

    def committed(self) -> None:
        """What was read is what lasts."""
        self._is_provisional = False

    def rolled_back(self) -> None:
        """A cookie that the transaction gave may be given again to something else."""
        if self._is_provisional:
            self.forget()
        self._extended = self._cookie

    @contextmanager
    def following(self) -> Generator[None, None, None]:
        """Run statements inside, so that what they add can be read by itself."""
        is_current = self._extended is not None and self._read_cookie() == self._extended
        self._watch.actions.clear()
        yield
        if is_current and self._watch.is_additive:
            self._extended = self._read_cookie()

    def unchanged(self) -> Semantics | None:
        """What was read last if it still holds, which is told by one statement; None when it has to be read again."""
        return self._semantics if self._cookie is not None and self._read_cookie() == self._cookie else None

    def observe(self) -> Semantics:
        """The semantics now."""
        cookie = self._read_cookie()
        if cookie != self._cookie:
            if cookie != self._extended or not self._add():
                self._replace()
            self._cookie = self._extended = cookie
            self._is_provisional = self._connection.in_transaction
        return self._semantics

    def _read_cookie(self) -> int:
        return int(self._connection.execute("PRAGMA main.schema_version").fetchone()[0])

    def _add(self) -> bool:
        """Add what is new; False when it has to be read with the rest."""
        rows = self._connection.execute(_ROWS, (self._last,)).fetchall()
        (count,) = self._connection.execute(_COUNT).fetchone()
        if count != self._count + len(rows) or (self._has_virtual and self._makes_shadows(rows)):
            return False
        if rows:
            self._semantics.add(_schema_rows(rows))
            self._last, self._count = rows[-1][0], count
        return True

    def _makes_shadows(self, rows: Iterable[tuple[int, str, str, str, str | None]]) -> bool:
        """Whether a new table is taken for one of a virtual table's own, as its name alone decides."""
        names = [name for _, kind, name, _, _ in rows if kind == "table"]
        return any(self._connection.execute(_IS_SHADOW, (name,)).fetchone() for name in names)

    def _replace(self) -> None:
        rows = self._connection.execute(_ROWS, (-1,)).fetchall()
        self._has_virtual = any(_is_virtual(row[4]) for row in rows)
        shadows = [name for (name,) in self._connection.execute(_SHADOWS)] if self._has_virtual else []
        self._semantics.replace(_schema_rows(rows), shadows)
        self._last, self._count = rows[-1][0] if rows else 0, len(rows)


def _schema_rows(rows: Iterable[tuple[int, str, str, str, str | None]]) -> list[SchemaRow]:
    return [SchemaRow(kind, name, table, sql) for _, kind, name, table, sql in rows]


def _is_virtual(sql: str | None) -> bool:
    # SQLite keeps the statement from its second word on as it was written; the first two are its own spelling.
    return sql is not None and sql.startswith("CREATE VIRTUAL TABLE")
