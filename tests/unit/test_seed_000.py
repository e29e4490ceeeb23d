"""Every test of seed 000 has its counterpart here: the same situation, the same verdict and code.

Where the seed's test drives a store in memory, this one drives the real journal on a file, with the store's operations
under the seed's names. Each docstring names the test of the seed that it stands for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.control import MAX_BACKFILL_OBSERVATIONS, Cancellation, Control, ResourceLimits
from journal.entries import active_applied_entries
from journal.errors import (
    Code,
    FencedError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    LeaseContendedError,
    OperationCancelledError,
    ResourceLimitError,
)
from journal.identities import Fingerprint, HolderId, Sequence
from journal.journal import Journal
from journal.lease import Lease
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.migrations.manifest import verify_rollback
from journal.records import AppliedRecord, JournalEntry, RolledBackRecord
from journal.recovery import (
    BackfillObservation,
    RecoveryDecision,
    decide_backfill_recovery,
    decide_group_recovery,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind
from tests.factories import (
    SCOPE,
    digest_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    print_of,
    rollback_plan_record,
)

MANIFEST = manifest_of(1)
BEFORE = GroupEventKind.BEFORE_COMMIT
AT_ONCE = timedelta(0)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    """A journal on a file of its own, in which the scope exists."""
    path = tmp_path / "journal.db"
    async with Journal(SQLiteLog(path), SQLiteLeases(path)) as opened:
        await opened.create(SCOPE)
        yield opened


async def acquire(journal: Journal, holder: str) -> Lease:
    return await journal.acquire(SCOPE, HolderId(holder), wait=AT_ONCE)


async def refused(operation: Awaitable[Any]) -> JournalError:
    with pytest.raises(JournalError) as caught:
        await operation
    return caught.value


async def assert_stale(operation: Awaitable[Any]) -> None:
    error = await refused(operation)
    assert (type(error), error.code) == (FencedError, Code.STALE_FENCE)


def applied(lease: Lease) -> AppliedRecord:
    return AppliedRecord.from_verified_manifest(lease, MANIFEST)


def rolled_back(lease: Lease) -> RolledBackRecord:
    return RolledBackRecord.from_verified_rollback(lease, verify_rollback(MANIFEST))


def test_controls_cancel_and_limits_only_tighten():
    """Seed: `migration_controls_cancel_and_only_tighten_shared_ceilings`."""
    cancellation = Cancellation()
    control = Control(cancellation, limits=ResourceLimits.tightened(7, 2**64 - 1))

    assert control.limits.transaction_groups == 7
    assert control.limits.backfill_observations == MAX_BACKFILL_OBSERVATIONS
    control.check()

    cancellation.cancel()
    cancellation.cancel()
    with pytest.raises(OperationCancelledError) as caught:
        control.check()
    assert caught.value.code == "migration_execution_cancelled"


def test_a_control_has_one_absolute_deadline():
    """Seed: `migration_control_uses_one_absolute_deadline`."""
    with pytest.raises(ResourceLimitError) as caught:
        Control(deadline=100.0, clock=lambda: 100.0).check()
    assert caught.value.code == "migration_execution_deadline_exceeded"


def test_equality_of_leases_includes_the_journal_that_issued_them():
    """Seed: `bound_lease_equality_includes_process_local_binding_identity`, on the lease as a value."""
    token = object()
    same, clone = (replace(lease_of("owner"), binding=token) for _ in range(2))
    foreign = replace(lease_of("owner"), binding=object())

    assert same == clone
    assert same != foreign
    assert same != lease_of("owner")
    assert lease_of("owner") == lease_of("owner")


async def test_a_journal_knows_its_own_leases(journal: Journal, tmp_path: Path):
    """Seed: `bound_lease_equality_includes_process_local_binding_identity`, on the lease as the journal issues it."""
    lease = await acquire(journal, "owner")
    path = tmp_path / "journal.db"
    leases = SQLiteLeases(path)
    async with Journal(SQLiteLog(path), leases) as other:
        assert lease.is_bound_to(journal)
        assert not lease.is_bound_to(other)
        assert lease != Lease(lease.grant, lease.ttl, leases, other, 0.0)
        error = await refused(begin(other, lease))
        assert (type(error), error.code) == (InvalidContractError, Code.FOREIGN_LEASE)


async def begin(journal: Journal, lease: Lease) -> JournalEntry[Any]:
    return await journal.begin_plan(lease, plan_record(lease, [MANIFEST]))


async def test_sequences_grow_and_every_write_under_a_stale_fence_is_refused(journal: Journal):
    """Seed: `store_assigns_monotonic_sequences_and_rejects_every_stale_fence_write`.

    One verdict differs by design (section 7): releasing a stale lease again is a no-op, not an error, and leaves the
    lease of the one that holds it alone.
    """
    lease_a = await acquire(journal, "owner-a")
    contended = await refused(acquire(journal, "owner-b"))
    assert (type(contended), contended.code) == (LeaseContendedError, Code.LEASE_CONTENDED)
    plan_a = plan_record(lease_a, [MANIFEST])
    plan_entry = await journal.begin_plan(lease_a, plan_a)
    event_entry = await journal.record_group_event(lease_a, group_record(lease_a, MANIFEST, BEFORE))
    assert (plan_entry.sequence, event_entry.sequence) == (1, 2)
    await journal.release(lease_a)

    lease_b = await acquire(journal, "owner-b")
    assert lease_b.fence > lease_a.fence
    await assert_stale(journal.begin_plan(lease_a, plan_a))
    await assert_stale(journal.record_group_event(lease_a, group_record(lease_a, MANIFEST, BEFORE)))
    await assert_stale(journal.record_applied(lease_a, applied(lease_a)))
    await assert_stale(journal.load_applied(lease_a))
    await journal.release(lease_a)
    recovery_event = await journal.record_group_event(lease_b, group_record(lease_b, MANIFEST, BEFORE))
    assert recovery_event.sequence == 3
    await journal.release(lease_b)

    lease_c = await acquire(journal, "owner-c")
    assert lease_c.fence > lease_b.fence
    open_plan = await journal.load_open_plan(lease_c)
    assert open_plan is not None
    assert [event.record.fence for event in open_plan.events] == [lease_a.fence, lease_b.fence]
    assert open_plan.plan == plan_entry


async def test_a_record_of_another_lease_is_as_stale_as_the_lease(journal: Journal):
    """Seed: the second half of every write of its store: scope and fence of the record are those of the lease."""
    lease_a = await acquire(journal, "owner-a")
    plan_a = plan_record(lease_a, [MANIFEST])
    await journal.release(lease_a)
    lease_b = await acquire(journal, "owner-b")
    await assert_stale(journal.begin_plan(lease_b, plan_a))
    await assert_stale(journal.record_applied(lease_b, applied(lease_a)))


async def test_applied_records_are_bound_to_the_plan_idempotent_and_close_it(journal: Journal):
    """Seed: `applied_records_are_plan_bound_idempotent_and_close_the_completed_plan`."""
    lease = await acquire(journal, "applied-owner")
    record = applied(lease)

    error = await refused(journal.record_applied(lease, record))
    assert (type(error), error.code) == (InvalidContractError, Code.NO_OPEN_PLAN)
    await journal.begin_plan(lease, plan_record(lease, [MANIFEST]))

    foreign = AppliedRecord.from_verified_manifest(lease, replace(MANIFEST, digest=digest_of("foreign")))
    error = await refused(journal.record_applied(lease, foreign))
    assert (type(error), error.code) == (IntegrityError, Code.FOREIGN_APPLIED_RECORD)

    first = await journal.record_applied(lease, record)
    duplicate = await journal.record_applied(lease, record)
    assert duplicate == first
    assert await journal.load_open_plan(lease) is None
    assert await journal.load_applied(lease) == [first]


async def test_a_retry_under_a_newer_fence_is_a_conflict(journal: Journal):
    """Seed: the contract of its `record_applied`: idempotent only under the same fence."""
    lease = await acquire(journal, "owner")
    await journal.begin_plan(lease, plan_record(lease, [MANIFEST]))
    first = await journal.record_applied(lease, applied(lease))
    await journal.release(lease)
    later = await acquire(journal, "owner")
    error = await refused(journal.record_applied(later, applied(later)))
    assert (type(error), error.code) == (IntegrityError, Code.APPLIED_IDENTITY_CONFLICT)
    assert await journal.load_applied(later) == [first]


async def test_retirement_is_append_only_exclusive_and_frees_the_identity(journal: Journal):
    """Seed: `retirement_is_append_only_exclusive_and_reopens_the_identity`."""
    lease = await acquire(journal, "retirement-owner")
    plan = plan_record(lease, [MANIFEST])
    rollback_plan = rollback_plan_record(lease, [MANIFEST], [MANIFEST])

    # Applied by an ordinary plan, during which no rollback may begin.
    await journal.begin_plan(lease, plan)
    error = await refused(journal.begin_rollback_plan(lease, rollback_plan))
    assert (type(error), error.code) == (InvalidContractError, Code.PLAN_ALREADY_OPEN)
    await journal.record_applied(lease, applied(lease))
    assert len(await journal.load_applied(lease)) == 1

    # Retired by a rollback plan only, during which no plan may begin.
    error = await refused(journal.record_rolled_back(lease, rolled_back(lease)))
    assert (type(error), error.code) == (InvalidContractError, Code.NO_OPEN_PLAN)
    await journal.begin_rollback_plan(lease, rollback_plan)
    error = await refused(journal.begin_plan(lease, plan))
    assert (type(error), error.code) == (InvalidContractError, Code.PLAN_ALREADY_OPEN)
    first = await journal.record_rolled_back(lease, rolled_back(lease))
    duplicate = await journal.record_rolled_back(lease, rolled_back(lease))
    assert duplicate == first
    assert await journal.load_open_rollback_plan(lease) is None
    assert await journal.load_applied(lease) == []
    assert await journal.load_rolled_back(lease) == [first]

    # The identity is free, and may be applied anew.
    await journal.begin_plan(lease, plan)
    again = await journal.record_applied(lease, applied(lease))
    assert await journal.load_applied(lease) == [again]
    assert await journal.load_rolled_back(lease) == [first]


def test_unmatched_retirements_are_corrupt_history():
    """Seed: `unmatched_retirements_are_corrupt_history`."""
    record = RolledBackRecord.from_verified_rollback(lease_of("orphan-owner"), verify_rollback(MANIFEST))
    orphan = JournalEntry(Sequence(7), record)
    with pytest.raises(IntegrityError) as caught:
        active_applied_entries([], [orphan])
    assert caught.value.code == "migration_execution_unmatched_retirement"


EXECUTE = RecoveryDecision.EXECUTE_NORMALLY
REPAIR = RecoveryDecision.REPAIR_CHECKPOINT
OPERATOR = RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY
COMMITTED = GroupEventKind.COMMITTED
UNKNOWN = GroupEventKind.COMMIT_OUTCOME_UNKNOWN
ABORTED = GroupEventKind.DEFINITELY_ABORTED
FORMAL = GroupEventKind.FORMAL_ONLY_ADVANCED


def expected_distinct(last: GroupEventKind | None, observed: str) -> RecoveryDecision:
    """The seed's `expected_distinct`."""
    if observed == "source":
        return EXECUTE if last in (None, ABORTED, BEFORE, UNKNOWN) else OPERATOR
    if observed == "target":
        return REPAIR if last in (BEFORE, UNKNOWN, COMMITTED) else OPERATOR
    return OPERATOR


def expected_equal(last: GroupEventKind | None, observed: str) -> RecoveryDecision:
    """The seed's `expected_equal`."""
    if observed != "source":
        return OPERATOR
    if last in (None, ABORTED):
        return EXECUTE
    return REPAIR if last in (COMMITTED, FORMAL) else OPERATOR


@pytest.mark.parametrize("last", [None, *GroupEventKind])
def test_the_recovery_table_is_exhaustive_for_distinct_and_equal_semantics(last: GroupEventKind | None):
    """Seed: `recovery_decision_table_is_exhaustive_for_distinct_and_equal_semantics`."""
    seen: dict[str, Fingerprint | None] = {name: print_of(name) for name in ("source", "target", "neither")}
    seen["unavailable"] = None
    source, target = print_of("source"), print_of("target")
    for name, observed in seen.items():
        decision = decide_group_recovery(last, observed, source=source, target=target)
        assert decision is expected_distinct(last, name), name
        if name != "target":
            decision = decide_group_recovery(last, observed, source=source, target=source)
            assert decision is expected_equal(last, name), name


def test_backfill_counts_and_recovery_fail_closed_without_exact_completion():
    """Seed: `backfill_counts_and_recovery_fail_closed_without_exact_completion`."""
    with pytest.raises(InvalidContractError) as caught:
        BackfillCounts(5, 3, 1, 1)
    assert caught.value.code == "migration_backfill_count_mismatch"
    with pytest.raises(InvalidContractError) as caught:
        BackfillCounts(0, 0, 0, 0)
    assert caught.value.code == "migration_backfill_zero_transaction_groups"

    plan, foreign = print_of("backfill-plan"), print_of("foreign-backfill-plan")
    forward, reverse = Direction.FORWARD, Direction.REVERSE
    incomplete = BackfillObservation(available=True)
    complete = BackfillObservation(
        available=True, completion=BackfillCompletion(plan, forward, BackfillCounts(5, 3, 2, 2))
    )

    assert decide_backfill_recovery(None, incomplete, plan=plan, direction=forward) is EXECUTE
    assert decide_backfill_recovery(None, complete, plan=plan, direction=forward) is EXECUTE
    assert decide_backfill_recovery(BEFORE, incomplete, plan=plan, direction=forward) is OPERATOR
    assert decide_backfill_recovery(UNKNOWN, complete, plan=plan, direction=forward) is REPAIR
    assert decide_backfill_recovery(COMMITTED, complete, plan=foreign, direction=forward) is OPERATOR
    assert decide_backfill_recovery(COMMITTED, complete, plan=plan, direction=reverse) is OPERATOR
