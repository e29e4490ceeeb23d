"""Settings to wired objects: the one place that names adapters, and so the answer to "what runs here?"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from journal.codec import Codec, Key, Keyring
from journal.errors import Code, failure
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Database

if TYPE_CHECKING:  # importing it costs as much as the rest of the command
    from journal.settings import Settings


def open_journal(settings: Settings, *, create: bool = False, read_only: bool = False) -> Journal:
    """Wire a journal; it connects at its first use. With `create`, a missing file is made.

    With `read_only`, files are opened for reading alone and never made.

    Raises:
        InvalidContractError: `journal_invalid_settings`, `journal_invalid_key`.
    """
    create = create and not read_only
    return Journal(
        SQLiteLog(settings.log_file, create=create, read_only=read_only),
        SQLiteLeases(settings.leases_file, create=create, read_only=read_only),
        codec=Codec(keyring=_keyring(settings), max_event_bytes=settings.max_event_bytes),
    )


def open_database(settings: Settings, *, create: bool = False, read_only: bool = False) -> Database:
    """Wire the target database; it connects at its first use. With `create`, a missing file is made.

    Raises:
        InvalidContractError: `journal_invalid_settings`.
    """
    from journal.databases.sqlite import SQLiteDatabase  # noqa: PLC0415  (reading the journal does not need it)

    path = settings.database_file
    if path.absolute() in (settings.log_file.absolute(), settings.leases_file.absolute()):
        raise failure(Code.INVALID_SETTINGS, f"database: {path} is the journal's own file", key="database")
    return SQLiteDatabase(path, create=create and not read_only, read_only=read_only)


def _keyring(settings: Settings) -> Keyring | None:
    current, previous = settings.secret("key"), settings.previous_keys()
    if current is None:
        if previous:
            raise failure(Code.INVALID_SETTINGS, "previous_key is given without key: it can only accompany one")
        return None
    return Keyring(Key.parse(current), *map(Key.parse, previous))
