"""The executor's protocol, in every interleaving: see `tests.model.executor_bounds` for what may happen and must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from journal import admission
from journal.admission import Admitted
from journal.errors import Code, CommitFailedError, JournalError, failure
from journal.events import Event, EventType
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Database, Leases, Log
from journal.records import (
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    RollbackStepEventRecord,
)
from projections.outcome import Applied, Outcome, RetrySafe, UpToDate
from tests.faults import Fuse, StoppingDatabase
from tests.migrating import SCOPE, Project
from tests.model.executor_bounds import BACKFILL, GROUP, HIDDEN, OMISSIONS, TESTED, UNDONE, Bound, with_several_writers
from tests.model.executor_protocol import ExecutorModel, State
from tests.model.executor_world import OF_KIND, ExecutorWorld, Step, What
from tests.model.search import Result, explore
from tests.model.variants import without

GROUP_MANY, HIDDEN_MANY, BACKFILL_MANY = map(with_several_writers, (GROUP, HIDDEN, BACKFILL))
WITHOUT_HISTORY = {
    bound: replace(bound, judges_history=False, checkpoints=False) for bound in (GROUP, HIDDEN, BACKFILL)
}


def model_of(bound: Bound, rule: str | None = None) -> ExecutorModel:
    protocol = admission if rule is None else without(rule)
    return ExecutorModel(bound, ExecutorWorld(bound.migration, rolls_back=bound.rolls_back, protocol=protocol))


# --- the real rules ---------------------------------------------------------------------------------------------------


class Explored(NamedTuple):
    """What a search found, which acts came up, and from how many situations a fresh run was tried."""

    result: Result
    verbs: frozenset[str]
    fresh_runs: int


@cache
def explored(bound: Bound) -> Explored:
    model = model_of(bound)
    result = explore(model)
    return Explored(result, frozenset(model.verbs), len(model.futures))


@pytest.mark.parametrize("bound", TESTED, ids=lambda bound: bound.name)
def test_every_effect_is_there_exactly_once_and_nothing_that_is_said_contradicts_the_target(
    bound: Bound, record_property: Callable[[str, object], None]
) -> None:
    result, _, fresh_runs = explored(bound)

    print(f"{result}; a fresh run brings it to its end from {fresh_runs:,} situations")
    record_property("states", result.progress.states)
    record_property("steps", result.progress.transitions)
    record_property("fresh runs", fresh_runs)
    assert result.flaw is None, str(result)
    assert result.complete
    assert fresh_runs > 100


def test_everything_that_an_executor_may_do_came_up() -> None:
    verbs = frozenset[str]().union(*(explored(bound).verbs for bound in TESTED))

    assert {verb.split(":")[0] for verb in verbs} == {
        "announces its lease again",
        "raises the fence and reads the log",
        "opens a plan",
        "sees that the witness is present",
        "sees that the witness is absent",
        "finds a unit done",
        "repairs the checkpoint",
        "decides to execute",
        "decides to execute again",
        "advances formally",
        "begins a transaction",
        "commits",
        "commits without an answer",
        "fails to commit, provably",
        "fails to commit, perhaps",
        "commits the cursor",
        "resumes the backfill",
        "begins a batch",
        "commits a batch",
        "commits a batch and reports it",
        "commits the last batch",
        "runs the statements",
        "runs the statements without an answer",
        "fails in the first statement",
        "fails in a later statement",
        "calls an operator",
        "concludes",
        "reports success",
    }


def test_what_runs_outside_a_transaction_is_fenced_only_up_to_the_check() -> None:
    bound = Bound("the check, a pause, the statements", (Step.OUTSIDE,), pauses_outside=True)

    result = explore(model_of(bound))

    assert result.flaw == "unit 0 takes effect a second time", str(result)


# --- the checker itself: it finds what is wrong -----------------------------------------------------------------------

ABORTED_COMMITS = "commits, but the log says that its attempt is aborted"
CALLED = "calls an operator: unit 0 is"


@pytest.mark.parametrize(
    ("part", "bound", "flaw"),
    [
        ("target fence", BACKFILL, ABORTED_COMMITS),
        ("target fence", GROUP_MANY, f"{CALLED} definitely_aborted"),
        ("target fence", HIDDEN_MANY, ABORTED_COMMITS),
        ("target fence", BACKFILL_MANY, ABORTED_COMMITS),
        ("raise", GROUP, f"{CALLED} definitely_aborted"),
        ("raise", HIDDEN, ABORTED_COMMITS),
        ("raise", BACKFILL, ABORTED_COMMITS),
        ("witness", HIDDEN, f"{CALLED} before_commit"),
        ("witness", BACKFILL, f"{CALLED} before_commit"),
        ("witness seen", GROUP, f"{CALLED} definitely_aborted"),
        ("witness seen", HIDDEN, "is admitted, but that attempt has committed"),
        ("witness seen", BACKFILL, "batch 1 of unit 0 takes effect a second time"),
        ("witness seen", UNDONE, "batch 1 of unit 0 takes effect a second time"),
        ("token", GROUP, f"{CALLED} committed"),
        ("token", HIDDEN, "committed of unit 0 is admitted, but the target has not all of it"),
        ("token", BACKFILL, "committed of unit 0 is admitted, but the target has not all of it"),
        ("await", GROUP, f"{CALLED} not begun"),
        ("await", HIDDEN, "unit 0 takes effect a second time"),
        ("await", BACKFILL, "batch 1 of unit 0 takes effect a second time"),
        ("await", UNDONE, "batch 1 of unit 0 takes effect a second time"),
        ("aborted", GROUP, "what became of its attempt before is not recorded"),
        ("aborted", HIDDEN, "what became of its attempt before is not recorded"),
        ("aborted", BACKFILL, "what became of its attempt before is not recorded"),
        ("ask again", GROUP, "calls an operator although it was overtaken"),
        ("ask again", BACKFILL, "calls an operator although it was overtaken"),
    ],
)
def test_without_any_one_part_of_the_protocol_a_counter_example_is_found(part: str, bound: Bound, flaw: str) -> None:
    result = explore(model_of(replace(bound, leaves_out=part)))

    print(result)
    assert result.flaw is not None
    assert flaw in result.flaw
    assert len(result.trace) == result.progress.depth + 1, "it is a shortest one"


def test_every_part_that_can_be_left_out_is_left_out_by_a_test() -> None:
    (mark,) = test_without_any_one_part_of_the_protocol_a_counter_example_is_found.pytestmark

    assert {part for part, *_ in mark.args[1]} == set(OMISSIONS)


@pytest.mark.parametrize(
    ("rule", "bound", "flaw"),
    [
        ("fence", WITHOUT_HISTORY[BACKFILL], ABORTED_COMMITS),
        ("lease fence", HIDDEN_MANY, ABORTED_COMMITS),
        ("lease fence", BACKFILL, ABORTED_COMMITS),
    ],
)
def test_without_a_rule_of_admission_a_counter_example_is_found(rule: str, bound: Bound, flaw: str) -> None:
    result = explore(model_of(bound, rule))

    print(result)
    assert result.flaw is not None
    assert flaw in result.flaw


@pytest.mark.parametrize(
    ("part", "bound"),
    [
        # One that waits for before_commit holds the only write lock, so nobody can look before it has ended; and one that
        # was overtaken before is never told that before_commit counts. Batches wait for no event: they need the check.
        ("target fence", GROUP),
        ("target fence", HIDDEN),
        # Every attempt leaves a token of its own, so that none is taken for another. The record is for people.
        ("aborted", WITHOUT_HISTORY[GROUP]),
        ("aborted", WITHOUT_HISTORY[HIDDEN]),
        ("aborted", WITHOUT_HISTORY[BACKFILL]),
        # Here the schema tells which of source and target it is, without a witness.
        ("witness", WITHOUT_HISTORY[GROUP]),
        # The schema contradicts nothing, where source and target are the same.
        ("ask again", HIDDEN),
    ],
)
def test_where_a_part_of_the_protocol_is_not_needed_is_known(part: str, bound: Bound) -> None:
    result = explore(model_of(replace(bound, leaves_out=part)))

    assert result.flaw is None, str(result)
    assert result.complete


# --- the checker itself: it leaves nothing out ------------------------------------------------------------------------


def _reached(model: ExecutorModel) -> set[State]:
    seen, waiting = {model.start()}, [model.start()]
    while waiting:
        for step in model.steps(waiting.pop()):
            assert step.flaw is None
            if step.state not in seen:
                seen.add(step.state)
                waiting.append(step.state)
    return seen


def _readable(world: ExecutorWorld, state: State) -> tuple[object, ...]:
    """The log and the target of a state, without the ids of one world."""
    names = {attempt: world.name_of_attempt(attempt) for unit in world.logs[state[0]].units for attempt in unit.tokens}
    fence, units = state[4]
    done = tuple(
        (names.get(unit[0], "another"), *unit[1:]) if isinstance(unit, tuple) else names.get(unit, unit)
        for unit in units
    )
    return tuple(map(world.name, world.events_of(state[0]))), fence, done


@pytest.mark.parametrize(
    "bound",
    [replace(bound, runs=2) for bound in (GROUP, BACKFILL, Bound("two units", (Step.EQUAL, Step.DISTINCT)))],
    ids=lambda bound: bound.name,
)
def test_what_the_model_leaves_out_would_add_no_log_and_no_target(bound: Bound) -> None:
    model, everything = model_of(bound), model_of(bound)
    everything.forgets_hopeless = everything.run.sends_at_once = False

    states, all_states = _reached(model), _reached(everything)

    readable = {_readable(model.world, state) for state in states}
    assert readable == {_readable(everything.world, state) for state in all_states}
    assert len(states) < len(all_states)


# --- the same, in the product -----------------------------------------------------------------------------------------

MODELLED = Bound("as the project's", (Step.DISTINCT, Step.BACKFILL), runs=2, checkpoints=True)
MIGRATION = """
CREATE TABLE items (id INTEGER PRIMARY KEY, price INTEGER NOT NULL);
INSERT INTO items (id, price) VALUES (1, 1), (2, 2), (3, 3), (4, 4);
-- journal: reverse
DROP TABLE items;
-- journal: backfill table=items key=id batch=2
UPDATE items SET price = price + 10 WHERE id > :after AND id <= :upto;
-- journal: reverse
UPDATE items SET price = price - 10 WHERE id > :after AND id <= :upto;
"""
OTHERS = {
    EventType.LEASE_ACQUIRED: What.LEASE,
    EventType.PLAN_OPENED: What.PLAN,
    EventType.ROLLBACK_PLAN_OPENED: What.PLAN,
    EventType.APPLIED: What.CONCLUDED,
    EventType.ROLLED_BACK: What.CONCLUDED,
}


def refuse() -> JournalError:
    return failure(Code.TARGET_UNAVAILABLE, "as a test wants it")


def abort() -> JournalError:
    return CommitFailedError("as a test wants it", aborted=True)


def doubt() -> JournalError:
    return CommitFailedError("as a test wants it", aborted=False)


def failures(calls: list[str]) -> Iterator[tuple[int, bool, Callable[[], JournalError]]]:
    """Each call of the target, failing before or after it is done; a commit in every way in which commits fail."""
    for at, name in enumerate(calls):
        yield from ((at, after, refuse) for after in (False, True))
        if name in ("transaction.commit", "database.advance_backfill"):
            yield from ((at, False, abort), (at, False, doubt), (at, True, doubt))


async def run(project: Project, fuse: Fuse, *, back: bool) -> Outcome:
    def wrap(log: Log, leases: Leases, database: Database) -> tuple[Log, Leases, Database]:
        return log, leases, StoppingDatabase(database, fuse)

    return await (project.roll_back(steps=1, wrap=wrap) if back else project.apply(wrap=wrap))


async def recorded(project: Project, *, back: bool) -> tuple[tuple[What, int], ...]:
    """What the journal of a project tells, in the words of the model; leases that were given back aside."""
    told: list[tuple[What, int]] = []
    log, leases = SQLiteLog(project.journal, read_only=True), SQLiteLeases(project.journal, read_only=True)
    async with Journal(log, leases) as journal:
        async for event, verdict in journal.replay(SCOPE):
            assert isinstance(verdict, Admitted)
            assert isinstance(event, Event)
            match event.record:
                case GroupEventRecord(kind=kind) | RollbackStepEventRecord(kind=kind):
                    told.append((OF_KIND[kind], int(back)))
                case BackfillEventRecord(kind=kind):
                    told.append((OF_KIND[kind], int(not back)))
                case BackfillCheckpointRecord():
                    told.append((What.CHECKPOINT, int(not back)))
                case _ if event.type in OTHERS:
                    told.append((OTHERS[event.type], 0))
    return tuple(told)


def told_by(world: ExecutorWorld, log: int) -> tuple[tuple[What, int], ...]:
    """What a log of the model tells, in the same words."""
    return tuple((world.written[event].what, world.written[event].unit) for event in world.events_of(log))


@pytest.mark.parametrize("back", [False, True], ids=["applied", "rolled back"])
async def test_what_a_run_records_that_fails_anywhere_and_is_repeated_is_among_what_the_model_explores(
    tmp_path: Path, back: bool
) -> None:
    model = model_of(replace(MODELLED, rolls_back=back))
    explored_logs = {told_by(model.world, state[0]) for state in _reached(model)}
    start = Project.make(tmp_path / "start", {"0001_items": MIGRATION})
    if back:
        assert isinstance(await start.apply(), Applied)
    before = len(await recorded(start, back=False)) if back else 0
    fuse, seen = Fuse(), set()
    assert isinstance(await run(start.copy(tmp_path / "whole"), fuse, back=back), Applied)
    for number, (at, after, error) in enumerate(failures(fuse.calls)):
        project, place = start.copy(tmp_path / str(number)), f"{error.__name__} at {fuse.calls[at]} ({at}), {after=}"

        outcome = await run(project, Fuse(at, after=after, blow=lambda error=error: _raise(error())), back=back)
        again = await run(project, Fuse(), back=back)

        assert isinstance(outcome, RetrySafe), f"{place}: {outcome}"
        assert isinstance(again, Applied | UpToDate), f"{place}: {again}"
        history = (await recorded(project, back=back))[before:]
        assert history in explored_logs, f"{place}: {history}"
        seen.add(history)
    told = {what for history in seen for what, _ in history}
    assert {What.COMMITTED, What.UNKNOWN, What.ABORTED} <= told
    assert len(seen) > 10


def _raise(error: JournalError) -> None:
    raise error
