"""Leases as values: what makes two equal, what they show, and when one knows that it is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any

import pytest

from journal.errors import (
    Code,
    FencedError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    LeaseLostError,
    UnavailableError,
)
from journal.identities import Fence, HolderId, LeaseId, Scope
from journal.lease import Lease
from journal.ports import Grant
from journal.records import MigrationLease
from tests.factories import SCOPE, lease_of

PATIENCE = 10.0
TOKEN = LeaseId(bytes(range(16)))
OTHER_TOKEN = LeaseId(bytes(16))
GRANT = Grant(SCOPE, HolderId("owner"), Fence(1), TOKEN, 1_764_500_030.0)
TTL = timedelta(seconds=30)
BRIEF = timedelta(milliseconds=60)
# A grant of the future: with a brief TTL it is renewed soon, and yet has half a minute until it is lost.
UNHURRIED = -30.0
FENCED = FencedError(Code.STALE_FENCE, "a newer lease")


class ScriptedLeases:
    """A lease store whose `renew` gives what the script says, one line a call; the last line is said for ever.

    `at_end` is set when the last line is said.
    """

    def __init__(self, *script: Callable[[], Grant | None]) -> None:
        self.script = list(script)
        self.renewals = 0
        self.at_end = asyncio.Event()

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        self.renewals += 1
        if len(self.script) > 1:
            return self.script.pop(0)()
        self.at_end.set()
        return self.script[0]()

    async def acquire(self, *_: Any, **__: Any) -> Grant:
        raise AssertionError("a lease does not acquire")

    async def release(self, grant: Grant) -> bool:
        raise AssertionError("a lease does not release itself")

    async def inspect(self, scope: Scope) -> Grant | None:
        raise AssertionError("a lease does not inspect")

    async def close(self) -> None:
        raise AssertionError("a lease does not close its store")


class SilentLeases(ScriptedLeases):
    """A lease store that never answers."""

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        await asyncio.Event().wait()
        return None


def granted() -> Grant:
    return GRANT


def taken() -> None:
    return None


def down() -> Grant:
    raise UnavailableError(Code.STORAGE_BUSY, "busy")


def broken() -> Grant:
    raise IntegrityError(Code.DAMAGED_FILE, "damaged")


def lease(
    grant: Grant = GRANT,
    *,
    binding: object = "journal",
    ttl: timedelta = TTL,
    store: ScriptedLeases | None = None,
    age: float = 0.0,
) -> Lease:
    """A lease that was granted `age` seconds ago."""
    return Lease(grant, ttl, store or ScriptedLeases(granted), binding, time.monotonic() - age)


async def nobody() -> None:
    """Look into the log and find nothing new."""


async def lost(lease: Lease) -> None:
    async with asyncio.timeout(PATIENCE):
        await lease.wait_lost()


def refusal(lease: Lease) -> JournalError:
    with pytest.raises(JournalError) as caught:
        lease.check()
    return caught.value


# --- the lease that records take -----------------------------------------------------------------------------------------


def test_unbound_leases_with_equal_parts_are_equal():
    assert lease_of() == lease_of()
    assert hash(lease_of()) == hash(lease_of())


def test_a_binding_is_part_of_a_leases_identity():
    binding = object()
    bound = replace(lease_of(), binding=binding)
    assert bound == replace(lease_of(), binding=binding)
    assert bound != replace(lease_of(), binding=object())
    assert bound != lease_of()


class Equal:
    """An object that says that it equals everything."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, _: object) -> bool:
        return True


def test_bindings_are_compared_by_identity_whatever_they_think_of_each_other():
    assert replace(lease_of(), binding=Equal()) != replace(lease_of(), binding=Equal())


def test_a_binding_need_not_be_hashable():
    bound = replace(lease_of(), binding=Equal())
    assert len({bound, bound}) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"scope": Scope("elsewhere")},
        {"holder": HolderId("another")},
        {"fence": Fence(2)},
        {"lease_id": OTHER_TOKEN},
    ],
)
def test_leases_that_differ_in_any_part_differ(change):
    assert replace(lease_of(), **change) != lease_of()


def test_a_lease_value_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        lease_of().fence = Fence(2)  # type: ignore[misc]
    assert isinstance(lease_of(), MigrationLease)


# --- the lease that a holder has -----------------------------------------------------------------------------------------


def test_a_lease_shows_what_was_granted():
    held = lease()
    assert (held.scope, held.holder, held.fence, held.lease_id) == (SCOPE, "owner", 1, TOKEN)
    assert (held.ttl, held.grant) == (TTL, GRANT)


def test_a_lease_does_not_show_its_token():
    assert TOKEN.hex() not in repr(lease())
    assert repr(lease()) == "Lease(scope=journal-test, holder=owner, fence=1)"


def test_leases_of_one_grant_and_one_journal_are_equal():
    binding = object()
    assert lease(binding=binding) == lease(binding=binding)
    assert hash(lease(binding=binding)) == hash(lease(binding=binding))


def test_a_lease_of_another_journal_is_not_equal_even_when_all_else_is():
    assert lease(binding=object()) != lease(binding=object())
    assert lease(binding=Equal()) != lease(binding=Equal())
    assert lease(binding=[]) != lease(binding=[])


def test_a_lease_is_not_equal_to_what_is_no_lease():
    assert lease() != GRANT
    assert lease() != lease_of()


@pytest.mark.parametrize(
    "change",
    [
        {"scope": Scope("elsewhere")},
        {"holder": HolderId("another")},
        {"fence": Fence(2)},
        {"lease_id": OTHER_TOKEN},
    ],
)
def test_held_leases_that_differ_in_any_part_differ(change):
    binding = object()
    assert lease(replace(GRANT, **change), binding=binding) != lease(binding=binding)


def test_a_renewed_lease_is_the_same_lease():
    binding = object()
    assert lease(replace(GRANT, expires_at=9e9), binding=binding) == lease(binding=binding)


def test_a_lease_is_bound_to_the_very_journal_that_issued_it():
    binding = Equal()
    held = lease(binding=binding)
    assert held.is_bound_to(binding)
    assert not held.is_bound_to(Equal())


# --- its end ------------------------------------------------------------------------------------------------------------


def test_a_fresh_lease_is_good():
    held = lease()
    held.check()
    assert not held.lost
    assert not held.in_doubt
    assert not held.released


def test_a_lease_whose_time_has_passed_is_lost_even_when_nothing_told_it():
    held = lease(age=30.0)
    assert held.lost
    error = refusal(held)
    assert (type(error), error.code) == (LeaseLostError, Code.LEASE_LOST)


def test_checking_alone_notices_that_the_time_has_passed():
    assert refusal(lease(age=31.0)).code is Code.LEASE_LOST


def test_time_counts_from_before_the_grant_was_asked_for():
    assert not lease(age=20.0).lost
    assert lease(age=20.0, ttl=timedelta(seconds=10)).lost


def test_a_lease_that_was_told_of_a_newer_one_is_fenced():
    held = lease()
    held.lose(FENCED)
    assert held.lost
    assert refusal(held) is FENCED


def test_the_first_reason_for_the_loss_stays():
    held = lease()
    first = LeaseLostError(Code.LEASE_LOST, "first")
    held.lose(first)
    held.lose(LeaseLostError(Code.LEASE_LOST, "second"))
    assert refusal(held) is first


def test_a_newer_fence_is_a_better_reason_than_any_other_and_then_stays():
    held = lease(age=31.0)
    assert refusal(held).code is Code.LEASE_LOST
    held.lose(FENCED)
    assert refusal(held) is FENCED
    held.lose(FencedError(Code.STALE_FENCE, "another"))
    held.lose(LeaseLostError(Code.LEASE_LOST, "late"))
    assert refusal(held) is FENCED


def test_a_released_lease_is_refused_but_not_lost():
    held = lease(age=31.0)
    held.released = True
    assert not held.lost
    error = refusal(held)
    assert (type(error), error.code) == (InvalidContractError, Code.CLOSED)


async def test_whoever_waits_for_the_loss_is_told():
    held = lease()
    waiters = [asyncio.create_task(held.wait_lost()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(waiter.done() for waiter in waiters)
    held.lose(FENCED)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiters)
    await lost(held)


# --- renewal ------------------------------------------------------------------------------------------------------------


async def test_a_lease_renews_itself_well_before_its_time():
    store = ScriptedLeases(granted, granted)
    held = lease(store=store, ttl=timedelta(milliseconds=900))
    held.start_renewal(nobody)
    async with asyncio.timeout(PATIENCE):
        await store.at_end.wait()
    await held.stop_renewal()
    assert store.renewals == 2
    assert not held.lost


async def test_the_grant_is_the_newest_that_the_store_gave():
    renewed = replace(GRANT, expires_at=GRANT.expires_at + 1)
    held = lease(store=ScriptedLeases(lambda: renewed, taken), ttl=BRIEF, age=UNHURRIED)
    held.start_renewal(nobody)
    await lost(held)
    await held.stop_renewal()
    assert held.grant == renewed


async def test_a_store_that_is_away_for_a_while_is_asked_again():
    store = ScriptedLeases(down, down, down, granted)
    held = lease(store=store, ttl=BRIEF, age=UNHURRIED)
    held.start_renewal(nobody)
    async with asyncio.timeout(PATIENCE):
        await store.at_end.wait()
    await held.stop_renewal()
    assert store.renewals == 4


@pytest.mark.parametrize("store_class", [ScriptedLeases, SilentLeases])
async def test_a_lease_that_cannot_be_renewed_in_time_says_so(store_class):
    held = lease(store=store_class(down), ttl=BRIEF)
    held.start_renewal(nobody)
    await lost(held)
    assert held.lost
    error = refusal(held)
    assert (type(error), error.code) == (LeaseLostError, Code.LEASE_LOST)
    await held.stop_renewal()


async def test_a_store_that_fails_for_good_ends_the_lease_with_its_error():
    held = lease(store=ScriptedLeases(broken), ttl=BRIEF, age=UNHURRIED)
    held.start_renewal(nobody)
    await lost(held)
    assert refusal(held).code is Code.DAMAGED_FILE
    await held.stop_renewal()


async def test_a_lease_that_the_store_gave_away_is_lost_before_the_log_is_read():
    looked = asyncio.Event()
    may_look = asyncio.Event()

    async def confirm() -> None:
        await may_look.wait()
        looked.set()

    held = lease(store=ScriptedLeases(taken), ttl=BRIEF, age=UNHURRIED)
    held.start_renewal(confirm)
    await lost(held)
    assert not looked.is_set()
    assert refusal(held).code is Code.LEASE_LOST
    may_look.set()
    async with asyncio.timeout(PATIENCE):
        await looked.wait()
    await held.stop_renewal()


async def test_the_log_says_who_took_the_lease():
    confirmed = asyncio.Event()

    async def confirm() -> None:
        held.lose(FENCED)
        confirmed.set()

    held = lease(store=ScriptedLeases(taken), ttl=BRIEF, age=UNHURRIED)
    held.start_renewal(confirm)
    async with asyncio.timeout(PATIENCE):
        await confirmed.wait()
    assert refusal(held) is FENCED
    await held.stop_renewal()


async def test_a_log_that_cannot_be_read_leaves_the_lease_lost():
    async def confirm() -> None:
        raise UnavailableError(Code.STORAGE_BUSY, "busy")

    held = lease(store=ScriptedLeases(taken), ttl=BRIEF, age=UNHURRIED)
    held.start_renewal(confirm)
    await lost(held)
    await held.stop_renewal()
    assert refusal(held).code is Code.LEASE_LOST


async def test_stopping_the_renewal_twice_or_before_it_began_is_harmless():
    held = lease()
    await held.stop_renewal()
    held.start_renewal(nobody)
    await held.stop_renewal()
    await held.stop_renewal()
    assert not held.lost
