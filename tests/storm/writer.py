"""`python -m tests.storm.writer SECONDS PLACE SCOPE...`: write all these scopes at once.

Says "begun" once each is begun, begins at a line, and then says what it was told of its events, a line of JSON a scope.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from journal.errors import OutcomeUnknownError, UnavailableError
from journal.identities import HolderId, Scope
from tests.numbered import NumberedWriter
from tests.places import journal_at, place_of

_TIMEOUT = timedelta(seconds=5)
_PAUSE_SECONDS = 0.05
_AT_ONCE = 10  # scopes that are begun
_RECOVERY_SECONDS = 120.0
_BEGIN_SECONDS = 120.0


async def main(seconds: float, place: str, scopes: Sequence[str]) -> None:
    """Write, and say what came of it."""
    async with journal_at(place_of(place), append_timeout=_TIMEOUT) as journal:
        writers = [NumberedWriter(journal, Scope(scope), HolderId("storm")) for scope in scopes]
        gate = asyncio.Semaphore(_AT_ONCE)

        async def begin(writer: NumberedWriter) -> None:
            async with gate:
                await writer.begin_slowly(_BEGIN_SECONDS)

        await _each(writers, begin)
        print("begun", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        until = time.monotonic() + seconds

        async def work(writer: NumberedWriter) -> None:
            while time.monotonic() < until:
                await writer.write(1 + writer.number % 4)
                if writer.lease.in_doubt or writer.account.unknown:
                    await writer.recover(_RECOVERY_SECONDS)
                await asyncio.sleep(_PAUSE_SECONDS)

        await _each(writers, work)
        await _each(writers, end)
        for writer in writers:
            print(json.dumps(await _told(writer)), flush=True)


async def end(writer: NumberedWriter) -> None:
    """Give the lease back; the writer reads nothing new afterwards."""
    while True:
        try:
            await writer.journal.release(writer.lease)
            return
        except (UnavailableError, OutcomeUnknownError):
            await writer.recover(_RECOVERY_SECONDS)


async def _told(writer: NumberedWriter) -> dict[str, object]:
    account = writer.account
    state = await writer.journal.state(writer.scope)
    return {
        "scope": str(writer.scope),
        "counted": list(account.counted.items()),
        "void": sorted(account.void),
        "unwritten": sorted(account.unwritten),
        "unknown": sorted(account.unknown),
        "found": account.found,
        "state": hashlib.sha256(state.canonical()).hexdigest(),
    }


async def _each(writers: Sequence[NumberedWriter], work: Callable[[NumberedWriter], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(_run(work, writer))


async def _run(work: Callable[[NumberedWriter], Awaitable[None]], writer: NumberedWriter) -> None:
    await work(writer)


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # which tells of every broker that it does not reach
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # and this, of every write to one that is gone
    asyncio.run(main(float(sys.argv[1]), sys.argv[2], sys.argv[3:]))
