"""Leases in Redis: one small script an operation, one hash a scope.

Failure model. Redis may lose what it knew (a restart without persistence, an old snapshot, a replica that lagged when it
took over, FLUSHALL), answer late, twice (to a call that is made again) or not at all, and give one lease to two holders
on the two sides of a split. Holders die, stop and wake up. Callers are cancelled at any point.

Relied on, for liveness alone: that a script is one step, and that Redis's own clock, the only one that decides when a
lease ends, does not jump. What is relied on for safety is none of it: two holders at once, or a fence that was issued
before, are voided by admission. Fences grow all the same past any loss of memory, since the caller gives the highest one
of the log as a floor.

Every script is idempotent, so an answer that was lost is asked for once more (`redis_connections`): an acquisition is
known by its lease id, a release by a token. Every call has one deadline for all that it does, and a caller who is
cancelled leaves a call that comes to its end, not half an answer for the next one.

Deliberately not: no keys that expire (a hash remembers its fence after the lease is over; it is some 150 bytes a scope),
no Redlock over several servers (it would make two holders rarer, which is not what safety rests on here), no WAIT for
replicas (a lost grant costs its holder a renewal that is refused, and nothing else), no waiting or polling in here
(`acquisition` does it).

The key of scope `orders` is `journal:{orders}:lease` under the default prefix: the braces make everything of one scope
live on one node of a cluster. The address may be any node's: a node that does not have a scope says which one does, which
is remembered until it fails. `RIGHTS` are the least that a user needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Final

from redis.exceptions import NoScriptError

from journal.errors import Code, JournalError, LeaseContendedError, UnavailableError, failure
from journal.identities import MAX_FENCE, Fence, HolderId, LeaseId, Scope
from journal.leases.redis_connections import Address, Ask, RedisConnections
from journal.leases.redis_errors import MovedError
from journal.leases.redis_examination import examined
from journal.ports import Finding, Grant

RIGHTS: Final = ("evalsha", "eval", "time", "exists", "hmget", "hset", "hincrby")
"""Commands that a user must be allowed, on the keys `<prefix>:*`."""
EXAMINER_RIGHTS: Final = (*RIGHTS, "info", "config|get")
"""The same, and what `journal doctor` reads; what it may not read it says that it could not check."""

_MICROS: Final = 1_000_000
_MAX_TTL_MICROS: Final = 10**18  # added to the time of day it still fits into the 64 bits of HINCRBY
_MOVES: Final = 3  # from node to node for one call: more than one are rare, and many are a cluster at odds with itself
_PREFIX: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Script:
    text: str
    digest: str

    @classmethod
    def load(cls, name: str) -> _Script:
        text = files("journal.leases").joinpath(f"{name}.lua").read_text("utf-8")
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


_ACQUIRE: Final = _Script.load("acquire")
_RENEW: Final = _Script.load("renew")
_RELEASE: Final = _Script.load("release")
_INSPECT: Final = _Script.load("inspect")
_RIGHTS: Final = _Script.load("rights")


class RedisLeases:
    """`Leases` on one Redis: `redis://[user@]host[:port][/database]`, or `rediss://` with TLS.

    `ca_file` is trusted beside the system's certificates, `prefix` begins the keys, `timeout` bounds every call.
    Raises `journal_invalid_settings` for an address or prefix that cannot be.
    """

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        ca_file: Path | None = None,
        prefix: str = "journal",
        timeout: timedelta = timedelta(seconds=2),
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise failure(
                Code.INVALID_SETTINGS,
                f"prefix {prefix!r:.150} must be 1 to 128 of A-Z a-z 0-9 . _ : - and start with a letter or digit",
            )
        self._prefix = prefix
        self._connections = RedisConnections(Address.parse(url), password=password, ca_file=ca_file, timeout=timeout)
        self._nodes = {self._connections.address: self._connections}
        self._homes: dict[Scope, RedisConnections] = {}

    def __repr__(self) -> str:
        return f"RedisLeases({str(self._connections.address)!r}, prefix={self._prefix!r})"

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
        """See `Leases.acquire`."""
        lowest = min(max(floor, 0), MAX_FENCE)
        answer = await self._run(
            _ACQUIRE, scope, str(lease_id), str(holder), _micros(ttl), str(lowest), str(replaces or "")
        )
        match answer:
            case ["granted", fence, expires]:
                return Grant(scope, holder, Fence(self._number(fence)), lease_id, self._number(expires) / _MICROS)
            case ["held", other, expires]:
                raise _contended(scope, other, self._number(expires) / _MICROS)
            case ["exhausted"]:
                raise failure(Code.FENCE_EXHAUSTED, f"the range of fences of scope {scope} is exhausted")
            case ["damaged"]:
                raise self._damaged(scope)
            case _:
                raise self._not_redis()

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        """See `Leases.renew`."""
        answer = await self._run(_RENEW, grant.scope, str(grant.lease_id), str(int(grant.fence)), _micros(ttl))
        match answer:
            case ["renewed", expires]:
                return replace(grant, expires_at=self._number(expires) / _MICROS)
            case ["lost"]:
                return None
            case _:
                raise self._not_redis()

    async def release(self, grant: Grant) -> bool:
        """See `Leases.release`."""
        token = secrets.token_hex(16)
        answer = await self._run(_RELEASE, grant.scope, str(grant.lease_id), str(int(grant.fence)), token)
        match answer:
            case ["freed"]:
                return True
            case ["left"]:
                return False
            case _:
                raise self._not_redis()

    async def inspect(self, scope: Scope) -> Grant | None:
        """See `Leases.inspect`. Raises `journal_damaged_lease` when the key holds what this package never wrote."""
        match await self._run(_INSPECT, scope):
            case ["none"]:
                return None
            case ["lease", fence, lease_id, holder, expires, released_by]:
                if not _NUMBER.fullmatch(expires) or not _NUMBER.fullmatch(fence):
                    raise self._damaged(scope)
                try:
                    grant = Grant(
                        scope, HolderId(holder), Fence(int(fence)), LeaseId.parse(lease_id), int(expires) / _MICROS
                    )
                except JournalError as error:
                    raise self._damaged(scope) from error
                return None if released_by else grant
            case ["damaged"]:
                raise self._damaged(scope)
            case _:
                raise self._not_redis()

    def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:
        """See `Examined.examine`."""
        return examined(self, self._connections, rights=_RIGHTS.text, prefix=self._prefix, scopes=scopes)

    async def close(self) -> None:
        """See `Leases.close`."""
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    async def _run(self, script: _Script, scope: Scope, *arguments: str) -> list[str]:
        """Run a script, by its digest when the server still has it."""
        operands = (1, self._key(scope), *arguments)

        async def work(ask: Ask) -> object:
            try:
                return await ask("EVALSHA", script.digest, *operands)
            except NoScriptError:  # it was restarted, flushed, or is another one after a failover
                return await ask("EVAL", script.text, *operands)

        answer = await self._call(scope, work)
        if not isinstance(answer, list) or not all(isinstance(item, bytes) for item in answer):
            raise self._not_redis()
        return [item.decode("ascii", "replace") for item in answer]

    async def _call(self, scope: Scope, work: Callable[[Ask], Awaitable[object]]) -> object:
        """Ask the node that has the scope, as far as is known; it may send the call on to another."""
        connections = self._homes.get(scope, self._connections)
        for _ in range(_MOVES):
            try:
                return await connections.call(work)
            except MovedError as moved:
                connections = self._node(moved.host or connections.address.host, moved.port)
                self._homes[scope] = connections
            except UnavailableError:
                self._homes.pop(scope, None)  # the address that was given knows better, maybe
                raise
        raise failure(
            Code.LEASES_UNAVAILABLE,
            f"lease store {self._connections.address}: the nodes of its cluster do not agree on who has scope {scope}: "
            "look at CLUSTER NODES on each, and try again",
        )

    def _node(self, host: str, port: int) -> RedisConnections:
        address = replace(self._connections.address, host=host, port=port)
        if address not in self._nodes:
            self._nodes[address] = self._connections.of_another(address)
        return self._nodes[address]

    def _number(self, text: str) -> int:
        if not _NUMBER.fullmatch(text):
            raise self._not_redis()
        return int(text)

    def _key(self, scope: Scope) -> str:
        return f"{self._prefix}:{{{scope}}}:lease"

    def _damaged(self, scope: Scope) -> JournalError:
        return failure(
            Code.DAMAGED_LEASE,
            f"lease store {self._connections.address}: key {self._key(scope)} holds what was never written there as a "
            "lease: give another prefix, or find who else writes there and delete the key; fences go on above the log's",
            scope=str(scope),
        )

    def _not_redis(self) -> JournalError:
        return failure(
            Code.LEASES_UNAVAILABLE,
            f"lease store {self._connections.address} gives answers that no Redis gives: check the address",
        )


def _micros(ttl: timedelta) -> str:
    return str(min(max(ttl // timedelta(microseconds=1), 0), _MAX_TTL_MICROS))


def _contended(scope: Scope, holder: str, expires_at: float) -> LeaseContendedError:
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(expires_at))
    return LeaseContendedError(
        f"scope {scope} is leased by {holder} until {until} UTC", holder=holder, expires_at=expires_at, scope=str(scope)
    )
