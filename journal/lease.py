"""A lease as its holder sees it: authority to write, kept alive in the background, honest about its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from journal.errors import Code, FencedError, JournalError, LeaseLostError, UnavailableError, failure
from journal.identities import Fence, HolderId, LeaseId, Scope
from journal.ports import Grant, Leases

RENEWALS_PER_TTL: Final = 3


class Lease:
    """Exclusive right to write one scope, until it is released, superseded or runs out.

    Records are built with it and journal operations take it. It renews itself; `lost` turns true, and `check` raises,
    as soon as a newer lease is seen in the log or renewal could not be confirmed in time. The journal itself goes by
    the log alone: what is written under a lease that ran out but was not superseded still counts.
    """

    def __init__(self, grant: Grant, ttl: timedelta, leases: Leases, binding: object, granted_at: float) -> None:
        self._grant = grant
        self._leases = leases
        self._ttl = ttl
        self._binding = binding
        self._deadline = granted_at + ttl.total_seconds()
        self._lost: asyncio.Event = asyncio.Event()
        self._error: JournalError | None = None
        self._renewal: asyncio.Task[None] | None = None
        self.in_doubt = False
        self.released = False

    @property
    def scope(self) -> Scope:
        """Scope that may be written."""
        return self._grant.scope

    @property
    def holder(self) -> HolderId:
        """Label of the holder."""
        return self._grant.holder

    @property
    def fence(self) -> Fence:
        """Fence that every event under this lease carries."""
        return self._grant.fence

    @property
    def lease_id(self) -> LeaseId:
        """Random token of this lease."""
        return self._grant.lease_id

    @property
    def ttl(self) -> timedelta:
        """Duration without renewal."""
        return self._ttl

    @property
    def grant(self) -> Grant:
        """The lease as the store last granted it."""
        return self._grant

    def __eq__(self, other: object) -> bool:
        """Equal when scope, holder, fence and token are, and both are bound to one journal."""
        if not isinstance(other, Lease):
            return NotImplemented
        return self._binding is other._binding and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"Lease(scope={self.scope}, holder={self.holder}, fence={self.fence})"

    def _identity(self) -> tuple[Scope, HolderId, Fence, LeaseId]:
        return self.scope, self.holder, self.fence, self.lease_id

    def is_bound_to(self, binding: object) -> bool:
        """Whether the journal that issued it is `binding`."""
        return self._binding is binding

    @property
    def lost(self) -> bool:
        """Whether this lease is known, or must be taken, to be over."""
        if self._error is None and not self.released and time.monotonic() >= self._deadline:
            self.lose(self._expired())
        return self._error is not None

    async def wait_lost(self) -> None:
        """Return once the lease is lost."""
        await self._lost.wait()

    def check(self) -> None:
        """Refuse to begin another effect under a lease that is over.

        Raises:
            FencedError: a newer lease was seen.
            LeaseLostError: renewal was not confirmed in time.
            InvalidContractError: `journal_closed`: it was released.
        """
        if self.released:
            raise failure(Code.CLOSED, f"the lease of scope {self.scope} was released")
        if self.lost and self._error is not None:
            raise self._error

    def lose(self, error: JournalError) -> None:
        """Mark the lease as over, for good; the first reason stays, unless a newer fence becomes known."""
        if self._error is None or (isinstance(error, FencedError) and not isinstance(self._error, FencedError)):
            self._error = error
        self._lost.set()

    def start_renewal(self, confirm: Callable[[], Awaitable[None]]) -> None:
        """Renew in the background; `confirm` looks into the log when the store says that the lease is another's."""
        self._renewal = asyncio.create_task(self._renew(confirm), name=f"renew {self.scope}")

    def end_renewal(self) -> None:
        """Tell the background renewal to end."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def stop_renewal(self) -> None:
        """End the background renewal, and wait until it has ended."""
        self.end_renewal()
        if self._renewal is not None:
            await asyncio.wait([self._renewal])

    async def _renew(self, confirm: Callable[[], Awaitable[None]]) -> None:
        interval = self._ttl.total_seconds() / RENEWALS_PER_TTL
        pause = interval
        while self._error is None:
            await asyncio.sleep(min(pause, max(0.0, self._deadline - time.monotonic())))
            sent_at = time.monotonic()
            if sent_at >= self._deadline:
                self.lose(self._expired())
                return
            try:
                async with asyncio.timeout(self._deadline - sent_at):
                    renewed = await self._leases.renew(self._grant, ttl=self._ttl)
            except (UnavailableError, TimeoutError):
                pause = min(interval, 1.0) / 4
                continue
            except JournalError as error:
                self.lose(error)
                return
            if renewed is None:
                await self._find_successor(confirm)
                return
            self._grant, pause = renewed, interval
            self._deadline = sent_at + self._ttl.total_seconds()

    async def _find_successor(self, confirm: Callable[[], Awaitable[None]]) -> None:
        self.lose(
            LeaseLostError(Code.LEASE_LOST, f"the lease store gave scope {self.scope} to another: acquire it again")
        )
        try:
            await confirm()
        except JournalError as error:
            self.lose(error)

    def _expired(self) -> LeaseLostError:
        return LeaseLostError(
            Code.LEASE_LOST,
            f"the lease of scope {self.scope} was not renewed within {self._ttl.total_seconds():g} s: acquire it again",
        )
