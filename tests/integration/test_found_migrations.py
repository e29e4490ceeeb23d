"""Defects of the migrations that were found by trying to break them; each test is the smallest way to one of them."""

from __future__ import annotations

import shutil
from pathlib import Path

from journal.errors import Code
from journal.log.sqlite import SQLiteLog
from journal.recovery import SchemaRelation
from journal.vocabulary import GroupEventKind
from projections.outcome import Applied, Failed, RequiresExplicitRecovery, UpToDate
from tests.acceptance.commands import Journal
from tests.integration.test_operations import attest, doubts, killed_behind, later
from tests.migrating import SCOPE, Project, error_of

EFFECTS = "CREATE TABLE effects (id INTEGER PRIMARY KEY, step TEXT);\nCREATE TABLE stop (id INTEGER PRIMARY KEY);"
ROWS = "CREATE TABLE rows (id INTEGER PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0);\n"
NUMBERS = (
    "INSERT INTO rows (id) WITH RECURSIVE i (n) AS (VALUES (0) UNION ALL SELECT n + 1 FROM i WHERE n < 9)"
    " SELECT n * 100 FROM i;\n"
)


def steps_of(project: Project) -> list[str]:
    return [step for (step,) in project.sql("SELECT step FROM effects ORDER BY id")]


# --- older copies -----------------------------------------------------------------------------------------------------


async def test_a_journal_restored_from_an_older_copy_runs_nothing_twice(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p", {"0001_effects": EFFECTS, "0002_data": "INSERT INTO effects (step) VALUES ('0002');"}
    )
    assert isinstance(await project.apply("0001_effects"), Applied)
    shutil.copy(project.journal, tmp_path / "older.db")
    assert isinstance(await project.apply(), Applied)
    shutil.copy(tmp_path / "older.db", project.journal)
    for _ in range(4):
        assert isinstance(await project.apply(), Failed)
    assert steps_of(project) == ["0002"]


async def test_a_target_restored_from_an_older_copy_is_noticed(tmp_path: Path) -> None:
    second = (
        "-- journal: schema\nINSERT INTO effects (step) VALUES ('first');\n"
        "-- journal: assert nothing stops\nSELECT NOT EXISTS (SELECT 1 FROM stop);\n"
        "-- journal: schema\nINSERT INTO effects (step) VALUES ('second');\n"
    )
    project = Project.make(tmp_path / "p", {"0001_effects": EFFECTS, "0002_data": second})
    assert isinstance(await project.apply("0001_effects"), Applied)
    project.sql("INSERT INTO stop VALUES (1)")
    shutil.copy(project.target, tmp_path / "older.db")
    assert error_of(await project.apply()).code is Code.ASSERTION_FAILED
    assert steps_of(project) == ["first"]
    shutil.copy(tmp_path / "older.db", project.target)
    project.sql("DELETE FROM stop")
    assert not isinstance(await project.apply(), Applied | UpToDate)
    assert steps_of(project) == []


async def test_another_database_with_the_same_schema_is_not_taken_for_the_target(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_effects": EFFECTS})
    assert isinstance(await project.apply(), Applied)
    project.target.unlink()
    project.sql("CREATE TABLE effects (id INTEGER PRIMARY KEY, step TEXT)")
    project.sql("CREATE TABLE stop (id INTEGER PRIMARY KEY)")
    project.write("0002_data", "INSERT INTO effects (step) VALUES ('0002');")
    assert isinstance(await project.apply(), Failed)
    assert steps_of(project) == []


# --- killed -----------------------------------------------------------------------------------------------------------


async def test_a_first_run_killed_before_the_genesis_was_written_is_finished_by_the_next(tmp_path: Path) -> None:
    project = Project.make(tmp_path, {"0001_effects": EFFECTS})
    log = SQLiteLog(project.journal, create=True)
    await log.open()
    await log.create(SCOPE)
    await log.close()
    run = Journal(tmp_path)
    options = ("--scope", SCOPE, "--database", "sqlite:///target.db")
    assert "0 admitted" in run("status", "--scope", SCOPE).stdout
    assert "1 migration to apply" in run("plan", *options).stdout
    assert "applied main/0001_effects" in run("apply", *options).stdout


async def test_a_plan_with_a_composite_backfill_is_carried_on(tmp_path: Path) -> None:
    pairs = "CREATE TABLE pairs (a TEXT, b BLOB, n INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (a, b)) WITHOUT ROWID;"
    backfill = (
        "-- journal: backfill table=pairs key=a,b batch=2\n"
        "UPDATE pairs SET n = n + 1 WHERE (a, b) > (:after_a, :after_b) AND (a, b) <= (:upto_a, :upto_b);\n"
    )
    later = "-- journal: assert nothing stops\nSELECT NOT EXISTS (SELECT 1 FROM stop);\n-- journal: schema\n"
    project = Project.make(tmp_path / "p", {"0001_pairs": f"{EFFECTS}\n{pairs}"})
    assert isinstance(await project.apply(), Applied)
    project.sql("INSERT INTO pairs (a, b) VALUES ('x', x'00'), ('x', x'01'), ('y', x'00'), ('y', x'01'), ('z', x'')")
    project.sql("INSERT INTO stop VALUES (1)")
    project.write("0002_backfill", backfill + later)
    assert error_of(await project.apply()).code is Code.ASSERTION_FAILED
    project.sql("DELETE FROM stop")
    assert isinstance(await project.apply(), Applied)
    assert project.sql("SELECT min(n), max(n), count(*) FROM pairs") == [(1, 1, 5)]


async def test_an_outside_step_whose_statement_failed_is_not_taken_for_done(tmp_path: Path) -> None:
    outside = (
        "-- journal: schema transaction=off\nCREATE TABLE marks (name TEXT UNIQUE);\n"
        "INSERT INTO marks VALUES ('a');\nINSERT INTO marks VALUES ('a');\n"
    )
    project = Project.make(tmp_path / "p", {"0001_effects": EFFECTS, "0002_outside": outside})
    for _ in range(2):
        assert error_of(await project.apply()).code is Code.STATEMENT_REFUSED
    assert (await project.state()).active == {}


async def test_an_outside_step_that_reached_its_schema_is_not_taken_for_done_while_statements_may_be_missing(
    tmp_path: Path,
) -> None:
    outside = "-- journal: schema transaction=off\nCREATE TABLE marks (name TEXT);\nVACUUM;\n"
    project = Project.make(tmp_path / "p", {"0001_effects": EFFECTS, "0002_outside": outside})
    await killed_behind(project, "database.execute_outside")
    assert isinstance(await project.apply(clock=later), RequiresExplicitRecovery)
    (doubt,) = await doubts(project)
    assert (doubt.relation, doubt.settled_by_running) == (SchemaRelation.TARGET, False)
    async with project.opened(clock=later) as run:
        await attest(run, doubt, GroupEventKind.COMMITTED)
        assert isinstance(await run.apply(), Applied)


# --- backfills --------------------------------------------------------------------------------------------------------


async def test_a_backfill_that_changes_its_own_key_is_refused(tmp_path: Path) -> None:
    backfill = (
        "-- journal: backfill table=rows key=id batch=2\n"
        "UPDATE rows SET id = id + 155, n = n + 1 WHERE id > :after AND id <= :upto;\n"
    )
    project = Project.make(tmp_path / "p", {"0001_rows": ROWS + NUMBERS, "0002_backfill": backfill})
    assert error_of(await project.apply()).code is Code.STATEMENT_REFUSED
    assert project.sql("SELECT count(*) FROM sqlite_master WHERE name = 'rows'") == [(0,)]


async def test_a_backfill_of_a_table_that_is_not_there_is_refused_at_plan(tmp_path: Path) -> None:
    backfill = (
        "-- journal: schema\nCREATE TABLE other (id INTEGER PRIMARY KEY);\n"
        "-- journal: backfill table=nope key=id batch=2\n"
        "UPDATE rows SET n = n + 1 WHERE id > :after AND id <= :upto;\n"
    )
    project = Project.make(tmp_path / "p", {"0001_rows": ROWS + NUMBERS, "0002_backfill": backfill})
    assert error_of(await project.apply()).code is Code.BACKFILL_KEY
    assert project.sql("SELECT count(*) FROM sqlite_master WHERE name = 'rows'") == [(0,)]
