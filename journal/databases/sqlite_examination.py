"""What `journal doctor` says about an SQLite target, and on whose behalf it was changed last."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from journal.databases import sqlite_bookkeeping as bookkeeping
from journal.databases.sqlite_session import Session
from journal.identities import Scope
from journal.ports import Finding, Guard, Level
from journal.sqlite_examination import place


def findings(session: Session) -> Sequence[Finding]:
    """The file, and whether the journal's tables in it can be read. Raises `journal_format_too_new`."""
    if session.is_substitute:
        message = f"there is no database {session.where} yet"
        return [Finding("target", Level.WARNING, message, "`journal apply` makes it, unless its setting is wrong")]
    has_books = bookkeeping.is_there(session.connection)
    message = f"the journal's tables have format {bookkeeping.FORMAT}" if has_books else "no journal has worked on it"
    return [*place("target", Path(session.where)), Finding("target bookkeeping", Level.GOOD, message)]


def raised(connection: sqlite3.Connection, scope: Scope) -> Guard | None:
    """On whose behalf the fence of a scope was raised last; None when it never was."""
    known = bookkeeping.raised_fence(connection, scope) if bookkeeping.is_there(connection) else None
    return None if known is None else Guard(scope, *known)
