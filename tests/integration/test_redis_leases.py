"""Leases on real Redis servers that lose their memory, answers and connections, stand still, or refuse."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from journal.errors import (
    Code,
    FencedError,
    IntegrityError,
    InvalidContractError,
    LeaseContendedError,
    ResourceLimitError,
    UnavailableError,
)
from journal.identities import MAX_FENCE, Fence, HolderId, LeaseId, Scope
from journal.journal import Journal
from journal.leases.redis import RedisLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Grant
from tests.cutting_proxy import Cut, CuttingProxy, cutting_proxy
from tests.factories import SCOPE, chain_of, plan_record
from tests.redis_process import RedisProcess

ALICE, BOB, CAROL = HolderId("alice"), HolderId("bob"), HolderId("carol")
TTL, SHORT = timedelta(seconds=30), timedelta(seconds=0.4)
NO_WAIT = timedelta(0)
PATIENCE = timedelta(seconds=10)

OpenStore = Callable[..., RedisLeases]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A server for tests that do it no harm, each under a prefix of its own."""
    server = RedisProcess(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    """A server of the test's own."""
    server = RedisProcess(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores as other processes would; closes them at the end."""
    opened: list[RedisLeases] = []
    prefix = f"test-{os.urandom(8).hex()}"

    def make(url: str, timeout: timedelta = PATIENCE) -> RedisLeases:
        opened.append(RedisLeases(url, prefix=prefix, timeout=timeout))
        return opened[-1]

    yield make
    for store in opened:
        await store.close()


@pytest.fixture
async def open_journal(tmp_path: Path, open_store: OpenStore) -> AsyncIterator[Callable[[str], Journal]]:
    """Opens journals on one SQLite log and the Redis that is given."""
    opened: list[Journal] = []

    def make(url: str, timeout: timedelta = PATIENCE) -> Journal:
        log = SQLiteLog(tmp_path / "journal.db", poll=timedelta(milliseconds=10))
        opened.append(Journal(log, open_store(url, timeout)))
        return opened[-1]

    yield make
    for journal in opened:
        await journal.close()


@pytest.fixture
async def proxy(shared: RedisProcess) -> AsyncIterator[CuttingProxy]:
    async with cutting_proxy(shared.port) as proxy:
        yield proxy


def through(proxy: CuttingProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


async def take(
    store: RedisLeases,
    holder: HolderId = ALICE,
    *,
    lease_id: LeaseId | None = None,
    ttl: timedelta = TTL,
    floor: int = 0,
) -> Grant:
    return await store.acquire(SCOPE, holder, lease_id=lease_id or LeaseId.random(), ttl=ttl, floor=floor)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110  (what it waits for tells nobody)
            await asyncio.sleep(0.01)


# --- memory that is lost ------------------------------------------------------------------------------------------------


async def flushed(server: RedisProcess) -> None:
    server.command("FLUSHALL")


async def restarted_empty(server: RedisProcess) -> None:
    server.kill()
    server.start()


@pytest.mark.parametrize("lose", [flushed, restarted_empty], ids=lambda lose: lose.__name__)
async def test_fences_grow_past_a_redis_that_forgot_everything(
    server: RedisProcess, open_journal: Callable[..., Journal], lose: Callable[[RedisProcess], Awaitable[None]]
) -> None:
    mine, other = open_journal(server.url), open_journal(server.url)
    await mine.create(SCOPE)
    fences = []
    for _ in range(3):
        old = await mine.acquire(SCOPE, ALICE, ttl=TTL, wait=NO_WAIT)
        await lose(server)
        new = await other.acquire(SCOPE, BOB, ttl=TTL, wait=NO_WAIT)
        fences += [old.fence, new.fence]
        with pytest.raises(FencedError):
            await mine.load_applied(old)
        await mine.release(old)
        assert not await other.load_applied(new), "it holds all the same"
        await other.release(new)
    assert fences == sorted(set(fences))


async def test_fences_grow_past_a_redis_that_woke_up_in_an_old_snapshot(
    server: RedisProcess, open_journal: Callable[..., Journal]
) -> None:
    mine, other = open_journal(server.url), open_journal(server.url)
    await mine.create(SCOPE)
    early = await mine.acquire(SCOPE, ALICE, ttl=timedelta(seconds=1))
    await early.stop_renewal()
    server.command("SAVE")  # where alice holds the lease
    await mine.release(early)
    late = await other.acquire(SCOPE, BOB, ttl=TTL, wait=NO_WAIT)
    server.kill()
    server.start()
    held = await other.lease_in_store(SCOPE)
    assert held is not None
    assert (held.holder, held.fence) == (ALICE, early.fence), "it is old"
    third = await mine.acquire(SCOPE, CAROL, ttl=TTL, wait=PATIENCE)
    assert early.fence < late.fence < third.fence
    with pytest.raises(FencedError):
        await other.begin_plan(late, plan_record(late, chain_of(1)))
    await mine.begin_plan(third, plan_record(third, chain_of(1)))


async def test_a_holder_that_redis_forgot_is_told_by_its_next_renewal(
    server: RedisProcess, open_journal: Callable[..., Journal]
) -> None:
    journal = open_journal(server.url)
    await journal.create(SCOPE)
    lease = await journal.acquire(SCOPE, ALICE, ttl=SHORT)
    server.command("FLUSHALL")
    await asyncio.wait_for(lease.wait_lost(), 10)


async def test_scripts_that_were_flushed_are_sent_again(shared: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(shared.url)

    async def forgetful(call: Awaitable[object]) -> object:
        shared.command("SCRIPT", "FLUSH")
        return await call

    grant = await forgetful(take(store))
    assert isinstance(grant, Grant)
    assert await forgetful(store.inspect(SCOPE)) == grant
    assert isinstance(await forgetful(store.renew(grant, ttl=TTL)), Grant)
    with pytest.raises(LeaseContendedError):
        await forgetful(take(store, BOB))
    assert await forgetful(store.release(grant)) is True
    assert await forgetful(store.inspect(SCOPE)) is None


# --- answers that are lost ----------------------------------------------------------------------------------------------


async def measured(proxy: CuttingProxy, call: Callable[[RedisLeases], Awaitable[object]]) -> tuple[int, int]:
    """How many bytes one call takes over a fresh connection, handshake and all: questions and answers."""
    store = RedisLeases(f"{through(proxy)}/1", prefix=f"measured-{os.urandom(8).hex()}")
    before = proxy.questions, proxy.answers
    await call(store)
    await store.close()
    async with asyncio.timeout(5):
        while proxy.questions == before[0] or proxy.answers == before[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return proxy.questions - before[0], proxy.answers - before[1]


def every_cut(questions: int, answers: int) -> list[Cut]:
    return [Cut(questions=n) for n in range(questions + 1)] + [Cut(answers=n) for n in range(answers + 1)]


@asynccontextmanager
async def fresh(proxy: CuttingProxy, prefix: str, *cuts: Cut) -> AsyncIterator[RedisLeases]:
    """A store whose first connections are cut; choosing a database makes them begin with a handshake."""
    proxy.cuts[:] = cuts
    store = RedisLeases(f"{through(proxy)}/1", prefix=prefix, timeout=PATIENCE)
    yield store
    proxy.cuts.clear()
    await store.close()


async def test_an_acquisition_cut_after_any_byte_burns_no_fence(proxy: CuttingProxy, shared: RedisProcess) -> None:
    prefix = f"cut-{os.urandom(8).hex()}"
    direct = RedisLeases(f"{shared.url}/1", prefix=prefix)
    unavailable = 0
    for number, cut in enumerate(every_cut(*await measured(proxy, take)), 1):
        lease_id = LeaseId.random()
        async with fresh(proxy, prefix, cut) as store:
            try:
                grant = await take(store, lease_id=lease_id)
            except UnavailableError:
                unavailable += 1
                grant = await take(store, lease_id=lease_id)
        assert (grant.fence, grant.lease_id) == (number, lease_id), cut
        assert await direct.release(grant)
    assert unavailable, "a connection that breaks in its handshake is a server that cannot be reached"
    await direct.close()


async def test_an_acquisition_cut_twice_after_any_byte_of_the_answer_burns_no_fence(
    proxy: CuttingProxy, shared: RedisProcess
) -> None:
    prefix = f"cut-{os.urandom(8).hex()}"
    direct = RedisLeases(f"{shared.url}/1", prefix=prefix)
    _, answers = await measured(proxy, take)
    for number, count in enumerate(range(answers), 1):
        lease_id = LeaseId.random()
        async with fresh(proxy, prefix, Cut(answers=count), Cut(answers=count)) as store:
            with pytest.raises(UnavailableError) as caught:
                await take(store, lease_id=lease_id)
            assert caught.value.code is Code.LEASES_UNAVAILABLE
            proxy.cuts.clear()
            grant = await take(store, lease_id=lease_id)
        assert grant.fence == number, count
        assert await direct.release(grant)
    await direct.close()


async def test_a_renewal_cut_after_any_byte_is_done_or_said_not_to_be(
    proxy: CuttingProxy, shared: RedisProcess
) -> None:
    prefix = f"cut-{os.urandom(8).hex()}"
    direct = RedisLeases(f"{shared.url}/1", prefix=prefix)
    grant = await take(direct)
    done = 0
    for cut in every_cut(*await measured(proxy, lambda store: store.renew(grant, ttl=TTL))):
        async with fresh(proxy, prefix, cut) as store:
            try:
                renewed = await store.renew(grant, ttl=TTL)
            except UnavailableError:
                continue
        assert renewed is not None, cut
        assert renewed.fence == grant.fence
        assert await direct.inspect(SCOPE) == renewed
        done += 1
    assert done
    await direct.close()


async def test_a_release_cut_after_any_byte_says_truly_whether_it_freed_the_scope(
    proxy: CuttingProxy, shared: RedisProcess
) -> None:
    prefix = f"cut-{os.urandom(8).hex()}"
    direct = RedisLeases(f"{shared.url}/1", prefix=prefix)
    freed = 0
    stale = await take(direct)
    await direct.release(stale)
    for cut in every_cut(*await measured(proxy, lambda store: store.release(stale))):
        grant = await take(direct)
        async with fresh(proxy, prefix, cut) as store:
            try:
                assert await store.release(grant), cut
            except UnavailableError:
                await direct.release(grant)
            else:
                freed += 1
        assert await direct.inspect(SCOPE) is None, cut
    assert freed
    await direct.close()


async def test_a_connection_that_died_while_it_was_idle_is_replaced_unseen(
    server: RedisProcess, open_store: OpenStore
) -> None:
    store = open_store(server.url)
    grants = await asyncio.gather(
        *(store.acquire(Scope(f"s-{n}"), ALICE, lease_id=LeaseId.random(), ttl=TTL) for n in range(5))
    )
    server.command("CLIENT", "KILL", "TYPE", "normal")
    assert [await store.renew(grant, ttl=TTL) is not None for grant in grants] == [True] * 5


# --- callers that go away -----------------------------------------------------------------------------------------------


async def test_the_answer_of_a_cancelled_call_is_not_read_by_the_next_one(
    proxy: CuttingProxy, open_store: OpenStore, shared: RedisProcess
) -> None:
    store, direct = open_store(through(proxy)), open_store(shared.url)
    held = {Scope(f"s-{n}"): HolderId(f"holder-{n}") for n in range(20)}
    for scope, holder in held.items():
        await direct.acquire(scope, holder, lease_id=LeaseId.random(), ttl=TTL)
    await store.inspect(SCOPE)
    for scope, holder in held.items():
        proxy.keep_answers_back()
        gone = asyncio.ensure_future(store.inspect(SCOPE))
        await asyncio.wait_for(proxy.kept_back.wait(), 5)
        gone.cancel()
        await asyncio.wait([gone])
        asking = [asyncio.ensure_future(store.inspect(scope)) for _ in range(3)]
        await asyncio.sleep(0)
        proxy.deliver()
        for found in await asyncio.wait_for(asyncio.gather(*asking), 5):
            assert found is not None
            assert (found.scope, found.holder) == (scope, holder)


@pytest.mark.parametrize("operation", ["acquire", "renew", "release"])
async def test_a_store_goes_on_after_callers_that_were_cancelled_at_any_step(
    shared: RedisProcess, open_store: OpenStore, operation: str
) -> None:
    direct = open_store(shared.url)
    await direct.acquire(Scope("witness"), CAROL, lease_id=LeaseId.random(), ttl=TTL)
    fence, steps, done = 0, 0, 0
    while done < 3:  # three times it came to its end before it was cancelled
        store = open_store(shared.url)
        if steps % 2:  # on a connection that is there already
            await store.inspect(SCOPE)
        grant = Grant(SCOPE, ALICE, Fence(fence + 1), LeaseId.random(), 0.0)
        if operation != "acquire":
            grant = await take(direct)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "acquire": lambda store=store, grant=grant: take(store, lease_id=grant.lease_id),
            "renew": lambda store=store, grant=grant: store.renew(grant, ttl=TTL),
            "release": lambda store=store, grant=grant: store.release(grant),
        }
        calling = asyncio.ensure_future(calls[operation]())
        for _ in range(steps // 2):
            await asyncio.sleep(0)
        done += not calling.cancel()
        witness = await store.inspect(Scope("witness"))
        assert witness is not None
        assert witness.holder == CAROL
        await asyncio.wait([calling])
        if operation == "acquire":
            grant = await take(store, lease_id=grant.lease_id)
        assert grant.fence == fence + 1, "a cancelled caller burns no fence"
        await store.close()
        await direct.release(grant)
        assert await direct.inspect(SCOPE) is None
        fence, steps = grant.fence, steps + 1


async def test_an_acquisition_of_a_journal_that_is_cancelled_at_any_step_leaves_the_scope_free(
    shared: RedisProcess, open_journal: Callable[..., Journal]
) -> None:
    other = open_journal(shared.url)
    await other.create(SCOPE)
    fences: list[int] = []
    steps, cancelled = 0, True
    while cancelled:
        journal = open_journal(shared.url)
        acquiring = asyncio.ensure_future(journal.acquire(SCOPE, ALICE, ttl=TTL))
        for _ in range(steps):
            await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.wait([acquiring])
        cancelled = acquiring.cancelled()
        await journal.close()
        lease = await other.acquire(SCOPE, BOB, ttl=TTL, wait=timedelta(seconds=5))
        fences.append(lease.fence)
        await other.release(lease)
        steps += 1 if steps < 10 else 3
    assert fences == sorted(set(fences))


async def test_a_journal_cancelled_while_the_grant_is_on_its_way_leaves_the_scope_free(
    proxy: CuttingProxy, shared: RedisProcess, open_journal: Callable[..., Journal]
) -> None:
    mine, other = open_journal(through(proxy)), open_journal(shared.url)
    await mine.create(SCOPE)
    await mine.lease_in_store(SCOPE)
    proxy.keep_answers_back()
    acquiring = asyncio.ensure_future(mine.acquire(SCOPE, ALICE, ttl=TTL))
    await asyncio.wait_for(proxy.kept_back.wait(), 5)
    acquiring.cancel()
    held = await other.lease_in_store(SCOPE)
    assert held is not None
    assert held.holder == ALICE
    proxy.deliver()
    await asyncio.wait([acquiring])
    await until(lambda: _is_free(other))


async def _is_free(journal: Journal) -> bool:
    return await journal.lease_in_store(SCOPE) is None


# --- a server that stands still or refuses ------------------------------------------------------------------------------


async def test_a_server_that_stands_still_is_given_up_in_time_and_used_again(
    server: RedisProcess, open_store: OpenStore
) -> None:
    store = open_store(server.url, timedelta(seconds=0.3))
    await store.release(await take(store))
    grant = await take(store)
    lease_id = LeaseId.random()
    server.stop()
    began = time.monotonic()
    calls = (
        store.release(grant),  # on the connection that is there
        store.renew(grant, ttl=TTL),
        store.inspect(SCOPE),
        store.acquire(Scope("other"), BOB, lease_id=lease_id, ttl=TTL),
    )
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, UnavailableError)
        assert outcome.code is Code.LEASES_UNAVAILABLE
        assert "0.3 s" in outcome.message
    assert time.monotonic() - began < 5
    server.go_on()
    patient = open_store(server.url)
    again = await patient.acquire(Scope("other"), BOB, lease_id=lease_id, ttl=TTL)
    assert again.fence == 1, "whether or not the first one was done late"
    assert await patient.inspect(SCOPE) is None, "the release was delivered late"


async def test_closing_while_the_server_stands_still_ends_in_time(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url, timedelta(seconds=0.3))
    await take(store)
    server.stop()
    waiting = asyncio.ensure_future(store.inspect(SCOPE))
    await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), 5)
    with pytest.raises(UnavailableError):
        await waiting
    server.go_on()


async def test_a_paused_server_answers_when_it_goes_on(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    grant = await take(store)
    server.command("CLIENT", "PAUSE", "200", "ALL")
    assert await store.renew(grant, ttl=TTL) is not None


async def test_a_replica_takes_no_lease_and_says_so(
    server: RedisProcess, tmp_path: Path, open_store: OpenStore
) -> None:
    server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    replica = RedisProcess(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port))
    replica.start()
    try:
        primary, store = open_store(server.url), open_store(replica.url)
        grant = await take(primary)

        async def has_followed() -> bool:
            try:
                return await store.inspect(SCOPE) == grant
            except UnavailableError:  # it is loading
                return False

        await until(has_followed)
        for call in (take(store, lease_id=grant.lease_id), store.renew(grant, ttl=TTL), store.release(grant)):
            with pytest.raises(UnavailableError, match="replica") as caught:
                await call
            assert caught.value.code is Code.LEASES_UNAVAILABLE
        server.kill()
        replica.command("REPLICAOF", "NO", "ONE")
        renewed = await store.renew(grant, ttl=TTL)
        assert renewed is not None, "the same store goes on when the replica was made the primary"
    finally:
        replica.kill()


async def test_a_full_memory_is_said_and_releases_go_on(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    grant = await take(store)
    server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(UnavailableError, match="maxmemory") as caught:
        await store.acquire(Scope("other"), BOB, lease_id=LeaseId.random(), ttl=TTL)
    assert caught.value.code is Code.STORAGE_FULL
    server.command("CONFIG", "SET", "maxmemory", "0")
    assert await store.release(grant)


async def test_a_server_that_cannot_save_takes_no_lease_and_says_so(tmp_path: Path, open_store: OpenStore) -> None:
    server = RedisProcess(tmp_path / "redis", "--save", "3600 1")
    server.start()
    try:
        store = open_store(server.url)
        grant = await take(store)
        (tmp_path / "redis").rename(tmp_path / "moved")
        (tmp_path / "moved" / "redis.log").unlink()
        (tmp_path / "moved").rmdir()
        server.command("BGSAVE")

        async def says_so() -> bool:
            return bool(server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")

        await until(says_so)
        with pytest.raises(UnavailableError, match="cannot save"):
            await store.renew(grant, ttl=TTL)
    finally:
        server.kill()


async def test_a_server_that_loads_its_data_says_so(tmp_path: Path, open_store: OpenStore) -> None:
    server = RedisProcess(
        tmp_path / "redis", "--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"
    )
    server.start()
    try:
        store = open_store(server.url)
        await take(store)
        for number in range(200):
            server.command("SET", f"filler-{number}", os.urandom(2_000))
        server.command("SAVE")
        server.kill()
        server.start(loaded=False)
        with pytest.raises(UnavailableError, match="loading") as caught:
            await take(store)
        assert caught.value.code is Code.STORAGE_BUSY
    finally:
        server.kill()


async def test_a_server_kept_busy_by_a_script_says_so(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    await take(store)
    server.command("CONFIG", "SET", "busy-reply-threshold", "10")
    spinning = asyncio.get_running_loop().run_in_executor(None, _spin, server)

    async def is_busy() -> bool:
        try:
            await store.inspect(SCOPE)
        except UnavailableError as error:
            return error.code is Code.STORAGE_BUSY and "SCRIPT KILL" in error.message
        return False

    await until(is_busy)
    server.command("SCRIPT", "KILL")
    await spinning
    assert await store.inspect(SCOPE) is not None


def _spin(server: RedisProcess) -> None:
    import redis

    with pytest.raises(redis.ResponseError):
        server.command("EVAL", "while true do end", "0")


# --- data of others -----------------------------------------------------------------------------------------------------

RUBBISH: dict[str, tuple[object, ...]] = {
    "a string": ("SET", "value"),
    "a list": ("RPUSH", "value"),
    "a hash of another": ("HSET", "name", "value"),
    "a fence that is no number": ("HSET", "fence", "many"),
    "a fence past the range": ("HSET", "fence", str(MAX_FENCE + 1)),
    "a fence with a zero in front": ("HSET", "fence", "07"),
    "a negative fence": ("HSET", "fence", "-1"),
    "a lease id that is too short": ("HSET", "lease_id", "abc"),
    "a lease id that is no hex": ("HSET", "lease_id", "z" * 32),
    "a holder that cannot be": ("HSET", "holder", "two words"),
    "a holder in other letters": ("HSET", "holder", "höld\xffer"),
    "no holder": ("HSET", "holder", ""),
    "an expiry that is no number": ("HSET", "expires_at_micros", "soon"),
    "an expiry as a float": ("HSET", "expires_at_micros", "1.8e+15"),
}


@pytest.mark.parametrize("rubbish", RUBBISH, ids=str)
async def test_a_key_that_holds_something_else_is_said_and_left_alone(
    server: RedisProcess, open_store: OpenStore, rubbish: str
) -> None:
    store = open_store(server.url)
    grant = await take(store)
    (key,) = server.command("KEYS", "*")
    command, *values = RUBBISH[rubbish]
    if command != "HSET" or values[0] == "name":
        server.command("DEL", key)
    server.command(command, key, *values)
    before = _fields(server, key)
    for call in (take(store, BOB), take(store, lease_id=grant.lease_id), store.inspect(SCOPE)):
        with pytest.raises(IntegrityError, match="another prefix") as caught:
            await call
        assert caught.value.code is Code.DAMAGED_LEASE
    assert _fields(server, key) == before


def _fields(server: RedisProcess, key: str) -> object:
    kind = server.command("TYPE", key)
    commands = {"hash": ("HGETALL", key), "string": ("GET", key), "list": ("LRANGE", key, "0", "-1")}
    return kind, server.command(*commands[kind])


async def test_a_lease_of_which_a_field_is_missing_is_damaged(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    await take(store)
    (key,) = server.command("KEYS", "*")
    for field in server.command("HKEYS", key):
        value = server.command("HGET", key, field)
        server.command("HDEL", key, field)
        for call in (take(store, BOB), store.inspect(SCOPE)):
            with pytest.raises(IntegrityError):
                await call
        server.command("HSET", key, field, value)
    with pytest.raises(LeaseContendedError):
        await take(store, BOB)


# --- numbers past 2^53 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [2**53 - 1, 2**53, 2**53 + 1, 10**18 - 1, 2**62, MAX_FENCE - 3])
async def test_fences_are_exact_past_what_a_double_holds(
    shared: RedisProcess, open_store: OpenStore, floor: int
) -> None:
    store = open_store(shared.url)
    grant = await take(store, floor=floor)
    assert grant.fence == floor + 1
    assert await store.inspect(SCOPE) == grant
    assert await store.renew(grant, ttl=TTL) is not None
    assert await store.release(grant)
    assert (await take(store, floor=floor - 1)).fence == floor + 2


async def test_a_floor_past_the_range_is_refused(shared: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(shared.url)
    with pytest.raises(ResourceLimitError):
        await take(store, floor=MAX_FENCE + 10)
    assert (await take(store, floor=-5)).fence == 1


async def test_a_lease_that_lasts_for_ever_or_not_at_all_has_an_exact_end(
    shared: RedisProcess, open_store: OpenStore
) -> None:
    store = open_store(shared.url)
    for ttl in (timedelta.max, timedelta(0), timedelta(seconds=-1)):
        grant = await take(store, lease_id=LeaseId.random(), ttl=ttl)
        assert await store.inspect(SCOPE) == grant
        await store.release(grant)


# --- life ---------------------------------------------------------------------------------------------------------------


def test_a_store_belongs_to_one_event_loop_for_as_long_as_it_has_connections(shared: RedisProcess) -> None:
    store = RedisLeases(shared.url)
    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    one.run_until_complete(store.inspect(SCOPE))
    for call in (store.inspect(SCOPE), store.close()):
        with pytest.raises(InvalidContractError) as caught:
            other.run_until_complete(call)
        assert caught.value.code is Code.FOREIGN_LOOP
    one.run_until_complete(store.close())
    other.run_until_complete(store.close())
    for loop in (one, other):
        loop.close()


async def test_a_store_is_refused_in_a_forked_process(shared: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(shared.url)
    await store.inspect(SCOPE)
    child = os.fork()
    if not child:
        status = 1
        try:
            store.inspect(SCOPE).send(None)
        except InvalidContractError as error:
            status = 0 if error.code is Code.FORKED else 2
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)  # noqa: ASYNC222  (it does one step)
    assert os.waitstatus_to_exitcode(ended) == 0
    assert await store.inspect(SCOPE) is None


async def test_a_thousand_leases_at_once_share_a_few_connections(server: RedisProcess, open_store: OpenStore) -> None:
    store = open_store(server.url)
    grants = await asyncio.gather(
        *(store.acquire(Scope(f"s-{n}"), ALICE, lease_id=LeaseId.random(), ttl=TTL) for n in range(1_000))
    )
    assert [grant.fence for grant in grants] == [1] * 1_000
    assert len(str(server.command("CLIENT", "LIST", "TYPE", "normal")).splitlines()) <= 20
