"""Statements that would be without effect, or break the transaction of their step, and what to write instead.

What can be known from a statement's first words is refused before anything runs; the rest by SQLite's compiler, which
reports what a statement touches (`forbidden` is its rule).
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Final

from journal.databases.sqlite_bookkeeping import PREFIX
from journal.databases.sqlite_pragmas import OFF, boolean, pragma, refusal
from journal.databases.sqlite_tokens import fold, words
from journal.errors import Code, JournalError, failure
from journal.ports import Program

_FIRST: Final = re.compile(r"(?:[ \t\n\f\r]++|--[^\n]*+|/\*(?s:.*?)(?:\*/|\Z))*+([A-Za-z]++)?+")

ROWS: Final = frozenset({"delete", "insert", "replace", "update", "with"})
CANNOT_BREAK_REFERENCES: Final = frozenset({"analyze", "create", "pragma", "reindex"})
QUERIES: Final = frozenset({"select", "values", "with"})

NO_EFFECT: Final = "a query has no effect: put it behind `-- journal: assert`, or leave it out"
_OWN_TRANSACTION: Final = (
    "each step runs in one transaction of its own: leave it out, or split the step with `-- journal: schema`"
)
_OWN_COMMIT: Final = "each statement of this step commits by itself: leave it out, or leave `transaction=off` out"
_ROWS_OUTSIDE: Final = (
    "after a crash nothing would show whether it ran: write it in a step of its own, without `transaction=off`"
)
_TRANSACTIONS: Final = frozenset({"begin", "commit", "end", "release", "rollback", "savepoint"})
_REASONS: Final = {
    "attach": "a migration changes one database, its own: leave it out",
    "detach": "a migration changes one database, its own: leave it out",
    "explain": "it only explains: leave it out",
    "select": NO_EFFECT,
    "values": NO_EFFECT,
}
_VACUUM: Final = f"it cannot run in a transaction: write it in a step of its own with {OFF}"
_VACUUM_INTO: Final = "it leaves this database as it is and writes another file: leave it out"
_FOREIGN_KEYS: Final = (
    "it would be ignored in the middle of a transaction: write it as the first statement of the step, whose setting it "
    "then is, or leave it out"
)
_ALONE: Final = "it holds for its own step, which has nothing else: leave it out, or write it where it is needed"


def keyword(statement: str) -> str:
    """The first word of a statement, in lower case; empty when it does not begin with one."""
    found = _FIRST.match(statement)
    return fold(found[1] or "") if found else ""


def refused(number: int, statement: str, reason: str) -> JournalError:
    """The error for a statement that must not be run; `number` counts the step's statements from 1."""
    return failure(Code.STATEMENT_REFUSED, f"statement {number} ({_beginning(statement)}): {reason}", statement=number)


def _beginning(statement: str) -> str:
    text = " ".join(words(statement[:200])[:4]).strip()
    return f"{text:.40}"


def lower(statements: Sequence[str], *, transactional: bool) -> Program:
    """Turn a step's statements into a program. Raises as `Shadow.lower`."""
    keywords = [keyword(statement) for statement in statements]
    references = [
        number
        for number, (word, statement) in enumerate(zip(keywords, statements, strict=True), 1)
        if word == "pragma" and pragma(statement).name == "foreign_keys"
    ]
    others = [number for number in range(1, len(statements) + 1) if number not in references]
    last_vacuum = max((number for number, word in enumerate(keywords, 1) if word == "vacuum"), default=0)
    for number in others:
        statement, word = statements[number - 1], keywords[number - 1]
        reason = _refusal(word, statement, transactional=transactional, vacuum_follows=number < last_vacuum)
        if reason is not None:
            raise refused(number, statement, reason)
    return Program(
        tuple(statements[number - 1] for number in others),
        tuple(others),
        transactional,
        _enforced(statements, references, others),
    )


def _enforced(statements: Sequence[str], references: list[int], others: list[int]) -> bool:
    """Whether foreign keys act at once, as the PRAGMA before all others says; behind all others it says nothing."""
    enforced = False
    for number in references:
        statement = statements[number - 1]
        value = boolean(pragma(statement).value)
        if value is None:
            raise refused(number, statement, "it is ON or OFF, and gives nothing that is read: write one of them")
        if not others:
            raise refused(number, statement, _ALONE)
        if number < others[0]:
            enforced = value
        elif number < others[-1]:
            raise refused(number, statement, _FOREIGN_KEYS)
    return enforced


def _refusal(word: str, statement: str, *, transactional: bool, vacuum_follows: bool) -> str | None:
    if word in _TRANSACTIONS:
        return _OWN_TRANSACTION if transactional else _OWN_COMMIT
    if word in ROWS and not transactional:
        return _ROWS_OUTSIDE
    if word == "vacuum":
        if "into" in map(fold, words(statement)[1:3]):
            return _VACUUM_INTO
        return _VACUUM if transactional else None
    if word == "pragma":
        return refusal(pragma(statement), transactional=transactional, vacuum_follows=vacuum_follows)
    return _REASONS.get(word)


# --- by what the compiler reports -------------------------------------------------------------------------------------

_CREATES: Final = frozenset(
    {
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_CREATE_VTABLE,
    }
)
_TEMPORARY: Final = frozenset(
    {
        sqlite3.SQLITE_CREATE_TEMP_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TABLE,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TEMP_VIEW,
    }
)
_ELSEWHERE: Final = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
# These name every table when they are asked for all.
_SWEEPING: Final = frozenset({sqlite3.SQLITE_ANALYZE, sqlite3.SQLITE_REINDEX, sqlite3.SQLITE_PRAGMA})


def forbidden(action: int, first: str | None, second: str | None, database: str | None) -> str | None:
    """Why what the compiler reports must not be done; None when it may be."""
    if action in _TEMPORARY or (action in _CREATES and database == "temp"):
        return f"{first} is temporary and would be gone when the step ends: make it a table and drop it"
    if action in _ELSEWHERE:
        return _REASONS["attach"]
    if action == sqlite3.SQLITE_FUNCTION:
        return "a migration loads no extensions: leave it out" if second == "load_extension" else None
    if action in _SWEEPING:
        return None
    own = first if is_own(first) else second if is_own(second) else None
    return None if own is None else f"{own} is the journal's own: leave it alone"


def is_own(name: str | None) -> bool:
    """Whether a table or another object carries a name that is kept for the journal."""
    return name is not None and name[: len(PREFIX)].lower() == PREFIX
