"""Append numbered events to one scope: `append.py LOG_URL SCOPE COUNT NAME`."""

from __future__ import annotations

import asyncio
import sys

from journal.bootstrap import open_log
from journal.identities import Scope
from journal.ports import Outgoing
from journal.settings import load_settings


async def main(url: str, scope: str, count: str, name: str) -> None:
    log = open_log(load_settings(log=url))
    for number in range(int(count)):
        await log.append(Scope(scope), [Outgoing(f"{name}{number}".encode())])
    await log.close()


asyncio.run(main(*sys.argv[1:]))
