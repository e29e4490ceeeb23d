"""The units of a migration in either direction: what is executed between two records, and how each is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from journal.identities import Fingerprint, MigrationId
from journal.migrations.manifest import (
    RollbackOperation,
    RollbackOperationKind,
    SchemaStep,
    TransactionGroup,
    VerifiedManifest,
    VerifiedRollback,
    verify_rollback,
)
from journal.migrations.source import AssertionSource, Statement
from journal.ports import BackfillProgram, Program
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    LeaseLike,
    RollbackStepEventRecord,
    RolledBackRecord,
)
from journal.recovery import LastEvent, RecoveryDecision, decide_group_recovery
from journal.state import UnitKey
from journal.vocabulary import IN_DOUBT, BackfillCompletion, BackfillCounts, Direction, GroupEventKind, UnitKind
from projections.outcome import UnitPosition
from projections.rehearsal import Prepared, PreparedBackfill, PreparedSchema


@dataclass(frozen=True, slots=True)
class SchemaUnit:
    """One group, or one reverse schema step: a target transaction that leads from `source` to `target`."""

    position: UnitPosition
    key: UnitKey
    assertions: tuple[AssertionSource, ...]
    statements: tuple[Statement, ...]
    program: Program
    source: Fingerprint
    target: Fingerprint
    evidence: tuple[VerifiedManifest, TransactionGroup] | VerifiedRollback

    @property
    def is_formal(self) -> bool:
        """Whether it changes nothing that the target can see, and so needs no transaction."""
        return not self.assertions and not self.program.statements and self.source == self.target

    @property
    def commits_piecemeal(self) -> bool:
        """Whether several statements commit one by one: then the schema after it does not prove that all of them ran."""
        return not self.program.transactional and len(self.program.statements) > 1

    def decide(self, last: LastEvent, observed: Fingerprint) -> RecoveryDecision:
        """What the table says; but what commits piecemeal is never repaired by the schema alone."""
        decision = decide_group_recovery(last, observed, source=self.source, target=self.target)
        if decision is RecoveryDecision.REPAIR_CHECKPOINT and last in IN_DOUBT and self.commits_piecemeal:
            return RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY
        return decision

    def record(
        self, lease: LeaseLike, kind: GroupEventKind, observed: Fingerprint | None = None
    ) -> GroupEventRecord | RollbackStepEventRecord:
        """The record of what happened to it."""
        if isinstance(self.evidence, VerifiedRollback):
            return RollbackStepEventRecord.new(lease, self.evidence, self.position.ordinal, kind, observed)
        return GroupEventRecord.new(lease, *self.evidence, kind, observed)


@dataclass(frozen=True, slots=True)
class BackfillUnit:
    """One backfill, or its reverse; `schema` is what it meets and leaves."""

    position: UnitPosition
    key: UnitKey
    statement: Statement
    program: BackfillProgram
    verify: Statement | None
    fingerprint: Fingerprint
    schema: Fingerprint
    evidence: VerifiedManifest | VerifiedRollback

    def completion(self, counts: BackfillCounts) -> BackfillCompletion:
        """Proof that it is complete."""
        return BackfillCompletion(self.fingerprint, self.position.direction, counts)

    def record(
        self, lease: LeaseLike, kind: GroupEventKind, completion: BackfillCompletion | None = None
    ) -> BackfillEventRecord:
        """The record of what happened to it."""
        if isinstance(self.evidence, VerifiedRollback):
            return BackfillEventRecord.new_rollback(lease, self.evidence, self.position.ordinal, kind, completion)
        return BackfillEventRecord.new_apply(lease, self.evidence, self.position.ordinal, kind, completion)

    def checkpoint(self, lease: LeaseLike, counts: BackfillCounts) -> BackfillCheckpointRecord:
        """The record of its progress."""
        if isinstance(self.evidence, VerifiedRollback):
            return BackfillCheckpointRecord.new_rollback(lease, self.evidence, self.position.ordinal, counts)
        return BackfillCheckpointRecord.new_apply(lease, self.evidence, self.position.ordinal, counts)


WorkUnit: TypeAlias = SchemaUnit | BackfillUnit


@dataclass(frozen=True, slots=True)
class Work:
    """One migration of a plan: its units in the order of execution, and the schema that it must leave."""

    prepared: Prepared
    units: tuple[WorkUnit, ...]
    target: Fingerprint
    rollback: VerifiedRollback | None

    @property
    def direction(self) -> Direction:
        """Whether it is applied or rolled back."""
        return Direction.FORWARD if self.rollback is None else Direction.REVERSE

    def conclude(self, lease: LeaseLike) -> AppliedRecord | RolledBackRecord:
        """The record that takes the migration into the ledger, or out of it."""
        if self.rollback is None:
            return AppliedRecord.from_verified_manifest(lease, self.prepared.manifest)
        return RolledBackRecord.from_verified_rollback(lease, self.rollback)


def forward(prepared: Prepared) -> Work:
    """How a migration is applied: its groups and backfills as they stand in the file."""
    manifest = prepared.manifest
    groups = {group.schema_delta_step_index: group for group in manifest.groups}
    units: list[WorkUnit] = []
    for index, step in enumerate(prepared.steps):
        match step:
            case PreparedSchema():
                units.append(_group(prepared, groups[index], step))
            case PreparedBackfill():
                units.append(_backfill(prepared, step, index, index, manifest))
            case AssertionSource():
                continue  # part of the group that follows
    return Work(prepared, tuple(units), manifest.target.semantics, None)


def reverse(prepared: Prepared) -> Work:
    """How a migration is rolled back: its steps last to first. Raises `journal_irreversible`."""
    rollback = verify_rollback(prepared.manifest)
    units = tuple(_undo(prepared, rollback, index, operation) for index, operation in enumerate(rollback.operations))
    return Work(prepared, units, prepared.manifest.source.semantics, rollback)


def _group(prepared: Prepared, group: TransactionGroup, step: PreparedSchema) -> SchemaUnit:
    manifest = prepared.manifest
    evidence = manifest.steps[group.schema_delta_step_index]
    assert isinstance(evidence, SchemaStep)
    assertions = prepared.steps[group.first_step_index : group.schema_delta_step_index]
    return SchemaUnit(
        position=_position(
            prepared, UnitKind.GROUP, group.ordinal, Direction.FORWARD, group.schema_delta_step_index, step.source.line
        ),
        key=(manifest.digest, UnitKind.GROUP, group.ordinal, Direction.FORWARD),
        assertions=tuple(item for item in assertions if isinstance(item, AssertionSource)),
        statements=step.source.statements,
        program=step.forward,
        source=evidence.source.semantics,
        target=evidence.target.semantics,
        evidence=(manifest, group),
    )


def _undo(prepared: Prepared, rollback: VerifiedRollback, index: int, operation: RollbackOperation) -> WorkUnit:
    step = prepared.steps[operation.step_index]
    if operation.kind is RollbackOperationKind.BACKFILL:
        assert isinstance(step, PreparedBackfill)
        return _backfill(prepared, step, operation.step_index, index, rollback)
    evidence = prepared.manifest.steps[operation.step_index]
    assert isinstance(step, PreparedSchema)
    assert isinstance(evidence, SchemaStep)
    assert step.reverse is not None
    return SchemaUnit(
        position=_position(
            prepared,
            UnitKind.ROLLBACK_STEP,
            operation.ordinal,
            Direction.REVERSE,
            operation.step_index,
            step.source.line,
        ),
        key=(rollback.digest, UnitKind.ROLLBACK_STEP, operation.ordinal, Direction.REVERSE),
        assertions=(),
        statements=step.source.reverse or (),
        program=step.reverse,
        source=evidence.target.semantics,
        target=evidence.source.semantics,
        evidence=rollback,
    )


def _backfill(
    prepared: Prepared,
    step: PreparedBackfill,
    step_index: int,
    ordinal: int,
    evidence: VerifiedManifest | VerifiedRollback,
) -> BackfillUnit:
    is_forward = isinstance(evidence, VerifiedManifest)
    direction = Direction.FORWARD if is_forward else Direction.REVERSE
    program = step.forward if is_forward else step.reverse
    statement = step.source.statement if is_forward else step.source.reverse
    assert program is not None
    assert statement is not None
    return BackfillUnit(
        position=_position(prepared, UnitKind.BACKFILL, ordinal, direction, step_index, statement.line),
        key=(prepared.manifest.digest, UnitKind.BACKFILL, ordinal, direction),
        statement=statement,
        program=program,
        verify=step.source.verify if is_forward else None,
        fingerprint=step.source.fingerprint,
        schema=_schema_at(prepared.manifest, step_index),
        evidence=evidence,
    )


def _schema_at(manifest: VerifiedManifest, step_index: int) -> Fingerprint:
    """The schema that a step without an effect on it meets."""
    before = [step for step in manifest.steps[:step_index] if isinstance(step, SchemaStep)]
    return (before[-1].target if before else manifest.source).semantics


def _position(
    prepared: Prepared, unit: UnitKind, ordinal: int, direction: Direction, step_index: int, line: int
) -> UnitPosition:
    return UnitPosition(prepared.source.id, unit, ordinal, direction, step_index, prepared.source.path, line)


def unit_name(unit: WorkUnit) -> str:
    """The name under which the target keeps a unit's witness and cursor."""
    position = unit.position
    return name_of_unit(position.migration, position.unit, position.ordinal, position.direction)


def name_of_unit(migration: MigrationId, unit: UnitKind, ordinal: int, direction: Direction) -> str:
    """The same for a unit that is known from the log alone."""
    return f"{migration} {unit.value} {ordinal} {direction.value}"


def count_of(works: Sequence[Work], kind: type[WorkUnit]) -> int:
    """How many units of one kind there are."""
    return sum(isinstance(unit, kind) for work in works for unit in work.units)
