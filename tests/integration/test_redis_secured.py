"""A Redis behind passwords, rights and TLS, and everything that is not quite a Redis: each error names its cause."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from journal.errors import Code, IntegrityError, InvalidContractError, JournalError, UnavailableError
from journal.identities import Fence, HolderId, LeaseId, Scope
from journal.leases.redis import EXAMINER_RIGHTS, RIGHTS, RedisLeases
from journal.ports import Finding, Grant, Level
from tests.certificates import Authority
from tests.redis_process import RedisProcess

SCOPE = Scope("orders")
ALICE, BOB = HolderId("alice"), HolderId("bob")
TTL = timedelta(seconds=30)
SECRET = "corréct-horse-battery"


async def exercise(store: RedisLeases, holder: HolderId = ALICE) -> None:
    """Every operation once."""
    grant = await store.acquire(SCOPE, holder, lease_id=LeaseId.random(), ttl=TTL)
    assert await store.renew(grant, ttl=TTL) is not None
    assert await store.inspect(SCOPE) is not None
    assert await store.release(grant)


async def failing(store: RedisLeases) -> JournalError:
    """The error of a store that cannot be used; it came in time, and shows no secret, whatever way it is shown."""
    began = time.monotonic()
    with pytest.raises(JournalError) as caught:
        await store.inspect(SCOPE)
    await store.close()
    assert time.monotonic() - began < 10
    shown = caught.getrepr(style="native").reprcrash
    assert (
        SECRET
        not in f"{caught.value} {caught.value!r} {caught.value.details} {caught.value.__cause__!r} {shown} {store!r}"
    )
    return caught.value


# --- passwords and rights -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    """A server with a password for the one who sets it up."""
    server = RedisProcess(tmp_path_factory.mktemp("guarded"), "--requirepass", "admin")
    server.password = "admin"
    server.start()
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return f"test-{os.urandom(8).hex()}"


def allow(server: RedisProcess, user: str, prefix: str, rights: tuple[str, ...]) -> str:
    """Make a user with these rights on the keys of one prefix, and nothing else; gives the address for it."""
    granted = (f"+{right}" for right in rights)
    server.command("ACL", "SETUSER", user, "reset", "on", f">{SECRET}", f"~{prefix}:*", "-@all", *granted)
    return server.url.replace("://", f"://{user}@")


async def test_the_rights_that_are_listed_suffice(guarded: RedisProcess, prefix: str) -> None:
    store = RedisLeases(allow(guarded, "holder", prefix, RIGHTS), password=SECRET, prefix=prefix)
    guarded.command("ACL", "LOG", "RESET")
    for _ in range(2):
        guarded.command("SCRIPT", "FLUSH")
        await exercise(store)
        await exercise(store)
    assert guarded.command("ACL", "LOG") == [], "not even a refusal that is swallowed"
    await store.close()


@pytest.mark.parametrize("right", RIGHTS)
async def test_each_right_that_is_listed_is_needed(guarded: RedisProcess, prefix: str, right: str) -> None:
    url = allow(guarded, "poor", prefix, tuple(other for other in RIGHTS if other != right))
    guarded.command("SCRIPT", "FLUSH")
    store = RedisLeases(url, password=SECRET, prefix=prefix)
    with pytest.raises(InvalidContractError, match="lacks a right") as caught:
        await exercise(store)
    assert caught.value.code is Code.NOT_PERMITTED
    await store.close()


async def test_keys_of_another_prefix_are_refused(guarded: RedisProcess, prefix: str) -> None:
    store = RedisLeases(allow(guarded, "elsewhere", f"{prefix}-other", RIGHTS), password=SECRET, prefix=prefix)
    error = await failing(store)
    assert (error.code, "lacks a right" in error.message) == (Code.NOT_PERMITTED, True)


@pytest.mark.parametrize(
    ("user", "password", "said"),
    [
        ("", None, "none was given"),
        ("", SECRET, "refused user and password"),
        ("nobody", SECRET, "refused user and password"),
        ("holder", f"{SECRET}!", "refused user and password"),
        ("holder", None, "refused user and password"),
    ],
)
async def test_a_wrong_password_is_said(
    guarded: RedisProcess, prefix: str, user: str, password: str | None, said: str
) -> None:
    allow(guarded, "holder", prefix, RIGHTS)
    url = guarded.url.replace("://", f"://{user}@") if user else guarded.url
    error = await failing(RedisLeases(url, password=password, prefix=prefix))
    assert isinstance(error, InvalidContractError)
    assert (error.code, said in error.message) == (Code.NOT_PERMITTED, True), error


async def test_a_password_that_is_not_wanted_is_said(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    server.start()
    try:
        error = await failing(RedisLeases(server.url, password=SECRET))
        assert (error.code, "leave it out" in error.message) == (Code.NOT_PERMITTED, True), error
    finally:
        server.kill()


async def test_a_user_that_is_locked_out_while_it_holds_a_lease_is_told(guarded: RedisProcess, prefix: str) -> None:
    store = RedisLeases(allow(guarded, "guest", prefix, RIGHTS), password=SECRET, prefix=prefix)
    grant = await store.acquire(SCOPE, ALICE, lease_id=LeaseId.random(), ttl=TTL)
    guarded.command("ACL", "SETUSER", "guest", "off")
    guarded.command("CLIENT", "KILL", "USER", "guest")
    with pytest.raises(InvalidContractError) as caught:
        await store.renew(grant, ttl=TTL)
    assert caught.value.code is Code.NOT_PERMITTED
    guarded.command("ACL", "SETUSER", "guest", "on")
    assert await store.renew(grant, ttl=TTL) is not None
    await store.close()


# --- TLS ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def secured(folder: Path, authority: Authority, *, address: str = "127.0.0.1") -> RedisProcess:
    certificate, key = authority.server("server", address=address)
    return RedisProcess(
        folder,
        *(
            "--tls-cert-file",
            str(certificate),
            "--tls-key-file",
            str(key),
            "--tls-ca-cert-file",
            str(authority.ca_file),
        ),
        *("--tls-auth-clients", "no"),
        tls={"ssl": True, "ssl_ca_certs": str(authority.ca_file), "ssl_check_hostname": False},
    )


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RedisProcess]:
    server = secured(tmp_path_factory.mktemp("encrypted"), authority)
    server.start()
    yield server
    server.kill()


async def test_leases_are_kept_over_tls_with_a_private_authority(encrypted: RedisProcess, authority: Authority) -> None:
    store = RedisLeases(encrypted.url, ca_file=authority.ca_file)
    await exercise(store)
    await store.close()


async def test_a_certificate_that_is_not_trusted_is_said(encrypted: RedisProcess, tmp_path: Path) -> None:
    for ca_file in (None, Authority(tmp_path, "strangers").ca_file):
        error = await failing(RedisLeases(encrypted.url, ca_file=ca_file))
        assert (error.code, "certificate is not trusted" in error.message) == (Code.LEASES_UNAVAILABLE, True), error


async def test_a_certificate_for_another_name_is_said(tmp_path: Path, authority: Authority) -> None:
    server = secured(tmp_path, authority, address="127.0.0.2")
    server.start()
    try:
        error = await failing(RedisLeases(server.url, ca_file=authority.ca_file))
        assert "certificate is not trusted" in error.message
        assert "not valid for '127.0.0.1'" in error.message
    finally:
        server.kill()


async def test_a_missing_or_unreadable_authority_is_said(encrypted: RedisProcess, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for ca_file in (tmp_path / "missing.pem", rubbish):
        error = await failing(RedisLeases(encrypted.url, ca_file=ca_file))
        assert "CA file" in error.message


async def test_a_plain_client_on_a_tls_port_is_told(encrypted: RedisProcess) -> None:
    error = await failing(RedisLeases(encrypted.url.replace("rediss", "redis"), password=SECRET))
    assert isinstance(error, UnavailableError)
    assert "rediss://" in error.message


async def test_a_tls_client_on_a_plain_port_is_told(guarded: RedisProcess) -> None:
    url = guarded.url.replace("redis", "rediss")
    error = await failing(RedisLeases(url, password=SECRET, timeout=timedelta(seconds=0.5)))
    assert isinstance(error, UnavailableError)
    assert "TLS" in error.message


async def test_a_secured_server_that_stands_still_holds_nobody_up(tmp_path: Path, authority: Authority) -> None:
    server = secured(tmp_path, authority)
    server.start()
    try:
        store = RedisLeases(server.url, ca_file=authority.ca_file, timeout=timedelta(seconds=0.3))
        await store.inspect(SCOPE)
        server.stop()
        with pytest.raises(UnavailableError):
            await store.inspect(SCOPE)
        server.go_on()
        patient = RedisLeases(server.url, ca_file=authority.ca_file, timeout=timedelta(seconds=10))
        await exercise(patient)
        server.stop()
        await asyncio.wait_for(patient.close(), 5)
        await asyncio.wait_for(store.close(), 5)
    finally:
        server.kill()


# --- addresses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "localhost:6379",
        "redis://",
        "redis://:6379",
        "redis://host:port",
        "redis://host:99999",
        "redis://host/name",
        "redis://host/0/1",
        "redis://host?db=1",
        f"redis://user:{SECRET}@host",
        f"redis://:{SECRET}@host:6379/0",
        f"redis://user:{SECRET}@[::1",
    ],
)
def test_an_address_that_cannot_be_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidContractError) as caught:
        RedisLeases(url)
    assert caught.value.code is Code.INVALID_SETTINGS
    assert SECRET not in f"{caught.value}{caught.value.details}"
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("prefix", ["", "{", "a{b}", "with space", ":x", "ü", "x" * 129])
def test_a_prefix_that_would_break_the_keys_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidContractError) as caught:
        RedisLeases("redis://host", prefix=prefix)
    assert caught.value.code is Code.INVALID_SETTINGS


def test_an_authority_for_a_plain_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidContractError):
        RedisLeases("redis://host", ca_file=tmp_path / "ca.pem")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "redis://localhost:1", "redis://no-such-host.invalid:6379"])
async def test_an_address_where_nothing_is_is_said(url: str) -> None:
    error = await failing(RedisLeases(url, password=SECRET))
    assert (type(error), error.code) == (UnavailableError, Code.LEASES_UNAVAILABLE)
    assert "check the address" in error.message


async def test_databases_are_apart_and_those_that_are_not_there_are_said(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path)
    server.start()
    try:
        one, other = RedisLeases(f"{server.url}/1"), RedisLeases(f"{server.url}/2")
        assert (await one.acquire(SCOPE, ALICE, lease_id=LeaseId.random(), ttl=TTL)).fence == 1
        assert await other.inspect(SCOPE) is None
        await one.close()
        await other.close()
        error = await failing(RedisLeases(f"{server.url}/99"))
        assert (error.code, "no database of this number" in error.message) == (Code.INVALID_SETTINGS, True)
    finally:
        server.kill()


# --- clusters -----------------------------------------------------------------------------------------------------------


async def test_one_node_with_all_slots_keeps_leases_and_one_without_says_so(tmp_path: Path) -> None:
    server = RedisProcess(tmp_path, "--cluster-enabled", "yes")
    server.start()
    try:
        store = RedisLeases(server.url)
        with pytest.raises(UnavailableError, match="cluster"):
            await exercise(store)
        server.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")

        async with asyncio.timeout(10):
            while "cluster_state:ok" not in server.command("CLUSTER", "INFO"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await exercise(store)
        (key,) = server.command("KEYS", "*")
        assert server.command("CLUSTER", "KEYSLOT", key) == server.command("CLUSTER", "KEYSLOT", SCOPE)
        await store.close()
    finally:
        server.kill()


@contextmanager
def cluster_of(folder: Path, *slots: tuple[int, int]) -> Iterator[list[RedisProcess]]:
    """Nodes that know each other, each with a range of slots."""
    nodes = [RedisProcess(folder / str(number), "--cluster-enabled", "yes") for number in range(len(slots))]
    try:
        for epoch, (node, (first, last)) in enumerate(zip(nodes, slots, strict=True), 1):
            node.start()
            node.command("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            node.command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in nodes[1:]:
            nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port)
        yield nodes
    finally:
        for node in nodes:
            node.kill()


async def test_scopes_are_found_on_any_node_of_a_cluster_and_followed_when_they_move(tmp_path: Path) -> None:
    with cluster_of(tmp_path, (0, 8_191), (8_192, 16_383)) as nodes:
        async with asyncio.timeout(20):
            while any("cluster_state:ok" not in node.command("CLUSTER", "INFO") for node in nodes):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        store = RedisLeases(nodes[0].url)
        scopes = [Scope(f"scope-{number}") for number in range(20)]
        grants = [await store.acquire(scope, ALICE, lease_id=LeaseId.random(), ttl=TTL) for scope in scopes]
        assert all(node.command("DBSIZE") for node in nodes), "both have some"
        assert [await store.inspect(scope) for scope in scopes] == grants
        assert "lease store" not in worse({f.check: f async for f in store.examine(scopes)})
        here, there = nodes[1], nodes[0]
        key, other, *_ = here.command("KEYS", "*")
        scope, lost = (Scope(name.split("{")[1].split("}")[0]) for name in (key, other))
        here.command("DEL", key)  # as a migration does once the other node has it
        owner = there.command("CLUSTER", "MYID")
        for node in (there, here):
            node.command("CLUSTER", "SETSLOT", here.command("CLUSTER", "KEYSLOT", scope), "NODE", owner)
        moved = await store.acquire(scope, BOB, lease_id=LeaseId.random(), ttl=TTL, floor=7)
        assert moved.fence == 8
        assert there.command("EXISTS", key) == 1
        here.kill()
        assert await store.inspect(scope) == moved
        with pytest.raises(UnavailableError):
            await store.inspect(lost)
        await store.close()


async def test_nodes_that_send_a_call_in_circles_are_given_up(prefix: str) -> None:
    async with answering(b"-MOVED 3999 :1\r\n") as url:
        port = url.rpartition(":")[2]
    async with answering(f"-MOVED 3999 127.0.0.1:{port}\r\n".encode(), int(port)) as url:
        error = await failing(RedisLeases(url, prefix=prefix))
        assert (error.code, "do not agree" in error.message) == (Code.LEASES_UNAVAILABLE, True)


# --- answers that are hard to get ---------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(answer: bytes, port: int = 0) -> AsyncIterator[str]:
    """A server that says the same to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            writer.write(answer)
            if not answer:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


ANSWERS: list[tuple[str, Code, str]] = [
    ("-ASK 3999 127.0.0.1:6381", Code.STORAGE_BUSY, "moving"),
    ("-TRYAGAIN Multiple keys request during rehashing of slot", Code.STORAGE_BUSY, "moving"),
    ("-CLUSTERDOWN Hash slot not served", Code.LEASES_UNAVAILABLE, "cluster is down"),
    ("-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.", Code.LEASES_UNAVAILABLE, "primary"),
    ("-NOREPLICAS Not enough good replicas to write.", Code.LEASES_UNAVAILABLE, "min-replicas-to-write"),
    ("-DENIED Redis is running in protected mode", Code.NOT_PERMITTED, "protected mode"),
    ("-LOADING Redis is loading the dataset in memory", Code.STORAGE_BUSY, "loading"),
    ("-ERR max number of clients reached", Code.STORAGE_BUSY, "maxclients"),
    ("-ERR unknown command `EVALSHA`, with args beginning with:", Code.NOT_PERMITTED, "does not know a command"),
    ("-ERR something new", Code.LEASES_UNAVAILABLE, "refused the call"),
    # As servers before Redis 7 wrap what goes wrong inside of a script.
    (
        "-ERR Error running script (call to f_0123): @user_script:61: @user_script: 61: -READONLY You can't write against a read only replica.",
        Code.LEASES_UNAVAILABLE,
        "replica",
    ),
    (
        "-ERR Error running script (call to f_0123): @user_script:61: -OOM command not allowed when used memory > 'maxmemory'.",
        Code.STORAGE_FULL,
        "maxmemory",
    ),
    (
        "-ERR Error running script (call to f_0123): @user_script:30: WRONGTYPE Operation against a key holding the wrong kind of value",
        Code.DAMAGED_LEASE,
        "another kind of data",
    ),
]


@pytest.mark.parametrize(("answer", "code", "said"), ANSWERS, ids=lambda value: str(value)[:60])
async def test_an_error_of_the_server_is_translated(answer: str, code: Code, said: str) -> None:
    async with answering(f"{answer}\r\n".encode()) as url:
        error = await failing(RedisLeases(url))
    assert (error.code, said in error.message) == (code, True), error
    assert isinstance(error, InvalidContractError | UnavailableError | IntegrityError)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"220 mail.example.com ESMTP\r\n",
        b"\x15\x03\x03\x00\x02\x02\x28\r\n",
        b"$-1\r\n",
        b":7\r\n",
        b"+OK\r\n",
        b"*1\r\n:1\r\n",
        b"*1\r\n$5\r\nother\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*many\r\n",
        b"$many\r\n",
        b"-\r\n",
        b"-MOVED\r\n",
        b"-ASK nowhere\r\n",
        b"*5\r\n$5\r\nlease\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n",
        b"*3\r\n$7\r\ngranted\r\n$1\r\nx\r\n$1\r\n1\r\n",
        b"*3\r\n$4\r\nheld\r\n$3\r\nbob\r\n$1\r\nx\r\n",
        b"*2\r\n$7\r\nrenewed\r\n$1\r\nx\r\n",
        b"\xff\xfe\xfd\r\n",
    ],
    ids=repr,
)
@pytest.mark.parametrize("operation", ["acquire", "renew", "release", "inspect"])
async def test_what_is_no_redis_is_an_unavailable_lease_store(answer: bytes, operation: str) -> None:
    async with answering(answer) as url:
        store = RedisLeases(url, timeout=timedelta(seconds=0.5))
        grant = Grant(SCOPE, ALICE, Fence(1), LeaseId.random(), 0.0)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "acquire": lambda: store.acquire(SCOPE, ALICE, lease_id=LeaseId.random(), ttl=TTL),
            "renew": lambda: store.renew(grant, ttl=TTL),
            "release": lambda: store.release(grant),
            "inspect": lambda: store.inspect(SCOPE),
        }
        with pytest.raises(UnavailableError, match=f"lease store {url}"):
            await calls[operation]()
        await store.close()


# --- what doctor says ---------------------------------------------------------------------------------------------------


async def findings(store: RedisLeases, *scopes: Scope) -> dict[str, Finding]:
    found = [finding async for finding in store.examine(scopes)]
    await store.close()
    assert all(finding.remedy for finding in found if finding.level is not Level.GOOD)
    assert len({finding.check for finding in found}) == len(found)
    return {finding.check: finding for finding in found}


def worse(found: dict[str, Finding]) -> dict[str, Level]:
    return {check: finding.level for check, finding in found.items() if finding.level is not Level.GOOD}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


async def test_a_server_that_is_set_up_well_has_good_findings_only(server: RedisProcess) -> None:
    server.command("CONFIG", "SET", "appendonly", "yes")
    store = RedisLeases(server.url)
    grant = await store.acquire(SCOPE, ALICE, lease_id=LeaseId.random(), ttl=TTL)
    before = server.command("DBSIZE"), server.command("HGETALL", server.command("KEYS", "*")[0])
    found = await findings(store, SCOPE, Scope("free"))
    assert worse(found) == {}
    assert re.search(r"Redis \d+\.\d+", found["lease store"].message)
    assert f"held by alice under fence {grant.fence}" in found["lease of orders"].message
    assert found["lease of free"].message == "free"
    assert (server.command("DBSIZE"), server.command("HGETALL", server.command("KEYS", "*")[0])) == before


async def test_memory_that_may_be_evicted_and_no_persistence_are_warned_of(server: RedisProcess) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert worse(await findings(RedisLeases(server.url))) == {
        "lease store memory": Level.WARNING,
        "lease store persistence": Level.WARNING,
    }
    server.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    server.command("CONFIG", "SET", "save", "3600 1")
    assert worse(await findings(RedisLeases(server.url))) == {}


async def test_a_replica_is_a_problem(server: RedisProcess, tmp_path: Path) -> None:
    replica = RedisProcess(tmp_path / "replica", "--replicaof", "127.0.0.1", str(server.port))
    replica.start()
    try:
        assert worse(await findings(RedisLeases(replica.url)))["lease store role"] is Level.PROBLEM
    finally:
        replica.kill()


async def test_a_server_that_does_not_answer_is_one_finding() -> None:
    found = await findings(RedisLeases("redis://127.0.0.1:1"), SCOPE)
    assert worse(found) == {"lease store": Level.PROBLEM}
    assert "nothing listens there" in found["lease store"].message


async def test_a_lease_that_cannot_be_read_is_a_problem_of_its_scope(server: RedisProcess) -> None:
    server.command("SET", "journal:{orders}:lease", "rubbish")
    assert worse(await findings(RedisLeases(server.url), SCOPE, Scope("free")))["lease of orders"] is Level.PROBLEM


async def test_the_rights_of_an_examiner_suffice(guarded: RedisProcess, prefix: str) -> None:
    store = RedisLeases(allow(guarded, "examiner", prefix, EXAMINER_RIGHTS), password=SECRET, prefix=prefix)
    assert worse(await findings(store, SCOPE)) == {"lease store persistence": Level.WARNING}


async def test_what_may_not_be_read_is_said_to_be_unchecked(guarded: RedisProcess, prefix: str) -> None:
    store = RedisLeases(allow(guarded, "holder", prefix, RIGHTS), password=SECRET, prefix=prefix)
    found = await findings(store, SCOPE)
    assert worse(found) == dict.fromkeys(
        ("lease store role", "lease store memory", "lease store persistence"), Level.WARNING
    )
    assert all("could not be" in found[check].message for check in worse(found))


@pytest.mark.parametrize("right", ["evalsha", "time", "exists", "hmget", "hset", "hincrby"])
async def test_a_right_that_is_missing_is_found(guarded: RedisProcess, prefix: str, right: str) -> None:
    url = allow(guarded, "poor", prefix, tuple(other for other in EXAMINER_RIGHTS if other != right))
    found = await findings(RedisLeases(url, password=SECRET, prefix=prefix))
    assert found["lease store rights"].level is Level.PROBLEM
    assert right in found["lease store rights"].message


async def test_a_missing_right_to_run_scripts_or_a_wrong_password_is_found(guarded: RedisProcess, prefix: str) -> None:
    url = allow(guarded, "poor", prefix, tuple(other for other in EXAMINER_RIGHTS if other != "eval"))
    found = await findings(RedisLeases(url, password=SECRET, prefix=prefix))
    assert "lacks a right" in found["lease store rights"].message
    assert worse(await findings(RedisLeases(url, password="wrong", prefix=prefix))) == {"lease store": Level.PROBLEM}
