"""The lease store that nobody named: for those who only read a log, and need none."""

# ruff: noqa: ARG002  (every use is refused, whatever it asks for)

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import timedelta

from journal.errors import JournalError
from journal.identities import HolderId, LeaseId, Scope
from journal.ports import Finding, Grant, Level


class MissingLeases:
    """`Leases` of which every use fails with the error that `why` makes."""

    def __init__(self, why: Callable[[], JournalError]) -> None:
        self._why = why

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
        raise self._why()

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        """See `Leases.renew`."""
        raise self._why()

    async def release(self, grant: Grant) -> bool:
        """See `Leases.release`."""
        raise self._why()

    async def inspect(self, scope: Scope) -> Grant | None:
        """See `Leases.inspect`."""
        raise self._why()

    async def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:
        """See `Examined.examine`."""
        yield Finding("lease store", Level.WARNING, "none is named: nothing can be written", self._why().message)

    async def close(self) -> None:
        """See `Leases.close`."""
