"""Evidence, records and whole logs for tests: small, deterministic, built through the product's own constructors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from journal.admission import Admitted, ScopeState, Verdict, empty_state, step
from journal.codec import Codec
from journal.events import NO_LEASE, NO_PARENT, Readable
from journal.identities import (
    Digest,
    Fence,
    Fingerprint,
    HolderId,
    Incarnation,
    LeaseId,
    MigrationId,
    Scope,
    digest,
    fingerprint,
)
from journal.migrations.manifest import (
    AssertionStep,
    BackfillStep,
    ManagedState,
    SchemaStep,
    Step,
    VerifiedManifest,
    verify_manifest,
    verify_rollback,
)
from journal.migrations.plan import verify_plan, verify_rollback_plan
from journal.records import (
    AppliedRecord,
    BackfillEventRecord,
    GroupEventRecord,
    LeaseAcquiredRecord,
    LeaseLike,
    LeaseReleasedRecord,
    MigrationLease,
    PlanRecord,
    Record,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
    ScopeCreatedRecord,
    restore,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind

SCOPE: Final = Scope("journal-test")
EPOCH_MICROS: Final = 1_764_500_000_000_000
PROFILE: Final = fingerprint("test profile", b"semantics")
LOWERING: Final = fingerprint("test profile", b"lowering")

R = TypeVar("R", bound=Record)


def print_of(text: str) -> Fingerprint:
    """A fingerprint that stands for `text`."""
    return fingerprint("test", text.encode())


def digest_of(text: str) -> Digest:
    """A digest that stands for `text`."""
    return digest("test", text.encode())


def state_of(name: str, scope: Scope = SCOPE) -> ManagedState:
    """A managed state called `name`."""
    return ManagedState(scope, print_of(f"declared {name}"), print_of(f"semantics {name}"))


def manifest_of(
    number: int,
    *,
    app: str = "example",
    dependencies: Sequence[VerifiedManifest] = (),
    scope: Scope = SCOPE,
    assertions: int = 0,
    backfill: bool = False,
) -> VerifiedManifest:
    """Migration `number`: one schema step from state `number` to the next, reversible, and what is asked for around it."""
    source, target = state_of(str(number), scope), state_of(str(number + 1), scope)
    steps: list[Step] = [AssertionStep(digest_of(f"assertion {number}.{i}")) for i in range(assertions)]
    steps.append(SchemaStep(digest_of(f"delta {number}"), source, target, statements=1, reverse_statements=1))
    if backfill:
        steps.append(BackfillStep(print_of(f"backfill {number}"), reversible=True))
    return verify_manifest(
        id=MigrationId(app, f"{number:04d}_step"),
        source=source,
        target=target,
        steps=steps,
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
        dependencies=[manifest.id for manifest in dependencies],
    )


def chain_of(count: int, *, scope: Scope = SCOPE, backfill: bool = False) -> list[VerifiedManifest]:
    """`count` migrations, each depending on the one before."""
    manifests: list[VerifiedManifest] = []
    for number in range(1, count + 1):
        manifests.append(manifest_of(number, dependencies=manifests[-1:], scope=scope, backfill=backfill))
    return manifests


def lease_of(
    holder: str = "owner", fence: int = 1, *, scope: Scope = SCOPE, lease_id: LeaseId | None = None
) -> MigrationLease:
    """A lease as a value, for building records without a store."""
    return MigrationLease(scope, HolderId(holder), Fence(fence), lease_id or LeaseId(fence.to_bytes(16, "big")))


def plan_record(
    lease: LeaseLike, planned: Sequence[VerifiedManifest], applied: Sequence[VerifiedManifest] = ()
) -> PlanRecord:
    """The record that opens a plan of `planned` on top of `applied`."""
    plan = verify_plan(applied=applied, planned=planned)
    assert plan.source is not None
    return PlanRecord.from_verified_plan(lease, plan, plan.applied, plan.source)


def rollback_plan_record(
    lease: LeaseLike, retired: Sequence[VerifiedManifest], applied: Sequence[VerifiedManifest]
) -> RollbackPlanRecord:
    """The record that opens a plan to roll back `retired`, in this order, of `applied`."""
    plan = verify_rollback_plan(applied=applied, rollbacks=[verify_rollback(manifest) for manifest in retired])
    assert plan.source is not None
    return RollbackPlanRecord.from_verified_rollback_plan(lease, plan, plan.applied, plan.source)


def group_record(
    lease: LeaseLike, manifest: VerifiedManifest, kind: GroupEventKind, group: int = 0
) -> GroupEventRecord:
    """A commit boundary of one group; a committed one carries the right observation."""
    observed = manifest.target.semantics if kind is GroupEventKind.COMMITTED else None
    return GroupEventRecord.new(lease, manifest, manifest.groups[group], kind, observed)


def step_record(lease: LeaseLike, manifest: VerifiedManifest, kind: GroupEventKind) -> RollbackStepEventRecord:
    """A commit boundary of the first reverse step; a committed one carries the right observation."""
    observed = manifest.source.semantics if kind is GroupEventKind.COMMITTED else None
    return RollbackStepEventRecord.new(lease, verify_rollback(manifest), 0, kind, observed)


class Writer:
    """Writes a log of bytes, folding as it goes, with no port in between.

    `data` holds the exact bytes of every event written, `verdicts` what admission said of each.
    """

    def __init__(self, scope: Scope = SCOPE, *, codec: Codec | None = None, authenticated: bool = False) -> None:
        self.codec = codec or Codec()
        self.state: ScopeState = empty_state(scope)
        self.scope = scope
        self.incarnation = Incarnation(bytes(range(16)))
        self.data: list[bytes] = []
        self.macs: list[bytes | None] = []
        self.verdicts: list[Verdict] = []
        self.write(ScopeCreatedRecord.new(authenticated=authenticated), lease_id=NO_LEASE, fence=0, parent=NO_PARENT)

    def encode(
        self,
        record: Record,
        *,
        lease_id: bytes,
        fence: int,
        parent: bytes | None = None,
        recorded_at: int | None = None,
        incarnation: bytes | None = None,
        scope: str | None = None,
    ) -> bytes:
        """Encode an event that follows the head (or `parent`), without writing it."""
        number = len(self.data)
        return self.codec.write(
            record,
            scope=scope or self.scope,
            incarnation=incarnation or self.incarnation,
            lease_id=lease_id,
            parent=self.state.head if parent is None else parent,
            fence=fence,
            recorded_at=EPOCH_MICROS + number if recorded_at is None else recorded_at,
            event_id=number.to_bytes(16, "big"),
        )

    def append(self, data: bytes, mac: bytes | None = None) -> Verdict:
        """Write bytes as they are; returns the verdict."""
        mac = self.codec.authenticate(data) if mac is None else mac
        verdict = step(self.state, self.codec.read(len(self.data), data, mac))
        self.data.append(data)
        self.macs.append(mac)
        self.verdicts.append(verdict)
        return verdict

    def write(
        self,
        record: Record,
        lease: MigrationLease | None = None,
        *,
        lease_id: bytes | None = None,
        fence: int | None = None,
        parent: bytes | None = None,
    ) -> Verdict:
        """Encode and append one event under a lease."""
        lease_id = lease_id if lease is None else lease.lease_id
        fence = fence if lease is None else lease.fence
        assert lease_id is not None
        assert fence is not None
        return self.append(self.encode(record, lease_id=lease_id, fence=fence, parent=parent))

    def acquire(self, holder: str = "owner", fence: int | None = None) -> MigrationLease:
        """Write a `LeaseAcquired` that must be admitted."""
        lease = lease_of(holder, self.state.fence + 1 if fence is None else fence, scope=self.scope)
        assert isinstance(self.write(LeaseAcquiredRecord.new(lease.holder, 30_000_000), lease), Admitted)
        return lease

    def release(self, lease: MigrationLease) -> Verdict:
        """Write a `LeaseReleased`."""
        return self.write(LeaseReleasedRecord.new(lease.holder), lease)

    def apply(
        self, lease: MigrationLease, planned: Sequence[VerifiedManifest], applied: Sequence[VerifiedManifest] = ()
    ) -> None:
        """A whole apply plan: opened, each group begun and committed, each migration applied."""
        self.write(plan_record(lease, planned, applied), lease)
        for manifest in planned:
            self.write(group_record(lease, manifest, GroupEventKind.BEFORE_COMMIT), lease)
            self.write(group_record(lease, manifest, GroupEventKind.COMMITTED), lease)
            self.write(AppliedRecord.from_verified_manifest(lease, manifest), lease)

    def roll_back(
        self, lease: MigrationLease, retired: Sequence[VerifiedManifest], applied: Sequence[VerifiedManifest]
    ) -> None:
        """A whole rollback plan, `retired` in order of execution."""
        self.write(rollback_plan_record(lease, retired, applied), lease)
        for manifest in retired:
            self.write(step_record(lease, manifest, GroupEventKind.BEFORE_COMMIT), lease)
            self.write(step_record(lease, manifest, GroupEventKind.COMMITTED), lease)
            self.write(RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest)), lease)

    def read(self) -> list[Readable]:
        """Every event written, read anew."""
        pairs = zip(self.data, self.macs, strict=True)
        return [self.codec.read(position, data, mac) for position, (data, mac) in enumerate(pairs)]


def long_log(events: int, *, plan_size: int = 50) -> Writer:
    """At least `events` events of plans that are applied and rolled back in turn, so that the active state stays small."""
    writer = Writer()
    lease = writer.acquire()
    manifests = chain_of(plan_size)
    while len(writer.data) < events:
        writer.apply(lease, manifests)
        writer.roll_back(lease, manifests[::-1], manifests)
    assert all(isinstance(verdict, Admitted) for verdict in writer.verdicts)
    return writer


def altered(record: R, **changes: Any) -> R:
    """A record with some values replaced by any others, as a faulty writer would make it: nothing is checked."""
    values = {name: getattr(record, name) for name in type(record).__slots__}
    return restore(type(record), values | changes)


def backfill_record(
    lease: LeaseLike, manifest: VerifiedManifest, kind: GroupEventKind, counts: tuple[int, int, int, int] = (5, 3, 2, 2)
) -> BackfillEventRecord:
    """A commit boundary of the forward backfill that is the manifest's last step; a committed one is complete."""
    index = len(manifest.steps) - 1
    step = manifest.backfill_at(index)
    assert step is not None
    completion = BackfillCompletion(step.plan_fingerprint, Direction.FORWARD, BackfillCounts(*counts))
    committed = kind is GroupEventKind.COMMITTED
    return BackfillEventRecord.new_apply(lease, manifest, index, kind, completion if committed else None)


def reverse_backfill_record(
    lease: LeaseLike, manifest: VerifiedManifest, kind: GroupEventKind, counts: tuple[int, int, int, int] = (5, 3, 2, 2)
) -> BackfillEventRecord:
    """A commit boundary of the reverse of the manifest's last step, a backfill; a committed one is complete."""
    step = manifest.backfill_at(len(manifest.steps) - 1)
    assert step is not None
    completion = BackfillCompletion(step.plan_fingerprint, Direction.REVERSE, BackfillCounts(*counts))
    committed = kind is GroupEventKind.COMMITTED
    return BackfillEventRecord.new_rollback(
        lease, verify_rollback(manifest), 0, kind, completion if committed else None
    )
