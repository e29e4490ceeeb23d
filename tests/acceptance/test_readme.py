"""The README says what is true: its examples are run, its links followed, its tables compared with the product."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from journal.cli.exits import Exit
from journal.errors import Code, UnavailableError
from journal.identities import HolderId, Scope
from journal.settings import known_keys
from tests.acceptance.commands import DEADLINE, Journal, environment
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, plan_record

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "README.md").read_text("utf-8")
LINES: Final = TEXT.splitlines()
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
# What differs from run to run.
VARYING: Final = (
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "<instant>"),
    (re.compile(r"\b\d\d:\d\d:\d\d UTC\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<hash>"),
)


@dataclass(frozen=True)
class Shown:
    """One command and the lines that the README shows below it."""

    command: str
    output: tuple[str, ...]

    @property
    def killed(self) -> bool:
        """Whether a shell would say that it was killed."""
        return self.output[-1:] == ("Killed",)


def section(title: str) -> str:
    """The text below one heading."""
    _, _, behind = TEXT.partition(f"\n## {title}\n")
    assert behind, title
    return behind.partition("\n## ")[0]


def rows(title: str) -> Iterator[list[str]]:
    """The cells of every table row below one heading, without heads and rules."""
    for table in re.findall(r"(?:^\|.*\n?)+", section(title), re.MULTILINE):
        for row in table.splitlines()[2:]:
            yield [cell.strip() for cell in row.strip("|").split("|")]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def commands_shown() -> list[Shown]:
    """Every command of the console blocks, in order."""
    shown: list[Shown] = []
    for kind, body in BLOCK.findall(TEXT):
        if kind == "console":
            for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
                command, *output = part.splitlines()
                shown.append(Shown(command, tuple(output)))
    return shown


def files_shown() -> dict[str, str]:
    """Every Python block by the name that its first line gives it."""
    files: dict[str, str] = {}
    for kind, body in BLOCK.findall(TEXT):
        if kind == "python":
            named = re.match(r"# (\w+\.py)\b", body)
            assert named is not None, "the first line of a Python block names its file"
            files[named[1]] = body
    return files


def normalised(lines: tuple[str, ...]) -> list[str]:
    text = "\n".join(lines)
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text.splitlines()


def outcome(shown: Shown, folder: Path) -> tuple[str, ...]:
    """What the command prints here; one that is shown as killed is killed once it has printed as much as is shown."""
    with subprocess.Popen(
        ["bash", "-c", shown.command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        if not shown.killed:
            return tuple(process.communicate(timeout=DEADLINE)[0].splitlines())
        seen = [process.stdout.readline().rstrip("\n") for _ in shown.output[:-1]]
        os.killpg(process.pid, signal.SIGKILL)
        seen += process.communicate(timeout=DEADLINE)[0].splitlines()
    assert process.returncode == -signal.SIGKILL
    return (*seen, "Killed")


# --- examples ---------------------------------------------------------------------------------------------------------


def test_every_example_gives_the_output_that_is_shown(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name, content in files_shown().items():
        (tmp_path / name).write_text(content)
    shown = commands_shown()
    for each in shown:
        assert normalised(outcome(each, tmp_path)) == normalised(each.output), each.command
    assert [each.killed for each in shown].count(True) == 1


def test_every_file_that_is_shown_is_run() -> None:
    run = " ".join(each.command for each in commands_shown())
    assert files_shown()
    assert all(f"python {name}" in run for name in files_shown())


def test_the_service_that_is_shown_finishes_what_a_killed_one_left_open(tmp_path: Path, journal: Journal) -> None:
    service, commit = files_shown()["shop.py"], 'database.execute("COMMIT")\n'
    assert service.count(commit) == 1
    (tmp_path / "shop.py").write_text(service)
    (tmp_path / "dying.py").write_text(service.replace(commit, f"{commit}    __import__('os')._exit(9)\n"))
    assert outcome(Shown("python dying.py; echo $?", ()), tmp_path) == ("9",)
    assert journal.json("status")["plan"] is not None
    # With a lease store that knows nothing of the dead holder, so that nobody waits for its 30 seconds.
    resumed = Shown("JOURNAL_LEASES=sqlite:///leases.db python shop.py", ())
    assert outcome(resumed, tmp_path) == ("['4 shop/0001_items']",)
    kinds = [row["kind"] for row in journal.lines("history") if row["migration"] == "shop/0001_items"]
    assert kinds == ["before_commit", "committed", None]


def test_an_example_with_its_output_comes_before_line_30_and_the_whole_has_less_than_250_lines() -> None:
    assert len(LINES) < 250
    start = LINES.index("```console") + 1
    assert LINES[start].startswith("$ ")
    assert start + 1 < 30
    assert not LINES[start + 1].startswith(("$ ", "```"))


# --- links and names --------------------------------------------------------------------------------------------------


def anchors() -> set[str]:
    headings = [line.lstrip("#").strip().lower() for line in LINES if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("link", sorted(set(LINK.findall(TEXT))))
def test_every_link_leads_to_a_file_and_every_named_test_is_in_it(link: str) -> None:
    name, _, fragment = link.partition("#")
    if not name:
        assert fragment in anchors()
        return
    path = ROOT / name
    assert path.is_relative_to(ROOT)
    assert path.is_file()
    if fragment:
        assert re.search(rf"^(async )?def {fragment}\(", path.read_text("utf-8"), re.MULTILINE)


def test_every_guarantee_is_linked_to_a_test() -> None:
    promises = list(rows("What it guarantees, and what not"))
    assert len(promises) > 10
    for promise in promises:
        assert "](tests/" in " ".join(promise), promise


def test_every_file_and_folder_of_the_layout_is_there() -> None:
    where: Path | None = None
    for name in quoted(section("Layout")):
        if name in ("journal/", "projections/", "examples/", "schemas/", "tests/"):
            where = ROOT / name
            assert where.is_dir()
        else:
            assert where is not None
            assert (where / name).exists(), name


def test_the_targets_of_the_makefile_are_the_ones_that_are_named() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    prose = BLOCK.sub("", TEXT)
    assert {words.split()[1] for words in quoted(prose) if words.startswith("make ")} == set(phony.split())


# --- the command ------------------------------------------------------------------------------------------------------


def options_of(journal: Journal, *command: str) -> set[str]:
    """The long options that `--help` lists, without help and version, which need no explanation."""
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", journal(*command, "--help").stdout, re.MULTILINE)
    return set(listed) - {"--help", "--version"}


def commands_of(journal: Journal) -> list[str]:
    _, _, listed = journal("--help").stdout.partition("\nCommands:\n")
    return re.findall(r"^  (\w+)  ", listed.partition("\n\n")[0], re.MULTILINE)


def test_the_commands_and_their_own_options_are_those_of_the_help(journal: Journal) -> None:
    described = {
        quoted(name)[0].removeprefix("journal "): {words.split()[0] for words in quoted(options)}
        for name, _, options in rows("Commands")
    }
    general = options_of(journal)
    assert described == {command: options_of(journal, command) - general for command in commands_of(journal)}


def test_the_exit_codes_are_those_of_the_help_and_of_the_command(journal: Journal) -> None:
    text = " ".join(journal("--help").stdout.split())
    in_help = re.findall(r"(\d+) [a-z]", text.partition("Exit codes: ")[2].partition(". With")[0])
    _, _, described = section("Commands").partition("Exit codes: ")
    named = [words for words in quoted(described) if words.isdigit()]
    assert sorted(set(named)) == in_help
    assert {int(code) for code in [*named, *re.findall(r"\b\d{3}\b", described)]} == set(Exit)


def test_the_settings_are_all_there_with_their_flags_and_variables(journal: Journal) -> None:
    keys, flags, variables = [], [], []
    for key, flag, variable, _ in rows("Settings"):
        keys += quoted(key)
        flags += quoted(flag)
        variables += quoted(variable)
    unused = ["app", "database"]
    assert all(f"`{key}`" in section("Settings").partition("|")[0] for key in unused)
    assert sorted(keys + unused) == sorted(known_keys())
    assert variables == [f"JOURNAL_{key.upper()}" for key in keys]
    assert set(flags) == options_of(journal) - {"--json"}
    assert set(flags) <= {f"--{key.replace('_', '-')}" for key in keys}


# --- the file ---------------------------------------------------------------------------------------------------------

LOCK: Final = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
os.kill(os.getpid(), signal.SIGSTOP)
connection.execute("ROLLBACK")
"""
BACKUP: Final = """
import sqlite3, sys
source = sqlite3.connect(sys.argv[1])
source.execute("VACUUM INTO 'vacuumed.db'")
target = sqlite3.connect("copied.db")
source.backup(target)
target.close()
source.close()
"""


@contextmanager
def locked(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stops inside a transaction on the file; it is gone at the end of the block."""
    with subprocess.Popen([sys.executable, "-c", LOCK, str(path)]) as process:
        try:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            yield process
        finally:
            process.kill()


async def test_a_process_inside_a_transaction_keeps_the_file_locked(
    journal_file: Path, open_journal: OpenJournal
) -> None:
    journal = open_journal()
    await journal.create(SCOPE)
    with locked(journal_file) as other:
        with pytest.raises(UnavailableError) as caught:
            await journal.create(Scope("another"))
        assert caught.value.code is Code.STORAGE_BUSY
        assert (await journal.state(SCOPE)).admitted == 1, "reading goes on"
        other.send_signal(signal.SIGCONT)
        assert (await journal.create(Scope("another"))).created


async def test_a_backup_by_sqlite_may_be_taken_while_the_journal_is_open(
    journal_file: Path, open_journal: OpenJournal, journal: Journal
) -> None:
    opened, manifests = open_journal(), chain_of(1)
    await opened.create(SCOPE)
    lease = await opened.acquire(SCOPE, HolderId("pod-1"), wait=timedelta(0))
    script = [sys.executable, "-c", BACKUP, str(journal_file)]
    await asyncio.to_thread(subprocess.run, script, cwd=journal.folder, check=True, timeout=DEADLINE)
    await opened.begin_plan(lease, plan_record(lease, manifests))
    head = (await opened.state(SCOPE)).head.hex()
    for name in ("vacuumed.db", "copied.db"):
        copy = await asyncio.to_thread(journal.json, "verify", "--log", f"sqlite:///{name}")
        assert (copy["ok"], copy["admitted"], copy["head"] == head) == (True, 2, False)
    assert (await asyncio.to_thread(journal.json, "verify"))["head"] == head
