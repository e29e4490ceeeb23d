"""What a store loads: open plans are checked, and the active ledger follows one rule however it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from journal.admission import Admitted
from journal.entries import OpenPlanRecord, OpenRollbackPlanRecord, active_applied_entries
from journal.errors import Code, IntegrityError
from journal.events import Event
from journal.identities import Scope, Sequence as SequenceNumber
from journal.migrations.manifest import VerifiedManifest, verify_rollback
from journal.records import (
    AppliedRecord,
    BackfillEventRecord,
    JournalEntry,
    LedgerImportedRecord,
    MigrationLease,
    RolledBackRecord,
)
from journal.vocabulary import GroupEventKind
from tests.factories import (
    Writer,
    chain_of,
    digest_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    rollback_plan_record,
    step_record,
)

BEFORE, COMMITTED = GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED
ELSEWHERE = Scope("elsewhere")
MANIFESTS = chain_of(2, backfill=True)


def entry(sequence: int, record: Any) -> JournalEntry[Any]:
    return JournalEntry(SequenceNumber(sequence), record)


def backfill(lease: MigrationLease, manifest: VerifiedManifest) -> BackfillEventRecord:
    return BackfillEventRecord.new_apply(lease, manifest, 1, BEFORE)


def reverse_backfill(lease: MigrationLease, manifest: VerifiedManifest) -> BackfillEventRecord:
    return BackfillEventRecord.new_rollback(lease, verify_rollback(manifest), 0, BEFORE)


def group(lease: MigrationLease, manifest: VerifiedManifest) -> Any:
    return group_record(lease, manifest, BEFORE)


def step(lease: MigrationLease, manifest: VerifiedManifest) -> Any:
    return step_record(lease, manifest, BEFORE)


def forward(*events: JournalEntry[Any], backfills: Sequence[JournalEntry[Any]] = (), at: int = 10) -> OpenPlanRecord:
    """A plan of both manifests at sequence `at` under fence 5, with these events."""
    plan = entry(at, plan_record(lease_of(fence=5), MANIFESTS))
    return OpenPlanRecord(plan, tuple(events), tuple(backfills))


def reverse(
    *events: JournalEntry[Any], backfills: Sequence[JournalEntry[Any]] = (), at: int = 10
) -> OpenRollbackPlanRecord:
    plan = entry(at, rollback_plan_record(lease_of(fence=5), MANIFESTS[::-1], MANIFESTS))
    return OpenRollbackPlanRecord(plan, tuple(events), tuple(backfills))


PLANS = pytest.mark.parametrize(
    ("open_plan", "unit", "data"), [(forward, group, backfill), (reverse, step, reverse_backfill)]
)


def assert_invalid(call: Any, *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(IntegrityError) as caught:
        call(*arguments, **keywords)
    assert caught.value.code is Code.INVALID_OPEN_PLAN


# --- open plans ---------------------------------------------------------------------------------------------------------


@PLANS
def test_an_open_plan_has_its_events_behind_it_under_its_fence_or_later_ones(open_plan, unit, data):
    first, second = MANIFESTS
    events = (entry(11, unit(lease_of(fence=5), first)), entry(14, unit(lease_of(fence=8), second)))
    backfills = (entry(12, data(lease_of(fence=5), first)), entry(13, data(lease_of(fence=6), second)))
    loaded = open_plan(*events, backfills=backfills)
    assert (loaded.events, loaded.backfill_events) == (events, backfills)
    assert loaded.plan.sequence == 10


@PLANS
def test_an_open_plan_may_have_no_events(open_plan, unit, data):
    assert open_plan().events == ()
    assert open_plan().backfill_events == ()


@PLANS
def test_events_are_put_in_order_by_sequence_before_they_are_checked(open_plan, unit, data):
    late, early = entry(14, unit(lease_of(fence=8), MANIFESTS[0])), entry(11, unit(lease_of(fence=5), MANIFESTS[0]))
    assert open_plan(late, early).events == (late, early)


@PLANS
@pytest.mark.parametrize("sequence", [1, 9, 10])
def test_an_event_is_behind_its_plan(open_plan, unit, data, sequence):
    assert_invalid(open_plan, entry(sequence, unit(lease_of(fence=5), MANIFESTS[0])))
    assert_invalid(open_plan, backfills=[entry(sequence, data(lease_of(fence=5), MANIFESTS[0]))])


@PLANS
def test_no_two_events_share_a_sequence(open_plan, unit, data):
    lease, manifest = lease_of(fence=5), MANIFESTS[0]
    assert_invalid(open_plan, entry(11, unit(lease, manifest)), entry(11, unit(lease, manifest)))
    assert_invalid(open_plan, entry(11, unit(lease, manifest)), backfills=[entry(11, data(lease, manifest))])


@PLANS
def test_no_event_is_under_an_older_fence_than_the_plan(open_plan, unit, data):
    assert_invalid(open_plan, entry(11, unit(lease_of(fence=4), MANIFESTS[0])))
    assert_invalid(open_plan, backfills=[entry(11, data(lease_of(fence=4), MANIFESTS[0]))])


@PLANS
def test_fences_never_fall_from_event_to_event_of_either_kind(open_plan, unit, data):
    manifest = MANIFESTS[0]
    newer, older = lease_of(fence=8), lease_of(fence=7)
    assert_invalid(open_plan, entry(11, unit(newer, manifest)), entry(12, unit(older, manifest)))
    assert_invalid(open_plan, entry(11, unit(newer, manifest)), backfills=[entry(12, data(older, manifest))])
    assert_invalid(open_plan, entry(12, unit(older, manifest)), backfills=[entry(11, data(newer, manifest))])


@PLANS
def test_an_event_of_a_manifest_that_is_not_planned_is_refused(open_plan, unit, data):
    stranger = manifest_of(7, backfill=True)
    assert_invalid(open_plan, entry(11, unit(lease_of(fence=5), stranger)))
    assert_invalid(open_plan, backfills=[entry(11, data(lease_of(fence=5), stranger))])


@PLANS
def test_identity_and_digest_of_an_event_are_those_of_one_planned_manifest(open_plan, unit, data):
    first, second = MANIFESTS
    mixed = replace(first, digest=second.digest)
    edited = replace(first, digest=digest_of("edited"))
    for manifest in (mixed, edited):
        assert_invalid(open_plan, entry(11, unit(lease_of(fence=5), manifest)))
        assert_invalid(open_plan, backfills=[entry(11, data(lease_of(fence=5), manifest))])


@PLANS
def test_an_event_of_another_scope_is_refused(open_plan, unit, data):
    lease = lease_of(fence=5, scope=ELSEWHERE)
    manifest = chain_of(1, scope=ELSEWHERE, backfill=True)[0]
    assert manifest.digest == MANIFESTS[0].digest
    assert_invalid(open_plan, entry(11, unit(lease, manifest)))
    assert_invalid(open_plan, backfills=[entry(11, data(lease, manifest))])


@PLANS
def test_what_was_loaded_cannot_be_changed(open_plan, unit, data):
    with pytest.raises(FrozenInstanceError):
        open_plan().events = ()


# --- the active ledger --------------------------------------------------------------------------------------------------


def applied(sequence: int, manifest: VerifiedManifest, fence: int = 1) -> JournalEntry[AppliedRecord]:
    return entry(sequence, AppliedRecord.from_verified_manifest(lease_of(fence=fence), manifest))


def retired(sequence: int, manifest: VerifiedManifest, fence: int = 1) -> JournalEntry[RolledBackRecord]:
    return entry(sequence, RolledBackRecord.from_verified_rollback(lease_of(fence=fence), verify_rollback(manifest)))


ONE, TWO = MANIFESTS
EDITED = replace(ONE, digest=digest_of("edited"))


def test_what_is_not_retired_stays_active_in_its_order():
    ledger = [applied(1, ONE), applied(2, TWO)]
    assert active_applied_entries(ledger, []) == ledger
    assert active_applied_entries([], []) == []


def test_a_retirement_consumes_the_latest_matching_record_before_it():
    ledger = [applied(1, ONE), applied(3, ONE), applied(6, ONE)]
    assert active_applied_entries(ledger, [retired(5, ONE)]) == [ledger[0], ledger[2]]


def test_each_retirement_consumes_one_record():
    ledger = [applied(1, ONE), applied(2, ONE), applied(3, TWO)]
    assert active_applied_entries(ledger, [retired(4, ONE), retired(5, ONE)]) == [ledger[2]]


def test_a_migration_that_was_retired_and_applied_again_is_active():
    ledger = [applied(1, ONE), applied(3, ONE)]
    assert active_applied_entries(ledger, [retired(2, ONE)]) == [ledger[1]]


def test_the_lists_may_come_in_any_order():
    ledger = [applied(6, ONE), applied(1, ONE), applied(3, TWO)]
    assert active_applied_entries(ledger, [retired(7, ONE), retired(2, ONE)]) == [ledger[2]]


@pytest.mark.parametrize(
    ("ledger", "retirements"),
    [
        ([], [retired(7, ONE)]),
        ([applied(1, TWO)], [retired(2, ONE)]),
        ([applied(1, EDITED)], [retired(2, ONE)]),
        ([applied(2, ONE)], [retired(1, ONE)]),
        ([applied(1, ONE)], [retired(2, ONE), retired(3, ONE)]),
        ([applied(1, ONE), applied(4, ONE)], [retired(2, ONE), retired(3, ONE)]),
    ],
)
def test_a_retirement_that_matches_no_active_record_before_it_is_corrupt_history(ledger, retirements):
    with pytest.raises(IntegrityError) as caught:
        active_applied_entries(ledger, retirements)
    assert caught.value.code is Code.UNMATCHED_RETIREMENT


def test_migrations_that_one_import_brought_are_retired_one_by_one():
    """Imported migrations share the import's sequence, and are still as many entries."""
    ledger = [applied(1, ONE), applied(1, TWO)]
    assert active_applied_entries(ledger, [retired(2, TWO)]) == [ledger[0]]


def by_the_seeds_words(
    ledger: Sequence[JournalEntry[AppliedRecord]], retirements: Sequence[JournalEntry[RolledBackRecord]]
) -> list[JournalEntry[AppliedRecord]] | None:
    """The rule as one reads it, quadratic and without cleverness; None for corrupt history."""
    active = list(ledger)
    for retirement in retirements:
        identity = (retirement.record.migration_id, retirement.record.manifest_digest)
        before = [
            candidate
            for candidate in active
            if candidate.sequence < retirement.sequence
            and (candidate.record.migration_id, candidate.record.manifest_digest) == identity
        ]
        if not before:
            return None
        active.remove(max(before, key=lambda candidate: candidate.sequence))
    return active


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[JournalEntry[Any]], list[JournalEntry[Any]]]:
    """Applied and retirement records of three identities, dense sequences, mostly but not always matching."""
    ledger: list[JournalEntry[Any]] = []
    retirements: list[JournalEntry[Any]] = []
    words = draw(st.lists(st.tuples(st.booleans(), st.sampled_from([ONE, TWO, EDITED])), max_size=10))
    for sequence, (apply, manifest) in enumerate(words, start=1):
        target, make = (ledger, applied) if apply else (retirements, retired)
        target.append(make(sequence, manifest))
    return draw(st.permutations(ledger)), draw(st.permutations(retirements))


@given(histories())
def test_the_active_ledger_is_the_seeds_on_any_history(history):
    ledger, retirements = history
    expected = by_the_seeds_words(ledger, retirements)
    if expected is None:
        with pytest.raises(IntegrityError) as caught:
            active_applied_entries(ledger, retirements)
        assert caught.value.code is Code.UNMATCHED_RETIREMENT
    else:
        assert active_applied_entries(ledger, retirements) == expected


# --- the same rule, one event at a time ---------------------------------------------------------------------------------

CHAIN = chain_of(4)


class History:
    """A log that grows by random moves, and the applied prefix of the chain that it should have."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.lease = self.writer.acquire()
        self.count = 0

    def move(self, word: str, amount: int) -> None:
        match word:
            case "apply":
                amount = min(amount, len(CHAIN) - self.count)
                if amount:
                    self.writer.apply(self.lease, CHAIN[self.count : self.count + amount], CHAIN[: self.count])
                    self.count += amount
            case "roll back":
                amount = min(amount, self.count)
                if amount:
                    applied = CHAIN[: self.count]
                    self.writer.roll_back(self.lease, applied[::-1][:amount], applied)
                    self.count -= amount
            case "retry":  # exact records again: admitted, and counted once
                for manifest in CHAIN[: self.count][-amount:]:
                    self.writer.write(AppliedRecord.from_verified_manifest(self.lease, manifest), self.lease)
            case "hand over":
                self.writer.release(self.lease)
                self.lease = self.writer.acquire(f"owner-{amount}")
            case "stale":  # void: under a lease that never was
                lease = lease_of(fence=self.lease.fence + 1)
                self.writer.write(AppliedRecord.from_verified_manifest(lease, CHAIN[amount - 1]), lease)

    def recorded(self, record_class: type[Any]) -> list[JournalEntry[Any]]:
        """Every record of a class that counts, once, by reading the whole log again."""
        entries: dict[int, JournalEntry[Any]] = {}
        for event, verdict in zip(self.writer.read(), self.writer.verdicts, strict=True):
            if isinstance(event, Event) and isinstance(verdict, Admitted) and isinstance(event.record, record_class):
                assert verdict.sequence is not None
                entries.setdefault(verdict.sequence, entry(verdict.sequence, event.record))
        return list(entries.values())


MOVES = st.tuples(st.sampled_from(["apply", "roll back", "retry", "hand over", "stale"]), st.integers(1, 4))


@given(st.lists(MOVES, max_size=10))
def test_the_ledger_that_the_fold_keeps_is_the_one_computed_from_the_whole_history(moves):
    history = History()
    for word, amount in moves:
        history.move(word, amount)
    whole = active_applied_entries(history.recorded(AppliedRecord), history.recorded(RolledBackRecord))
    assert history.writer.state.active_ledger() == whole
    assert [active.record.migration_id for active in whole] == [manifest.id for manifest in CHAIN[: history.count]]


def test_the_random_histories_do_apply_retire_and_apply_again():
    history = History()
    for word, amount in [("apply", 3), ("roll back", 2), ("hand over", 1), ("apply", 1), ("stale", 1), ("retry", 1)]:
        history.move(word, amount)
    assert len(history.recorded(AppliedRecord)) == 4
    assert len(history.recorded(RolledBackRecord)) == 2
    assert [active.record.fence for active in history.writer.state.active_ledger()] == [1, 2]


def test_an_imported_ledger_that_is_rolled_back_in_part_keeps_the_rest():
    writer = Writer()
    lease = writer.acquire()
    adopted = LedgerImportedRecord.from_verified_manifests(
        lease, CHAIN, CHAIN[-1].target, operator="ada", reason="adopted"
    )
    writer.write(adopted, lease)
    imported = writer.state.active_ledger()
    assert {active.sequence for active in imported} == {1}
    writer.roll_back(lease, [CHAIN[3]], CHAIN)
    assert writer.state.active_ledger() == imported[:3]
    retirement = entry(5, RolledBackRecord.from_verified_rollback(lease, verify_rollback(CHAIN[3])))
    assert active_applied_entries(imported, [retirement]) == imported[:3]
