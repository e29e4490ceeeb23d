"""Logs as careless people write them: random operations, most of them sensible, some impossible, all from one number.

A story is a list of small numbers; `tell` turns it into a log. Equal numbers make equal bytes, so a property test can
shrink a story and a fuzz test can repeat one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hypothesis import strategies as st

from journal.events import NO_LEASE
from journal.identities import LeaseId, Place, Sequence as SequenceNumber
from journal.migrations.manifest import VerifiedManifest, verify_rollback
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    JournalEntry,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    MigrationLease,
    PlanAbandonedRecord,
    Record,
    RecoveryAttestedRecord,
    RolledBackRecord,
    ScopeArrivedRecord,
    ScopeAwaitedRecord,
    ScopeMovedRecord,
    ScopeRestoredRecord,
)
from journal.vocabulary import BackfillCounts, Direction, GroupEventKind
from tests.factories import (
    Writer,
    altered,
    backfill_record,
    digest_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    reverse_backfill_record,
    rollback_plan_record,
    step_record,
)

# They depend on nothing, so that any one of them can be planned at any time; their states still join.
MANIFESTS: Final = [manifest_of(number, backfill=True) for number in range(1, 5)]
KINDS: Final = list(GroupEventKind)
WEIRD: Final = {
    "migration_id": ["example/9999", "Not An Id", ""],
    "manifest_digest": [digest_of("foreign")],
    "group_ordinal": [-1, 2**32, 2**63 - 1],
    "step_ordinal": [-1, 2**40],
    "operation_ordinal": [-7, 2**32],
    "end_step_index": [0, 2**32],
    "source_applied": [(), ("example/9999",)],
    "remaining_applied": [(), ("Not An Id",)],
    "migration_ids": [(), ("x/y", "x/y"), ("Not An Id",)],
    "rollback_ids": [(), ("Not An Id",)],
    "source_frontier": [("Not An Id",)],
    "reason": ["", "two\nlines"],
    "holder": ["", "not a holder"],
    "plan_sequence": [SequenceNumber(2**40)],
    "kind": KINDS,
    "outcome": KINDS,
    "matched": [-1, 2**62],
    "transaction_groups": [0, -1],
}
_SAID: Final = {"operator": "Ada", "reason": "because"}


class Story(Writer):
    """A log in the making: its leases so far, and what one would do next."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[MigrationLease] = [lease_of("nobody", 1, lease_id=LeaseId(b"n" * 16))]

    @property
    def lease(self) -> MigrationLease:
        return self.leases[-1]

    def applied(self) -> list[VerifiedManifest]:
        return [manifest for manifest in MANIFESTS if str(manifest.id) in self.state.active]

    def begin_lease(self, number: int) -> None:
        """Acquire with a greater fence, or (one time in eight) with one that is not."""
        fence = max(1, self.state.fence + (1 + number % 3 if number % 8 else 0))
        lease_id = LeaseId(len(self.data).to_bytes(16, "big"))
        lease = lease_of(f"holder-{number % 5}", fence, lease_id=lease_id)
        self.leases.append(lease)
        self.write(LeaseAcquiredRecord.new(lease.holder, 1 + number), lease)

    def sensible(self) -> Record | None:
        """What moves the scope forward; None: take a lease first."""
        plan, lease = self.state.plan, self.lease
        if self.state.lease_id != lease.lease_id:
            return None
        if plan is None:
            applied = self.applied()
            missing = [manifest for manifest in MANIFESTS if manifest not in applied]
            if not missing or (applied and len(self.data) % 3 == 0):
                return rollback_plan_record(lease, _joined(applied[::-1]), applied)
            return plan_record(lease, _joined(missing), applied)
        ordered = MANIFESTS if plan.direction is Direction.FORWARD else MANIFESTS[::-1]
        manifest = next(manifest for manifest in ordered if str(manifest.id) in plan.remaining)
        begun = [unit for key, unit in plan.units.items() if key[0] == manifest.digest]
        if not begun:
            return self.unit(manifest, GroupEventKind.BEFORE_COMMIT)
        if len(begun) == 1 and begun[0].kind is GroupEventKind.BEFORE_COMMIT:
            return self.unit(manifest, GroupEventKind.COMMITTED)
        if len(begun) == 1:
            return self.backfill(manifest, GroupEventKind.BEFORE_COMMIT)
        if begun[1].kind is GroupEventKind.BEFORE_COMMIT and begun[1].counts is None:
            return self.checkpoint(manifest, 5)
        if begun[1].kind is GroupEventKind.BEFORE_COMMIT:
            return self.backfill(manifest, GroupEventKind.COMMITTED)
        if plan.direction is Direction.FORWARD:
            return AppliedRecord.from_verified_manifest(lease, manifest)
        return RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest))

    def backfill(self, manifest: VerifiedManifest, kind: GroupEventKind) -> Record:
        """A commit boundary of the manifest's backfill in the direction of the open plan."""
        return (reverse_backfill_record if self.backwards() else backfill_record)(self.lease, manifest, kind)

    def checkpoint(self, manifest: VerifiedManifest, rows: int) -> Record:
        """Progress of the manifest's backfill in the direction of the open plan."""
        counts = BackfillCounts(rows * 2, rows, rows, 1 + rows)
        if self.backwards():
            return BackfillCheckpointRecord.new_rollback(self.lease, verify_rollback(manifest), 0, counts)
        return BackfillCheckpointRecord.new_apply(self.lease, manifest, 1, counts)

    def backwards(self) -> bool:
        """Whether a rollback plan is open."""
        return self.state.plan is not None and self.state.plan.direction is Direction.REVERSE

    def unit(self, manifest: VerifiedManifest, kind: GroupEventKind) -> Record:
        """A commit boundary of the manifest's schema step in the direction of the open plan."""
        if self.backwards():
            return altered(step_record(self.lease, manifest, GroupEventKind.COMMITTED), **_kind(kind))
        return altered(group_record(self.lease, manifest, GroupEventKind.COMMITTED), **_kind(kind))

    def careless(self, number: int) -> Record:
        """Any record at all, sensible or not."""
        lease, manifest, kind = self.lease, MANIFESTS[number % 4], KINDS[number % 5]
        applied, rollback = self.applied(), verify_rollback(manifest)
        unit = group_record(lease, manifest, GroupEventKind.BEFORE_COMMIT)
        plan = JournalEntry(SequenceNumber(1 + number % 9), plan_record(lease, [manifest]))
        doubt = [unit, backfill_record(lease, manifest, GroupEventKind.BEFORE_COMMIT)][number % 2]
        outcome = (GroupEventKind.COMMITTED, GroupEventKind.DEFINITELY_ABORTED)[number % 2]
        if self.state.plan is not None:
            plan = JournalEntry(SequenceNumber(self.state.plan.entry.sequence), plan.record)
        texts = {"operator": "Ada", "reason": "because"}
        makers: list[Callable[[], Record]] = [
            lambda: self.unit(manifest, kind),
            lambda: altered(backfill_record(lease, manifest, GroupEventKind.BEFORE_COMMIT), kind=kind),
            lambda: backfill_record(lease, manifest, GroupEventKind.COMMITTED),
            lambda: altered(reverse_backfill_record(lease, manifest, GroupEventKind.BEFORE_COMMIT), kind=kind),
            lambda: self.checkpoint(manifest, number),
            lambda: plan_record(lease, [manifest]),
            lambda: rollback_plan_record(lease, applied[-1:] or [manifest], applied or [manifest]),
            lambda: AppliedRecord.from_verified_manifest(lease, manifest),
            lambda: RolledBackRecord.from_verified_rollback(lease, rollback),
            lambda: LedgerImportedRecord.from_verified_manifests(lease, [manifest], manifest.target, **texts),
            lambda: RecoveryAttestedRecord.new(lease, doubt, outcome, observed=None, **texts),
            lambda: PlanAbandonedRecord.new(lease, plan, **texts),
            lambda: LeaseReleasedRecord.new(lease.holder),
        ]
        return makers[number // 5 % len(makers)]()

    def carry(self, number: int) -> None:
        """Say where the scope lives: mostly what may be said next, sometimes anything."""
        moved, places = self.state.moved, [Place(bytes([index]) * 16) for index in range(3)]
        place = places[number % 3]
        texts = {"operator": "Ada", "reason": "because" if number % 7 else ""}
        match number % 5:
            case 0 | 1 if self.state.away:
                self.write(ScopeAwaitedRecord.new(place), lease_id=NO_LEASE, fence=0)
            case 0 | 1:
                record = altered(ScopeMovedRecord.new(self.lease, place, destination="there", **_SAID), **texts)
                self.write(record, self.lease)
            case 2 | 3 if moved is not None:
                self.write(ScopeArrivedRecord.new(Place(moved.place)), lease_id=moved.lease_id, fence=moved.fence)
            case 2:
                self.write(ScopeArrivedRecord.new(place), self.lease)
            case _:
                record = altered(ScopeRestoredRecord.new(place, **_SAID), **texts)
                self.write(record, lease_id=b"r" * 16, fence=self.state.fence + number % 3)

    def weird(self, number: int) -> Record:
        """A record with one value that its constructor would have refused."""
        record = self.careless(number)
        names = [name for name in type(record).__slots__ if name in WEIRD]
        if not names:
            return record
        name = names[number % len(names)]
        return altered(record, **{name: WEIRD[name][number % len(WEIRD[name])]})

    def act(self, action: int, number: int) -> None:
        """Write one event; `action` says of what sort, `number` which."""
        lease, old = self.lease, self.leases[number % len(self.leases)]
        match action:
            case 0 | 1 | 2 | 3 | 4 | 5:
                record = None if self.state.moved is not None else self.sensible()
                if self.state.moved is not None:
                    self.carry(2)
                elif record is None:
                    self.begin_lease(1)
                else:
                    self.write(record, lease)
            case 6 | 7:
                self.write(self.careless(number), lease)
            case 8:
                self.write(self.weird(number), lease)
            case 9:
                self.write(self.careless(number), old)
            case 10:
                self.begin_lease(number)
            case 11:
                self.append(self.data[number % len(self.data)])
            case 12:
                behind = self.codec.read(0, self.data[number % len(self.data)])
                self.write(self.careless(number), lease, parent=getattr(behind, "parent", None))
            case 13:
                self.carry(number)
            case _:
                self.append(bytes([number % 256]) * (number % 150))


def _joined(manifests: list[VerifiedManifest]) -> list[VerifiedManifest]:
    """The first two when one starts where the other ends, else the first."""
    left, right = manifests[0], manifests[-1 if len(manifests) == 1 else 1]
    return manifests[:2] if left.target == right.source or left.source == right.target else manifests[:1]


def _kind(kind: GroupEventKind) -> dict[str, object]:
    return {"kind": kind} | ({} if kind is GroupEventKind.COMMITTED else {"observed_target": None})


ACTIONS: Final = 15
actions = st.tuples(st.integers(0, ACTIONS - 1), st.integers(0, 999))
plots = st.lists(actions, min_size=1, max_size=60) | st.lists(actions, min_size=30, max_size=90)


def tell(plot: Sequence[tuple[int, int]]) -> Story:
    """The log of a story."""
    story = Story()
    for action, number in plot:
        story.act(action, number)
    return story
