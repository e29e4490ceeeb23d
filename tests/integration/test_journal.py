"""The journal's operations end to end, in one process and with several journals at one place."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.admission import Admitted, empty_state
from journal.codec import Codec, Key, Keyring
from journal.errors import Code, FencedError, ForgedError, IntegrityError, InvalidContractError, JournalError
from journal.events import Event, EventType
from journal.identities import HolderId, Position, Scope, Sequence
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import verify_rollback
from journal.ports import Outgoing
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    RecoveryAttestedRecord,
    RolledBackRecord,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, group_record, manifest_of, plan_record, rollback_plan_record
from tests.integration.scripts.session import read_history
from tests.places import Place

ROOT = Path(__file__).parents[2]
ALICE, BOB = HolderId("alice"), HolderId("bob")
BEFORE, COMMITTED = GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED
ABORTED = GroupEventKind.DEFINITELY_ABORTED


@pytest.fixture
async def journal(open_journal: OpenJournal) -> Journal:
    journal = open_journal()
    await journal.create(SCOPE)
    return journal


@pytest.fixture
async def lease(journal: Journal) -> Lease:
    return await journal.acquire(SCOPE, ALICE)


def applied(lease: Lease, manifest: Any) -> AppliedRecord:
    return AppliedRecord.from_verified_manifest(lease, manifest)


def retired(lease: Lease, manifest: Any) -> RolledBackRecord:
    return RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest))


# --- all operations -----------------------------------------------------------------------------------------------------


async def test_a_migration_is_applied_and_rolled_back_with_everything_visible_on_the_way(
    journal: Journal, lease: Lease
) -> None:
    manifest = manifest_of(1, backfill=True)
    plan = await journal.begin_plan(lease, plan_record(lease, [manifest]))
    before = await journal.record_group_event(lease, group_record(lease, manifest, BEFORE))
    committed = await journal.record_group_event(lease, group_record(lease, manifest, COMMITTED))
    step = next(index for index, one in enumerate(manifest.steps) if type(one).__name__ == "BackfillStep")
    begun = await journal.record_backfill_event(
        lease, BackfillEventRecord.new_apply(lease, manifest, step, BEFORE, None)
    )
    half, done = BackfillCounts(5, 3, 2, 1), BackfillCounts(10, 6, 4, 2)
    checkpoint = await journal.record_backfill_checkpoint(
        lease, BackfillCheckpointRecord.new_apply(lease, manifest, step, half)
    )
    completion = BackfillCompletion(begun.record.plan_fingerprint, Direction.FORWARD, done)
    finished = await journal.record_backfill_event(
        lease, BackfillEventRecord.new_apply(lease, manifest, step, COMMITTED, completion)
    )
    open_plan = await journal.load_open_plan(lease)
    assert open_plan is not None
    assert open_plan.plan == plan
    assert list(open_plan.events) == [before, committed]
    assert list(open_plan.backfill_events) == [begun, finished]
    assert await journal.load_open_rollback_plan(lease) is None
    entered = await journal.record_applied(lease, applied(lease, manifest))
    assert await journal.load_open_plan(lease) is None
    assert await journal.load_applied(lease) == [entered]

    rollback = await journal.begin_rollback_plan(lease, rollback_plan_record(lease, [manifest], [manifest]))
    reverse = BackfillEventRecord.new_rollback(lease, verify_rollback(manifest), 0, BEFORE, None)
    undo = await journal.record_backfill_event(lease, reverse)
    undone = await journal.record_backfill_event(
        lease,
        BackfillEventRecord.new_rollback(
            lease,
            verify_rollback(manifest),
            0,
            COMMITTED,
            BackfillCompletion(reverse.plan_fingerprint, Direction.REVERSE, done),
        ),
    )
    open_rollback = await journal.load_open_rollback_plan(lease)
    assert open_rollback is not None
    assert (open_rollback.plan, list(open_rollback.backfill_events)) == (rollback, [undo, undone])
    assert await journal.load_open_plan(lease) is None
    gone = await journal.record_rolled_back(lease, retired(lease, manifest))
    assert await journal.load_applied(lease) == []
    assert await journal.load_rolled_back(lease) == [gone]
    entries = [plan, before, committed, begun, checkpoint, finished, entered, rollback, undo, undone, gone]
    assert [entry.sequence for entry in entries] == list(range(1, 12))
    history = await read_history(journal)
    assert list(history.entries.values()) == [f"{entry.sequence} {entry.record!r}" for entry in entries]
    assert history.voids == []


async def test_retirements_are_loaded_from_the_whole_history(journal: Journal) -> None:
    manifests = chain_of(2)
    retirements = []
    for _ in range(2):
        async with journal.lease(SCOPE, ALICE) as lease:
            await journal.begin_plan(lease, plan_record(lease, manifests))
            await journal.record_all(lease, [applied(lease, manifest) for manifest in manifests])
            await journal.begin_rollback_plan(lease, rollback_plan_record(lease, manifests[::-1], manifests))
            retirements += await journal.record_all(lease, [retired(lease, manifest) for manifest in manifests[::-1]])
    async with journal.lease(SCOPE, BOB) as lease:
        assert await journal.load_rolled_back(lease) == retirements


async def test_an_imported_ledger_is_the_base_of_the_next_plan(journal: Journal, lease: Lease) -> None:
    manifests = chain_of(3)
    await journal.import_ledger(
        lease,
        LedgerImportedRecord.from_verified_manifests(
            lease, manifests[:2], manifests[1].target, operator="ann", reason="adopted"
        ),
    )
    assert [entry.record.migration_id for entry in await journal.load_applied(lease)] == [m.id for m in manifests[:2]]
    await journal.begin_plan(lease, plan_record(lease, manifests[2:], manifests[:2]))


async def test_an_operator_settles_a_unit_and_gives_the_plan_up(journal: Journal, lease: Lease) -> None:
    manifest = manifest_of(1)
    plan = await journal.begin_plan(lease, plan_record(lease, [manifest]))
    begun = await journal.record_group_event(lease, group_record(lease, manifest, BEFORE))
    abandon = PlanAbandonedRecord.new(lease, plan, operator="ann", reason="wrong database")
    with pytest.raises(JournalError) as caught:
        await journal.abandon_plan(lease, abandon)
    assert caught.value.code is Code.UNIT_IN_DOUBT
    attested = RecoveryAttestedRecord.new(lease, begun.record, ABORTED, observed=None, operator="ann", reason="looked")
    await journal.attest_recovery(lease, attested)
    await journal.abandon_plan(lease, abandon)
    assert await journal.load_open_plan(lease) is None
    await journal.begin_plan(lease, plan_record(lease, [manifest]))


# --- refusals, retries --------------------------------------------------------------------------------------------------


async def test_a_refused_record_writes_nothing(journal: Journal, lease: Lease) -> None:
    first, second = chain_of(2)
    refusals = [
        (Code.NO_OPEN_PLAN, group_record(lease, first, BEFORE)),
        (Code.NO_OPEN_PLAN, applied(lease, first)),
        (Code.RETIREMENT_CONFLICT, retired(lease, first)),
        (Code.STALE_APPLIED_SET, plan_record(lease, [second], [first])),
        (Code.STALE_APPLIED_SET, rollback_plan_record(lease, [first], [first])),
    ]
    before = (await journal.state(SCOPE)).canonical()
    for code, record in refusals:
        with pytest.raises(JournalError, match="nothing was written") as caught:
            await journal.record(lease, record)
        assert caught.value.code is code
    assert (await journal.state(SCOPE)).canonical() == before
    await journal.begin_plan(lease, plan_record(lease, [first]))
    with pytest.raises(InvalidContractError) as twice:
        await journal.begin_plan(lease, plan_record(lease, [first]))
    assert twice.value.code is Code.PLAN_ALREADY_OPEN
    with pytest.raises(IntegrityError) as foreign:
        await journal.record_group_event(lease, group_record(lease, second, BEFORE))
    assert foreign.value.code is Code.FOREIGN_EVENT


async def test_an_exact_retry_gives_the_same_entry_and_writes_nothing(journal: Journal, lease: Lease) -> None:
    (manifest,) = chain_of(1)
    await journal.begin_plan(lease, plan_record(lease, [manifest]))
    entry = await journal.record_applied(lease, applied(lease, manifest))
    position = (await journal.state(SCOPE)).position
    assert await journal.record_applied(lease, applied(lease, manifest)) == entry
    assert (await journal.state(SCOPE)).position == position
    await journal.begin_rollback_plan(lease, rollback_plan_record(lease, [manifest], [manifest]))
    gone = await journal.record_rolled_back(lease, retired(lease, manifest))
    assert await journal.record_rolled_back(lease, retired(lease, manifest)) == gone


async def test_an_exact_retry_while_the_first_is_in_flight_is_the_same_entry(journal: Journal, lease: Lease) -> None:
    (manifest,) = chain_of(1)
    await journal.begin_plan(lease, plan_record(lease, [manifest]))
    entries = await asyncio.gather(*(journal.record_applied(lease, applied(lease, manifest)) for _ in range(5)))
    assert entries == [entries[0]] * 5
    history = await read_history(journal)
    assert len(history.entries) == 2


async def test_a_retry_under_a_later_fence_is_a_conflict(journal: Journal, lease: Lease) -> None:
    (manifest,) = chain_of(1)
    await journal.begin_plan(lease, plan_record(lease, [manifest]))
    await journal.record_applied(lease, applied(lease, manifest))
    later = await journal.refresh(lease)
    with pytest.raises(IntegrityError) as caught:
        await journal.record_applied(later, applied(later, manifest))
    assert caught.value.code is Code.APPLIED_IDENTITY_CONFLICT


async def test_a_record_of_another_fence_or_scope_is_refused(journal: Journal, lease: Lease) -> None:
    other = Scope("another")
    await journal.create(other)
    foreign = await journal.acquire(other, ALICE)
    later = await journal.refresh(lease)
    for record in (plan_record(foreign, chain_of(1, scope=other)), plan_record(lease, chain_of(1))):
        with pytest.raises(FencedError) as caught:
            await journal.record(later, record)
        assert caught.value.code is Code.STALE_FENCE


# --- pipelines, concurrency ---------------------------------------------------------------------------------------------


async def test_a_pipeline_gives_every_entry_in_order(journal: Journal, lease: Lease) -> None:
    manifests = chain_of(100)
    await journal.begin_plan(lease, plan_record(lease, manifests))
    entries = await journal.record_all(lease, [group_record(lease, manifest, BEFORE) for manifest in manifests])
    assert [entry.sequence for entry in entries] == list(range(2, 102))
    assert [entry.record.migration_id for entry in entries] == [manifest.id for manifest in manifests]
    assert await journal.record_all(lease, []) == []


async def test_of_a_pipeline_with_a_refused_record_those_before_it_count_and_those_behind_are_not_written(
    journal: Journal, lease: Lease
) -> None:
    manifests = chain_of(5)
    await journal.begin_plan(lease, plan_record(lease, manifests))
    records = [group_record(lease, manifest, BEFORE) for manifest in manifests]
    with pytest.raises(IntegrityError) as caught:
        await journal.record_all(lease, [*records[:2], records[1], *records[2:]])
    assert caught.value.code is Code.INVALID_EVENT_TRANSITION
    plan = await journal.load_open_plan(lease)
    assert plan is not None
    assert [entry.record for entry in plan.events] == records[:2]
    await journal.record_all(lease, records[2:])
    assert (await read_history(journal)).voids == []


async def test_64_callers_at_once_each_get_their_own_entry(journal: Journal, lease: Lease) -> None:
    manifests = chain_of(64)
    await journal.begin_plan(lease, plan_record(lease, manifests))

    async def work(manifest: Any) -> list[Any]:
        return [
            await journal.record_group_event(lease, group_record(lease, manifest, BEFORE)),
            await journal.record_group_event(lease, group_record(lease, manifest, COMMITTED)),
            await journal.record_applied(lease, applied(lease, manifest)),
        ]

    entries = [entry for three in await asyncio.gather(*map(work, manifests)) for entry in three]
    assert sorted(entry.sequence for entry in entries) == list(range(2, 2 + 3 * 64))
    assert {entry.record.migration_id for entry in entries} == {manifest.id for manifest in manifests}
    history = await read_history(journal)
    assert {f"{entry.sequence} {entry.record!r}" for entry in entries} < set(history.entries.values())
    assert history.voids == []


async def test_a_cancelled_caller_does_not_disturb_the_others(journal: Journal, lease: Lease) -> None:
    manifests = chain_of(10)
    await journal.begin_plan(lease, plan_record(lease, manifests))
    writing = [
        asyncio.ensure_future(journal.record_group_event(lease, group_record(lease, manifest, BEFORE)))
        for manifest in manifests
    ]
    await asyncio.sleep(0)
    writing[3].cancel()
    outcomes = await asyncio.gather(*writing, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["JournalEntry"] * 3 + ["CancelledError"] + [
        "JournalEntry"
    ] * 6
    state = await journal.state(SCOPE)
    assert state.plan is not None
    assert len(state.plan.events) in (9, 10)


# --- two journals on one file -------------------------------------------------------------------------------------------


async def test_two_journals_see_the_same_and_take_turns(journal: Journal, open_journal: OpenJournal) -> None:
    other = open_journal()
    manifests = chain_of(4)
    for index, manifest in enumerate(manifests):
        writer, reader = (journal, other) if index % 2 == 0 else (other, journal)
        async with writer.lease(SCOPE, ALICE) as lease:
            await writer.begin_plan(lease, plan_record(lease, [manifest], manifests[:index]))
            await writer.record_applied(lease, applied(lease, manifest))
        assert (await reader.state(SCOPE)).canonical() == (await writer.state(SCOPE)).canonical()
    assert len((await other.state(SCOPE)).active) == 4


async def test_loads_under_a_stale_lease_are_refused(journal: Journal, lease: Lease, open_journal: OpenJournal) -> None:
    await open_journal(late=True).acquire(SCOPE, BOB)
    loads = (
        journal.load_applied,
        journal.load_open_plan,
        journal.load_rolled_back,
        journal.load_open_rollback_plan,
    )
    for load in loads:
        with pytest.raises(FencedError) as caught:
            await load(lease)
        assert caught.value.code is Code.STALE_FENCE


async def test_scopes_of_one_journal_do_not_touch_each_other(open_journal: OpenJournal) -> None:
    journal = open_journal()
    scopes = [Scope(f"scope-{number}") for number in range(8)]

    async def work(scope: Scope) -> None:
        manifests = chain_of(3, scope=scope)
        assert (await journal.create(scope)).created
        async with journal.lease(scope, ALICE) as lease:
            await journal.begin_plan(lease, plan_record(lease, manifests))
            await journal.record_all(lease, [applied(lease, manifest) for manifest in manifests])

    await asyncio.gather(*map(work, scopes))
    assert list(await journal.scopes()) == scopes
    for scope in scopes:
        assert (await journal.state(scope)).sequence == 4


# --- scopes -------------------------------------------------------------------------------------------------------------


async def test_creating_again_says_so_and_keeps_the_incarnation(open_journal: OpenJournal) -> None:
    journal = open_journal()
    first = await journal.create(SCOPE)
    for again in (await journal.create(SCOPE), await open_journal().create(SCOPE)):
        assert (again.created, again.incarnation) == (False, first.incarnation)
    assert first.created
    assert (await read_history(journal)).types == [EventType.SCOPE_CREATED]


async def test_an_unknown_scope_names_the_near_one(journal: Journal) -> None:
    near, far = Scope("journal-tset"), Scope("0")
    for operation in (journal.state, lambda scope: journal.acquire(scope, ALICE)):
        with pytest.raises(InvalidContractError, match="did you mean journal-test") as caught:
            await operation(near)
        assert caught.value.code is Code.UNKNOWN_SCOPE
    with pytest.raises(InvalidContractError) as nothing:
        await journal.state(far)
    assert "did you mean" not in nothing.value.message


async def test_a_scope_without_genesis_is_refused(journal: Journal) -> None:
    empty, foreign = Scope("empty"), Scope("foreign")
    for scope in (empty, foreign):
        await journal._log.create(scope)
    await journal._log.append(foreign, [Outgoing(b"something else")])
    for scope in (empty, foreign):
        with pytest.raises(IntegrityError) as caught:
            await journal.acquire(scope, ALICE)
        assert caught.value.code is Code.NO_GENESIS
    assert (await journal.create(empty)).created
    with pytest.raises(IntegrityError) as caught:
        await journal.create(foreign)
    assert caught.value.code is Code.NO_GENESIS


async def test_an_authenticated_scope_is_read_with_its_key_alone(open_journal: OpenJournal) -> None:
    def keyed(*secrets: bytes) -> Codec:
        return Codec(keyring=Keyring(*(Key(secret * 32) for secret in secrets)))

    async with open_journal(codec=keyed(b"a")) as journal:
        await journal.create(SCOPE)
        async with journal.lease(SCOPE, ALICE) as lease:
            await journal.begin_plan(lease, plan_record(lease, chain_of(1)))
    for codec, code in ((Codec(), Code.KEY_REQUIRED), (keyed(b"b"), Code.FORGED)):
        with pytest.raises(ForgedError) as caught:
            await open_journal(codec=codec).state(SCOPE)
        assert caught.value.code is code
    rotated = open_journal(codec=keyed(b"b", b"a"))
    async with rotated.lease(SCOPE, BOB) as lease:
        assert await rotated.load_open_plan(lease) is not None
    assert (await read_history(rotated)).voids == []


CREATE = """
import asyncio, sys
from journal.identities import Scope
from tests.places import journal_at, place_of

async def main():
    journal = journal_at(place_of(sys.argv[1]))
    sys.stdin.read()
    print((await journal.create(Scope("raced"))).created)
    await journal.close()

asyncio.run(main())
"""


async def test_of_many_processes_that_create_one_scope_in_a_new_place_exactly_one_does(place: Place) -> None:
    def race() -> list[str]:
        reading, writing = os.pipe()
        command = [sys.executable, "-c", CREATE, str(place)]
        children = [
            subprocess.Popen(command, cwd=ROOT, stdin=reading, stdout=subprocess.PIPE, text=True) for _ in range(5)
        ]
        os.close(reading)
        os.close(writing)  # they all go
        return [child.communicate(timeout=30)[0].strip() for child in children]

    assert sorted(await asyncio.to_thread(race)) == ["False"] * 4 + ["True"]


# --- the past -----------------------------------------------------------------------------------------------------------


async def test_the_state_as_of_every_sequence_and_position_is_what_it_was_then(journal: Journal, lease: Lease) -> None:
    manifests = chain_of(3)
    seen = {}

    async def remember() -> None:
        state = await journal.state(SCOPE)
        seen[state.position] = (state.sequence, state.canonical())

    await remember()
    await journal.begin_plan(lease, plan_record(lease, manifests))
    await remember()
    for manifest in manifests:
        await journal.record_applied(lease, applied(lease, manifest))
        await remember()
    for position, (sequence, canonical) in seen.items():
        assert (await journal.state(SCOPE, as_of=Position(position))).canonical() == canonical
        if sequence:
            assert (await journal.state(SCOPE, as_of=Sequence(sequence))).canonical() == canonical
    latest = await journal.state(SCOPE)
    for beyond in (Sequence(10_000), Position(10_000), datetime(3000, 1, 1, tzinfo=UTC)):
        assert (await journal.state(SCOPE, as_of=beyond)).canonical() == latest.canonical()


async def test_the_state_as_of_a_time_is_that_of_the_events_recorded_until_then(journal: Journal, lease: Lease) -> None:
    manifests = chain_of(3)
    await journal.begin_plan(lease, plan_record(lease, manifests))
    for manifest in manifests:
        await journal.record_applied(lease, applied(lease, manifest))
    state = empty_state(SCOPE)
    async with aclosing(journal.replay(SCOPE, state=state)) as events:
        async for event, _ in events:
            assert isinstance(event, Event)
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=event.recorded_at)
            then = await journal.state(SCOPE, as_of=moment)
            assert then.position is not None
            assert then.position >= event.position
            earlier = moment - timedelta(microseconds=1)
            if event.position > 0:
                assert ((await journal.state(SCOPE, as_of=earlier)).position or 0) < event.position
    with pytest.raises(InvalidContractError) as caught:
        await journal.state(SCOPE, as_of=datetime(2000, 1, 1, tzinfo=UTC))
    assert caught.value.code is Code.NOT_YET_CREATED
    with pytest.raises(InvalidContractError):
        await journal.state(SCOPE, as_of=datetime(2030, 1, 1))  # noqa: DTZ001  (that it has no zone is the point)


async def test_a_state_that_was_handed_out_does_not_change(journal: Journal, lease: Lease) -> None:
    state = await journal.state(SCOPE)
    canonical = state.canonical()
    await journal.begin_plan(lease, plan_record(lease, chain_of(1)))
    assert state.canonical() == canonical
    state.active.clear()
    state.sequence = 99
    assert (await journal.state(SCOPE)).sequence == 1


async def test_replay_gives_every_event_with_its_verdict_and_the_state_follows(journal: Journal, lease: Lease) -> None:
    await journal.begin_plan(lease, plan_record(lease, chain_of(1)))
    await journal._log.append(SCOPE, [Outgoing(b"noise")])
    await journal.release(lease)
    state = empty_state(SCOPE)
    verdicts = []
    async with aclosing(journal.replay(SCOPE, state=state)) as events:
        async for event, verdict in events:
            assert state.position == event.position
            verdicts.append(verdict.sequence if isinstance(verdict, Admitted) else verdict.reason)
    assert verdicts == [None, None, 1, Code.UNDECODABLE, None]
    assert state.canonical() == (await journal.state(SCOPE)).canonical()
