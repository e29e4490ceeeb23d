"""Whether the rows of a table can be told apart, and be put in order, by some of its columns."""

from __future__ import annotations

import re
import sqlite3
from typing import Final

from journal.databases.sqlite_names import quoted
from journal.databases.sqlite_tokens import fold
from journal.ports import BackfillProgram

_TABLE: Final = "SELECT name, type, wr FROM pragma_table_list(?) WHERE schema = 'main'"
_COLUMNS: Final = "SELECT name, pk FROM pragma_table_xinfo(?, 'main')"
_UNIQUE: Final = "SELECT name, origin FROM pragma_index_list(?, 'main') WHERE \"unique\" AND NOT partial"
_INDEXED: Final = "SELECT name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno"
_STATEMENT: Final = "SELECT sql FROM main.sqlite_master WHERE type = 'table' AND name = ?"
_ROWIDS: Final = frozenset({"rowid", "oid", "_rowid_"})
_PARAMETER: Final = re.compile(r"[A-Za-z0-9_$\x80-\U0010ffff]+")
_KINDS: Final = {"view": "is a view", "virtual": "is a virtual table", "shadow": "belongs to a virtual table"}


class _Table:
    """What the catalogue says of one table; names are folded."""

    def __init__(self, connection: sqlite3.Connection, name: str, *, without_rowid: bool) -> None:
        self._connection = connection
        self.name = name
        self.has_rowid = not without_rowid
        self.columns = {fold(column): pk for column, pk in connection.execute(_COLUMNS, (name,))}
        self.uniques: list[list[str | None]] = []
        self._collations: list[list[str]] = []
        is_indexed = False
        for index, origin in connection.execute(_UNIQUE, (name,)).fetchall():
            is_indexed |= origin == "pk"
            parts = connection.execute(_INDEXED, (index,)).fetchall()
            self.uniques.append([column and fold(column) for column, _ in parts])
            self._collations.append([fold(collation) for _, collation in parts])
        # An INTEGER PRIMARY KEY is the rowid itself and has no index.
        self._alias = {column for column, pk in self.columns.items() if pk} if not is_indexed else set[str]()

    def has(self, column: str) -> bool:
        """Whether the name leads to a value of each row."""
        return column in self.columns or (self.has_rowid and column in _ROWIDS)

    @property
    def rowid_names(self) -> set[str]:
        """What the rowid is called."""
        return {*_ROWIDS, *self._alias}

    def is_rowid(self, key: list[str]) -> bool:
        """Whether the key is the rowid, under whichever name."""
        return len(key) == 1 and (key[0] in self._alias or (key[0] not in self.columns and self.has(key[0])))

    def is_unique(self, key: list[str]) -> bool:
        """Whether an index keeps the key unique in the way in which its columns compare."""
        own = self._own_collations(key)
        return any(
            collations == own
            for unique, collations in zip(self.uniques, self._collations, strict=True)
            if unique == key
        )

    def _own_collations(self, key: list[str]) -> list[str]:
        """The collations of columns are in no catalogue; an index that names none has them, on a copy of the table."""
        (statement,) = self._connection.execute(_STATEMENT, (self.name,)).fetchone()
        scratch = sqlite3.connect(":memory:")
        try:
            scratch.execute(statement)
            scratch.execute(f"CREATE INDEX probe ON {quoted(self.name)} ({', '.join(map(quoted, key))})")
            return [fold(collation) for _, collation in scratch.execute(_INDEXED, ("probe",))]
        finally:
            scratch.close()


def key_problem(connection: sqlite3.Connection, program: BackfillProgram) -> str | None:
    """See `Shadow.key_problem`."""
    found = connection.execute(_TABLE, (program.table,)).fetchone()
    if found is None:
        return f"there is no table {program.table}"
    name, kind, without_rowid = found
    if kind in _KINDS:
        return f"{name} {_KINDS[kind]}: name the table that keeps the rows"
    table = _Table(connection, name, without_rowid=bool(without_rowid))
    key = [fold(column) for column in program.key]
    if (problem := _name_problem(table, key, program)) is not None:
        return problem
    return None if table.is_rowid(key) else _order_problem(table, key)


def own_key(connection: sqlite3.Connection, program: BackfillProgram) -> set[tuple[str, str]]:
    """Table and column of each part of a backfill's key, under all names that a rowid has."""
    found = connection.execute(_TABLE, (program.table,)).fetchone()
    if found is None:
        return set()
    table = _Table(connection, found[0], without_rowid=bool(found[2]))
    key = [fold(column) for column in program.key]
    names = table.rowid_names if table.is_rowid(key) else key
    return {(fold(table.name), name) for name in names}


def _name_problem(table: _Table, key: list[str], program: BackfillProgram) -> str | None:
    for folded, column in zip(key, program.key, strict=True):
        if not table.has(folded):
            return f"{table.name} has no column {column}"
        if key.count(folded) > 1:
            return f"column {column} is named twice"
        if len(key) > 1 and not _PARAMETER.fullmatch(column):
            return f"column {column!r} cannot be part of a parameter's name: use another key"
    return None


def _order_problem(table: _Table, key: list[str]) -> str | None:
    """Why no uniqueness of the table is one of exactly these columns, in this order."""
    if key not in table.uniques:
        for other in table.uniques:
            if sorted(map(str, other)) == sorted(key):
                return f"its rows are in another order: write key={','.join(map(str, other))}"
        rowid = ", or rowid" if table.has_rowid else ""
        return f"its rows can have these in common: use the primary key, columns that are UNIQUE together{rowid}"
    return None if table.is_unique(key) else "it is unique under another collation than its columns compare by"
