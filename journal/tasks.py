"""Work that must be finished although the one who asked for it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# The event loop keeps weak references alone; without this, work that nobody awaits any more could vanish half done.
_UNDER_WAY: set[asyncio.Task[Any]] = set()


def start(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """Start work that goes on whoever is cancelled; its error is for those who await it, if there are any left."""
    task = asyncio.create_task(work, name=name)
    _UNDER_WAY.add(task)
    task.add_done_callback(_settle)
    return task


async def finish(work: Coroutine[Any, Any, T], name: str) -> T:
    """Do the work to its end, also when the caller is cancelled, who then does not wait for it."""
    return await asyncio.shield(start(work, name))


def read_error(future: asyncio.Future[Any]) -> None:
    """Count a future's error as seen: everybody who could have cared may have been cancelled."""
    if not future.cancelled():
        future.exception()


def _settle(task: asyncio.Task[Any]) -> None:
    _UNDER_WAY.discard(task)
    read_error(task)
