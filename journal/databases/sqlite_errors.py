"""SQLite's errors as the journal's: the one table that knows them."""

from __future__ import annotations

import sqlite3
from typing import Any, Final, TypeAlias

from journal.errors import Code, JournalError, failure

# What the driver raises for a statement: SQLite's own errors, and its own for texts and values that it cannot pass on.
# A `Warning` is how Python 3.11 and older say that a text holds two statements.
DRIVER_ERRORS: Final = (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError)
DriverError: TypeAlias = sqlite3.Error | sqlite3.Warning | ValueError | OverflowError

_ROLLBACK_NEEDED: Final = (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY)
_CODES: Final = {
    sqlite3.SQLITE_BUSY: (Code.TARGET_BUSY, "another process holds its lock: run again, or find which does"),
    sqlite3.SQLITE_PROTOCOL: (Code.TARGET_BUSY, "other processes keep it locked: run again"),
    sqlite3.SQLITE_FULL: (Code.TARGET_UNAVAILABLE, "the disk is full: free some room and run again"),
    sqlite3.SQLITE_READONLY: (
        Code.TARGET_UNAVAILABLE,
        "it cannot be written: check the permissions of file and folder",
    ),
    sqlite3.SQLITE_CANTOPEN: (Code.TARGET_UNAVAILABLE, "it cannot be opened: check the permissions of file and folder"),
    sqlite3.SQLITE_PERM: (Code.TARGET_UNAVAILABLE, "access was denied: check the permissions of file and folder"),
    sqlite3.SQLITE_IOERR: (Code.TARGET_UNAVAILABLE, "reading or writing failed: check the disk and run again"),
    sqlite3.SQLITE_NOTADB: (Code.FOREIGN_TARGET, "it is not an SQLite database; it was left as it is"),
    sqlite3.SQLITE_CORRUPT: (Code.DAMAGED_FILE, "it is damaged: restore it from a backup; it was left as it is"),
}


def translate(error: DriverError, where: str, *, statement: int | None = None) -> JournalError:
    """The journal's error, with the driver's as its cause; `statement` is the one that was run, counted from 1."""
    translated = _translated(error, where, {} if statement is None else {"statement": statement})
    translated.__cause__ = error
    return translated


def _translated(error: DriverError, where: str, details: dict[str, Any]) -> JournalError:
    extended = getattr(error, "sqlite_errorcode", None) or 0
    if extended in _ROLLBACK_NEEDED:
        advice = "a process died while it changed it, and reading alone cannot clear that up: run a command that writes"
        return failure(Code.TARGET_UNAVAILABLE, f"{where}: {advice} ({error})", **details)
    if extended & 0xFF in _CODES:
        code, advice = _CODES[extended & 0xFF]
        return failure(code, f"{where}: {advice} ({error})", **details)
    number = f"statement {details['statement']}: " if details else ""
    return failure(Code.STATEMENT_FAILED, f"{where}: {number}{error}", **details)


def primary(error: BaseException) -> int:
    """SQLite's primary result code behind an error of the driver; 0 when it is not SQLite's."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
