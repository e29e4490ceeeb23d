"""`journal export` and `journal import` as operators use them: a scope goes to another log, and back, and is never lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from tests.acceptance.commands import DEADLINE, environment
from tests.acceptance.test_operate import ITEMS, NAMES, ROOT, Project, until
from tests.factories import SCOPE
from tests.integration.scripts.session import History, check_told, read_history
from tests.integration.test_processes import line_of, process
from tests.services import KafkaService, RedisService

SAID = ("--destination", "the other log", "--reason", "we grow")
TTL = timedelta(seconds=1)


@dataclass
class Carrying:
    """A project whose scope lives in journal.db, and another log, with the options that name it."""

    project: Project
    other: tuple[str, ...]

    @property
    def file(self) -> Path:
        return self.project.folder / "scope.archive"

    def place(self, *where: str) -> str:
        return self.project.quick.json("import", "--prepare", "--scope", "main", *where)["place"]

    def carry(self, source: tuple[str, ...], target: tuple[str, ...]) -> dict[str, Any]:
        """The three steps that it takes."""
        place = self.place(*target)
        self.project.quick("export", str(self.file), "--move", "--place", place, *SAID, *source)
        return self.project.quick.json("import", "--archive", str(self.file), *target)


@pytest.fixture
def embedded(tmp_path: Path) -> Carrying:
    project = Project(tmp_path, m0001_items=ITEMS)
    project.quick("apply")
    return Carrying(project, ("--log", "sqlite:///other.db"))


@pytest.fixture(params=["sqlite", "cluster"])
def carrying(request: pytest.FixtureRequest, embedded: Carrying, fresh_prefix: str) -> Carrying:
    if request.param == "cluster":
        kafka: KafkaService = request.getfixturevalue("kafka")
        redis: RedisService = request.getfixturevalue("redis_server")
        log = f"kafka://{','.join(kafka.servers)}?prefix={fresh_prefix}&replication={kafka.replication}"
        embedded.other = ("--log", log, "--leases", f"{redis.url}?prefix={fresh_prefix}")
    return embedded


def same(carrying: Carrying, *where: str) -> dict[str, Any]:
    """What is to stay the same wherever the scope lives."""
    status = carrying.project.quick.json("status", *where)
    return {name: status[name] for name in ("scope", "incarnation", "ledger", "plan", "pending")}


# --- there and back ---------------------------------------------------------------------------------------------------


def test_a_scope_is_carried_to_another_log_goes_on_there_and_comes_back(carrying: Carrying) -> None:
    project, other = carrying.project, carrying.other
    before = same(carrying)

    arrived = carrying.carry((), other)

    assert (arrived["outcome"], arrived["lives_here"], arrived["found"]) == ("arrived", True, 0)
    assert same(carrying, *other) == before
    project.write("0002_names", NAMES)
    moved = project.quick("apply", code=4).stderr
    assert "was moved to the other log" in moved
    assert "journal_scope_moved" in moved
    assert project.quick.json("apply", *other)["migrations"] == ["main/0002_names"]
    assert project.number("SELECT count(*) FROM names") == 0

    returned = carrying.carry(other, ())

    assert returned["found"] == arrived["written"]
    assert project.quick.json("apply")["outcome"] == "up_to_date"
    assert "journal_scope_moved" in project.quick("apply", *other, code=4).stderr
    assert project.quick.json("rollback", "--steps", "1")["migrations"] == ["main/0002_names"]
    for where in ((), other):
        verified = project.quick.json("verify", *where)
        assert (verified["ok"], verified["void"]) == (True, {})


def test_each_step_can_be_run_again(carrying: Carrying) -> None:
    project, other, file = carrying.project, carrying.other, str(carrying.file)
    place, again = (carrying.place(*other) for _ in range(2))
    assert place == again
    move = ("export", file, "--move", "--place", place, *SAID)
    assert [project.quick.json(*move)["outcome"] for _ in range(2)] == ["moved", "moved_before"]
    first = carrying.file.read_bytes()
    assert project.quick.json("export", file)["outcome"] == "moved_before"
    assert carrying.file.read_bytes() == first
    written = [project.quick.json("import", "--archive", file, *other)["written"] for _ in range(2)]
    assert written[0] > 0
    assert written[1] == 0


def test_status_and_history_show_where_the_scope_is(embedded: Carrying) -> None:
    quick, other = embedded.project.quick, embedded.other
    embedded.carry((), other)
    gone, here = quick.json("status"), quick.json("status", *other)
    assert (gone["lives_here"], here["lives_here"], here["moved"]) == (False, True, None)
    assert {name: gone["moved"][name] for name in ("destination", "reason")} == {
        "destination": "the other log",
        "reason": "we grow",
    }
    assert "lives     elsewhere: moved to the other log at" in quick("status").stdout
    types = [row["type"] for row in quick.lines("history", *other)]
    assert types[0] == "ScopeAwaited"
    assert types[-2:] == ["ScopeMoved", "ScopeArrived"]
    for command in ("plan", "apply", "rollback", "resolve"):
        assert "journal_scope_moved" in quick(command, code=4).stderr


def test_a_move_is_refused_to_a_place_that_the_command_cannot_read(embedded: Carrying) -> None:
    embedded.project.quick("export", "x", "--move", "--place", "nowhere", *SAID, code=2)
    assert embedded.project.quick.json("status")["lives_here"]
    assert not (embedded.project.folder / "x").exists()


# --- while the last writer runs ---------------------------------------------------------------------------------------


def test_a_move_waits_for_the_lease_and_what_an_overtaken_writer_still_writes_is_void(
    tmp_path: Path, embedded: Carrying
) -> None:
    quick, file = embedded.project.quick, tmp_path / "busy.archive"
    log, other = ("--log", "sqlite:///busy.db", "--scope", SCOPE), ("--log", "sqlite:///busy-2.db", "--scope", SCOPE)
    place = quick.json("import", "--prepare", *other)["place"]
    move = ("export", str(file), "--move", "--place", place, *SAID, *log)
    with process("load", tmp_path / "busy.db", "last-writer", TTL) as child:
        assert line_of(child) == "leased"
        told = [line_of(child) for _ in range(50)]
        held = quick(*move, "--lock-timeout", "0", code=3).stderr
        assert "last-writer" in held
        assert not file.exists()
        copied = quick.json("export", str(file), *log)
        assert (copied["outcome"], copied["counting"] >= 50) == ("copied", True)
        told += [line_of(child) for _ in range(20)]

        stop_between_commits(child, tmp_path / "busy.db")
        assert quick.json(*move)["outcome"] == "moved"
        child.send_signal(signal.SIGCONT)
        until(lambda: child.poll() is not None)
        assert child.stdout is not None
        told += [line.strip() for line in child.stdout if line.endswith("\n")]
    assert quick.json("import", "--archive", str(file), *other)["lives_here"]

    for path in ("busy.db", "busy-2.db"):
        check_told(asyncio.run(history_of(tmp_path / path)), told)
    assert quick.json("verify", *log)["ok"]
    verified = quick.json("verify", *other)
    assert (verified["ok"], verified["void"]) == (True, {})


def stop_between_commits(child: subprocess.Popen[str], path: Path) -> None:
    """Stop a writer where it holds no lock of the file, which would keep everybody else out, the mover too."""

    def is_stopped_outside() -> bool:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
                connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            child.send_signal(signal.SIGCONT)
            return False
        return True

    until(is_stopped_outside)


async def history_of(path: Path) -> History:
    async with Journal(SQLiteLog(path), SQLiteLeases(path)) as journal:
        return await read_history(journal)


# --- killed -----------------------------------------------------------------------------------------------------------


def test_an_import_that_is_killed_anywhere_is_finished_by_running_it_again(embedded: Carrying) -> None:
    project, folder = embedded.project, embedded.project.folder
    place = embedded.place("--log", "sqlite:///prepared.db")
    project.quick("export", str(embedded.file), "--move", "--place", place, *SAID)
    script = [sys.executable, "-m", "tests.integration.scripts.carry_points", str(folder)]
    points = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    assert int(points) > 5
    states = set()
    for at in range(int(points)):
        for side in ("before", "after"):
            log = ("--log", f"sqlite:///{at}-{side}.db")
            lived = project.quick("apply", *log, code=0 if is_lived_in(project, log) else 4)
            states.add(lived.returncode)
            assert project.quick.json("import", "--archive", str(embedded.file), *log)["lives_here"]
            assert project.quick.json("apply", *log)["outcome"] == "up_to_date"
            assert project.quick.json("verify", *log)["ok"]
    assert states == {0, 4}, "it was killed before and behind the arrival"


def is_lived_in(project: Project, log: tuple[str, ...]) -> bool:
    result = project.quick("history", "--json", *log).stdout.splitlines()
    return json.loads(result[-1])["type"] == "ScopeArrived"


# --- archives ---------------------------------------------------------------------------------------------------------


def test_an_archive_goes_through_a_pipe(embedded: Carrying) -> None:
    folder, env = embedded.project.folder, environment()
    line = f"journal export - | journal import --archive - --copy {' '.join(embedded.other)}"
    done = subprocess.run(
        line, shell=True, check=True, cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE
    )
    assert "a copy to be read" in done.stdout
    assert "exported scope main" in done.stderr
    assert same(embedded, *embedded.other) == same(embedded)
    assert "journal_scope_awaited" in embedded.project.quick("apply", *embedded.other, code=4).stderr


@pytest.fixture
def moved(embedded: Carrying) -> Iterator[Carrying]:
    """Moved, and about to be imported."""
    place = embedded.place(*embedded.other)
    embedded.project.quick("export", str(embedded.file), "--move", "--place", place, *SAID)
    before = len(embedded.project.quick.lines("history", *embedded.other))
    yield embedded
    assert len(embedded.project.quick.lines("history", *embedded.other)) == before, "nothing was written"


def test_an_altered_archive_is_refused_by_file_and_line(moved: Carrying) -> None:
    lines = moved.file.read_bytes().splitlines(keepends=True)
    swapped = [*lines[:3], lines[4], lines[3], *lines[5:]]
    flipped = [*lines[:4], lines[4].replace(b"A", b"B", 1), *lines[5:]]
    for content, line in ((lines[:-1], len(lines)), (lines[:4], 5), (swapped, 4), (flipped, 5)):
        moved.file.write_bytes(b"".join(content))
        error = moved.project.quick("import", "--archive", "scope.archive", *moved.other, code=6).stderr
        assert f"scope.archive, line {line}" in error or f"scope.archive, line {line + 1}" in error


def test_an_archive_is_refused_where_it_was_not_moved_to(moved: Carrying) -> None:
    third = ("--log", "sqlite:///third.db")
    moved.place(*third)
    error = moved.project.quick("import", "--archive", str(moved.file), *third, code=6).stderr
    assert "is not that place" in error
    assert "--restore" in error


def test_an_archive_that_is_none_is_refused(moved: Carrying) -> None:
    error = moved.project.quick("import", "--archive", "journal.toml", *moved.other, code=6).stderr
    assert "journal.toml, line 1" in error
    assert "cannot be read" in moved.project.quick("import", "--archive", "gone", *moved.other, code=1).stderr


def test_a_file_that_is_no_archive_is_not_replaced(embedded: Carrying) -> None:
    quick, toml = embedded.project.quick, embedded.project.folder / "journal.toml"
    before = toml.read_bytes()
    assert "is no archive" in quick("export", "journal.toml", code=6).stderr
    assert toml.read_bytes() == before
    assert "cannot be written" in quick("export", "no/such/folder", code=1).stderr
    names = {path.name for path in embedded.project.folder.iterdir()}
    assert not any(name.startswith((".journal.toml.", ".folder.")) for name in names)


def test_with_a_key_an_archive_needs_the_key(tmp_path: Path) -> None:
    env = {"JOURNAL_KEY": "ab" * 32}
    project = Project(tmp_path, m0001_items=ITEMS)
    quick, other = project.quick, ("--log", "sqlite:///other.db")
    quick("apply", env=env)
    place = quick.json("import", "--prepare", "--scope", "main", *other, env=env)["place"]
    quick("export", "a", "--move", "--place", place, *SAID, env=env)
    assert "journal_key_required" in quick("import", "--archive", "a", *other, code=6).stderr
    wrong = {"JOURNAL_KEY": "cd" * 32}
    assert "a, line 2" in quick("import", "--archive", "a", *other, env=wrong, code=6).stderr
    assert quick.json("import", "--archive", "a", *other, env=env)["lives_here"]
    assert quick.json("verify", *other, env=env)["keyed"]


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_a_scope_whose_new_log_is_lost_is_taken_back_by_an_operator(moved: Carrying) -> None:
    quick = moved.project.quick
    quick("import", "--restore", code=2)
    assert quick.json("import", "--restore", "--reason", "the cluster burnt down")["lives_here"]
    assert quick.json("apply")["outcome"] == "up_to_date"
    assert "the cluster burnt down" in quick("history").stdout


def test_a_scope_whose_log_is_lost_is_restored_from_a_copy(embedded: Carrying) -> None:
    quick, before = embedded.project.quick, same(embedded)
    quick("export", str(embedded.file))
    (embedded.project.folder / "journal.db").unlink()
    restored = quick.json("import", "--archive", str(embedded.file), "--restore", "--reason", "the disk is gone")
    assert restored["lives_here"]
    assert same(embedded) == before


def test_help_tells_the_three_steps(embedded: Carrying) -> None:
    quick = embedded.project.quick
    assert " export " in quick("--help").stdout
    for command, words in (
        ("import", ("--prepare", "--archive FILE", "--restore")),
        ("export", ("--move", "--place HEX")),
    ):
        text = quick(command, "--help").stdout
        assert [word for word in (*words, "With --json", "--lock-timeout SECONDS") if word not in text] == []


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["import", "--archive", "a", "--prepare"], "--prepare stands alone"),
        (["import", "--archive", "a", "--to", "1"], "--to: only for adopting a database"),
        (["import", "--archive", "a", "--ttl", "1"], "--ttl: only for adopting a database"),
        (["import", "--prepare", "--database", "sqlite:///x"], "--database: only for adopting a database"),
        (["import", "--archive", "a", "--reason", "x"], "--reason and --operator go with --restore"),
        (["import", "--copy"], "--copy goes with --archive"),
        (["import", "--archive", "a", "--copy", "--restore"], "--copy goes with --archive"),
        (["import"], "say why with --reason"),
        (["export", "a", "--place", "00" * 16], "--place: only with --move"),
        (["export", "a", "--lock-timeout", "1"], "--lock-timeout: only with --move"),
        (["export", "a", "--move"], "--move needs --place and --destination"),
        (["export", "a", "--move", "--place", "00" * 16, "--destination", "x"], "say why with --reason"),
        (["export", "-", "--json"], "leave --json out"),
        (["export"], "Missing argument 'FILE'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(embedded: Carrying, arguments: list[str], problem: str) -> None:
    before = embedded.project.snapshot()
    assert problem in embedded.project.quick(*arguments, code=2).stderr
    assert embedded.project.snapshot() == before


def test_a_scope_that_is_not_there_cannot_be_exported(embedded: Carrying) -> None:
    for move in ([], ["--move", "--place", "00" * 16, *SAID]):
        error = embedded.project.quick("export", "a", "--scope", "nothing", *move, code=1).stderr
        assert "journal_unknown_scope" in error
    assert not (embedded.project.folder / "a").exists()
