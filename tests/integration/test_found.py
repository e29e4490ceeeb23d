"""Situations that once broke something: unlucky moments, odd processes, tampering. Each test is the smallest one that showed it."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import pytest

from journal.codec import Codec, Key, Keyring
from journal.errors import Code, InvalidContractError, JournalError, OutcomeUnknownError, UnavailableError, failure
from journal.identities import HolderId, Position, Scope
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Leases, Log, Outgoing
from journal.records import LeaseAcquiredRecord, LeaseReleasedRecord
from journal.vocabulary import GroupEventKind
from projections import audit
from tests.conftest import OpenJournal
from tests.factories import SCOPE, Writer, chain_of, group_record, plan_record
from tests.faults import Call, FaultyLeases, FaultyLog, Held, lose_call, refuse
from tests.places import Cluster, Embedded, Place, journal_at
from tests.written import reading, stored

ALICE, BOB = HolderId("alice"), HolderId("bob")
OTHER = Scope("other")
NO_WAIT = timedelta(0)
BEFORE = GroupEventKind.BEFORE_COMMIT
MANIFESTS = chain_of(4)
DEADLINE = 20
FORK = multiprocessing.get_context("fork")

T = TypeVar("T")


class Ports:
    """A journal on ports that can be told to misbehave."""

    def __init__(self, open_journal: OpenJournal, **settings: Any) -> None:
        self.journal = open_journal(wrap_log=self._wrap_log, wrap_leases=self._wrap_leases, **settings)

    def _wrap_log(self, log: Log) -> FaultyLog:
        self.log = FaultyLog(log)
        return self.log

    def _wrap_leases(self, leases: Leases) -> FaultyLeases:
        self.leases = FaultyLeases(leases)
        return self.leases


async def soon(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """The result of what must not hang."""
    async with asyncio.timeout(DEADLINE):
        return await work


def busy() -> UnavailableError:
    error = failure(Code.STORAGE_BUSY, "locked for the test")
    assert isinstance(error, UnavailableError)
    return error


async def stepping(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110  (what is waited for sets no event)
            await asyncio.sleep(0)


# --- processes and loops ------------------------------------------------------------------------------------------------


def in_child(work: Coroutine[Any, Any, str], answers: Connection) -> None:
    """What a forked process does: its work, on a loop of its own, and nothing of its parent's at the end."""

    async def answer() -> str:
        try:
            return await soon(work)
        except (JournalError, TimeoutError) as error:
            return getattr(error, "code", "hangs")

    answers.send(asyncio.run(answer()))
    os._exit(0)


async def plan_with(journal: Journal) -> str:
    lease = await journal.acquire(SCOPE, BOB)
    return str((await journal.begin_plan(lease, plan_record(lease, MANIFESTS))).sequence)


async def plan_in(place: Place) -> str:
    return await plan_with(journal_at(place))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A loop that is not running when its process is forked."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("own", [True, False], ids=["its own journal", "the journal of its parent"])
def test_a_process_that_was_forked_while_the_journal_was_open_is_refused_and_does_not_hang(
    place: Place, loop: asyncio.AbstractEventLoop, own: bool
):
    parent = journal_at(place)
    loop.run_until_complete(parent.create(SCOPE))
    mine, childs = FORK.Pipe()
    child = FORK.Process(target=lambda: in_child(plan_in(place) if own else plan_with(parent), childs), daemon=True)
    child.start()
    try:
        assert mine.poll(DEADLINE + 5)
        answer = mine.recv()
    finally:
        child.kill()
        child.join()
        mine.close()
        childs.close()
        loop.run_until_complete(parent.close())
    if own and isinstance(place, Cluster):
        assert answer == "1", "connections of its own, and nothing of its parent's"
    else:
        assert answer.startswith("journal_")


def test_a_process_that_was_forked_after_the_journal_was_closed_may_use_it(
    place: Place, loop: asyncio.AbstractEventLoop
):
    async def create() -> None:
        async with journal_at(place) as journal:
            await journal.create(SCOPE)

    loop.run_until_complete(create())
    mine, childs = FORK.Pipe()
    child = FORK.Process(target=lambda: in_child(plan_in(place), childs), daemon=True)
    child.start()
    try:
        assert mine.poll(DEADLINE + 5)
        assert mine.recv() == "1"
    finally:
        child.kill()
        child.join()
        mine.close()
        childs.close()


async def test_a_journal_is_usable_after_all_other_tasks_of_its_loop_were_cancelled(open_journal: OpenJournal):
    journal, elsewhere = open_journal(), open_journal()
    await journal.create(SCOPE)
    lease = await journal.acquire(SCOPE, ALICE)
    await journal.begin_plan(lease, plan_record(lease, MANIFESTS))
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await soon(asyncio.gather(*others, return_exceptions=True))
    await elsewhere._log.append(SCOPE, [Outgoing(b"somebody else's bytes")])
    assert (await soon(journal.state(SCOPE))).position == 3
    entry = await soon(journal.record_group_event(lease, group_record(lease, MANIFESTS[0], BEFORE)))
    assert entry.sequence == 2


def test_a_journal_that_another_loop_used_before_refuses_and_does_not_hang(place: Place):
    journal = journal_at(place)

    async def begin() -> None:
        await journal.create(SCOPE)
        lease = await journal.acquire(SCOPE, ALICE)
        await journal.begin_plan(lease, plan_record(lease, MANIFESTS))

    async def use_it_elsewhere() -> None:
        async with journal_at(place) as other:
            await other._log.append(SCOPE, [Outgoing(b"somebody else's bytes")])
        with pytest.raises(InvalidContractError):
            await soon(journal.state(SCOPE))

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(soon(begin()))
        second.run(use_it_elsewhere())
        first.run(soon(journal.close()))


# --- closing and cancelling ---------------------------------------------------------------------------------------------


async def test_a_lease_that_is_asked_for_while_the_journal_closes_is_not_left_behind(open_journal: OpenJournal):
    ports = Ports(open_journal)
    journal = ports.journal
    for scope in (SCOPE, OTHER):
        await journal.create(scope)
    await journal.acquire(SCOPE, ALICE)
    held = Held()
    ports.leases.on_release = [held]
    closing = asyncio.create_task(journal.close())
    await soon(held.arrived.wait())
    with pytest.raises(InvalidContractError):
        await soon(journal.acquire(OTHER, ALICE))
    await soon(held.release())
    await soon(closing)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await open_journal().lease_in_store(OTHER) is None


async def test_closing_is_finished_although_its_caller_was_cancelled(open_journal: OpenJournal):
    ports = Ports(open_journal)
    await ports.journal.create(SCOPE)
    await ports.journal.acquire(SCOPE, ALICE)
    held = Held()
    ports.leases.on_release = [held]
    closing = asyncio.create_task(ports.journal.close())
    await soon(held.arrived.wait())
    closing.cancel()
    await soon(held.release())
    with pytest.raises(asyncio.CancelledError):
        await soon(closing)
    await soon(ports.journal.close())
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert await open_journal().lease_in_store(SCOPE) is None


async def test_nobody_waits_for_a_receipt_of_a_journal_that_was_closed(open_journal: OpenJournal):
    ports = Ports(open_journal)
    await ports.journal.create(SCOPE)
    lease = await ports.journal.acquire(SCOPE, ALICE)
    ports.log.on_append = [lose_call()]
    with pytest.raises(OutcomeUnknownError) as caught:
        await soon(ports.journal.begin_plan(lease, plan_record(lease, MANIFESTS)))
    receipt = caught.value.receipt
    waiting = asyncio.create_task(receipt.settled())
    await asyncio.sleep(0)
    await soon(ports.journal.close())
    for late in (waiting, receipt.settled()):
        with pytest.raises(OutcomeUnknownError):
            await soon(late)


async def test_an_acquirer_that_is_cancelled_is_cancelled_even_when_its_grant_cannot_be_given_back(
    open_journal: OpenJournal,
):
    ports = Ports(open_journal)
    await ports.journal.create(SCOPE)
    held = Held()
    ports.log.on_append = [held]
    ports.leases.on_release = [refuse(busy())]
    acquiring = asyncio.create_task(ports.journal.acquire(SCOPE, ALICE))
    await soon(held.arrived.wait())
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(acquiring)
    await soon(held.release())


async def test_an_error_in_the_block_of_a_lease_is_not_hidden_by_a_release_that_fails(open_journal: OpenJournal):
    ports = Ports(open_journal)
    await ports.journal.create(SCOPE)

    async def work() -> None:
        async with ports.journal.lease(SCOPE, ALICE):
            ports.leases.on_release = [refuse(busy())]
            raise LookupError("the work's own error")

    with pytest.raises(LookupError):
        await soon(work())


async def test_a_lease_is_still_renewed_after_a_refresh_that_failed(open_journal: OpenJournal):
    ports = Ports(open_journal)
    await ports.journal.create(SCOPE)
    lease = await ports.journal.acquire(SCOPE, ALICE, ttl=timedelta(seconds=0.6))
    ports.leases.on_acquire = [refuse(busy())]
    with pytest.raises(UnavailableError):
        await soon(ports.journal.refresh(lease))
    renewals = ports.leases.renewals
    await stepping(lambda: ports.leases.renewals > renewals)


async def test_a_refresh_that_is_cancelled_leaves_no_fresh_lease_that_nobody_has(open_journal: OpenJournal):
    ports = Ports(open_journal)
    journal = ports.journal
    await journal.create(SCOPE)
    renewing, let_go = asyncio.Event(), asyncio.Event()

    async def slow_to_stop(_: Call) -> None:
        renewing.set()
        try:
            await asyncio.Event().wait()
        finally:
            await let_go.wait()

    ports.leases.on_renew = [slow_to_stop]
    lease = await journal.acquire(SCOPE, ALICE, ttl=timedelta(seconds=0.3))
    await soon(renewing.wait())
    refreshing = asyncio.create_task(journal.refresh(lease))
    await stepping(lambda: journal._spines[SCOPE].state.fence > lease.fence or refreshing.done())
    for _ in range(20):  # wherever it is behind the admission of the fresh lease
        await asyncio.sleep(0)
    was_done = refreshing.done()
    refreshing.cancel()
    let_go.set()
    if was_done:
        await journal.release(await soon(refreshing))
    else:
        with pytest.raises(asyncio.CancelledError):
            await soon(refreshing)
    await soon(journal.release(lease))
    assert await journal.lease_in_store(SCOPE) is None


async def test_a_release_that_fails_behind_a_cancelled_caller_reports_nothing_to_the_loop(open_journal: OpenJournal):
    ports = Ports(open_journal)
    await ports.journal.create(SCOPE)
    lease = await ports.journal.acquire(SCOPE, ALICE)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    held = Held()

    async def late_refusal(call: Call) -> None:
        await held(call)
        raise busy()

    ports.leases.on_release = [late_refusal]
    releasing = asyncio.create_task(ports.journal.release(lease))
    await soon(held.arrived.wait())
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(releasing)
    await soon(held.release())
    await stepping(lambda: not any(task.get_name().startswith("release") for task in asyncio.all_tasks()))
    del releasing
    gc.collect()
    await asyncio.sleep(0)
    assert reported == []


async def test_a_read_is_bounded_when_the_tail_brings_nothing(open_journal: OpenJournal):
    ports = Ports(open_journal, append_timeout=timedelta(milliseconds=100))
    elsewhere = open_journal()
    await ports.journal.create(SCOPE)
    await ports.journal.acquire(SCOPE, ALICE)
    ports.log.stall()
    await elsewhere._log.append(SCOPE, [Outgoing(b"somebody else's bytes")])
    reading_on = asyncio.create_task(ports.journal.state(SCOPE))
    done, _ = await asyncio.wait([reading_on], timeout=5)
    ports.log.flow()
    try:
        assert done
        with pytest.raises(UnavailableError):
            await reading_on
    finally:
        reading_on.cancel()


# --- time ---------------------------------------------------------------------------------------------------------------


async def test_whoever_is_kept_waiting_is_told_the_day_as_well(open_journal: OpenJournal):
    journal, elsewhere = open_journal(), open_journal()
    await journal.create(SCOPE)
    await journal.acquire(SCOPE, ALICE, ttl=timedelta(days=20))
    with pytest.raises(JournalError) as caught:
        await elsewhere.acquire(SCOPE, BOB, wait=NO_WAIT)
    until = datetime.fromtimestamp(caught.value.expires_at, UTC)  # type: ignore[attr-defined]
    assert f"{until:%Y-%m-%d}" in caught.value.message


@pytest.mark.parametrize("as_of", [Position(-1), datetime(2000, 1, 1, tzinfo=UTC)], ids=["position", "time"])
async def test_a_state_before_the_creation_of_its_scope_is_no_broken_history(
    open_journal: OpenJournal, as_of: Position | datetime
):
    journal = open_journal()
    await journal.create(SCOPE)
    with pytest.raises(InvalidContractError):
        await journal.state(SCOPE, as_of=as_of)


# --- tampering ----------------------------------------------------------------------------------------------------------

KEYED = Codec(keyring=Keyring(Key(bytes(range(32)))))


def raced(codec: Codec, *, authenticated: bool) -> Writer:
    """A log in which two announced themselves on one head; the winner and its successor did some work."""
    writer = Writer(codec=codec, authenticated=authenticated)
    loser = writer.encode(LeaseAcquiredRecord.new(BOB, 30_000_000), lease_id=b"b" * 16, fence=2)
    lease = writer.acquire("alice")
    writer.append(loser)
    writer.apply(lease, MANIFESTS[:2])
    writer.release(lease)
    writer.apply(writer.acquire("carol"), MANIFESTS[2:], MANIFESTS[:2])
    return writer


@pytest.mark.parametrize("codec", [Codec(), KEYED], ids=["without a key", "with a key"])
async def test_a_race_whose_winner_was_exchanged_for_the_loser_does_not_verify(codec: Codec):
    writer = raced(codec, authenticated=codec.keyring is not None)
    genuine = await audit.verify(reading(stored(writer.data, writer.macs), codec=codec), SCOPE)
    assert genuine.ok
    order = [0, 2, 1, *range(3, len(writer.data))]
    data, macs = [writer.data[i] for i in order], [writer.macs[i] for i in order]
    assert not (await audit.verify(reading(stored(data, macs), codec=codec), SCOPE)).ok


async def test_an_event_that_was_slipped_in_before_admitted_ones_does_not_verify():
    writer = raced(Codec(), authenticated=False)
    alice = Writer()
    for data in writer.data[1:4]:
        alice.append(data)
    assert alice.state.lease_id is not None
    forged = alice.encode(LeaseReleasedRecord.new(ALICE), lease_id=alice.state.lease_id, fence=1)
    data = [*writer.data[:4], forged, *writer.data[4:]]
    assert not (await audit.verify(reading(stored(data)), SCOPE)).ok


async def test_events_of_another_incarnation_are_told_of():
    writer = raced(Codec(), authenticated=False)
    data = writer.data[:5] + [event[:10] + b"x" * 16 + event[26:] for event in writer.data[5:]]
    result = await audit.verify(reading(stored(data)), SCOPE)
    assert {finding.position for finding in result.findings} >= set(range(5, len(data)))


# --- odd files ----------------------------------------------------------------------------------------------------------

ODD = {
    "a scope's name that is none": "UPDATE scopes SET name = 'no name!'",
    "a renamed column": "ALTER TABLE events RENAME COLUMN mac TO nac",
    "a holder that is none": "UPDATE leases SET holder = 'no holder', released = 0",
    "a lease id that is none": "UPDATE leases SET lease_id = x'00', released = 0",
    "a fence of nought": "UPDATE leases SET fence = 0, released = 0",
}
MISTYPED = {
    "events": "UPDATE events SET data = 'text'",
    "MACs": "UPDATE events SET mac = 5",
    "scopes": "UPDATE scopes SET name = x'00ff'",
    "leases": "UPDATE leases SET fence = 'one'",
}


async def written(path: Path) -> None:
    async with journal_at(Embedded(path)) as journal:
        await journal.create(SCOPE)
        async with journal.lease(SCOPE, ALICE) as lease:
            await journal.begin_plan(lease, plan_record(lease, MANIFESTS))


def command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JOURNAL_")}
    journal = Path(sys.executable).with_name("journal")
    return subprocess.run(
        [journal, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("statement", ODD.values(), ids=ODD)
async def test_a_file_with_what_no_journal_writes_is_damaged(journal_file: Path, statement: str):
    await written(journal_file)
    connection = sqlite3.connect(journal_file, isolation_level=None)
    connection.execute(statement)
    connection.close()
    journal = journal_at(Embedded(journal_file))

    async def look() -> None:
        await journal.state(SCOPE)
        await journal.lease_in_store(SCOPE)

    try:
        with pytest.raises(JournalError) as caught:
            await look()
        assert caught.value.code is Code.DAMAGED_FILE
    finally:
        await journal.close()


@pytest.mark.parametrize("statement", MISTYPED.values(), ids=MISTYPED)
async def test_a_file_takes_no_value_of_another_type(journal_file: Path, statement: str):
    await written(journal_file)
    connection = sqlite3.connect(journal_file, isolation_level=None)
    try:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    finally:
        connection.close()


async def test_a_scope_whose_events_are_all_gone_does_not_verify(journal_file: Path):
    await written(journal_file)
    connection = sqlite3.connect(journal_file, isolation_level=None)
    connection.execute("DELETE FROM events")
    connection.close()
    result = command("verify", "--json", folder=journal_file.parent)
    assert result.returncode == 6, result.stdout
    assert not json.loads(result.stdout)["ok"]


async def test_a_pipe_in_place_of_the_file_is_refused(journal_file: Path):
    os.mkfifo(journal_file)
    for port in (SQLiteLog(journal_file), SQLiteLeases(journal_file)):
        call = port.scopes() if isinstance(port, SQLiteLog) else port.inspect(SCOPE)
        try:
            with pytest.raises(JournalError) as caught:
                await asyncio.wait_for(asyncio.ensure_future(call), DEADLINE)
            assert caught.value.code is Code.FOREIGN_FILE
        finally:
            await port.close()


# --- the command --------------------------------------------------------------------------------------------------------


def test_the_command_without_arguments_shows_its_help(tmp_path: Path):
    result = command(folder=tmp_path)
    assert "Usage: journal" in result.stdout + result.stderr
    assert "\\n" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    "content",
    ['log = "sqlite:///a\\u0000b"', "a = " + "[" * 20_000 + "]" * 20_000],
    ids=["a path that no system has", "nested too deeply"],
)
def test_settings_that_nobody_can_read_are_settings_that_are_wrong(tmp_path: Path, content: str):
    (tmp_path / "journal.toml").write_text(content)
    result = command("status", "--json", folder=tmp_path)
    assert json.loads(result.stdout)["error"]["code"] == Code.INVALID_SETTINGS
    assert result.returncode == 2


async def test_settings_that_begin_with_a_byte_order_mark_are_read(journal_file: Path):
    await written(journal_file)
    (journal_file.parent / "journal.toml").write_bytes(b"\xef\xbb\xbfscope = 'journal-test'\n")
    assert command("status", folder=journal_file.parent).returncode == 0


def test_what_is_installed_says_that_it_is_typed():
    import journal
    import projections

    for package in (journal, projections):
        assert package.__file__ is not None
        assert Path(package.__file__).with_name("py.typed").is_file()
