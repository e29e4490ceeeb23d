"""The executor on a real SQLite target and a real journal: what it does, what it leaves, and what it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from journal.control import Control, ResourceLimits
from journal.errors import Code
from journal.identities import MigrationId
from journal.vocabulary import Direction, GroupEventKind
from projections.outcome import (
    Applied,
    BackfillAdvanced,
    Failed,
    MigrationStarted,
    PlanGivenUp,
    RequiresExplicitRecovery,
    RetrySafe,
    UpToDate,
)
from tests.migrating import APP, SCOPE, STORY, Project, cancelled_after, error_of

ITEMS = """
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL, touched INTEGER NOT NULL DEFAULT 0);
-- journal: reverse
DROP TABLE items;
"""
BACKFILL = """
-- journal: backfill table=items key=id batch=3
UPDATE items SET touched = touched + 1 WHERE id > :after AND id <= :upto;
-- journal: reverse
UPDATE items SET touched = touched - 1 WHERE id > :after AND id <= :upto;
"""


def id_of(name: str) -> MigrationId:
    return MigrationId(APP, name)


def fill(project: Project, count: int) -> None:
    for number in range(1, count + 1):
        project.sql("INSERT INTO items (id, name) VALUES (?, ?)", number, f"n{number}")


async def applied(project: Project, **how: Any) -> Applied:
    outcome = await project.apply(**how)
    assert isinstance(outcome, Applied), outcome
    return outcome


# --- both directions --------------------------------------------------------------------------------------------------


async def test_everything_that_is_missing_is_applied_once_and_in_order(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    outcome = await applied(project)
    assert outcome == Applied(Direction.FORWARD, tuple(map(id_of, STORY)))
    assert project.sql("SELECT step FROM effects ORDER BY rowid") == [
        ("0001",),
        ("0002 column",),
        ("0002 index",),
        ("0004",),
    ]
    assert project.sql("SELECT DISTINCT cents = price * 100, touched FROM items") == [(1, 1)]
    state = await project.state()
    assert list(state.active) == [f"{APP}/{name}" for name in STORY]
    assert state.plan is None


async def test_with_nothing_to_do_it_says_so(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    before = await project.shown()
    assert await project.apply() == UpToDate()
    assert await project.shown() == before


async def test_a_target_stops_there_and_the_rest_follows_later(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    assert (await applied(project, target="0002_cents")).migrations == (id_of("0001_items"), id_of("0002_cents"))
    assert (await applied(project)).migrations == (id_of("0003_nothing"), id_of("0004_marks"))


async def test_a_rollback_undoes_steps_last_to_first_and_can_be_applied_again(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project, target="0001_items")
    first = await project.shown()
    await applied(project)
    whole = project.content()["schema"]
    outcome = await project.roll_back(to="0001_items")
    names = ("0004_marks", "0003_nothing", "0002_cents")
    assert outcome == Applied(Direction.REVERSE, tuple(map(id_of, names)))
    undone = await project.shown()
    assert (undone["schema"], undone["ledger"]) == (first["schema"], first["ledger"])
    assert project.sql("SELECT DISTINCT touched FROM items") == [(101,)]
    await applied(project)  # the cursor that the first backfill left is not taken for this one's
    assert project.sql("SELECT DISTINCT touched, cents IS NULL FROM items") == [(102, 0)]
    assert project.content()["schema"] == whole


async def test_steps_count_from_the_end_of_the_ledger(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    await applied(project)
    outcome = await project.roll_back(steps=2)
    assert isinstance(outcome, Applied)
    assert outcome.migrations == (id_of("0004_marks"), id_of("0003_nothing"))


async def test_two_migrations_with_the_same_body_both_apply(tmp_path: Path) -> None:
    body = "INSERT INTO items (name) VALUES ('again');"
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS, "0002_once": body, "0003_twice": body})
    await applied(project)
    assert project.sql("SELECT count(*) FROM items") == [(2,)]


async def test_each_unit_leaves_its_commit_boundary_in_the_log(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p", {"0001_items": ITEMS, "0002_touch": BACKFILL, "0003_nothing": "-- journal: schema\n"}
    )
    kinds: list[tuple[str, str]] = []
    async with project.opened() as run:
        assert isinstance(await run.apply(), Applied)
        async for event, _ in run.journal.replay(SCOPE):
            record = event.record
            kinds.append(
                (type(record).__name__.removesuffix("Record"), getattr(getattr(record, "kind", None), "value", ""))
            )
    assert kinds[2:] == [
        ("Plan", ""),
        ("GroupEvent", "before_commit"),
        ("GroupEvent", "committed"),
        ("Applied", ""),
        ("BackfillEvent", "before_commit"),
        ("BackfillEvent", "committed"),
        ("Applied", ""),
        ("GroupEvent", "formal_only_advanced"),
        ("Applied", ""),
    ]


# --- what fails before anything happened ------------------------------------------------------------------------------


async def test_a_syntax_error_is_found_before_any_effect_and_fixing_the_file_is_enough(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p", {"0001_items": ITEMS, "0002_more": "CREATE TABLE more (id INTEGER);\nCREATE TABEL x (y);"}
    )
    outcome = await project.apply()
    assert isinstance(outcome, RetrySafe)
    error = error_of(outcome)
    assert (error.code, error.details["line"]) == (Code.STATEMENT_FAILED, 2)
    assert "0002_more.sql:2" in error.message
    state = await project.state()
    assert (state.plan, state.active, project.content()["schema"]) == (None, {}, [])
    project.write("0002_more", "CREATE TABLE more (id INTEGER);")
    assert len((await applied(project)).migrations) == 2


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("INSERT INTO items (name) VALUES (no_such_function(1));", "no_such_function"),
        ("CREATE VIRTUAL TABLE v USING no_such_module(x);", "no_such_module"),
        ("CREATE INDEX i ON items (name COLLATE no_such_collation);", "no_such_collation"),
        ("CREATE VIEW v AS SELECT no_such_function(name) FROM items;", "no_such_function"),
        ("CREATE TABLE t (a, b DEFAULT (no_such_function()));", "no_such_function"),
        (
            "CREATE TRIGGER t AFTER UPDATE OF name ON items BEGIN SELECT no_such_function(NEW.name); END;",
            "no_such_function",
        ),
    ],
)
async def test_what_the_database_does_not_have_is_named(tmp_path: Path, sql: str, named: str) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS, "0002_more": sql})
    error = error_of(await project.apply())
    assert error.code is Code.STATEMENT_FAILED
    assert named in error.message
    assert (await project.state()).plan is None


async def test_an_edited_applied_file_is_refused_with_both_digests(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    recorded = str(project.sources()[0].digest)
    project.write("0001_items", ITEMS.replace("name TEXT", "name VARCHAR"))
    project.write("0002_more", "CREATE TABLE more (id INTEGER);")
    outcome = await project.apply()
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.MIGRATION_EDITED
    assert recorded in outcome.error.message
    assert str(project.sources()[0].digest) in outcome.error.message


async def test_a_live_schema_that_is_not_the_ledgers_is_refused_by_name(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.sql("ALTER TABLE items ADD COLUMN sneaked TEXT")
    project.sql("CREATE INDEX sneaked_too ON items (name)")
    project.write("0002_more", "CREATE TABLE more (id INTEGER);")
    outcome = await project.apply()
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.STALE_SOURCE_STATE
    assert outcome.error.details["objects"] == ["index sneaked_too", "table items"]
    assert (await project.state()).plan is None


async def test_a_target_of_another_journal_is_refused(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.journal.unlink()
    outcome = await project.apply()
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.FOREIGN_TARGET


async def test_a_rollback_without_a_reverse_is_refused_before_any_effect(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p", {"0001_items": "CREATE TABLE items (id INTEGER);", "0002_more": ITEMS.replace("items", "more")}
    )
    await applied(project)
    before = await project.shown()
    outcome = await project.roll_back(steps=2)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.IRREVERSIBLE
    assert await project.shown() == before


async def test_a_reverse_that_leads_elsewhere_is_refused_before_any_effect(tmp_path: Path) -> None:
    wrong = "ALTER TABLE items ADD COLUMN x INTEGER;\n-- journal: reverse\nALTER TABLE items RENAME COLUMN x TO y;"
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS, "0002_x": wrong})
    await applied(project)
    before = await project.shown()
    outcome = await project.roll_back(steps=1)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.REVERSE_DIFFERS
    assert await project.shown() == before


async def test_more_units_than_the_limits_allow_are_refused(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", STORY)
    outcome = await project.apply(control=Control(limits=ResourceLimits.tightened(3, 1)))
    assert error_of(outcome).code is Code.LIMIT_EXCEEDED
    assert (await project.state()).plan is None


async def test_a_backfill_without_a_usable_key_is_refused_unless_the_table_is_empty(tmp_path: Path) -> None:
    items = "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, touched INTEGER DEFAULT 0);"
    by_name = BACKFILL.replace("key=id", "key=name").replace("id >", "name >").replace("id <=", "name <=")
    project = Project.make(tmp_path / "p", {"0001_items": items})
    await applied(project)
    empty = project.copy(tmp_path / "empty")
    fill(project, 3)
    for each in (project, empty):
        each.write("0002_touch", by_name)
    refused = await project.apply()
    assert error_of(refused).code is Code.BACKFILL_KEY
    assert error_of(refused).details["line"] == 2
    assert (await project.state()).plan is None
    await applied(empty)


# --- what fails half way ----------------------------------------------------------------------------------------------


async def test_an_assertion_that_fails_changes_nothing_and_the_run_goes_on_once_it_holds(tmp_path: Path) -> None:
    guarded = """
-- journal: assert there are items
SELECT count(*) > 0 FROM items;
-- journal: schema
CREATE INDEX items_by_name ON items (name);
"""
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS, "0002_index": guarded})
    outcome = await project.apply()
    assert isinstance(outcome, RetrySafe)
    assert outcome.migrations == (id_of("0001_items"),)
    assert outcome.position is not None
    assert (outcome.position.migration, outcome.position.step_index) == (id_of("0002_index"), 1)
    assert (outcome.error.code, outcome.error.details["line"]) == (Code.ASSERTION_FAILED, 2)
    assert "there are items" in outcome.error.message
    assert project.sql("SELECT count(*) FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL") == [(0,)]
    fill(project, 1)
    assert (await applied(project)).migrations == (id_of("0002_index"),)


async def test_a_failing_statement_leaves_nothing_of_its_group_and_the_file_can_be_fixed(tmp_path: Path) -> None:
    three = "CREATE TABLE log (n INTEGER);\nCREATE UNIQUE INDEX one_name ON items (name);\nINSERT INTO log VALUES (1);"
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.sql("INSERT INTO items (name) VALUES ('same'), ('same')")
    before = project.content()
    project.write("0002_unique", three)
    project.write("0003_last", "CREATE TABLE last (n INTEGER);")
    outcome = await project.apply()
    assert isinstance(outcome, RetrySafe)
    assert (outcome.error.code, outcome.error.details["statement"]) == (Code.STATEMENT_FAILED, 2)
    assert "0002_unique.sql:2" in outcome.error.message
    assert project.content() == before
    assert (await project.state()).plan is not None
    project.write("0002_unique", three.replace("UNIQUE ", ""))
    async with project.opened() as run:
        assert isinstance(await run.apply(), Applied)
        assert [type(told) for told in run.heard if isinstance(told, PlanGivenUp)] == [PlanGivenUp]
    assert list((await project.state()).active) == ["shop/0001_items", "shop/0002_unique", "shop/0003_last"]


async def test_a_half_done_migration_may_not_be_edited_and_goes_on_once_its_file_is_back(tmp_path: Path) -> None:
    two = "CREATE TABLE log (n INTEGER);\n-- journal: schema\nCREATE UNIQUE INDEX one_name ON items (name);"
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.sql("INSERT INTO items (name) VALUES ('same'), ('same')")
    project.write("0002_unique", two)
    assert isinstance(await project.apply(), RetrySafe)
    project.write("0002_unique", two.replace("UNIQUE ", ""))
    outcome = await project.apply()
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.MIGRATION_EDITED
    project.write("0002_unique", two)
    project.sql("UPDATE items SET name = name || id")
    assert (await applied(project)).migrations == (id_of("0002_unique"),)


async def test_a_batch_that_raises_keeps_the_batches_before_it_and_the_next_run_resumes_behind_them(
    tmp_path: Path,
) -> None:
    checked = ITEMS.replace("DEFAULT 0", "DEFAULT 0 CHECK (touched < 2)")
    project = Project.make(tmp_path / "p", {"0001_items": checked})
    await applied(project)
    fill(project, 10)
    project.sql("UPDATE items SET touched = 1 WHERE id = 5")
    project.write("0002_touch", BACKFILL)
    outcome = await project.apply()
    assert isinstance(outcome, RetrySafe)
    assert outcome.error.code is Code.STATEMENT_FAILED
    assert project.sql("SELECT id FROM items WHERE touched = 1") == [(1,), (2,), (3,), (5,)]
    project.sql("UPDATE items SET touched = 0 WHERE id = 5")
    async with project.opened() as run:
        assert isinstance(await run.apply(), Applied)
        cursors = [told.cursor for told in run.heard if isinstance(told, BackfillAdvanced)]
    assert project.sql("SELECT DISTINCT touched FROM items") == [(1,)]
    last = cursors[-1]
    assert (last.matched, last.changed, last.skipped, last.transaction_groups) == (10, 10, 0, 4)
    assert len(cursors) == 3


async def test_the_last_record_of_a_run_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journal.spine.LINGER_SECONDS", 3_600)
    project = Project.make(tmp_path / "p", STORY)
    async with asyncio.timeout(30):
        await applied(project)
        assert isinstance(await project.roll_back(steps=len(STORY) - 1), Applied)


async def test_a_failing_verification_is_not_the_end_of_a_backfill(tmp_path: Path) -> None:
    verified = BACKFILL.replace(
        "-- journal: reverse",
        "-- journal: verify\nSELECT min(touched) > 0 FROM items WHERE id <= :upto;\n-- journal: reverse",
    ).replace("id <= :upto;\n-- journal: verify", "id <= :upto AND name <> 'n2';\n-- journal: verify")
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    fill(project, 7)
    project.write("0002_touch", verified)
    outcome = await project.apply()
    assert isinstance(outcome, RetrySafe)
    assert outcome.error.code is Code.VERIFY_FAILED
    assert list((await project.state()).active) == ["shop/0001_items"]
    assert error_of(await project.apply()).code is Code.VERIFY_FAILED
    project.sql("UPDATE items SET touched = 1 WHERE name = 'n2'")
    await applied(project)
    assert project.sql("SELECT DISTINCT touched FROM items") == [(1,)]


async def test_a_backfill_ends_although_rows_are_inserted_all_the_while(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    fill(project, 10)
    project.write("0002_touch", BACKFILL)
    heard: list[Any] = []

    def insert(told: Any) -> None:
        heard.append(told)
        if isinstance(told, BackfillAdvanced):
            project.sql("INSERT INTO items (name) VALUES ('late'), ('late'), ('late'), ('late')")

    await applied(project, observer=insert)
    assert project.sql("SELECT count(*) FROM items WHERE touched = 1") == [(10,)]
    assert sum(isinstance(told, BackfillAdvanced) for told in heard) == 4


async def test_drift_in_the_middle_of_a_plan_is_for_an_operator(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p", {"0001_items": ITEMS, "0002_a": "CREATE TABLE a (n);", "0003_b": "CREATE TABLE b (n);"}
    )

    def drift(told: Any) -> None:
        if isinstance(told, MigrationStarted) and told.migration.name == "0002_a":
            project.sql("CREATE TABLE sneaked (n)")

    outcome = await project.apply(observer=drift)
    assert isinstance(outcome, RequiresExplicitRecovery)
    assert (outcome.migrations, outcome.position.migration) == ((id_of("0001_items"),), id_of("0002_a"))
    assert isinstance(await project.apply(), RequiresExplicitRecovery)
    project.sql("DROP TABLE sneaked")
    await applied(project)


# --- stopping and going on --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["apply", "rollback"])
async def test_cancelled_before_any_effect_the_next_run_ends_as_an_uninterrupted_one(
    tmp_path: Path, command: str
) -> None:
    start = Project.make(tmp_path / "base", STORY)
    if command == "rollback":
        await applied(start)

    async def go(project: Project, **how: Any) -> Any:
        return await (project.apply(**how) if command == "apply" else project.roll_back(to="0001_items", **how))

    whole = start.copy(tmp_path / "whole")
    assert isinstance(await go(whole), Applied)
    wanted = await whole.shown()
    for calls in range(200):
        project = start.copy(tmp_path / str(calls))
        outcome = await go(project, control=cancelled_after(calls))
        if isinstance(outcome, Applied):
            break
        assert isinstance(outcome, RetrySafe)
        assert outcome.error.code is Code.CANCELLED
        assert isinstance(await go(project), Applied | UpToDate)
        assert await project.shown() == wanted, calls
    else:
        pytest.fail("never ran to the end")
    assert calls > 8


async def test_less_than_the_open_plan_gives_it_up_where_nothing_is_half_done(tmp_path: Path) -> None:
    failing = "CREATE UNIQUE INDEX one_name ON items (name);"
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.sql("INSERT INTO items (name) VALUES ('same'), ('same')")
    project.write("0002_more", "CREATE TABLE more (n);")
    project.write("0003_unique", failing)
    assert isinstance(await project.apply(), RetrySafe)
    assert await project.apply("0002_more") == UpToDate()
    state = await project.state()
    assert state.plan is None
    assert list(state.active) == ["shop/0001_items", "shop/0002_more"]
    rolled_back = await project.roll_back(steps=1)
    assert isinstance(rolled_back, Failed)
    assert rolled_back.error.code is Code.IRREVERSIBLE


async def test_an_open_plan_keeps_the_other_direction_out(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.sql("INSERT INTO items (name) VALUES ('same'), ('same')")
    project.write("0002_unique", "CREATE UNIQUE INDEX one_name ON items (name);")
    assert isinstance(await project.apply(), RetrySafe)
    outcome = await project.roll_back(steps=1)
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.PLAN_ALREADY_OPEN


# --- copies -----------------------------------------------------------------------------------------------------------

MARK = "CREATE TABLE marks (n INTEGER);"
TWO_MARKS = """
INSERT INTO marks VALUES (1);
-- journal: assert there is a second mark
SELECT count(*) > 1 FROM marks;
-- journal: schema
INSERT INTO marks VALUES (3);
"""


async def test_a_journal_that_was_replaced_by_an_older_copy_runs_nothing_twice(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_marks": MARK})
    await applied(project)
    older = project.journal.read_bytes()
    project.write("0002_mark", "INSERT INTO marks VALUES (1);")
    await applied(project)
    project.journal.write_bytes(older)
    for _ in range(4):  # each run takes a greater fence; that it gets past the target's changes nothing
        outcome = await project.apply()
        assert isinstance(outcome, Failed)
        assert outcome.error.code is Code.HISTORY_LOST
        assert (await project.state()).plan is None
    assert project.sql("SELECT * FROM marks") == [(1,)]


async def test_a_target_that_was_replaced_by_an_older_copy_is_noticed_and_left_alone(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_marks": MARK})
    await applied(project)
    older = project.target.read_bytes()
    project.write("0002_marks", TWO_MARKS)
    assert isinstance(await project.apply(), RetrySafe)
    project.target.write_bytes(older)
    for _ in range(2):
        outcome = await project.apply()
        assert isinstance(outcome, Failed)
        assert outcome.error.code is Code.TARGET_OLDER
    assert project.target.read_bytes() == older


async def test_another_database_of_the_same_schema_is_not_taken_for_the_target(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_marks": MARK})
    await applied(project)
    project.target.unlink()
    project.sql(MARK)
    project.write("0002_mark", "INSERT INTO marks VALUES (1);")
    outcome = await project.apply()
    assert isinstance(outcome, Failed)
    assert outcome.error.code is Code.TARGET_OLDER
    assert project.sql("SELECT * FROM marks") == []


# --- SQLite's own traps -----------------------------------------------------------------------------------------------

FAMILY = """
CREATE TABLE parents (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER NOT NULL REFERENCES parents (id) ON DELETE CASCADE);
"""
REBUILD = """
CREATE TABLE parents_new (id INTEGER PRIMARY KEY, name TEXT NOT NULL DEFAULT 'none');
INSERT INTO parents_new SELECT id, coalesce(name, 'none') FROM parents{where};
DROP TABLE parents;
ALTER TABLE parents_new RENAME TO parents;
"""


async def test_a_table_that_others_reference_can_be_rebuilt_and_keeps_rows_and_references(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_family": FAMILY})
    await applied(project)
    project.sql("INSERT INTO parents VALUES (1, NULL), (2, 'two')")
    project.sql("INSERT INTO children VALUES (10, 1), (20, 2)")
    project.write("0002_rebuild", REBUILD.format(where=""))
    await applied(project)
    assert project.sql("SELECT * FROM parents") == [(1, "none"), (2, "two")]
    assert project.sql("SELECT * FROM children") == [(10, 1), (20, 2)]
    assert project.sql("PRAGMA foreign_key_list(children)")[0][2] == "parents"


async def test_a_rebuild_that_loses_referenced_rows_is_refused_and_leaves_everything(tmp_path: Path) -> None:
    project = Project.make(tmp_path / "p", {"0001_family": FAMILY})
    await applied(project)
    project.sql("INSERT INTO parents VALUES (1, NULL), (2, 'two')")
    project.sql("INSERT INTO children VALUES (10, 1), (20, 2)")
    before = project.content()
    project.write("0002_rebuild", REBUILD.format(where=" WHERE id > 1"))
    outcome = await project.apply()
    assert isinstance(outcome, RetrySafe)
    assert outcome.error.code is Code.REFERENCES_BROKEN
    assert "children" in outcome.error.message
    assert project.content() == before
    project.write("0002_rebuild", REBUILD.format(where=""))
    await applied(project)


async def test_a_step_outside_of_transactions_is_executed_and_recorded(tmp_path: Path) -> None:
    project = Project.make(
        tmp_path / "p",
        {"0001_items": ITEMS, "0002_wal": "-- journal: schema transaction=off\nPRAGMA journal_mode = WAL;\nVACUUM;"},
    )
    await applied(project)
    assert project.sql("PRAGMA journal_mode") == [("wal",)]


async def test_an_outside_step_whose_end_is_not_known_is_left_to_an_operator(tmp_path: Path) -> None:
    outside = "-- journal: schema transaction=off\nCREATE TABLE a (n);\nCREATE UNIQUE INDEX u ON items (name);"
    project = Project.make(tmp_path / "p", {"0001_items": ITEMS})
    await applied(project)
    project.sql("INSERT INTO items (name) VALUES ('same'), ('same')")
    project.write("0002_outside", outside)
    outcome = await project.apply()
    assert isinstance(outcome, RequiresExplicitRecovery)
    assert "0002_outside.sql:3" in outcome.error.message
    state = await project.state()
    assert state.plan is not None
    assert [unit.kind for unit in state.plan.units.values()] == [GroupEventKind.COMMIT_OUTCOME_UNKNOWN]
    assert isinstance(await project.apply(), RequiresExplicitRecovery)
    project.sql("DROP TABLE a")
    project.sql("UPDATE items SET name = name || id")
    await applied(project)  # the schema before it proves that nothing of it is there


@pytest.mark.parametrize(
    "table",
    ["CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER);", "CREATE TABLE t (id INTEGER NOT NULL UNIQUE, n INTEGER);"],
)
@pytest.mark.parametrize("key", ["id", "rowid"])
async def test_a_backfill_that_changes_its_own_key_is_refused(tmp_path: Path, table: str, key: str) -> None:
    backfill = f"""
-- journal: backfill table=t key={key} batch=2
UPDATE t SET {key} = {key} + 155, n = n + 1 WHERE {key} > :after AND {key} <= :upto;
"""
    project = Project.make(tmp_path / "p", {"0001_t": table, "0002_move": backfill})
    error = error_of(await project.apply())
    assert (error.code, error.details["line"]) == (Code.STATEMENT_REFUSED, 3)
    assert (await project.state()).plan is None


@pytest.mark.parametrize("value", [None, ""])
async def test_rows_that_a_backfill_could_not_reach_are_found_before_any_effect(
    tmp_path: Path, value: str | None
) -> None:
    table = "CREATE TABLE t (name TEXT UNIQUE, n INTEGER);"
    project = Project.make(tmp_path / "p", {"0001_t": table})
    await applied(project)
    project.sql("INSERT INTO t VALUES (?, 0)", value)
    project.write(
        "0002_fill",
        "CREATE TABLE later (n);\n-- journal: backfill table=t key=name\n"
        "UPDATE t SET n = n + 1 WHERE name > :after AND name <= :upto;",
    )
    error = error_of(await project.apply())
    assert (error.code, error.details["line"]) == (Code.BACKFILL_KEY, 2)
    assert (await project.state()).plan is None
    assert "later" not in project.content()
