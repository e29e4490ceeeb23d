"""What a statement does, as SQLite's own compiler reports it (`set_authorizer`), and what may not be done.

Keywords can be fooled, the compiler cannot: it names every table, column and function that a statement touches, also
through views and triggers. It reports when a statement is compiled, which for one that changes the schema is each time
that it runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, TypeAlias

from journal.databases.sqlite_tokens import fold

Rule: TypeAlias = Callable[[int, str | None, str | None, str | None], str | None]

_WRITES: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})

# Whatever else happens, rows of the schema table that were there stay as they are.
_NOT_ADDITIVE: Final = frozenset(
    {
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_TRIGGER,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_DROP_VTABLE,
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_VTABLE,
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_DETACH,
        sqlite3.SQLITE_ANALYZE,
    }
)
# What these objects call is resolved when they are used, not when they are made.
_LATE: Final = frozenset({sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_VIEW, sqlite3.SQLITE_CREATE_TRIGGER})
_SCHEMA_TABLES: Final = frozenset({"sqlite_master", "sqlite_temp_master"})


class Watch:
    """The authorizer of one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.actions: set[int] = set()  # of all statements since it was cleared
        self.updated: set[tuple[str, str]] = set()  # tables and columns that the last statement sets, triggers included
        self.created: list[tuple[int, str]] = []  # by the last statement: what kind of object, and its (table's) name
        self.writes = False  # whether the last statement writes rows of a table, other than the schema's own
        self.refusal: str | None = None
        self._rule: Rule | None = None
        connection.set_authorizer(self._report)

    @contextmanager
    def judging(self, rule: Rule | None) -> Generator[None, None, None]:
        """Compile one statement inside; what `rule` gives a reason for is refused, and the reason kept."""
        self.created, self.updated, self.writes, self.refusal, self._rule = [], set(), False, None, rule
        try:
            yield
        finally:
            self._rule = None

    @property
    def is_additive(self) -> bool:
        """Whether the schema can only have got new objects."""
        return self.actions.isdisjoint(_NOT_ADDITIVE)

    def _report(self, action: int, first: str | None, second: str | None, database: str | None, _: str | None) -> int:
        self.actions.add(action)
        if first in _SCHEMA_TABLES:  # SQLite lets nobody write there but itself
            return sqlite3.SQLITE_OK
        if action in _WRITES:
            self.writes = True
            if action == sqlite3.SQLITE_UPDATE and first is not None and second is not None:
                self.updated.add((fold(first), fold(second)))
        elif action in _LATE and first is not None:
            self.created.append((action, second if action == sqlite3.SQLITE_CREATE_TRIGGER and second else first))
        if self._rule is not None and (reason := self._rule(action, first, second, database)) is not None:
            self.refusal = self.refusal or reason
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK
