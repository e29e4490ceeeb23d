"""When the log does not say what became of an append: what the writer is told, then and later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from journal.codec import Codec
from journal.errors import (
    Code,
    FencedError,
    IntegrityError,
    JournalError,
    OutcomeUnknownError,
    UnavailableError,
    UnknownEventError,
    failure,
)
from journal.events import EventType
from journal.identities import HolderId, LeaseId
from journal.journal import Journal
from journal.lease import Lease
from journal.ports import Log, Outgoing
from journal.records import LeaseAcquiredRecord
from journal.vocabulary import GroupEventKind
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, group_record, plan_record
from tests.faults import FaultyLeases, FaultyLog, Held, lose_answer, lose_call, refuse, twice
from tests.integration.scripts.session import read_history

ALICE, BOB = HolderId("alice"), HolderId("bob")
TTL = timedelta(seconds=30)
MANIFESTS = chain_of(20)
BEFORE = GroupEventKind.BEFORE_COMMIT
SHORT = timedelta(milliseconds=250)


class Desk:
    """A journal on a faulty log, with a lease and an open plan; `other` is a journal of another process."""

    def __init__(self, open_journal: OpenJournal) -> None:
        self.log: FaultyLog
        self.leases: FaultyLeases
        self.open_journal = open_journal

    async def open(self, append_timeout: timedelta = timedelta(seconds=5)) -> Desk:
        def wrap(log: Log) -> Log:
            self.log = FaultyLog(log)
            return self.log

        def wrap_leases(leases: object) -> FaultyLeases:
            self.leases = FaultyLeases(leases)  # type: ignore[arg-type]
            return self.leases

        self.journal = self.open_journal(wrap_log=wrap, wrap_leases=wrap_leases, append_timeout=append_timeout)
        await self.journal.create(SCOPE)
        self.lease = await self.journal.acquire(SCOPE, ALICE, ttl=TTL)
        await self.journal.begin_plan(self.lease, plan_record(self.lease, MANIFESTS))
        return self

    def other(self) -> Journal:
        """A journal whose lease store knows nothing of this one's leases: taking over needs no waiting."""
        return self.open_journal(late=True)

    def begin(self, number: int, lease: Lease | None = None) -> Awaitable[object]:
        lease = lease or self.lease
        return self.journal.record_group_event(lease, group_record(lease, MANIFESTS[number], BEFORE))

    async def begun(self) -> list[str]:
        """Migrations whose group has begun, as anybody else reads the log."""
        history = await read_history(self.other())
        return [
            manifest.id.name
            for line in history.entries.values()
            for manifest in MANIFESTS
            if f"{BEFORE!r}" in line and repr(manifest.id) in line
        ]


@pytest.fixture
def desk(open_journal: OpenJournal) -> Desk:
    return Desk(open_journal)


def names(*numbers: int) -> list[str]:
    return [MANIFESTS[number].id.name for number in numbers]


# --- the answer was lost ------------------------------------------------------------------------------------------------


async def test_a_lost_acknowledgement_of_a_written_event_is_no_doubt_at_all(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [lose_answer()]
    entry = await desk.begin(0)
    assert entry.sequence == 2
    await desk.begin(1)
    assert await desk.begun() == names(0, 1)


@pytest.mark.parametrize("error", [TimeoutError("slow"), RuntimeError("odd"), ConnectionResetError("gone")], ids=repr)
async def test_an_error_that_says_nothing_about_the_write_is_settled_by_reading(desk: Desk, error: Exception) -> None:
    await desk.open()
    desk.log.on_append = [lose_answer(error)]
    entry = await desk.begin(0)
    assert entry.sequence == 2


async def test_an_event_delivered_twice_counts_once(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [twice()]
    assert (await desk.begin(0)).sequence == 2
    assert (await desk.begin(1)).sequence == 3
    history = await read_history(desk.other())
    assert [reason for _, reason in history.voids] == [Code.STALE_PARENT]


async def test_an_event_that_is_not_seen_is_unknown_and_its_lease_writes_nothing_more(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [lose_call()]
    with pytest.raises(OutcomeUnknownError) as caught:
        await desk.begin(0)
    assert caught.value.receipt.record.migration_id == MANIFESTS[0].id
    sent = len(desk.log.appended)
    with pytest.raises(UnavailableError) as refused:
        await desk.begin(1)
    assert refused.value.code is Code.LEASE_IN_DOUBT
    assert len(desk.log.appended) == sent
    with pytest.raises(OutcomeUnknownError):
        caught.value.receipt.result()


async def test_refresh_settles_a_lost_event_as_void_and_its_work_can_be_done_again(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [lose_call()]
    with pytest.raises(OutcomeUnknownError) as caught:
        await desk.begin(0)
    fresh = await desk.journal.refresh(desk.lease)
    assert fresh.fence > desk.lease.fence
    with pytest.raises(FencedError):
        await asyncio.wait_for(caught.value.receipt.settled(), 5)
    await desk.begin(0, fresh)
    assert await desk.begun() == names(0)
    with pytest.raises(FencedError):
        desk.lease.check()


# --- the event comes late -----------------------------------------------------------------------------------------------


async def unknown_by_timeout(desk: Desk) -> tuple[Held, OutcomeUnknownError]:
    held = Held()
    desk.log.on_append = [held]
    with pytest.raises(OutcomeUnknownError) as caught:
        await desk.begin(0)
    return held, caught.value


async def test_an_append_that_is_not_confirmed_in_time_is_unknown(desk: Desk) -> None:
    await desk.open(append_timeout=SHORT)
    _, error = await unknown_by_timeout(desk)
    assert error.code is Code.OUTCOME_UNKNOWN
    assert error.receipt.verdict is None


async def test_a_late_event_before_the_take_over_counts_and_its_receipt_says_so(desk: Desk) -> None:
    await desk.open(append_timeout=SHORT)
    held, error = await unknown_by_timeout(desk)
    await held.release()
    entry = await asyncio.wait_for(error.receipt.settled(), 5)
    assert entry.sequence == 2
    assert error.receipt.result() == entry
    fresh = await desk.journal.refresh(desk.lease)
    committed = await desk.journal.record_group_event(
        fresh, group_record(fresh, MANIFESTS[0], GroupEventKind.COMMITTED)
    )
    assert committed.sequence == 3, "legal only because the late event counts"
    assert await desk.begun() == names(0)


async def test_a_late_event_after_a_refresh_is_void(desk: Desk) -> None:
    await desk.open(append_timeout=SHORT)
    held, error = await unknown_by_timeout(desk)
    fresh = await desk.journal.refresh(desk.lease)
    with pytest.raises(FencedError):
        await asyncio.wait_for(error.receipt.settled(), 5)
    await held.release()
    await desk.begin(1, fresh)
    assert await desk.begun() == names(1)
    history = await read_history(desk.other())
    assert [(event.type, reason) for event, reason in history.voids] == [(EventType.GROUP_EVENT, Code.STALE_PARENT)]


async def test_a_late_event_after_another_took_over_is_void_and_its_writer_is_fenced(desk: Desk) -> None:
    await desk.open()
    held = Held()
    desk.log.on_append = [held]
    late = asyncio.ensure_future(desk.begin(0))
    await held.arrived.wait()
    successor = desk.other()
    lease = await successor.acquire(SCOPE, BOB, ttl=TTL, wait=timedelta(0))
    with pytest.raises(FencedError) as caught:
        await asyncio.wait_for(late, 5)
    assert caught.value.code is Code.STALE_FENCE
    assert caught.value.details["newer_fence"] == lease.fence
    assert caught.value.details["newer_holder"] == BOB
    await held.release()
    await successor.record_group_event(lease, group_record(lease, MANIFESTS[0], BEFORE))
    assert await desk.begun() == names(0)
    assert [reason for _, reason in (await read_history(desk.other())).voids] == [Code.STALE_PARENT]


async def test_an_event_whose_tail_is_silent_is_unknown_until_the_tail_speaks(desk: Desk) -> None:
    await desk.open(append_timeout=SHORT)
    desk.log.stall()
    with pytest.raises(OutcomeUnknownError) as caught:
        await desk.begin(0)
    desk.log.flow()
    assert (await asyncio.wait_for(caught.value.receipt.settled(), 5)).sequence == 2


async def test_of_a_pipeline_in_doubt_what_is_seen_is_told_and_what_is_not_sent_is_not_written(desk: Desk) -> None:
    await desk.open(append_timeout=SHORT)
    held = Held()
    desk.log.on_append = [held]
    first = asyncio.ensure_future(desk.begin(0))
    await held.arrived.wait()
    behind = [asyncio.ensure_future(desk.begin(number)) for number in (1, 2)]
    outcomes = await asyncio.wait_for(asyncio.gather(first, *behind, return_exceptions=True), 10)
    assert isinstance(outcomes[0], OutcomeUnknownError)
    assert [outcome.code for outcome in outcomes[1:]] == [Code.NOT_WRITTEN] * 2
    assert all(isinstance(outcome, UnavailableError) for outcome in outcomes[1:])
    await held.release()
    assert await desk.begun() == names(0)


# --- nothing was written ------------------------------------------------------------------------------------------------


async def test_an_explicit_no_may_be_retried_under_the_same_lease(desk: Desk) -> None:
    await desk.open()
    full = failure(Code.STORAGE_FULL, "the disk is full")
    desk.log.on_append = [refuse(full)]
    with pytest.raises(UnavailableError) as caught:
        await desk.begin(0)
    assert caught.value.code is Code.STORAGE_FULL
    assert not desk.lease.in_doubt
    assert (await desk.begin(0)).sequence == 2
    assert await desk.begun() == names(0)


async def test_everything_behind_an_explicit_no_in_the_pipeline_is_not_written_either(desk: Desk) -> None:
    await desk.open()

    async def refuse_late(_: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(0)  # meanwhile those behind have been handed in
        raise failure(Code.STORAGE_BUSY, "locked")

    desk.log.on_append = [refuse_late]
    outcomes = await asyncio.gather(*(desk.begin(number) for number in range(5)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnavailableError] * 5
    assert await desk.begun() == []
    for number in range(5):
        await desk.begin(number)
    assert await desk.begun() == names(*range(5))


async def test_an_unknown_outcome_is_not_hidden_by_a_refusal_behind_it(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [lose_call()]
    good = group_record(desk.lease, MANIFESTS[0], BEFORE)
    with pytest.raises(OutcomeUnknownError):
        await desk.journal.record_all(desk.lease, [good, good])  # the second is refused: begun twice under one fence


async def test_the_creation_of_a_scope_can_be_asked_for_again_when_its_answer_was_lost(
    open_journal: OpenJournal,
) -> None:
    logs: list[FaultyLog] = []

    def wrap(log: Log) -> Log:
        logs.append(FaultyLog(log))
        return logs[-1]

    journal = open_journal(wrap_log=wrap)
    for fault in (lose_call(), lose_answer()):
        logs[0].on_append = [fault]
        with pytest.raises(OutcomeUnknownError):
            await journal.create(SCOPE)
    created = await journal.create(SCOPE)
    assert created.incarnation == (await journal.state(SCOPE)).incarnation
    assert len((await read_history(journal)).types) == 1


# --- acquiring, releasing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [lose_call, lose_answer, twice])
async def test_an_acquire_whose_announcement_meets_trouble_still_gives_one_lease(
    open_journal: OpenJournal, fault: Callable[[], object]
) -> None:
    logs: list[FaultyLog] = []

    def wrap(log: Log) -> Log:
        logs.append(FaultyLog(log))
        return logs[-1]

    journal = open_journal(wrap_log=wrap)
    await journal.create(SCOPE)
    logs[0].on_append = [fault()]  # type: ignore[list-item]
    lease = await journal.acquire(SCOPE, ALICE, ttl=TTL)
    state = await journal.state(SCOPE)
    assert (state.fence, state.lease_id) == (lease.fence, lease.lease_id)
    await journal.begin_plan(lease, plan_record(lease, MANIFESTS))


async def test_a_lost_grant_burns_no_lease(open_journal: OpenJournal) -> None:
    stores: list[FaultyLeases] = []

    def wrap(leases: object) -> FaultyLeases:
        stores.append(FaultyLeases(leases))  # type: ignore[arg-type]
        return stores[-1]

    journal = open_journal(wrap_leases=wrap)
    await journal.create(SCOPE)
    stores[0].on_acquire = [lose_answer(failure(Code.STORAGE_BUSY, "locked"))]
    with pytest.raises(UnavailableError):
        await journal.acquire(SCOPE, ALICE, ttl=timedelta(seconds=0.5))
    lease = await journal.acquire(SCOPE, ALICE, ttl=TTL, wait=timedelta(seconds=5))
    assert (await journal.state(SCOPE)).fence == lease.fence


async def test_releasing_a_lease_in_doubt_frees_the_scope_and_writes_nothing(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [lose_call()]
    with pytest.raises(OutcomeUnknownError):
        await desk.begin(0)
    sent = len(desk.log.appended)
    await desk.journal.release(desk.lease)
    assert len(desk.log.appended) == sent
    assert await desk.journal.lease_in_store(SCOPE) is None
    lease = await desk.journal.acquire(SCOPE, ALICE, ttl=TTL, wait=timedelta(0))
    await desk.begin(0, lease)


async def test_a_release_that_gets_no_answer_from_the_log_still_frees_the_store(desk: Desk) -> None:
    await desk.open()
    desk.log.on_append = [lose_call()]
    with pytest.raises(OutcomeUnknownError):
        await desk.journal.release(desk.lease)
    assert await desk.journal.lease_in_store(SCOPE) is None
    await desk.journal.acquire(SCOPE, BOB, ttl=TTL, wait=timedelta(0))


# --- the tail fails -----------------------------------------------------------------------------------------------------


async def test_after_a_broken_tail_the_next_operation_follows_again(desk: Desk) -> None:
    await desk.open()
    await desk.begin(0)
    desk.log.break_tails(failure(Code.STORAGE_BUSY, "locked"))
    await asyncio.sleep(0)
    assert len((await desk.journal.state(SCOPE)).plan.events) == 1
    await desk.begin(1)
    assert await desk.begun() == names(0, 1)


async def test_an_append_in_flight_when_the_tail_breaks_is_settled_by_reading(desk: Desk) -> None:
    await desk.open()
    written = asyncio.Event()

    async def write_and_hang(call: Callable[[], Awaitable[object]]) -> None:
        desk.log.stall()
        await call()
        written.set()
        await asyncio.Event().wait()

    desk.log.on_append = [write_and_hang]
    writing = asyncio.ensure_future(desk.begin(0))
    await written.wait()
    desk.log.break_tails(failure(Code.STORAGE_BUSY, "locked"))
    desk.log.flow()
    assert (await asyncio.wait_for(writing, 5)).sequence == 2
    assert (await desk.begin(1)).sequence == 3


async def test_a_defect_of_the_adapter_in_the_tail_leaves_nobody_waiting(desk: Desk) -> None:
    await desk.open()
    held = Held()
    desk.log.on_append = [held]
    writing = asyncio.ensure_future(desk.begin(0))
    await held.arrived.wait()
    desk.log.break_tails(ZeroDivisionError("a defect"))
    with pytest.raises(JournalError):
        await asyncio.wait_for(writing, 5)
    with pytest.raises(JournalError):
        await asyncio.wait_for(desk.journal.state(SCOPE), 5)
    await held.release()


# --- what cannot be read ------------------------------------------------------------------------------------------------


async def write_foreign(desk: Desk, change: Callable[[bytes], bytes]) -> None:
    """Another process writes, under this very lease, an event that `change` made unreadable."""
    state = await desk.journal.state(SCOPE)
    data = Codec().write(
        group_record(desk.lease, MANIFESTS[5], BEFORE),
        scope=SCOPE,
        incarnation=state.incarnation or b"",
        lease_id=desk.lease.lease_id,
        parent=state.head,
        fence=desk.lease.fence,
        recorded_at=1,
    )
    await desk.log.inner.append(SCOPE, [Outgoing(change(data))])


UNREADABLE = {
    "unknown type": (lambda data: data[:2] + b"\xee" * 8 + data[10:], UnknownEventError, Code.UNKNOWN_EVENT),
    "damaged body": (lambda data: data + b"\0", IntegrityError, Code.UNDECODABLE_BODY),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_an_event_that_cannot_be_read_stops_everyone_with_its_error(desk: Desk, case: str) -> None:
    change, kind, code = UNREADABLE[case]
    await desk.open()
    await write_foreign(desk, change)
    operations: list[Callable[[], Awaitable[object]]] = [
        lambda: desk.journal.state(SCOPE),
        lambda: desk.journal.load_open_plan(desk.lease),
        lambda: desk.other().state(SCOPE),
        lambda: read_history(desk.other()),
        lambda: desk.other().acquire(SCOPE, BOB, wait=timedelta(0)),
    ]
    for operation in operations:
        with pytest.raises(kind) as caught:
            await asyncio.wait_for(operation(), 5)
        assert caught.value.code is code
    assert desk.lease.lost
    with pytest.raises(kind):
        desk.lease.check()


@pytest.mark.parametrize("case", UNREADABLE)
async def test_callers_in_flight_get_an_answer_when_reading_stops(desk: Desk, case: str) -> None:
    change, _, code = UNREADABLE[case]
    await desk.open()
    held = Held()
    desk.log.on_append = [held]
    writing = [asyncio.ensure_future(desk.begin(number)) for number in range(3)]
    await held.arrived.wait()
    await write_foreign(desk, change)
    outcomes = await asyncio.wait_for(asyncio.gather(*writing, return_exceptions=True), 5)
    assert all(isinstance(outcome, JournalError) for outcome in outcomes)
    with pytest.raises(JournalError) as caught:
        await asyncio.wait_for(desk.begin(7), 5)
    assert caught.value.code is code
    await held.release()


async def test_loading_and_the_end_of_reading_at_once_leave_nobody_waiting(desk: Desk) -> None:
    await desk.open()
    held = Held()
    desk.log.on_end = [held]
    loading = asyncio.ensure_future(desk.journal.load_applied(desk.lease))
    await held.arrived.wait()
    await write_foreign(desk, UNREADABLE["unknown type"][0])
    await asyncio.wait_for(desk.lease.wait_lost(), 5)
    await held.release()
    with pytest.raises(UnknownEventError):
        await asyncio.wait_for(loading, 5)


async def test_bytes_without_a_header_are_void_and_stop_nobody(desk: Desk) -> None:
    await desk.open()
    for junk in (b"", b"\xc3\x01", b"not an event at all"):
        await desk.log.inner.append(SCOPE, [Outgoing(junk)])
    assert (await desk.begin(0)).sequence == 2
    assert (await desk.journal.state(SCOPE)).voids == 3


async def test_a_lease_superseded_at_its_very_announcement_knows_it(open_journal: OpenJournal) -> None:
    logs: list[FaultyLog] = []

    def wrap(log: Log) -> Log:
        logs.append(FaultyLog(log))
        return logs[-1]

    journal = open_journal(wrap_log=wrap)
    await journal.create(SCOPE)
    codec, incarnation = Codec(), (await journal.state(SCOPE)).incarnation or b""

    async def follow_at_once(_: Callable[[], Awaitable[object]]) -> None:
        (mine,) = logs[0].appended[-1]
        theirs = codec.write(
            LeaseAcquiredRecord.new(BOB, 1),
            scope=SCOPE,
            incarnation=incarnation,
            lease_id=LeaseId.random(),
            parent=codec.read(0, mine.data).hash,  # type: ignore[union-attr]
            fence=7,
            recorded_at=1,
        )
        await logs[0].inner.append(SCOPE, [mine, Outgoing(theirs)])

    logs[0].on_append = [follow_at_once]
    lease = await journal.acquire(SCOPE, ALICE, ttl=TTL)
    assert lease.fence == 1
    assert lease.lost
    with pytest.raises(FencedError):
        lease.check()


# --- records that linger ----------------------------------------------------------------------------------------------


async def test_records_that_linger_go_with_the_next_one_in_one_append(open_journal: OpenJournal) -> None:
    desk = await Desk(open_journal).open()
    desk.log.appended.clear()
    records = [group_record(desk.lease, manifest, BEFORE) for manifest in MANIFESTS[:3]]
    lingering = [desk.journal.send(desk.lease, record, linger=True) for record in records[:2]]
    entries = [await future for future in (*lingering, desk.journal.send(desk.lease, records[2]))]
    assert [entry.record for entry in entries] == records
    assert [len(events) for events in desk.log.appended] == [3]


async def test_a_record_that_lingers_is_written_soon_by_itself_again_and_again(open_journal: OpenJournal) -> None:
    desk = await Desk(open_journal).open()
    for manifest in MANIFESTS[:3]:
        record = group_record(desk.lease, manifest, BEFORE)
        entry = await asyncio.wait_for(desk.journal.send(desk.lease, record, linger=True), 5)
        assert entry.record == record


async def test_a_record_that_lingers_is_written_before_the_lease_is_released(open_journal: OpenJournal) -> None:
    desk = await Desk(open_journal).open()
    lingering = desk.journal.send(desk.lease, group_record(desk.lease, MANIFESTS[0], BEFORE), linger=True)
    await desk.journal.release(desk.lease)
    assert (await lingering).sequence > 0


async def test_what_lingered_in_an_append_that_was_refused_does_not_keep_the_next_from_going(
    open_journal: OpenJournal,
) -> None:
    desk = await Desk(open_journal).open()
    desk.log.on_append = [refuse(UnavailableError(Code.STORAGE_BUSY, "busy"))]
    with pytest.raises(UnavailableError):
        await desk.journal.send(desk.lease, group_record(desk.lease, MANIFESTS[0], BEFORE), linger=True)
    again = desk.journal.send(desk.lease, group_record(desk.lease, MANIFESTS[0], BEFORE), linger=True)
    assert (await asyncio.wait_for(again, 5)).sequence > 0
