"""Checked plans: which steps would run, in which order, each under an identity that outlives the process.

For callers that keep a ledger of their own. A step's identity binds the checksum of the artifact that it came from, its
migration, direction, place and kind of operation, so a receipt that was written under it means this step and no other.
It keeps its published form, `tb-step-v1:` and a SHA-256, so that ledgers of other tools can be read.

Everything here is pure. A value of a checked type is consistent: it is refused when it is made, also from JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from hashlib import sha256
from typing import Any, Final, NewType, TypeVar

from pydantic import TypeAdapter, ValidationError

from journal.errors import Code, JournalError, failure
from journal.identities import MigrationId, u32
from journal.migrations.graph import ancestors, dependents, order

StepId = NewType("StepId", str)
OperationKind = NewType("OperationKind", str)
T = TypeVar("T")

STEP_ID_PREFIX: Final = "tb-step-v1:"
_STEP_DOMAIN: Final = b"type-bridge-execution-step-v1"
_OPERATION_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,127}", re.ASCII)


class MigrationAction(Enum):
    """Which way a migration is executed."""

    APPLY = "apply"
    ROLLBACK = "rollback"


class TransactionKind(Enum):
    """What a transaction of the target is opened for."""

    READ = "read"
    WRITE = "write"
    SCHEMA = "schema"


class StepKind(Enum):
    """What a step is to the executor; a backfill is prepared by the target, which counts its rows."""

    SCHEMA = "schema"
    WRITE = "write"
    BACKFILL = "backfill"


# --- plans --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExecutionStep:
    """One statement in one transaction, and its reverse (None: there is none).

    `operation_kind` says what the author asked for, as a word of `a-z 0-9 _`: `add_attribute`, `copy_attribute`,
    `run_typeql`; it is part of the step's identity.
    """

    tx_type: TransactionKind
    kind: StepKind
    operation_kind: OperationKind
    forward: str
    reverse: str | None = None

    def __post_init__(self) -> None:
        if not _OPERATION_KIND.fullmatch(self.operation_kind):
            raise _invalid(f"operation kind {self.operation_kind!r:.150} must be a word of a-z 0-9 _, at most 128 long")


@dataclass(frozen=True, slots=True)
class MigrationExecution:
    """One migration to execute, not yet bound to its artifact. `steps` are in the author's order in both directions."""

    app_label: str
    name: str
    action: MigrationAction
    steps: tuple[ExecutionStep, ...]
    reversible: bool


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What to roll back, then what to apply, each in order."""

    to_apply: tuple[MigrationExecution, ...] = ()
    to_rollback: tuple[MigrationExecution, ...] = ()


# --- checked plans ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckedMigrationIdentity:
    """Which migration, of which artifact, in which direction: what all steps of one execution share."""

    app_label: str
    name: str
    checksum: str
    action: MigrationAction

    def __post_init__(self) -> None:
        for what, text in (("app label", self.app_label), ("name", self.name), ("checksum", self.checksum)):
            if not text or not _is_unicode(text):
                raise _invalid(
                    f"migration {self.app_label!r:.150} {self.name!r:.150} needs a {what} that is Unicode text, not empty"
                )


@dataclass(frozen=True, slots=True)
class CheckedExecutionStep:
    """One step as it is shown before anything is changed. `step_index` is its place in the author's order, from 0."""

    id: StepId
    migration: CheckedMigrationIdentity
    step_index: int
    operation_kind: OperationKind
    execution: ExecutionStep

    def __post_init__(self) -> None:
        if self.operation_kind != self.execution.operation_kind:
            raise _inconsistent(f"step {self.id} is of two operation kinds", step=self.id)
        if self.id != step_id(self.migration, self.step_index, self.operation_kind):
            raise _inconsistent(
                f"step {self.step_index} of {self.migration.name} does not have the identity {self.id}: "
                "it was made of another artifact, place or direction",
                step=self.id,
            )

    @property
    def statement(self) -> str | None:
        """What is executed in the migration's direction; None for a rollback without a reverse."""
        return self.execution.forward if self.migration.action is MigrationAction.APPLY else self.execution.reverse

    @property
    def is_backfill(self) -> bool:
        """Whether the target prepares this step and counts rows; the reverse of a backfill is a statement like any."""
        return self.execution.kind is StepKind.BACKFILL and self.migration.action is MigrationAction.APPLY


@dataclass(frozen=True, slots=True)
class CheckedMigrationExecution:
    """One migration with its checked steps in the author's order. `reversible`: every step has a reverse."""

    identity: CheckedMigrationIdentity
    steps: tuple[CheckedExecutionStep, ...]
    reversible: bool

    def __post_init__(self) -> None:
        for index, step in enumerate(self.steps):
            if step.migration != self.identity or step.step_index != index:
                raise _inconsistent(f"step {step.id} is not step {index} of {self.identity.name}", step=step.id)

    @property
    def ordered_steps(self) -> tuple[CheckedExecutionStep, ...]:
        """The steps in the order of execution: a rollback undoes the last one first."""
        return self.steps if self.identity.action is MigrationAction.APPLY else self.steps[::-1]


@dataclass(frozen=True, slots=True)
class CheckedExecutionPlan:
    """A plan whose every step has its identity."""

    to_apply: tuple[CheckedMigrationExecution, ...] = ()
    to_rollback: tuple[CheckedMigrationExecution, ...] = ()

    def __post_init__(self) -> None:
        _check_list(self.to_apply, MigrationAction.APPLY)
        _check_list(self.to_rollback, MigrationAction.ROLLBACK)

    @property
    def migrations(self) -> tuple[CheckedMigrationExecution, ...]:
        """All migrations in the order of execution: rollbacks, then applies."""
        return self.to_rollback + self.to_apply

    def ordered_steps(self) -> Iterator[CheckedExecutionStep]:
        """All steps in the order of execution."""
        return (step for migration in self.migrations for step in migration.ordered_steps)


def step_id(migration: CheckedMigrationIdentity, step_index: int, operation_kind: OperationKind) -> StepId:
    """The identity of one step: SHA-256 of these fields, each preceded by its length (8 bytes, big endian).

    Raises ResourceLimitError, `migration_execution_position_limit`.
    """
    fields = (
        _STEP_DOMAIN,
        migration.checksum.encode(),
        migration.app_label.encode(),
        migration.name.encode(),
        migration.action.value.encode(),
        u32(step_index).to_bytes(8, "big"),
        operation_kind.encode(),
    )
    hasher = sha256()
    for field in fields:
        hasher.update(len(field).to_bytes(8, "big"))
        hasher.update(field)
    return StepId(STEP_ID_PREFIX + hasher.hexdigest())


def prepare_checked_plan(plan: ExecutionPlan, checksums: Mapping[tuple[str, str], str]) -> CheckedExecutionPlan:
    """Bind a plan to its artifacts: `checksums` gives one for each (app label, name) of the plan.

    Raises:
        InvalidContractError: `journal_invalid_step_plan`: a checksum is missing or empty, or a migration stands twice or
            under the wrong direction.
    """
    return CheckedExecutionPlan(
        to_apply=tuple(_checked(migration, checksums) for migration in plan.to_apply),
        to_rollback=tuple(_checked(migration, checksums) for migration in plan.to_rollback),
    )


def _checked(migration: MigrationExecution, checksums: Mapping[tuple[str, str], str]) -> CheckedMigrationExecution:
    checksum = checksums.get((migration.app_label, migration.name))
    if not checksum:
        raise _invalid(
            f"migration {migration.app_label}/{migration.name} has no checksum: "
            "its steps have no identity without one, so they cannot be executed or recovered"
        )
    identity = CheckedMigrationIdentity(migration.app_label, migration.name, checksum, migration.action)
    steps = (
        CheckedExecutionStep(
            id=step_id(identity, index, step.operation_kind),
            migration=identity,
            step_index=index,
            operation_kind=step.operation_kind,
            execution=step,
        )
        for index, step in enumerate(migration.steps)
    )
    return CheckedMigrationExecution(identity, tuple(steps), migration.reversible)


def _check_list(migrations: Iterable[CheckedMigrationExecution], action: MigrationAction) -> None:
    seen: set[tuple[str, str]] = set()
    for migration in migrations:
        identity = migration.identity
        if identity.action is not action:
            raise _invalid(
                f"{identity.app_label}/{identity.name} stands under {action.value}, but is to {identity.action.value}"
            )
        if (identity.app_label, identity.name) in seen:
            raise _invalid(f"the plan is to {action.value} {identity.app_label}/{identity.name} twice")
        seen.add((identity.app_label, identity.name))


def _is_unicode(text: str) -> bool:
    # A lone surrogate has no bytes, so no identity.
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _invalid(problem: str) -> JournalError:
    return failure(Code.INVALID_STEP_PLAN, problem)


def _inconsistent(problem: str, **details: str) -> JournalError:
    return failure(Code.PLAN_BINDING_MISMATCH, problem, **details)


# --- planning -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepMigration:
    """One migration as the caller's artifact has it: what it needs before it, its checksum, its steps."""

    id: MigrationId
    checksum: str
    steps: tuple[ExecutionStep, ...]
    dependencies: tuple[MigrationId, ...] = ()

    @property
    def reversible(self) -> bool:
        """Whether every step has a reverse."""
        return all(step.reverse is not None for step in self.steps)


@dataclass(frozen=True, slots=True)
class AppliedMigration:
    """One migration that the caller's ledger has as applied, and the checksum that it had then."""

    id: MigrationId
    checksum: str


def plan_steps(
    migrations: Iterable[StepMigration], applied: Iterable[AppliedMigration], target: MigrationId | None = None
) -> CheckedExecutionPlan:
    """Plan from `applied` to `target`, with step identities from the checksums of these same migrations.

    Without a target everything that is missing is applied. With one, it and what it needs is applied, or, where it is
    applied, everything that depends on it is rolled back; what is not related to it stays as it is.

    Raises:
        InvalidContractError: `journal_invalid_graph`, `journal_unknown_migration` (the target), `journal_irreversible`
            (before anything is done), `journal_invalid_step_plan` as `prepare_checked_plan`.
        IntegrityError: `journal_migration_edited`: applied under another checksum; `journal_ledger_ahead`: applied, but
            not among the migrations; `migration_execution_plan_binding_mismatch`: applied twice, or without what it
            depends on.
    """
    known = _by_id(migrations)
    graph = {id: migration.dependencies for id, migration in known.items()}
    sequence = order(graph)
    done = _verified_applied(known, applied)
    wanted = known.keys() if target is None else ancestors(graph, [target])
    undone = set[MigrationId]() if target is None else (dependents(graph, [target]) - {target}) & done
    plan = ExecutionPlan(
        to_apply=tuple(_apply(known[id]) for id in sequence if id in wanted and id not in done),
        to_rollback=tuple(_roll_back(known[id]) for id in reversed(sequence) if id in undone),
    )
    return prepare_checked_plan(plan, {(id.app, id.name): migration.checksum for id, migration in known.items()})


def _by_id(migrations: Iterable[StepMigration]) -> dict[MigrationId, StepMigration]:
    known: dict[MigrationId, StepMigration] = {}
    for migration in migrations:
        if known.setdefault(migration.id, migration) is not migration:
            raise failure(Code.INVALID_GRAPH, f"there are two migrations {migration.id}", migration=str(migration.id))
    return known


def _verified_applied(
    known: Mapping[MigrationId, StepMigration], applied: Iterable[AppliedMigration]
) -> frozenset[MigrationId]:
    done: set[MigrationId] = set()
    for row in applied:
        _check_drift(known.get(row.id), row)
        if row.id in done:
            raise _inconsistent(f"the ledger has {row.id} as applied twice", migration=str(row.id))
        done.add(row.id)
    for id in sorted(done):
        for dependency in known[id].dependencies:
            if dependency not in done:
                raise _inconsistent(
                    f"{id} is applied, but {dependency}, on which it depends, is not", migration=str(id)
                )
    return frozenset(done)


def _check_drift(migration: StepMigration | None, row: AppliedMigration) -> None:
    if migration is None:
        raise failure(Code.LEDGER_AHEAD, f"{row.id} is applied, but not among the migrations", migration=str(row.id))
    if migration.checksum != row.checksum:
        raise failure(
            Code.MIGRATION_EDITED,
            f"{row.id} was applied with checksum {row.checksum or 'unknown'} and has {migration.checksum} now: "
            "restore it, and put the change into a new migration",
            migration=str(row.id),
            applied=row.checksum,
            found=migration.checksum,
        )


def _apply(migration: StepMigration) -> MigrationExecution:
    return MigrationExecution(
        migration.id.app, migration.id.name, MigrationAction.APPLY, migration.steps, migration.reversible
    )


def _roll_back(migration: StepMigration) -> MigrationExecution:
    for index, step in enumerate(migration.steps):
        if step.reverse is None:
            raise failure(Code.IRREVERSIBLE, f"step {index} of migration {migration.id} has no reverse", step=index)
    return MigrationExecution(
        migration.id.app, migration.id.name, MigrationAction.ROLLBACK, migration.steps, reversible=True
    )


# --- JSON ---------------------------------------------------------------------------------------------------------------


def to_json(value: object) -> dict[str, Any]:
    """A checked plan, step, event, decision or result as JSON data; what is None is left out."""
    data: dict[str, Any] = _adapter(type(value)).dump_python(value, mode="json", exclude_none=True)
    return data


def from_json(type_: type[T], data: Mapping[str, Any]) -> T:
    """Read what `to_json` made of a value of this type.

    Raises:
        InvalidContractError: `journal_invalid_step_plan`: not of this form, or what a plan must not be.
        IntegrityError: `migration_execution_plan_binding_mismatch`: an identity that is not that of its step.
    """
    return parse_json(_adapter(type_), data)


def parse_json(adapter: TypeAdapter[T], data: Mapping[str, Any]) -> T:
    """`from_json` for types that are no class, such as unions."""
    try:
        # By way of text, because only there enumerations and tuples are read strictly.
        return adapter.validate_json(json.dumps(dict(data)), strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the whole"
        raise _invalid(f"this is not what was written: {where}: {problem['msg']}") from error
    except (TypeError, ValueError) as error:
        raise _invalid(f"this is not JSON data: {error}") from error


def _adapter(type_: type[T]) -> TypeAdapter[T]:
    key: Any = type_
    return _cached_adapter(key)


@cache
def _cached_adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)
