"""`python -m tests.storm`: scopes written at once from several processes at three nodes, RF 3, that are restarted in turn.

Exits with 1 when anything was lost, counted twice, or said otherwise by anybody.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import time

from tests.places import Cluster
from tests.services import start_kafka, start_redis
from tests.storm.storm import Storm


def main(arguments: list[str]) -> int:
    """Have a storm; says what it brought, and the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--scopes", type=int, default=200, metavar="N")
    parser.add_argument("--processes", type=int, default=4, metavar="N")
    parser.add_argument("--seconds", type=float, default=60, metavar="N")
    parser.add_argument("--no-restart", dest="restart", action="store_false", help="leave the brokers alone")
    options = parser.parse_args(arguments)
    storm = Storm(options.scopes, options.processes, options.seconds, options.restart)
    with start_kafka(nodes=3) as kafka, start_redis() as redis:
        began = time.monotonic()

        def say(line: str) -> None:
            print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

        place = Cluster(kafka.servers, redis.url, f"storm-{secrets.token_hex(4)}", kafka.replication)
        outcome = asyncio.run(storm.run(place, kafka, say))
    print(outcome)
    for contradiction in outcome.contradictions[:20]:
        print(f"  {contradiction}")
    return 1 if outcome.contradictions or not outcome.told["counted"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
