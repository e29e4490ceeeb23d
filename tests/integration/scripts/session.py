"""A whole piece of work on one scope, that anybody can begin, leave at any point, and finish: two migrations applied,
the second one rolled back again. And the check that a log holds exactly what its writers were told.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from journal.admission import Admitted, Void, empty_state
from journal.errors import Code
from journal.events import Event, EventType
from journal.identities import HolderId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import verify_rollback
from journal.records import AppliedRecord, JournalEntry, RolledBackRecord
from journal.vocabulary import GroupEventKind
from tests.factories import SCOPE, chain_of, group_record, plan_record, rollback_plan_record, step_record

BEFORE, COMMITTED = GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED
FIRST, SECOND = MANIFESTS = chain_of(2)

Told = Callable[[str], None]


def tell(told: Told, entry: JournalEntry[Any]) -> None:
    """What a writer knows once an operation returned: one line that a log can be checked for."""
    told(f"{entry.sequence} {entry.record!r}")


async def run(journal: Journal, holder: str, told: Told, *, ttl: timedelta, scope: Scope = SCOPE) -> None:
    """The whole session, from creating the scope to releasing the lease."""
    await journal.create(scope)
    lease = await journal.acquire(scope, HolderId(holder), ttl=ttl)
    await finish(journal, lease, told)
    await journal.release(lease)


async def finish(journal: Journal, lease: Lease, told: Told) -> None:
    """Do what of the work is not done yet."""
    if await journal.load_open_rollback_plan(lease) is None and not await journal.load_rolled_back(lease):
        await _apply(journal, lease, told)
        tell(told, await journal.begin_rollback_plan(lease, rollback_plan_record(lease, [SECOND], MANIFESTS)))
    rollback = await journal.load_open_rollback_plan(lease)
    if rollback is not None:
        if not rollback.events or rollback.events[-1].record.kind is not COMMITTED:
            for kind in (BEFORE, COMMITTED):
                tell(told, await journal.record_rollback_step_event(lease, step_record(lease, SECOND, kind)))
        record = RolledBackRecord.from_verified_rollback(lease, verify_rollback(SECOND))
        tell(told, await journal.record_rolled_back(lease, record))


async def _apply(journal: Journal, lease: Lease, told: Told) -> None:
    applied = [entry.record.migration_id for entry in await journal.load_applied(lease)]
    if len(applied) == len(MANIFESTS):
        return
    if await journal.load_open_plan(lease) is None:
        tell(told, await journal.begin_plan(lease, plan_record(lease, MANIFESTS)))
    plan = await journal.load_open_plan(lease)
    assert plan is not None
    last = {entry.record.migration_id: entry.record.kind for entry in plan.events}
    if FIRST.id not in applied:
        if last.get(FIRST.id) is not COMMITTED:
            for kind in (BEFORE, COMMITTED):
                tell(told, await journal.record_group_event(lease, group_record(lease, FIRST, kind)))
        tell(told, await journal.record_applied(lease, AppliedRecord.from_verified_manifest(lease, FIRST)))
    records: list[Any] = []
    if last.get(SECOND.id) is not COMMITTED:
        records = [group_record(lease, SECOND, kind) for kind in (BEFORE, COMMITTED)]
    records.append(AppliedRecord.from_verified_manifest(lease, SECOND))
    for entry in await journal.record_all(lease, records):
        tell(told, entry)


# --- the check --------------------------------------------------------------------------------------------------------


@dataclass
class History:
    """A log read from genesis. `entries` are the lines that its writers may have been told, by sequence."""

    entries: dict[int, str] = field(default_factory=dict)
    repeats: list[int] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    voids: list[tuple[Event, Code]] = field(default_factory=list)
    types: list[EventType | None] = field(default_factory=list)


async def read_history(journal: Journal, scope: Scope = SCOPE) -> History:
    """Read a log and check what must hold for every one."""
    history = History()
    state = empty_state(scope)
    async with aclosing(journal.replay(scope, state=state)) as events:
        async for event, verdict in events:
            assert isinstance(event, Event)
            match verdict:
                case Void(reason):
                    history.voids.append((event, reason))
                    continue
                case Admitted(None):
                    if event.type is EventType.LEASE_ACQUIRED:
                        history.fences.append(event.fence)
                case Admitted(sequence) if sequence in history.entries:
                    history.repeats.append(sequence)
                case Admitted(sequence):
                    history.entries[sequence] = f"{sequence} {event.record!r}"
            history.types.append(event.type)
    assert list(history.entries) == list(range(1, len(history.entries) + 1)), "sequences are dense"
    assert history.fences == sorted(set(history.fences)), "fences strictly grow"
    assert (await journal.state(scope)).canonical() == state.canonical(), "the journal folds to the same state"
    return history


def check_told(history: History, told: list[str]) -> None:
    """Everything that a writer was told is there, exactly once."""
    assert len(set(told)) == len(told), "nobody is told the same twice"
    lines = list(history.entries.values())
    for line in told:
        assert lines.count(line) == 1, f"told, and not there exactly once: {line}"


async def check_finished(journal: Journal, told: list[str]) -> History:
    """The work is done, once, and nothing of what anybody was told is missing."""
    history = await read_history(journal)
    check_told(history, told)
    state = await journal.state(SCOPE)
    assert [entry.record.migration_id for entry in state.active_ledger()] == [FIRST.id]
    assert state.plan is None
    assert history.types.count(EventType.SCOPE_CREATED) == 1
    assert history.types.count(EventType.APPLIED) == 2
    assert history.types.count(EventType.ROLLED_BACK) == 1
    assert history.types.count(EventType.PLAN_OPENED) == 1
    assert history.types.count(EventType.ROLLBACK_PLAN_OPENED) == 1
    return history
