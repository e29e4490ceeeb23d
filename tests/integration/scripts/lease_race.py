"""Some clients that take, renew, give back or abandon one lease, as fast as they can.

Arguments: URL, prefix, seed, clients, rounds of each. Prints one JSON line a lease that it had, once it is over: its
fence, when it began, and until when it may have lasted (released, or run out), seconds of Redis's clock or of this
machine's, which are one.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from datetime import timedelta

from journal.errors import LeaseContendedError
from journal.identities import HolderId, LeaseId, Scope
from journal.leases.redis import RedisLeases
from journal.ports import Grant

SCOPE = Scope("raced")
LONG, SHORT = timedelta(seconds=20), timedelta(seconds=0.03)


async def main(url: str, prefix: str, seed: str, clients: str, rounds: str) -> None:
    """Race with the others."""
    store = RedisLeases(url, prefix=prefix, timeout=timedelta(seconds=20))
    await asyncio.gather(*(_client(store, f"{seed}-{number}", int(rounds)) for number in range(int(clients))))
    await store.close()


async def _client(store: RedisLeases, name: str, rounds: int) -> None:
    chosen = random.Random(name)
    for _ in range(rounds):
        abandons = chosen.random() < 0.2
        ttl = SHORT if abandons else LONG
        grant = await _taken(store, HolderId(name), ttl, chosen)
        began = grant.expires_at - ttl.total_seconds()
        renewed = await store.renew(grant, ttl=ttl) if chosen.random() < 0.5 else grant
        ends = (renewed or grant).expires_at
        if not abandons:
            ends = time.time()
            freed = await store.release(grant)
            assert freed, "a lease that is held can be given back"
        print(json.dumps({"fence": grant.fence, "began": began, "ends": ends}), flush=True)


async def _taken(store: RedisLeases, holder: HolderId, ttl: timedelta, chosen: random.Random) -> Grant:
    lease_id = LeaseId.random()
    while True:
        try:
            return await store.acquire(SCOPE, holder, lease_id=lease_id, ttl=ttl, floor=chosen.randrange(3))
        except LeaseContendedError:
            await asyncio.sleep(chosen.random() * 0.01)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
