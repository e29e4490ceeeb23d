"""The examples: services that publish their own migrations, one that applies a folder, and the demo; killed and resumed."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.acceptance.commands import DEADLINE, Journal, environment

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
SERVICE: Final = EXAMPLES / "orders_service.py"
STOPS: Final = ("plan", "before_commit", "commit", "committed", "applied")
APPLIED: Final = ["orders/0001_orders", "orders/0002_total_in_cents", "orders/0003_customer_index"]
# Long enough for a run up to its stop on a busy machine, short enough to be waited for.
SHORT_TTL: Final = "1.5"


class Service:
    """Runs the example in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def arguments(self, command: tuple[str, ...], holder: str, ttl: str) -> list[str]:
        return [sys.executable, str(SERVICE), *command, "--holder", holder, "--ttl", ttl]

    def run(self, *command: str, holder: str = "pod-2", code: int = 0) -> str:
        result = subprocess.run(
            self.arguments(command, holder, "30"),
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def stop(self, *command: str, after: str, holder: str = "pod-1") -> subprocess.Popen[str]:
        """Start it and wait until it stands still at a point."""
        process = subprocess.Popen(
            self.arguments(command, holder, SHORT_TTL),
            cwd=self.folder,
            env=environment({"ORDERS_STOP_AFTER": after}),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if line == f"stopped after {after}\n":
                return process
        raise AssertionError(f"it ended before {after}: {seen}")

    def kill(self, *command: str, after: str) -> None:
        process = self.stop(*command, after=after)
        process.kill()
        process.communicate(timeout=DEADLINE)
        assert process.returncode == -signal.SIGKILL

    def schema(self) -> list[tuple[str, str]]:
        database = sqlite3.connect(self.folder / "orders.db")
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
        database.close()
        return rows


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """The example in an empty folder."""
    return Service(tmp_path)


Schema: TypeAlias = list[tuple[str, str]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Schema]:
    """What the database is like after runs that nobody disturbed: all applied, then two rolled back."""
    service = Service(tmp_path_factory.mktemp("undisturbed"))
    service.run("migrate")
    applied = service.schema()
    service.run("rollback", "2")
    return {"migrate": applied, "rollback": service.schema()}


@pytest.mark.parametrize("point", STOPS)
def test_a_migration_killed_anywhere_is_finished_by_another_holder(
    service: Service, journal: Journal, undisturbed: dict[str, Schema], point: str
) -> None:
    service.kill("migrate", after=point)
    interrupted = journal.json("status")
    assert interrupted["plan"] is not None
    assert interrupted["lease"]["holder"] == "pod-1"

    service.run("migrate")
    status, verified = journal.json("status"), journal.json("verify")
    assert [row["migration"] for row in status["ledger"]] == APPLIED
    assert status["plan"] is None
    assert status["lease"] is None
    assert verified["ok"] is True
    assert service.schema() == undisturbed["migrate"]
    holders = [row["holder"] for row in journal.lines("history") if row["type"] == "LeaseAcquired"]
    assert holders == ["pod-1", "pod-2"]


@pytest.mark.parametrize("point", STOPS)
def test_a_rollback_killed_anywhere_is_finished_by_another_holder(
    service: Service, journal: Journal, undisturbed: dict[str, Schema], point: str
) -> None:
    service.run("migrate")
    service.kill("rollback", "2", after=point)
    assert journal.json("status")["plan"]["direction"] == "reverse"

    service.run("rollback", "0")  # nothing more than finishing what is open
    status = journal.json("status")
    assert [row["migration"] for row in status["ledger"]] == APPLIED[:1]
    assert status["plan"] is None
    assert journal.json("verify")["ok"] is True
    assert service.schema() == undisturbed["rollback"]


def test_what_was_committed_and_not_recorded_is_repaired_not_repeated(service: Service, journal: Journal) -> None:
    service.kill("migrate", after="commit")
    assert "before_commit; from what the database shows: repair_checkpoint" in service.run("migrate")
    kinds = [row["kind"] for row in journal.lines("history") if row["migration"] == APPLIED[0]]
    assert kinds == ["before_commit", "committed", None]


def test_what_was_recorded_and_not_committed_is_executed_again_under_a_greater_fence(
    service: Service, journal: Journal
) -> None:
    service.kill("migrate", after="before_commit")
    assert "before_commit; from what the database shows: execute_normally" in service.run("migrate")
    rows = [row for row in journal.lines("history") if row["migration"] == APPLIED[0]]
    assert [(row["kind"], row["fence"]) for row in rows] == [
        ("before_commit", 1),
        ("before_commit", 2),
        ("committed", 2),
        (None, 2),
    ]


def test_a_retired_migration_can_be_applied_again(service: Service, journal: Journal) -> None:
    for command in (("migrate",), ("rollback", "3"), ("migrate",)):
        service.run(*command)
    assert [row["migration"] for row in journal.json("status")["ledger"]] == APPLIED
    assert "nothing left to do" in service.run("migrate")


def test_a_database_that_somebody_else_changed_is_refused(service: Service, journal: Journal) -> None:
    service.run("migrate")
    database = sqlite3.connect(service.folder / "orders.db")
    database.execute("CREATE TABLE surprise (x)")
    database.close()
    assert "[migration_execution_stale_source_state]" in service.run("rollback", "1", code=1)
    assert journal.json("status")["plan"] is None


# --- the smaller examples ---------------------------------------------------------------------------------------------


def python(folder: Path, *arguments: str | Path, code: int = 0, env: dict[str, str] | None = None) -> list[str]:
    """The lines that a program prints."""
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout.splitlines()


def test_the_small_service_finishes_what_a_killed_one_left_open(tmp_path: Path, journal: Journal) -> None:
    text, commit = (EXAMPLES / "small_service.py").read_text("utf-8"), 'database.execute("COMMIT")\n'
    assert text.count(commit) == 1
    dying = tmp_path / "dying.py"
    dying.write_text(text.replace(commit, f"{commit}    __import__('os')._exit(9)\n"))
    assert python(tmp_path, dying, code=9) == []
    assert journal.json("status")["plan"] is not None
    # With a lease store that knows nothing of the dead holder, so that nobody waits for its 30 seconds.
    elsewhere = {"JOURNAL_LEASES": "sqlite:///leases.db"}
    for _ in range(2):
        assert python(tmp_path, EXAMPLES / "small_service.py", env=elsewhere) == ["['4 items/0001_items']"]
    kinds = [row["kind"] for row in journal.lines("history") if row["migration"] == "items/0001_items"]
    assert kinds == ["before_commit", "committed", None]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A copy of the example of migration files."""
    return shutil.copytree(EXAMPLES / "shop", tmp_path / "shop", ignore=shutil.ignore_patterns("*.db*"))


def test_a_service_that_starts_finishes_what_a_killed_one_left_open(shop: Path) -> None:
    killed = [EXAMPLES / "killed_runner.py", "2", "--ttl", SHORT_TTL]
    assert python(shop, *killed, code=-signal.SIGKILL) == ["shop/0001_orders begins", "shop/0002_total_in_cents begins"]
    started = EXAMPLES / "migrate_at_start.py"
    assert python(shop, started) == ["applied shop/0002_total_in_cents shop/0003_orders_by_customer"]
    assert python(shop, started) == ["up to date"]
    assert Journal(shop).json("verify", "--migrations")["migrations"]["agrees"] is True


def test_the_example_of_migration_files_can_be_taken_back_whole(shop: Path) -> None:
    command = Journal(shop)
    command("apply")
    assert command.json("rollback", "--steps", "3")["outcome"] == "applied"
    assert command.json("status")["ledger"] == []


def test_the_demo_ends_in_the_right_state() -> None:
    lines = python(EXAMPLES, EXAMPLES / "demo.py")
    assert lines.count("Killed") == 2
    assert "  database  its bookkeeping shows that it committed" in lines
    assert any(line.endswith("goes on behind its last batch") for line in lines)
    assert [line for line in lines if line.startswith("applied shop/")] == [
        "applied shop/0002_total_in_cents",
        "applied shop/0003_orders_by_customer",
    ]
    assert "ledger, files and live schema agree" in lines
    assert lines[-1] == "# Each statement took effect exactly once."
