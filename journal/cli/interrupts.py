"""How a command that changes something is stopped: at a safe boundary, at once, or dead.

While it only looks, the first SIGINT or SIGTERM cancels it. Once it has begun to change something, the first asks for a
stop at the next safe boundary, and wakes whoever waits for a lease or a lock; the second cancels what runs: the
statement is interrupted, its transaction rolled back, the lease released. The third ends the process where it is, as a
kill would; even that the next run recovers from.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

from journal.control import Cancellation

T = TypeVar("T")

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """The signals that one run has got so far. `at_once`: what ran was cancelled."""

    def __init__(self) -> None:
        self.cancellation: Final = Cancellation()
        self.received: list[signal.Signals] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._has_begun = False
        self.at_once = False

    @property
    def exit_code(self) -> int:
        """The code that a shell knows for the first signal; that of SIGINT when there was none."""
        return 128 + (self.received[0] if self.received else signal.SIGINT)

    @property
    def name(self) -> str:
        """The first signal's name."""
        return (self.received[0] if self.received else signal.SIGINT).name

    def begin(self) -> None:
        """From here on something is changed: the first signal waits for a safe boundary."""
        self._has_begun = True

    def finish(self) -> None:
        """From here on a second signal changes nothing: what is left only gives back what was taken."""
        self._task = None

    def run(self, work: Callable[[Interrupts], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in an event loop of its own, under these rules for signals.

        Raises `asyncio.CancelledError` when it was stopped at once, and otherwise what `work` raises.
        """
        before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        try:
            return asyncio.run(self._main(work))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _main(self, work: Callable[[Interrupts], Coroutine[Any, Any, T]]) -> T:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            return await work(self)
        finally:
            self._loop = None

    def _receive(self, number: int, _: FrameType | None) -> None:
        """In the main thread, between two instructions of whatever runs there: nothing is written or awaited here."""
        self.received.append(signal.Signals(number))
        if len(self.received) > 2:
            os._exit(self.exit_code)
        self.cancellation.cancel()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._act, len(self.received))

    def _act(self, count: int) -> None:
        if count == 1 and self._has_begun:
            _say(f"{self.name}: stopping at the next safe boundary; again to stop at once")
        elif self._task is not None:
            if self._has_begun:
                _say("stopping at once")
            self.at_once = True
            self._task.cancel()


def _say(line: str) -> None:
    sys.stderr.write(f"journal: {line}\n")
    sys.stderr.flush()
