"""The closed union of records, and the rules by which each may be built.

A record is the body of an event: identities, digests and counts, never statements, rows or secrets. Every constructor
takes the lease under which the record will be written and the verified evidence that it speaks of, and checks seed
000's rules in seed 000's order. There is no other way to make one: calling a record class directly is refused, and
`restore` serves the codec alone, for bytes whose rules `admission` has checked or will check.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from journal.errors import Code, failure
from journal.identities import (
    Digest,
    Fence,
    Fingerprint,
    HolderId,
    LeaseId,
    MigrationId,
    Place,
    Scope,
    Sequence as SequenceNumber,
    u32,
)
from journal.migrations.manifest import (
    ManagedState,
    RollbackOperationKind,
    SchemaStep,
    TransactionGroup,
    VerifiedManifest,
    VerifiedRollback,
)
from journal.migrations.plan import VerifiedPlan, VerifiedRollbackPlan
from journal.vocabulary import (
    ATTESTABLE,
    MAX_REASON_BYTES,
    BackfillCompletion,
    BackfillCounts,
    Direction,
    GroupEventKind,
    UnitKind,
    completion_violation,
    observation_violation,
    text_violation,
)

FORMAT_VERSION: Final = 1


class LeaseLike(Protocol):
    """What a record takes from a lease."""

    @property
    def scope(self) -> Scope: ...
    @property
    def holder(self) -> HolderId: ...
    @property
    def fence(self) -> Fence: ...


@dataclass(frozen=True, slots=True, eq=False)
class MigrationLease:
    """Authority to write one scope, as a value.

    `binding` ties a lease to the journal that issued it: compared by identity, never stored, so that a lease of another
    journal is not equal even when all else is.
    """

    scope: Scope
    holder: HolderId
    fence: Fence
    lease_id: LeaseId
    binding: object | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MigrationLease):
            return NotImplemented
        return self.binding is other.binding and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Scope, HolderId, Fence, LeaseId]:
        return self.scope, self.holder, self.fence, self.lease_id


def restore(cls: type[_R], values: dict[str, Any]) -> _R:
    """Build a record from values that the codec read; checks nothing."""
    record = object.__new__(cls)
    put = object.__setattr__
    for name, value in values.items():
        put(record, name, value)
    return record


_R = TypeVar("_R", bound="Record | BackfillCompletion | ImportedMigration")


def _build(cls: type[_R], lease: LeaseLike, **values: Any) -> _R:
    return restore(cls, values | {"scope": lease.scope, "fence": lease.fence})


def _check(code: Code | None, message: str) -> None:
    if code is not None:
        raise failure(code, message)


def _check_text(operator: str, reason: str) -> None:
    _check(
        text_violation(operator, reason),
        f"operator and reason must each be one line of printable text, 1 to {MAX_REASON_BYTES} bytes",
    )


def _check_move(*texts: str) -> None:
    _check(
        text_violation(*texts),
        f"operator, reason and destination must each be one line of printable text, 1 to {MAX_REASON_BYTES} bytes",
    )


def _check_scope(lease: LeaseLike, *scopes: Scope) -> None:
    if any(scope != lease.scope for scope in scopes):
        raise failure(
            Code.SCOPE_MISMATCH,
            f"the lease is of scope {lease.scope}, the evidence of {', '.join(sorted(set(scopes)))}",
        )


def _check_basis(observed: Sequence[MigrationId], planned: Sequence[MigrationId]) -> None:
    if tuple(observed) != tuple(planned):
        raise failure(Code.STALE_APPLIED_SET, "the ledger has changed since planning: plan again")


def _check_live(observed: ManagedState, planned: ManagedState) -> None:
    if observed != planned:
        raise failure(Code.STALE_SOURCE_STATE, "the live target is not in the planned source state: plan again")


def _check_profiles(manifests: Iterable[VerifiedManifest], scope: Scope) -> None:
    manifests = tuple(manifests)
    first = manifests[0]
    for manifest in manifests:
        if (manifest.scope, manifest.semantic_profile, manifest.lowering_profile) != (
            scope,
            first.semantic_profile,
            first.lowering_profile,
        ):
            raise failure(
                Code.PLAN_BINDING_MISMATCH, f"{manifest.id} is bound to another scope or profile than {first.id}"
            )


def _check_commit(kind: GroupEventKind, observed: Fingerprint | None, target: ManagedState, *, formal: bool) -> None:
    _check(observation_violation(kind, observed), f"a {kind.value} event and its observed semantics do not go together")
    if kind is GroupEventKind.COMMITTED and observed != target.semantics:
        raise failure(Code.COMMIT_EVIDENCE_MISMATCH, "the observed semantics are not those of the unit's target")
    if kind is GroupEventKind.FORMAL_ONLY_ADVANCED and not formal:
        raise failure(
            Code.INVALID_FORMAL_ADVANCE,
            "only a unit without assertions or statements and with equal source and target semantics advances formally",
        )


# --- records ------------------------------------------------------------------------------------------------------------


class _EvidenceOnly:
    __slots__ = ()

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError(f"{type(self).__name__} is built from verified evidence: use its named constructors")


@dataclass(frozen=True, slots=True, init=False)
class ScopeCreatedRecord(_EvidenceOnly):
    """Genesis of a scope: how its log is read, and whether its events are authenticated."""

    format_version: int
    authenticated: bool

    @classmethod
    def new(cls, *, authenticated: bool) -> ScopeCreatedRecord:
        """Describe a new scope in the current format."""
        return restore(cls, {"format_version": FORMAT_VERSION, "authenticated": authenticated})


@dataclass(frozen=True, slots=True, init=False)
class LeaseAcquiredRecord(_EvidenceOnly):
    """From this event on, only events under its fence count. `ttl_micros` is the lease's duration without renewal."""

    holder: HolderId
    ttl_micros: int

    @classmethod
    def new(cls, holder: HolderId, ttl_micros: int) -> LeaseAcquiredRecord:
        """Name the holder and the duration in microseconds."""
        return restore(cls, {"holder": holder, "ttl_micros": ttl_micros})


@dataclass(frozen=True, slots=True, init=False)
class LeaseReleasedRecord(_EvidenceOnly):
    """The holder gave its lease back."""

    holder: HolderId

    @classmethod
    def new(cls, holder: HolderId) -> LeaseReleasedRecord:
        """Name the holder."""
        return restore(cls, {"holder": holder})


@dataclass(frozen=True, slots=True, init=False)
class PlanRecord(_EvidenceOnly):
    """One verified apply plan: where it starts, what it applies in which order, where it ends."""

    scope: Scope
    fence: Fence
    source_declared: Fingerprint
    target_declared: Fingerprint
    source_semantics: Fingerprint
    target_semantics: Fingerprint
    semantic_profile: Fingerprint
    lowering_profile: Fingerprint
    observed_live_source: Fingerprint
    source_applied: tuple[MigrationId, ...]
    source_frontier: tuple[MigrationId, ...]
    target_frontier: tuple[MigrationId, ...]
    migration_ids: tuple[MigrationId, ...]
    manifest_digests: tuple[Digest, ...]
    manifest_plan_fingerprints: tuple[Fingerprint, ...]

    @classmethod
    def from_verified_plan(
        cls,
        lease: LeaseLike,
        plan: VerifiedPlan,
        observed_applied_migrations: Sequence[MigrationId],
        observed_live_source: ManagedState,
    ) -> PlanRecord:
        """Bind a plan to the ledger and the live state that were observed under the lease.

        Raises:
            InvalidContractError: `migration_execution_empty_plan`.
            IntegrityError: in this order, `migration_execution_stale_applied_set`,
                `migration_execution_stale_source_state`, `migration_execution_scope_mismatch`,
                `migration_execution_plan_binding_mismatch`.
        """
        source, target = plan.source, plan.target
        if source is None or target is None:
            raise failure(Code.EMPTY_PLAN, "a plan that is executed names at least one migration")
        _check_basis(observed_applied_migrations, plan.applied)
        _check_live(observed_live_source, source)
        _check_scope(lease, source.scope, target.scope)
        _check_profiles(plan.manifests, lease.scope)
        return _build(
            cls,
            lease,
            **_ends(source, target),
            semantic_profile=plan.manifests[0].semantic_profile,
            lowering_profile=plan.manifests[0].lowering_profile,
            observed_live_source=observed_live_source.semantics,
            source_applied=plan.applied,
            source_frontier=plan.applied_frontier,
            target_frontier=plan.target_frontier,
            migration_ids=tuple(manifest.id for manifest in plan.manifests),
            manifest_digests=tuple(manifest.digest for manifest in plan.manifests),
            manifest_plan_fingerprints=tuple(manifest.plan_fingerprint for manifest in plan.manifests),
        )


def _ends(source: ManagedState, target: ManagedState) -> dict[str, Fingerprint]:
    return {
        "source_declared": source.declared,
        "target_declared": target.declared,
        "source_semantics": source.semantics,
        "target_semantics": target.semantics,
    }


@dataclass(frozen=True, slots=True, init=False)
class GroupEventRecord(_EvidenceOnly):
    """Commit boundary of one transaction group."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    migration_id: MigrationId
    group_ordinal: int
    first_step_index: int
    schema_delta_step_index: int
    end_step_index: int
    kind: GroupEventKind
    observed_target: Fingerprint | None

    @classmethod
    def new(
        cls,
        lease: LeaseLike,
        manifest: VerifiedManifest,
        group: TransactionGroup,
        kind: GroupEventKind,
        observed_target: Fingerprint | None = None,
    ) -> GroupEventRecord:
        """Record what happened to one group of a manifest.

        Raises:
            IntegrityError: in this order, `migration_execution_foreign_group`,
                `migration_execution_group_position_mismatch`, `migration_execution_group_lowering_missing`,
                `migration_execution_scope_mismatch`, `migration_execution_commit_evidence_mismatch`.
            InvalidContractError: `migration_execution_invalid_formal_advance`,
                `migration_execution_unexpected_observation`.
        """
        if not (0 <= group.ordinal < len(manifest.groups) and manifest.groups[group.ordinal] == group):
            raise failure(Code.FOREIGN_GROUP, f"the group is not one of {manifest.id}")
        index = group.schema_delta_step_index
        step = manifest.steps[index] if 0 <= index < len(manifest.steps) else None
        if not isinstance(step, SchemaStep):
            raise failure(Code.GROUP_POSITION_MISMATCH, f"step {index} of {manifest.id} is not the group's schema step")
        if step.statements is None:
            raise failure(Code.GROUP_LOWERING_MISSING, f"step {index} of {manifest.id} was not lowered to statements")
        _check_scope(lease, manifest.scope)
        formal = group.assertion_count == 0 and step.statements == 0 and step.source.semantics == step.target.semantics
        _check_commit(kind, observed_target, step.target, formal=formal)
        return _build(
            cls,
            lease,
            manifest_digest=manifest.digest,
            migration_id=manifest.id,
            group_ordinal=u32(group.ordinal),
            first_step_index=u32(group.first_step_index),
            schema_delta_step_index=u32(index),
            end_step_index=u32(group.end_step_index),
            kind=kind,
            observed_target=observed_target,
        )


@dataclass(frozen=True, slots=True, init=False)
class BackfillEventRecord(_EvidenceOnly):
    """Commit boundary of one backfill, in the forward steps or the mixed reverse operations of a migration."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    plan_fingerprint: Fingerprint
    migration_id: MigrationId
    operation_ordinal: int
    manifest_step_index: int
    direction: Direction
    kind: GroupEventKind
    completion: BackfillCompletion | None

    @classmethod
    def new_apply(
        cls,
        lease: LeaseLike,
        manifest: VerifiedManifest,
        step_index: int,
        kind: GroupEventKind,
        completion: BackfillCompletion | None = None,
    ) -> BackfillEventRecord:
        """Record what happened to the forward backfill at `step_index`.

        Raises:
            IntegrityError: in this order, `migration_execution_scope_mismatch`,
                `migration_execution_backfill_step_position`, `migration_execution_backfill_completion_mismatch`.
            InvalidContractError: `migration_execution_backfill_formal_advance`,
                `migration_execution_unexpected_backfill_completion`.
        """
        fingerprint = _forward_backfill(lease, manifest, step_index)
        _check_completion(kind, completion, fingerprint, Direction.FORWARD)
        return _build(
            cls,
            lease,
            **_backfill_unit(manifest, fingerprint, step_index, Direction.FORWARD),
            manifest_step_index=u32(step_index),
            kind=kind,
            completion=completion,
        )

    @classmethod
    def new_rollback(
        cls,
        lease: LeaseLike,
        rollback: VerifiedRollback,
        operation_index: int,
        kind: GroupEventKind,
        completion: BackfillCompletion | None = None,
    ) -> BackfillEventRecord:
        """Record what happened to the reverse backfill at `operation_index` of the rollback's operations.

        Raises as `new_apply`.
        """
        step_index, fingerprint = _reverse_backfill(lease, rollback, operation_index)
        _check_completion(kind, completion, fingerprint, Direction.REVERSE)
        return _build(
            cls,
            lease,
            **_backfill_unit(rollback.manifest, fingerprint, operation_index, Direction.REVERSE),
            manifest_step_index=u32(step_index),
            kind=kind,
            completion=completion,
        )


def _check_completion(
    kind: GroupEventKind, completion: BackfillCompletion | None, plan: Fingerprint, direction: Direction
) -> None:
    claimed = None if completion is None else (completion.plan_fingerprint, completion.direction)
    _check(
        completion_violation(kind, claimed, plan, direction),
        f"a {kind.value} event of this backfill does not go with that completion",
    )


def _no_backfill(index: int, id: MigrationId) -> Exception:
    return failure(Code.BACKFILL_STEP_POSITION, f"position {index} of {id} is not a backfill")


def _forward_backfill(lease: LeaseLike, manifest: VerifiedManifest, step_index: int) -> Fingerprint:
    _check_scope(lease, manifest.scope)
    step = manifest.backfill_at(step_index)
    if step is None:
        raise _no_backfill(step_index, manifest.id)
    return step.plan_fingerprint


def _reverse_backfill(lease: LeaseLike, rollback: VerifiedRollback, index: int) -> tuple[int, Fingerprint]:
    _check_scope(lease, rollback.manifest.scope)
    operation = rollback.operations[index] if 0 <= index < len(rollback.operations) else None
    if operation is None or operation.kind is not RollbackOperationKind.BACKFILL:
        raise _no_backfill(index, rollback.manifest.id)
    step = rollback.manifest.backfill_at(operation.step_index)
    if step is None:
        raise _no_backfill(index, rollback.manifest.id)
    return operation.step_index, step.plan_fingerprint


def _backfill_unit(
    manifest: VerifiedManifest, fingerprint: Fingerprint, ordinal: int, direction: Direction
) -> dict[str, Any]:
    return {
        "manifest_digest": manifest.digest,
        "plan_fingerprint": fingerprint,
        "migration_id": manifest.id,
        "operation_ordinal": u32(ordinal),
        "direction": direction,
    }


@dataclass(frozen=True, slots=True, init=False)
class BackfillCheckpointRecord(_EvidenceOnly):
    """Progress of a backfill that is under way: counts so far, which never go down."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    plan_fingerprint: Fingerprint
    migration_id: MigrationId
    operation_ordinal: int
    direction: Direction
    matched: int
    changed: int
    skipped: int
    transaction_groups: int

    @classmethod
    def new_apply(
        cls, lease: LeaseLike, manifest: VerifiedManifest, step_index: int, counts: BackfillCounts
    ) -> BackfillCheckpointRecord:
        """Report the progress of the forward backfill at `step_index`; raises as `BackfillEventRecord.new_apply`."""
        fingerprint = _forward_backfill(lease, manifest, step_index)
        return cls._new(lease, _backfill_unit(manifest, fingerprint, step_index, Direction.FORWARD), counts)

    @classmethod
    def new_rollback(
        cls, lease: LeaseLike, rollback: VerifiedRollback, operation_index: int, counts: BackfillCounts
    ) -> BackfillCheckpointRecord:
        """Report the progress of a reverse backfill; raises as `BackfillEventRecord.new_rollback`."""
        _, fingerprint = _reverse_backfill(lease, rollback, operation_index)
        unit = _backfill_unit(rollback.manifest, fingerprint, operation_index, Direction.REVERSE)
        return cls._new(lease, unit, counts)

    @classmethod
    def _new(cls, lease: LeaseLike, unit: dict[str, Any], counts: BackfillCounts) -> BackfillCheckpointRecord:
        return _build(
            cls,
            lease,
            **unit,
            matched=counts.matched,
            changed=counts.changed,
            skipped=counts.skipped,
            transaction_groups=counts.transaction_groups,
        )


@dataclass(frozen=True, slots=True, init=False)
class AppliedRecord(_EvidenceOnly):
    """One migration of the open plan is applied: from here on it is in the active ledger."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    source_declared: Fingerprint
    target_declared: Fingerprint
    source_semantics: Fingerprint
    target_semantics: Fingerprint
    migration_id: MigrationId

    @classmethod
    def from_verified_manifest(cls, lease: LeaseLike, manifest: VerifiedManifest) -> AppliedRecord:
        """Record a manifest as applied. Raises `migration_execution_scope_mismatch`."""
        _check_scope(lease, manifest.source.scope, manifest.target.scope)
        return _build(
            cls,
            lease,
            manifest_digest=manifest.digest,
            **_ends(manifest.source, manifest.target),
            migration_id=manifest.id,
        )


@dataclass(frozen=True, slots=True, init=False)
class RollbackPlanRecord(_EvidenceOnly):
    """One verified rollback plan: what is retired in which order, and what stays."""

    scope: Scope
    fence: Fence
    source_declared: Fingerprint
    target_declared: Fingerprint
    source_semantics: Fingerprint
    target_semantics: Fingerprint
    semantic_profile: Fingerprint
    lowering_profile: Fingerprint
    observed_live_source: Fingerprint
    source_applied: tuple[MigrationId, ...]
    remaining_applied: tuple[MigrationId, ...]
    rollback_ids: tuple[MigrationId, ...]
    manifest_digests: tuple[Digest, ...]
    manifest_plan_fingerprints: tuple[Fingerprint, ...]

    @classmethod
    def from_verified_rollback_plan(
        cls,
        lease: LeaseLike,
        plan: VerifiedRollbackPlan,
        observed_applied_migrations: Sequence[MigrationId],
        observed_live_source: ManagedState,
    ) -> RollbackPlanRecord:
        """Bind a rollback plan to what was observed under the lease; raises as `PlanRecord.from_verified_plan`."""
        source, target = plan.source, plan.target
        if source is None or target is None:
            raise failure(Code.EMPTY_PLAN, "a rollback plan that is executed names at least one migration")
        _check_basis(observed_applied_migrations, plan.applied)
        _check_live(observed_live_source, source)
        _check_scope(lease, source.scope, target.scope)
        manifests = [rollback.manifest for rollback in plan.rollbacks]
        _check_profiles(manifests, lease.scope)
        return _build(
            cls,
            lease,
            **_ends(source, target),
            semantic_profile=manifests[0].semantic_profile,
            lowering_profile=manifests[0].lowering_profile,
            observed_live_source=observed_live_source.semantics,
            source_applied=plan.applied,
            remaining_applied=plan.remaining,
            rollback_ids=tuple(manifest.id for manifest in manifests),
            manifest_digests=tuple(manifest.digest for manifest in manifests),
            manifest_plan_fingerprints=tuple(manifest.plan_fingerprint for manifest in manifests),
        )


@dataclass(frozen=True, slots=True, init=False)
class RollbackStepEventRecord(_EvidenceOnly):
    """Commit boundary of one reverse schema step."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    migration_id: MigrationId
    step_ordinal: int
    kind: GroupEventKind
    observed_target: Fingerprint | None

    @classmethod
    def new(
        cls,
        lease: LeaseLike,
        rollback: VerifiedRollback,
        step_ordinal: int,
        kind: GroupEventKind,
        observed_target: Fingerprint | None = None,
    ) -> RollbackStepEventRecord:
        """Record what happened to reverse step `step_ordinal`.

        Raises:
            IntegrityError: in this order, `migration_execution_rollback_step_position`,
                `migration_execution_scope_mismatch`, `migration_execution_commit_evidence_mismatch`.
            InvalidContractError: `migration_execution_invalid_formal_advance`,
                `migration_execution_unexpected_observation`.
        """
        step = rollback.schema_step(step_ordinal)
        if step is None:
            raise failure(
                Code.ROLLBACK_STEP_POSITION, f"{rollback.manifest.id} has no reverse schema step {step_ordinal}"
            )
        _check_scope(lease, rollback.manifest.scope)
        formal = step.reverse_statements == 0 and step.source.semantics == step.target.semantics
        _check_commit(kind, observed_target, step.source, formal=formal)
        return _build(
            cls,
            lease,
            manifest_digest=rollback.digest,
            migration_id=rollback.manifest.id,
            step_ordinal=u32(step_ordinal),
            kind=kind,
            observed_target=observed_target,
        )


@dataclass(frozen=True, slots=True, init=False)
class RolledBackRecord(_EvidenceOnly):
    """One migration leaves the active ledger; its states are those of the manifest, swapped."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    source_declared: Fingerprint
    target_declared: Fingerprint
    source_semantics: Fingerprint
    target_semantics: Fingerprint
    migration_id: MigrationId

    @classmethod
    def from_verified_rollback(cls, lease: LeaseLike, rollback: VerifiedRollback) -> RolledBackRecord:
        """Record a manifest as rolled back. Raises `migration_execution_scope_mismatch`."""
        manifest = rollback.manifest
        _check_scope(lease, manifest.source.scope, manifest.target.scope)
        return _build(
            cls,
            lease,
            manifest_digest=manifest.digest,
            **_ends(manifest.target, manifest.source),
            migration_id=manifest.id,
        )


@dataclass(frozen=True, slots=True, init=False)
class ImportedMigration(_EvidenceOnly):
    """One migration of an adopted ledger."""

    manifest_digest: Digest
    source_declared: Fingerprint
    target_declared: Fingerprint
    source_semantics: Fingerprint
    target_semantics: Fingerprint
    migration_id: MigrationId


@dataclass(frozen=True, slots=True, init=False)
class LedgerImportedRecord(_EvidenceOnly):
    """A target that has a history is adopted: its migrations enter the active ledger, none was executed here."""

    scope: Scope
    fence: Fence
    observed_live: Fingerprint
    operator: str
    reason: str
    migrations: tuple[ImportedMigration, ...]

    @classmethod
    def from_verified_manifests(
        cls,
        lease: LeaseLike,
        manifests: Sequence[VerifiedManifest],
        observed_live: ManagedState,
        *,
        operator: str,
        reason: str,
    ) -> LedgerImportedRecord:
        """Adopt manifests, in the order in which they had been applied, whose last target is the live state.

        Raises:
            InvalidContractError: `migration_execution_empty_import`, `journal_invalid_text`.
            IntegrityError: `migration_execution_stale_source_state` when the live state is not the last target,
                `migration_execution_scope_mismatch`, `migration_execution_plan_binding_mismatch`.
        """
        if not manifests:
            raise failure(Code.EMPTY_IMPORT, "an import names at least one migration")
        _check_text(operator, reason)
        _check_live(observed_live, manifests[-1].target)
        _check_scope(lease, observed_live.scope)
        _check_profiles(manifests, lease.scope)
        return _build(
            cls,
            lease,
            observed_live=observed_live.semantics,
            operator=operator,
            reason=reason,
            migrations=tuple(
                restore(
                    ImportedMigration,
                    {
                        "manifest_digest": manifest.digest,
                        **_ends(manifest.source, manifest.target),
                        "migration_id": manifest.id,
                    },
                )
                for manifest in manifests
            ),
        )


@dataclass(frozen=True, slots=True, init=False)
class RecoveryAttestedRecord(_EvidenceOnly):
    """An operator's reasoned statement that one ambiguous unit was committed or was definitely not."""

    scope: Scope
    fence: Fence
    manifest_digest: Digest
    migration_id: MigrationId
    unit: UnitKind
    ordinal: int
    direction: Direction
    outcome: GroupEventKind
    observed: Fingerprint | None
    operator: str
    reason: str

    @classmethod
    def new(
        cls,
        lease: LeaseLike,
        event: GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord,
        outcome: GroupEventKind,
        *,
        observed: Fingerprint | None,
        operator: str,
        reason: str,
    ) -> RecoveryAttestedRecord:
        """Attest the outcome of the unit whose last event is `event`.

        Raises:
            InvalidContractError: `journal_invalid_text`, or `migration_execution_unexpected_observation` for an outcome
                other than committed and definitely aborted.
            IntegrityError: `migration_execution_scope_mismatch`.
        """
        if outcome not in ATTESTABLE:
            raise failure(Code.UNEXPECTED_OBSERVATION, f"an operator attests committed or aborted, not {outcome.value}")
        _check_text(operator, reason)
        _check_scope(lease, event.scope)
        unit, ordinal, direction = unit_of(event)
        return _build(
            cls,
            lease,
            manifest_digest=event.manifest_digest,
            migration_id=event.migration_id,
            unit=unit,
            ordinal=ordinal,
            direction=direction,
            outcome=outcome,
            observed=observed,
            operator=operator,
            reason=reason,
        )


def unit_of(
    event: GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord,
) -> tuple[UnitKind, int, Direction]:
    """Which unit of its migration an event speaks of."""
    match event:
        case GroupEventRecord():
            return UnitKind.GROUP, event.group_ordinal, Direction.FORWARD
        case BackfillEventRecord():
            return UnitKind.BACKFILL, event.operation_ordinal, event.direction
        case RollbackStepEventRecord():
            return UnitKind.ROLLBACK_STEP, event.step_ordinal, Direction.REVERSE


@dataclass(frozen=True, slots=True, init=False)
class PlanAbandonedRecord(_EvidenceOnly):
    """The open plan is given up, with a reason; refused while a unit of it is in doubt."""

    scope: Scope
    fence: Fence
    plan_sequence: SequenceNumber
    direction: Direction
    operator: str
    reason: str

    @classmethod
    def new(
        cls,
        lease: LeaseLike,
        plan: JournalEntry[PlanRecord] | JournalEntry[RollbackPlanRecord],
        *,
        operator: str,
        reason: str,
    ) -> PlanAbandonedRecord:
        """Give up the open plan `plan`. Raises `journal_invalid_text`, `migration_execution_scope_mismatch`."""
        _check_text(operator, reason)
        _check_scope(lease, plan.record.scope)
        direction = Direction.FORWARD if isinstance(plan.record, PlanRecord) else Direction.REVERSE
        return _build(cls, lease, plan_sequence=plan.sequence, direction=direction, operator=operator, reason=reason)


# --- where the scope lives --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, init=False)
class ScopeAwaitedRecord(_EvidenceOnly):
    """The log awaits its scope, or the scope back; by the name `place` a move says that it goes there."""

    place: Place

    @classmethod
    def new(cls, place: Place) -> ScopeAwaitedRecord:
        """Name the log."""
        return restore(cls, {"place": place})


@dataclass(frozen=True, slots=True, init=False)
class ScopeMovedRecord(_EvidenceOnly):
    """The scope leaves this log; it lives in the log that awaits it under `place` as soon as it arrives there."""

    scope: Scope
    fence: Fence
    place: Place
    destination: str
    operator: str
    reason: str

    @classmethod
    def new(cls, lease: LeaseLike, place: Place, *, destination: str, operator: str, reason: str) -> ScopeMovedRecord:
        """Move the scope to `place`; `destination` tells people where that is. Raises `journal_invalid_text`.

        A unit in doubt or an open plan is no obstacle: both are decided by the target database and the chain, and that
        goes along, so recovery is as possible there as here.
        """
        _check_move(destination, operator, reason)
        return _build(cls, lease, place=place, destination=destination, operator=operator, reason=reason)


@dataclass(frozen=True, slots=True, init=False)
class ScopeArrivedRecord(_EvidenceOnly):
    """The scope lives in the log that has `place` from here on; follows the copied move at once, under its lease."""

    place: Place

    @classmethod
    def new(cls, place: Place) -> ScopeArrivedRecord:
        """Arrive at the place that the move names."""
        return restore(cls, {"place": place})


@dataclass(frozen=True, slots=True, init=False)
class ScopeRestoredRecord(_EvidenceOnly):
    """An operator's reasoned statement that the scope lives in the log that has `place`, wherever it was before.

    For what was lost: the place that a move names, or the log of which only a copy is left. Where the other one lives on
    after all, there are two histories.
    """

    place: Place
    operator: str
    reason: str

    @classmethod
    def new(cls, place: Place, *, operator: str, reason: str) -> ScopeRestoredRecord:
        """Say so. Raises `journal_invalid_text`."""
        _check_move(operator, reason)
        return restore(cls, {"place": place, "operator": operator, "reason": reason})


ScopedRecord: TypeAlias = (
    PlanRecord
    | GroupEventRecord
    | BackfillEventRecord
    | BackfillCheckpointRecord
    | AppliedRecord
    | RollbackPlanRecord
    | RollbackStepEventRecord
    | RolledBackRecord
    | LedgerImportedRecord
    | RecoveryAttestedRecord
    | PlanAbandonedRecord
    | ScopeMovedRecord
)
# Records that are written without a lease of the writer's own.
UnleasedRecord: TypeAlias = ScopeCreatedRecord | ScopeAwaitedRecord | ScopeArrivedRecord | ScopeRestoredRecord
Record: TypeAlias = ScopedRecord | UnleasedRecord | LeaseAcquiredRecord | LeaseReleasedRecord

T_co = TypeVar("T_co", bound=Record, covariant=True)


class JournalEntry(NamedTuple, Generic[T_co]):
    """A record with the sequence that admission gave it."""

    sequence: SequenceNumber
    record: T_co
