"""The steps executor on a real SQLite database, with its caller's ledger in another file, killed around every commit.

Run as a program, `python -m tests.integration.test_steps_sqlite FOLDER MOMENT NUMBER` executes the plan of a folder and
kills itself in the transaction with this number, from 0: `recorded` is when before_commit is recorded, `committed` when
the target has committed and nobody was told.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from projections.step_plan import (
    CheckedExecutionPlan,
    CheckedExecutionStep,
    ExecutionPlan,
    ExecutionStep,
    MigrationAction,
    MigrationExecution,
    OperationKind,
    StepKind,
    TransactionKind,
    from_json,
    prepare_checked_plan,
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
    RecoveryStatus,
    StepApplied,
    StepCommitted,
    StepController,
    StepFailedBeforeCommit,
    StepIndeterminate,
    StepRecoveryDecision,
    StepRecoveryEvent,
    StepRecoveryEventKind,
    StepTarget,
    StepTransaction,
    execute_checked_plan,
)

ROOT = Path(__file__).parents[2]
DEADLINE = 60
BEFORE = StepRecoveryEventKind.BEFORE_COMMIT
COMMITTED = StepRecoveryEventKind.COMMITTED
FAILED = StepRecoveryEventKind.FAILED_BEFORE_COMMIT
CUTOVER = "migrations of this database are run by another tool now"


# --- the plan -----------------------------------------------------------------------------------------------------------


def step(operation: str, kind: StepKind, forward: str, reverse: str) -> ExecutionStep:
    transaction = TransactionKind.SCHEMA if kind is StepKind.SCHEMA else TransactionKind.WRITE
    return ExecutionStep(transaction, kind, OperationKind(operation), forward, reverse)


STEPS = (
    step(
        "create_table",
        StepKind.SCHEMA,
        "CREATE TABLE person (id INTEGER PRIMARY KEY, old_name TEXT, new_name TEXT)",
        "DROP TABLE person",
    ),
    step(
        "insert_rows",
        StepKind.WRITE,
        "INSERT INTO person (old_name, new_name) VALUES ('Ada', NULL), ('Grace', NULL), ('Edith', 'Edith'), (NULL, 'Mary')",
        "DELETE FROM person",
    ),
    step(
        "copy_attribute",
        StepKind.BACKFILL,
        "UPDATE person SET new_name = old_name WHERE old_name IS NOT NULL AND new_name IS NULL",
        "UPDATE person SET new_name = NULL WHERE new_name = old_name",
    ),
    step(
        "create_index", StepKind.SCHEMA, "CREATE INDEX person_by_name ON person (new_name)", "DROP INDEX person_by_name"
    ),
    step("count_run", StepKind.WRITE, "UPDATE runs SET n = n + 1", "UPDATE runs SET n = n - 1"),
)
COUNT_RUN = 4
MATCHED = "SELECT count(*) FROM person WHERE old_name IS NOT NULL"
# What shows that a step is in the database. A copy can be repeated; of a count nobody can tell.
PROOFS = {
    "create_table": "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'person')",
    "insert_rows": "SELECT EXISTS (SELECT 1 FROM person)",
    "create_index": "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'person_by_name')",
}


def plan_of(*steps: ExecutionStep, action: MigrationAction = MigrationAction.APPLY) -> CheckedExecutionPlan:
    execution = MigrationExecution("people", "0001_person", action, steps, reversible=True)
    is_apply = action is MigrationAction.APPLY
    plan = ExecutionPlan((execution,), ()) if is_apply else ExecutionPlan((), (execution,))
    return prepare_checked_plan(plan, {("people", "0001_person"): "sum of the file"})


# --- the target ---------------------------------------------------------------------------------------------------------


class SQLiteTarget(StepTarget):
    """A SQLite file; a row in its table `cutover` says that this writer must not go on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=0, isolation_level=None)

    def ask(self, query: str) -> Any:
        with closing(self.connect()) as connection:
            return connection.execute(query).fetchone()[0]

    async def require_open(self) -> None:
        with closing(self.connect()) as connection:
            check_open(connection)

    async def check(self, statement: str) -> None:
        if statement.split(maxsplit=1)[0].upper() in {"BEGIN", "COMMIT", "END", "ROLLBACK"}:
            raise ValueError("the executor begins and ends transactions")

    async def open(self, kind: TransactionKind) -> StepTransaction:
        connection = self.connect()
        try:
            connection.execute("BEGIN" if kind is TransactionKind.READ else "BEGIN IMMEDIATE")
        except BaseException:
            connection.close()
            raise
        return SQLiteTransaction(connection)


def check_open(connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT EXISTS (SELECT 1 FROM cutover)").fetchone()[0]:
        raise PermissionError(CUTOVER)


class SQLiteTransaction(StepTransaction):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    async def require_open(self) -> None:
        check_open(self.connection)

    async def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    async def prepare_backfill(self, step: CheckedExecutionStep) -> BackfillResult:
        matched = self.connection.execute(MATCHED).fetchone()[0]
        inserted = self.connection.execute(step.execution.forward).rowcount
        return BackfillResult(inserted=inserted, matched=matched, skipped=matched - inserted)

    async def commit(self) -> None:
        with closing(self.connection):
            self.connection.execute("COMMIT")

    async def rollback(self) -> None:
        with closing(self.connection):
            self.connection.execute("ROLLBACK")


# --- the caller's ledger --------------------------------------------------------------------------------------------------


class SQLiteLedger(StepController[SQLiteTarget]):
    """Events in a SQLite file of their own; what they leave open is looked up in the target."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def classify(self, target: SQLiteTarget, step: CheckedExecutionStep) -> StepRecoveryDecision:
        last = self.last_of(step)
        if last is COMMITTED:
            return AppliedDecision("it is recorded")
        if step.is_backfill:
            return PendingDecision(IdempotentReplay("copy where there is none"))
        if proof := PROOFS.get(step.operation_kind):
            is_there = bool(target.ask(proof)) == (step.migration.action is MigrationAction.APPLY)
            return AppliedDecision("it is in the database") if is_there else PendingDecision(NotCommitted())
        if last in (None, FAILED):
            return PendingDecision(NotCommitted())
        return IndeterminateDecision(f"{step.operation_kind} was about to commit, and nothing shows whether it did")

    async def record(self, event: StepRecoveryEvent) -> None:
        self.write(event)

    def write(self, event: StepRecoveryEvent) -> None:
        with self._connection() as connection:
            row = (event.step.id, json.dumps(to_json(event)))
            connection.execute("INSERT INTO events (step, event) VALUES (?, ?)", row)

    def events(self) -> list[StepRecoveryEvent]:
        with self._connection() as connection:
            rows = connection.execute("SELECT event FROM events ORDER BY position").fetchall()
        return [from_json(StepRecoveryEvent, json.loads(text)) for (text,) in rows]

    def last_of(self, step: CheckedExecutionStep) -> StepRecoveryEventKind | None:
        kinds = [event.kind for event in self.events() if event.step.id == step.id]
        return kinds[-1] if kinds else None

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            yield connection


class World:
    """One folder: the target, the ledger, and the plan as JSON, as a caller keeps them from process to process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = SQLiteTarget(folder / "target.db")
        self.ledger = SQLiteLedger(folder / "ledger.db")

    def create(self, plan: CheckedExecutionPlan) -> World:
        (self.folder / "plan.json").write_text(json.dumps(to_json(plan)))
        with closing(self.target.connect()) as connection:
            connection.executescript(
                "CREATE TABLE cutover (at TEXT); CREATE TABLE runs (n INTEGER); INSERT INTO runs VALUES (0)"
            )
        with closing(sqlite3.connect(self.ledger.path)) as connection:
            connection.execute("CREATE TABLE events (position INTEGER PRIMARY KEY, step TEXT, event TEXT)")
        return self

    @property
    def plan(self) -> CheckedExecutionPlan:
        return from_json(CheckedExecutionPlan, json.loads((self.folder / "plan.json").read_text()))

    async def execute(self, plan: CheckedExecutionPlan | None = None) -> RecoveryExecutionResult:
        result = await execute_checked_plan(self.target, plan or self.plan, self.ledger)
        assert from_json(RecoveryExecutionResult, json.loads(json.dumps(to_json(result)))) == result
        return result

    def killed(self, moment: str, number: int) -> None:
        """Execute the plan in a process that kills itself."""
        command = [sys.executable, "-m", "tests.integration.test_steps_sqlite", str(self.folder), moment, str(number)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr

    def rows(self) -> list[tuple[Any, ...]]:
        with closing(self.target.connect()) as connection:
            return connection.execute("SELECT id, old_name, new_name FROM person ORDER BY id").fetchall()

    @property
    def runs(self) -> int:
        return int(self.target.ask("SELECT n FROM runs"))

    @property
    def kinds(self) -> list[StepRecoveryEventKind]:
        return [event.kind for event in self.ledger.events()]

    def check_finished(self) -> None:
        """As after an uninterrupted execution: every step is there, once."""
        assert self.rows() == [(1, "Ada", "Ada"), (2, "Grace", "Grace"), (3, "Edith", "Edith"), (4, None, "Mary")]
        assert self.target.ask(PROOFS["create_index"])
        assert self.runs == 1


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path).create(plan_of(*STEPS))


def outcomes(result: RecoveryExecutionResult) -> list[object]:
    return [step.outcome for migration in result.migrations for step in migration.steps]


# --- what must hold -------------------------------------------------------------------------------------------------------


async def test_a_plan_is_executed_recorded_and_not_executed_again(world: World) -> None:
    result = await world.execute()

    assert result.status is RecoveryStatus.SUCCEEDED
    counts = BackfillResult(inserted=2, matched=3, skipped=1)
    done = StepCommitted()
    assert outcomes(result) == [done, done, StepCommitted(counts), done, done]
    assert world.kinds == [BEFORE, COMMITTED] * 5
    assert [event.backfill for event in world.ledger.events() if event.backfill] == [counts, counts]
    world.check_finished()

    again = await world.execute()
    assert outcomes(again) == [StepApplied("it is recorded")] * 5
    world.check_finished()


@pytest.mark.parametrize("moment", ["recorded", "committed"])
@pytest.mark.parametrize("number", range(COUNT_RUN))
async def test_a_process_killed_around_a_commit_is_recovered_from_what_the_database_shows(
    world: World, number: int, moment: str
) -> None:
    world.killed(moment, number)
    assert world.kinds == [*[BEFORE, COMMITTED] * number, BEFORE]

    result = await world.execute()

    assert result.status is RecoveryStatus.SUCCEEDED
    world.check_finished()
    assert outcomes(result)[:number] == [StepApplied("it is recorded")] * number
    outcome = outcomes(result)[number]
    if STEPS[number].kind is StepKind.BACKFILL:
        inserted = 0 if moment == "committed" else 2
        assert outcome == StepCommitted(BackfillResult(inserted=inserted, matched=3, skipped=3 - inserted))
    else:
        assert outcome == (StepApplied("it is in the database") if moment == "committed" else StepCommitted())


@pytest.mark.parametrize(("moment", "truth"), [("recorded", FAILED), ("committed", COMMITTED)])
async def test_a_step_of_which_nobody_can_tell_stops_every_run_until_its_outcome_is_recorded(
    world: World, moment: str, truth: StepRecoveryEventKind
) -> None:
    world.killed(moment, COUNT_RUN)
    runs = world.runs

    for _ in range(2):
        result = await world.execute()
        assert result.status is RecoveryStatus.INDETERMINATE
        assert isinstance(outcomes(result)[-1], StepIndeterminate)
        assert world.runs == runs
    assert runs == (1 if moment == "committed" else 0)

    in_doubt = list(world.plan.ordered_steps())[COUNT_RUN]
    world.ledger.write(StepRecoveryEvent(in_doubt, truth, "the operator looked"))
    result = await world.execute()

    assert result.status is RecoveryStatus.SUCCEEDED
    world.check_finished()


async def test_a_rollback_undoes_the_last_step_first(world: World) -> None:
    await world.execute()

    result = await world.execute(plan_of(*STEPS, action=MigrationAction.ROLLBACK))

    # The other way round it would fail at once: a table that is dropped first takes its rows and index along.
    assert result.status is RecoveryStatus.SUCCEEDED
    assert outcomes(result) == [StepCommitted()] * 5
    assert not world.target.ask(PROOFS["create_table"])
    assert world.runs == 0


async def test_a_statement_that_the_database_refuses_leaves_nothing_and_is_repeated_once_it_can_run(
    tmp_path: Path,
) -> None:
    count = step(
        "count_run", StepKind.WRITE, "UPDATE runs SET n = n + (SELECT size FROM later)", "UPDATE runs SET n = 0"
    )
    world = World(tmp_path).create(plan_of(count))

    result = await world.execute()

    assert result.status is RecoveryStatus.FAILED
    assert "no such table: later" in str(result.migrations[0].error)
    assert world.kinds == [FAILED]
    assert "no such table: later" in str(world.ledger.events()[0].message)

    with closing(world.target.connect()) as connection:
        connection.executescript("CREATE TABLE later (size INTEGER); INSERT INTO later VALUES (7)")
    assert (await world.execute()).status is RecoveryStatus.SUCCEEDED
    assert world.runs == 7


async def test_a_statement_that_would_end_the_transaction_is_refused_before_one_is_opened(tmp_path: Path) -> None:
    world = World(tmp_path).create(plan_of(step("run_sql", StepKind.WRITE, "COMMIT", "COMMIT")))

    result = await world.execute()

    assert outcomes(result) == [StepFailedBeforeCommit("the executor begins and ends transactions")]
    assert world.kinds == [FAILED]


async def test_a_database_that_another_writer_holds_fails_the_step_before_its_commit(world: World) -> None:
    with closing(world.target.connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        result = await world.execute()

    assert result.status is RecoveryStatus.FAILED
    assert "database is locked" in str(result.migrations[0].error)
    assert world.kinds == [FAILED]

    assert (await world.execute()).status is RecoveryStatus.SUCCEEDED
    world.check_finished()


async def test_a_reader_that_keeps_the_commit_waiting_makes_it_indeterminate_and_the_next_run_looks(
    world: World,
) -> None:
    with closing(world.target.connect()) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT n FROM runs").fetchall()
        result = await world.execute()

    assert result.status is RecoveryStatus.INDETERMINATE
    assert "database is locked" in str(result.migrations[0].error)
    assert world.kinds == [BEFORE, StepRecoveryEventKind.UNKNOWN_COMMIT_OUTCOME]

    assert (await world.execute()).status is RecoveryStatus.SUCCEEDED
    world.check_finished()


async def test_a_cutover_while_the_ledger_is_asked_is_seen_inside_the_transaction(world: World) -> None:
    class CuttingLedger(SQLiteLedger):
        async def classify(self, target: SQLiteTarget, step: CheckedExecutionStep) -> StepRecoveryDecision:
            decision = await super().classify(target, step)
            with closing(target.connect()) as other:
                other.execute("INSERT INTO cutover VALUES ('now')")
            return decision

    result = await execute_checked_plan(world.target, world.plan, CuttingLedger(world.ledger.path))
    assert outcomes(result) == [StepFailedBeforeCommit(CUTOVER)]

    result = await world.execute()
    assert (result.status, outcomes(result)) == (RecoveryStatus.FAILED, [])
    assert result.migrations[0].error == CUTOVER
    assert world.kinds == []
    assert not world.target.ask(PROOFS["create_table"])


# --- the program that kills itself ------------------------------------------------------------------------------------------


class Killer:
    """Ends this process when a moment comes for the time that was asked for."""

    def __init__(self, moment: str, number: int) -> None:
        self.moment = moment
        self.left = number

    def reached(self, moment: str) -> None:
        if moment == self.moment:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1


class MortalTarget(SQLiteTarget):
    def __init__(self, path: Path, killer: Killer) -> None:
        super().__init__(path)
        self.killer = killer

    async def open(self, kind: TransactionKind) -> StepTransaction:
        opened = await super().open(kind)
        assert isinstance(opened, SQLiteTransaction)
        return MortalTransaction(opened.connection, self.killer)


class MortalTransaction(SQLiteTransaction):
    def __init__(self, connection: sqlite3.Connection, killer: Killer) -> None:
        super().__init__(connection)
        self.killer = killer

    async def commit(self) -> None:
        self.killer.reached("recorded")
        await super().commit()
        self.killer.reached("committed")


def main(folder: str, moment: str, number: str) -> None:
    world = World(Path(folder))
    world.target = MortalTarget(world.target.path, Killer(moment, int(number)))
    asyncio.run(world.execute())


if __name__ == "__main__":
    main(*sys.argv[1:])
