"""The adapters that the contract suites run over: everything that is particular to one is here.

A `Site` is one place where an adapter keeps its data. `open` gives a new instance on it, as another process would have,
and closes it at the end of the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import redis

from journal.errors import LeaseContendedError
from journal.leases.redis import RedisLeases
from journal.leases.sqlite import SQLiteLeases
from journal.log.kafka import KafkaLog
from journal.log.sqlite import SQLiteLog
from journal.ports import Grant, Leases, Log
from tests.services import KafkaService, RedisService


class FakeClock:
    """UTC seconds since 1970 that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class RedisClock:
    """The clock of a real Redis. It cannot be moved, so time passes by taking it from every lease that is stored."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    @property
    def now(self) -> float:
        seconds, micros = self._client.time()
        return seconds + micros / 1_000_000

    def advance(self, seconds: float) -> None:
        for key in self._client.scan_iter(f"{self._prefix}:*"):
            self._client.hincrby(key, "expires_at_micros", -round(seconds * 1_000_000))


@dataclass
class LogSite:
    """Where one adapter of `Log` keeps its events."""

    name: str
    url: str
    open: Callable[[], Log]


@dataclass
class LeaseSite:
    """Where one adapter of `Leases` keeps its leases. `forget` loses all of its memory.

    `precision`: how many seconds may pass between two looks at the clock.
    """

    name: str
    clock: FakeClock | RedisClock
    precision: float
    open: Callable[[], Leases]
    forget: Callable[[], Leases]

    def lasts(self, grant: Grant | LeaseContendedError | None, seconds: float) -> bool:
        """Whether a lease ends that many seconds from now."""
        assert grant is not None
        return abs(grant.expires_at - self.clock.now - seconds) <= self.precision


def sqlite_log_site(request: pytest.FixtureRequest, opened: list[Log]) -> LogSite:
    path = request.getfixturevalue("tmp_path") / "log.db"

    def open_sqlite() -> Log:
        opened.append(SQLiteLog(path, poll=timedelta(milliseconds=10)))
        return opened[-1]

    return LogSite("sqlite", f"sqlite:///{path}", open_sqlite)


def kafka_log_site(request: pytest.FixtureRequest, opened: list[Log]) -> LogSite:
    service: KafkaService = request.getfixturevalue("kafka")
    prefix: str = request.getfixturevalue("fresh_prefix")
    replication = service.replication

    def open_kafka() -> Log:
        opened.append(KafkaLog(service.servers, prefix=prefix, replication=replication))
        return opened[-1]

    url = f"kafka://{','.join(service.servers)}?prefix={prefix}&replication={replication}"
    return LogSite("kafka", url, open_kafka)


@pytest.fixture(params=[sqlite_log_site, kafka_log_site], ids=["sqlite", "kafka"])
async def log_site(request: pytest.FixtureRequest) -> AsyncIterator[LogSite]:
    opened: list[Log] = []
    yield request.param(request, opened)
    for log in opened:
        await log.close()


@pytest.fixture
async def log(log_site: LogSite) -> Log:
    return log_site.open()


def sqlite_lease_site(request: pytest.FixtureRequest, opened: list[Leases]) -> LeaseSite:
    folder: Path = request.getfixturevalue("tmp_path")
    clock = FakeClock()
    files = [folder / "leases-0.db"]

    def open_sqlite() -> Leases:
        opened.append(SQLiteLeases(files[-1], clock=clock))
        return opened[-1]

    def forget_sqlite() -> Leases:
        files.append(folder / f"leases-{len(files)}.db")
        return open_sqlite()

    return LeaseSite("sqlite", clock, 0.0, open_sqlite, forget_sqlite)


def redis_lease_site(request: pytest.FixtureRequest, opened: list[Leases]) -> LeaseSite:
    service: RedisService = request.getfixturevalue("redis_server")
    prefix: str = request.getfixturevalue("fresh_prefix")
    url = service.url
    client = redis.Redis.from_url(url)
    request.addfinalizer(client.close)

    def open_redis() -> Leases:
        opened.append(RedisLeases(url, prefix=prefix))
        return opened[-1]

    def forget_redis() -> Leases:
        for key in client.scan_iter(f"{prefix}:*"):
            client.delete(key)
        return open_redis()

    return LeaseSite("redis", RedisClock(client, prefix), 5.0, open_redis, forget_redis)


@pytest.fixture(params=[sqlite_lease_site, redis_lease_site], ids=["sqlite", "redis"])
async def lease_site(request: pytest.FixtureRequest) -> AsyncIterator[LeaseSite]:
    opened: list[Leases] = []
    yield request.param(request, opened)
    for leases in opened:
        await leases.close()


@pytest.fixture
async def leases(lease_site: LeaseSite) -> Leases:
    return lease_site.open()
