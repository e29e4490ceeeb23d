"""What bounds one operation: cancellation, one absolute deadline, and limits that only tighten."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from journal.errors import Code, failure

MAX_TRANSACTION_GROUPS: Final = 65_536
MAX_BACKFILL_OBSERVATIONS: Final = 65_536


class Cancellation:
    """A request to stop at the next safe boundary, shared by everyone that holds it.

    `cancel` may be called from any thread or signal handler; those that wait in `cancelled` are woken, nobody polls.
    """

    def __init__(self) -> None:
        self._cancelled = False
        # Re-entrant, because a signal handler may call `cancel` while this very thread holds it.
        self._lock = threading.RLock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = set()

    def cancel(self) -> None:
        """Request cancellation and wake every waiter. Calling it again changes nothing."""
        with self._lock:
            self._cancelled = True
            waiters, self._waiters = self._waiters, set()
        for loop, waiter in waiters:
            with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody left who waits
                loop.call_soon_threadsafe(_wake, waiter)

    @property
    def is_cancelled(self) -> bool:
        """Whether cancellation was requested."""
        return self._cancelled

    async def cancelled(self) -> None:
        """Return once cancellation was requested."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._cancelled:
                return
            entry = (loop, loop.create_future())
            self._waiters.add(entry)
        try:
            await entry[1]
        finally:
            with self._lock:
                self._waiters.discard(entry)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Bounds of one invocation; asking for more than the shared ceiling gets the ceiling."""

    transaction_groups: int = MAX_TRANSACTION_GROUPS
    backfill_observations: int = MAX_BACKFILL_OBSERVATIONS

    @classmethod
    def tightened(cls, transaction_groups: int, backfill_observations: int) -> ResourceLimits:
        """Clamp the wanted limits to the ceilings (65 536 each)."""
        return cls(
            min(transaction_groups, MAX_TRANSACTION_GROUPS), min(backfill_observations, MAX_BACKFILL_OBSERVATIONS)
        )

    def __post_init__(self) -> None:
        if not 0 <= self.transaction_groups <= MAX_TRANSACTION_GROUPS:
            raise failure(Code.LIMIT_EXCEEDED, f"transaction groups: 0 to {MAX_TRANSACTION_GROUPS}")
        if not 0 <= self.backfill_observations <= MAX_BACKFILL_OBSERVATIONS:
            raise failure(Code.LIMIT_EXCEEDED, f"backfill observations: 0 to {MAX_BACKFILL_OBSERVATIONS}")


@dataclass(frozen=True, slots=True)
class Control:
    """Cancellation, deadline and limits of one operation and of everything that it calls.

    `deadline` is an absolute reading of `clock` (seconds of the monotonic clock), so that passing a control on never
    extends it.
    """

    cancellation: Cancellation = field(default_factory=Cancellation)
    deadline: float | None = None
    limits: ResourceLimits = field(default_factory=ResourceLimits)
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def within(cls, duration: timedelta, cancellation: Cancellation | None = None) -> Control:
        """Bound an operation to `duration` from now."""
        return cls(cancellation or Cancellation(), time.monotonic() + duration.total_seconds())

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None when there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock())

    def check(self) -> None:
        """Refuse to begin the next effect. Cancellation is looked at before the deadline (seed 000).

        Raises:
            OperationCancelledError: `migration_execution_cancelled`.
            ResourceLimitError: `migration_execution_deadline_exceeded`.
        """
        if self.cancellation.is_cancelled:
            raise failure(Code.CANCELLED, "the operation was cancelled before its next effect")
        if self.deadline is not None and self.clock() >= self.deadline:
            raise failure(Code.DEADLINE_EXCEEDED, "the operation reached its deadline before its next effect")

    async def sleep(self, seconds: float) -> None:
        """Sleep, but wake for cancellation or the deadline; raises as `check` does when either came."""
        remaining = self.remaining()
        pause = seconds if remaining is None else min(seconds, remaining)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cancellation.cancelled(), pause)
        self.check()
