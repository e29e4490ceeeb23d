"""The `journal` command as its users meet it: a process, its output, its exit code."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from journal.codec import Codec, Key, Keyring
from journal.identities import HolderId, LeaseId
from journal.journal import Journal as JournalObject
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.records import LeaseReleasedRecord, PlanAbandonedRecord
from journal.state import journal_entry
from journal.vocabulary import GroupEventKind
from tests.acceptance.commands import DEADLINE, Journal, environment, save, writer_of
from tests.factories import (
    SCOPE,
    Writer,
    altered,
    backfill_record,
    chain_of,
    group_record,
    long_log,
    plan_record,
)

COMMANDS = ("scopes", "status", "history", "leases", "verify")
ESCAPE = "\x1b"
BEFORE, COMMITTED = GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED
KEY, OTHER_KEY = "0123456789abcdef" * 4, "fedcba9876543210" * 4


def half_done() -> Writer:
    """A plan of two migrations, the first applied, the second's group begun; and a stale writer's late event."""
    writer, manifests = writer_of(), chain_of(2, backfill=True)
    stale = writer.acquire("alice")
    writer.write(plan_record(stale, manifests), stale)
    writer.write(group_record(stale, manifests[0], BEFORE), stale)
    lease = writer.acquire("bob")
    writer.write(group_record(stale, manifests[0], COMMITTED), stale)
    writer.write(group_record(lease, manifests[0], COMMITTED), lease)
    writer.write(backfill_record(lease, manifests[0], BEFORE), lease)
    writer.write(backfill_record(lease, manifests[0], COMMITTED), lease)
    writer.write(group_record(lease, manifests[1], BEFORE), lease)
    return writer


def applied(*, codec: Codec | None = None, scope: str = SCOPE) -> Writer:
    writer = writer_of(scope, codec=codec)
    writer.apply(writer.acquire("alice"), chain_of(2, scope=writer.scope))
    return writer


# --- help, version, usage ---------------------------------------------------------------------------------------------


def test_the_version_is_printed(journal: Journal) -> None:
    assert journal("--version").stdout == "journal 0.1.0\n"


def test_help_names_every_command_and_every_exit_code(journal: Journal) -> None:
    text = " ".join(journal("--help").stdout.split())
    assert all(f" {command} " in text for command in COMMANDS)
    for meaning in ("0 done", "1 failed", "2 usage", "3 another holder", "4 an operator", "5 pending", "6 integrity"):
        assert meaning in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_shows_its_options_and_needs_no_journal(journal: Journal, command: str) -> None:
    text = journal(command, "--help").stdout
    assert all(option in text for option in ("--json", "--log URL", "--dir", "--key-file", "With --json"))


def test_a_wrong_option_is_a_usage_error_on_one_line(journal: Journal) -> None:
    assert journal.error("status", "--scpe", "x", code=2) == (
        "journal: No such option '--scpe'. Did you mean '--scope'? (see journal status --help) [usage]"
    )


def test_a_usage_error_is_a_document_with_json(journal: Journal) -> None:
    document = journal.json("status", "--nonsense", code=2)
    assert document["error"]["code"] == "usage"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--log", "redis://host:6379"), "log: must be sqlite:///file"),
        (("--leases", "kafka://host"), "leases: must be sqlite:///file"),
        (("--scope", "-x"), "scope '-x' must be"),
        (("--max-event-bytes", "7"), "max_event_bytes: "),
    ],
)
def test_a_setting_that_is_wrong_is_a_usage_error(journal: Journal, arguments: tuple[str, ...], said: str) -> None:
    assert said in journal.error("status", *arguments, code=2)


# --- settings ---------------------------------------------------------------------------------------------------------


def test_options_count_before_and_behind_the_command(journal: Journal) -> None:
    save(journal.folder / "other.db", applied(scope="a"), applied(scope="b"))
    for arguments in (
        ("--log", "sqlite:///other.db", "--scope", "a", "--json", "status"),
        ("status", "--log", "sqlite:///other.db", "--scope", "a", "--json"),
        ("--scope", "b", "--log", "sqlite:///other.db", "status", "--scope", "a", "--json"),
    ):
        assert json.loads(journal(*arguments).stdout)["scope"] == "a"


def test_settings_come_from_options_then_variables_then_the_file(journal: Journal) -> None:
    save(journal.folder / "j.db", applied(scope="a"), applied(scope="b"), applied(scope="c"))
    (journal.folder / "journal.toml").write_text('log = "sqlite:///j.db"\nscope = "a"\n')
    assert journal.json("status")["scope"] == "a"
    assert journal.json("status", env={"JOURNAL_SCOPE": "b"})["scope"] == "b"
    assert journal.json("status", "--scope", "c", env={"JOURNAL_SCOPE": "b"})["scope"] == "c"


def test_the_journal_lies_beside_the_migrations(journal: Journal) -> None:
    folder = journal.folder / "service"
    folder.mkdir()
    save(folder / "journal.db", applied())
    assert journal.json("status", "--dir", "service/migrations")["scope"] == SCOPE


def test_an_unknown_key_in_the_file_names_file_and_nearest_key(journal: Journal) -> None:
    (journal.folder / "journal.toml").write_text('scoop = "x"\n')
    line = journal.error("status", code=2)
    assert "journal.toml: there is no setting 'scoop': did you mean scope?" in line
    assert line.endswith("[journal_invalid_settings]")


# --- scopes -----------------------------------------------------------------------------------------------------------


def test_scopes_lists_every_scope(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied(scope="b"), applied(scope="a"))
    assert journal("scopes").stdout == "a\nb\n"
    document = journal.json("scopes")
    assert document == {"log": str(journal.folder / "journal.db"), "scopes": [{"scope": "a"}, {"scope": "b"}]}


def test_the_only_scope_need_not_be_named(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied())
    assert journal.json("status")["scope"] == SCOPE


@pytest.mark.parametrize("command", ["status", "history", "verify"])
def test_of_several_scopes_one_must_be_named(journal: Journal, command: str) -> None:
    save(journal.folder / "journal.db", applied(scope="b"), applied(scope="a"))
    assert "say which scope with --scope: a, b" in journal.error(command, code=2)


def test_a_log_without_a_scope_says_so(journal: Journal) -> None:
    save(journal.folder / "journal.db")
    assert journal("scopes").stdout == ""
    assert "there is no scope in" in journal.error("status")


@pytest.mark.parametrize("command", ["status", "history", "leases", "verify"])
def test_an_unknown_scope_is_refused(journal: Journal, command: str) -> None:
    save(journal.folder / "journal.db", applied())
    assert journal.error(command, "--scope", "journal-tset").endswith("[journal_unknown_scope]")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_journal_is_said_and_not_made(journal: Journal, command: str) -> None:
    assert journal.error(command).endswith("[journal_missing_file]")
    assert list(journal.folder.iterdir()) == []


def test_a_foreign_empty_or_damaged_file_is_refused_and_left_alone(journal: Journal) -> None:
    path = journal.folder / "journal.db"
    save(journal.folder / "good.db", applied())
    good = (journal.folder / "good.db").read_bytes()
    foreign = journal.folder / "foreign.db"
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    for content, code in (
        (b"", "journal_damaged_file"),
        (b"just some text\n" * 20, "journal_foreign_file"),
        (foreign.read_bytes(), "journal_foreign_file"),
        (good[:5_000], "journal_damaged_file"),
    ):
        path.write_bytes(content)
        assert journal.error("status", code=6).endswith(f"[{code}]")
        assert path.read_bytes() == content


def test_reading_leaves_the_file_as_it_is(journal: Journal) -> None:
    path = journal.folder / "journal.db"
    save(path, half_done())
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    for command in COMMANDS:
        journal(command)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


# --- status -----------------------------------------------------------------------------------------------------------


def test_status_shows_ledger_plan_units_and_lease(journal: Journal) -> None:
    writer = half_done()
    save(journal.folder / "journal.db", writer)
    document = journal.json("status")
    assert list(document) == [
        "scope", "incarnation", "authenticated", "position", "sequence", "fence", "head", "admitted", "void",
        "ledger", "plan", "lease", "lives_here", "moved", "pending", "pending_problem",
    ]  # fmt: skip
    assert (document["position"], document["sequence"], document["admitted"], document["void"]) == (9, 6, 9, 1)
    assert document["head"] == writer.state.head.hex()
    assert document["ledger"] == []
    plan = document["plan"]
    assert (plan["direction"], plan["sequence"], plan["fence"]) == ("forward", 1, 1)
    first, second = plan["migrations"]
    assert [(unit["unit"], unit["state"], unit["in_doubt"], unit["fence"]) for unit in first["units"]] == [
        ("group", "committed", False, 1),
        ("backfill", "committed", False, 2),
    ]
    assert first["units"][1]["counts"] == {"matched": 5, "changed": 3, "skipped": 2, "transaction_groups": 2}
    assert [(unit["state"], unit["in_doubt"]) for unit in second["units"]] == [("before_commit", True)]
    lease = document["lease"]
    assert (lease["holder"], lease["fence"], lease["in_log"], lease["in_store"]) == ("bob", 2, True, False)
    assert (lease["expires_at"], lease["expired"], lease["ttl_seconds"]) == (None, True, 30.0)


def test_status_lists_the_active_ledger(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied())
    document = journal.json("status")
    assert document["plan"] is None
    assert [(row["migration"], row["sequence"], row["imported"]) for row in document["ledger"]] == [
        ("example/0001_step", 4, False),
        ("example/0002_step", 7, False),
    ]
    assert document["ledger"][0]["recorded_at"] == "2025-11-30T10:53:20.000005Z"
    assert document["ledger"][0]["digest"] == chain_of(2)[0].digest.hex()


def test_status_can_tell_scripts_that_a_plan_is_open(journal: Journal) -> None:
    save(journal.folder / "journal.db", half_done())
    journal("status", code=0)
    journal("status", "--exit-code", code=5)
    save(journal.folder / "done.db", applied())
    journal("status", "--exit-code", "--log", "sqlite:///done.db", code=0)


def test_status_in_a_pipe_is_plain_and_aligned(journal: Journal) -> None:
    save(journal.folder / "journal.db", half_done())
    lines = journal("status", env={"FORCE_COLOR": "1"}).stdout.splitlines()
    assert ESCAPE not in "".join(lines)
    assert "  plan      open since 2025-11-30 10:53:20: apply, 0 of 2 done, 1 in doubt" in lines
    assert "  lease     bob, fence 2, not in the lease store: the scope can be taken" in lines
    table = lines[lines.index("") + 1 :]
    assert [line.index("FENCE") for line in table[:1]] == [line.index("2  ") for line in table if "backfill" in line]
    assert all(line == line.rstrip() for line in lines)


# --- history ----------------------------------------------------------------------------------------------------------


def test_history_shows_the_stale_writers_event_as_void_with_reason_fence_and_holder(journal: Journal) -> None:
    save(journal.folder / "journal.db", half_done())
    rows = journal.lines("history")
    assert [row["position"] for row in rows] == list(range(10))
    assert [row["sequence"] for row in rows] == [None, None, 1, 2, None, None, 3, 4, 5, 6]
    assert [row["position"] for row in rows if row["verdict"] == "void"] == [5]
    void = rows[5]
    assert (void["reason"], void["fence"], void["holder"]) == ("migration_execution_stale_fence", 1, "alice")
    assert void["explanation"] == "the event was not written under the current lease"
    assert (void["type"], void["migration"], void["kind"]) == ("GroupEvent", "example/0001_step", "committed")
    assert list(void) == [
        "position", "sequence", "recorded_at", "verdict", "reason", "explanation", "fence", "holder", "lease_id",
        "type", "migration", "kind", "summary", "event_id", "hash",
    ]  # fmt: skip
    assert rows[6]["recorded_at"] == "2025-11-30T10:53:20.000006Z"


def test_history_can_be_narrowed(journal: Journal) -> None:
    save(journal.folder / "journal.db", half_done())
    assert [row["position"] for row in journal.lines("history", "--void")] == [5]
    assert [row["position"] for row in journal.lines("history", "--after", "6")] == [7, 8, 9]
    assert [row["position"] for row in journal.lines("history", "--after", "1", "--limit", "2")] == [2, 3]


def test_history_in_a_pipe_is_plain_and_aligned(journal: Journal) -> None:
    save(journal.folder / "journal.db", half_done())
    title, *lines = journal("history").stdout.splitlines()
    assert ESCAPE not in title + "".join(lines)
    column = title.index("HOLDER")
    assert [line[column : column + 5].strip() for line in lines] == ["-", *["alice"] * 3, "bob", "alice", *["bob"] * 4]
    assert "void" in lines[5]
    assert lines[5].endswith("migration_execution_stale_fence: the event was not written under the current lease")


def test_history_that_cannot_be_read_on_shows_what_is_before_and_then_the_error(journal: Journal) -> None:
    writer = applied()
    lease = writer.acquire("bob")
    data = writer.encode(LeaseReleasedRecord.new(lease.holder), lease_id=lease.lease_id, fence=lease.fence)
    good = len(writer.data)
    writer.data.append(data[:-1])
    writer.macs.append(None)
    save(journal.folder / "journal.db", writer)
    rows = journal.lines("history", code=6)
    assert [row["position"] for row in rows[:-1]] == list(range(good))
    assert rows[-1]["error"]["code"] == "journal_undecodable_body"
    assert rows[-1]["error"]["details"]["position"] == good
    result = journal("history", code=6)
    assert len(result.stdout.splitlines()) == good + 1
    assert result.stderr.startswith(f"journal: the LeaseReleased event at position {good} ")
    journal.error("status", code=6)


def test_texts_of_an_event_cannot_drive_a_terminal(journal: Journal) -> None:
    writer = half_done()
    plan = journal_entry(writer.state.plan.entry)
    lease = writer.acquire("carol")
    record = altered(
        PlanAbandonedRecord.new(lease, plan, operator="x", reason="y"), reason="\x1b]0;owned\x07[red]\nnext line"
    )
    writer.write(record, lease)
    save(journal.folder / "journal.db", writer)
    text = journal("history").stdout
    assert ESCAPE not in text
    assert r"\x1b]0;owned\x07[red]\nnext line" in text
    assert len(text.splitlines()) == len(writer.data) + 1


# --- leases -----------------------------------------------------------------------------------------------------------


async def _hold(path: Path, holder: str, ttl: timedelta) -> None:
    """Take a lease as a process does that then dies: without giving it back."""
    log, leases = SQLiteLog(path), SQLiteLeases(path)
    async with JournalObject(log, leases) as opened:
        await opened.create(SCOPE)
    leases = SQLiteLeases(path)
    await leases.acquire(SCOPE, HolderId(holder), lease_id=LeaseId.random(), ttl=ttl)
    await leases.close()


def test_leases_shows_holder_fence_and_remaining_time(journal: Journal) -> None:
    asyncio.run(_hold(journal.folder / "journal.db", "pod-1", timedelta(hours=3)))
    (lease,) = journal.json("leases")["leases"]
    assert list(lease) == ["scope", "holder", "fence", "lease_id", "expires_at", "remaining_seconds", "expired"]
    assert (lease["scope"], lease["holder"], lease["fence"], lease["expired"]) == (SCOPE, "pod-1", 1, False)
    assert 10_000 < lease["remaining_seconds"] <= 10_800
    title, row = journal("leases").stdout.splitlines()
    assert title.split() == ["SCOPE", "HOLDER", "FENCE", "REMAINING"]
    assert row.split()[:3] == [SCOPE, "pod-1", "1"]
    assert "not yet in the log" in journal("status").stdout


def test_a_copy_of_the_file_reports_the_old_holder_by_name_and_that_it_expired(journal: Journal) -> None:
    asyncio.run(_hold(journal.folder / "journal.db", "pod-1", timedelta(microseconds=1)))
    shutil.copy(journal.folder / "journal.db", journal.folder / "copy.db")
    (lease,) = journal.json("leases", "--log", "sqlite:///copy.db")["leases"]
    assert (lease["holder"], lease["expired"], lease["remaining_seconds"]) == ("pod-1", True, 0)
    assert "expired" in journal("leases", "--log", "sqlite:///copy.db").stdout


def test_without_a_lease_leases_says_so(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied())
    assert journal("leases").stdout == "no scope is leased\n"
    assert journal.json("leases") == {"leases": []}


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_says_that_a_log_holds_and_prints_its_head(journal: Journal) -> None:
    writer = half_done()
    save(journal.folder / "journal.db", writer)
    document = journal.json("verify")
    assert list(document) == [
        "scope", "ok", "incarnation", "keyed", "events", "admitted", "void", "position", "head", "head_found",
        "complete", "findings",
    ]  # fmt: skip
    assert (document["ok"], document["events"], document["admitted"]) == (True, 10, 9)
    assert document["void"] == {"migration_execution_stale_fence": 1}
    assert document["head"] == writer.state.head.hex()
    text = journal("verify", "--head", document["head"]).stdout
    assert f"scope {SCOPE} holds from its start" in text
    assert "the head that was given is in the chain" in text


def change(path: Path, *statements: str) -> None:
    """What somebody with an SQLite shell can do to a journal's file."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


# A byte of the event id, so that the event itself still reads well.
FLIP = "UPDATE events SET data = CAST(substr(data, 1, 30) || x'ff' || substr(data, 32) AS BLOB)"
KEY_OF_FIVE = "(SELECT min(key) + 5 FROM events)"


@pytest.mark.parametrize(
    ("statements", "code", "position"),
    [
        (
            [
                f"{FLIP} WHERE key = {KEY_OF_FIVE}",
            ],
            "journal_chain_broken",
            6,
        ),
        ([f"DELETE FROM events WHERE key = {KEY_OF_FIVE}"], "journal_history_lost", 5),
        (
            [
                f"DELETE FROM events WHERE key = {KEY_OF_FIVE}",
                "UPDATE events SET key = -key WHERE key > (SELECT min(key) + 4 FROM events)",
                "UPDATE events SET key = -key - 1 WHERE key < 0",
            ],
            "journal_chain_broken",
            5,
        ),
        (
            [
                f"UPDATE events SET key = -1 WHERE key = {KEY_OF_FIVE}",
                "UPDATE events SET key = key - 1 WHERE key = (SELECT key + 6 FROM events WHERE key > 0 ORDER BY key LIMIT 1)",
                "UPDATE events SET key = (SELECT key + 6 FROM events WHERE key > 0 ORDER BY key LIMIT 1) WHERE key = -1",
            ],
            "journal_chain_broken",
            5,
        ),
    ],
    ids=["a flipped byte", "a deleted event", "a deleted event without a gap", "a swapped order"],
)
def test_verify_finds_what_was_done_to_the_file_and_says_where(
    journal: Journal, statements: list[str], code: str, position: int
) -> None:
    save(journal.folder / "journal.db", applied())
    change(journal.folder / "journal.db", *statements)
    document = journal.json("verify", code=6)
    assert document["ok"] is False
    finding = document["findings"][0]
    assert (finding["position"], finding["code"], finding["breaks"]) == (position, code, True)
    text = journal("verify", code=6).stdout
    assert text.startswith(f"broken: position {position}: ")
    assert f"scope {SCOPE} IS BROKEN" in text


def test_verify_finds_that_the_end_was_cut_off_by_the_earlier_head(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied())
    head = journal.json("verify")["head"]
    change(journal.folder / "journal.db", "DELETE FROM events WHERE key = (SELECT max(key) FROM events)")
    assert journal.json("verify")["ok"] is True
    document = journal.json("verify", "--head", head, code=6)
    assert (document["head_found"], document["findings"][0]["code"]) == (False, "journal_history_lost")


def test_a_head_that_is_no_hash_is_a_usage_error(journal: Journal) -> None:
    assert journal.error("verify", "--head", "abc", code=2).endswith("[journal_invalid_digest]")


# --- keys -------------------------------------------------------------------------------------------------------------


def keyed(key: str, previous: str | None = None) -> Codec:
    return Codec(keyring=Keyring(Key.parse(key), None if previous is None else Key.parse(previous)))


def test_an_authenticated_scope_is_read_with_its_key_alone(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied(codec=keyed(KEY)))
    (journal.folder / "secret").write_text(f"{KEY}\n")
    assert journal.json("status", env={"JOURNAL_KEY": KEY})["authenticated"] is True
    assert journal.json("verify", "--key-file", "secret")["keyed"] is True
    rotated = {"JOURNAL_KEY": OTHER_KEY, "JOURNAL_PREVIOUS_KEY": KEY}
    assert journal.json("verify", env=rotated)["ok"] is True
    for command in ("status", "history", "verify"):
        assert journal.error(command, code=6).endswith("[journal_key_required]")
    assert journal.error("verify", env={"JOURNAL_KEY": OTHER_KEY}, code=6).endswith("[forged]")
    assert journal("scopes").stdout == f"{SCOPE}\n"


def test_a_key_for_a_scope_without_authentication_is_refused(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied())
    assert journal.error("status", env={"JOURNAL_KEY": KEY}, code=6).endswith("[journal_key_unexpected]")


def test_verify_finds_a_forged_last_event(journal: Journal) -> None:
    save(journal.folder / "journal.db", applied(codec=keyed(KEY)))
    change(
        journal.folder / "journal.db",
        f"{FLIP} WHERE key = (SELECT max(key) FROM events)",
    )
    document = journal.json("verify", env={"JOURNAL_KEY": KEY}, code=6)
    assert (document["findings"][0]["position"], document["findings"][0]["code"]) == (8, "forged")


# --- terminals, pipes, interrupts -------------------------------------------------------------------------------------


def in_a_terminal(journal: Journal, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What the command shows on a terminal of its own."""
    outer, inner = os.openpty()
    variables = environment({"TERM": "xterm-256color", "COLUMNS": "160", **(env or {})})
    with subprocess.Popen(["journal", *arguments], cwd=journal.folder, env=variables, stdout=inner) as process:
        os.close(inner)
        shown = b""
        while chunk := read_terminal(outer):
            shown += chunk
        os.close(outer)
    assert process.returncode in (0, 6)
    return shown.decode()


def read_terminal(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # what Linux gives when nobody has its other end any more
        return b""


def test_a_terminal_gets_tables_and_colours_unless_it_wants_none(journal: Journal) -> None:
    save(journal.folder / "journal.db", half_done())
    shown = in_a_terminal(journal, "history")
    assert f"{ESCAPE}[31m" in shown  # the void event
    assert "before_commit" in in_a_terminal(journal, "status")
    assert f"{ESCAPE}[31m" not in in_a_terminal(journal, "history", env={"NO_COLOR": "1"})


def long_file(journal: Journal) -> None:
    save(journal.folder / "journal.db", long_log(3_000))


def test_a_reader_that_goes_away_is_no_error(journal: Journal) -> None:
    long_file(journal)
    with subprocess.Popen(
        ["journal", "history"],
        cwd=journal.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (said, process.returncode) == (b"", 141)


def test_an_interrupt_ends_it_with_one_line(journal: Journal) -> None:
    long_file(journal)
    with subprocess.Popen(
        ["journal", "history"],
        cwd=journal.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it is under way, and more is to come than the pipe takes
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE)
    assert (said, process.returncode) == ("journal: interrupted\n", 130)


@pytest.mark.parametrize(
    ("redirection", "said", "code"),
    [
        (">&-", "", 0),
        (">/dev/full", "journal: cannot write the output: No space left on device\n", 1),
        ("2>&-", "", 0),
    ],
)
def test_a_stream_that_cannot_be_written_is_no_traceback(
    journal: Journal, redirection: str, said: str, code: int
) -> None:
    save(journal.folder / "journal.db", applied())
    result = subprocess.run(
        ["sh", "-c", f"journal status {redirection}"],
        cwd=journal.folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stderr, result.returncode) == (said, code)


def test_a_character_that_the_output_cannot_show_is_escaped(journal: Journal) -> None:
    writer = half_done()
    plan = journal_entry(writer.state.plan.entry)
    lease = writer.acquire("carol")
    writer.write(PlanAbandonedRecord.new(lease, plan, operator="ops", reason="geprüft"), lease)
    save(journal.folder / "journal.db", writer)
    assert "gepr\\xfcft" in journal("history", env={"PYTHONIOENCODING": "ascii"}).stdout
