"""Leases in the journal's SQLite file.

Failure model. Holders die, stop and wake up; the file may be copied while a lease is held, restored, or removed. Relied
on for liveness alone: that the clocks of the processes on this machine agree (they are one clock) and that SQLite
commits one transaction at a time. Fences grow from the greater of the row and the caller's floor, so a lost file makes
nobody's old fence valid.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta
from pathlib import Path

from journal.errors import JournalError, LeaseContendedError
from journal.identities import Fence, HolderId, LeaseId, Scope
from journal.ports import Finding, Grant, Level
from journal.sqlite_examination import place, unusable
from journal.sqlite_file import SQLiteThread, damaged, transaction

_MICROS = 1_000_000
_LONGEST_SECONDS = 31 * 86_400  # over what any lease can last
_SELECT = "SELECT fence, lease_id, holder, expires_at_micros, released FROM leases WHERE scope = ?"
_UPSERT = """
INSERT INTO leases (scope, fence, lease_id, holder, expires_at_micros, released) VALUES (?, ?, ?, ?, ?, 0)
ON CONFLICT (scope) DO UPDATE SET fence = excluded.fence, lease_id = excluded.lease_id, holder = excluded.holder,
    expires_at_micros = excluded.expires_at_micros, released = 0
"""
_RENEW = """
UPDATE leases SET expires_at_micros = ? WHERE scope = ? AND fence = ? AND lease_id = ? AND released = 0
"""
_RELEASE = "UPDATE leases SET released = 1 WHERE scope = ? AND fence = ? AND lease_id = ? AND released = 0"


class SQLiteLeases:
    """`Leases` on the journal's SQLite file. `clock` gives UTC seconds since 1970."""

    def __init__(
        self,
        path: Path | str,
        *,
        create: bool = True,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._thread = SQLiteThread(Path(path), create=create, read_only=read_only)
        self._clock = clock

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

        def take(connection: sqlite3.Connection) -> Grant:
            now = int(self._clock() * _MICROS)
            row = connection.execute(_SELECT, (str(scope),)).fetchone()
            expires = now + ttl // timedelta(microseconds=1)
            issued = 0
            if row is not None:
                issued, held_by, name, until, released = row
                if held_by == lease_id and not released:
                    connection.execute(_RENEW, (expires, str(scope), issued, held_by))
                    return Grant(scope, holder, Fence(issued), lease_id, expires / _MICROS)
                if not released and until > now and held_by != replaces:
                    raise _contended(scope, name, until / _MICROS)
            fence = Fence(max(issued, floor) + 1)
            connection.execute(_UPSERT, (str(scope), int(fence), bytes(lease_id), str(holder), expires))
            return Grant(scope, holder, fence, lease_id, expires / _MICROS)

        return await self._thread.call(lambda connection: transaction(connection, take))

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        """See `Leases.renew`."""

        def extend(connection: sqlite3.Connection) -> Grant | None:
            expires = int(self._clock() * _MICROS) + ttl // timedelta(microseconds=1)
            changed = connection.execute(_RENEW, (expires, str(grant.scope), int(grant.fence), bytes(grant.lease_id)))
            if not changed.rowcount:
                return None
            return Grant(grant.scope, grant.holder, grant.fence, grant.lease_id, expires / _MICROS)

        return await self._thread.call(lambda connection: transaction(connection, extend))

    async def release(self, grant: Grant) -> bool:
        """See `Leases.release`."""
        key = (str(grant.scope), int(grant.fence), bytes(grant.lease_id))
        return await self._thread.call(
            lambda connection: transaction(connection, lambda c: c.execute(_RELEASE, key).rowcount > 0)
        )

    async def inspect(self, scope: Scope) -> Grant | None:
        """See `Leases.inspect`."""
        row = await self._thread.call(lambda connection: connection.execute(_SELECT, (str(scope),)).fetchone())
        if row is None or row[4]:
            return None
        fence, lease_id, holder, expires, _ = row
        try:
            return Grant(scope, HolderId(holder), Fence(fence), LeaseId(lease_id), expires / _MICROS)
        except JournalError as error:
            raise damaged(self._thread.path, f"it has an impossible lease: {error.message}") from error

    async def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:
        """See `Examined.examine`."""
        path = self._thread.path
        try:
            for finding in await self._thread.call(lambda _: list(place("lease store", path))):
                yield finding
            for scope in scopes:
                yield self._held(scope, await self.inspect(scope))
        except JournalError as error:
            yield unusable("lease store", error)

    def _held(self, scope: Scope, grant: Grant | None) -> Finding:
        check = f"lease of {scope}"
        if grant is None:
            return Finding(check, Level.GOOD, "free")
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(grant.expires_at))
        who = f"held by {grant.holder} under fence {grant.fence} until {until} UTC"
        if grant.expires_at - self._clock() > _LONGEST_SECONDS:
            remedy = "see whether this machine's clock was set back, and correct it"
            return Finding(check, Level.WARNING, f"{who}, longer than any lease lasts", remedy)
        return Finding(check, Level.GOOD, who)

    async def close(self) -> None:
        """See `Leases.close`."""
        await self._thread.close()


def _contended(scope: Scope, holder: str, expires_at: float) -> LeaseContendedError:
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(expires_at))
    return LeaseContendedError(
        f"scope {scope} is leased by {holder} until {until} UTC", holder=holder, expires_at=expires_at, scope=str(scope)
    )
