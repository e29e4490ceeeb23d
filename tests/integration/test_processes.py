"""Several processes at one place: killed, stopped and woken up, racing."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.errors import Code, LeaseContendedError
from journal.events import EventType
from journal.identities import HolderId, Scope
from journal.vocabulary import GroupEventKind
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, group_record
from tests.integration.scripts.session import check_told, read_history
from tests.places import Place

ROOT = Path(__file__).parents[2]
MANIFESTS = chain_of(5)
TTL = timedelta(seconds=0.6)


@contextmanager
def process(mode: str, place: Place, holder: str, ttl: timedelta = TTL) -> Iterator[subprocess.Popen[str]]:
    """A writer in a process of its own; it is gone at the end of the block."""
    command = [sys.executable, "-m", "tests.integration.scripts.journal_writer", mode, str(place), holder]
    with subprocess.Popen(
        [*command, str(ttl.total_seconds())], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line.endswith("\n"), f"the process ended with {child.wait()}"
    return line.strip()


def say(child: subprocess.Popen[str], line: str) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def has_stopped(child: subprocess.Popen[str]) -> bool:
    return os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None


async def until_stopped(child: subprocess.Popen[str]) -> None:
    async with asyncio.timeout(20):
        while not has_stopped(child):  # noqa: ASYNC110  (a stopped process tells nobody)
            await asyncio.sleep(0.005)


# --- stopped and woken up -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "late"), [("sleeper", 1), ("sleeper-pipelined", 3)])
async def test_a_writer_that_slept_through_its_successor_is_fenced_and_its_late_events_are_void(
    place: Place, open_journal: OpenJournal, mode: str, late: int
) -> None:
    with process(mode, place, "sleeper") as child:
        assert await asyncio.to_thread(line_of, child) == "about to write"
        await until_stopped(child)
        journal = open_journal()
        waited: list[LeaseContendedError] = []
        async with asyncio.timeout(TTL.total_seconds() + 1):
            lease = await journal.acquire(
                SCOPE, HolderId("successor"), ttl=timedelta(seconds=30), on_wait=waited.append
            )
        assert {error.holder for error in waited} <= {"sleeper"}
        entry = await journal.record_group_event(lease, group_record(lease, MANIFESTS[4], GroupEventKind.BEFORE_COMMIT))
        child.send_signal(signal.SIGCONT)
        first, second, check = [json.loads(await asyncio.to_thread(line_of, child)) for _ in range(3)]
        assert await asyncio.to_thread(line_of, child) == "closed"
    for outcome in (first, second, check):
        assert (outcome["error"], outcome["code"]) == ("FencedError", Code.STALE_FENCE)
        assert (outcome["fence"], outcome["newer_fence"], outcome["newer_holder"]) == (1, lease.fence, "successor")
    history = await read_history(journal)
    assert [(event.fence, event.type, reason) for event, reason in history.voids] == [
        (1, EventType.GROUP_EVENT, Code.STALE_PARENT)
    ] * late
    assert history.fences == [1, lease.fence]
    assert entry.sequence == len(history.entries) == 2
    await journal.record_group_event(lease, group_record(lease, MANIFESTS[4], GroupEventKind.COMMITTED))
    assert await journal.lease_in_store(SCOPE) is not None, "the woken writer's release freed nothing"


async def test_a_writer_stopped_behind_its_append_is_told_that_it_counts_and_fenced_at_the_next(
    place: Place, open_journal: OpenJournal
) -> None:
    with process("waker", place, "sleeper") as child:
        assert await asyncio.to_thread(line_of, child) == "about to write"
        await until_stopped(child)
        journal = open_journal()
        async with asyncio.timeout(TTL.total_seconds() + 1):
            lease = await journal.acquire(SCOPE, HolderId("successor"), ttl=timedelta(seconds=30))
        child.send_signal(signal.SIGCONT)
        first, second, check = [json.loads(await asyncio.to_thread(line_of, child)) for _ in range(3)]
        assert await asyncio.to_thread(line_of, child) == "closed"
    assert first == [2]
    assert second["error"] == check["error"] == "FencedError"
    history = await read_history(journal)
    assert list(history.entries) == [1, 2]
    assert history.voids == [] or {reason for _, reason in history.voids} == {Code.STALE_PARENT}
    assert history.fences[-1] == lease.fence


# --- killed under load --------------------------------------------------------------------------------------------------

LANES, KILLS = 3, 12


def kill_in_turn(place: Place, seed: int) -> list[str]:
    """Let one writer after another work at one place and die somewhere; returns what they were told."""
    rng, told = random.Random(seed), []
    for number in range(KILLS):
        with process("load", place, f"writer-{number}", timedelta(seconds=0.3)) as child:
            assert line_of(child) == "leased"
            told += [line_of(child) for _ in range(rng.randrange(60))]
            time.sleep(rng.random() / 200)  # any moment will do
            child.kill()
            assert child.stdout is not None
            told += [line.strip() for line in child.stdout if line.endswith("\n")]
    return told


async def test_nothing_is_lost_or_counted_twice_by_writers_killed_at_random_moments(
    place: Place, open_journal: OpenJournal
) -> None:
    lanes = [place.sibling(f"lane-{lane}") for lane in range(LANES)]
    told = await asyncio.gather(*(asyncio.to_thread(kill_in_turn, lane, seed) for seed, lane in enumerate(lanes)))
    for lane, lines in zip(lanes, told, strict=True):
        journal = open_journal(lane)
        history = await read_history(journal)
        check_told(history, lines)
        assert history.repeats == []
        assert len(history.fences) == KILLS
        ledger = [history.types.count(EventType.APPLIED), history.types.count(EventType.ROLLED_BACK)]
        assert ledger[0] - ledger[1] == len((await journal.state(SCOPE)).active_ledger())
        async with asyncio.timeout(2):
            lease = await journal.acquire(SCOPE, HolderId("last"))
        assert lease.fence > history.fences[-1]


# --- races --------------------------------------------------------------------------------------------------------------


async def race(mode: str, place: Place, scopes: list[Scope], racers: int = 2) -> list[list[dict[str, Any]]]:
    """Race for each scope in turn; returns the outcomes of each round."""
    rounds: list[list[dict[str, Any]]] = []
    with ExitStack() as stack:
        children = [stack.enter_context(process(mode, place, f"racer-{number}")) for number in range(racers)]
        for child in children:
            assert await asyncio.to_thread(line_of, child) == "ready"
        for scope in scopes:
            for child in children:
                say(child, scope)
            for child in children:
                assert await asyncio.to_thread(line_of, child) == "ready"
            for child in children:
                say(child, "go")
            rounds.append([json.loads(await asyncio.to_thread(line_of, child)) for child in children])
    return rounds


SCOPES = [Scope(f"scope-{number}") for number in range(15)]


async def test_of_two_processes_that_create_a_scope_one_creates_and_both_agree(
    place: Place, open_journal: OpenJournal
) -> None:
    for outcomes in await race("create", place, SCOPES):
        assert sorted(outcome["created"] for outcome in outcomes) == [False, True]
        assert outcomes[0]["incarnation"] == outcomes[1]["incarnation"]
    journal = open_journal()
    for scope in SCOPES:
        history = await read_history(journal, scope)
        assert history.types == [EventType.SCOPE_CREATED]
        assert {reason for _, reason in history.voids} <= {Code.FOREIGN_SCOPE}


async def test_of_two_processes_that_acquire_one_wins_and_the_other_learns_who(
    place: Place, open_journal: OpenJournal
) -> None:
    journal = open_journal()
    for scope in SCOPES:
        await journal.create(scope)
    for outcomes in await race("acquire", place, SCOPES):
        winners = [outcome for outcome in outcomes if "fence" in outcome]
        losers = [outcome for outcome in outcomes if outcome.get("error") == "LeaseContendedError"]
        assert (len(winners), len(losers)) == (1, 1)
        assert losers[0]["holder"] == winners[0]["holder"]


async def test_of_two_processes_that_append_under_one_parent_one_counts_and_the_other_is_told(
    place: Place, open_journal: OpenJournal
) -> None:
    journal = open_journal()
    for scope in SCOPES:
        await journal.create(scope)
    for scope, outcomes in zip(SCOPES, await race("announce", place, SCOPES), strict=True):
        winners = [outcome for outcome in outcomes if "lease_id" in outcome]
        losers = [outcome for outcome in outcomes if outcome.get("error") == "FencedError"]
        assert (len(winners), len(losers)) == (1, 1), outcomes
        state = await journal.state(scope)
        assert (state.lease_id or b"").hex() == winners[0]["lease_id"]
        history = await read_history(journal, scope)
        assert history.types == [EventType.SCOPE_CREATED, EventType.LEASE_ACQUIRED]
