"""`journal doctor`: what is good is said, what is not has what to do beside it, and the exit code tells them apart."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from journal import sqlite_examination
from journal.errors import Code, failure
from journal.identities import HolderId, LeaseId, Scope
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Finding, Level
from journal.records import LeaseAcquiredRecord
from tests.acceptance.commands import save, writer_of
from tests.acceptance.test_cluster_command import Cluster, nobody, silence
from tests.acceptance.test_operate import CENTS, ITEMS, MAIN, NAMES, Project, until
from tests.factories import lease_of

if TYPE_CHECKING:
    from tests.services import KafkaService, RedisService

KEY = "0123456789abcdef" * 4
OLD_KEY = "fedcba9876543210" * 4


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Three migrations, nothing applied yet."""
    return Project(tmp_path, m0001_items=ITEMS, m0002_cents=CENTS, m0003_names=NAMES)


def findings(project: Project, *arguments: str, code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What `journal doctor --json` finds, by what it is about."""
    document = project.quick.json("doctor", *arguments, code=code, env=env)
    assert document["ok"] is (code == 0)
    found = {item["check"]: item for item in document["findings"]}
    assert len(found) == len(document["findings"])
    for item in found.values():
        assert list(item) == ["check", "level", "message", "remedy"]
        assert item["level"] == "good" or item["remedy"], item
    return found


def levels(found: dict[str, Any], level: str) -> set[str]:
    return {check for check, item in found.items() if item["level"] == level}


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def copy_of(project: Project, name: str) -> Path:
    """A copy of a file of the project as it is now, whole."""
    copy = project.folder / f"copy-of-{name}"
    with closing(sqlite3.connect(project.folder / name)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


def put_back(project: Project, copy: Path, name: str) -> None:
    for ending in ("", "-wal", "-shm"):
        Path(f"{project.folder / name}{ending}").unlink(missing_ok=True)
    shutil.copy(copy, project.folder / name)


# --- what is sound ----------------------------------------------------------------------------------------------------


def test_a_sound_project_is_good_in_every_line(project: Project) -> None:
    project.quick("apply")
    lines = project.journal("doctor").stdout.splitlines()
    assert [line for line in lines if not line.startswith("good     ")] == []
    told = {line.removeprefix("good     ").partition(": ")[0] for line in lines}
    assert told == {
        "log", "log durability", "log integrity", "lease store", "lease of main", "target", "target bookkeeping",
        "scope main history", "scope main schemas", "scope main key", "scope main clock", "scope main target",
    }  # fmt: skip


def test_doctor_changes_not_one_byte_and_makes_nothing(project: Project) -> None:
    before = project.snapshot()
    project.quick("doctor")
    assert project.snapshot() == before
    project.quick("apply")
    before = project.snapshot()
    project.quick("doctor")
    assert project.snapshot() == before


def test_before_the_first_run_it_says_what_is_not_there_yet_and_is_content(project: Project) -> None:
    found = findings(project)
    assert levels(found, "warning") == {"log", "lease store", "target", "scope main"}
    assert "`journal apply` makes it" in found["log"]["remedy"]


def test_a_line_that_is_not_good_says_what_to_do(project: Project) -> None:
    line = project.quick("doctor").stdout.splitlines()[0]
    path = project.folder / "journal.db"
    assert line == (
        f"warning  log: there is no journal at {path}; do: `journal apply` makes it, unless its setting is wrong"
    )


def test_without_a_target_the_rest_is_checked(project: Project) -> None:
    project.quick("apply")
    (project.folder / "journal.toml").write_text("")
    found = findings(project)
    assert found["target"]["message"] == "none is named, so none was looked at"
    assert "scope main target" not in found


def test_a_scope_that_the_log_lacks_is_named_with_those_that_it_has(project: Project) -> None:
    project.quick("apply")
    found = findings(project, "--scope", "mian")
    assert levels(found, "warning") == {"scope mian"}
    assert found["scope mian"]["message"] == "the log does not have it yet; it has main"


def test_a_target_is_compared_with_its_own_scope_alone(project: Project) -> None:
    project.quick("apply")
    project.quick("apply", "--scope", "other", "--database", "sqlite:///other.db")
    found = findings(project)
    assert {"scope main history", "scope other history", "scope main target"} <= set(found)
    assert "scope other target" not in found
    assert findings(project, "--scope", "other", code=1)["scope other target"]["level"] == "problem"


# --- history ----------------------------------------------------------------------------------------------------------


def test_a_damaged_log_is_lost_history(project: Project) -> None:
    project.quick("apply")
    copy = copy_of(project, "journal.db")
    with copy.open("r+b") as file:
        file.seek(4096 * 2)
        file.write(b"\xff" * 4096)
    put_back(project, copy, "journal.db")
    found = findings(project, code=6)
    assert "log" in {check.partition(" ")[0] for check in levels(found, "history")}


def test_a_log_that_is_gone_although_its_target_was_migrated_is_lost_history(project: Project) -> None:
    project.quick("apply")
    (project.folder / "journal.db").unlink()
    found = findings(project, code=6)
    assert levels(found, "history") == {"scope main target"}
    assert "its log is lost, or another one is named" in found["scope main target"]["message"]


def test_an_older_copy_of_the_log_is_lost_history(project: Project) -> None:
    project.quick("apply", "--to", "0001")
    copy = copy_of(project, "journal.db")
    project.quick("apply")
    put_back(project, copy, "journal.db")
    found = findings(project, code=6)
    assert levels(found, "history") == {"scope main target"}
    assert "it has seen fence 2, the log knows none above 1: events were lost" in found["scope main target"]["message"]


async def take_leases(path: Path, count: int) -> None:
    async with Journal(SQLiteLog(path), SQLiteLeases(path)) as journal:
        for _ in range(count):
            async with journal.lease(MAIN, HolderId("somebody"), wait=timedelta(0)):
                pass


def test_an_older_copy_of_the_log_that_others_went_on_with_lacks_what_the_target_has(project: Project) -> None:
    project.quick("apply", "--to", "0001")
    copy = copy_of(project, "journal.db")
    project.quick("apply")
    put_back(project, copy, "journal.db")
    asyncio.run(take_leases(project.folder / "journal.db", 2))
    found = findings(project, code=6)
    assert levels(found, "history") == {"scope main target"}
    assert "0002_cents" in found["scope main target"]["message"]
    assert "of which the log knows nothing" in found["scope main target"]["message"]


def test_a_scope_that_was_moved_to_another_log_is_not_lost_when_it_goes_on_there(project: Project) -> None:
    project.quick("apply", "--to", "0001")
    there = ("--log", "sqlite:///there.db")
    place = project.quick.json("import", "--prepare", "--scope", "main", *there)["place"]
    assert "scope main place" in levels(findings(project, *there), "warning")
    project.quick("export", "main.archive", "--move", "--place", place, "--destination", "there", "--reason", "tests")
    project.quick("import", "--archive", "main.archive", *there)
    project.quick("apply", *there)
    found = findings(project)
    assert levels(found, "warning") == {"scope main place"}
    assert "was moved to there" in found["scope main place"]["message"]
    assert levels(findings(project, *there), "warning") == set()


# --- the target -------------------------------------------------------------------------------------------------------


def older_target(project: Project) -> None:
    project.quick("apply", "--to", "0001")
    copy = copy_of(project, "target.db")
    project.quick("apply")
    put_back(project, copy, "target.db")


def another_database(project: Project) -> None:
    project.quick("apply")
    project.target.unlink()
    change(project.target, "CREATE TABLE t (a)")


def target_of_another_journal(project: Project) -> None:
    project.quick("apply", "--log", "sqlite:///another.db")
    copy = copy_of(project, "target.db")
    project.target.unlink()
    project.quick("apply")
    put_back(project, copy, "target.db")


def no_target_any_more(project: Project) -> None:
    project.quick("apply")
    project.target.unlink()


@pytest.mark.parametrize(
    ("bring", "said"),
    [
        (older_target, "it has seen fence 1 at most: it is an older copy"),
        (another_database, "the target has seen no fence of this scope"),
        (no_target_any_more, "the target has seen no fence of this scope"),
        (target_of_another_journal, "it was migrated under this scope by another journal"),
    ],
)
def test_a_target_that_does_not_belong_to_the_log_is_a_problem(
    project: Project, bring: Callable[[Project], None], said: str
) -> None:
    bring(project)
    found = findings(project, code=1)
    assert levels(found, "problem") == {"scope main target"}
    assert said in found["scope main target"]["message"]


def test_a_target_with_books_of_a_later_version_is_a_problem(project: Project) -> None:
    project.quick("apply")
    project.sql("UPDATE _journal_format SET version = 99")
    found = findings(project, code=1)
    assert "have format 99, this version knows 1: upgrade fenced-journal" in found["target"]["message"]


def test_a_target_that_is_no_database_is_a_problem(project: Project) -> None:
    project.target.write_bytes(b"not a database" * 500)
    assert levels(findings(project, code=1), "problem") == {"target"}


# --- keys, schemas, clocks --------------------------------------------------------------------------------------------


def test_an_authenticated_scope_needs_the_keys_that_it_was_written_with(project: Project) -> None:
    project.quick("apply", "--to", "0001", env={"JOURNAL_KEY": OLD_KEY})
    assert findings(project, code=1)["scope main key"]["message"].startswith(
        "scope main is authenticated: give the key"
    )
    assert levels(findings(project, code=1, env={"JOURNAL_KEY": KEY}), "problem") == {"scope main key"}
    rotated = {"JOURNAL_KEY": KEY, "JOURNAL_PREVIOUS_KEY": OLD_KEY}
    project.quick("apply", env=rotated)
    assert "authenticated, and every event" in findings(project, env=rotated)["scope main key"]["message"]
    found = findings(project, code=1, env={"JOURNAL_KEY": OLD_KEY})
    assert "do not have the MAC of a key that was given" in found["scope main key"]["message"]
    assert "scope main target" not in found, "what does not count for want of a key is not lost"


def test_a_key_for_a_scope_without_authentication_is_a_problem(project: Project) -> None:
    project.quick("apply")
    found = findings(project, code=1, env={"JOURNAL_KEY": KEY})
    assert levels(found, "problem") == {"scope main key"}


def with_schema(data: bytes) -> bytes:
    """The event under a schema that nobody published."""
    return data[:2] + b"\xee" * 8 + data[10:]


def test_an_event_of_a_later_version_that_would_count_is_a_problem(project: Project) -> None:
    writer = writer_of("main")
    lease = lease_of(scope=MAIN)
    data = writer.encode(LeaseAcquiredRecord.new(lease.holder, 30_000_000), lease_id=lease.lease_id, fence=1)
    writer.data.append(with_schema(data))
    writer.macs.append(None)
    save(project.folder / "journal.db", writer)
    found = findings(project, code=1)
    assert levels(found, "problem") == {"scope main schemas"}
    assert found["scope main schemas"]["remedy"] == "upgrade fenced-journal"


def test_an_event_of_a_later_version_that_is_void_anyhow_is_a_warning(project: Project) -> None:
    writer = writer_of("main")
    lease = lease_of(scope=MAIN)
    writer.append(
        with_schema(
            writer.encode(
                LeaseAcquiredRecord.new(lease.holder, 30_000_000), lease_id=lease.lease_id, fence=1, parent=b"\1" * 32
            )
        )
    )
    save(project.folder / "journal.db", writer)
    assert "scope main schemas" in levels(findings(project), "warning")


def test_an_event_from_the_future_tells_of_clocks_that_differ(project: Project) -> None:
    writer = writer_of("main")
    lease = lease_of(scope=MAIN)
    ahead = time.time_ns() // 1_000 + 3_600 * 1_000_000
    writer.append(
        writer.encode(
            LeaseAcquiredRecord.new(lease.holder, 30_000_000), lease_id=lease.lease_id, fence=1, recorded_at=ahead
        )
    )
    save(project.folder / "journal.db", writer)
    found = findings(project)
    assert "scope main clock" in levels(found, "warning")
    assert "ahead of this machine's clock" in found["scope main clock"]["message"]


async def lease_of_a_century(path: Path) -> None:
    leases = SQLiteLeases(path, clock=lambda: time.time() + 100 * 365 * 86_400)
    await leases.acquire(MAIN, HolderId("somebody"), lease_id=LeaseId.random(), ttl=timedelta(seconds=30))
    await leases.close()


def test_a_lease_that_lasts_longer_than_any_tells_of_a_clock_that_was_set_back(project: Project) -> None:
    project.quick("apply")
    asyncio.run(lease_of_a_century(project.folder / "journal.db"))
    found = findings(project)
    assert levels(found, "warning") == {"lease of main"}
    assert "held by somebody under fence 2" in found["lease of main"]["message"]


def test_a_scope_whose_maker_was_stopped_is_a_warning(project: Project) -> None:
    async def begin() -> None:
        log = SQLiteLog(project.folder / "journal.db")
        await log.create(Scope("main"))
        await log.close()

    asyncio.run(begin())
    assert findings(project)["scope main history"]["message"] == "it has no event: its maker was stopped"


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_foreign_file_in_place_of_the_log_is_a_problem(project: Project) -> None:
    change(project.folder / "journal.db", "CREATE TABLE t (a)")
    found = findings(project, code=1)
    assert levels(found, "problem") == {"log", "lease store"}


def test_a_network_file_system_and_a_full_disk_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n")
    monkeypatch.setattr(sqlite_examination, "_MOUNTS", mounts)
    monkeypatch.setattr(sqlite_examination, "_LOW_BYTES", 2**63)
    path = tmp_path / "journal.db"
    path.touch()
    kinds = [finding.message for finding in sqlite_examination.place("log", path) if finding.level is Level.WARNING]
    assert len(kinds) == 2
    assert "MiB are free there" in kinds[0]
    assert "on a network file system (nfs4)" in kinds[1]


def test_a_file_that_takes_too_long_is_not_checked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_examination, "_CHECK_SECONDS", -1.0)
    monkeypatch.setattr(sqlite_examination, "_CHECK_STEPS", 1)
    save(tmp_path / "journal.db", writer_of("main"))
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        finding = sqlite_examination.integrity("log", connection)
    assert (finding.level, finding.remedy) == (Level.WARNING, "run PRAGMA quick_check on a copy")


def test_an_error_of_a_file_keeps_its_message() -> None:
    finding = sqlite_examination.unusable("log", failure(Code.DAMAGED_FILE, "x is damaged"))
    assert finding == Finding("log", Level.HISTORY, "x is damaged", "see the message")


# --- Kafka and Redis --------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path, kafka: KafkaService, redis_server: RedisService, fresh_prefix: str) -> Cluster:
    """The same migrations with a journal on Kafka and Redis."""
    return Cluster(tmp_path, kafka, redis_server, fresh_prefix, m0001_items=ITEMS, m0002_cents=CENTS)


def test_a_sound_cluster_has_no_problem(cluster: Cluster) -> None:
    cluster.quick("apply")
    topic = f"{cluster.prefix}.main"
    found = findings(cluster)
    assert levels(found, "problem") | levels(found, "history") == set()
    wanted = {
        "broker", f"topic {topic}", f"replicas {topic}", f"history {topic}", "lease store", "lease store persistence",
        "lease store clock", "lease of main", "target", "scope main history", "scope main target",
    }  # fmt: skip
    assert wanted <= set(found)
    document = cluster.quick.json("doctor")
    assert (document["log"], document["leases"]) == (
        cluster.log.partition("&")[0],
        f"{cluster.redis.url.removesuffix('/0')}/0",
    )


def test_before_the_first_run_a_cluster_is_good_and_nothing_is_made(cluster: Cluster) -> None:
    found = findings(cluster)
    assert {"target", "scope main"} <= levels(found, "warning")
    assert cluster.quick("scopes").stdout == ""


def test_services_that_nobody_runs_are_lines_and_the_rest_is_checked(cluster: Cluster) -> None:
    cluster.quick("apply")
    log, leases = nobody(), nobody()
    arguments = ("--log", f"kafka://{log}?replication=1", "--leases", f"redis://{leases}")
    found = findings(cluster, *arguments, code=1)
    assert levels(found, "problem") == {"broker", "lease store"}
    assert log in found["broker"]["message"]
    assert leases in found["lease store"]["message"]
    assert found["target"]["level"] == "good"
    assert cluster.journal("doctor", *arguments, code=1).stderr == ""


def test_services_that_say_nothing_are_given_up_within_the_deadline(cluster: Cluster) -> None:
    with silence() as log, silence() as leases:
        begun = time.monotonic()
        arguments = ("--log", f"kafka://{log}?timeout=1&replication=1", "--leases", f"redis://{leases}?timeout=1")
        assert levels(findings(cluster, *arguments, code=1), "problem") == {"broker", "lease store"}
        assert time.monotonic() - begun < 20


def test_without_a_lease_store_it_says_that_nothing_can_be_written(cluster: Cluster) -> None:
    cluster.configure(log=cluster.log)
    found = findings(cluster)
    assert found["lease store"]["level"] == "warning"
    assert "name one with --leases redis://host:port" in found["lease store"]["remedy"]


def alter(cluster: Cluster, **settings: str) -> None:
    """Change settings of the topic of scope main, as an operator might."""

    async def change_them() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.log.removeprefix("kafka://").partition("?")[0])
        await admin.start()
        try:
            topic = f"{cluster.prefix}.main"
            values = {name.replace("_", "."): value for name, value in settings.items()}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=values)])
        finally:
            await admin.close()

    asyncio.run(change_them())


def delete_topic(cluster: Cluster) -> None:
    async def delete_it() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.log.removeprefix("kafka://").partition("?")[0])
        await admin.start()
        try:
            await admin.delete_topics([f"{cluster.prefix}.main"])
        finally:
            await admin.close()

    asyncio.run(delete_it())


def test_a_topic_that_forgets_could_lose_history(cluster: Cluster) -> None:
    cluster.quick("apply", "--to", "1")
    alter(cluster, retention_ms="604800000")
    found = findings(cluster, code=6)
    assert levels(found, "history") == {f"topic {cluster.prefix}.main"}
    assert "retention.ms is 604800000 and must be -1" in found[f"topic {cluster.prefix}.main"]["message"]


def test_a_topic_that_was_deleted_is_lost_history_as_the_target_knows_it(cluster: Cluster) -> None:
    cluster.quick("apply")
    delete_topic(cluster)
    until(lambda: cluster.quick("scopes").stdout == "")
    found = findings(cluster, code=6)
    assert levels(found, "history") == {"scope main target"}
