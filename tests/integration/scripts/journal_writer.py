"""Writers for process tests: `journal_writer.py MODE PLACE HOLDER [TTL_SECONDS]`. They speak in lines on stdout.

load      work for ever, cycle after cycle, telling every entry, until killed
sleeper   stop (SIGSTOP) right before the append of a group event; woken up, say what the write brought
sleeper-pipelined   the same with three events in one append
waker     stop right behind the append of a group event
create, acquire, announce   wait for a line, race for the scope it names, say how it went; again until stdin ends
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta

from journal.codec import Codec
from journal.errors import JournalError
from journal.identities import HolderId, LeaseId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import VerifiedManifest, verify_rollback
from journal.records import AppliedRecord, LeaseAcquiredRecord, RolledBackRecord
from journal.spine import Spine
from journal.vocabulary import GroupEventKind
from tests.factories import SCOPE, chain_of, group_record, plan_record, rollback_plan_record, step_record
from tests.faults import FaultyLog
from tests.integration.scripts import session
from tests.places import Place, journal_at, place_of

BEFORE, COMMITTED = GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED
MANIFESTS = chain_of(5)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def hear() -> str:
    return sys.stdin.readline().strip()


def outcome_of(error: JournalError) -> dict[str, object]:
    return {"error": type(error).__name__, "code": error.code, **error.details}


# --- load -------------------------------------------------------------------------------------------------------------


async def load(place: Place, holder: HolderId, ttl: timedelta) -> None:
    journal = journal_at(place)
    await journal.create(SCOPE)
    lease = await journal.acquire(SCOPE, holder, ttl=ttl)
    say("leased")
    while True:
        await clear(journal, lease, say)
        await cycle(journal, lease, say)


async def cycle(journal: Journal, lease: Lease, told: session.Told) -> None:
    """Apply all migrations and roll them back."""
    session.tell(told, await journal.begin_plan(lease, plan_record(lease, MANIFESTS)))
    for manifest in MANIFESTS:
        records = [group_record(lease, manifest, kind) for kind in (BEFORE, COMMITTED)]
        for entry in await journal.record_all(lease, [*records, AppliedRecord.from_verified_manifest(lease, manifest)]):
            session.tell(told, entry)
    await _roll_back(journal, lease, MANIFESTS, told)


async def _roll_back(journal: Journal, lease: Lease, applied: list[VerifiedManifest], told: session.Told) -> None:
    backwards = applied[::-1]
    session.tell(told, await journal.begin_rollback_plan(lease, rollback_plan_record(lease, backwards, applied)))
    for manifest in backwards:
        await _retire(journal, lease, manifest, told)


async def _retire(journal: Journal, lease: Lease, manifest: VerifiedManifest, told: session.Told) -> None:
    records = [step_record(lease, manifest, kind) for kind in (BEFORE, COMMITTED)]
    records.append(RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest)))
    for entry in await journal.record_all(lease, records):
        session.tell(told, entry)


async def clear(journal: Journal, lease: Lease, told: session.Told) -> None:
    """Finish what the writer before left open, until nothing is active."""
    applied = {entry.record.migration_id for entry in await journal.load_applied(lease)}
    plan, rollback = await journal.load_open_plan(lease), await journal.load_open_rollback_plan(lease)
    if plan is not None:
        last = {entry.record.migration_id: entry.record.kind for entry in plan.events}
        for manifest in MANIFESTS:
            if manifest.id not in applied:
                kinds = () if last.get(manifest.id) is COMMITTED else (BEFORE, COMMITTED)
                records = [group_record(lease, manifest, kind) for kind in kinds]
                records.append(AppliedRecord.from_verified_manifest(lease, manifest))
                for entry in await journal.record_all(lease, records):
                    session.tell(told, entry)
        applied = {manifest.id for manifest in MANIFESTS}
    elif rollback is not None:
        last = {entry.record.migration_id: entry.record.kind for entry in rollback.events}
        for manifest in MANIFESTS[::-1]:
            if manifest.id in applied:
                if last.get(manifest.id) is COMMITTED:
                    record = RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest))
                    session.tell(told, await journal.record_rolled_back(lease, record))
                else:
                    await _retire(journal, lease, manifest, told)
        applied = set()
    if applied:
        await _roll_back(journal, lease, [manifest for manifest in MANIFESTS if manifest.id in applied], told)


# --- sleepers -----------------------------------------------------------------------------------------------------------


async def stop_before(call: Callable[[], Awaitable[object]]) -> object:
    os.kill(os.getpid(), signal.SIGSTOP)
    return await call()


async def stop_behind(call: Callable[[], Awaitable[object]]) -> object:
    result = await call()
    os.kill(os.getpid(), signal.SIGSTOP)
    return result


async def sleeper(place: Place, holder: HolderId, ttl: timedelta, *, events: int = 1, behind: bool = False) -> None:
    log = FaultyLog(place.log())
    journal = Journal(log, place.leases())
    await journal.create(SCOPE)
    lease = await journal.acquire(SCOPE, holder, ttl=ttl)
    await journal.begin_plan(lease, plan_record(lease, MANIFESTS))
    records = [group_record(lease, manifest, BEFORE) for manifest in MANIFESTS]
    log.on_append = [stop_behind if behind else stop_before]
    say("about to write")
    for batch in (records[:events], records[events : events + 1]):
        try:
            entries = await journal.record_all(lease, batch)
            say(json.dumps([int(entry.sequence) for entry in entries]))
        except JournalError as error:
            say(json.dumps(outcome_of(error)))
    try:
        lease.check()
        say(json.dumps("lease holds"))
    except JournalError as error:
        say(json.dumps(outcome_of(error)))
    await journal.close()
    say("closed")


# --- racers -------------------------------------------------------------------------------------------------------------


async def race(place: Place, holder: HolderId, ttl: timedelta, mode: str) -> None:
    log, leases = place.log(), place.leases()
    journal = Journal(log, leases)
    await journal.scopes()
    say("ready")
    while scope := hear():
        spine = Spine(Scope(scope), log, Codec(), timedelta(seconds=5))
        if mode == "announce":
            await spine.catch_up()
        say("ready")
        hear()
        try:
            say(json.dumps(await _attempt(journal, spine, holder, ttl, mode)))
        except JournalError as error:
            say(json.dumps(outcome_of(error)))
        await spine.close()
    await journal.close()


async def _attempt(journal: Journal, spine: Spine, holder: HolderId, ttl: timedelta, mode: str) -> dict[str, object]:
    if mode == "create":
        created = await journal.create(spine.scope)
        return {"created": created.created, "incarnation": str(created.incarnation)}
    if mode == "acquire":
        lease = await journal.acquire(spine.scope, holder, ttl=ttl, wait=timedelta(0))
        return {"holder": lease.holder, "fence": lease.fence}
    lease_id = LeaseId.random()
    await spine.announce(lease_id, 1, LeaseAcquiredRecord.new(holder, 1_000_000))
    return {"lease_id": str(lease_id)}


async def main(mode: str, at: str, holder: str, ttl_seconds: str = "30") -> None:
    place, who, ttl = place_of(at), HolderId(holder), timedelta(seconds=float(ttl_seconds))
    match mode:
        case "load":
            await load(place, who, ttl)
        case "sleeper":
            await sleeper(place, who, ttl)
        case "sleeper-pipelined":
            await sleeper(place, who, ttl, events=3)
        case "waker":
            await sleeper(place, who, ttl, behind=True)
        case _:
            await race(place, who, ttl, mode)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
