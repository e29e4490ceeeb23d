"""The contract of `Leases`, held against every adapter."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from journal.errors import Code, InvalidContractError, LeaseContendedError, ResourceLimitError
from journal.identities import MAX_FENCE, Fence, HolderId, LeaseId, Scope
from journal.ports import Grant, Leases
from tests.contract.conftest import LeaseSite

SCOPE = Scope("orders")
ALICE, BOB = HolderId("alice"), HolderId("bob")
TTL = timedelta(seconds=30)


async def take(
    leases: Leases,
    holder: HolderId = ALICE,
    *,
    lease_id: LeaseId | None = None,
    floor: int = 0,
    replaces: LeaseId | None = None,
    scope: Scope = SCOPE,
    ttl: timedelta = TTL,
) -> Grant:
    return await leases.acquire(
        scope, holder, lease_id=lease_id or LeaseId.random(), ttl=ttl, floor=floor, replaces=replaces
    )


# --- acquire ----------------------------------------------------------------------------------------------------------


async def test_the_first_lease_says_what_was_granted(leases: Leases, lease_site: LeaseSite) -> None:
    lease_id = LeaseId.random()
    grant = await take(leases, lease_id=lease_id)
    assert grant == Grant(SCOPE, ALICE, Fence(1), lease_id, grant.expires_at)
    assert lease_site.lasts(grant, 30)


async def test_fences_grow_from_holder_to_holder(leases: Leases) -> None:
    fences = []
    for holder in (ALICE, BOB, ALICE, ALICE):
        grant = await take(leases, holder)
        fences.append(grant.fence)
        assert await leases.release(grant)
    assert fences == sorted(set(fences))


async def test_the_fence_is_above_the_floor(leases: Leases) -> None:
    grant = await take(leases, floor=41)
    assert grant.fence > 41
    await leases.release(grant)
    assert (await take(leases, floor=7)).fence > grant.fence, "a lower floor must not bring fences back"


async def test_a_store_that_lost_its_memory_goes_on_above_the_floor(lease_site: LeaseSite) -> None:
    before = await take(lease_site.open(), floor=5)
    wiped = lease_site.forget()
    assert await wiped.inspect(SCOPE) is None
    after = await take(wiped, BOB, floor=before.fence)
    assert after.fence > before.fence


async def test_a_retried_acquire_gets_its_own_fence_back(leases: Leases, lease_site: LeaseSite) -> None:
    first = await take(leases)
    lease_site.clock.advance(10)
    again = await take(leases, lease_id=first.lease_id)
    assert again.fence == first.fence
    assert again.lease_id == first.lease_id
    assert lease_site.lasts(again, 30)


async def test_a_retried_acquire_from_another_instance_is_the_same_lease(lease_site: LeaseSite) -> None:
    first = await take(lease_site.open())
    assert (await take(lease_site.open(), lease_id=first.lease_id)).fence == first.fence


async def test_a_retry_after_expiry_gets_the_fence_back_when_nobody_came(leases: Leases, lease_site: LeaseSite) -> None:
    first = await take(leases)
    lease_site.clock.advance(31)
    assert (await take(leases, lease_id=first.lease_id)).fence == first.fence


async def test_a_retry_after_another_took_the_lease_is_contended(leases: Leases, lease_site: LeaseSite) -> None:
    first = await take(leases)
    lease_site.clock.advance(31)
    second = await take(leases, BOB)
    with pytest.raises(LeaseContendedError):
        await take(leases, lease_id=first.lease_id)
    held = await leases.inspect(SCOPE)
    assert held == second


async def test_a_retry_after_release_is_a_new_lease(leases: Leases) -> None:
    first = await take(leases)
    await leases.release(first)
    assert (await take(leases, lease_id=first.lease_id)).fence > first.fence


async def test_contention_names_the_holder_and_the_expiry(leases: Leases, lease_site: LeaseSite) -> None:
    grant = await take(leases, ALICE)
    with pytest.raises(LeaseContendedError, match="alice") as caught:
        await take(leases, BOB)
    assert caught.value.holder == ALICE
    assert caught.value.expires_at == grant.expires_at
    assert lease_site.lasts(caught.value, 30)


async def test_the_same_holder_with_another_lease_id_is_another(leases: Leases) -> None:
    await take(leases, ALICE)
    with pytest.raises(LeaseContendedError):
        await take(leases, ALICE)


async def test_a_failed_acquirer_never_frees_or_changes_the_winners_lease(leases: Leases) -> None:
    winner = await take(leases, ALICE)
    loser_id = LeaseId.random()
    for _ in range(3):
        with pytest.raises(LeaseContendedError):
            await take(leases, BOB, lease_id=loser_id, floor=100)
    assert await leases.inspect(SCOPE) == winner
    assert not await leases.release(Grant(SCOPE, BOB, winner.fence, loser_id, winner.expires_at))
    assert not await leases.release(Grant(SCOPE, BOB, Fence(101), loser_id, winner.expires_at))
    with pytest.raises(LeaseContendedError):
        await take(leases, BOB)
    assert await leases.renew(winner, ttl=TTL) is not None


async def test_of_many_that_acquire_at_once_exactly_one_wins(lease_site: LeaseSite) -> None:
    stores = [lease_site.open() for _ in range(6)]
    outcomes = await asyncio.gather(
        *(take(store, HolderId(f"holder-{number}")) for number, store in enumerate(stores)), return_exceptions=True
    )
    winners = [outcome for outcome in outcomes if isinstance(outcome, Grant)]
    assert len(winners) == 1
    losers = [outcome for outcome in outcomes if isinstance(outcome, LeaseContendedError)]
    assert len(losers) == 5
    assert {loser.holder for loser in losers} == {winners[0].holder}


async def test_scopes_are_leased_apart(leases: Leases) -> None:
    grants = [await take(leases, scope=Scope(f"scope-{number}")) for number in range(20)]
    assert [grant.fence for grant in grants] == [1] * 20
    assert await leases.release(grants[3])
    assert await leases.inspect(grants[3].scope) is None
    assert await leases.inspect(grants[4].scope) == grants[4]


# --- replaces ---------------------------------------------------------------------------------------------------------


async def test_a_lease_of_ones_own_can_be_replaced_by_one_with_a_greater_fence(leases: Leases) -> None:
    old = await take(leases)
    new = await take(leases, replaces=old.lease_id)
    assert new.fence > old.fence
    assert await leases.renew(old, ttl=TTL) is None
    assert not await leases.release(old)
    assert await leases.inspect(SCOPE) == new


async def test_a_lease_of_another_is_not_replaced(leases: Leases, lease_site: LeaseSite) -> None:
    old = await take(leases)
    lease_site.clock.advance(31)
    await take(leases, BOB)
    with pytest.raises(LeaseContendedError, match="bob"):
        await take(leases, replaces=old.lease_id)
    with pytest.raises(LeaseContendedError, match="bob"):
        await take(leases, replaces=LeaseId.random())


async def test_replacing_is_retried_with_one_fence(leases: Leases) -> None:
    old = await take(leases)
    lease_id = LeaseId.random()
    first = await take(leases, lease_id=lease_id, replaces=old.lease_id)
    assert (await take(leases, lease_id=lease_id, replaces=old.lease_id)).fence == first.fence


# --- expiry -----------------------------------------------------------------------------------------------------------


async def test_a_lease_holds_until_its_last_moment_and_no_longer(leases: Leases, lease_site: LeaseSite) -> None:
    first = await take(leases)
    moment = lease_site.precision or 0.000_001
    lease_site.clock.advance(30 - moment)
    with pytest.raises(LeaseContendedError):
        await take(leases, BOB)
    lease_site.clock.advance(moment)
    second = await take(leases, BOB)
    assert second.fence > first.fence


async def test_renewal_moves_the_expiry(leases: Leases, lease_site: LeaseSite) -> None:
    grant = await take(leases)
    lease_site.clock.advance(20)
    renewed = await leases.renew(grant, ttl=TTL)
    assert renewed is not None
    assert renewed == replace(grant, expires_at=renewed.expires_at)
    assert lease_site.lasts(renewed, 30)
    lease_site.clock.advance(20)
    with pytest.raises(LeaseContendedError):
        await take(leases, BOB)


async def test_a_lease_that_ran_out_and_was_not_taken_can_be_renewed(leases: Leases, lease_site: LeaseSite) -> None:
    grant = await take(leases)
    lease_site.clock.advance(100)
    assert await leases.renew(grant, ttl=TTL) is not None
    with pytest.raises(LeaseContendedError):
        await take(leases, BOB)


async def test_a_lease_that_another_took_cannot_be_renewed_or_released(leases: Leases, lease_site: LeaseSite) -> None:
    old = await take(leases)
    lease_site.clock.advance(31)
    new = await take(leases, BOB)
    assert await leases.renew(old, ttl=TTL) is None
    assert not await leases.release(old)
    assert await leases.inspect(SCOPE) == new


# --- wrong tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["fence", "lease_id", "scope"])
async def test_renew_and_release_with_a_wrong_token_do_nothing(leases: Leases, wrong: str) -> None:
    grant = await take(leases)
    changes = {"fence": Fence(2), "lease_id": LeaseId.random(), "scope": Scope("another")}
    forged = replace(grant, **{wrong: changes[wrong]})
    assert await leases.renew(forged, ttl=timedelta(hours=1)) is None
    assert not await leases.release(forged)
    assert await leases.inspect(SCOPE) == grant


# --- release, inspect -------------------------------------------------------------------------------------------------


async def test_release_frees_the_scope_once(leases: Leases) -> None:
    grant = await take(leases)
    assert await leases.release(grant)
    assert not await leases.release(grant)
    assert await leases.renew(grant, ttl=TTL) is None
    assert (await take(leases, BOB)).fence > grant.fence


async def test_inspect_shows_a_lease_even_after_it_ran_out(leases: Leases, lease_site: LeaseSite) -> None:
    grant = await take(leases)
    lease_site.clock.advance(3_600)
    found = await lease_site.open().inspect(SCOPE)
    assert found is not None
    assert found == replace(grant, expires_at=found.expires_at)
    assert lease_site.lasts(found, 30 - 3_600)


async def test_inspect_of_a_released_or_unknown_scope_is_none(leases: Leases) -> None:
    assert await leases.inspect(SCOPE) is None
    await leases.release(await take(leases))
    assert await leases.inspect(SCOPE) is None


async def test_inspect_changes_nothing(leases: Leases) -> None:
    grant = await take(leases)
    for _ in range(3):
        assert await leases.inspect(SCOPE) == grant


# --- limits, closing --------------------------------------------------------------------------------------------------


async def test_the_last_fence_is_granted_and_none_behind_it(leases: Leases) -> None:
    last = await take(leases, floor=MAX_FENCE - 1)
    assert last.fence == MAX_FENCE
    await leases.release(last)
    with pytest.raises(ResourceLimitError) as caught:
        await take(leases, BOB)
    assert caught.value.code is Code.FENCE_EXHAUSTED
    assert await leases.inspect(SCOPE) is None


async def test_a_floor_at_the_end_of_the_range_is_refused_and_burns_nothing(leases: Leases) -> None:
    with pytest.raises(ResourceLimitError):
        await take(leases, floor=MAX_FENCE)
    assert (await take(leases)).fence == 1


async def test_leases_outlive_the_instance_that_took_them(lease_site: LeaseSite) -> None:
    first = lease_site.open()
    grant = await take(first)
    await first.close()
    assert await lease_site.open().inspect(SCOPE) == grant


async def test_closing_twice_or_unused_does_nothing(lease_site: LeaseSite) -> None:
    unused, used = lease_site.open(), lease_site.open()
    await take(used)
    for leases in (unused, used, unused, used):
        await leases.close()


@pytest.mark.parametrize("operation", ["acquire", "renew", "release", "inspect"])
async def test_a_closed_store_refuses_to_work(leases: Leases, operation: str) -> None:
    grant = await take(leases)
    await leases.close()
    calls = {
        "acquire": lambda: take(leases),
        "renew": lambda: leases.renew(grant, ttl=TTL),
        "release": lambda: leases.release(grant),
        "inspect": lambda: leases.inspect(SCOPE),
    }
    with pytest.raises(InvalidContractError) as caught:
        await calls[operation]()
    assert caught.value.code is Code.CLOSED
