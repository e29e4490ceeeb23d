"""The journal's SQLite file: recognising it, opening it, and one dedicated thread a connection.

The log and the leases share one file, so what both need is here: the checks that keep a foreign, newer or damaged file
unharmed, the translation of the driver's errors, and the thread through which a coroutine uses a connection.

A new file is made complete under another name and then linked into place, so that the path never shows a half-made
file, two processes that create it at once agree on one, and a file without content can only be a damaged one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import sqlite3
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeAlias, TypeVar

from journal.errors import Code, JournalError, failure
from journal.tasks import read_error

APPLICATION_ID: Final = 0x464A_4E4C  # "FJNL"
FILE_FORMAT: Final = 1
BUSY_SECONDS: Final = 4.0  # below the default timeout of an append, so that a locked file gives an explicit no

_SCHEMA: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FILE_FORMAT};
CREATE TABLE scopes (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
-- key is scope number * 2^40 + position: one b-tree, each scope's events next to each other and in order
CREATE TABLE events (key INTEGER PRIMARY KEY, data BLOB NOT NULL, mac BLOB) STRICT;
CREATE TABLE leases (
    scope TEXT PRIMARY KEY, fence INTEGER NOT NULL, lease_id BLOB NOT NULL, holder TEXT NOT NULL,
    expires_at_micros INTEGER NOT NULL, released INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""

T = TypeVar("T")


def connect(path: Path, *, create: bool = False, read_only: bool = False) -> sqlite3.Connection:
    """Open the journal file at `path`; with `create`, make it when it is missing.

    Raises:
        InvalidContractError: `journal_missing_file`, or `journal_read_only` when it cannot be written.
        IntegrityError: `journal_foreign_file`, `journal_damaged_file`.
        UnknownEventError: `journal_format_too_new`.
        UnavailableError: `journal_storage_full`, `journal_storage_busy`, `journal_storage_failed`.
    """
    try:
        if create and not path.exists():
            _make(path)
        inode = _recognise(path)
        if not read_only and not os.access(path, os.W_OK):
            raise failure(Code.READ_ONLY, f"{path} cannot be written: check its permissions", path=str(path))
        return _open(path, inode, read_only=read_only)
    except (OSError, sqlite3.Error) as error:
        raise translate(error, path) from error


def _make(path: Path) -> None:
    if not path.parent.is_dir():
        raise failure(Code.MISSING_FILE, f"there is no folder {path.parent}: make it first", path=str(path.parent))
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        connection = sqlite3.connect(new)
        try:
            connection.executescript(f"BEGIN; {_SCHEMA} COMMIT; PRAGMA journal_mode = WAL;")
        finally:
            connection.close()
        with contextlib.suppress(FileExistsError):  # another process was first: its file is as good
            os.link(new, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        for leftover in (new, Path(f"{new}-wal"), Path(f"{new}-shm"), Path(f"{new}-journal")):
            leftover.unlink(missing_ok=True)


class _Descriptors:
    """Descriptors of journal files that this process must not close yet.

    POSIX drops every lock that a process has on a file as soon as it closes any descriptor of it. So a file that was
    looked at stays open for as long as this process has a connection to it; otherwise SQLite's locks would be gone,
    another process could take itself for the last one, and remove the write-ahead log that is still in use here.
    A file that was refused stays open for good: it may be in use here through something else.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptors: dict[_Inode, list[int]] = {}
        self._connections: dict[_Inode, int] = {}
        self._inherited: set[_Inode] = set()

    def forked(self) -> None:
        """Note, in a child process, that its parent had connections when it forked.

        SQLite's own table of locks was copied with them: it would take the parent's locks for this process's own, take
        none, and be left without any when the parent closes. So files that were open stay closed here.
        """
        self._lock = threading.Lock()
        self._inherited |= set(self._connections)

    def look(self, path: Path) -> tuple[_Inode, bytes, int]:
        """Identity, first 100 bytes and size of a file."""
        with self._lock:
            info = path.stat()
            inode = info.st_dev, info.st_ino
            if inode in self._inherited:
                raise forked(path)
            if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
                raise failure(Code.FOREIGN_FILE, f"{path} is not a journal (not a file)", path=str(path))
            if inode not in self._descriptors:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                info = os.fstat(descriptor)  # the path may lead to another file by now
                inode = info.st_dev, info.st_ino
                self._descriptors.setdefault(inode, []).append(descriptor)
            descriptor = self._descriptors[inode][0]
            return inode, os.pread(descriptor, 100, 0), os.fstat(descriptor).st_size

    def connected(self, inode: _Inode) -> None:
        """A connection to the file was opened."""
        with self._lock:
            self._connections[inode] = self._connections.get(inode, 0) + 1

    def disconnected(self, inode: _Inode) -> None:
        """A connection to the file was closed."""
        with self._lock:
            self._connections[inode] -= 1
            if not self._connections[inode]:
                del self._connections[inode]
                for descriptor in self._descriptors.pop(inode, ()):
                    os.close(descriptor)


_Inode: TypeAlias = tuple[int, int]
_DESCRIPTORS: Final = _Descriptors()
os.register_at_fork(after_in_child=_DESCRIPTORS.forked)


def forked(path: Path) -> JournalError:
    """The error for using a file that a parent process had open when it forked."""
    return failure(
        Code.FORKED,
        f"{path} was open when this process was forked: open the journal after the fork, or start processes by spawn",
        path=str(path),
    )


class _Connection(sqlite3.Connection):
    """A connection that keeps its file's descriptors."""

    inode: _Inode | None = None

    def close(self) -> None:
        super().close()
        inode, self.inode = self.inode, None
        if inode is not None:
            _DESCRIPTORS.disconnected(inode)


def _recognise(path: Path) -> _Inode:
    """Look at the file's first bytes, which never change after it was made, before SQLite touches anything."""
    try:
        inode, header, size = _DESCRIPTORS.look(path)
    except FileNotFoundError:
        raise failure(Code.MISSING_FILE, f"there is no journal at {path}", path=str(path)) from None
    if not header:
        raise failure(
            Code.DAMAGED_FILE,
            f"{path} is empty, as no journal ever is: restore it from a backup, or remove it to start a new one",
            path=str(path),
        )
    if not header.startswith(b"SQLite format 3\0"[: len(header)]):
        raise failure(Code.FOREIGN_FILE, f"{path} is not a journal (not an SQLite file)", path=str(path))
    if len(header) < 100:
        raise damaged(path, f"it has {size} bytes")
    page_size, pages = struct.unpack(">H", header[16:18])[0], struct.unpack(">I", header[28:32])[0]
    version, application = struct.unpack(">I", header[60:64])[0], struct.unpack(">I", header[68:72])[0]
    if application != APPLICATION_ID:
        raise failure(Code.FOREIGN_FILE, f"{path} is an SQLite file of another application", path=str(path))
    if version > FILE_FORMAT:
        raise failure(
            Code.FORMAT_TOO_NEW,
            f"{path} has file format {version}, this version knows up to {FILE_FORMAT}: upgrade fenced-journal",
            path=str(path),
        )
    if not _wal_bytes(path) and pages * (page_size if page_size != 1 else 65_536) > size:
        raise damaged(path, f"it has {size} bytes, its header speaks of {pages} pages")
    return inode


def _wal_bytes(path: Path) -> int:
    """Size of the write-ahead log; 0 when there is none, which may be so from one moment to the next."""
    try:
        return Path(f"{path}-wal").stat().st_size
    except FileNotFoundError:
        return 0


def damaged(path: Path, how: str) -> JournalError:
    """The error for a file of ours that holds what we never wrote."""
    return failure(
        Code.DAMAGED_FILE, f"{path} is damaged ({how}): restore it from a backup; it was left as it is", path=str(path)
    )


def _open(path: Path, inode: _Inode, *, read_only: bool) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    if read_only and not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
        # Nobody can be writing here, and SQLite could not make its shared-memory file.
        uri += "?immutable=1"
    elif read_only:
        uri += "?mode=ro"
    else:
        uri += "?mode=rw"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=BUSY_SECONDS, check_same_thread=False, factory=_Connection
    )
    _DESCRIPTORS.connected(inode)
    connection.inode = inode
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("SELECT count(*) FROM events WHERE key < 0").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


_CODES: Final = {
    sqlite3.SQLITE_FULL: (Code.STORAGE_FULL, "the disk is full: free some room and run again"),
    sqlite3.SQLITE_BUSY: (Code.STORAGE_BUSY, "another process keeps it locked: run again, or find what holds it"),
    sqlite3.SQLITE_LOCKED: (Code.STORAGE_BUSY, "another connection keeps it locked: run again"),
    sqlite3.SQLITE_READONLY: (Code.READ_ONLY, "it cannot be written: check the permissions of file and folder"),
    sqlite3.SQLITE_CANTOPEN: (Code.READ_ONLY, "it cannot be opened: check the permissions of file and folder"),
    sqlite3.SQLITE_PERM: (Code.READ_ONLY, "access was denied: check the permissions of file and folder"),
}


def translate(error: OSError | sqlite3.Error, path: Path) -> JournalError:
    """The journal's error for a driver's or the operating system's. The only place that knows theirs."""
    if isinstance(error, OSError):
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            return failure(Code.READ_ONLY, f"{path}: {error.strerror}: check the permissions", path=str(path))
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return failure(Code.MISSING_FILE, f"{path}: {error.strerror}", path=str(path))
        code = Code.STORAGE_FULL if error.errno == errno.ENOSPC else Code.STORAGE_FAILED
        return failure(code, f"{path}: {error.strerror}", path=str(path))
    primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    if primary in _CODES:
        code, advice = _CODES[primary]
        return failure(code, f"{path}: {advice} ({error})", path=str(path))
    if isinstance(error, sqlite3.OperationalError) and "no such" in str(error):  # table or column
        return damaged(path, str(error))
    return failure(Code.STORAGE_FAILED, f"{path}: {error}", path=str(path))


class SQLiteThread:
    """One connection and the one thread that uses it; coroutines send it functions and await their results."""

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        self.path = path
        self._create = create
        self._read_only = read_only
        self._process = os.getpid()
        self._jobs: SimpleQueue[Any] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connected: asyncio.Future[None] | None = None
        self._is_connected = False
        self._closed = False

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the thread. The driver's errors come back translated.

        A caller that is cancelled does not wait; the work is still done.
        """
        await self.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job(connection: sqlite3.Connection) -> None:
            try:
                result = work(connection)
            except BaseException as error:  # noqa: BLE001  (it is raised in the caller)
                deliver(loop, _fail, future, self._translated(error))
            else:
                deliver(loop, _succeed, future, result)

        self._jobs.put(job)
        return await future

    async def close(self) -> None:
        """Let the thread finish what it was given, then end it and close the connection."""
        self._closed, self._is_connected = True, False
        thread, self._thread = self._thread, None
        if thread is not None and os.getpid() == self._process:
            self._jobs.put(None)
            await asyncio.get_running_loop().run_in_executor(None, thread.join)

    async def start(self) -> None:
        """Connect, once; raises what `connect` raises, and the next call tries again."""
        self.check_process()
        if self._is_connected:
            return
        if self._closed:
            raise failure(Code.CLOSED, f"{self.path} was closed")
        if self._connected is None:
            self._connected = self._launch()
        connected = self._connected
        try:
            # Shielded: whoever is cancelled here must not leave a thread behind that nobody knows.
            await asyncio.shield(connected)
        except JournalError:
            if self._connected is connected:
                self._connected = None
            raise
        if self._closed:
            raise failure(Code.CLOSED, f"{self.path} was closed")
        self._is_connected = True

    def check_process(self) -> None:
        """Raises `journal_forked` in a child of the process that made this: its thread is not there."""
        if os.getpid() != self._process:
            raise forked(self.path)

    def _launch(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        connected: asyncio.Future[None] = loop.create_future()
        connected.add_done_callback(read_error)  # all who wait for it may have been cancelled
        self._thread = threading.Thread(
            target=self._main, args=(loop, connected), name=f"journal-sqlite-{self.path.name}", daemon=True
        )
        self._thread.start()
        return connected

    def _main(self, loop: asyncio.AbstractEventLoop, connected: asyncio.Future[None]) -> None:
        try:
            connection = connect(self.path, create=self._create, read_only=self._read_only)
        except BaseException as error:  # noqa: BLE001  (it is raised in the caller)
            deliver(loop, _fail, connected, error)
            return
        deliver(loop, _succeed, connected, None)
        try:
            self._work(connection)
        finally:
            connection.close()

    def _work(self, connection: sqlite3.Connection) -> None:
        while (job := self._jobs.get()) is not None:
            job(connection)

    def _translated(self, error: BaseException) -> BaseException:
        if isinstance(error, OSError | sqlite3.Error):
            translated = translate(error, self.path)
            translated.__cause__ = error
            return translated
        return error


def deliver(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Have `call` run on a loop, from a thread; a loop that was closed has nobody left who waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def _succeed(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Run `work` between BEGIN IMMEDIATE and COMMIT; anything that it raises rolls back."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result
