"""Redis leases against many at once, and against the embedded ones: the same answers to the same questions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from journal.errors import JournalError
from journal.identities import MAX_FENCE, Fence, HolderId, LeaseId, Scope
from journal.leases.redis import RedisLeases
from journal.leases.sqlite import SQLiteLeases
from journal.ports import Grant, Leases
from tests.contract.conftest import FakeClock, RedisClock
from tests.redis_process import RedisProcess

ROOT = Path(__file__).parents[2]
PROCESSES, CLIENTS, ROUNDS = 4, 5, 15


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return f"test-{os.urandom(8).hex()}"


# --- races --------------------------------------------------------------------------------------------------------------


async def raced(url: str, prefix: str, seed: int) -> list[dict[str, Any]]:
    """The leases that one process had."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.scripts.lease_race"),
        *(url, prefix, f"p{seed}", str(CLIENTS), str(ROUNDS)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return [json.loads(line) for line in said.splitlines()]


async def test_of_twenty_clients_in_four_processes_never_two_hold_one_scope(server: RedisProcess, prefix: str) -> None:
    had = await asyncio.gather(*(raced(server.url, prefix, seed) for seed in range(PROCESSES)))
    leases = sorted((lease for each in had for lease in each), key=lambda lease: float(lease["began"]))
    assert len(leases) == PROCESSES * CLIENTS * ROUNDS
    for before, after in pairwise(leases):
        assert before["fence"] < after["fence"]
        assert before["ends"] <= after["began"] + 0.000_01
    fences = [lease["fence"] for lease in leases][2:]  # the floors are 0 to 2
    assert fences == list(range(fences[0], fences[0] + len(fences))), "who waits burns none"


# --- the same as the embedded leases ------------------------------------------------------------------------------------

HOLDERS = [HolderId("alice"), HolderId("bob")]
LEASE_IDS = [LeaseId(bytes([number]) * 16) for number in range(4)]
SCOPES = count(1)


@dataclass
class Side:
    """One of the two stores, and what it was told to do so far."""

    store: Leases
    now: Callable[[], float]
    grants: list[Grant] = field(default_factory=list)

    async def does(self, scope: Scope, step: Step) -> object:
        """What a step comes to, in words that are the same for equal behaviour."""
        try:
            result = await step(self, scope)
        except JournalError as error:
            holder, expires_at = getattr(error, "holder", None), getattr(error, "expires_at", None)
            return type(error), error.code, holder, self.rounded(expires_at)
        if not isinstance(result, Grant):
            return result
        return result.holder, result.fence, result.lease_id, self.rounded(result.expires_at)

    def rounded(self, moment: float | None) -> int | None:
        """Seconds from now, to the next five: the two clocks are read one after the other."""
        return None if moment is None else round((moment - self.now()) / 5)


Step = Callable[[Side, Scope], Any]


@st.composite
def acquiring(draw: st.DrawFn) -> Step:
    holder, lease_id = draw(st.sampled_from(HOLDERS)), draw(st.sampled_from(LEASE_IDS))
    replaces = draw(st.none() | st.sampled_from(LEASE_IDS))
    floor = draw(st.sampled_from([0, 0, 0, 1, 3, 50, 2**53, MAX_FENCE - 1, MAX_FENCE]))
    ttl = timedelta(seconds=draw(st.sampled_from([0, 15, 25])))

    async def acquire(side: Side, scope: Scope) -> Grant:
        grant = await side.store.acquire(scope, holder, lease_id=lease_id, ttl=ttl, floor=floor, replaces=replaces)
        side.grants.append(grant)
        return grant

    return acquire


@st.composite
def using(draw: st.DrawFn) -> Step:
    operation, which = draw(st.sampled_from(["renew", "release"])), draw(st.integers(0, 5))
    wrong = draw(st.sampled_from([None, None, None, "fence", "lease_id"]))

    async def use(side: Side, scope: Scope) -> object:
        if not side.grants:
            return None
        grant = side.grants[-1 - which % len(side.grants)]
        fence = Fence(grant.fence - 1) if wrong == "fence" and grant.fence > 1 else grant.fence
        lease_id = LeaseId(b"\xff" * 16) if wrong == "lease_id" else grant.lease_id
        used = Grant(scope, grant.holder, fence, lease_id, grant.expires_at)
        if operation == "release":
            return await side.store.release(used)
        return await side.store.renew(used, ttl=timedelta(seconds=15))

    return use


async def inspecting(side: Side, scope: Scope) -> Grant | None:
    return await side.store.inspect(scope)


STEPS = st.lists(acquiring() | acquiring() | using() | st.just(inspecting) | st.sampled_from([10.0, 20.0]), max_size=30)


@pytest.fixture
async def sides(server: RedisProcess, prefix: str, tmp_path: Path) -> AsyncIterator[tuple[Side, Side, list[Any]]]:
    import redis

    clock = FakeClock()
    with redis.Redis(port=server.port) as client:
        redis_clock = RedisClock(client, prefix)
        embedded, remote = SQLiteLeases(tmp_path / "leases.db", clock=clock), RedisLeases(server.url, prefix=prefix)
        yield Side(embedded, clock), Side(remote, lambda: redis_clock.now), [clock, redis_clock]
        await embedded.close()
        await remote.close()


@given(steps=STEPS)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_redis_answers_as_the_embedded_leases_do(
    sides: tuple[Side, Side, list[Any]], steps: list[Step | float]
) -> None:
    *stores, clocks = sides
    scope = Scope(f"scope-{next(SCOPES)}")
    for side in stores:
        side.grants.clear()
    for step in steps:
        if isinstance(step, float):
            for clock in clocks:
                clock.advance(step)
            continue
        embedded, remote = [await side.does(scope, step) for side in stores]
        assert remote == embedded
