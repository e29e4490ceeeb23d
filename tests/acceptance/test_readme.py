"""The README says what is true: its examples are run, its links followed, its tables compared with the product."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from journal.addresses import (
    DEFAULT_REPLICATION,
    KAFKA_PARAMETERS,
    KAFKA_TIMEOUT,
    MECHANISMS,
    REDIS_PARAMETERS,
    REDIS_TIMEOUT,
)
from journal.cli.exits import Exit
from journal.databases.sqlite import SQLiteDatabase
from journal.errors import Code, InvalidContractError, UnavailableError
from journal.identities import HolderId, Scope
from journal.leases.redis import EXAMINER_RIGHTS, RIGHTS
from journal.migrations.directives import DEFAULT_BATCH, MAX_BATCH, WORDS, read_contents
from journal.migrations.files import MAX_STEM
from journal.migrations.source import BackfillSource, SchemaSource
from journal.ports import BackfillProgram, Shadow
from journal.settings import known_keys
from tests.acceptance.commands import DEADLINE, Journal, environment
from tests.acceptance.test_cluster_command import KAFKA_RIGHTS, REDIS_RIGHTS
from tests.conftest import OpenJournal
from tests.factories import SCOPE, chain_of, plan_record
from tests.places import Embedded

if TYPE_CHECKING:
    from tests.services import KafkaService, RedisService

ROOT: Final = Path(__file__).parents[2]
TEXT: Final = (ROOT / "README.md").read_text("utf-8")
LINES: Final = TEXT.splitlines()
BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROSE: Final = BLOCK.sub("", TEXT)
LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
# What differs from run to run.
VARYING: Final = (
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "<instant>"),
    (re.compile(r"\b\d\d:\d\d:\d\d UTC\b"), "<time>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<hash>"),
    (re.compile(r" in \d+(\.\d+)? s\b"), " in <duration>"),
)


@dataclass(frozen=True)
class Shown:
    """One command and the lines that the README shows below it."""

    command: str
    output: tuple[str, ...]


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


def normalised(lines: tuple[str, ...]) -> list[str]:
    text = "\n".join(lines)
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    return text.splitlines()


@dataclass(frozen=True)
class Services:
    """The services that the README names by their usual addresses, where the tests have them."""

    shown: tuple[str, ...]
    real: tuple[str, ...]

    def real_of(self, text: str) -> str:
        return self._replaced(text, self.shown, self.real)

    def shown_of(self, text: str) -> str:
        return self._replaced(text, self.real, self.shown)

    @staticmethod
    def _replaced(text: str, these: tuple[str, ...], those: tuple[str, ...]) -> str:
        for this, that in zip(these, those, strict=True):
            text = text.replace(this, that)
        return text


@pytest.fixture
def place(embedded_place: Embedded) -> Embedded:
    """The journal of a console session is a file."""
    return embedded_place


@pytest.fixture
def services(kafka: KafkaService, redis_server: RedisService, fresh_prefix: str) -> Services:
    shown = ("localhost:9092", "redis://localhost:6379", "prefix=demo", "topic demo.")
    real = (",".join(kafka.servers), redis_server.url, f"prefix={fresh_prefix}", f"topic {fresh_prefix}.")
    return Services(shown, real)


def outcome(command: str, folder: Path) -> tuple[str, ...]:
    """What the command prints, with the word of a shell when it is killed."""
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    killed = ("Killed",) if result.returncode == -signal.SIGKILL else ()
    return (*result.stdout.splitlines(), *killed)


# --- examples ---------------------------------------------------------------------------------------------------------


def test_every_example_gives_the_output_that_is_shown(tmp_path: Path, services: Services) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("*.db*"))
    folder, shown = tmp_path, commands_shown()
    for each in shown:
        if each.command.startswith("cd "):
            folder /= each.command.removeprefix("cd ")
        else:
            printed = tuple(map(services.shown_of, outcome(services.real_of(each.command), folder)))
            assert normalised(printed) == normalised(each.output), each.command
    assert [each.output[-1:] for each in shown].count(("Killed",)) == 1


def test_the_migration_that_is_shown_is_the_one_of_the_example() -> None:
    (shown,) = (body for kind, body in BLOCK.findall(TEXT) if kind == "sql")
    (name,) = re.findall(r"\]\((examples/shop/migrations/\w+\.sql)\) does:\n\n```sql", TEXT)
    written = (ROOT / name).read_text("utf-8")
    assert shown.splitlines() == [line for line in written.splitlines() if line]


def test_nothing_is_shown_that_is_not_run() -> None:
    assert {kind for kind, _ in BLOCK.findall(TEXT)} == {"console", "sql"}


def test_an_example_with_its_output_comes_before_line_30_and_the_whole_has_less_than_250_lines() -> None:
    assert len(LINES) < 250
    start = LINES.index("```console") + 1
    assert LINES[start].startswith("$ ")
    output = next(number for number, line in enumerate(LINES[start:], start + 1) if not line.startswith("$ "))
    assert LINES[output - 1] != "```"
    assert output < 30


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
    for name in quoted(section("Layout and development")):
        if name in ("journal/", "projections/", "examples/", "schemas/", "tests/"):
            where = ROOT / name
            assert where.is_dir()
        elif not name.startswith(("make ", "ARGS=")):
            assert where is not None
            assert (where / name).exists(), name


def test_every_file_that_is_named_is_there() -> None:
    named = {words for words in quoted(PROSE) if re.fullmatch(r"(journal|projections)/\w+\.py", words)}
    assert named
    assert all((ROOT / name).is_file() for name in named), named


def test_the_targets_of_the_makefile_are_the_ones_that_are_named() -> None:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {words.split()[1] for words in quoted(PROSE) if words.startswith("make ")} == set(phony.split())


# --- migration files --------------------------------------------------------------------------------------------------


def table_rows(title: str, head: str) -> list[list[str]]:
    """The rows of one of the tables below a heading, by the first word of its head."""
    (table,) = re.findall(rf"^\| {head} \|.*\n\|[-|]+\|\n((?:^\|.*\n)+)", section(title), re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


def test_the_directives_are_all_there_and_have_the_options_that_are_named() -> None:
    options = {quoted(name)[0]: quoted(behind) for name, behind, _ in table_rows("Migration files", "directive")}
    assert set(options) == set(WORDS)
    assert options["schema"] == ["transaction=off"]
    assert options["backfill"] == ["table=", "key=", "batch="]
    values = dict(zip(options["backfill"], ("t", "id", "10"), strict=True))
    text = (
        "-- journal: schema transaction=off\nVACUUM;\n"
        f"-- journal: backfill {' '.join(name + value for name, value in values.items())}\nUPDATE t SET a = 1;"
    )
    contents = read_contents(text, "shop")
    assert contents.problems == ()
    outside, backfill = contents.steps
    assert isinstance(outside, SchemaSource)
    assert not outside.transactional
    assert isinstance(backfill, BackfillSource)
    assert (backfill.table, backfill.key, backfill.batch) == ("t", ("id",), 10)


def test_the_numbers_of_the_rules_are_the_real_ones() -> None:
    (behind,) = (behind for name, behind, _ in table_rows("Migration files", "directive") if name == "`backfill`")
    assert f"({DEFAULT_BATCH:,} rows; at most {MAX_BATCH:,})".replace(",", " ") in behind
    assert f"{MAX_STEM} characters" in " ".join(section("Migration files").split())


@pytest.fixture
async def shadow(tmp_path: Path) -> AsyncGenerator[Shadow, None]:
    """An empty database of the kind that files are rehearsed on."""
    database = SQLiteDatabase(tmp_path / "target.db")
    shadow = await database.shadow()
    yield shadow
    await shadow.close()
    await database.close()


REFUSED: Final = table_rows("Migration files", "refused")


@pytest.mark.parametrize("statement", [statement for refused, _ in REFUSED for statement in quoted(refused)])
async def test_a_statement_that_is_said_to_be_refused_is_refused(shadow: Shadow, statement: str) -> None:
    statement = {"SAVEPOINT": "SAVEPOINT s"}.get(statement, statement)
    step = ("CREATE TABLE before (a)", statement, "CREATE TABLE behind (a)")
    with pytest.raises(InvalidContractError) as caught:
        await shadow.run(await shadow.lower(step, transactional=True))
    assert (caught.value.code, caught.value.details["statement"]) == (Code.STATEMENT_REFUSED, 2)


@pytest.mark.parametrize("refused", [refused for refused, instead in REFUSED if "`transaction=off`" in instead])
async def test_what_has_its_place_outside_of_transactions_runs_there(shadow: Shadow, refused: str) -> None:
    assert len(quoted(refused)) > 1
    for statement in quoted(refused):
        step = (statement,) if "page_size" not in statement else (statement, "VACUUM")
        await shadow.lower(step, transactional=False)


@pytest.mark.parametrize("refused", [refused for refused, instead in REFUSED if "first statement" in instead])
async def test_a_setting_of_references_has_its_place_at_the_start(shadow: Shadow, refused: str) -> None:
    (setting,) = quoted(refused)
    for value, acts in ((setting, False), (setting.replace("OFF", "ON"), True)):
        program = await shadow.lower((value, "CREATE TABLE t (a)"), transactional=True)
        assert (program.statements, program.enforce_references) == (("CREATE TABLE t (a)",), acts)


@pytest.mark.parametrize(("key", "form"), [(("id",), "id > :after"), (("a", "b"), "(a, b) > (:after_a")])
async def test_a_backfill_in_the_form_that_is_named_is_taken(shadow: Shadow, key: tuple[str, ...], form: str) -> None:
    (condition,) = {words for words in quoted(PROSE) if words.startswith(form)}
    table = f"CREATE TABLE t ({', '.join(key)}, done, PRIMARY KEY ({', '.join(key)}))"
    await shadow.run(await shadow.lower((table,), transactional=True))
    program = BackfillProgram("t", key, 10, f"UPDATE t SET done = 1 WHERE {condition}")
    await shadow.check_backfill(program)
    assert await shadow.key_problem(program) is None


# --- the command ------------------------------------------------------------------------------------------------------

GROUPS: Final = {
    name: {words.split()[0] for words in quoted(line) if words.startswith("--")}
    for name, line in re.findall(r"^\* (lease|decision): (.*)$", section("Commands"), re.MULTILINE)
}


def options_of(journal: Journal, *command: str) -> set[str]:
    """The long options that `--help` lists, without help and version, which need no explanation."""
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", journal(*command, "--help").stdout, re.MULTILINE)
    return set(listed) - {"--help", "--version"}


def commands_of(journal: Journal) -> list[str]:
    _, _, listed = journal("--help").stdout.partition("\nCommands:\n")
    return re.findall(r"^  (\w+)  ", listed.partition("\n\n")[0], re.MULTILINE)


def settings_flags() -> set[str]:
    return {words for _, flag, _, _ in rows("Settings") for words in quoted(flag)}


def described_options(cell: str) -> set[str]:
    """The options that a cell of the table names, and those of the groups that it names."""
    own = {words.split()[0] for words in quoted(cell)}
    return own.union(*(GROUPS[word] for word in re.findall(r"\w+", re.sub(r"`[^`]+`", "", cell)) if word in GROUPS))


def test_the_commands_and_their_own_options_are_those_of_the_help(journal: Journal) -> None:
    assert len(GROUPS) == 2
    described = {
        name.removeprefix("journal "): described_options(options)
        for names, _, options in rows("Commands")
        for name in quoted(names)
    }
    others = settings_flags() | {"--json"}
    assert described == {command: options_of(journal, command) - others for command in commands_of(journal)}


def test_every_command_and_option_that_is_named_anywhere_is_there(journal: Journal) -> None:
    commands = commands_of(journal)
    options = {option for command in commands for option in options_of(journal, command)}
    words = " ".join(quoted(PROSE)) + " ".join(each.command for each in commands_shown() if "journal " in each.command)
    named = set(re.findall(r"\bjournal ([a-z]+)\b", words))
    assert named == set(commands)
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", words)) <= options


def test_the_exit_codes_are_those_of_the_help_and_of_the_command(journal: Journal) -> None:
    text = " ".join(journal("--help").stdout.split())
    in_help = re.findall(r"\b(\d+)\b", text.partition("Exit codes: ")[2])
    described = section("Commands").partition("Exit codes: ")[2]
    in_readme = {words for words in quoted(described) if words.isdigit()} | set(re.findall(r"\b\d{3}\b", described))
    assert set(in_help) <= in_readme
    assert {int(code) for code in in_readme} == set(Exit)
    outcomes = [int(code) for _, codes, _ in rows("Recovery") for code in codes.split(", ")]
    assert set(outcomes) <= set(Exit)


def test_the_outcomes_are_those_of_the_help(journal: Journal) -> None:
    text = " ".join(journal("apply", "--help").stdout.split())
    listed = re.findall(r'"(\w+)"', text.partition('{"outcome": ')[2].partition(', "scope"')[0])
    assert [word for outcome, _, _ in rows("Recovery") for word in quoted(outcome)] == listed


def test_the_settings_are_all_there_with_their_flags_and_variables(journal: Journal) -> None:
    keys, variables = [], []
    for key, _, variable, _ in rows("Settings"):
        keys += quoted(key)
        variables += quoted(variable)
    assert sorted(keys) == sorted(known_keys())
    assert variables == [f"JOURNAL_{key.upper()}" for key in keys]
    assert settings_flags() == {f"--{key.replace('_', '-')}" for key in keys if f"{key}_file" not in keys}
    assert settings_flags() <= options_of(journal, "plan")


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_the_parameters_of_a_cluster_are_all_named() -> None:
    (kafka,) = re.findall(r"^\* (`kafka://.*?)^\* ", section("Cluster"), re.MULTILINE | re.DOTALL)
    (redis,) = re.findall(r"^\* (`redis://.*?)^\* ", section("Cluster"), re.MULTILINE | re.DOTALL)
    named = {words.partition("=")[0] for words in quoted(kafka)}
    assert set(KAFKA_PARAMETERS) == {words for words in named if re.fullmatch("[a-z_]+", words)}
    assert set(MECHANISMS) <= named
    assert set(REDIS_PARAMETERS) == {words for words in quoted(redis) if re.fullmatch("[a-z_]+", words)} - {"leases"}
    assert f"`replication` ({DEFAULT_REPLICATION})" in kafka
    assert f"`timeout` ({KAFKA_TIMEOUT.seconds} seconds)" in kafka
    assert f"`timeout` ({REDIS_TIMEOUT.seconds} seconds)" in redis


def test_the_least_rights_are_those_that_are_tested_and_that_the_adapter_names() -> None:
    table = {who.split()[0].strip("`,"): (kafka, quoted(redis)) for who, kafka, redis in rows("Cluster")}
    on_kafka = {who: tuple(kafka.split(", ")) for who, (kafka, _) in table.items()}
    on_redis = {who: tuple(redis) for who, (_, redis) in table.items()}
    assert {who: on_kafka[who] for who in KAFKA_RIGHTS} == KAFKA_RIGHTS
    assert {who: on_redis[who] for who in REDIS_RIGHTS} == REDIS_RIGHTS
    assert set(table) - set(KAFKA_RIGHTS) == {"doctor"}
    assert set(on_redis["writer"]) == set(RIGHTS)
    assert {right.replace(" ", "|") for right in on_redis["doctor"]} == set(EXAMINER_RIGHTS) - set(RIGHTS)


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
