"""What `journal doctor` says about an SQLite file: whether it is whole, lasting, writable, and where it should be."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from journal.errors import Code, JournalError
from journal.ports import Finding, Level

_LOW_BYTES: Final = 100 * 2**20
_CHECK_SECONDS: Final = 15.0
_CHECK_STEPS: Final = 100_000
_FULL: Final = 2
_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "fuse.glusterfs"}
)


def place(what: str, path: Path) -> Iterator[Finding]:
    """A file that is there, seen from outside: rights, free room, kind of file system."""
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK):
        yield Finding(
            what,
            Level.WARNING,
            f"{path} cannot be written by this user",
            "run writers as its owner, or correct its rights",
        )
    else:
        yield Finding(what, Level.GOOD, f"{path}, {path.stat().st_size} bytes")
    disk = os.statvfs(path.parent)
    free = disk.f_bavail * disk.f_frsize
    if free < _LOW_BYTES:
        yield Finding(f"{what} disk", Level.WARNING, f"{free // 2**20} MiB are free there", "free some room")
    kind = _file_system(path)
    if kind in _NETWORK:
        yield Finding(
            f"{what} disk",
            Level.WARNING,
            f"{path} is on a network file system ({kind}), whose locks SQLite cannot rely on",
            "move it to a local one, or keep log and leases in Kafka and Redis",
        )


def durability(what: str, connection: sqlite3.Connection) -> Finding:
    """Whether a commit that returned survives a loss of power, and readers stand in nobody's way."""
    mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    synchronous = int(connection.execute("PRAGMA synchronous").fetchone()[0])
    if mode == "wal" and synchronous >= _FULL:
        return Finding(f"{what} durability", Level.GOOD, "WAL, every commit is synchronised")
    return Finding(
        f"{what} durability",
        Level.WARNING,
        f"journal_mode is {mode}, synchronous is {synchronous}",
        "PRAGMA journal_mode = WAL, while nobody has it open",
    )


def integrity(what: str, connection: sqlite3.Connection) -> Finding:
    """Whether the pages of the file fit together, as far as that can be seen in a limited time."""
    end = time.monotonic() + _CHECK_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, _CHECK_STEPS)
    try:
        rows = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
            raise
        return Finding(
            f"{what} integrity",
            Level.WARNING,
            f"it is too large to be checked in {_CHECK_SECONDS:g} s",
            "run PRAGMA quick_check on a copy",
        )
    finally:
        connection.set_progress_handler(None, 0)
    if rows == ["ok"]:
        return Finding(f"{what} integrity", Level.GOOD, "its pages are whole")
    return Finding(f"{what} integrity", Level.HISTORY, f"it is damaged: {'; '.join(rows)}", "restore it from a backup")


def unusable(what: str, error: JournalError) -> Finding:
    """A file that could not be opened or read."""
    if error.code is Code.MISSING_FILE:
        return Finding(what, Level.WARNING, error.message, "`journal apply` makes it, unless its setting is wrong")
    level = Level.HISTORY if error.code is Code.DAMAGED_FILE else Level.PROBLEM
    return Finding(what, level, error.message, "see the message")


def _file_system(path: Path) -> str | None:
    """The kind of file system that a path is on, where the system tells."""
    try:
        lines = _MOUNTS.read_text("utf-8", "replace").splitlines()
        target = path.resolve()
    except OSError:
        return None
    found: tuple[int, str | None] = (-1, None)
    for line in lines:
        mount, _, kind = line.partition(" - ")
        point = Path(mount.split()[4].replace("\\040", " "))
        if target.is_relative_to(point):
            found = max(found, (len(point.parts), kind.split()[0]), key=lambda item: item[0])
    return found[1]
