"""One migration as verified evidence: identity, dependencies, ordered steps, source and target state, digest.

Records are built from this evidence only. It holds identities and digests, so a service with a migration format of its
own makes it too: hash each step's content, name the state before and after each schema step, and call
`verify_manifest`, which checks all that a manifest promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, assert_never

from journal.errors import Code, failure
from journal.identities import Digest, Fingerprint, MigrationId, Scope, digest, fingerprint, u32

MANIFEST_DOMAIN: Final = "fenced-journal 2026-11 manifest v1"
STEPS_DOMAIN: Final = "fenced-journal 2026-11 manifest steps v1"


@dataclass(frozen=True, slots=True)
class ManagedState:
    """What the target's schema is at one point, by two identities.

    `declared` identifies what was written (two spellings differ), `semantics` what it means (two spellings of one
    schema agree). Recovery compares semantics.
    """

    scope: Scope
    declared: Fingerprint
    semantics: Fingerprint


@dataclass(frozen=True, slots=True)
class AssertionStep:
    """A condition that must hold in the transaction of the schema step that follows. `digest` identifies its content."""

    digest: Digest


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """One schema delta.

    `digest` identifies its content; `statements` counts what it was lowered to (0: it changes nothing that the target
    can see; None: it was not lowered, so it cannot be executed). `reverse_statements` counts the recorded reverse
    program, None when there is none.
    """

    digest: Digest
    source: ManagedState
    target: ManagedState
    statements: int | None
    reverse_statements: int | None = None


@dataclass(frozen=True, slots=True)
class BackfillStep:
    """One data program, identified by the fingerprint of its plan; schema semantics do not change."""

    plan_fingerprint: Fingerprint
    reversible: bool = False


Step: TypeAlias = AssertionStep | SchemaStep | BackfillStep


@dataclass(frozen=True, slots=True)
class TransactionGroup:
    """Zero or more assertions and the schema delta that follows them: one target transaction.

    Indices are into the manifest's steps; `end_step_index` is exclusive.
    """

    ordinal: int
    first_step_index: int
    schema_delta_step_index: int
    end_step_index: int

    @property
    def assertion_count(self) -> int:
        """How many assertions precede the delta."""
        return self.schema_delta_step_index - self.first_step_index


@dataclass(frozen=True, slots=True)
class VerifiedManifest:
    """One migration whose evidence was checked by `verify_manifest`; build it there, not here."""

    id: MigrationId
    dependencies: tuple[MigrationId, ...]
    steps: tuple[Step, ...]
    source: ManagedState
    target: ManagedState
    semantic_profile: Fingerprint
    lowering_profile: Fingerprint
    digest: Digest
    plan_fingerprint: Fingerprint
    groups: tuple[TransactionGroup, ...]

    @property
    def scope(self) -> Scope:
        """Scope that source and target share."""
        return self.source.scope

    def backfill_at(self, step_index: int) -> BackfillStep | None:
        """The backfill at this step, None when the step is something else or not there."""
        step = self.steps[step_index] if 0 <= step_index < len(self.steps) else None
        return step if isinstance(step, BackfillStep) else None


def verify_manifest(
    *,
    id: MigrationId,
    source: ManagedState,
    target: ManagedState,
    steps: Iterable[Step],
    semantic_profile: Fingerprint,
    lowering_profile: Fingerprint,
    dependencies: Iterable[MigrationId] = (),
) -> VerifiedManifest:
    """Check one migration's evidence and bind it together under its digest.

    The digest covers id, dependencies and steps, not the states, so that one migration has one digest in every scope.

    Raises:
        InvalidContractError: `journal_invalid_manifest`: assertions that no schema step follows, a step that does not
            start where the one before it ended, dependencies that repeat or name the migration itself.
        IntegrityError: `migration_execution_scope_mismatch`: the states are of different scopes.
        ResourceLimitError: `migration_execution_position_limit`: more than 2^32 - 1 steps.
    """
    steps, dependencies = tuple(steps), tuple(dependencies)
    u32(len(steps))
    if id in dependencies or len(set(dependencies)) != len(dependencies):
        raise _invalid(id, "depends on itself or on one migration twice")
    _check_states(id, source, target, steps)
    contents = tuple(_content(step) for step in steps)
    return VerifiedManifest(
        id=id,
        dependencies=dependencies,
        steps=steps,
        source=source,
        target=target,
        semantic_profile=semantic_profile,
        lowering_profile=lowering_profile,
        digest=manifest_digest(id, dependencies, contents),
        plan_fingerprint=fingerprint(STEPS_DOMAIN, *contents),
        groups=_groups(id, steps),
    )


def manifest_digest(id: MigrationId, dependencies: Iterable[MigrationId], contents: Iterable[bytes]) -> Digest:
    """The digest of the manifest with these steps; `contents` are what the functions below give for each."""
    identity = (str(id).encode(), *(str(dependency).encode() for dependency in dependencies))
    return digest(MANIFEST_DOMAIN, len(identity).to_bytes(8, "little"), *identity, *contents)


def assertion_content(step_digest: Digest) -> bytes:
    """What an assertion is to its manifest's digest."""
    return b"assertion:" + step_digest


def schema_content(step_digest: Digest) -> bytes:
    """What a schema step is to its manifest's digest."""
    return b"schema:" + step_digest


def backfill_content(step: BackfillStep) -> bytes:
    """What a backfill is to its manifest's digest."""
    return b"backfill:" + (b"reversible:" if step.reversible else b"forward:") + step.plan_fingerprint


def _invalid(id: MigrationId, problem: str) -> Exception:
    return failure(Code.INVALID_MANIFEST, f"migration {id} {problem}", migration=str(id))


def _check_states(id: MigrationId, source: ManagedState, target: ManagedState, steps: Sequence[Step]) -> None:
    deltas = [step for step in steps if isinstance(step, SchemaStep)]
    states = [source, *(state for step in deltas for state in (step.source, step.target)), target]
    if any(state.scope != source.scope for state in states):
        raise failure(Code.SCOPE_MISMATCH, f"the states of migration {id} are of different scopes")
    for number, (left, right) in enumerate(zip(states[::2], states[1::2], strict=True)):
        if left != right:
            where = f"schema step {number}" if number < len(deltas) else "the target state"
            raise _invalid(id, f"is not one chain of states: {where} does not start where the one before it ends")


def _groups(id: MigrationId, steps: Sequence[Step]) -> tuple[TransactionGroup, ...]:
    groups: list[TransactionGroup] = []
    first = 0
    for index, step in enumerate(steps):
        match step:
            case AssertionStep():
                continue
            case SchemaStep():
                groups.append(TransactionGroup(len(groups), first, index, index + 1))
            case BackfillStep():
                if first < index:
                    raise _invalid(id, f"has an assertion (step {first}) that no schema step follows")
            case _:
                assert_never(step)
        first = index + 1
    if first < len(steps):
        raise _invalid(id, f"has an assertion (step {first}) that no schema step follows")
    return tuple(groups)


def _content(step: Step) -> bytes:
    match step:
        case AssertionStep():
            return assertion_content(step.digest)
        case SchemaStep():
            return schema_content(step.digest)
        case BackfillStep():
            return backfill_content(step)
        case _:
            assert_never(step)


class RollbackOperationKind(Enum):
    """What a reverse operation undoes."""

    SCHEMA = "schema"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True)
class RollbackOperation:
    """One reverse operation: its kind, the manifest step that it undoes, and its ordinal among its kind."""

    kind: RollbackOperationKind
    step_index: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class VerifiedRollback:
    """The reverse of one manifest: its operations, last step first. Build it with `verify_rollback`."""

    manifest: VerifiedManifest
    operations: tuple[RollbackOperation, ...]

    @property
    def digest(self) -> Digest:
        """Digest of the manifest that is rolled back."""
        return self.manifest.digest

    def schema_step(self, ordinal: int) -> SchemaStep | None:
        """The forward step that reverse step `ordinal` undoes, None when there is no such reverse step."""
        for operation in self.operations:
            if operation.kind is RollbackOperationKind.SCHEMA and operation.ordinal == ordinal:
                step = self.manifest.steps[operation.step_index]
                return step if isinstance(step, SchemaStep) else None
        return None


def verify_rollback(manifest: VerifiedManifest) -> VerifiedRollback:
    """Derive the reverse of a manifest: every schema step and backfill, last to first.

    Raises:
        InvalidContractError: `journal_irreversible` when one of them has no reverse; nothing is derived then.
    """
    operations: list[RollbackOperation] = []
    counts = dict.fromkeys(RollbackOperationKind, 0)
    for index in reversed(range(len(manifest.steps))):
        step = manifest.steps[index]
        match step:
            case AssertionStep():
                continue
            case SchemaStep():
                kind, reversible = RollbackOperationKind.SCHEMA, step.reverse_statements is not None
            case BackfillStep():
                kind, reversible = RollbackOperationKind.BACKFILL, step.reversible
            case _:
                assert_never(step)
        if not reversible:
            raise failure(Code.IRREVERSIBLE, f"step {index} of migration {manifest.id} has no reverse", step=index)
        operations.append(RollbackOperation(kind, index, counts[kind]))
        counts[kind] += 1
    return VerifiedRollback(manifest, tuple(operations))
