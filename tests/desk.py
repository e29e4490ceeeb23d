"""A writer of numbered events at a Kafka that fails, and what must hold once it does no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from journal.errors import Code, UnavailableError
from journal.identities import HolderId
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.kafka import KafkaLog
from journal.ports import Leases
from tests.factories import SCOPE
from tests.faults import FaultyLeases, refuse
from tests.numbered import TTL, NumberedWriter, contradictions, numbers_of

ALICE, BOB = HolderId("alice"), HolderId("bob")
SHORT = timedelta(seconds=1.5)
LONG = timedelta(seconds=20)
SLACK_SECONDS = 1.0


class Desk:
    """One writer's journal at `servers`, and readers at `known`, where nothing stands between them and the brokers."""

    def __init__(self, prefix: str, store: Path, known: Sequence[str], servers: Sequence[str]) -> None:
        self.prefix = prefix
        self.store = store
        self.known = known
        self.servers = servers
        self.opened: list[Journal] = []

    async def open(
        self,
        timeout: timedelta = LONG,  # noqa: ASYNC109  (the log's)
        *,
        ttl: timedelta = TTL,
        forgotten: bool = False,
    ) -> NumberedWriter:
        """A writer that has begun; when it is `forgotten`, the lease store answers none of its renewals."""
        store = FaultyLeases(SQLiteLeases(self.store))
        store.on_renew = [refuse(UnavailableError(Code.STORAGE_FAILED, "no answer"))] * 1_000 * forgotten
        self.writer = NumberedWriter(self.journal(self.servers, timeout, store), SCOPE, ALICE, ttl=ttl)
        await self.writer.begin()
        return self.writer

    def log(self, servers: Sequence[str], timeout: timedelta = LONG) -> KafkaLog:
        replication = len(self.known)
        return KafkaLog(servers, prefix=self.prefix, replication=replication, timeout=timeout)

    def journal(self, servers: Sequence[str], timeout: timedelta = LONG, leases: Leases | None = None) -> Journal:
        """A journal as another process would open it."""
        leases = leases or SQLiteLeases(self.store)
        self.opened.append(Journal(self.log(servers, timeout), leases, append_timeout=timeout))
        return self.opened[-1]

    async def check(self) -> None:
        """The writer goes on; nothing is unknown; and everybody reads exactly what it was told."""
        writer = self.writer
        if writer.lease.in_doubt:
            await writer.recover()
        before = len(writer.account.counted)
        await writer.write()
        assert len(writer.account.counted) == before + 1, "the next append counts"
        assert not writer.account.unknown
        reader = self.journal(self.known)
        found = list(contradictions(writer.account, await numbers_of(reader, SCOPE)))
        assert not found, found
        state = await reader.state(SCOPE)
        assert state.canonical() == (await writer.journal.state(SCOPE)).canonical()

    async def written(self) -> Callable[[], Awaitable[None]]:
        """What waits until there is one more event in the log than now."""
        log = self.log(self.known)
        try:
            end = await log.end(SCOPE)
        except BaseException:
            await log.close()
            raise

        async def wait() -> None:
            try:
                async with asyncio.timeout(10):
                    while await log.end(SCOPE) == end:  # noqa: ASYNC110  (the log tells nobody)
                        await asyncio.sleep(0.01)
            finally:
                await log.close()

        return wait


@asynccontextmanager
async def desk_at(
    prefix: str, store: Path, known: Sequence[str], servers: Sequence[str], logged: pytest.LogCaptureFixture
) -> AsyncIterator[Desk]:
    """A desk whose journals are closed at the end; no task of the client library ended with an error unseen."""
    made = Desk(prefix, store, known, servers)
    yield made
    for journal in made.opened:
        await journal.close()
    assert [record.getMessage() for record in logged.records if record.name == "asyncio"] == []


async def stream(writer: NumberedWriter, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Write while it goes on and all is confirmed."""
    account = writer.account

    def not_confirmed() -> int:
        return len(account.unknown) + len(account.unwritten) + len(account.void)

    before = not_confirmed()
    while goes_on() and not_confirmed() == before:
        await writer.write(20)


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
