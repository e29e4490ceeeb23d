"""Taking a lease: granted by the store, announced in the log, and only then a lease.

Failure model. The caller may be cancelled at any await; the store may grant and forget, refuse, or not answer; another
writer may come first at any moment. Whatever happens, either the caller has a lease that the log admitted, or the store
is free of ours, or it frees itself when the time to live is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from journal.control import Control
from journal.errors import Code, FencedError, JournalError, LeaseContendedError, OutcomeUnknownError, failure
from journal.identities import HolderId, LeaseId, Scope
from journal.lease import Lease
from journal.ports import Grant, Leases
from journal.records import LeaseAcquiredRecord
from journal.spine import Spine
from journal.tasks import start
from journal.whereabouts import check_here

_CONTENDED_PAUSE: Final = 0.1
_ATTEMPTS: Final = 20


@dataclass(slots=True)
class Patience:
    """How long to wait for another holder, and whom to tell about it."""

    wait: timedelta | None
    on_wait: Callable[[LeaseContendedError], None] | None = None
    _since: float | None = None
    _told: str | None = None

    def pause(self, error: LeaseContendedError) -> float:
        """Seconds to wait before the next try; raises the error when the time is up."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        left = None if self.wait is None else self._since + self.wait.total_seconds() - now
        if left is not None and left <= 0:
            raise error
        if self.on_wait is not None and self._told != error.holder:
            self._told = error.holder
            self.on_wait(error)
        # Jitter, so that those who wait do not ask in step; capped, because a holder may release early.
        pause = min(_CONTENDED_PAUSE, max(0.005, error.expires_at - time.time()))
        pause *= 0.75 + secrets.randbelow(500) / 1_000
        return pause if left is None else min(pause, left)


@dataclass(frozen=True, slots=True)
class Acquisition:
    """One attempt to become the holder of a scope. `hold` takes the lease over, or raises when it is not wanted any more.

    `freeing` has what still gives leases back when it is over: a caller who is cancelled twice does not wait for it.
    """

    spine: Spine
    store: Leases
    holder: HolderId
    ttl: timedelta
    binding: object
    hold: Callable[[Lease], None]
    freeing: set[asyncio.Task[None]]

    @property
    def scope(self) -> Scope:
        """Scope that is wanted."""
        return self.spine.scope

    async def run(self, control: Control, patience: Patience, replaces: LeaseId | None = None) -> Lease:
        """Ask, announce, and ask again with a greater fence for as long as another event comes first.

        Raises as `Journal.acquire`.
        """
        granted: Grant | None = None
        try:
            for attempt in itertools.count(1):
                control.check()
                # The first time what the tail has brought will do: should the log be further, admission says so.
                state = self.spine.state if attempt == 1 and self.spine.is_following() else await self.spine.catch_up()
                check_here(state)
                lease_id, asked_at = LeaseId.random(), time.monotonic()
                try:
                    granted = await self._ask(lease_id, state.fence, replaces)
                except LeaseContendedError as error:
                    await control.sleep(patience.pause(error))
                    continue
                lease = Lease(granted, self.ttl, self.store, self.binding, asked_at)
                try:
                    await self._announce(lease)
                except (FencedError, OutcomeUnknownError) as error:
                    # Another event came first, or ours is not seen: with a greater fence the next attempt settles it.
                    if attempt >= _ATTEMPTS or _is_forbidden(error):
                        raise
                    replaces = lease_id
                    continue
                self.hold(lease)
                granted = None
                return lease
        finally:
            if granted is not None:  # not held by anybody: leave the scope free
                with contextlib.suppress(JournalError):  # it frees itself in time; what led here matters more
                    await self._finish(self._free(granted))
        raise AssertionError("counting ends nowhere")

    async def _ask(self, lease_id: LeaseId, floor: int, replaces: LeaseId | None) -> Grant:
        """Ask the store; a caller that is cancelled meanwhile leaves no lease behind."""
        asking = start(
            self.store.acquire(
                self.scope, self.holder, lease_id=lease_id, ttl=self.ttl, floor=floor, replaces=replaces
            ),
            f"acquire {self.scope}",
        )
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            with contextlib.suppress(JournalError):
                await self._finish(self._free_when_granted(asking))
            raise

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        task = start(work, f"free {self.scope}")
        self.freeing.add(task)
        task.add_done_callback(self.freeing.discard)
        await asyncio.shield(task)

    async def _free_when_granted(self, asking: asyncio.Task[Grant]) -> None:
        await self._free(await asking)

    async def _free(self, granted: Grant) -> None:
        await self.store.release(granted)

    async def _announce(self, lease: Lease) -> None:
        record = LeaseAcquiredRecord.new(lease.holder, lease.ttl // timedelta(microseconds=1))
        for _ in range(_ATTEMPTS):
            check_here(self.spine.state)  # a copy of a history would admit it, on a head where nobody lives
            try:
                await self.spine.announce(lease.lease_id, lease.fence, record)
            except FencedError:
                state = await self.spine.catch_up()
                if state.fence >= lease.fence:
                    raise
            else:
                return
        raise failure(Code.NOT_WRITTEN, f"scope {lease.scope} is written too fast to take its lease: try again")


def _is_forbidden(error: BaseException) -> bool:
    """Whether the log does not let us write: asking again would not change that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JournalError) and cause.code is Code.NOT_PERMITTED:
            return True
        cause = cause.__cause__
    return False
