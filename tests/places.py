"""Places where a journal can live: one SQLite file, or Kafka and Redis. As text, a place can be told to another process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import redis

from journal.codec import Codec
from journal.identities import HolderId, LeaseId, Scope
from journal.journal import Journal
from journal.leases.redis import RedisLeases
from journal.leases.sqlite import SQLiteLeases
from journal.log.kafka import KafkaLog
from journal.log.sqlite import SQLiteLog
from journal.ports import Grant, Leases, Log

POLL: Final = timedelta(milliseconds=10)
_LATE: Final = 4_000_000_000.0


@dataclass(frozen=True)
class Embedded:
    """One SQLite file; its leases may be in another one."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def log(self) -> Log:
        return SQLiteLog(self.path, poll=POLL)

    def leases(self, *, store: str = "", late: bool = False) -> Leases:
        path = self.path.with_name(store) if store else self.path
        return SQLiteLeases(path, clock=(lambda: _LATE) if late else time.time)

    def sibling(self, name: str) -> Embedded:
        """Another place of this kind, with nothing in it."""
        return Embedded(self.path.with_name(f"{name}.db"))


@dataclass(frozen=True)
class Cluster:
    """Topics and keys under one prefix."""

    servers: Sequence[str]
    redis_url: str
    prefix: str
    replication: int = 1

    def __str__(self) -> str:
        return " ".join(["cluster", self.redis_url, self.prefix, str(self.replication), *self.servers])

    def log(self) -> Log:
        return KafkaLog(self.servers, prefix=self.prefix, replication=self.replication)

    def leases(self, *, store: str = "", late: bool = False) -> Leases:
        prefix = f"{self.prefix}{store}"
        leases = RedisLeases(self.redis_url, prefix=prefix)
        return LateLeases(leases, self.redis_url, prefix) if late else leases

    def sibling(self, name: str) -> Cluster:
        """Another place of this kind, with nothing in it."""
        return replace(self, prefix=f"{self.prefix}-{name}")


Place = Embedded | Cluster


def place_of(text: str) -> Place:
    """The place whose text this is."""
    if text.startswith("cluster "):
        _, redis_url, prefix, replication, *servers = text.split()
        return Cluster(servers, redis_url, prefix, int(replication))
    return Embedded(Path(text))


def journal_at(place: Place, *, late: bool = False, **settings: Any) -> Journal:
    """A journal as another process would open it. With `late`, every lease of others has run out for it."""
    return Journal(place.log(), place.leases(late=late), codec=settings.pop("codec", None) or Codec(), **settings)


class LateLeases:
    """Leases of a caller who comes so late that all leases of others have run out: Redis's clock cannot be moved."""

    def __init__(self, inner: RedisLeases, url: str, prefix: str) -> None:
        self._inner = inner
        self._client = redis.Redis.from_url(url)
        self._prefix = prefix
        self._own: set[LeaseId] = set()

    async def acquire(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        lease_id: LeaseId,
        ttl: timedelta,
        floor: int = 0,
        replaces: LeaseId | None = None,
    ) -> Grant:
        stored = await self._inner.inspect(scope)
        if stored is not None and stored.lease_id not in self._own:
            for key in self._client.scan_iter(f"{self._prefix}:*{{{scope}}}*"):
                self._client.hset(key, "expires_at_micros", 1)
        self._own.add(lease_id)
        return await self._inner.acquire(scope, holder, lease_id=lease_id, ttl=ttl, floor=floor, replaces=replaces)

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        return await self._inner.renew(grant, ttl=ttl)

    async def release(self, grant: Grant) -> bool:
        return await self._inner.release(grant)

    async def inspect(self, scope: Scope) -> Grant | None:
        return await self._inner.inspect(scope)

    async def close(self) -> None:
        self._client.close()
        await self._inner.close()
