"""The operators' commands as their users meet them: processes that apply, stop, wait, recover and decide."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, closing, contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from journal.cli.invocation import run
from journal.identities import HolderId, LeaseId, Scope
from journal.leases.sqlite import SQLiteLeases
from tests.acceptance.commands import BIN, DEADLINE, Journal, environment

MAIN = Scope("main")
ROOT = Path(__file__).parents[2]
ESCAPE = "\x1b"
COMMANDS = ("new", "plan", "apply", "rollback", "resolve", "abandon", "import")
WRITING = ("apply", "rollback", "resolve", "abandon", "import")
STOPPING = "journal: {}: stopping at the next safe boundary; again to stop at once\n"
RUN_KEYS = [
    "outcome", "scope", "direction", "migrations", "position", "error", "recovered", "waited_for", "done_by", "seconds",
]  # fmt: skip

ITEMS = """
CREATE TABLE items (id INTEGER PRIMARY KEY, price REAL NOT NULL, touched INTEGER NOT NULL DEFAULT 0);
INSERT INTO items (id, price) WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
  SELECT i, i * 1.5 FROM n;
-- journal: reverse
DROP TABLE items;
"""
CENTS = """
-- journal: assert no price is negative
SELECT NOT EXISTS (SELECT 1 FROM items WHERE price < 0);
-- journal: schema
ALTER TABLE items ADD COLUMN cents INTEGER;
-- journal: reverse
ALTER TABLE items DROP COLUMN cents;
-- journal: backfill table=items key=id batch=500
UPDATE items SET cents = round(price * 100), touched = touched + 1 WHERE id > :after AND id <= :upto;
-- journal: verify
SELECT NOT EXISTS (SELECT 1 FROM items WHERE id <= :upto AND cents IS NULL);
-- journal: reverse
UPDATE items SET cents = NULL WHERE id > :after AND id <= :upto;
"""
NAMES = """
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT);
-- journal: reverse
DROP TABLE names;
"""


class Inside(Journal):
    """The command without a process of its own: for what leads to the run that a test is about, and looks behind it."""

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.folder), variables(environment(env)), redirect_stdout(out), redirect_stderr(err):
            ended = run(arguments)
        result = subprocess.CompletedProcess(list(arguments), ended, out.getvalue(), err.getvalue())
        assert ended == code, result
        return result


@contextmanager
def variables(environment: Mapping[str, str]) -> Iterator[None]:
    """These environment variables and no others."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Project:
    """A folder with migrations and settings, the command in it, and its target."""

    def __init__(self, folder: Path, **migrations: str) -> None:
        self.journal, self.quick = Journal(folder), Inside(folder)
        self.folder = folder
        self.target = folder / "target.db"
        (folder / "journal.toml").write_text('database = "sqlite:///target.db"\n')
        (folder / "migrations").mkdir()
        for name, text in migrations.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.folder / "migrations" / f"{name.removeprefix('m')}.sql").write_text(text)

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Ask, or change, the target from outside; the rows of the last statement."""
        rows: list[tuple[Any, ...]] = []
        with closing(sqlite3.connect(self.target, isolation_level=None, timeout=20)) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    def pace(self, count: int) -> None:
        """How long a batch takes."""
        self.sql(f"UPDATE pace SET count = {count}")

    def number(self, query: str) -> int:
        """One number of the target; 0 while what is asked for is not there."""
        try:
            return self.sql(query)[0][0] if self.target.exists() else 0
        except sqlite3.OperationalError:
            return 0

    def snapshot(self) -> dict[str, tuple[str, int]]:
        """Content and time of every file; but for what SQLite leaves beside a file in WAL mode, which holds nothing."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
        files = [path for path in files if not path.name.endswith("-wal") or path.stat().st_size]
        return {path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns) for path in files}

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The command under way; it is gone at the end of the block."""
        with subprocess.Popen(
            ["journal", *arguments],
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Keep an SQLite file locked for writing."""
        with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield

    def is_free(self) -> bool:
        """Whether nobody has the lease or a lock."""
        with self.locked(self.target), self.locked(self.folder / "journal.db"):
            return self.quick.json("leases") == {"leases": []}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two migrations, the second with a backfill; nothing was run yet."""
    return Project(tmp_path, m0001_items=ITEMS, m0002_cents=CENTS)


def until(condition: Callable[[], object]) -> None:
    """Wait for what another process does."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.002)


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def finished(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    """What a process still said, and how it ended."""
    out, err = process.communicate(timeout=DEADLINE)
    assert "Traceback" not in err
    return out, err, process.returncode


def hold(path: Path, holder: str, ttl: timedelta) -> None:
    """Take the lease of scope main as a process does that then dies."""

    async def take() -> None:
        leases = SQLiteLeases(path)
        await leases.acquire(MAIN, HolderId(holder), lease_id=LeaseId.random(), ttl=ttl)
        await leases.close()

    asyncio.run(take())


def expire(path: Path) -> None:
    """Let every lease run out."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE leases SET expires_at_micros = 0")


# --- help and options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_its_options_and_needs_no_project(journal: Journal, command: str) -> None:
    text = Inside(journal.folder)(command, "--help").stdout
    wanted = ["--json", "--dir", "With --json"]
    wanted += [] if command == "new" else ["--scope", "--database URL", "--app LABEL"]
    wanted += ["--holder LABEL", "--lock-timeout SECONDS", "--ttl SECONDS"] if command in WRITING else []
    assert [option for option in wanted if option not in text] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("apply", "--lock-timeout", "nan"), "no number of seconds"),
        (("apply", "--ttl", "0"), "0.0 is not in the range"),
        (("apply", "--holder", "a b"), "lease holder 'a b' must be"),
        (("plan", "--steps", "1"), "--steps goes with --rollback"),
        (("rollback",), "say how far to roll back"),
        (("rollback", "--steps", "1", "--to", "1"), "exclude each other"),
        (("rollback", "--steps", "1"), "0 migrations are applied"),
        (("resolve", "--committed", "--aborted"), "exclude each other"),
        (("resolve", "--committed"), "say why with --reason"),
        (("abandon",), "say why with --reason"),
        (("import",), "say why with --reason"),
        (("apply", "--to", "0003_cents"), "there is no migration '0003_cents': did you mean main/0002_cents?"),
        (("plan", "--to", "other/0002_cents"), "there is no migration 'other/0002_cents'"),
        (("apply", "--database", "mysql://host/x"), "database: must be sqlite:///file or postgresql://..."),
        (("apply", "--database", "sqlite:///journal.db"), "is the journal's own file"),
    ],
)
def test_what_is_asked_wrongly_is_a_usage_error_and_makes_no_file(
    project: Project, arguments: tuple[str, ...], said: str
) -> None:
    before = project.snapshot()
    assert said in project.quick.error(*arguments, code=2)
    assert project.snapshot() == before


def test_help_names_every_command(journal: Journal) -> None:
    text = journal("--help").stdout
    assert [command for command in COMMANDS if f" {command} " not in text] == []


def test_without_a_database_the_command_says_how_to_name_one(project: Project) -> None:
    (project.folder / "journal.toml").unlink()
    assert "name the target with --database sqlite:///file" in project.journal.error("apply", code=2)
    assert project.journal.json("apply", "--database", "sqlite:///other.db")["outcome"] == "applied"
    assert (project.folder / "other.db").exists()


# --- new --------------------------------------------------------------------------------------------------------------


def test_new_makes_the_next_file_and_prints_its_path(project: Project) -> None:
    assert project.journal("new", "add_names").stdout == "migrations/0003_add_names.sql\n"
    assert project.quick.json("new", "more") == {"path": "migrations/0004_more.sql"}
    assert (project.folder / "migrations" / "0004_more.sql").exists()
    assert "journal_invalid_folder" in project.quick.error("new", "Bad Name")


# --- plan -------------------------------------------------------------------------------------------------------------


def test_plan_on_nothing_shows_what_would_run_and_makes_no_file(project: Project) -> None:
    before = project.snapshot()
    text = project.journal("plan").stdout
    assert text.startswith("scope main: 2 migrations to apply\n")
    assert "migrations/0001_items.sql:2  CREATE TABLE items" in text
    assert "migrations/0002_cents.sql:2  assert no price is negative" in text
    assert "backfill  table=items key=id batch=500" in text
    assert len(re.findall(r"group  [0-9a-f]{12} -> [0-9a-f]{12}\n", text)) == 2
    assert project.journal("apply", "--dry-run").stdout == text
    assert project.snapshot() == before


def test_plan_as_json_has_every_statement_and_whole_fingerprints(project: Project) -> None:
    document = project.journal.json("plan", "--exit-code", code=5)
    assert list(document) == [
        "scope", "direction", "open", "live", "expected", "migrations", "drift", "reverse_problems", "ignored", "error",
    ]  # fmt: skip
    assert (document["scope"], document["direction"], document["open"]) == ("main", "forward", False)
    first, second = document["migrations"]
    (create,) = first["units"]
    group, backfill = second["units"]
    assert [item["line"] for item in create["statements"]] == [2, 3]
    assert (len(create["source"]), create["target"]) == (64, group["source"])
    assert document["live"] == document["expected"] == create["source"]
    assert group["assertions"][0]["description"] == "no price is negative"
    assert (backfill["table"], backfill["key"], backfill["batch"]) == ("items", ["id"], 500)
    assert backfill["verify"]["text"].startswith("SELECT NOT EXISTS")
    assert [len(project.quick.json("plan", "--to", to)["migrations"]) for to in ("1", "main/0001_items")] == [1, 1]


def test_plan_after_a_run_changes_not_one_byte_of_database_or_journal(project: Project) -> None:
    project.quick("apply", "--to", "0001")
    before = project.snapshot()
    project.journal("plan")
    project.quick("plan", "--rollback", "--steps", "1")
    project.quick("apply", "--dry-run")
    project.journal("rollback", "--dry-run", "--to", "1")
    project.quick("resolve")
    project.journal("verify", "--migrations", code=5)
    assert project.snapshot() == before


def test_plan_of_a_rollback_shows_the_steps_last_to_first(project: Project) -> None:
    project.quick("apply")
    text = project.journal("plan", "--rollback", "--steps", "1").stdout
    assert text.startswith("scope main: 1 migration to roll back\n")
    assert text.index("UPDATE items SET cents = NULL") < text.index("ALTER TABLE items DROP COLUMN cents")
    assert project.quick("plan", "--exit-code", code=0).stdout == "scope main: up to date\n"


def test_plan_names_drift_object_by_object_and_ends_as_the_run_would(project: Project) -> None:
    project.quick("apply", "--to", "1")
    project.sql("CREATE TABLE intruder (x)")
    result = project.journal("plan", code=6)
    assert "drift: table intruder (not expected)" in result.stdout
    assert "[migration_execution_stale_source_state]" in result.stderr
    document = project.quick.json("plan", code=6)
    assert [(item["object"], item["what"]) for item in document["drift"]] == [("table intruder", "not expected")]
    assert document["error"]["code"] == "migration_execution_stale_source_state"
    assert project.quick.json("apply", code=6)["error"]["code"] == "migration_execution_stale_source_state"


def test_texts_of_files_cannot_drive_a_terminal(project: Project) -> None:
    project.write("0003_names", f"CREATE TABLE names (x TEXT DEFAULT '{ESCAPE}]0;owned\x07');\n")
    (project.folder / "migrations" / f"note{ESCAPE}[2J.txt").write_text("")
    text = project.quick("plan").stdout
    assert ESCAPE not in text
    assert r"\x1b]0;owned\x07" in text
    assert r"ignored: note\x1b[2J.txt" in text


def test_what_could_not_be_rolled_back_is_a_warning(project: Project) -> None:
    project.write("0003_wrong", "CREATE TABLE a (x);\n-- journal: reverse\nCREATE TABLE b (x);\n")
    assert "warning: this could not be rolled back" in project.quick("plan").stdout


# --- apply and rollback -----------------------------------------------------------------------------------------------


def test_apply_names_what_it_applied_and_says_when_there_is_nothing_to_do(project: Project) -> None:
    lines = project.journal("apply").stdout.splitlines()
    assert lines[:2] == ["applied main/0001_items", "applied main/0002_cents"]
    assert re.fullmatch(r"applied 2 migrations in \d+\.\d s", lines[2])
    before = project.snapshot()
    assert project.journal("apply").stdout == "up to date\n"
    again = project.journal.json("apply")
    assert list(again) == RUN_KEYS
    assert (again["outcome"], again["migrations"]) == ("up_to_date", [])
    assert project.snapshot() == before
    assert project.number("SELECT count(*) FROM items WHERE cents = price * 100 AND touched = 1") == 2000
    assert project.is_free()


def test_apply_as_json_is_one_document(project: Project) -> None:
    result = project.journal("apply", "--json", "--to", "1")
    document = json.loads(result.stdout)
    assert list(document) == RUN_KEYS
    assert result.stderr == ""
    assert (document["outcome"], document["direction"], document["scope"]) == ("applied", "forward", "main")
    assert document["migrations"] == ["main/0001_items"]
    assert (document["position"], document["error"], document["recovered"]) == (None, None, [])


def test_scope_app_and_holder_are_those_that_were_named(project: Project) -> None:
    project.quick("apply", "--scope", "shop", "--app", "shop", "--holder", "ci-7", "--to", "shop/0001_items")
    rows = project.quick.lines("history", "--scope", "shop")
    assert {row["holder"] for row in rows[1:]} == {"ci-7"}
    assert rows[-2]["migration"] == "shop/0001_items"
    assert project.quick.json("plan", "--app", "shop", "--to", "shop/0002_cents")["scope"] == "shop"


def test_rollback_takes_off_the_last_ones_and_apply_brings_them_back(project: Project) -> None:
    project.quick("apply")
    assert project.journal("rollback", "--steps", "1").stdout.splitlines()[0] == "rolled back main/0002_cents"
    assert project.journal("rollback", "--to", "0001").stdout == "nothing to roll back\n"
    document = project.quick.json("rollback", "--steps", "1")
    assert (document["outcome"], document["direction"]) == ("applied", "reverse")
    assert document["migrations"] == ["main/0001_items"]
    assert "main/0001_items is not applied" in project.quick.error("rollback", "--to", "1", code=2)
    assert project.number("SELECT count(*) FROM sqlite_master WHERE name = 'items'") == 0
    project.quick("apply")
    assert project.number("SELECT count(*) FROM items WHERE touched = 1") == 2000


def test_a_target_that_lost_its_file_is_not_made_anew(project: Project) -> None:
    project.quick("apply", "--to", "1")
    project.target.unlink()
    assert "[journal_missing_target]" in project.journal("apply", code=1).stderr
    assert "[journal_missing_target]" in project.quick("apply", "--to", "1", code=1).stderr
    assert "[journal_missing_target]" in project.quick("plan", code=1).stderr
    assert "[journal_missing_target]" in project.quick("verify", "--migrations", code=1).stderr
    assert not project.target.exists()


def test_a_failing_statement_is_named_with_its_place_and_can_be_repaired(project: Project) -> None:
    broken = "CREATE TABLE names (id INTEGER PRIMARY KEY);\nINSERT INTO items (id, price) VALUES (1, 1);\n"
    project.write("0003_names", broken)
    result = project.journal("apply", code=1)
    assert result.stdout.splitlines() == ["applied main/0001_items", "applied main/0002_cents"]
    error, done, stopped, statement, advice = result.stderr.splitlines()
    assert error.startswith("journal: migrations/0003_names.sql:2: ")
    assert error.endswith("[journal_statement_failed]")
    assert done == "  done     main/0001_items, main/0002_cents"
    assert stopped == "  stopped  at main/0003_names step 0 (migrations/0003_names.sql:1)"
    assert statement.strip() == "INSERT INTO items (id, price) VALUES (1, 1)"
    assert advice.startswith("  next     correct what is said above, then run again")
    document = project.quick.json("apply", code=1)
    assert (document["outcome"], document["error"]["details"]["line"]) == ("retry_safe", 2)
    assert document["position"]["migration"] == "main/0003_names"
    assert project.is_free()
    project.write("0003_names", NAMES)
    assert "applied main/0003_names" in project.quick("apply").stdout


def test_a_file_that_was_edited_is_refused_with_both_digests(project: Project) -> None:
    project.quick("apply", "--to", "1")
    project.write("0001_items", ITEMS.replace("2000", "7"))
    document = project.quick.json("apply", code=6)
    assert document["error"]["code"] == "journal_migration_edited"
    (entry,) = document["error"]["details"]["migrations"]
    assert entry["file"] == "migrations/0001_items.sql"
    assert len(entry["recorded"]) == len(entry["found"]) == 64
    result = project.journal("apply", code=6)
    first, second = result.stderr.splitlines()
    assert first.endswith("[journal_migration_edited]")
    assert second.startswith("  main/0001_items (migrations/0001_items.sql): recorded ")


def test_out_of_order_files_need_a_word(project: Project) -> None:
    project.write("0004_names", NAMES)
    project.quick("apply")
    project.write("0003_late", "CREATE TABLE late (x);\n")
    assert "[journal_out_of_order]" in project.quick("apply", code=1).stderr
    assert project.quick.json("apply", "--allow-out-of-order")["migrations"] == ["main/0003_late"]


# --- several runners --------------------------------------------------------------------------------------------------


def test_of_three_runners_at_once_one_applies_and_the_others_say_by_whom(project: Project) -> None:
    project.quick("apply", "--to", "1")
    names = ("one", "two", "three")
    with (
        project.started("apply", "--holder", "one") as one,
        project.started("apply", "--holder", "two") as two,
        project.started("apply", "--holder", "three") as three,
    ):
        with project.locked(project.target):
            until(lambda: project.quick.json("leases")["leases"])
            (lease,) = project.quick.json("leases")["leases"]
            runners = dict(zip(names, (one, two, three), strict=True))
            winner = runners.pop(lease["holder"])
            for waiting in runners.values():
                assert line(waiting.stderr).startswith(f"journal: waiting for {lease['holder']}, who holds scope main")
        out, _, code = finished(winner)
        assert (out.splitlines()[0], code) == ("applied main/0002_cents", 0)
        for loser in runners.values():
            out, _, code = finished(loser)
            assert (out, code) == (f"up to date: applied meanwhile by {lease['holder']}\n", 0)
    assert project.number("SELECT max(touched) FROM items") == 1


def test_a_runner_that_waited_does_what_is_left(project: Project) -> None:
    with project.started("apply", "--to", "1", "--holder", "first") as first:
        until((project.folder / "journal.db").exists)
        document = project.journal.json("apply", "--holder", "second")
        assert finished(first)[2] == 0
    assert document["migrations"][-1] == "main/0002_cents"
    assert document["waited_for"] in ([], ["first"])


@pytest.mark.parametrize("seconds", ["0", "0.3"])
def test_waiting_has_an_end_when_it_is_asked_for(project: Project, seconds: str) -> None:
    project.quick("apply", "--to", "1")
    hold(project.folder / "journal.db", "pod-1", timedelta(hours=1))
    result = project.journal("apply", "--lock-timeout", seconds, code=3)
    assert ("waiting for pod-1" in result.stderr) == (seconds != "0")
    assert "scope main is leased by pod-1" in result.stderr
    document = project.quick.json("apply", "--lock-timeout", "0", code=3)
    assert document["error"]["code"] == "migration_execution_lease_contended"
    assert document["error"]["details"]["holder"] == "pod-1"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_waiting_for_a_lease_ends_at_the_first_signal(project: Project, number: signal.Signals, code: int) -> None:
    project.quick("apply", "--to", "1")
    hold(project.folder / "journal.db", "pod-1", timedelta(hours=1))
    with project.started("apply") as process:
        assert "waiting for pod-1" in line(process.stderr)
        process.send_signal(number)
        out, err, ended = finished(process)
    assert (out, ended) == ("", code)
    assert err.splitlines()[-1].endswith("[migration_execution_cancelled]")


def test_waiting_for_a_lock_of_the_database_ends_at_the_first_signal_and_leaves_no_lease(project: Project) -> None:
    project.quick("apply", "--to", "1")
    with project.locked(project.target):
        with project.started("apply", "--json") as process:
            until(lambda: project.quick.json("leases")["leases"])
            process.send_signal(signal.SIGINT)
            out, _, code = finished(process)
        assert code == 130
        assert json.loads(out)["error"]["code"] == "migration_execution_cancelled"
        assert project.quick.json("leases") == {"leases": []}


# --- interrupts, death, recovery --------------------------------------------------------------------------------------

# A batch takes as long as `pace` says; on the shadow, where there are no rows, none is run.
PACED_ITEMS = ITEMS.replace(
    "-- journal: reverse",
    "CREATE TABLE pace (count INTEGER);\nINSERT INTO pace VALUES (1);\n-- journal: reverse\nDROP TABLE pace;",
)
PACED = """
-- journal: backfill table=items key=id batch=50
UPDATE items SET touched = touched + 1
WHERE id > :after AND id <= :upto AND (
  WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < (SELECT count FROM pace)) SELECT count(*) FROM n
) > 0;
"""


@pytest.fixture
def paced(tmp_path: Path) -> Project:
    """A project whose first migration is applied and whose second takes its time."""
    project = Project(tmp_path, m0001_items=PACED_ITEMS, m0002_touch=PACED)
    project.quick("apply", "--to", "1")
    project.pace(300_000)
    return project


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_a_backfill_between_two_batches_and_the_next_run_ends_it(
    paced: Project, number: signal.Signals, code: int
) -> None:
    with paced.started("apply", "--json") as process:
        until(lambda: paced.number("SELECT count(*) FROM items WHERE touched = 1"))
        process.send_signal(number)
        out, err, ended = finished(process)
    assert ended == code
    assert err.startswith(STOPPING.format(number.name))
    document = json.loads(out)
    assert (document["outcome"], document["error"]["code"]) == ("retry_safe", "migration_execution_cancelled")
    assert (document["position"]["unit"], document["position"]["step"]) == ("backfill", 0)
    assert 0 < paced.number("SELECT count(*) FROM items WHERE touched = 1") < 2000
    assert paced.is_free()
    assert paced.quick("status", "--exit-code", code=5).stdout.count("backfill 0") == 1
    assert "[in doubt: before_commit]" in paced.quick("plan").stdout
    paced.pace(1)
    lines = paced.quick("apply").stdout.splitlines()
    assert lines[0] == "an open plan to apply 1 migration is carried on"
    assert "main/0002_touch step 0: had not come to its end, goes on behind its last batch" in lines
    assert paced.number("SELECT count(*) FROM items WHERE touched = 1") == 2000


def test_a_second_interrupt_stops_a_statement_at_once_and_a_run_recovers(paced: Project) -> None:
    paced.pace(10**12)
    with paced.started("apply") as process:
        until(lambda: paced.number("SELECT count(*) FROM _journal_cursors"))
        process.send_signal(signal.SIGINT)
        assert line(process.stderr) == STOPPING.format("SIGINT")
        process.send_signal(signal.SIGINT)
        _, err, code = finished(process)
    assert code == 130
    assert err.startswith("journal: stopping at once\njournal: stopped at once by SIGINT")
    assert paced.is_free()
    assert paced.number("SELECT max(touched) FROM items") == 0
    paced.pace(1)
    paced.quick("apply")
    assert paced.number("SELECT count(*) FROM items WHERE touched = 1") == 2000


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.faults import Fuse, StoppingDatabase
from tests.migrating import Project

class Kill(Fuse):
    left = int(sys.argv[2])

    def behind(self, number):
        if self.calls[number] == "transaction.commit":
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)

fuse = Kill()
project = Project(Path(sys.argv[1]))
asyncio.run(project.apply(wrap=lambda log, leases, database: (log, leases, StoppingDatabase(database, fuse))))
"""


def killed_behind_commit(project: Project, number: int) -> None:
    """Apply in a process that dies between the commit of a transaction and its record."""
    run = [sys.executable, "-c", KILLED, str(project.folder), str(number)]
    assert subprocess.run(run, cwd=ROOT, check=False, timeout=DEADLINE).returncode == -signal.SIGKILL
    expire(project.folder / "journal.db")


def test_a_run_killed_between_commit_and_record_is_repaired_by_the_next(project: Project) -> None:
    killed_behind_commit(project, 1)
    shown = project.journal("resolve", "--app", "shop", code=5).stdout
    assert shown.startswith("shop/0001_items group 0 forward\n")
    assert "its bookkeeping shows that it committed" in shown
    assert "run again: it settles this by itself" in shown
    document = project.journal.json("apply", "--app", "shop")
    assert [(item["migration"], item["committed"]) for item in document["recovered"]] == [("shop/0001_items", True)]
    assert document["migrations"] == ["shop/0001_items", "shop/0002_cents"]
    assert project.number("SELECT count(*) FROM items WHERE touched = 1") == 2000


def test_a_recovered_unit_has_a_line_of_its_own(project: Project) -> None:
    killed_behind_commit(project, 1)
    lines = project.quick("apply", "--app", "shop").stdout.splitlines()
    assert lines[1] == "shop/0001_items step 0: had committed, its record was repaired"


# --- deciding ---------------------------------------------------------------------------------------------------------

# On an empty database both statements work; on this one the second fails, when the first has committed by itself.
OUTSIDE = """
-- journal: schema transaction=off
CREATE TABLE marks (x);
CREATE UNIQUE INDEX one_price ON items (touched);
-- journal: reverse
DROP INDEX one_price;
DROP TABLE marks;
"""


def test_what_cannot_be_proven_is_shown_and_decided_by_an_operator(tmp_path: Path) -> None:
    project = Project(tmp_path, m0001_items=ITEMS, m0002_outside=OUTSIDE)
    journal = project.quick
    journal("apply", code=4)
    assert project.journal.json("apply", code=4)["outcome"] == "requires_explicit_recovery"
    assert "look with `journal resolve`" in journal("plan", code=4).stderr
    document = project.journal.json("resolve", code=4)
    (doubt,) = document["in_doubt"]
    assert doubt["name"] == "main/0002_outside group 0 forward"
    assert (doubt["last"], doubt["relation"], doubt["witness"]) == ("commit_outcome_unknown", "neither", "none")
    assert doubt["holder"] is not None
    assert doubt["against_committed"] == "the live schema is not the one after it"
    assert "[migration_execution_unit_in_doubt]" in journal("abandon", "--reason", "no", code=4).stderr
    assert "[journal_attestation_contradicted]" in journal("resolve", "--committed", "--reason", "x", code=1).stderr
    assert "[journal_nothing_in_doubt]" in journal("resolve", "0001", "--aborted", "--reason", "x", code=1).stderr
    project.sql("DROP TABLE marks", "UPDATE items SET touched = id")
    assert "run again: it settles this by itself" in journal("resolve", code=5).stdout
    text = project.journal(
        "resolve", "0002_outside", "group", "0", "--aborted", "--reason", "undone by hand", "--operator", "ada"
    ).stdout
    assert "recorded: main/0002_outside group 0 forward is definitely_aborted; go on with `journal apply`" in text
    (row,) = [row for row in journal.lines("history") if row["type"] == "RecoveryAttested"]
    assert "ada" in row["summary"]
    assert journal("resolve").stdout == "nothing is in doubt\n"
    assert journal.json("apply")["migrations"] == ["main/0002_outside"]
    assert project.is_free()


def test_attesting_when_nothing_is_in_doubt_takes_no_lease(project: Project) -> None:
    project.quick("apply", "--to", "1")
    before = project.snapshot()
    assert "nothing is in doubt" in project.quick.error("resolve", "--aborted", "--reason", "x")
    assert project.journal.json("resolve") == {"scope": "main", "in_doubt": [], "attested": None}
    assert project.snapshot() == before


def test_abandon_shows_what_undoes_by_hand_what_is_half_done(project: Project) -> None:
    project.write(
        "0003_half", f"-- journal: schema\n{NAMES}-- journal: schema\nINSERT INTO items (id, price) VALUES (1, 1);\n"
    )
    project.quick("apply", code=1)
    assert "[done]" in project.quick("plan").stdout
    text = project.journal("abandon", "--reason", "wrong idea", "--operator", "ada").stdout
    assert text.splitlines()[0] == "applied and stays so: main/0001_items, main/0002_cents"
    assert "half done: main/0003_half, group 0 is done; to undo it by hand:" in text
    assert "migrations/0003_half.sql:5  DROP TABLE names" in text
    assert text.splitlines()[-1] == "the open plan was given up"
    assert "no plan is open" in project.quick.error("abandon", "--reason", "again")
    assert project.quick.json("verify", "--migrations", code=5)["migrations"]["drift"][0]["object"] == "table names"


def test_abandon_as_json_needs_neither_database_nor_files(project: Project) -> None:
    project.write(
        "0003_half", f"-- journal: schema\n{NAMES}-- journal: schema\nINSERT INTO items (id, price) VALUES (1, 1);\n"
    )
    project.quick("apply", code=1)
    (project.folder / "journal.toml").unlink()
    (project.folder / "migrations").rename(project.folder / "gone")
    document = project.journal.json("abandon", "--reason", "wrong idea")
    assert document["done"] == ["main/0001_items", "main/0002_cents"]
    assert [(item["migration"], item["undo"]) for item in document["half_done"]] == [("main/0003_half", None)]
    assert document["reason"] == "wrong idea"


# --- import -----------------------------------------------------------------------------------------------------------


def test_import_adopts_a_database_that_has_a_history_and_executes_nothing(project: Project) -> None:
    project.sql("CREATE TABLE items (id INTEGER PRIMARY KEY, price REAL NOT NULL, touched INTEGER NOT NULL DEFAULT 0)")
    result = project.journal("import", "--to", "1", "--reason", "it was there", "--operator", "ada")
    assert result.stdout == "imported main/0001_items\n"
    assert project.quick("import", "--to", "1", "--reason", "again").stdout == (
        "nothing to import: all of it is in the ledger\n"
    )
    assert project.quick.json("status")["ledger"][0]["imported"] is True
    assert project.number("SELECT count(*) FROM items") == 0
    assert project.quick.json("apply")["migrations"] == ["main/0002_cents"]


def test_import_of_what_the_database_does_not_have_names_the_objects(project: Project) -> None:
    project.sql("CREATE TABLE items (id INTEGER PRIMARY KEY)")
    document = project.quick.json("import", "--reason", "x", code=6)
    assert document["error"]["code"] == "migration_execution_stale_source_state"
    assert document["error"]["details"]["objects"] == ["table items"]
    assert project.is_free()


# --- status and verify ------------------------------------------------------------------------------------------------


def test_status_shows_pending_files_before_anything_was_run(project: Project) -> None:
    before = project.snapshot()
    assert project.journal.json("status", "--exit-code", code=5)["pending"] == ["main/0001_items", "main/0002_cents"]
    assert project.snapshot() == before
    project.quick("apply", "--to", "1")
    assert project.journal("status", "--exit-code", code=5).stdout.splitlines()[-1].split() == [
        "main/0002_cents",
        "migrations/0002_cents.sql",
    ]
    project.quick("apply")
    document = project.quick.json("status", "--exit-code")
    assert (document["pending"], document["pending_problem"], len(document["ledger"])) == ([], None, 2)


def test_status_tells_a_broken_folder_in_one_line_and_hides_nothing(project: Project) -> None:
    project.quick("apply", "--to", "1")
    project.write("0003_Wrong", "SELECT 1;")
    text = project.quick("status").stdout
    assert "main/0001_items" in text
    (told,) = [told for told in text.splitlines() if "pending migrations are not known" in told]
    assert "0003_Wrong.sql" in told


def test_verify_compares_ledger_files_and_live_schema(project: Project) -> None:
    project.quick("apply")
    assert project.quick("verify", "--migrations").stdout.endswith("ledger, files and live schema agree\n")
    project.sql("DROP TABLE items", "CREATE TABLE items (id TEXT)")
    document = project.journal.json("verify", "--migrations", code=5)
    assert document["ok"] is True
    (drift,) = document["migrations"]["drift"]
    assert (drift["object"], drift["what"]) == ("table items", "different")
    assert drift["expected"] != drift["found"]
    assert "drift: table items (different)" in project.quick("verify", "--migrations", code=5).stdout
    project.write("0001_items", NAMES)
    (project.folder / "migrations" / "0002_cents.sql").unlink()
    text = project.quick("verify", "--migrations", code=5).stdout
    assert "edited: main/0001_items (migrations/0001_items.sql): recorded " in text
    assert "missing: main/0002_cents has no file" in text


def test_verify_of_a_broken_chain_ends_as_before(project: Project) -> None:
    project.quick("apply", "--to", "1")
    with closing(sqlite3.connect(project.folder / "journal.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM events WHERE key = (SELECT min(key) + 2 FROM events)")
    document = project.quick.json("verify", "--migrations", code=6)
    assert (document["ok"], document["migrations"]) == (False, None)


# --- progress ---------------------------------------------------------------------------------------------------------


def test_on_a_terminal_bars_are_shown_and_the_lines_stay(paced: Project) -> None:
    paced.pace(100_000)
    outer, inner = os.openpty()
    variables = environment({"TERM": "xterm-256color", "COLUMNS": "160"})
    with subprocess.Popen(
        [BIN / "journal", "apply"], cwd=paced.folder, env=variables, stdout=inner, stderr=inner
    ) as process:
        os.close(inner)
        shown = b"".join(iter(lambda: read_terminal(outer), b"")).decode()
        os.close(outer)
    assert process.returncode == 0
    assert "backfill, step 0" in shown
    assert re.search(r"\d+/2000 rows", shown)
    assert "rows/s" in shown
    assert "applied main/0002_touch" in shown


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # what Linux gives when nobody has its other end any more
        return b""
