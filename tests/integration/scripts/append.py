"""Append numbered events to one scope: `append.py FILE SCOPE COUNT NAME`."""

from __future__ import annotations

import asyncio
import sys

from journal.identities import Scope
from journal.log.sqlite import SQLiteLog
from journal.ports import Outgoing


async def main(path: str, scope: str, count: str, name: str) -> None:
    log = SQLiteLog(path)
    for number in range(int(count)):
        await log.append(Scope(scope), [Outgoing(f"{name}{number}".encode())])
    await log.close()


asyncio.run(main(*sys.argv[1:]))
