"""The life of a lease: waiting for it, keeping it, losing it, giving it back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from journal.codec import Codec
from journal.control import Cancellation, Control
from journal.errors import (
    Code,
    FencedError,
    InvalidContractError,
    JournalError,
    LeaseContendedError,
    LeaseLostError,
    OperationCancelledError,
    ResourceLimitError,
    UnavailableError,
    failure,
)
from journal.events import EventType
from journal.identities import Fence, HolderId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.ports import Leases, Log, Outgoing
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, plan_record
from tests.faults import FaultyLeases, FaultyLog, Held, lose_answer, lose_call, refuse
from tests.integration.scripts.session import read_history

ALICE, BOB, CAROL = HolderId("alice"), HolderId("bob"), HolderId("carol")
LONG, SHORT = timedelta(seconds=30), timedelta(seconds=0.3)
NO_WAIT = timedelta(0)


class Faulty:
    """A journal of its own process, with its two faulty ports."""

    def __init__(self, open_journal: OpenJournal, append_timeout: timedelta = timedelta(seconds=5)) -> None:
        self.journal: Journal = open_journal(
            wrap_log=self._wrap_log, wrap_leases=self._wrap_leases, append_timeout=append_timeout
        )

    def _wrap_log(self, log: Log) -> Log:
        self.log = FaultyLog(log)
        return self.log

    def _wrap_leases(self, leases: Leases) -> Leases:
        self.leases = FaultyLeases(leases)
        return self.leases


@pytest.fixture
async def mine(open_journal: OpenJournal) -> Journal:
    journal = open_journal()
    await journal.create(SCOPE)
    return journal


async def free_for(journal: Journal, holder: HolderId = CAROL) -> Lease:
    """The scope can be leased at once."""
    return await journal.acquire(SCOPE, holder, wait=NO_WAIT)


async def until(condition: Callable[[], bool], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  (what it waits for tells nobody)
            await asyncio.sleep(0.005)


# --- waiting ------------------------------------------------------------------------------------------------------------


async def test_zero_wait_fails_at_once_and_names_the_holder(mine: Journal, open_journal: OpenJournal) -> None:
    lease = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    with pytest.raises(LeaseContendedError, match="alice") as caught:
        await open_journal().acquire(SCOPE, BOB, wait=NO_WAIT)
    assert caught.value.holder == ALICE
    assert caught.value.expires_at == lease.grant.expires_at


async def test_a_bounded_wait_ends_with_the_holder_that_kept_it(mine: Journal, open_journal: OpenJournal) -> None:
    await mine.acquire(SCOPE, ALICE, ttl=LONG)
    waited: list[LeaseContendedError] = []
    with pytest.raises(LeaseContendedError, match="alice"):
        await open_journal().acquire(SCOPE, BOB, wait=timedelta(seconds=0.2), on_wait=waited.append)
    assert [error.holder for error in waited] == [ALICE], "told once a holder, not once a try"


async def test_a_waiter_gets_the_lease_when_it_is_released(mine: Journal, open_journal: OpenJournal) -> None:
    first = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    told = asyncio.Event()
    waiting = asyncio.ensure_future(open_journal().acquire(SCOPE, BOB, on_wait=lambda _: told.set()))
    await told.wait()
    await mine.release(first)
    second = await asyncio.wait_for(waiting, 5)
    assert (second.holder, second.fence > first.fence) == (BOB, True)


async def test_a_waiter_is_told_of_every_new_holder(mine: Journal, open_journal: OpenJournal) -> None:
    first = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    waited: list[str] = []
    waiting = asyncio.ensure_future(open_journal().acquire(SCOPE, CAROL, on_wait=lambda e: waited.append(e.holder)))
    await until(lambda: waited == [ALICE])
    await mine.refresh(first)
    other = open_journal(late=True)
    await other.acquire(SCOPE, BOB, ttl=LONG)
    await until(lambda: waited == [ALICE, BOB])
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_waiter_takes_over_from_a_holder_that_does_not_renew(open_journal: OpenJournal) -> None:
    dead = Faulty(open_journal)
    await dead.journal.create(SCOPE)
    first = await dead.journal.acquire(SCOPE, ALICE, ttl=SHORT)
    await first.stop_renewal()
    second = await asyncio.wait_for(open_journal().acquire(SCOPE, BOB), 0.3 + 1)
    assert second.fence > first.fence


async def test_cancellation_ends_the_wait(mine: Journal, open_journal: OpenJournal) -> None:
    first = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    cancellation = Cancellation()
    with pytest.raises(OperationCancelledError) as caught:
        await open_journal().acquire(SCOPE, BOB, control=Control(cancellation), on_wait=lambda _: cancellation.cancel())
    assert caught.value.code is Code.CANCELLED
    await mine.release(first)
    await free_for(mine)


async def test_the_deadline_ends_the_wait(mine: Journal, open_journal: OpenJournal) -> None:
    await mine.acquire(SCOPE, ALICE, ttl=LONG)
    with pytest.raises(ResourceLimitError) as caught:
        await open_journal().acquire(SCOPE, BOB, control=Control.within(timedelta(seconds=0.2)))
    assert caught.value.code is Code.DEADLINE_EXCEEDED


async def test_a_control_that_is_over_takes_no_lease(mine: Journal) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    for control in (Control(cancellation), Control(deadline=time.monotonic() - 1)):
        with pytest.raises(JournalError):
            await mine.acquire(SCOPE, ALICE, control=control)
    assert (await free_for(mine)).fence == 1


async def test_a_cancelled_waiter_leaves_the_scope_alone(mine: Journal, open_journal: OpenJournal) -> None:
    first = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    told = asyncio.Event()
    waiting = asyncio.ensure_future(open_journal().acquire(SCOPE, BOB, on_wait=lambda _: told.set()))
    await told.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    await mine.begin_plan(first, plan_record(first, chain_of(1)))
    await mine.release(first)
    await free_for(mine)


# --- cancelled while acquiring ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["grant", "announcement"])
async def test_an_acquire_cancelled_half_way_leaves_the_scope_free(open_journal: OpenJournal, phase: str) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    held = Held()
    (faulty.leases.on_acquire if phase == "grant" else faulty.log.on_append).append(held)
    acquiring = asyncio.ensure_future(faulty.journal.acquire(SCOPE, ALICE, ttl=LONG))
    await asyncio.wait_for(held.arrived.wait(), 5)
    acquiring.cancel()
    await asyncio.sleep(0)
    await held.release()
    await asyncio.wait([acquiring], timeout=5)
    assert acquiring.cancelled()
    other = open_journal()
    assert await other.lease_in_store(SCOPE) is None
    await free_for(other)


@pytest.mark.parametrize("error", [failure(Code.STORAGE_FULL, "full"), failure(Code.STORAGE_BUSY, "locked")], ids=repr)
async def test_an_acquire_whose_announcement_is_refused_leaves_the_scope_free(
    open_journal: OpenJournal, error: JournalError
) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    faulty.log.on_append = [refuse(error)]
    with pytest.raises(UnavailableError):
        await faulty.journal.acquire(SCOPE, ALICE, ttl=LONG)
    assert await faulty.journal.lease_in_store(SCOPE) is None


async def test_an_acquire_whose_time_ends_while_its_announcement_is_in_doubt_leaves_the_scope_free(
    open_journal: OpenJournal,
) -> None:
    faulty = Faulty(open_journal, append_timeout=timedelta(seconds=0.2))
    await faulty.journal.create(SCOPE)
    faulty.log.on_append = [Held(), lose_call()]
    with pytest.raises(ResourceLimitError):
        await faulty.journal.acquire(SCOPE, ALICE, ttl=LONG, control=Control.within(timedelta(seconds=0.1)))
    assert await faulty.journal.lease_in_store(SCOPE) is None


async def test_an_acquire_cancelled_between_two_announcements_leaves_the_scope_free(open_journal: OpenJournal) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    cancellation = Cancellation()

    async def lost_and_cancelled(_: object) -> None:
        cancellation.cancel()
        await lose_call()(None)  # type: ignore[arg-type]

    faulty.log.on_append = [lost_and_cancelled]
    with pytest.raises(OperationCancelledError):
        await faulty.journal.acquire(SCOPE, ALICE, ttl=LONG, control=Control(cancellation))
    assert await faulty.journal.lease_in_store(SCOPE) is None


# --- keeping it ---------------------------------------------------------------------------------------------------------


async def test_a_short_lease_is_kept_alive_in_the_background(open_journal: OpenJournal) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    lease = await faulty.journal.acquire(SCOPE, ALICE, ttl=SHORT)
    granted = lease.grant.expires_at
    await until(lambda: faulty.leases.renewals >= 5)  # well past the first expiry
    assert time.time() > granted
    assert not lease.lost
    lease.check()
    assert lease.grant.expires_at > granted
    with pytest.raises(LeaseContendedError):
        await open_journal().acquire(SCOPE, BOB, wait=NO_WAIT)


async def test_a_renewal_that_fails_once_is_tried_again(open_journal: OpenJournal) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    lease = await faulty.journal.acquire(SCOPE, ALICE, ttl=SHORT)
    faulty.leases.on_renew = [
        refuse(failure(Code.STORAGE_BUSY, "locked")),
        lose_answer(failure(Code.STORAGE_BUSY, "?")),
    ]
    await until(lambda: faulty.leases.renewals >= 4)
    lease.check()


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_a_lease_whose_renewal_is_not_confirmed_in_time_says_that_it_is_lost(
    open_journal: OpenJournal, how: str
) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    lease = await faulty.journal.acquire(SCOPE, ALICE, ttl=SHORT)
    faulty.leases.on_renew = [refuse(failure(Code.STORAGE_BUSY, "locked")) if how == "refused" else Held()] * 1_000
    await asyncio.wait_for(lease.wait_lost(), 5)
    assert lease.lost
    with pytest.raises(LeaseLostError) as caught:
        lease.check()
    assert caught.value.code is Code.LEASE_LOST
    # The journal goes by the log: nobody came, so what is written still counts.
    assert (await faulty.journal.begin_plan(lease, plan_record(lease, chain_of(1)))).sequence == 1


async def test_a_lease_taken_by_another_says_that_it_is_fenced(mine: Journal, open_journal: OpenJournal) -> None:
    old = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    new = await open_journal(late=True).acquire(SCOPE, BOB, ttl=LONG)
    await asyncio.wait_for(old.wait_lost(), 5)
    with pytest.raises(FencedError) as caught:
        old.check()
    assert (caught.value.details["newer_fence"], caught.value.details["newer_holder"]) == (new.fence, BOB)


async def test_a_lease_that_the_store_gave_away_without_a_trace_in_the_log_is_lost_not_fenced(
    open_journal: OpenJournal,
) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    lease = await faulty.journal.acquire(SCOPE, ALICE, ttl=SHORT)
    await faulty.leases.inner.release(lease.grant)
    await asyncio.wait_for(lease.wait_lost(), 5)
    with pytest.raises(LeaseLostError):
        lease.check()


async def test_a_lost_lease_learns_who_fenced_it(open_journal: OpenJournal) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    lease = await faulty.journal.acquire(SCOPE, ALICE, ttl=SHORT)
    faulty.leases.on_renew = [refuse(failure(Code.STORAGE_BUSY, "locked"))] * 1_000
    await asyncio.wait_for(lease.wait_lost(), 5)
    with pytest.raises(LeaseLostError):
        lease.check()
    await open_journal().acquire(SCOPE, BOB)
    with pytest.raises(FencedError):
        await faulty.journal.begin_plan(lease, plan_record(lease, chain_of(1)))
    with pytest.raises(FencedError):
        lease.check()


# --- releasing ----------------------------------------------------------------------------------------------------------


async def test_release_is_idempotent_and_in_the_log_once(mine: Journal) -> None:
    lease = await mine.acquire(SCOPE, ALICE)
    for _ in range(3):
        await mine.release(lease)
    assert (await read_history(mine)).types.count(EventType.LEASE_RELEASED) == 1
    assert await mine.lease_in_store(SCOPE) is None
    with pytest.raises(InvalidContractError) as caught:
        lease.check()
    assert caught.value.code is Code.CLOSED


async def test_a_released_lease_writes_and_loads_nothing(mine: Journal) -> None:
    lease = await mine.acquire(SCOPE, ALICE)
    await mine.release(lease)
    with pytest.raises(FencedError):
        await mine.begin_plan(lease, plan_record(lease, chain_of(1)))
    with pytest.raises(FencedError):
        await mine.load_applied(lease)


async def test_a_cancelled_release_is_finished_all_the_same(open_journal: OpenJournal) -> None:
    faulty = Faulty(open_journal)
    await faulty.journal.create(SCOPE)
    lease = await faulty.journal.acquire(SCOPE, ALICE, ttl=LONG)
    held = Held()
    faulty.log.on_append = [held]
    releasing = asyncio.ensure_future(faulty.journal.release(lease))
    await held.arrived.wait()
    releasing.cancel()
    await asyncio.wait([releasing])
    assert releasing.cancelled()
    await held.release()
    await until(lambda: faulty.leases.releases == 1)
    assert await faulty.journal.lease_in_store(SCOPE) is None
    assert (await faulty.journal.state(SCOPE)).lease is None


async def test_releasing_a_superseded_lease_harms_nobody(mine: Journal, open_journal: OpenJournal) -> None:
    old = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    other = open_journal(late=True)
    new = await other.acquire(SCOPE, BOB, ttl=LONG)
    await mine.release(old)
    held = await other.lease_in_store(SCOPE)
    assert held is not None
    assert held.lease_id == new.lease_id
    await other.begin_plan(new, plan_record(new, chain_of(1)))


async def test_the_lease_block_releases_also_when_its_body_fails(mine: Journal) -> None:
    with pytest.raises(ZeroDivisionError):
        async with mine.lease(SCOPE, ALICE):
            raise ZeroDivisionError
    await free_for(mine)


async def test_closing_the_journal_releases_what_it_holds(open_journal: OpenJournal) -> None:
    journal = open_journal()
    await journal.create(SCOPE)
    await journal.acquire(SCOPE, ALICE, ttl=LONG)
    await journal.close()
    await journal.close()
    other = open_journal()
    await free_for(other)
    with pytest.raises(InvalidContractError) as caught:
        await journal.state(SCOPE)
    assert caught.value.code is Code.CLOSED


async def test_closing_gives_back_every_lease_even_when_a_scope_cannot_be_read(open_journal: OpenJournal) -> None:
    faulty = Faulty(open_journal)
    scopes = [Scope(f"scope-{number}") for number in range(4)]
    for scope in scopes:
        await faulty.journal.create(scope)
    leases = [await faulty.journal.acquire(scope, ALICE, ttl=LONG) for scope in scopes]
    for lease in leases[:3]:
        state = await faulty.journal.state(lease.scope)
        data = Codec().write(
            plan_record(lease, chain_of(1, scope=lease.scope)),
            scope=lease.scope,
            incarnation=state.incarnation or b"",
            lease_id=lease.lease_id,
            parent=state.head,
            fence=lease.fence,
            recorded_at=1,
        )
        await faulty.log.inner.append(lease.scope, [Outgoing(data + b"\0")])
        await asyncio.wait_for(lease.wait_lost(), 5)
    await faulty.journal.close()
    other = open_journal()
    assert [await other.lease_in_store(scope) for scope in scopes] == [None] * 4


# --- refresh ------------------------------------------------------------------------------------------------------------


async def test_refresh_takes_a_greater_fence_and_ends_the_old_lease(mine: Journal, open_journal: OpenJournal) -> None:
    old = await mine.acquire(SCOPE, ALICE, ttl=LONG)
    new = await mine.refresh(old)
    assert (new.holder, new.ttl, new.fence > old.fence, new != old) == (ALICE, LONG, True, True)
    with pytest.raises(FencedError):
        await mine.begin_plan(old, plan_record(old, chain_of(1)))
    await mine.release(old)
    with pytest.raises(LeaseContendedError):
        await open_journal().acquire(SCOPE, BOB, wait=NO_WAIT)
    await mine.begin_plan(new, plan_record(new, chain_of(1)))


async def test_refresh_of_a_lease_that_another_took_is_contended(mine: Journal, open_journal: OpenJournal) -> None:
    old = await mine.acquire(SCOPE, ALICE, ttl=timedelta(seconds=0.5))
    await old.stop_renewal()
    await open_journal().acquire(SCOPE, BOB, ttl=LONG)
    with pytest.raises(LeaseContendedError, match="bob"):
        await mine.refresh(old)


async def test_a_lease_of_another_journal_is_refused(mine: Journal, open_journal: OpenJournal) -> None:
    lease = await mine.acquire(SCOPE, ALICE)
    other = open_journal()
    record = plan_record(lease, chain_of(1))
    for operation in (other.begin_plan(lease, record), other.load_applied(lease), other.release(lease)):
        with pytest.raises(InvalidContractError) as caught:
            await operation
        assert caught.value.code is Code.FOREIGN_LEASE
    await mine.begin_plan(lease, record)


async def test_fences_go_on_above_the_log_when_the_store_forgets(open_journal: OpenJournal) -> None:
    fences: list[Fence] = []
    for number in range(3):
        journal = open_journal(store=f"leases-{number}")
        await journal.create(SCOPE)
        fences.append((await journal.acquire(SCOPE, HolderId(f"holder-{number}"), wait=NO_WAIT)).fence)
    assert fences == [1, 2, 3]
