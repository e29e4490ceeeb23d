"""The fail-closed executor for callers that keep a ledger of their own: one step, one transaction, four events.

The caller makes a checked plan (`projections.step_plan`), looks at its steps, and brings a target and a controller. The
controller says of each step, before anything of it is begun, whether it is pending, applied or cannot be told; and it
records what happens around the step's commit.

Recording is not atomic with the commit, and nothing here pretends so. `before_commit` is recorded while the step can
still be rolled back, `committed` when the target has answered. A process that dies between the two, an event that is
lost, a commit that is answered with an error: in each case the step may or may not be in the target. The executor stops
there and repeats nothing; on the next run the controller looks at the target and says which it is, or that it cannot
tell. So a step is `committed` only when both the target and the ledger said so.

    commit certain and recorded            committed
    the controller proves it is there      applied, nothing is executed
    the commit was not asked for           failed_before_commit; the plan stops, and may be run again
    anything else                          indeterminate; the plan stops

Cancellation rolls back what is open and records what is known; then it goes on to the caller. It does not wait for the
answer of a commit: such a step is recorded as `unknown_commit_outcome`. While the ledger is told, the executor waits
once; a second cancellation is not held up, and recording goes on behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Annotated, Any, Final, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, assert_never

from pydantic import Field, TypeAdapter

from journal import tasks
from journal.errors import Code, failure
from projections.step_plan import (
    CheckedExecutionPlan,
    CheckedExecutionStep,
    CheckedMigrationExecution,
    CheckedMigrationIdentity,
    MigrationAction,
    TransactionKind,
    parse_json,
)

T = TypeVar("T")
P = ParamSpec("P")


# --- what the controller says and is told ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """The target or the ledger proves that the step is not committed."""

    kind: Literal["not_committed"] = field(default="not_committed", kw_only=True)


@dataclass(frozen=True, slots=True)
class IdempotentReplay:
    """Executing the step again does no harm, by the caller's strategy of this name."""

    strategy: str
    kind: Literal["idempotent_replay"] = field(default="idempotent_replay", kw_only=True)


PendingProof: TypeAlias = Annotated[NotCommitted | IdempotentReplay, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True)
class PendingDecision:
    """The step may be executed, and why."""

    proof: PendingProof
    status: Literal["pending"] = field(default="pending", kw_only=True)


@dataclass(frozen=True, slots=True)
class AppliedDecision:
    """The step is committed already: it is passed over."""

    evidence: str | None = None
    status: Literal["applied"] = field(default="applied", kw_only=True)


@dataclass(frozen=True, slots=True)
class IndeterminateDecision:
    """Nobody can tell whether the step is committed: the plan stops before it."""

    reason: str
    status: Literal["indeterminate"] = field(default="indeterminate", kw_only=True)


StepRecoveryDecision: TypeAlias = Annotated[
    PendingDecision | AppliedDecision | IndeterminateDecision, Field(discriminator="status")
]
_DECISIONS: Final[TypeAdapter[StepRecoveryDecision]] = TypeAdapter(StepRecoveryDecision)


def decision_from_json(data: Mapping[str, Any]) -> StepRecoveryDecision:
    """Read what `to_json` made of a decision. Raises `journal_invalid_step_plan`."""
    return parse_json(_DECISIONS, data)


class StepRecoveryEventKind(Enum):
    """What happened around the commit of one step."""

    BEFORE_COMMIT = "before_commit"
    COMMITTED = "committed"
    FAILED_BEFORE_COMMIT = "failed_before_commit"
    UNKNOWN_COMMIT_OUTCOME = "unknown_commit_outcome"


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Rows of a backfill: `matched` by its selection, of these `inserted` by it and `skipped` because they had it.

    Raises `migration_backfill_count_mismatch`.
    """

    inserted: int
    matched: int
    skipped: int

    def __post_init__(self) -> None:
        if min(self.inserted, self.skipped) < 0 or self.inserted + self.skipped != self.matched:
            raise failure(Code.BACKFILL_COUNT_MISMATCH, f"matched rows are inserted or skipped, not so in {self}")


@dataclass(frozen=True, slots=True)
class StepRecoveryEvent:
    """One event for the caller's ledger. `message` says what failed; `backfill` counts rows where they are known."""

    step: CheckedExecutionStep
    kind: StepRecoveryEventKind
    message: str | None = None
    backfill: BackfillResult | None = None


# --- what the caller brings -----------------------------------------------------------------------------------------------


class StepTransaction(Protocol):
    """One transaction of the target. Whatever is raised fails the step with its text."""

    async def require_open(self) -> None:
        """Raise when this writer was cut over to another, as this transaction sees it; hold that until it ends."""
        ...

    async def execute(self, statement: str) -> None:
        """Run one statement."""
        ...

    async def prepare_backfill(self, step: CheckedExecutionStep) -> BackfillResult:
        """Do the work of a backfill in this transaction and count its rows."""
        ...

    async def commit(self) -> None:
        """Commit. The transaction is over and given up, whether this returns or raises.

        Raises:
            anything: it may or may not be committed; that the target claims to know is not relied on.
        """
        ...

    async def rollback(self) -> None:
        """Undo everything and give the transaction up."""
        ...


class StepTarget(Protocol):
    """What steps are executed on. Whatever is raised fails the step, or the migration, with its text."""

    async def require_open(self) -> None:
        """Raise when this writer was cut over to another: asked once a migration, before its first step is classified."""
        ...

    async def check(self, statement: str) -> None:
        """Raise when the target cannot run this statement at all; asked before a transaction is opened for it."""
        ...

    async def open(self, kind: TransactionKind) -> StepTransaction:
        """Begin a transaction. When this raises or is cancelled, none is open."""
        ...


TargetT = TypeVar("TargetT", bound=StepTarget)
TargetT_contra = TypeVar("TargetT_contra", bound=StepTarget, contravariant=True)


class StepController(Protocol[TargetT_contra]):
    """The caller's ledger: decides before each step, and records what happens around its commit."""

    async def classify(self, target: TargetT_contra, step: CheckedExecutionStep) -> StepRecoveryDecision:
        """Say whether a step is pending, applied or indeterminate; it may look at the target.

        Where the outcome of an earlier run cannot be proven, the answer is `IndeterminateDecision`. Raising means that.
        """
        ...

    async def record(self, event: StepRecoveryEvent) -> None:
        """Make an event durable. Raising means that it may not be."""
        ...


# --- results --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepApplied:
    """The controller proved that it is applied; nothing was executed."""

    evidence: str | None = None
    status: Literal["applied"] = field(default="applied", kw_only=True)


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """It is committed, and the event that says so is recorded."""

    backfill: BackfillResult | None = None
    status: Literal["committed"] = field(default="committed", kw_only=True)


@dataclass(frozen=True, slots=True)
class StepFailedBeforeCommit:
    """It was not committed: the commit was never asked for."""

    error: str
    status: Literal["failed_before_commit"] = field(default="failed_before_commit", kw_only=True)


@dataclass(frozen=True, slots=True)
class StepIndeterminate:
    """Whether it is committed, or recorded as committed, cannot be proven."""

    error: str
    status: Literal["indeterminate"] = field(default="indeterminate", kw_only=True)


StepExecutionOutcome: TypeAlias = Annotated[
    StepApplied | StepCommitted | StepFailedBeforeCommit | StepIndeterminate, Field(discriminator="status")
]


class RecoveryStatus(Enum):
    """How a migration or a plan ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INDETERMINATE = "indeterminate"


@dataclass(frozen=True, slots=True)
class StepExecutionResult:
    """One step and its outcome."""

    step: CheckedExecutionStep
    outcome: StepExecutionOutcome


@dataclass(frozen=True, slots=True)
class RecoveryMigrationResult:
    """One migration: the steps that were classified, in order of execution, the last of them where it stopped."""

    migration: CheckedMigrationIdentity
    status: RecoveryStatus
    steps: tuple[StepExecutionResult, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RecoveryExecutionResult:
    """One run of a plan: the migrations that were begun, in order of execution."""

    status: RecoveryStatus
    migrations: tuple[RecoveryMigrationResult, ...]


# --- the executor ---------------------------------------------------------------------------------------------------------


async def execute_checked_plan(
    target: TargetT, plan: CheckedExecutionPlan, controller: StepController[TargetT]
) -> RecoveryExecutionResult:
    """Execute a plan, rollbacks first, and stop at the first migration that fails or cannot be told.

    Errors of target and controller are part of the result. Raises CancelledError alone, after the step under way was
    rolled back or recorded as unknown.
    """
    results: list[RecoveryMigrationResult] = []
    for migration in plan.migrations:
        results.append(await _execute_migration(target, migration, controller))
        if results[-1].status is not RecoveryStatus.SUCCEEDED:
            return RecoveryExecutionResult(results[-1].status, tuple(results))
    return RecoveryExecutionResult(RecoveryStatus.SUCCEEDED, tuple(results))


async def _execute_migration(
    target: TargetT, migration: CheckedMigrationExecution, controller: StepController[TargetT]
) -> RecoveryMigrationResult:
    identity = migration.identity
    if identity.action is MigrationAction.ROLLBACK and not migration.reversible:
        return RecoveryMigrationResult(identity, RecoveryStatus.FAILED, error=f"{identity.name} is not reversible")
    guarded = await _attempt(target.require_open)
    if isinstance(guarded, _Failure):
        return RecoveryMigrationResult(identity, RecoveryStatus.FAILED, error=guarded.text)
    results: list[StepExecutionResult] = []
    for step in migration.ordered_steps:
        outcome = await _execute_step(target, step, controller)
        results.append(StepExecutionResult(step, outcome))
        match outcome:
            case StepApplied() | StepCommitted():
                continue
            case StepFailedBeforeCommit(error):
                return RecoveryMigrationResult(identity, RecoveryStatus.FAILED, tuple(results), error)
            case StepIndeterminate(error):
                return RecoveryMigrationResult(identity, RecoveryStatus.INDETERMINATE, tuple(results), error)
            case _:
                assert_never(outcome)
    return RecoveryMigrationResult(identity, RecoveryStatus.SUCCEEDED, tuple(results))


async def _execute_step(
    target: TargetT, step: CheckedExecutionStep, controller: StepController[TargetT]
) -> StepExecutionOutcome:
    decision = await _attempt(controller.classify, target, step)
    match decision:
        case _Failure():
            return StepIndeterminate(f"step {step.id} could not be classified: {decision.text}")
        case AppliedDecision(evidence):
            return StepApplied(evidence)
        case IndeterminateDecision(reason):
            return StepIndeterminate(reason)
        case PendingDecision():
            return await _Execution(target, step, controller).run()
        case _:
            assert_never(decision)


class _Phase(Enum):
    UNCOMMITTED = auto()
    COMMITTING = auto()
    ENDED = auto()  # the event that ends the step is being recorded, or is


class _Execution(Generic[TargetT]):
    """One pending step on its way through a transaction of its own."""

    def __init__(self, target: TargetT, step: CheckedExecutionStep, controller: StepController[TargetT]) -> None:
        self._target = target
        self._step = step
        self._controller = controller
        self._phase = _Phase.UNCOMMITTED
        self._transaction: StepTransaction | None = None
        self._backfill: BackfillResult | None = None

    async def run(self) -> StepExecutionOutcome:
        try:
            return await self._begin()
        except asyncio.CancelledError:
            match self._phase:
                case _Phase.UNCOMMITTED:
                    await _to_the_end(self._fail("cancelled before the commit"))
                case _Phase.COMMITTING:
                    await _to_the_end(
                        self._doubt("the outcome of the commit is unknown: cancelled while it was under way")
                    )
                case _Phase.ENDED:
                    pass
                case _:
                    assert_never(self._phase)
            raise

    async def _begin(self) -> StepExecutionOutcome:
        statement = self._step.statement
        if statement is None:
            return await _to_the_end(self._fail("the step cannot be rolled back: it has no reverse statement"))
        supported = await _attempt(self._target.check, statement)
        if isinstance(supported, _Failure):
            return await _to_the_end(self._fail(supported.text))
        opened = await _attempt(self._target.open, self._step.execution.tx_type)
        if isinstance(opened, _Failure):
            return await _to_the_end(self._fail(f"no transaction could be opened: {opened.text}"))
        self._transaction = opened
        return await self._change(opened, statement)

    async def _change(self, transaction: StepTransaction, statement: str) -> StepExecutionOutcome:
        guarded = await _attempt(transaction.require_open)
        if isinstance(guarded, _Failure):
            return await _to_the_end(self._withdraw(guarded.text))
        if self._step.is_backfill:
            prepared = await _attempt(transaction.prepare_backfill, self._step)
            if isinstance(prepared, _Failure):
                return await _to_the_end(self._fail(f"the backfill failed: {prepared.text}"))
            self._backfill = prepared
        else:
            executed = await _attempt(transaction.execute, statement)
            if isinstance(executed, _Failure):
                return await _to_the_end(self._fail(f"the statement failed: {executed.text}"))
        return await self._commit(transaction)

    async def _commit(self, transaction: StepTransaction) -> StepExecutionOutcome:
        recorded = await _attempt(self._record, StepRecoveryEventKind.BEFORE_COMMIT)
        if isinstance(recorded, _Failure):
            return await _to_the_end(self._fail(f"before_commit was not recorded: {recorded.text}"))
        self._phase = _Phase.COMMITTING
        committed = await _attempt(transaction.commit)
        if isinstance(committed, _Failure):
            return await _to_the_end(self._doubt(f"the outcome of the commit is unknown: {committed.text}"))
        self._phase = _Phase.ENDED
        return await _to_the_end(self._confirm())

    # Each of the following ends the step.

    async def _confirm(self) -> StepExecutionOutcome:
        recorded = await _attempt(self._record, StepRecoveryEventKind.COMMITTED)
        if isinstance(recorded, _Failure):
            return StepIndeterminate(
                f"step {self._step.id} is committed, but committed was not recorded: {recorded.text}"
            )
        return StepCommitted(self._backfill)

    async def _doubt(self, message: str) -> StepExecutionOutcome:
        self._phase = _Phase.ENDED
        return StepIndeterminate(message + await self._tell(StepRecoveryEventKind.UNKNOWN_COMMIT_OUTCOME, message))

    async def _fail(self, message: str) -> StepExecutionOutcome:
        self._phase = _Phase.ENDED
        try:
            message += await self._roll_back()
        finally:
            # Also when the rollback was cancelled: that the commit was not asked for is known in any case.
            untold = await self._tell(StepRecoveryEventKind.FAILED_BEFORE_COMMIT, message)
        return StepFailedBeforeCommit(message + untold)

    async def _withdraw(self, message: str) -> StepExecutionOutcome:
        # The ledger is another writer's now, so nothing is recorded.
        self._phase = _Phase.ENDED
        return StepFailedBeforeCommit(message + await self._roll_back())

    async def _roll_back(self) -> str:
        if self._transaction is None:
            return ""
        undone = await _attempt(self._transaction.rollback)
        return f"; the rollback failed too: {undone.text}" if isinstance(undone, _Failure) else ""

    async def _tell(self, kind: StepRecoveryEventKind, message: str) -> str:
        recorded = await _attempt(self._record, kind, message)
        return f"; {kind.value} was not recorded: {recorded.text}" if isinstance(recorded, _Failure) else ""

    async def _record(self, kind: StepRecoveryEventKind, message: str | None = None) -> None:
        await self._controller.record(StepRecoveryEvent(self._step, kind, message, self._backfill))


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str


async def _attempt(call: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T | _Failure:
    try:
        return await call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 target and controller are the caller's: whatever they raise fails the step
        return _Failure(str(error) or type(error).__name__)


async def _to_the_end(ending: Coroutine[Any, Any, T]) -> T:
    """Finish the end of a step although cancelled meanwhile; then the cancellation goes on, a second one at once."""
    task = tasks.start(ending, "end of a step")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
