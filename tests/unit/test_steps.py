"""The steps executor: every test of seed 002, plans and their JSON, and every point at which a call can fail.

Each counterpart names the test of the seed that it stands for. The target here keeps its state in memory and writes down
what is asked of it; the ledger is a list.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

import pytest
from hypothesis import given, strategies as st

from journal.errors import Code, IntegrityError, InvalidContractError, JournalError, ResourceLimitError, failure
from journal.identities import MigrationId
from projections.step_plan import (
    AppliedMigration,
    CheckedExecutionPlan,
    CheckedExecutionStep,
    CheckedMigrationExecution,
    CheckedMigrationIdentity,
    ExecutionPlan,
    ExecutionStep,
    MigrationAction,
    MigrationExecution,
    OperationKind,
    StepId,
    StepKind,
    StepMigration,
    TransactionKind,
    from_json,
    plan_steps,
    prepare_checked_plan,
    step_id,
    to_json,
)
from projections.steps import (
    AppliedDecision,
    BackfillResult,
    IdempotentReplay,
    IndeterminateDecision,
    NotCommitted,
    PendingDecision,
    RecoveryExecutionResult,
    RecoveryMigrationResult,
    RecoveryStatus,
    StepApplied,
    StepCommitted,
    StepController,
    StepExecutionOutcome,
    StepExecutionResult,
    StepFailedBeforeCommit,
    StepIndeterminate,
    StepRecoveryDecision,
    StepRecoveryEvent,
    StepRecoveryEventKind,
    StepTarget,
    StepTransaction,
    decision_from_json,
    execute_checked_plan,
)

T = TypeVar("T")

BEFORE = StepRecoveryEventKind.BEFORE_COMMIT
COMMITTED = StepRecoveryEventKind.COMMITTED
FAILED = StepRecoveryEventKind.FAILED_BEFORE_COMMIT
UNKNOWN = StepRecoveryEventKind.UNKNOWN_COMMIT_OUTCOME
READ, WRITE, SCHEMA = TransactionKind.READ, TransactionKind.WRITE, TransactionKind.SCHEMA
APPLY, ROLLBACK = MigrationAction.APPLY, MigrationAction.ROLLBACK

PENDING = PendingDecision(NotCommitted())
GUARDED = ["open read", "close"]
CUTOVER = "this writer was cut over to another"
PUBLISHED_ID = "tb-step-v1:0a308e166ea81d161a8c92cbf01157935fbf53b55111df3c75f5129a183b74f9"


# --- a target in memory, a ledger in a list -----------------------------------------------------------------------------


class MemoryTarget(StepTarget):
    """What was committed, statement by statement, and the calls that led there."""

    def __init__(self, *, counts: BackfillResult | None = None) -> None:
        self.log: list[str] = []
        self.committed: list[str] = []
        self.is_open = True
        self.closes_inside = False
        self.unsupported: set[str] = set()
        self.failing: set[str] = set()
        self.failing_commits: dict[str, Exception] = {}
        self.failing_rollback: Exception | None = None
        self.failing_open: Exception | None = None
        self.counts = counts or BackfillResult(inserted=4, matched=7, skipped=3)
        self.transactions: list[MemoryTransaction] = []

    async def require_open(self) -> None:
        self.log += GUARDED
        if not self.is_open:
            raise RuntimeError(CUTOVER)

    async def check(self, statement: str) -> None:
        if statement in self.unsupported:
            raise RuntimeError(f"{statement} is not supported")

    async def open(self, kind: TransactionKind) -> MemoryTransaction:
        if self.failing_open is not None:
            raise self.failing_open
        self.log.append(f"open {kind.value}")
        self.transactions.append(MemoryTransaction(self, kind))
        return self.transactions[-1]

    @property
    def left_open(self) -> int:
        """Transactions that nobody ended."""
        return sum(not transaction.ended for transaction in self.transactions)


class MemoryTransaction(StepTransaction):
    def __init__(self, target: MemoryTarget, kind: TransactionKind) -> None:
        self.target = target
        self.kind = kind
        self.changes: list[str] = []
        self.ended = False

    async def require_open(self) -> None:
        if self.target.closes_inside:
            raise RuntimeError(CUTOVER)

    async def execute(self, statement: str) -> None:
        self.target.log.append(f"query {self.kind.value}: {statement}")
        if statement in self.target.failing:
            raise RuntimeError(f"near {statement!r}: syntax error")
        self.changes.append(statement)

    async def prepare_backfill(self, step: CheckedExecutionStep) -> BackfillResult:
        await self.execute(step.execution.forward)
        return self.target.counts

    async def commit(self) -> None:
        assert not self.ended
        self.ended = True
        self.target.log.append("commit")
        for change in self.changes:
            if change in self.target.failing_commits:
                raise self.target.failing_commits[change]
        self.target.committed += self.changes

    async def rollback(self) -> None:
        assert not self.ended
        self.ended = True
        self.target.log.append("rollback")
        if self.target.failing_rollback is not None:
            raise self.target.failing_rollback


class ListController(StepController[StepTarget]):
    """Gives its decisions one by one, and keeps the events; some kinds cannot be recorded."""

    def __init__(
        self, decisions: Iterable[StepRecoveryDecision | Exception], *, failing: Iterable[StepRecoveryEventKind] = ()
    ) -> None:
        self.decisions = list(decisions)
        self.failing = frozenset(failing)
        self.events: list[StepRecoveryEvent] = []
        self.classified: list[str] = []

    async def classify(self, target: StepTarget, step: CheckedExecutionStep) -> StepRecoveryDecision:
        self.classified.append(str(step.statement))
        decision = self.decisions.pop(0)
        if isinstance(decision, Exception):
            raise decision
        return decision

    async def record(self, event: StepRecoveryEvent) -> None:
        self.events.append(event)
        if event.kind in self.failing:
            raise OSError("the disk is full")

    @property
    def kinds(self) -> list[StepRecoveryEventKind]:
        return [event.kind for event in self.events]

    @property
    def messages(self) -> list[str | None]:
        return [event.message for event in self.events]


def schema_step(statement: str, *, reverse: str | None = "") -> ExecutionStep:
    return ExecutionStep(
        SCHEMA,
        StepKind.SCHEMA,
        OperationKind("add_attribute"),
        statement,
        f"reverse {statement}" if reverse == "" else reverse,
    )


def write_step(statement: str) -> ExecutionStep:
    return ExecutionStep(WRITE, StepKind.WRITE, OperationKind("run_typeql"), statement, f"reverse {statement}")


def backfill_step(statement: str = "copy") -> ExecutionStep:
    return ExecutionStep(WRITE, StepKind.BACKFILL, OperationKind("copy_attribute"), statement, f"reverse {statement}")


DEFINE_A = schema_step("define attribute a, value string;")
DEFINE_B = schema_step("define attribute b, value string;")
INSERT = write_step("insert $p isa person;")


def execution(
    *steps: ExecutionStep, action: MigrationAction = APPLY, name: str = "0001_initial", reversible: bool | None = None
) -> MigrationExecution:
    whole = all(step.reverse is not None for step in steps)
    return MigrationExecution("app", name, action, steps, whole if reversible is None else reversible)


def checked(*executions: MigrationExecution, checksum: str = "checksum-1") -> CheckedExecutionPlan:
    plan = ExecutionPlan(
        to_apply=tuple(item for item in executions if item.action is APPLY),
        to_rollback=tuple(item for item in executions if item.action is ROLLBACK),
    )
    return prepare_checked_plan(plan, {(item.app_label, item.name): checksum for item in executions})


def plan_of(*steps: ExecutionStep) -> CheckedExecutionPlan:
    return checked(execution(*steps))


def rollback_of(*steps: ExecutionStep) -> CheckedExecutionPlan:
    return checked(execution(*steps, action=ROLLBACK))


def outcomes(result: RecoveryExecutionResult) -> list[StepExecutionOutcome]:
    return [step.outcome for migration in result.migrations for step in migration.steps]


def error_of(result: RecoveryExecutionResult) -> str:
    """The error of the last step, which is that of its migration too."""
    last = result.migrations[-1]
    outcome = last.steps[-1].outcome
    assert isinstance(outcome, StepFailedBeforeCommit | StepIndeterminate)
    assert last.error == outcome.error
    return outcome.error


# --- the seed's tests ---------------------------------------------------------------------------------------------------


def test_a_checked_plan_shows_stable_step_identities_that_bind_the_checksum() -> None:
    """`checked_plan_exposes_stable_checksum_bound_step_sequence`."""
    first = [step.id for step in plan_of(DEFINE_A, INSERT).ordered_steps()]
    second = [step.id for step in plan_of(DEFINE_A, INSERT).ordered_steps()]

    assert first == second
    assert first[0] != first[1]
    assert first[0] == PUBLISHED_ID
    assert len(first[0]) == 75
    assert len(to_json(plan_of(DEFINE_A, INSERT))["to_apply"][0]["steps"]) == 2

    changed = checked(execution(DEFINE_A), checksum="checksum-2")
    assert next(changed.ordered_steps()).id != first[0]
    with pytest.raises(InvalidContractError, match="has no checksum"):
        prepare_checked_plan(ExecutionPlan(to_apply=(execution(DEFINE_A),)), {})
    with pytest.raises(InvalidContractError, match="has no checksum"):
        checked(execution(DEFINE_A), checksum="")


def test_planning_binds_identities_to_the_artifacts_that_it_validated() -> None:
    """`plan_recovery_binds_ids_to_the_validated_graph_artifact`."""
    raw = ExecutionStep(SCHEMA, StepKind.SCHEMA, OperationKind("run_typeql"), "define attribute a, value string;")
    migration = StepMigration(MigrationId("app", "0001_initial"), "artifact-checksum", (raw,))

    plan = plan_steps([migration], [])

    [step] = plan.ordered_steps()
    assert step.migration.checksum == "artifact-checksum"
    assert step.operation_kind == "run_typeql"
    assert not plan.to_apply[0].reversible


async def test_a_resumed_plan_passes_over_what_is_applied_and_executes_what_is_provably_pending() -> None:
    """`safe_resume_skips_applied_schema_and_executes_proven_pending_data`."""
    target = MemoryTarget()
    controller = ListController([AppliedDecision("schema introspection"), PENDING])

    result = await execute_checked_plan(target, plan_of(DEFINE_A, INSERT), controller)

    assert result.status is RecoveryStatus.SUCCEEDED
    assert outcomes(result) == [StepApplied("schema introspection"), StepCommitted()]
    assert controller.kinds == [BEFORE, COMMITTED]
    assert target.log == [*GUARDED, "open write", "query write: insert $p isa person;", "commit"]


async def test_a_cut_over_writer_is_stopped_before_the_controller_and_any_statement() -> None:
    """`cutover_rejects_recovery_before_controller_or_typeql`."""
    target = MemoryTarget()
    target.is_open = False
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert result.status is RecoveryStatus.FAILED
    assert result.migrations[0].steps == ()
    assert result.migrations[0].error == CUTOVER
    assert controller.kinds == []
    assert controller.classified == []
    assert target.log == GUARDED


async def test_an_indeterminate_step_stops_the_plan_and_is_not_repeated() -> None:
    """`indeterminate_run_typeql_blocks_without_replay`."""
    target = MemoryTarget()
    reason = "a receipt from before the commit has no outcome"
    controller = ListController([IndeterminateDecision(reason)])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert result.status is RecoveryStatus.INDETERMINATE
    assert outcomes(result) == [StepIndeterminate(reason)]
    assert result.migrations[0].error == reason
    assert target.log == GUARDED
    assert controller.kinds == []


async def test_a_failure_behind_an_earlier_commit_is_failed_before_commit() -> None:
    """`failure_after_earlier_commit_is_typed_failed_before_commit`."""
    target = MemoryTarget()
    target.failing = {DEFINE_B.forward}
    controller = ListController([PENDING, PENDING])

    result = await execute_checked_plan(target, plan_of(DEFINE_A, DEFINE_B), controller)

    assert result.status is RecoveryStatus.FAILED
    assert isinstance(outcomes(result)[0], StepCommitted)
    assert isinstance(outcomes(result)[1], StepFailedBeforeCommit)
    assert "syntax error" in error_of(result)
    assert controller.kinds == [BEFORE, COMMITTED, FAILED]
    assert controller.messages == [None, None, error_of(result)]
    assert target.log[-1] == "rollback"


async def test_a_commit_that_the_target_says_was_aborted_stays_indeterminate() -> None:
    """`definitely_aborted_commit_response_remains_indeterminate_in_v1_recovery`."""
    target = MemoryTarget()
    target.failing_commits = {DEFINE_A.forward: failure(Code.COMMIT_FAILED, "aborted for certain", aborted=True)}
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(DEFINE_A), controller)

    assert result.status is RecoveryStatus.INDETERMINATE
    assert isinstance(outcomes(result)[0], StepIndeterminate)
    assert controller.kinds == [BEFORE, UNKNOWN]


async def test_an_ambiguous_answer_to_a_commit_is_indeterminate() -> None:
    """`ambiguous_commit_response_is_indeterminate`."""
    target = MemoryTarget()
    target.failing_commits = {DEFINE_A.forward: ConnectionResetError("connection reset by peer")}
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(DEFINE_A), controller)

    assert result.status is RecoveryStatus.INDETERMINATE
    assert "connection reset by peer" in error_of(result)
    assert controller.kinds == [BEFORE, UNKNOWN]
    assert controller.messages == [None, error_of(result)]
    assert target.log == [*GUARDED, "open schema", f"query schema: {DEFINE_A.forward}", "commit"]


async def test_a_committed_event_that_is_lost_makes_the_step_indeterminate_and_stops() -> None:
    """`lost_committed_event_delivery_is_indeterminate_and_halts`."""
    target = MemoryTarget()
    controller = ListController([PENDING, PENDING], failing=[COMMITTED])

    result = await execute_checked_plan(target, plan_of(DEFINE_A, DEFINE_B), controller)

    assert result.status is RecoveryStatus.INDETERMINATE
    assert len(outcomes(result)) == 1
    assert isinstance(outcomes(result)[0], StepIndeterminate)
    assert "the disk is full" in error_of(result)
    assert target.log.count("commit") == 1


async def test_a_retry_whose_steps_are_all_proven_executes_nothing() -> None:
    """`final_external_applied_record_retry_skips_all_proven_steps`."""
    target = MemoryTarget()
    controller = ListController([AppliedDecision("receipt"), AppliedDecision("reconciliation")])

    result = await execute_checked_plan(target, plan_of(DEFINE_A, INSERT), controller)

    assert result.status is RecoveryStatus.SUCCEEDED
    assert outcomes(result) == [StepApplied("receipt"), StepApplied("reconciliation")]
    assert target.log == GUARDED
    assert controller.kinds == []


async def test_a_backfill_carries_its_counts_on_both_events_around_the_commit() -> None:
    """`backfill_emits_counts_on_both_commit_boundary_events`."""
    target = MemoryTarget()
    controller = ListController([PendingDecision(IdempotentReplay("copy-if-absent"))])
    counts = BackfillResult(inserted=4, matched=7, skipped=3)

    result = await execute_checked_plan(target, plan_of(backfill_step()), controller)

    assert result.status is RecoveryStatus.SUCCEEDED
    assert controller.kinds == [BEFORE, COMMITTED]
    assert [event.backfill for event in controller.events] == [counts, counts]
    assert outcomes(result) == [StepCommitted(counts)]


# --- situations of the seed that its tests leave out ----------------------------------------------------------------------


async def test_rollbacks_run_before_applies() -> None:
    target = MemoryTarget()
    plan = checked(execution(DEFINE_A, name="0003_new"), execution(INSERT, name="0002_old", action=ROLLBACK))

    result = await execute_checked_plan(target, plan, ListController([PENDING] * 2))

    assert target.committed == [INSERT.reverse, DEFINE_A.forward]
    assert [migration.migration.name for migration in result.migrations] == ["0002_old", "0003_new"]
    assert [step.migration.name for step in plan.ordered_steps()] == ["0002_old", "0003_new"]


async def test_the_reverse_steps_of_a_migration_run_last_to_first_under_the_identities_of_their_places() -> None:
    target = MemoryTarget()
    plan = rollback_of(DEFINE_A, DEFINE_B, INSERT)
    controller = ListController([PENDING] * 3)

    result = await execute_checked_plan(target, plan, controller)

    wanted = [INSERT.reverse, DEFINE_B.reverse, DEFINE_A.reverse]
    assert target.committed == wanted
    assert controller.classified == wanted
    assert [step.step.step_index for step in result.migrations[0].steps] == [2, 1, 0]
    identity = plan.to_rollback[0].identity
    assert [step.id for step in plan.to_rollback[0].steps] == [
        step_id(identity, index, OperationKind(kind))
        for index, kind in enumerate(["add_attribute", "add_attribute", "run_typeql"])
    ]
    assert [step.step_index for step in plan.ordered_steps()] == [2, 1, 0]


async def test_a_migration_that_is_not_reversible_is_refused_before_it_is_asked_about() -> None:
    target = MemoryTarget()
    controller = ListController([])
    plan = checked(execution(DEFINE_A, action=ROLLBACK, reversible=False), execution(INSERT, name="0002_next"))

    result = await execute_checked_plan(target, plan, controller)

    assert result.status is RecoveryStatus.FAILED
    assert len(result.migrations) == 1
    assert result.migrations[0].error == "0001_initial is not reversible"
    assert (target.log, controller.classified, controller.events) == ([], [], [])


async def test_a_rollback_step_without_a_reverse_fails_before_a_transaction_is_opened() -> None:
    target = MemoryTarget()
    controller = ListController([PENDING])
    plan = checked(execution(schema_step("define", reverse=None), action=ROLLBACK, reversible=True))

    result = await execute_checked_plan(target, plan, controller)

    assert "has no reverse" in error_of(result)
    assert isinstance(outcomes(result)[0], StepFailedBeforeCommit)
    assert controller.kinds == [FAILED]
    assert target.log == GUARDED


async def test_the_reverse_of_a_backfill_is_executed_as_a_statement_and_has_no_counts() -> None:
    target = MemoryTarget()
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, rollback_of(backfill_step()), controller)

    assert outcomes(result) == [StepCommitted(None)]
    assert target.log == [*GUARDED, "open write", "query write: reverse copy", "commit"]
    assert [event.backfill for event in controller.events] == [None, None]


async def test_an_unsupported_statement_fails_before_a_transaction_is_opened() -> None:
    target = MemoryTarget()
    target.unsupported = {INSERT.forward}
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert "is not supported" in error_of(result)
    assert controller.kinds == [FAILED]
    assert target.log == GUARDED


async def test_a_transaction_that_cannot_be_opened_fails_before_commit_with_its_cause() -> None:
    target = MemoryTarget()
    target.failing_open = ConnectionRefusedError("nobody listens")
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert "nobody listens" in error_of(result)
    assert controller.messages == [error_of(result)]
    assert controller.kinds == [FAILED]


@pytest.mark.parametrize("step", [INSERT, backfill_step()], ids=["statement", "backfill"])
async def test_a_cutover_seen_inside_the_transaction_rolls_back_and_tells_the_ledger_nothing(
    step: ExecutionStep,
) -> None:
    target = MemoryTarget()
    target.closes_inside = True
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(step, DEFINE_A), controller)

    assert result.status is RecoveryStatus.FAILED
    assert outcomes(result) == [StepFailedBeforeCommit(CUTOVER)]
    assert controller.events == []
    assert target.log == [*GUARDED, "open write", "rollback"]


async def test_a_backfill_that_fails_has_no_counts_and_a_cause() -> None:
    target = MemoryTarget()
    target.failing = {"copy"}
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(backfill_step()), controller)

    assert "syntax error" in error_of(result)
    assert [(event.kind, event.backfill) for event in controller.events] == [(FAILED, None)]
    assert target.log[-1] == "rollback"


@pytest.mark.parametrize("step", [INSERT, backfill_step()], ids=["statement", "backfill"])
async def test_a_before_commit_that_is_not_recorded_rolls_back(step: ExecutionStep) -> None:
    target = MemoryTarget()
    controller = ListController([PENDING], failing=[BEFORE])

    result = await execute_checked_plan(target, plan_of(step), controller)

    assert result.status is RecoveryStatus.FAILED
    assert "the disk is full" in error_of(result)
    assert controller.kinds == [BEFORE, FAILED]
    assert controller.events[0].backfill == controller.events[1].backfill
    assert (controller.events[1].backfill is not None) == (step.kind is StepKind.BACKFILL)
    assert target.log[-1] == "rollback"
    assert target.committed == []


async def test_the_unknown_commit_of_a_backfill_carries_its_counts() -> None:
    target = MemoryTarget()
    target.failing_commits = {"copy": ConnectionResetError("reset")}
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(backfill_step()), controller)

    assert isinstance(outcomes(result)[0], StepIndeterminate)
    assert [(event.kind, event.backfill) for event in controller.events] == [
        (BEFORE, target.counts),
        (UNKNOWN, target.counts),
    ]


async def test_an_unrecorded_failure_is_still_failed_before_commit_and_says_both_causes() -> None:
    target = MemoryTarget()
    target.failing = {INSERT.forward}
    controller = ListController([PENDING], failing=[FAILED])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert isinstance(outcomes(result)[0], StepFailedBeforeCommit)
    assert "syntax error" in error_of(result)
    assert "the disk is full" in error_of(result)


async def test_an_unrecorded_unknown_outcome_says_both_causes() -> None:
    target = MemoryTarget()
    target.failing_commits = {INSERT.forward: ConnectionResetError("reset")}
    controller = ListController([PENDING], failing=[UNKNOWN])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert isinstance(outcomes(result)[0], StepIndeterminate)
    assert "reset" in error_of(result)
    assert "the disk is full" in error_of(result)


async def test_a_rollback_that_fails_too_is_told_and_changes_no_verdict() -> None:
    target = MemoryTarget()
    target.failing = {INSERT.forward}
    target.failing_rollback = OSError("the connection is gone")
    controller = ListController([PENDING])

    result = await execute_checked_plan(target, plan_of(INSERT), controller)

    assert isinstance(outcomes(result)[0], StepFailedBeforeCommit)
    assert "syntax error" in error_of(result)
    assert "the connection is gone" in error_of(result)
    assert controller.messages == [error_of(result)]


async def test_a_controller_that_raises_while_it_classifies_makes_the_step_indeterminate() -> None:
    target = MemoryTarget()
    controller = ListController([LookupError("the ledger is unreadable")])

    result = await execute_checked_plan(target, plan_of(INSERT, DEFINE_A), controller)

    assert result.status is RecoveryStatus.INDETERMINATE
    assert "the ledger is unreadable" in error_of(result)
    assert next(plan_of(INSERT).ordered_steps()).id in error_of(result)
    assert target.log == GUARDED
    assert controller.events == []


async def test_an_error_without_words_is_named_by_its_type() -> None:
    result = await execute_checked_plan(MemoryTarget(), plan_of(INSERT), ListController([TimeoutError()]))

    assert "TimeoutError" in error_of(result)


async def test_a_cutover_between_two_migrations_stops_before_the_second() -> None:
    class ClosingController(ListController):
        async def record(self, event: StepRecoveryEvent) -> None:
            target.is_open = event.kind is not COMMITTED

    target = MemoryTarget()
    plan = checked(execution(DEFINE_A), execution(DEFINE_B, name="0002_next"))

    result = await execute_checked_plan(target, plan, ClosingController([PENDING]))

    assert [migration.status for migration in result.migrations] == [RecoveryStatus.SUCCEEDED, RecoveryStatus.FAILED]
    assert result.status is RecoveryStatus.FAILED
    assert target.committed == [DEFINE_A.forward]


async def test_an_empty_plan_succeeds() -> None:
    result = await execute_checked_plan(MemoryTarget(), CheckedExecutionPlan(), ListController([]))

    assert result == RecoveryExecutionResult(RecoveryStatus.SUCCEEDED, ())


# --- plans --------------------------------------------------------------------------------------------------------------

WORDS = st.text(min_size=1, max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))
KINDS = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).map(OperationKind)
IDENTITIES = st.builds(CheckedMigrationIdentity, WORDS, WORDS, WORDS, st.sampled_from(MigrationAction))
STEPS = st.builds(
    ExecutionStep, st.sampled_from(TransactionKind), st.sampled_from(StepKind), KINDS, WORDS, WORDS | st.none()
)


@given(IDENTITIES, st.integers(0, 2**32 - 1), KINDS, IDENTITIES, st.integers(0, 2**32 - 1), KINDS)
def test_two_steps_have_one_identity_only_when_they_are_one(
    one: CheckedMigrationIdentity,
    one_index: int,
    one_kind: OperationKind,
    other: CheckedMigrationIdentity,
    other_index: int,
    other_kind: OperationKind,
) -> None:
    same = (one, one_index, one_kind) == (other, other_index, other_kind)
    assert (step_id(one, one_index, one_kind) == step_id(other, other_index, other_kind)) == same


def test_every_field_of_a_step_is_part_of_its_identity() -> None:
    one = CheckedMigrationIdentity("app", "name", "sum", APPLY)
    kind = OperationKind("kind")
    ids = {
        step_id(one, 0, kind),
        step_id(one, 1, kind),
        step_id(one, 0, OperationKind("kin")),
        step_id(replace(one, action=ROLLBACK), 0, kind),
        step_id(replace(one, checksum="sums"), 0, kind),
        step_id(replace(one, name="names"), 0, kind),
        step_id(replace(one, app_label="apps"), 0, kind),
        step_id(replace(one, app_label="appn", name="ame"), 0, kind),
    }
    assert len(ids) == 8


def test_a_step_position_outside_its_range_has_no_identity() -> None:
    with pytest.raises(ResourceLimitError):
        step_id(CheckedMigrationIdentity("app", "name", "sum", APPLY), -1, OperationKind("kind"))


@pytest.mark.parametrize("word", ["", "AddAttribute", "add attribute", "1st", "é"])
def test_an_operation_kind_is_a_word(word: str) -> None:
    with pytest.raises(InvalidContractError, match="operation kind"):
        ExecutionStep(WRITE, StepKind.WRITE, OperationKind(word), "x")


@pytest.mark.parametrize("field", ["app_label", "name", "checksum"])
@pytest.mark.parametrize("text", ["", "lone \ud800"])
def test_an_identity_has_no_field_that_cannot_be_hashed(field: str, text: str) -> None:
    with pytest.raises(InvalidContractError, match="needs a"):
        replace(CheckedMigrationIdentity("app", "name", "sum", APPLY), **{field: text})


def test_a_step_with_the_identity_of_another_is_refused() -> None:
    first, second = plan_of(DEFINE_A, DEFINE_B).ordered_steps()
    forged: list[Callable[[], object]] = [
        lambda: replace(first, id=second.id),
        lambda: replace(first, step_index=1),
        lambda: replace(first, migration=replace(first.migration, checksum="checksum-2")),
        lambda: replace(first, operation_kind=OperationKind("run_typeql")),
        lambda: replace(first, id=StepId("")),
        lambda: CheckedMigrationExecution(first.migration, (second,), reversible=True),
        lambda: CheckedMigrationExecution(first.migration, (first, first), reversible=True),
        lambda: CheckedMigrationExecution(replace(first.migration, action=ROLLBACK), (first,), reversible=True),
    ]
    for forge in forged:
        with pytest.raises(IntegrityError):
            forge()


def test_a_migration_stands_once_and_under_its_own_direction() -> None:
    [migration] = plan_of(DEFINE_A).to_apply
    with pytest.raises(InvalidContractError, match="twice"):
        CheckedExecutionPlan(to_apply=(migration, migration))
    with pytest.raises(InvalidContractError, match="under rollback"):
        CheckedExecutionPlan(to_rollback=(migration,))


def test_a_migration_can_be_rolled_back_and_applied_again_by_one_plan() -> None:
    plan = checked(execution(DEFINE_A), execution(DEFINE_A, action=ROLLBACK))

    assert len({step.id for step in plan.ordered_steps()}) == 2


# --- planning -----------------------------------------------------------------------------------------------------------


def migration(name: str, *needs: str, steps: tuple[ExecutionStep, ...] = (DEFINE_A,)) -> StepMigration:
    return StepMigration(id_of(name), f"sum of {name}", steps, tuple(map(id_of, needs)))


def id_of(name: str) -> MigrationId:
    return MigrationId("app", name)


def applied(*names: str) -> list[AppliedMigration]:
    return [AppliedMigration(id_of(name), f"sum of {name}") for name in names]


def names(executions: Iterable[CheckedMigrationExecution]) -> list[str]:
    return [item.identity.name for item in executions]


#      0001 - 0002 - 0004
#          \- 0003 -/      0005 (alone)
GRAPH = [
    migration("0005"),
    migration("0004", "0002", "0003"),
    migration("0003", "0001"),
    migration("0002", "0001"),
    migration("0001"),
]


@pytest.mark.parametrize(
    ("done", "target", "to_apply", "to_rollback"),
    [
        ([], None, ["0001", "0002", "0003", "0004", "0005"], []),
        (["0001", "0003"], None, ["0002", "0004", "0005"], []),
        (["0001", "0002", "0003", "0004", "0005"], None, [], []),
        ([], "0003", ["0001", "0003"], []),
        (["0001"], "0004", ["0002", "0003", "0004"], []),
        (["0001", "0002", "0003", "0004", "0005"], "0001", [], ["0004", "0003", "0002"]),
        (["0001", "0002", "0003", "0004"], "0002", [], ["0004"]),
        (["0001", "0002", "0005"], "0002", [], []),
        (["0005", "0001", "0002"], "0003", ["0003"], []),
    ],
)
def test_a_plan_leads_from_what_is_applied_to_its_target(
    done: list[str], target: str | None, to_apply: list[str], to_rollback: list[str]
) -> None:
    plan = plan_steps(GRAPH, applied(*done), target and id_of(target))

    assert (names(plan.to_apply), names(plan.to_rollback)) == (to_apply, to_rollback)
    assert all(item.reversible for item in plan.migrations)


@pytest.mark.parametrize(
    ("migrations", "ledger", "target", "code"),
    [
        ([migration("1"), migration("1", steps=())], [], None, Code.INVALID_GRAPH),
        ([migration("1", "1")], [], None, Code.INVALID_GRAPH),
        ([migration("1", "2"), migration("2", "1")], [], None, Code.INVALID_GRAPH),
        ([migration("1", "0")], [], None, Code.INVALID_GRAPH),
        (GRAPH, [], "0006", Code.UNKNOWN_MIGRATION),
        (GRAPH, applied("0006"), None, Code.LEDGER_AHEAD),
        (GRAPH, [AppliedMigration(id_of("0001"), "another sum")], None, Code.MIGRATION_EDITED),
        (GRAPH, [AppliedMigration(id_of("0001"), "")], None, Code.MIGRATION_EDITED),
        (GRAPH, applied("0001", "0001"), None, Code.PLAN_BINDING_MISMATCH),
        (GRAPH, applied("0002"), None, Code.PLAN_BINDING_MISMATCH),
        ([replace(GRAPH[0], checksum="")], [], None, Code.INVALID_STEP_PLAN),
        (
            [migration("1"), migration("2", "1", steps=(schema_step("x", reverse=None),))],
            applied("1", "2"),
            "1",
            Code.IRREVERSIBLE,
        ),
    ],
)
def test_a_plan_that_cannot_be_trusted_is_refused(
    migrations: list[StepMigration], ledger: list[AppliedMigration], target: str | None, code: Code
) -> None:
    with pytest.raises(JournalError) as caught:
        plan_steps(migrations, ledger, target and id_of(target))

    assert caught.value.code is code


# --- JSON ---------------------------------------------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> CheckedExecutionPlan:
    executions = draw(
        st.lists(
            st.builds(
                MigrationExecution,
                WORDS,
                WORDS,
                st.sampled_from(MigrationAction),
                st.lists(STEPS, max_size=4).map(tuple),
                st.booleans(),
            ),
            max_size=4,
            unique_by=lambda item: (item.app_label, item.name),
        )
    )
    return checked(*executions)


def through_text(data: dict[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(data))
    assert read == data
    return read


@given(plans())
def test_a_checked_plan_comes_back_from_json_as_it_was(plan: CheckedExecutionPlan) -> None:
    assert from_json(CheckedExecutionPlan, through_text(to_json(plan))) == plan


COUNTS = st.builds(lambda one, two: BackfillResult(one, one + two, two), st.integers(0, 2**63), st.integers(0, 2**63))
ANY_STEP = st.sampled_from([*plan_of(DEFINE_A, INSERT).ordered_steps(), *rollback_of(backfill_step()).ordered_steps()])
OUTCOMES = st.one_of(
    st.builds(StepApplied, WORDS | st.none()),
    st.builds(StepCommitted, COUNTS | st.none()),
    st.builds(StepFailedBeforeCommit, WORDS),
    st.builds(StepIndeterminate, WORDS),
)
RESULTS = st.builds(
    RecoveryExecutionResult,
    st.sampled_from(RecoveryStatus),
    st.lists(
        st.builds(
            RecoveryMigrationResult,
            IDENTITIES,
            st.sampled_from(RecoveryStatus),
            st.lists(st.builds(StepExecutionResult, ANY_STEP, OUTCOMES), max_size=3).map(tuple),
            WORDS | st.none(),
        ),
        max_size=3,
    ).map(tuple),
)
EVENTS = st.builds(
    StepRecoveryEvent, ANY_STEP, st.sampled_from(StepRecoveryEventKind), WORDS | st.none(), COUNTS | st.none()
)


@given(RESULTS)
def test_a_result_comes_back_from_json_as_it_was(result: RecoveryExecutionResult) -> None:
    assert from_json(RecoveryExecutionResult, through_text(to_json(result))) == result


@given(EVENTS)
def test_an_event_comes_back_from_json_as_it_was(event: StepRecoveryEvent) -> None:
    assert from_json(StepRecoveryEvent, through_text(to_json(event))) == event


@pytest.mark.parametrize(
    ("decision", "data"),
    [
        (PENDING, {"status": "pending", "proof": {"kind": "not_committed"}}),
        (
            PendingDecision(IdempotentReplay("copy-if-absent")),
            {"status": "pending", "proof": {"kind": "idempotent_replay", "strategy": "copy-if-absent"}},
        ),
        (AppliedDecision(), {"status": "applied"}),
        (AppliedDecision("seen"), {"status": "applied", "evidence": "seen"}),
        (IndeterminateDecision("who knows"), {"status": "indeterminate", "reason": "who knows"}),
    ],
)
def test_a_decision_has_the_tags_of_the_seed(decision: StepRecoveryDecision, data: dict[str, Any]) -> None:
    assert to_json(decision) == data
    assert decision_from_json(data) == decision


@pytest.mark.parametrize(
    ("outcome", "data"),
    [
        (StepApplied(), {"status": "applied"}),
        (StepApplied("seen"), {"status": "applied", "evidence": "seen"}),
        (StepCommitted(), {"status": "committed"}),
        (
            StepCommitted(BackfillResult(4, 7, 3)),
            {"status": "committed", "backfill": {"inserted": 4, "matched": 7, "skipped": 3}},
        ),
        (StepFailedBeforeCommit("why"), {"status": "failed_before_commit", "error": "why"}),
        (StepIndeterminate("why"), {"status": "indeterminate", "error": "why"}),
    ],
)
def test_an_outcome_has_the_tags_of_the_seed(outcome: StepExecutionOutcome, data: dict[str, Any]) -> None:
    [step] = plan_of(DEFINE_A).ordered_steps()
    written = to_json(StepExecutionResult(step, outcome))

    assert written["outcome"] == data
    assert from_json(StepExecutionResult, written).outcome == outcome


def test_the_json_of_a_step_and_an_event_has_the_names_of_the_seed() -> None:
    [step] = plan_of(DEFINE_A).ordered_steps()

    assert to_json(StepRecoveryEvent(step, UNKNOWN, "why")) == {
        "step": {
            "id": PUBLISHED_ID,
            "migration": {
                "app_label": "app",
                "name": "0001_initial",
                "checksum": "checksum-1",
                "action": "apply",
            },
            "step_index": 0,
            "operation_kind": "add_attribute",
            "execution": {
                "tx_type": "schema",
                "kind": "schema",
                "operation_kind": "add_attribute",
                "forward": DEFINE_A.forward,
                "reverse": DEFINE_A.reverse,
            },
        },
        "kind": "unknown_commit_outcome",
        "message": "why",
    }


def with_value(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(data))
    place: Any = copy
    *parents, last = path.split(".")
    for parent in parents:
        place = place[int(parent)] if parent.isdigit() else place[parent]
    place[last] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("to_apply", None, InvalidContractError),
        ("to_apply.0.identity.action", "sideways", InvalidContractError),
        ("to_apply.0.identity.checksum", "", InvalidContractError),
        ("to_apply.0.identity.checksum", "another", IntegrityError),
        ("to_apply.0.reversible", "yes", InvalidContractError),
        ("to_apply.0.steps.0.id", "tb-step-v1:00", IntegrityError),
        ("to_apply.0.steps.0.step_index", "0", InvalidContractError),
        ("to_apply.0.steps.0.step_index", -1, ResourceLimitError),
        ("to_apply.0.steps.0.migration.name", "0002", IntegrityError),
        ("to_apply.0.steps.0.execution.tx_type", "exclusive", InvalidContractError),
        ("to_apply.0.steps.0.execution.operation_kind", "run_typeql", IntegrityError),
        ("to_apply.0.steps.0.execution.forward", 1, InvalidContractError),
        ("to_apply", object(), InvalidContractError),
    ],
)
def test_json_that_was_changed_is_refused(path: str, value: object, error: type[JournalError]) -> None:
    data = to_json(plan_of(DEFINE_A))
    changed = with_value(data, path, value)

    with pytest.raises(error):
        from_json(CheckedExecutionPlan, changed)


@pytest.mark.parametrize("data", [{}, {"status": "maybe"}, {"status": "pending"}, {"status": "pending", "proof": {}}])
def test_a_decision_without_its_tag_is_no_decision(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidContractError):
        decision_from_json(data)


@pytest.mark.parametrize("counts", [(1, 3, 1), (-1, 0, 1), (1, 0, -1)])
def test_counts_that_contradict_each_other_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidContractError):
        BackfillResult(*counts)


# --- cancellation -------------------------------------------------------------------------------------------------------


class HeldController(ListController):
    """Keeps the recording of one kind of event until it is let go."""

    def __init__(self, decisions: Iterable[StepRecoveryDecision], held: StepRecoveryEventKind) -> None:
        super().__init__(decisions)
        self.held = held
        self.arrived = asyncio.Event()
        self.free = asyncio.Event()
        self.done = asyncio.Event()

    async def record(self, event: StepRecoveryEvent) -> None:
        if event.kind is self.held:
            self.arrived.set()
            await self.free.wait()
        await super().record(event)
        if event.kind is self.held:
            self.done.set()


async def test_a_cancellation_waits_until_a_certain_commit_is_recorded() -> None:
    controller = HeldController([PENDING, PENDING], COMMITTED)
    running = asyncio.create_task(execute_checked_plan(MemoryTarget(), plan_of(DEFINE_A, DEFINE_B), controller))
    await controller.arrived.wait()

    running.cancel()
    controller.free.set()
    await asyncio.wait([running])

    assert running.cancelled()
    assert controller.kinds == [BEFORE, COMMITTED]


async def test_a_second_cancellation_does_not_wait_and_the_event_is_recorded_behind_it() -> None:
    controller = HeldController([PENDING], COMMITTED)
    running = asyncio.create_task(execute_checked_plan(MemoryTarget(), plan_of(DEFINE_A), controller))
    await controller.arrived.wait()

    running.cancel()
    await asyncio.wait([running], timeout=0)
    assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert controller.kinds == [BEFORE]

    controller.free.set()
    await controller.done.wait()
    assert controller.kinds == [BEFORE, COMMITTED]


async def test_a_cancellation_while_before_commit_is_recorded_rolls_back_and_says_so() -> None:
    target = MemoryTarget()
    controller = HeldController([PENDING], BEFORE)
    running = asyncio.create_task(execute_checked_plan(target, plan_of(backfill_step()), controller))
    await controller.arrived.wait()

    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert [(event.kind, event.backfill) for event in controller.events] == [(FAILED, target.counts)]
    assert "cancelled" in str(controller.messages[0])
    assert target.log[-1] == "rollback"


async def test_a_cancellation_during_the_commit_is_an_unknown_outcome_and_does_not_wait_for_the_answer() -> None:
    class HangingTarget(MemoryTarget):
        async def open(self, kind: TransactionKind) -> MemoryTransaction:
            return HangingTransaction(self, kind)

    class HangingTransaction(MemoryTransaction):
        async def commit(self) -> None:
            arrived.set()
            await asyncio.Event().wait()

    arrived = asyncio.Event()
    controller = ListController([PENDING])
    running = asyncio.create_task(execute_checked_plan(HangingTarget(), plan_of(DEFINE_A), controller))
    await arrived.wait()

    running.cancel()
    await asyncio.wait([running])

    assert running.cancelled()
    assert controller.kinds == [BEFORE, UNKNOWN]
    assert "cancelled" in str(controller.messages[1])


# --- every point at which a call can fail ---------------------------------------------------------------------------------


class Fault(Enum):
    """What happens to one call, beside being done or not."""

    ERROR = "it raises"
    CANCELLED = "it is cancelled from below"
    CANCELLING = "the whole execution is cancelled meanwhile"


class Fuse:
    """Counts the calls of target and controller, and lets some of them fail, before or after they are done."""

    def __init__(self, faults: Mapping[int, tuple[Fault, bool]]) -> None:
        self.faults = faults
        self.calls: list[str] = []
        self.execution: asyncio.Task[Any] | None = None

    async def pass_on(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        number = len(self.calls)
        self.calls.append(name)
        fault, done_before = self.faults.get(number, (None, False))
        if fault is None:
            return await call()
        if not done_before:
            await self._fail(fault)
            return await call()  # only when the execution is cancelled and this call is not part of it
        try:
            return await call()
        finally:
            await self._fail(fault)

    async def _fail(self, fault: Fault) -> None:
        match fault:
            case Fault.ERROR:
                raise RuntimeError("injected")
            case Fault.CANCELLED:
                raise asyncio.CancelledError
            case Fault.CANCELLING:
                assert self.execution is not None
                self.execution.cancel()
                await asyncio.sleep(0)


class FusedTarget(StepTarget):
    def __init__(self, inner: MemoryTarget, fuse: Fuse) -> None:
        self.inner, self.fuse = inner, fuse

    async def require_open(self) -> None:
        await self.fuse.pass_on("require_open", self.inner.require_open)

    async def check(self, statement: str) -> None:
        await self.fuse.pass_on("check", lambda: self.inner.check(statement))

    async def open(self, kind: TransactionKind) -> StepTransaction:
        try:
            return FusedTransaction(await self.fuse.pass_on("open", lambda: self.inner.open(kind)), self.fuse)
        except BaseException:
            # The contract: a target that does not give the transaction away has none open.
            for transaction in self.inner.transactions:
                if not transaction.ended:
                    await transaction.rollback()
            raise


class FusedTransaction(StepTransaction):
    def __init__(self, inner: MemoryTransaction, fuse: Fuse) -> None:
        self.inner, self.fuse = inner, fuse

    async def require_open(self) -> None:
        await self.fuse.pass_on("transaction.require_open", self.inner.require_open)

    async def execute(self, statement: str) -> None:
        await self.fuse.pass_on("execute", lambda: self.inner.execute(statement))

    async def prepare_backfill(self, step: CheckedExecutionStep) -> BackfillResult:
        return await self.fuse.pass_on("prepare_backfill", lambda: self.inner.prepare_backfill(step))

    async def commit(self) -> None:
        await self.fuse.pass_on("commit", self.inner.commit)

    async def rollback(self) -> None:
        await self.fuse.pass_on("rollback", self.inner.rollback)


class LookingController(StepController[FusedTarget]):
    """Decides from what the target shows: a step is applied when its statement is among what was committed."""

    def __init__(self, ledger: list[StepRecoveryEvent], fuse: Fuse) -> None:
        self.ledger, self.fuse = ledger, fuse

    async def classify(self, target: FusedTarget, step: CheckedExecutionStep) -> StepRecoveryDecision:
        return await self.fuse.pass_on("classify", lambda: self._look(target.inner, step))

    async def record(self, event: StepRecoveryEvent) -> None:
        await self.fuse.pass_on(f"record {event.kind.value}", lambda: self._write(event))

    async def _look(self, target: MemoryTarget, step: CheckedExecutionStep) -> StepRecoveryDecision:
        return AppliedDecision("it is there") if step.statement in target.committed else PENDING

    async def _write(self, event: StepRecoveryEvent) -> None:
        self.ledger.append(event)


ALL_KINDS = checked(
    execution(schema_step("one"), write_step("two"), action=ROLLBACK, name="0009_old"),
    execution(schema_step("three"), backfill_step("four"), write_step("five"), name="0010_new"),
)
STATEMENTS = ["reverse two", "reverse one", "three", "four", "five"]
REFUSED = {"three"}  # in the second world, where every run meets a failing statement


class World:
    """A target and a ledger that outlive their executions."""

    def __init__(self, failing: Iterable[str] = ()) -> None:
        self.target = MemoryTarget()
        self.target.failing = set(failing)
        self.ledger: list[StepRecoveryEvent] = []

    async def execute(self, faults: Mapping[int, tuple[Fault, bool]]) -> tuple[Fuse, RecoveryExecutionResult | None]:
        """One execution of the whole plan; None when it was cancelled."""
        fuse = Fuse(faults)
        target, controller = FusedTarget(self.target, fuse), LookingController(self.ledger, fuse)
        fuse.execution = asyncio.create_task(execute_checked_plan(target, ALL_KINDS, controller))
        await asyncio.wait([fuse.execution])
        return fuse, None if fuse.execution.cancelled() else fuse.execution.result()


def check_fail_closed(world: World, fuse: Fuse, result: RecoveryExecutionResult | None) -> None:
    committed, ledger = world.target.committed, world.ledger
    assert len(set(committed)) == len(committed), "a step was committed twice"
    assert committed == STATEMENTS[: len(committed)], "a step ran ahead of an unfinished one"
    assert world.target.log.count("commit") == len(committed)
    recorded = {event.step.id for event in ledger if event.kind is COMMITTED}
    last = {event.step.id: event.kind for event in ledger}
    for step in ALL_KINDS.ordered_steps():
        there = step.statement in committed
        assert there or step.id not in recorded, "recorded as committed, but it is not"
        assert not (there and last.get(step.id) is FAILED), "recorded as failed, but it is committed"
    if result is None:
        return
    results = [step for item in result.migrations for step in item.steps]
    for step in results:
        there = step.step.statement in committed
        match step.outcome:
            case StepCommitted():
                assert there
                assert step.step.id in recorded
            case StepApplied():
                assert there
            case StepFailedBeforeCommit():
                assert not there
            case StepIndeterminate():
                pass
    assert all(isinstance(step.outcome, StepCommitted | StepApplied) for step in results[:-1])
    if result.status is RecoveryStatus.SUCCEEDED:
        assert committed == STATEMENTS
    else:
        assert len(committed) <= len(results), "something was executed behind the step that stopped"
        assert result.migrations[-1].error


async def calls_without_faults(failing: Iterable[str] = ()) -> list[str]:
    fuse, _ = await World(failing).execute({})
    return fuse.calls


async def points(failing: Iterable[str] = ()) -> list[tuple[int, bool]]:
    return [(number, done) for number in range(len(await calls_without_faults(failing))) for done in (False, True)]


@pytest.mark.parametrize("failing", [set[str](), REFUSED], ids=["all goes well", "a statement is refused"])
@pytest.mark.parametrize("fault", Fault)
async def test_wherever_one_call_fails_the_execution_fails_closed_and_the_next_one_finishes(
    fault: Fault, failing: set[str]
) -> None:
    for number, done in await points(failing):
        world = World(failing)
        fuse, result = await world.execute({number: (fault, done)})
        where = f"{fault.value}, {'after' if done else 'before'} call {number}, {fuse.calls[number]}"
        assert (result is None) == (fault is not Fault.ERROR), where
        if fuse.calls[number] != "rollback" or done:
            assert world.target.left_open == 0 or fuse.calls[number] == "commit", where
        if fuse.calls[number] == "rollback":
            assert world.ledger[-1].kind is FAILED, where
        check_fail_closed(world, fuse, result)

        world.target.failing = set()
        fuse, result = await world.execute({})
        check_fail_closed(world, fuse, result)
        assert result is not None, where
        assert result.status is RecoveryStatus.SUCCEEDED, where
        assert world.target.committed == STATEMENTS, where


async def test_wherever_two_calls_fail_the_execution_fails_closed_and_the_next_one_finishes() -> None:
    for number, done in await points():
        for distance in (1, 2, 3):
            for later_done in (False, True):
                world = World()
                faults = {number: (Fault.ERROR, done), number + distance: (Fault.ERROR, later_done)}
                fuse, result = await world.execute(faults)
                check_fail_closed(world, fuse, result)
                fuse, result = await world.execute({})
                check_fail_closed(world, fuse, result)
                assert world.target.committed == STATEMENTS


async def test_wherever_an_execution_is_cancelled_the_ledger_has_the_end_of_the_step_under_way() -> None:
    calls = await calls_without_faults()
    told = 0
    for number, done in await points():
        world = World()
        await world.execute({number: (Fault.CANCELLING, done)})
        begun = calls[: number + 1].count("check")
        last = {event.step.id: event.kind for event in world.ledger}
        assert len(last) == begun
        assert BEFORE not in last.values()
        told += begun
    assert told > 0


async def test_the_points_are_all_calls_of_all_steps() -> None:
    calls = await calls_without_faults()

    assert len(calls) == 2 + 5 * 8
    assert set(calls) == {
        "require_open",
        "classify",
        "check",
        "open",
        "transaction.require_open",
        "execute",
        "prepare_backfill",
        "record before_commit",
        "commit",
        "record committed",
    }
    assert "rollback" in await calls_without_faults(REFUSED)
