"""Views over the state of a scope, and its timeline."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from journal.errors import Code, InvalidContractError, JournalError
from journal.identities import Fence, HolderId, LeaseId, Scope
from journal.ports import Grant
from journal.records import (
    BackfillCheckpointRecord,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    RecoveryAttestedRecord,
)
from journal.state import journal_entry
from journal.vocabulary import BackfillCounts, Direction, GroupEventKind, UnitKind
from projections.ledger import TimelineRow, lease_view, timeline, view
from tests.factories import (
    EPOCH_MICROS,
    SCOPE,
    Writer,
    backfill_record,
    chain_of,
    group_record,
    lease_of,
    plan_record,
    rollback_plan_record,
    state_of,
    step_record,
)
from tests.written import events_of, reading, stored

BEFORE, COMMITTED = GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED
EXPIRES = 1_764_500_060.0


async def rows_of(writer: Writer) -> list[TimelineRow]:
    return [row async for row in timeline(reading(events_of(writer), scope=writer.scope), writer.scope)]


# --- views ------------------------------------------------------------------------------------------------------------


def test_a_new_scope_has_nothing_active() -> None:
    seen = view(Writer().state)
    assert (seen.scope, seen.position, seen.sequence, seen.fence, seen.admitted) == (SCOPE, 0, 0, 0, 1)
    assert (seen.ledger, seen.plan, seen.lease) == ((), None, None)


def test_the_ledger_lists_what_is_applied_in_order_with_its_origin() -> None:
    writer, manifests = Writer(), chain_of(3)
    lease = writer.acquire()
    record = LedgerImportedRecord.from_verified_manifests(
        lease, manifests[:2], state_of("3"), operator="ann", reason="adopted"
    )
    writer.write(record, lease)
    writer.apply(lease, manifests[2:], manifests[:2])
    seen = view(writer.state)
    assert [(row.migration, row.sequence, row.imported) for row in seen.ledger] == [
        ("example/0001_step", 1, True),
        ("example/0002_step", 1, True),
        ("example/0003_step", 5, False),
    ]
    assert [row.digest for row in seen.ledger] == [manifest.digest for manifest in manifests]
    assert seen.ledger[0].recorded_at == EPOCH_MICROS + 2
    assert seen.ledger[0].fence == lease.fence


def test_an_open_plan_shows_each_migration_with_the_units_that_were_begun() -> None:
    writer, manifests = Writer(), chain_of(3, backfill=True)
    lease = writer.acquire()
    writer.write(plan_record(lease, manifests), lease)
    writer.write(group_record(lease, manifests[0], BEFORE), lease)
    writer.write(group_record(lease, manifests[0], COMMITTED), lease)
    writer.write(backfill_record(lease, manifests[0], BEFORE), lease)
    plan = view(writer.state).plan
    assert plan is not None
    assert (plan.direction, plan.sequence, plan.done) == (Direction.FORWARD, 1, 0)
    assert [(row.migration, len(row.units)) for row in plan.migrations] == [
        ("example/0001_step", 2),
        ("example/0002_step", 0),
        ("example/0003_step", 0),
    ]
    group, backfill = plan.units
    assert (group.unit, group.ordinal, group.state, group.in_doubt) == (UnitKind.GROUP, 0, COMMITTED, False)
    assert (backfill.unit, backfill.ordinal, backfill.state, backfill.in_doubt) == (UnitKind.BACKFILL, 1, BEFORE, True)


def test_a_backfill_shows_its_progress_and_then_its_terminal_counts() -> None:
    writer, manifests = Writer(), chain_of(1, backfill=True)
    lease = writer.acquire()
    writer.write(plan_record(lease, manifests), lease)
    writer.write(backfill_record(lease, manifests[0], BEFORE), lease)
    assert [unit.counts for unit in view(writer.state).plan.units] == [None]
    progress = BackfillCounts(3, 2, 1, 1)
    writer.write(BackfillCheckpointRecord.new_apply(lease, manifests[0], 1, progress), lease)
    assert [unit.counts for unit in view(writer.state).plan.units] == [progress]
    writer.write(backfill_record(lease, manifests[0], COMMITTED), lease)
    assert [unit.counts for unit in view(writer.state).plan.units] == [BackfillCounts(5, 3, 2, 2)]


def test_a_rollback_plan_shows_its_reverse_steps_and_what_is_done() -> None:
    writer, manifests = Writer(), chain_of(2)
    lease = writer.acquire()
    writer.apply(lease, manifests)
    writer.write(rollback_plan_record(lease, manifests[::-1], manifests), lease)
    writer.write(step_record(lease, manifests[1], BEFORE), lease)
    seen = view(writer.state)
    assert seen.plan is not None
    assert seen.plan.direction is Direction.REVERSE
    assert [row.migration for row in seen.plan.migrations] == ["example/0002_step", "example/0001_step"]
    assert [unit.unit for unit in seen.plan.units] == [UnitKind.ROLLBACK_STEP]
    assert len(seen.ledger) == 2


def test_views_are_values_that_later_events_do_not_change() -> None:
    writer = Writer()
    lease = writer.acquire()
    writer.write(plan_record(lease, chain_of(1)), lease)
    seen = view(writer.state)
    writer.write(group_record(lease, chain_of(1)[0], BEFORE), lease)
    assert seen.plan is not None
    assert list(seen.plan.units) == []
    with pytest.raises(FrozenInstanceError):
        seen.sequence = 9


# --- leases -----------------------------------------------------------------------------------------------------------


def grant(fence: int, lease_id: LeaseId, holder: str = "owner") -> Grant:
    return Grant(SCOPE, HolderId(holder), Fence(fence), lease_id, EXPIRES)


def test_a_lease_that_log_and_store_agree_on_is_shown_with_what_each_knows() -> None:
    writer = Writer()
    lease = writer.acquire()
    seen = lease_view(writer.state, grant(1, lease.lease_id))
    assert seen is not None
    assert (seen.holder, seen.fence, seen.ttl_seconds, seen.acquired_at) == ("owner", 1, 30.0, EPOCH_MICROS + 1)
    assert (seen.in_log, seen.in_store, seen.expires_at) == (True, True, EXPIRES)
    assert (seen.remaining_seconds(EXPIRES - 5), seen.expired(EXPIRES - 5)) == (5, False)
    assert (seen.remaining_seconds(EXPIRES + 5), seen.expired(EXPIRES + 5)) == (0, True)


def test_a_lease_that_the_store_forgot_keeps_nobody_out() -> None:
    writer = Writer()
    writer.acquire()
    seen = lease_view(writer.state, None)
    assert seen is not None
    assert (seen.in_store, seen.remaining_seconds(EXPIRES), seen.expired(0.0)) == (False, None, True)


def test_a_lease_that_is_being_taken_is_shown_before_the_log_has_it() -> None:
    writer = Writer()
    writer.acquire()
    seen = lease_view(writer.state, grant(2, LeaseId.random(), "successor"))
    assert seen is not None
    assert (seen.holder, seen.in_log, seen.in_store) == ("successor", False, True)


def test_a_store_that_lost_its_memory_does_not_hide_the_lease_that_counts() -> None:
    writer = Writer()
    writer.acquire(fence=7)
    seen = lease_view(writer.state, grant(1, LeaseId.random(), "confused"))
    assert seen is not None
    assert (seen.holder, seen.fence, seen.in_store) == ("owner", 7, False)


def test_a_released_scope_has_no_lease() -> None:
    writer = Writer()
    writer.release(writer.acquire())
    assert lease_view(writer.state, None) is None


# --- timeline ---------------------------------------------------------------------------------------------------------


async def test_the_timeline_shows_every_event_with_its_verdict_fence_holder_and_sequence() -> None:
    writer, manifests = Writer(), chain_of(1)
    writer.apply(writer.acquire("alice"), manifests)
    rows = await rows_of(writer)
    assert [(row.position, row.sequence, row.type, row.holder, row.kind) for row in rows] == [
        (0, None, "ScopeCreated", None, None),
        (1, None, "LeaseAcquired", "alice", None),
        (2, 1, "PlanOpened", "alice", None),
        (3, 2, "GroupEvent", "alice", "before_commit"),
        (4, 3, "GroupEvent", "alice", "committed"),
        (5, 4, "Applied", "alice", None),
    ]
    assert all(row.admitted and row.reason is None for row in rows)
    assert [row.migration for row in rows[3:]] == ["example/0001_step"] * 3
    assert [row.recorded_at for row in rows[1:]] == [EPOCH_MICROS + number for number in range(1, 6)]
    assert rows[-1].hash == writer.state.head
    assert [row.event_id for row in rows[1:3]] == [(1).to_bytes(16, "big"), (2).to_bytes(16, "big")]


async def test_a_stale_writers_late_event_is_void_and_still_names_its_holder() -> None:
    writer, (manifest,) = Writer(), chain_of(1)
    stale = writer.acquire("alice")
    writer.write(plan_record(stale, [manifest]), stale)
    writer.acquire("bob")
    writer.write(group_record(stale, manifest, BEFORE), stale)
    last = (await rows_of(writer))[-1]
    assert (last.admitted, last.reason, last.sequence) == (False, Code.STALE_FENCE, None)
    assert (last.holder, last.fence, last.migration) == ("alice", 1, "example/0001_step")


async def test_who_wrote_under_a_lease_that_never_began_is_known_too() -> None:
    writer = Writer()
    writer.acquire("bob", fence=5)
    void = lease_of("mallory", 3)
    writer.write(LeaseAcquiredRecord.new(void.holder, 1), void)
    writer.write(plan_record(void, chain_of(1)), void)
    rows = await rows_of(writer)
    assert [(row.holder, row.reason) for row in rows[2:]] == [
        ("mallory", Code.FENCE_NOT_MONOTONIC),
        ("mallory", Code.STALE_FENCE),
    ]


async def test_a_void_acquisition_cannot_rename_the_holder_of_a_lease() -> None:
    writer = Writer()
    lease = writer.acquire("alice")
    writer.write(LeaseAcquiredRecord.new(HolderId("mallory"), 1), lease)
    writer.write(LeaseReleasedRecord.new(lease.holder), lease)
    assert [row.holder for row in await rows_of(writer)][1:] == ["alice", "alice", "alice"]


async def test_bytes_that_are_no_event_are_a_row_too() -> None:
    writer = Writer()
    writer.append(b"not an event")
    row = (await rows_of(writer))[-1]
    assert (row.position, row.reason, row.type, row.summary) == (
        1,
        Code.UNDECODABLE,
        None,
        "12 bytes that are no event",
    )


async def test_a_void_event_with_an_unreadable_body_is_a_row_too() -> None:
    writer = Writer()
    lease = writer.acquire()
    data = writer.encode(LeaseReleasedRecord.new(lease.holder), lease_id=lease.lease_id, fence=1, parent=bytes(32))
    writer.append(data[:-1])
    row = (await rows_of(writer))[-1]
    assert (row.type, row.reason, row.summary) == ("LeaseReleased", Code.STALE_PARENT, "unreadable body")


async def test_an_event_that_stops_the_fold_is_raised_behind_the_rows_before_it() -> None:
    writer = Writer()
    lease = writer.acquire()
    data = writer.encode(LeaseReleasedRecord.new(lease.holder), lease_id=lease.lease_id, fence=1)
    seen: list[int] = []

    async def read() -> None:
        async for row in timeline(reading(stored([*writer.data, data[:-1]])), SCOPE):
            seen.append(row.position)

    with pytest.raises(JournalError) as caught:
        await read()
    assert (seen, caught.value.code) == ([0, 1], Code.UNDECODABLE_BODY)


async def test_the_timeline_of_an_unknown_scope_is_refused() -> None:
    with pytest.raises(InvalidContractError) as caught:
        await anext(timeline(reading([]), Scope("other")))
    assert caught.value.code == Code.UNKNOWN_SCOPE


async def test_what_operators_did_is_told_with_their_reasons() -> None:
    writer, manifests = Writer(), chain_of(2, backfill=True)
    lease = writer.acquire()
    writer.write(plan_record(lease, manifests), lease)
    begun = group_record(lease, manifests[0], BEFORE)
    writer.write(begun, lease)
    attested = RecoveryAttestedRecord.new(
        lease, begun, GroupEventKind.DEFINITELY_ABORTED, observed=None, operator="ann", reason="looked at the server"
    )
    writer.write(attested, lease)
    plan = journal_entry(writer.state.plan.entry)
    writer.write(PlanAbandonedRecord.new(lease, plan, operator="ann", reason="wrong plan"), lease)
    summaries = [row.summary for row in await rows_of(writer)]
    assert summaries[-3:] == [
        "example/0001_step group 0 before_commit",
        "example/0001_step group 0 definitely_aborted, by ann: looked at the server",
        "plan 1, by ann: wrong plan",
    ]


async def test_each_record_of_both_directions_has_a_summary() -> None:
    writer, manifests = Writer(), chain_of(1, backfill=True)
    (manifest,) = manifests
    lease = writer.acquire()
    writer.write(plan_record(lease, manifests), lease)
    writer.write(backfill_record(lease, manifest, BEFORE), lease)
    writer.write(BackfillCheckpointRecord.new_apply(lease, manifest, 1, BackfillCounts(3, 2, 1, 1)), lease)
    writer.write(backfill_record(lease, manifest, COMMITTED), lease)
    assert [row.summary for row in await rows_of(writer)][3:] == [
        "example/0001_step backfill 1 before_commit",
        "example/0001_step backfill 1: 3 rows, 2 changed, 1 batch",
        "example/0001_step backfill 1 committed: 5 rows, 3 changed, 2 batches",
    ]
    other = Writer()
    lease = other.acquire()
    other.apply(lease, chain_of(1))
    other.roll_back(lease, chain_of(1), chain_of(1))
    other.release(lease)
    assert [row.summary for row in await rows_of(other)][6:] == [
        "roll back example/0001_step",
        "example/0001_step reverse step 0 before_commit",
        "example/0001_step reverse step 0 committed",
        "example/0001_step",
        "owner",
    ]
