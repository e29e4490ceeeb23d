"""The storm: writers in processes of their own, brokers that are restarted in turn, and the comparison of all that was said."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from journal.identities import Scope
from journal.journal import Journal
from projections import audit
from tests.numbered import Account, contradictions, numbers_of
from tests.places import Cluster, journal_at
from tests.services import KafkaService

_LINE_BYTES: Final = 64 * 2**20
_BEGIN_SECONDS: Final = 120.0
_END_SECONDS: Final = 300.0  # behind the storm itself: what is unknown is settled, every scope is read
_READ_AT_ONCE: Final = 4


@dataclass
class Outcome:
    """What a storm brought."""

    contradictions: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)  # how many events were told what
    restarts: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        told = ", ".join(f"{count:,} {what}" for what, count in self.told.items())
        return f"{self.restarts} restarts, {told}; {len(self.contradictions)} contradictions"


@dataclass(frozen=True)
class Storm:
    """So many scopes from so many processes, for so long. With `restart`, nodes end and come back in turn meanwhile."""

    scopes: int
    processes: int
    seconds: float
    restart: bool = True

    async def run(self, place: Cluster, kafka: KafkaService, say: Callable[[str], None]) -> Outcome:
        """Have it, with progress, and compare afterwards what everybody says."""
        outcome = Outcome()
        names = [f"storm-{number}" for number in range(self.scopes)]
        async with asyncio.timeout(_BEGIN_SECONDS + self.seconds + _END_SECONDS), asyncio.TaskGroup() as group:
            writers = [await self._start(place, names[number :: self.processes]) for number in range(self.processes)]
            try:
                for writer in writers:
                    await _line(writer, "begun")
                say(f"{self.scopes} scopes are begun in {self.processes} processes")
                telling = [group.create_task(_tellings(writer)) for writer in writers]
                began = time.monotonic()
                if self.restart:
                    await self._restart(kafka, outcome, say)
                told = list(itertools.chain.from_iterable([await task for task in telling]))
                outcome.seconds = time.monotonic() - began
            finally:
                for writer in writers:
                    if writer.returncode is None:
                        writer.kill()
                    await writer.wait()
        say("compares what the writers were told with the log")
        await _compare(place, names, {one["scope"]: one for one in told}, outcome)
        return outcome

    async def _start(self, place: Cluster, scopes: Sequence[str]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.storm.writer", str(self.seconds), str(place), *scopes),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )

    async def _restart(self, kafka: KafkaService, outcome: Outcome, say: Callable[[str], None]) -> None:
        until = time.monotonic() + self.seconds
        for node, how in zip(itertools.cycle(kafka.nodes), itertools.cycle(["terminate", "kill"]), strict=False):
            if time.monotonic() >= until:
                return
            await asyncio.to_thread(getattr(node, how))
            await asyncio.to_thread(kafka.revive)
            outcome.restarts += 1
            say(f"node {node.number} was {'ended' if how == 'terminate' else 'killed'} and is back")


async def _line(writer: asyncio.subprocess.Process, expected: str) -> None:
    assert writer.stdout is not None
    line = (await writer.stdout.readline()).decode().strip()
    if line != expected:
        raise AssertionError(f"a writer said {line!r} and ended with {await writer.wait()}")


async def _tellings(writer: asyncio.subprocess.Process) -> list[dict[str, Any]]:
    """Let a writer go, and hear what it was told."""
    output, _ = await writer.communicate(b"go\n")
    if writer.returncode:
        raise AssertionError(f"a writer ended with {writer.returncode}")
    return [json.loads(line) for line in output.splitlines()]


# --- comparing --------------------------------------------------------------------------------------------------------


async def _compare(
    place: Cluster, names: Sequence[str], told: Mapping[str, Mapping[str, Any]], outcome: Outcome
) -> None:
    """Two readers that know nothing read every scope, and say what its writer says."""
    gate = asyncio.Semaphore(_READ_AT_ONCE)

    async def read(journals: Sequence[Journal], name: str) -> None:
        async with gate:
            found = [f"{name}: {what}" async for what in _of_scope(journals, Scope(name), told[name], outcome)]
        outcome.contradictions.extend(found)

    async with journal_at(place) as one, journal_at(place) as other, asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(read((one, other), name))


async def _of_scope(
    journals: Sequence[Journal], scope: Scope, told: Mapping[str, Any], outcome: Outcome
) -> AsyncIterator[str]:
    account = Account(dict(told["counted"]), set(told["void"]), set(told["unwritten"]), dict.fromkeys(told["unknown"]))
    outcome.told.update(
        {"counted": len(account.counted), "void": len(account.void), "not written": len(account.unwritten)}
        | {"unknown at first and found": told["found"], "never settled": len(account.unknown)}
    )
    if account.unknown:
        yield f"{sorted(account.unknown)} were never settled"
    first, second = journals
    for contradiction in contradictions(account, await numbers_of(first, scope)):
        yield contradiction
    verification = await audit.verify(first, scope)
    if not verification.ok:
        yield f"its chain does not verify: {verification.findings}"
    for reader in (first, second):
        state = hashlib.sha256((await reader.state(scope)).canonical()).hexdigest()
        if state != told["state"]:
            yield "a reader has another state than its writer"
