"""What operators do beside applying: look, attest, abandon, adopt, compare; looking leaves no trace."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from journal.control import Control
from journal.databases.sqlite import SQLiteDatabase
from journal.errors import Code, JournalError
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Database
from journal.recovery import SchemaRelation, Witness
from journal.state import ScopeState
from journal.vocabulary import GroupEventKind, UnitKind
from projections import operations
from projections.comparison import Comparison, compare
from projections.doubts import Doubt, find_doubts
from projections.operations import Attestation
from projections.outcome import Applied, RequiresExplicitRecovery, UpToDate
from projections.preview import preview_apply, preview_rollback
from projections.rehearsal import Rehearsal
from tests.faults import Fuse
from tests.integration.test_crash_matrix import doomed
from tests.integration.test_executor import BACKFILL, ITEMS, applied, fill
from tests.migrating import SCOPE, STORY, TTL, Project, Run

WHO = Attestation("ann", "looked at the table")
COMMITTED, ABORTED = GroupEventKind.COMMITTED, GroupEventKind.DEFINITELY_ABORTED
OUTSIDE = "-- journal: schema transaction=off\nCREATE TABLE a (n);\nCREATE UNIQUE INDEX u ON items (name);"

T = TypeVar("T")
Look = Callable[[ScopeState, Database, Rehearsal], Awaitable[T]]


async def looking(project: Project, look: Look[T]) -> T:
    """Look without a lease, with both files opened for reading alone."""
    database = SQLiteDatabase(project.target, read_only=True)
    rehearsal = Rehearsal(SCOPE, database)
    try:
        log, leases = SQLiteLog(project.journal, read_only=True), SQLiteLeases(project.journal, read_only=True)
        async with Journal(log, leases) as journal:
            return await look(await journal.state(SCOPE), database, rehearsal)
    finally:
        await rehearsal.close()
        await database.close()


async def doubts(project: Project) -> list[Doubt]:
    return await looking(project, lambda *seen: find_doubts(seen[0], project.sources(), *seen[1:]))


async def compared(project: Project) -> Comparison:
    return await looking(project, lambda *seen: compare(seen[0], project.sources(), *seen[1:]))


async def killed_behind(project: Project, call: str, number: int = 1, *, command: str = "apply") -> None:
    """Run until the given call was done that many times."""
    whole = project.copy(project.folder.with_name("whole"))
    fuse = Fuse()
    await doomed(whole, command, fuse)
    at = [index for index, name in enumerate(fuse.calls) if name == call][number - 1]
    await doomed(project, command, Fuse(at, after=True))


async def attest(run: Run, doubt: Doubt, outcome: GroupEventKind) -> None:
    await operations.attest(run.journal, run.executor._lease, doubt, outcome, WHO)


def later() -> float:
    import time

    return time.time() + TTL.total_seconds() + 1


# --- doubts -----------------------------------------------------------------------------------------------------------


async def test_a_unit_that_committed_without_a_record_is_shown_with_its_witness_and_needs_nobody(
    tmp_path: Path,
) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await killed_behind(project, "transaction.commit")
    (doubt,) = await doubts(project)
    assert (str(doubt.migration), doubt.unit, doubt.last) == (
        "shop/0001_items",
        UnitKind.GROUP,
        GroupEventKind.BEFORE_COMMIT,
    )
    assert (doubt.witness, doubt.relation, doubt.settled_by_running) == (Witness.PRESENT, SchemaRelation.TARGET, True)
    assert doubt.contradicts(COMMITTED) is None
    assert doubt.contradicts(ABORTED) is not None


async def test_a_unit_that_did_not_commit_is_shown_so(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await killed_behind(project, "log.append", 4)
    (doubt,) = await doubts(project)
    assert (doubt.witness, doubt.relation, doubt.settled_by_running) == (Witness.ABSENT, SchemaRelation.SOURCE, True)
    assert doubt.contradicts(COMMITTED) is not None


async def test_a_backfill_under_way_is_shown_with_its_cursor(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    fill(project, 10)
    project.write("0002_touch", BACKFILL)
    await killed_behind(project, "database.advance_backfill", 2)
    (doubt,) = await doubts(project)
    assert doubt.cursor is not None
    assert (doubt.unit, doubt.cursor.matched, doubt.cursor.rows, doubt.settled_by_running) == (
        UnitKind.BACKFILL,
        6,
        10,
        True,
    )


async def unknown_outside(folder: Path) -> Project:
    """A step outside of transactions that failed half way."""
    project = Project.make(folder, {"0001_items": ITEMS})
    await applied(project)
    project.sql("INSERT INTO items (name) VALUES ('same'), ('same')")
    project.write("0002_outside", OUTSIDE)
    assert isinstance(await project.apply(), RequiresExplicitRecovery)
    return project


async def test_an_operator_who_finished_a_step_by_hand_attests_it_and_the_run_goes_on(tmp_path: Path) -> None:
    project = await unknown_outside(tmp_path / "p")
    (doubt,) = await doubts(project)
    assert (doubt.witness, doubt.relation, doubt.settled_by_running) == (Witness.NONE, SchemaRelation.NEITHER, False)
    assert isinstance(await project.apply(), RequiresExplicitRecovery)
    async with project.opened() as run:
        with pytest.raises(JournalError) as refused:
            await attest(run, doubt, COMMITTED)
    assert refused.value.code is Code.ATTESTATION_CONTRADICTED
    project.sql("UPDATE items SET name = name || id")
    project.sql("CREATE UNIQUE INDEX u ON items (name)")
    (doubt,) = await doubts(project)
    assert doubt.relation is SchemaRelation.TARGET
    async with project.opened() as run:
        await attest(run, doubt, COMMITTED)
        assert isinstance(await run.apply(), Applied)
    assert await doubts(project) == []


async def test_an_operator_who_undid_a_step_by_hand_attests_it_and_the_run_executes_it(tmp_path: Path) -> None:
    project = await unknown_outside(tmp_path / "p")
    project.sql("DROP TABLE a")
    project.sql("UPDATE items SET name = name || id")
    (doubt,) = await doubts(project)
    async with project.opened() as run:
        await attest(run, doubt, ABORTED)
        assert isinstance(await run.apply(), Applied)
    assert project.sql("SELECT count(*) FROM a") == [(0,)]


async def test_a_reason_is_needed(tmp_path: Path) -> None:
    project = await unknown_outside(tmp_path / "p")
    (doubt,) = await doubts(project)
    async with project.opened() as run:
        with pytest.raises(JournalError) as refused:
            await operations.attest(run.journal, run.executor._lease, doubt, ABORTED, Attestation("ann", " "))
    assert refused.value.code is Code.INVALID_TEXT


# --- abandoning -------------------------------------------------------------------------------------------------------


async def test_a_plan_is_abandoned_with_a_reason_unless_a_unit_is_in_doubt(tmp_path: Path) -> None:
    project = await unknown_outside(tmp_path / "p")
    async with project.opened() as run:
        with pytest.raises(JournalError) as refused:
            await operations.abandon(run.journal, run.executor._lease, WHO)
        assert refused.value.code is Code.UNIT_IN_DOUBT
        project.sql("DROP TABLE a")
        (doubt,) = await doubts(project)
        await attest(run, doubt, ABORTED)
        entry = await operations.abandon(run.journal, run.executor._lease, WHO)
    assert (entry.record.operator, entry.record.reason) == (WHO.operator, WHO.reason)
    assert (await project.state()).plan is None
    project.write("0002_outside", "CREATE TABLE b (n);")
    await applied(project)


async def test_without_an_open_plan_there_is_nothing_to_abandon(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    async with project.opened() as run:
        with pytest.raises(JournalError) as refused:
            await operations.abandon(run.journal, run.executor._lease, WHO)
    assert refused.value.code is Code.NO_OPEN_PLAN


# --- adopting ---------------------------------------------------------------------------------------------------------


async def adopt(project: Project, target: str | None = None) -> Any:
    from tests.integration.test_executor import id_of

    async with project.opened() as run:
        rehearsal, database = run.executor._rehearsal, run.executor._database
        wanted = None if target is None else id_of(target)
        return await operations.adopt(
            run.journal, run.executor._lease, database, rehearsal, project.sources(), wanted, WHO, Control()
        )


async def test_an_existing_database_is_adopted_without_executing_anything_and_goes_on_from_there(
    tmp_path: Path,
) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS, "0002_more": "CREATE TABLE more (n);"})
    project.sql("CREATE TABLE more (n)")
    project.sql("create table ITEMS (id integer primary key, name text not null, touched integer not null default (0))")
    fill(project, 3)
    entry = await adopt(project)
    assert [str(item.migration_id) for item in entry.record.migrations] == ["shop/0001_items", "shop/0002_more"]
    assert project.sql("SELECT count(*) FROM items") == [(3,)]
    assert await project.apply() == UpToDate()
    project.write("0003_touch", BACKFILL)
    await applied(project)
    assert project.sql("SELECT DISTINCT touched FROM items") == [(1,)]


async def test_a_database_that_differs_is_not_adopted_and_the_difference_is_named(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    project.sql("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
    with pytest.raises(JournalError) as refused:
        await adopt(project)
    assert refused.value.code is Code.STALE_SOURCE_STATE
    assert refused.value.details["objects"] == ["table items"]
    assert (await project.state()).active == {}


async def test_a_database_whose_journal_was_lost_is_adopted_by_a_new_one(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        (project.folder / name).unlink(missing_ok=True)
    assert await adopt(project) is not None
    assert await project.apply() == UpToDate()
    assert isinstance(await project.roll_back(to="0001_items"), Applied)
    await applied(project)  # what the lost journal left in the target is not taken for something that this one lost


async def test_what_is_adopted_already_is_not_adopted_again(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    assert await adopt(project) is None


# --- comparing --------------------------------------------------------------------------------------------------------


async def test_ledger_files_and_schema_that_agree_are_said_to(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    comparison = await compared(project)
    assert comparison.agrees
    assert comparison.live == comparison.expected


async def test_drift_is_named_object_by_object(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    project.sql("DROP INDEX items_by_cents")
    project.sql("ALTER TABLE effects ADD COLUMN extra TEXT")
    project.sql("CREATE VIEW sneaked AS SELECT 1 AS one")
    comparison = await compared(project)
    assert [(item.name, item.what) for item in comparison.drift] == [
        ("index items_by_cents", "missing"),
        ("table effects", "different"),
        ("view sneaked", "not expected"),
    ]
    assert not comparison.agrees


async def test_edited_missing_and_pending_files_are_named(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p",
        {"0001_a": "CREATE TABLE a (n);", "0002_b": "CREATE TABLE b (n);", "0003_c": "CREATE TABLE c (n);"},
    )
    await applied(project)
    project.write("0002_b", "CREATE TABLE b (n, m);")
    project.remove("0003_c")
    project.write("0004_d", "CREATE TABLE d (n);")
    comparison = await compared(project)
    assert [(str(item.id), item.found is None) for item in comparison.edited] == [
        ("shop/0003_c", True),
        ("shop/0002_b", False),
    ]
    assert [str(id) for id in comparison.pending] == ["shop/0004_d"]
    assert not comparison.compared


@pytest.mark.parametrize("command", ["apply", "rollback"])
async def test_what_a_half_done_plan_has_done_is_no_drift(tmp_path: Path, command: str) -> None:
    start = Project.make(tmp_path / "base", STORY)
    if command == "rollback":
        await applied(start)
    for at in range(0, 200, 3):
        project = start.copy(tmp_path / str(at))
        fuse = Fuse(at)
        await doomed(project, command, fuse)
        if not fuse.blown.is_set():
            break
        if not project.journal.exists() or fuse.calls[:3].count("log.append") == len(fuse.calls):
            continue
        if at < 8:
            continue  # the scope is not there yet
        comparison = await compared(project)
        in_doubt = {doubt.settled_by_running for doubt in await doubts(project)}
        assert not comparison.drift or in_doubt == {True}, (at, fuse.calls[-1], comparison.drift)
        assert in_doubt <= {True}
    assert at > 35


# --- previews ---------------------------------------------------------------------------------------------------------


def prints(project: Project) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in project.folder.iterdir()
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


async def test_a_preview_shows_the_units_of_what_would_run_and_changes_no_byte(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project, target="0001_items")
    before = prints(project)
    preview = await looking(project, lambda *seen: preview_apply(seen[0], project.sources(), *seen[1:]))
    assert [work.prepared.source.id.name for work in preview.works] == list(STORY)[1:]
    assert preview.live == preview.expected
    assert not preview.is_open
    assert preview.reverse_problems == ()
    assert prints(project) == before


async def test_a_preview_of_a_half_done_plan_shows_the_rest_and_what_was_begun(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await killed_behind(project, "transaction.commit", 2)
    preview = await looking(project, lambda *seen: preview_apply(seen[0], project.sources(), *seen[1:]))
    assert preview.is_open
    assert [work.prepared.source.id.name for work in preview.works] == list(STORY)[1:]
    assert len(preview.begun & {unit.key for work in preview.works for unit in work.units}) == 1


async def test_a_preview_of_a_rollback_runs_last_to_first(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    preview = await looking(project, lambda *seen: preview_rollback(seen[0], project.sources(), *seen[1:], steps=3))
    kinds = [unit.position.unit for unit in preview.works[-1].units]
    assert kinds == [UnitKind.ROLLBACK_STEP, UnitKind.BACKFILL, UnitKind.ROLLBACK_STEP]


async def test_a_preview_warns_of_a_reverse_that_leads_elsewhere(tmp_path: Path) -> None:
    wrong = "CREATE TABLE x (n);\n-- journal: reverse\nDROP TABLE x;\nCREATE TABLE y (n);"
    project = Project.make(tmp_path / "p", {"0001_x": wrong})
    async with project.opened():
        pass
    preview = await looking(project, lambda *seen: preview_apply(seen[0], project.sources(), *seen[1:]))
    assert len(preview.reverse_problems) == 1
    assert "0001_x.sql:1" in preview.reverse_problems[0]
