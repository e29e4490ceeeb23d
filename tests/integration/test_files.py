"""The journal's file when it is not as it should be: a clear error, and every byte of it as before.

A process must not open or close the file beside SQLite while it has a connection to it (POSIX drops its locks), so files
are read here only while no journal is open.
"""

# ruff: noqa: ASYNC221, ASYNC240  (nothing else runs on these loops while a file is looked at, copied or changed)

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.errors import (
    Code,
    HistoryLostError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    LeaseContendedError,
    UnknownEventError,
)
from journal.identities import HolderId
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, plan_record
from tests.integration.scripts import session
from tests.integration.scripts.session import read_history
from tests.places import Embedded, journal_at

ROOT = Path(__file__).parents[2]
ALICE, BOB = HolderId("alice"), HolderId("bob")
TTL = timedelta(seconds=30)
SHIFT = 40  # positions are the low bits of a row's key


@pytest.fixture
def place(embedded_place: Embedded) -> Embedded:
    """What is tested here is the file."""
    return embedded_place


@pytest.fixture
async def whole(journal_file: Path) -> Path:
    """A journal's file with a finished session in it, and no journal open."""
    async with journal_at(Embedded(journal_file)) as journal:
        await session.run(journal, "writer", lambda _: None, ttl=TTL)
    assert sorted(file.name for file in journal_file.parent.iterdir()) == ["journal.db"]
    return journal_file


def hashes(folder: Path) -> dict[str, str]:
    """Every file with content. A read-only connection leaves an empty `-wal` and its index `-shm` behind: neither is data."""
    files = [file for file in folder.iterdir() if file.is_file() and not file.name.endswith("-shm")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.stat().st_size}


async def use(path: Path, *, read_only: bool = False) -> None:
    """What an ordinary caller does with a file: look, read, take the lease, write."""
    create = not read_only
    log, leases = (
        SQLiteLog(path, create=create, read_only=read_only),
        SQLiteLeases(path, create=create, read_only=read_only),
    )
    async with Journal(log, leases) as journal:
        await journal.scopes()
        await read_history(journal)
        await journal.lease_in_store(SCOPE)
        if not read_only:
            await journal.acquire(SCOPE, ALICE, wait=timedelta(0))


async def refused(path: Path, *, kind: type[JournalError], code: Code) -> None:
    """Every way to open the file is refused with this error, and changes nothing in its folder."""
    before = hashes(path.parent), path.stat().st_size
    ways: list[Callable[[], Awaitable[None]]] = [lambda: use(path), lambda: use(path, read_only=True)]
    for way in ways:
        with pytest.raises(kind, match=path.name) as caught:
            await way()
        assert caught.value.code is code
        assert (hashes(path.parent), path.stat().st_size) == before


# --- not ours -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"# a text file\n", b"x", b"\0" * 4_096, b"SQLite format 2\0" + b"\0" * 200, b"PK\3\4" * 100], ids=repr
)
async def test_a_file_that_is_no_database_is_refused_and_left_alone(journal_file: Path, content: bytes) -> None:
    journal_file.write_bytes(content)
    await refused(journal_file, kind=IntegrityError, code=Code.FOREIGN_FILE)


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_the_database_of_another_application_is_refused_and_left_alone(journal_file: Path, mode: str) -> None:
    connection = sqlite3.connect(journal_file)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.executescript(
        "CREATE TABLE events (key INTEGER PRIMARY KEY, data BLOB, mac BLOB); PRAGMA user_version = 1"
    )
    connection.close()
    await refused(journal_file, kind=IntegrityError, code=Code.FOREIGN_FILE)


async def test_a_database_of_another_application_that_crashed_is_not_even_recovered(journal_file: Path) -> None:
    source = journal_file.with_name("source.db")
    connection = sqlite3.connect(source)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("CREATE TABLE theirs (x)")
    subprocess.run(["cp", str(source), str(journal_file)], check=True)
    subprocess.run(["cp", f"{source}-wal", f"{journal_file}-wal"], check=True)
    connection.close()
    source.unlink()
    await refused(journal_file, kind=IntegrityError, code=Code.FOREIGN_FILE)


async def test_a_file_of_a_newer_format_is_refused_and_left_alone(whole: Path) -> None:
    connection = sqlite3.connect(whole)
    connection.execute("PRAGMA user_version = 2")
    connection.commit()
    connection.close()
    await refused(whole, kind=UnknownEventError, code=Code.FORMAT_TOO_NEW)


async def test_a_missing_file_is_made_only_when_asked_for(journal_file: Path) -> None:
    with pytest.raises(InvalidContractError) as caught:
        await use(journal_file, read_only=True)
    assert caught.value.code is Code.MISSING_FILE
    assert not journal_file.exists()


async def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidContractError) as caught:
        await use(tmp_path / "nowhere" / "journal.db")
    assert caught.value.code is Code.MISSING_FILE


async def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError) as caught:
        await use(tmp_path)
    assert caught.value.code in (Code.MISSING_FILE, Code.FOREIGN_FILE)


async def test_processes_that_make_the_file_at_once_agree_on_one(journal_file: Path) -> None:
    journals = [journal_at(Embedded(journal_file)) for _ in range(6)]
    created = await asyncio.gather(*(journal.create(SCOPE) for journal in journals))
    assert sum(one.created for one in created) == 1
    assert len({one.incarnation for one in created}) == 1
    for journal in journals:
        await journal.close()
    assert [file.name for file in journal_file.parent.iterdir()] == ["journal.db"]


# --- damaged ------------------------------------------------------------------------------------------------------------


async def test_a_truncated_file_is_refused_at_every_length_and_left_alone(whole: Path) -> None:
    data = whole.read_bytes()
    (page,) = struct.unpack(">H", data[16:18])
    lengths = {0, 1, 15, 16, 17, 50, 99, 100, 101, len(data) - 1, *range(page, len(data), page)}
    lengths |= {length + delta for length in range(page, len(data), page) for delta in (-1, 1)}
    for length in sorted(lengths):
        whole.write_bytes(data[:length])
        await refused(whole, kind=IntegrityError, code=Code.DAMAGED_FILE)


async def test_pages_overwritten_with_noise_are_found_damaged(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    (page,) = struct.unpack(">H", data[16:18])
    for start in range(page, len(data), page):
        data[start : start + page] = b"\xa5" * page
    whole.write_bytes(data)
    await refused(whole, kind=IntegrityError, code=Code.DAMAGED_FILE)


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    changed = connection.execute(statement, values).rowcount
    connection.commit()
    connection.close()
    assert changed > 0


@pytest.mark.parametrize("where", ["at the start", "in the middle", "in two places"])
async def test_deleted_events_are_history_lost(whole: Path, where: str) -> None:
    positions = {"at the start": "(0)", "in the middle": "(5)", "in two places": "(3, 7)"}[where]
    change(whole, f"DELETE FROM events WHERE key & ((1 << {SHIFT}) - 1) IN {positions}")
    before = hashes(whole.parent)
    for operation in (use(whole), use(whole, read_only=True)):
        with pytest.raises(HistoryLostError) as caught:
            await operation
        assert caught.value.code is Code.HISTORY_LOST
        assert caught.value.details["position"] == int(positions[1])
        assert hashes(whole.parent) == before


async def test_events_that_vanish_behind_a_reader_are_history_lost(
    journal_file: Path, open_journal: OpenJournal
) -> None:
    journal = open_journal()
    await journal.create(SCOPE)
    lease = await journal.acquire(SCOPE, ALICE, ttl=TTL)
    await journal.begin_plan(lease, plan_record(lease, chain_of(2)))
    program = "import sqlite3,sys; c=sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit()"
    delete = "DELETE FROM events WHERE key = (SELECT max(key) FROM events)"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, str(journal_file), delete], check=True)
    with pytest.raises(HistoryLostError):
        await asyncio.wait_for(journal.state(SCOPE), 5)
    with pytest.raises(HistoryLostError):
        await asyncio.wait_for(journal.load_open_plan(lease), 5)


async def test_a_flipped_byte_makes_everything_behind_it_void(whole: Path, open_journal: OpenJournal) -> None:
    async with journal_at(Embedded(whole)) as journal:
        before = await read_history(journal)
    connection = sqlite3.connect(whole)
    key, data = connection.execute("SELECT key, data FROM events ORDER BY key LIMIT 1 OFFSET 4").fetchone()
    flipped = bytearray(data)
    flipped[30] ^= 1  # in the event id: the event itself still reads well
    connection.execute("UPDATE events SET data = ? WHERE key = ?", (bytes(flipped), key))
    connection.commit()
    (count,) = connection.execute("SELECT count(*) FROM events").fetchone()
    connection.close()
    journal = open_journal()
    history = await read_history(journal)
    assert history.types == before.types[:5]
    assert [reason for _, reason in history.voids] == [Code.STALE_PARENT] * (count - 5)


# --- what a killed process leaves ---------------------------------------------------------------------------------------


async def test_the_write_ahead_log_of_a_killed_process_is_recovered(
    journal_file: Path, open_journal: OpenJournal
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.integration.scripts.journal_writer",
        "load",
        str(journal_file),
        "killed",
        "0.3",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:  # noqa: ASYNC220
        assert child.stdout is not None
        assert child.stdout.readline() == "leased\n"
        told = [child.stdout.readline().strip() for _ in range(40)]
        child.send_signal(signal.SIGKILL)
        told += [line.strip() for line in child.stdout if line.endswith("\n")]
    assert Path(f"{journal_file}-wal").stat().st_size > 0
    journal = open_journal()
    session.check_told(await read_history(journal), told)
    async with asyncio.timeout(0.3 + 1):
        await journal.acquire(SCOPE, BOB)


async def test_a_read_only_reader_sees_what_is_in_the_write_ahead_log(journal_file: Path) -> None:
    async with journal_at(Embedded(journal_file)) as writer:
        await session.run(writer, "writer", lambda _: None, ttl=TTL)
        reader = Journal(
            SQLiteLog(journal_file, create=False, read_only=True),
            SQLiteLeases(journal_file, create=False, read_only=True),
        )
        async with reader:
            assert (await reader.state(SCOPE)).canonical() == (await writer.state(SCOPE)).canonical()
            with pytest.raises(InvalidContractError) as caught:
                await reader.create(SCOPE)
            assert caught.value.code is Code.READ_ONLY


# --- copies -------------------------------------------------------------------------------------------------------------


async def test_a_copy_taken_while_a_lease_was_held_names_the_old_holder_until_it_ran_out(
    journal_file: Path, open_journal: OpenJournal, tmp_path: Path
) -> None:
    journal = open_journal()
    await journal.create(SCOPE)
    ttl = timedelta(seconds=1)
    old = await journal.acquire(SCOPE, ALICE, ttl=ttl)
    await journal.begin_plan(old, plan_record(old, chain_of(2)))
    copy = tmp_path / "copy" / "journal.db"
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        subprocess.run(["cp", f"{journal_file}{suffix}", f"{copy}{suffix}"], check=True)
    copied = open_journal(Embedded(copy))
    with pytest.raises(LeaseContendedError, match="alice") as caught:
        await copied.acquire(SCOPE, BOB, wait=timedelta(0))
    assert caught.value.holder == ALICE
    async with asyncio.timeout(ttl.total_seconds() + 1):
        new = await copied.acquire(SCOPE, BOB, ttl=ttl)
    assert new.fence > old.fence
    assert (await copied.load_open_plan(new)) is not None
    # The original goes its own way, untouched.
    old.check()
    assert (await journal.state(SCOPE)).fence == old.fence


async def test_a_copy_of_a_closed_journal_blocks_nobody(whole: Path, tmp_path: Path, open_journal: OpenJournal) -> None:
    shutil.copy(whole, tmp_path / "copy.db")
    lease = await open_journal(Embedded(tmp_path / "copy.db")).acquire(SCOPE, BOB, wait=timedelta(0))
    assert lease.fence == 2


# --- read-only, full ----------------------------------------------------------------------------------------------------


def confined(*arguments: str, setup: str = "") -> list[dict[str, Any]]:
    """Run `scripts/confined.py`; with `setup`, in a mount namespace of its own after those commands."""
    command = [sys.executable, "-m", "tests.integration.scripts.confined", *arguments]
    if setup:
        command = [*mount_namespace(), "sh", "-euc", f'{setup}\nexec "$@"', "sh", *command]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def mount_namespace() -> list[str]:
    """The words that run a command in a mount namespace of its own."""
    if os.geteuid() != 0:
        return ["unshare", "-rm"]
    # In a chroot the root is no mount point, whose propagation could be changed; there it was private before.
    private = ["unshare", "--mount"]
    possible = subprocess.run([*private, "true"], capture_output=True, check=False).returncode == 0
    return private if possible else [*private, "--propagation", "unchanged"]


READ_ONLY_MOUNT = 'mount --bind "{0}" "{0}"; mount -o remount,bind,ro "{0}"'


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_on_a_read_only_mount_writing_is_refused_and_reading_works(whole: Path, what: str) -> None:
    before = hashes(whole.parent)
    setup = READ_ONLY_MOUNT.format(whole if what == "file" else whole.parent)
    (written,) = await asyncio.to_thread(confined, "write", str(whole), setup=setup)
    assert (written["error"], written["code"]) == ("InvalidContractError", Code.READ_ONLY)
    assert hashes(whole.parent) == before
    *reads, acquired = await asyncio.to_thread(confined, "read", str(whole), setup=setup)
    assert [step.get("ok") for step in reads] == [True] * 4, reads
    assert acquired["code"] == Code.READ_ONLY
    assert hashes(whole.parent) == before


async def test_no_file_is_made_on_a_read_only_mount(journal_file: Path) -> None:
    setup = READ_ONLY_MOUNT.format(journal_file.parent)
    (written,) = await asyncio.to_thread(confined, "write", str(journal_file), setup=setup)
    assert written["code"] == Code.READ_ONLY
    assert list(journal_file.parent.iterdir()) == []


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def without_root(mode: str, path: Path) -> list[dict[str, Any]]:
    """Permission bits do not bind root: drop its privileges when it is us."""
    return confined(f"{mode}-as", "65534", str(path)) if os.geteuid() == 0 else confined(mode, str(path))


@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o555, 0o444), (0o777, 0o444), (0o555, 0o666)])
async def test_without_permission_writing_is_refused_and_reading_works(
    whole: Path, public: Path, folder_mode: int, file_mode: int
) -> None:
    path = Path(shutil.copy(whole, public / "journal.db"))
    path.chmod(file_mode)
    public.chmod(folder_mode)
    before = hashes(public)
    (written,) = await asyncio.to_thread(without_root, "write", path)
    assert (written["error"], written["code"]) == ("InvalidContractError", Code.READ_ONLY)
    assert hashes(public) == before
    *reads, acquired = await asyncio.to_thread(without_root, "read", path)
    assert [step.get("ok") for step in reads] == [True] * 4, reads
    assert acquired["code"] == Code.READ_ONLY
    public.chmod(0o755)
    assert hashes(public) == before


async def test_a_file_that_may_not_be_read_is_refused(whole: Path, public: Path) -> None:
    path = Path(shutil.copy(whole, public / "journal.db"))
    path.chmod(0)
    for mode in ("read", "write"):
        steps = await asyncio.to_thread(without_root, mode, path)
        assert {step["code"] for step in steps} == {Code.READ_ONLY}


async def test_on_a_full_disk_everybody_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    setup = f'mount -t tmpfs -o size=1m tmpfs "{tmp_path}"'
    steps = await asyncio.to_thread(confined, "full", str(tmp_path), setup=setup)
    by_name = {step["step"]: step for step in steps}
    for name in ("create the file", "acquire on a full disk", "write until full"):
        assert by_name[name]["code"] == Code.STORAGE_FULL, by_name[name]
        assert by_name[name]["error"] == "UnavailableError"
    assert by_name["left behind"]["files"] == ["filler"]
    assert by_name["in doubt"]["in_doubt"] is False
    for name in ("create the scope", "acquire", "write", "go on", "release"):
        assert by_name[name].get("ok"), by_name[name]
    entries, told = by_name["verified"]["entries"], by_name["verified"]["told"]
    # Of a pipeline that met the full disk its caller was told the error, not the entries before it.
    assert entries >= told > 0
