"""Logs that were written already, for those that only read: adapters over events in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from typing import NoReturn

from journal.codec import Codec
from journal.errors import Code, failure
from journal.identities import HolderId, LeaseId, Position, Scope
from journal.journal import Journal
from journal.ports import Grant, Leases, Log, Outgoing, StoredEvent
from tests.factories import SCOPE, Writer


class WrittenLog(Log):
    """One scope with the events that it is given; nothing can be appended."""

    def __init__(self, scope: Scope, events: Sequence[StoredEvent]) -> None:
        self._scope = scope
        self._events = events

    async def create(self, scope: Scope) -> None:
        raise failure(Code.READ_ONLY, "written already")

    async def scopes(self) -> Sequence[Scope]:
        return [self._scope]

    async def append(self, scope: Scope, events: Sequence[Outgoing]) -> None:
        raise failure(Code.READ_ONLY, "written already")

    async def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        yield [event for event in self._events if after is None or event.position > after]

    async def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        yield [event for event in self._events if after is None or event.position > after]

    async def end(self, scope: Scope) -> Position | None:
        return self._events[-1].position if self._events else None

    async def close(self) -> None:
        pass


class NoLeases(Leases):
    """A store in which nothing was ever leased."""

    async def acquire(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        lease_id: LeaseId,
        ttl: timedelta,
        floor: int = 0,
        replaces: LeaseId | None = None,
    ) -> NoReturn:
        raise failure(Code.READ_ONLY, "written already")

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        return None

    async def release(self, grant: Grant) -> bool:
        return False

    async def inspect(self, scope: Scope) -> Grant | None:
        return None

    async def close(self) -> None:
        pass


def stored(data: Sequence[bytes], macs: Sequence[bytes | None] | None = None) -> list[StoredEvent]:
    """Events at positions from 0."""
    macs = macs or [None] * len(data)
    pairs = zip(data, macs, strict=True)
    return [StoredEvent(Position(number), data, mac) for number, (data, mac) in enumerate(pairs)]


def reading(events: Sequence[StoredEvent], *, scope: Scope = SCOPE, codec: Codec | None = None) -> Journal:
    """A journal that reads these events."""
    return Journal(WrittenLog(scope, events), NoLeases(), codec=codec)


def events_of(writer: Writer) -> list[StoredEvent]:
    """What a writer wrote, as a log holds it."""
    return stored(writer.data, writer.macs)
