"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from journal.codec import Codec
from journal.errors import JournalError
from journal.journal import Journal
from journal.ports import Leases, Log
from tests.places import Cluster, Embedded, Place
from tests.services import KafkaService, RedisService

pytest_plugins = ["tests.hanging", "tests.services.fixtures", "tests.services.summary"]


@pytest.fixture
def journal_file(tmp_path: Path) -> Path:
    """Where a journal's file may be made; there is none yet."""
    return tmp_path / "journal.db"


@pytest.fixture
def embedded_place(journal_file: Path) -> Embedded:
    """A file that is not there yet."""
    return Embedded(journal_file)


@pytest.fixture
def cluster_place(kafka: KafkaService, redis_server: RedisService, fresh_prefix: str) -> Cluster:
    """Kafka and Redis, with nothing under this prefix."""
    return Cluster(kafka.servers, redis_server.url, fresh_prefix, kafka.replication)


@pytest.fixture(params=["embedded", "cluster"])
def place(request: pytest.FixtureRequest) -> Place:
    """Where the journals of a test live: each test runs on every kind of place."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


class OpenJournal(Protocol):
    """Opens a `Journal`, with wrappers around its ports when asked for.

    `at` is another place than the test's, `store` another lease store than the place's. With `late`, every lease of others
    has run out for it.
    """

    def __call__(
        self,
        at: Place | None = None,
        *,
        wrap_log: Callable[[Log], Log] = ...,
        wrap_leases: Callable[[Leases], Leases] = ...,
        store: str = ...,
        late: bool = ...,
        append_timeout: timedelta = ...,
        codec: Codec | None = None,
    ) -> Journal: ...


@pytest.fixture
async def open_journal(place: Place) -> AsyncIterator[OpenJournal]:
    """Makes journals at one place, each like one of another process; closes them at the end."""
    opened: list[Journal] = []

    def make(
        at: Place | None = None,
        *,
        wrap_log: Callable[[Log], Log] = lambda log: log,
        wrap_leases: Callable[[Leases], Leases] = lambda leases: leases,
        store: str = "",
        late: bool = False,
        append_timeout: timedelta = timedelta(seconds=5),
        codec: Codec | None = None,
    ) -> Journal:
        at = at or place
        log, leases = wrap_log(at.log()), wrap_leases(at.leases(store=store, late=late))
        opened.append(Journal(log, leases, codec=codec, append_timeout=append_timeout))
        return opened[-1]

    yield make
    for journal in opened:
        with suppress(JournalError):  # a test may have left it with a scope that cannot be read
            await journal.close()
