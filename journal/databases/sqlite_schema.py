"""Canonical semantics of a SQLite schema: what the rows of `sqlite_master` mean, however they are spelled.

SQLite keeps a schema as the text that made it, so the text is what is read here, statement by statement, without a
connection. A definition is one line of text, for people and for comparing. Equal definitions mean the same; the same
meaning gives equal definitions for everything that people and SQLite itself (`ALTER TABLE` rewrites the text and quotes
names) spell in more than one way: letter case, blanks, comments, quotes, constraints at a column or at the table and
their order and names, defaults that are said or left out. A statement that is not understood is taken by its words as
they are, so that it may differ from another spelling of itself, but never equals something else.

Two limits. In a query, an index or a trigger a double-quoted word is taken for a name, although SQLite takes one
that names nothing for a string; only the columns of a table are known when its own expressions are read. And the implicit
name of a result column (`SELECT a+b`) is no part of a view's meaning here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import crc32

from journal.databases.sqlite_table import TableReader
from journal.databases.sqlite_tokens import (
    EXPRESSION,
    Statement,
    Unreadable,
    as_name,
    body,
    fold,
    spelled,
    split,
    term,
    without_outer_parentheses,
    words,
)
from journal.identities import Fingerprint, fingerprint

OBJECT_DOMAIN: Final = "fenced-journal 2026-12 sqlite schema object v1"
BUCKET_DOMAIN: Final = "fenced-journal 2026-12 sqlite schema bucket v1"
SCHEMA_DOMAIN: Final = "fenced-journal 2026-12 sqlite schema v1"

_BUCKETS: Final = 256
_CACHED_ROWS: Final = 16_384
_OURS_OR_SQLITES: Final = ("sqlite_", "_journal_")


class SchemaRow(NamedTuple):
    """A row of `sqlite_master`; `table` is its `tbl_name`."""

    type: str
    name: str
    table: str
    sql: str | None


class _Object(NamedTuple):
    label: str
    definition: str
    digest: Fingerprint


def describe(rows: Iterable[SchemaRow], shadow_tables: Collection[str] = ()) -> dict[str, str]:
    """Canonical definitions by object: `table orders`, `index orders_by_customer`, `view v`, `trigger t`.

    `shadow_tables` are the tables that virtual tables keep for themselves: they are no part of the meaning.
    """
    return {found.label: found.definition for found in sorted(_objects(rows, _folded(shadow_tables)))}


def canonical(row: SchemaRow) -> tuple[str, str] | None:
    """Label and definition of one row; None when it is no part of the semantics."""
    found = _object(row)
    return None if found is None else (found.label, found.definition)


class Semantics:
    """The semantics of a schema that is observed again and again: what one more object costs does not grow with it."""

    def __init__(self) -> None:
        self._shadow_tables: frozenset[str] = frozenset()
        self._definitions: dict[str, str] = {}
        self._buckets: list[dict[str, Fingerprint]] = []
        self._hashes: list[Fingerprint] = []
        self._touched: set[int] = set()
        self._fingerprint: Fingerprint | None = None
        self.replace(())

    def replace(self, rows: Iterable[SchemaRow], shadow_tables: Collection[str] = ()) -> None:
        """Take these rows for the whole schema."""
        self._shadow_tables = _folded(shadow_tables)
        self._definitions.clear()
        self._buckets = [{} for _ in range(_BUCKETS)]
        self._hashes = [_EMPTY_BUCKET] * _BUCKETS
        self._touched.clear()
        self._fingerprint = None
        self.add(rows)

    def add(self, rows: Iterable[SchemaRow]) -> None:
        """Take in rows that were created since. A virtual table brings shadow tables: `replace` when there is one."""
        for found in _objects(rows, self._shadow_tables):
            at = crc32(found.label.encode("utf-8", "surrogatepass")) % _BUCKETS
            self._buckets[at][found.label] = found.digest
            self._definitions[found.label] = found.definition
            self._touched.add(at)

    @property
    def fingerprint(self) -> Fingerprint:
        """Identity of the meaning, whatever the order in which the objects came."""
        if self._touched or self._fingerprint is None:
            for at in self._touched:
                self._hashes[at] = _bucket(self._buckets[at].values())
            self._touched.clear()
            self._fingerprint = fingerprint(SCHEMA_DOMAIN, b"".join(self._hashes))
        return self._fingerprint

    @property
    def objects(self) -> Mapping[str, str]:
        """Definitions by label; a view of what is there now."""
        return MappingProxyType(self._definitions)


def _bucket(digests: Iterable[Fingerprint]) -> Fingerprint:
    return fingerprint(BUCKET_DOMAIN, b"".join(sorted(digests)))


_EMPTY_BUCKET: Final = _bucket(())


def _folded(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(fold, names))


def _objects(rows: Iterable[SchemaRow], shadow_tables: frozenset[str]) -> Iterator[_Object]:
    for row in rows:
        found = _object(row)
        if found is not None and not (shadow_tables and fold(row.table) in shadow_tables):
            yield found


@lru_cache(maxsize=_CACHED_ROWS)
def _object(row: SchemaRow) -> _Object | None:
    name = fold(row.name)
    if row.sql is None or name.startswith(_OURS_OR_SQLITES) or fold(row.table).startswith(_OURS_OR_SQLITES):
        return None
    label, definition = f"{row.type} {name}", _definition(row, row.sql)
    fields = (text.encode("utf-8", "surrogatepass") for text in (label, definition))
    return _Object(label, definition, fingerprint(OBJECT_DOMAIN, *fields))


def _definition(row: SchemaRow, sql: str) -> str:
    try:
        match row.type:
            case "table":
                return _table(sql)
            case "index":
                return _index(sql, as_name(row.table))
            case "view":
                return _view(sql)
            case "trigger":
                return _trigger(sql, as_name(row.table))
            case _:
                raise Unreadable
    except LookupError:
        return "as written: " + spelled(words(sql), {})


def _table(sql: str) -> str:
    statement = Statement(sql)
    if statement.folded[:2] == ["create", "virtual"]:
        return _virtual_table(statement)
    statement.header("table")
    return TableReader(statement).definition()


def _virtual_table(statement: Statement) -> str:
    """A module reads its arguments in its own way, so they stay as they were written."""
    statement.header("virtual", "table")
    statement.expect("using")
    module = statement.name()
    if statement.ends():
        return f"using {module}()"
    start, end = statement.group()
    if not statement.ends():
        raise Unreadable
    arguments: list[str] = []
    for argument in split(statement.folded[start:end]):
        until = start + len(argument)
        arguments.append(statement.text(start, until) if argument else "")
        start = until + 1
    return f"using {module}({', '.join(arguments)})"


def _index(sql: str, table: str) -> str:
    statement = Statement(sql)
    unique = "unique " if statement.folded[1] == "unique" else ""
    statement.header(*unique.split(), "index")
    statement.expect("on")
    statement.name()
    columns = ", ".join(map(term, statement.terms()))
    if statement.ends():
        return f"{unique}on {table} ({columns})"
    statement.expect("where")
    return f"{unique}on {table} ({columns}) where {spelled(without_outer_parentheses(statement.rest()), EXPRESSION)}"


def _view(sql: str) -> str:
    statement = Statement(sql)
    statement.header("view")
    columns = f"({', '.join(statement.names())}) " if statement.folded[statement.at] == "(" else ""
    statement.expect("as")
    return f"{columns}as {body(statement.rest())}"


def _trigger(sql: str, table: str) -> str:
    statement = Statement(sql)
    statement.header("trigger")
    time = next((time for time in ("before", "after", "instead of") if statement.take(*time.split())), "before")
    event = next((event for event in ("delete", "insert", "update") if statement.take(event)), None)
    if event is None:
        raise Unreadable
    columns = f" of {', '.join(_names_of_update(statement))}" if statement.take("of") else ""
    statement.expect("on")
    statement.qualified_name()
    statement.take("for", "each", "row")
    return f"{time} {event}{columns} on {table} {body(statement.rest())}"


def _names_of_update(statement: Statement) -> list[str]:
    names = {statement.name()}
    while statement.take(","):
        names.add(statement.name())
    return sorted(names)
