"""What the journal needs from the outside: read this first.

Two ports: a log that keeps bytes in one order a scope, and a lease store that hands out fences. Adapters move bytes and
know nothing of what they mean. Their docstrings are the contract, `Raises:` says what the caller knows afterwards, and
one suite of contract tests holds every adapter to them.

Neither port is trusted with safety. A log may confirm what it lost the answer to, deliver an append late or twice, and
a lease store may forget: admission decides from the log's order alone. What is relied on is written down here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, Protocol

from journal.identities import Fence, HolderId, LeaseId, Position, Scope


class Outgoing(NamedTuple):
    """One event to append: its exact bytes and the MAC to keep beside it."""

    data: bytes
    mac: bytes | None = None


class StoredEvent(NamedTuple):
    """One event as the log holds it."""

    position: Position
    data: bytes
    mac: bytes | None


class Log(Protocol):
    """An append-only log with one total order a scope.

    Relied on: what was read once at a position is read there for ever; positions grow in the order of reading; events
    of one append keep their order and are next to each other or not there.
    """

    async def create(self, scope: Scope) -> None:
        """Make an empty log for `scope`, durable when this returns. Does nothing when there is one."""
        ...

    async def scopes(self) -> Sequence[Scope]:
        """All scopes that have a log, sorted."""
        ...

    def append(self, scope: Scope, events: Sequence[Outgoing]) -> Awaitable[None]:
        """Append events in order; of two calls, those of the first come first, whether or not it was awaited.

        The awaitable (a coroutine will do) is done when the log confirmed; the caller still believes only what it reads.

        Raises:
            OutcomeUnknownError: some or all may be in the log, now or later.
            UnavailableError, and every other JournalError: nothing was written, and nothing of this call will be.
            InvalidContractError: `journal_unknown_scope`, `journal_read_only`; nothing was written.
        """
        ...

    def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Read from behind `after` (None: from the start) to the end as it was at the call, in batches.

        Raises:
            HistoryLostError: events that were there are gone.
            InvalidContractError: `journal_unknown_scope`.
            UnavailableError: the log did not answer.
        """
        ...

    def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Read from behind `after` and go on for ever: an event that is appended here or elsewhere arrives soon.

        Raises as `read` does. Ends when the iterator is closed or the log is.
        """
        ...

    async def end(self, scope: Scope) -> Position | None:
        """Position of the last event, None when there is none. Raises as `read` does."""
        ...

    async def close(self) -> None:
        """Give up connections and threads. Calling it again does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as the store granted it; `expires_at` is the store's clock, UTC seconds since 1970."""

    scope: Scope
    holder: HolderId
    fence: Fence
    lease_id: LeaseId
    expires_at: float


class Leases(Protocol):
    """A store that keeps at most one unexpired lease a scope.

    Wanted, not relied on: that fences grow even past a restart. The caller gives the highest fence of the log as floor,
    and admission voids a fence that does not grow.
    """

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
        """Take the lease with a fence above every one granted before and above `floor`.

        `lease_id` is the caller's token: asking again with the same one gives the same fence back, as long as the lease
        was not taken by another. `replaces` names a lease of the caller's own that this one may take the place of.

        Raises:
            LeaseContendedError: another holds it; says who and until when.
            ResourceLimitError: `migration_execution_fence_exhausted`.
            UnavailableError: the store did not answer; asking again with the same `lease_id` is safe.
        """
        ...

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        """Make the lease last `ttl` from now; None when it is no longer this holder's. Raises UnavailableError."""
        ...

    async def release(self, grant: Grant) -> bool:
        """Free the scope if exactly this lease holds it; anything else is left alone. Says whether it was freed."""
        ...

    async def inspect(self, scope: Scope) -> Grant | None:
        """The lease as the store has it, expired or not; None when it was released or never taken."""
        ...

    async def close(self) -> None:
        """Give up connections and threads. Calling it again does nothing."""
        ...
