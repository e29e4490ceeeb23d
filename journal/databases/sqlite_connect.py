"""Opening the file of a target database, and opening nothing in its place while it is missing.

The file is never opened but by SQLite: POSIX drops every lock that a process has on a file as soon as it closes any
descriptor of it, so that a look at its first bytes could take the write lock from under a running transaction.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from journal.databases.sqlite_errors import primary
from journal.databases.sqlite_session import BUSY_SECONDS, Session
from journal.errors import Code, JournalError, failure

_FULL: Final = 2


@dataclass(frozen=True)
class TargetFile:
    """The file of a target database; `create`: it is made when something is to be written."""

    path: Path
    create: bool
    read_only: bool

    def __post_init__(self) -> None:
        if str(self.path) == ":memory:":
            raise failure(
                Code.MISSING_TARGET,
                "a database in memory would be gone with this command: name a file",
                path=":memory:",
            )

    def open(self, make: bool) -> Session:
        """Open it; while it is missing, something empty takes its place for those that read.

        Raises:
            InvalidContractError: `journal_missing_target`.
            IntegrityError: `journal_foreign_target`, `journal_damaged_file`.
            UnavailableError: `journal_target_busy`, `journal_target_unavailable`.
        """
        if self._exists():
            return self._open("ro" if self.read_only else "rw")
        if make and self.create:
            return self._make()
        if make or not (self.create or self.read_only):
            raise self._missing("there is no database {}: check the path")
        return Session(sqlite3.connect(":memory:", isolation_level=None), str(self.path), is_substitute=True)

    def _exists(self) -> bool:
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unreachable(error) from error
        if stat.S_ISDIR(mode):
            raise self._missing("{} is a folder: name the database file in it")
        if not stat.S_ISREG(mode):
            raise self._missing("{} is not a file: name a database file")
        return True

    def _unreachable(self, error: OSError) -> JournalError:
        if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
            return self._missing(f"there can be no database {{}} ({error.strerror}): check the path")
        return failure(
            Code.TARGET_UNAVAILABLE, f"{self.path}: {error.strerror}: check the permissions", path=str(self.path)
        )

    def _missing(self, message: str) -> JournalError:
        return failure(Code.MISSING_TARGET, message.format(self.path), path=str(self.path))

    def _make(self) -> Session:
        if not self.path.parent.is_dir():
            raise failure(Code.MISSING_TARGET, f"there is no folder {self.path.parent}: make it first")
        session = self._open("rwc")
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return session

    def _open(self, mode: str) -> Session:
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        try:
            return self._connect(uri)
        except sqlite3.OperationalError as error:
            # A database in WAL mode in a folder that cannot be written: SQLite cannot make its shared memory, and
            # nobody else can be writing either.
            if not self.read_only or primary(error) != sqlite3.SQLITE_CANTOPEN or Path(f"{self.path}-wal").exists():
                raise
            return self._connect(f"{uri}&immutable=1")

    def _connect(self, uri: str) -> Session:
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False, cached_statements=256
        )
        try:
            connection.execute("PRAGMA legacy_alter_table = OFF")
            if connection.execute("PRAGMA synchronous").fetchone()[0] < _FULL:
                connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA schema_version").fetchone()  # the first look into the file
            return Session(connection, str(self.path))
        except BaseException:
            connection.close()
            raise
