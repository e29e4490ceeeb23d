"""The command on a cluster: log on Kafka, leases on Redis, every command as on a file."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import redis

from journal.identities import HolderId, LeaseId
from journal.leases.redis import RedisLeases
from tests.acceptance.commands import DEADLINE, Journal, environment
from tests.acceptance.test_operate import CENTS, ITEMS, MAIN, NAMES, OUTSIDE, Project, finished, line, until

if TYPE_CHECKING:
    from tests.services import KafkaService, RedisService, SecureKafka

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
# The table of the README, whose tests compare it with this.
KAFKA_RIGHTS: Final = {
    "writer": ("Read", "Write", "Create", "DescribeConfigs"),
    "worker": ("Read",),
    "auditor": ("Read",),
}
REDIS_RIGHTS: Final = {
    "writer": ("evalsha", "eval", "time", "exists", "hmget", "hset", "hincrby"),
    "worker": ("evalsha", "eval", "exists", "hmget"),
    "auditor": (),
}
ANSWER_SECONDS: Final = 20  # for a command whose service does not answer: its deadlines of 5 and 2 s, and starting


class Cluster(Project):
    """A project whose journal is on Kafka and Redis, under a prefix of its own."""

    def __init__(self, folder: Path, kafka: KafkaService, redis: RedisService, prefix: str, **migrations: str) -> None:
        super().__init__(folder, **migrations)
        self.log = f"kafka://{','.join(kafka.servers)}?prefix={prefix}&replication={kafka.replication}"
        self.redis, self.prefix = redis, prefix
        self.configure(log=self.log, leases=redis.url)

    def configure(self, **settings: str) -> None:
        lines = ['database = "sqlite:///target.db"', *(f'{key} = "{value}"' for key, value in settings.items())]
        (self.folder / "journal.toml").write_text("\n".join(lines) + "\n")

    def hold(self, holder: str, ttl: timedelta) -> None:
        """Take the lease of scope main as a process does that then dies."""

        async def take() -> None:
            leases = RedisLeases(self.redis.url, prefix=self.prefix)
            await leases.acquire(MAIN, HolderId(holder), lease_id=LeaseId.random(), ttl=ttl)
            await leases.close()

        asyncio.run(take())


@pytest.fixture
def project(tmp_path: Path, kafka: KafkaService, redis_server: RedisService, fresh_prefix: str) -> Cluster:
    """Two migrations, the second with a backfill; nothing was run yet."""
    return Cluster(tmp_path, kafka, redis_server, fresh_prefix, m0001_items=ITEMS, m0002_cents=CENTS)


# --- a whole life -----------------------------------------------------------------------------------------------------


def test_a_project_lives_on_kafka_and_redis_as_on_a_file(project: Cluster) -> None:
    quick = project.quick
    before = project.snapshot()
    assert quick("scopes").stdout == ""
    assert "events    0 admitted" in quick("status").stdout
    assert project.journal("plan").stdout.startswith("scope main: 2 migrations to apply\n")
    assert quick("leases").stdout == "no scope is leased\n"
    assert project.snapshot() == before
    assert project.journal.json("apply", "--to", "1")["migrations"] == ["main/0001_items"]
    assert project.journal("apply").stdout.splitlines()[0] == "applied main/0002_cents"
    assert quick("apply").stdout == "up to date\n"
    document = quick.json("scopes")
    assert document["scopes"] == [{"scope": "main"}]
    assert document["log"].startswith("kafka://")
    status = quick.json("status", "--exit-code")
    assert [row["migration"] for row in status["ledger"]] == ["main/0001_items", "main/0002_cents"]
    assert status["lease"] is None
    assert project.journal.json("rollback", "--steps", "1")["migrations"] == ["main/0002_cents"]
    assert quick.json("status")["pending"] == ["main/0002_cents"]
    rows = quick.lines("history")
    assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)
    assert {row["verdict"] for row in rows} == {"admitted"}
    verified = project.journal.json("verify", "--migrations", code=5)
    assert (verified["ok"], verified["events"], verified["head"]) == (True, len(rows), rows[-1]["hash"])
    assert project.number("SELECT max(touched) FROM items") == 1
    assert not [path for path in project.folder.iterdir() if path.name.startswith("journal.db")]


def test_a_scope_that_is_not_there_is_unknown(project: Cluster) -> None:
    project.quick("apply", "--to", "1")
    for command in ("history", "verify", "leases"):
        assert project.quick.error(command, "--scope", "mian").endswith("[journal_unknown_scope]")
    assert "no scope in kafka://" in project.quick.error(
        "history", "--log", f"{project.log}".replace("prefix=", "prefix=x")
    )


def test_an_authenticated_scope_is_read_with_its_key_alone(project: Cluster) -> None:
    key = {"JOURNAL_KEY": "0123456789abcdef" * 4}
    project.quick("apply", env=key)
    assert project.quick.json("verify", env=key)["keyed"] is True
    assert project.quick.error("status", code=6).endswith("[journal_key_required]")


def test_a_database_with_a_history_is_adopted(project: Cluster) -> None:
    project.quick("apply", "--log", "sqlite:///embedded.db", "--leases", "sqlite:///embedded.db")
    document = project.journal.json("import", "--reason", "from the file to the cluster")
    assert document["migrations"] == ["main/0001_items", "main/0002_cents"]
    assert project.quick("verify", "--migrations").stdout.endswith("ledger, files and live schema agree\n")


def test_what_cannot_be_proven_is_decided_by_an_operator(
    tmp_path: Path, kafka: KafkaService, redis_server: RedisService, fresh_prefix: str
) -> None:
    project = Cluster(tmp_path, kafka, redis_server, fresh_prefix, m0001_items=ITEMS, m0002_outside=OUTSIDE)
    project.quick("apply", code=4)
    (doubt,) = project.quick.json("resolve", code=4)["in_doubt"]
    assert doubt["last"] == "commit_outcome_unknown"
    project.sql("DROP TABLE marks", "UPDATE items SET touched = id")
    project.journal("resolve", "--aborted", "--reason", "undone by hand")
    assert project.quick("resolve").stdout == "nothing is in doubt\n"
    assert project.quick.json("apply")["migrations"] == ["main/0002_outside"]


def test_a_plan_is_given_up(project: Cluster) -> None:
    project.write(
        "0003_half", f"-- journal: schema\n{NAMES}-- journal: schema\nINSERT INTO items (id, price) VALUES (1, 1);\n"
    )
    project.quick("apply", code=1)
    document = project.journal.json("abandon", "--reason", "wrong idea")
    assert document["done"] == ["main/0001_items", "main/0002_cents"]
    assert project.quick.json("status")["plan"] is None


# --- killed, contended, several ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [1, 2, 4])
def test_killed_behind_a_commit_the_next_run_finishes_and_rolls_back(
    tmp_path: Path, kafka: KafkaService, redis_server: RedisService, fresh_prefix: str, commits: int
) -> None:
    shutil.copytree(EXAMPLES / "shop", tmp_path / "shop", ignore=shutil.ignore_patterns("*.db*"))
    where = {
        "JOURNAL_LOG": f"kafka://{','.join(kafka.servers)}?prefix={fresh_prefix}&replication={kafka.replication}",
        "JOURNAL_LEASES": redis_server.url,
    }
    killed = subprocess.run(
        [sys.executable, str(EXAMPLES / "killed_runner.py"), str(commits), "--ttl", "1.5"],
        cwd=tmp_path / "shop",
        env=environment(where),
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    journal = Journal(tmp_path / "shop")
    document = journal.json("apply", "--holder", "pod-2", env=where)
    assert document["outcome"] == "applied"
    assert document["waited_for"] in ([], ["pod-1"])  # on a busy machine its lease has run out by now
    assert len(document["recovered"]) == 1
    assert journal("verify", "--migrations", env=where).stdout.endswith("ledger, files and live schema agree\n")
    assert len(journal.json("rollback", "--steps", "2", env=where)["migrations"]) == 2
    assert {row["verdict"] for row in journal.lines("history", env=where)} == {"admitted"}


def test_a_run_that_is_killed_at_work_is_finished_by_the_next(project: Cluster) -> None:
    project.quick("apply", "--to", "1")
    with project.started("apply", "--holder", "pod-1", "--ttl", "1.5") as process, project.locked(project.target):
        until(lambda: project.quick.json("leases")["leases"])
        process.kill()
        assert process.wait(DEADLINE) == -signal.SIGKILL
    document = project.journal.json("apply", "--holder", "pod-2")
    assert document["migrations"] == ["main/0002_cents"]
    assert document["waited_for"] in ([], ["pod-1"])  # on a busy machine its lease has run out by now
    assert project.number("SELECT max(touched) FROM items") == 1
    assert project.quick.json("verify")["ok"] is True


def test_of_runners_that_start_on_nothing_one_makes_the_scope_and_one_applies(project: Cluster) -> None:
    with (
        project.started("apply", "--holder", "one") as one,
        project.started("apply", "--holder", "two") as two,
        project.started("apply", "--holder", "three") as three,
    ):
        outcomes = [finished(process) for process in (one, two, three)]
    assert [code for _, _, code in outcomes] == [0, 0, 0]
    rows = project.quick.lines("history")
    assert [row["type"] for row in rows if row["verdict"] == "admitted"].count("ScopeCreated") == 1
    assert [row["type"] for row in rows if row["verdict"] == "admitted"].count("Applied") == 2
    assert project.number("SELECT max(touched) FROM items") == 1


def test_of_two_runners_at_once_one_applies_and_the_other_says_by_whom(project: Cluster) -> None:
    project.quick("apply", "--to", "1")
    with project.started("apply", "--holder", "one") as one, project.started("apply", "--holder", "two") as two:
        with project.locked(project.target):
            until(lambda: project.quick.json("leases")["leases"])
            (lease,) = project.quick.json("leases")["leases"]
            winner, loser = (one, two) if lease["holder"] == "one" else (two, one)
            waits = f"journal: waiting for {lease['holder']}, who holds scope main"
            assert line(loser.stderr).startswith(waits)
        assert finished(winner)[0].splitlines()[0] == "applied main/0002_cents"
        out, _, code = finished(loser)
        assert (out, code) == (f"up to date: applied meanwhile by {lease['holder']}\n", 0)
    assert project.number("SELECT max(touched) FROM items") == 1


def test_a_lease_of_another_is_said_with_exit_code_3(project: Cluster) -> None:
    project.quick("apply", "--to", "1")
    project.hold("pod-1", timedelta(hours=1))
    result = project.journal("apply", "--lock-timeout", "0", code=3)
    assert "scope main is leased by pod-1" in result.stderr
    (lease,) = project.quick.json("leases")["leases"]
    assert (lease["holder"], lease["expired"]) == ("pod-1", False)
    assert "pod-1" in project.quick("status").stdout


# --- other combinations -----------------------------------------------------------------------------------------------


def test_a_log_on_kafka_takes_a_lease_file_when_that_is_said(project: Cluster) -> None:
    project.configure(log=project.log, leases="sqlite:///leases.db")
    assert project.quick.json("apply")["outcome"] == "applied"
    assert (project.folder / "leases.db").exists()
    assert "leases: a log on Kafka needs a lease store" not in project.quick("status").stderr


def test_an_embedded_log_takes_leases_on_redis(project: Cluster) -> None:
    project.configure(leases=f"{project.redis.url}?prefix={project.prefix}")
    assert project.quick.json("apply")["outcome"] == "applied"
    project.hold("pod-1", timedelta(hours=1))
    project.quick("rollback", "--steps", "1", "--lock-timeout", "0", code=3)
    assert (project.folder / "journal.db").exists()


def test_without_a_lease_store_kafka_is_read_and_not_written(project: Cluster) -> None:
    project.quick("apply", "--to", "1")
    project.configure(log=project.log)
    assert project.quick.json("verify")["ok"] is True
    assert project.quick("scopes").stdout == "main\n"
    assert len(project.quick.lines("history")) == 7
    for command in ("apply", "status", "leases"):
        said = "leases: a log on Kafka needs a lease store: name one with --leases redis://host:port"
        assert said in project.quick.error(command, code=2)


# --- services that do not answer --------------------------------------------------------------------------------------


@contextmanager
def silence() -> Iterator[str]:
    """An address where connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


READING: Final = ("scopes", "status", "plan", "history", "verify", "leases", "apply")


@pytest.mark.parametrize("command", READING)
def test_a_broker_that_is_not_there_is_said_on_one_line(project: Cluster, command: str) -> None:
    address = nobody()
    before = project.snapshot()
    error = project.journal.error(command, "--log", f"kafka://{address}?replication=1")
    assert f"nothing listens at {address}" in error
    assert error.endswith("[journal_storage_failed]")
    assert project.snapshot() == before


def test_a_broker_that_says_nothing_is_given_up_within_the_deadline(project: Cluster) -> None:
    with silence() as address:
        begun = time.monotonic()
        error = project.journal.error("apply", "--log", f"kafka://{address}?replication=1&timeout=1")
        assert time.monotonic() - begun < ANSWER_SECONDS
    assert error.endswith("[journal_storage_failed]")


@pytest.mark.parametrize("command", ["apply", "status", "leases"])
def test_a_lease_store_that_is_not_there_is_said_on_one_line(project: Cluster, command: str) -> None:
    project.quick("apply", "--to", "1")
    address = nobody()
    error = project.journal.error(command, "--leases", f"redis://{address}")
    assert f"lease store redis://{address}/0" in error
    assert error.endswith("[journal_leases_unavailable]")
    assert project.number("SELECT count(*) FROM pragma_table_info('items') WHERE name = 'cents'") == 0


def test_a_lease_store_that_says_nothing_is_given_up_within_the_deadline(project: Cluster) -> None:
    project.quick("apply", "--to", "1")
    with silence() as address:
        begun = time.monotonic()
        error = project.journal.error("apply", "--leases", f"redis://{address}?timeout=1")
        assert time.monotonic() - begun < ANSWER_SECONDS
    assert error.endswith("[journal_leases_unavailable]")


def test_too_few_brokers_for_the_replication_are_named_and_nothing_is_made(project: Cluster) -> None:
    log = project.log.partition("&")[0] + "&replication=7"
    error = project.journal.error("apply", "--log", log)
    assert "needs 7 brokers" in error
    assert "replication=1" in error
    assert not project.target.exists()
    assert project.quick("scopes").stdout == ""


@pytest.mark.parametrize(
    ("setting", "url", "said"),
    [
        ("log", "kafka://host:90921", "log: the port of the host must be a number from 1 to 65535"),
        ("log", "kafka://host?replicas=1", "log: kafka:// has no parameter 'replicas': did you mean replication?"),
        ("log", "kafka://me:hunter2@host", "log: a password does not belong in a URL"),
        ("leases", "redis://:hunter2@host", "leases: a password does not belong in a URL"),
        ("leases", "redis://a,b", "leases: name one host"),
    ],
)
def test_a_wrong_url_is_a_usage_error_that_shows_no_password(
    project: Cluster, setting: str, url: str, said: str
) -> None:
    error = project.journal.error("apply", f"--{setting}", url, code=2)
    assert said in error
    assert "hunter2" not in error


# --- who may do what --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rights:
    """Logins for the secured listener and for Redis, with the rights that the README lists."""

    folder: Path
    kafka: SecureKafka
    redis_url: str
    prefix: str

    def grant(self, who: str) -> None:
        operations = [word for right in KAFKA_RIGHTS[who] for word in ("--operation", right)]
        self.kafka.acl(
            *("--add", "--allow-principal", f"User:{who}", *operations),
            *("--topic", f"{self.prefix}.", "--resource-pattern-type", "prefixed"),
        )
        with redis.Redis.from_url(self.redis_url) as client:
            commands = [f"+{command}" for command in REDIS_RIGHTS[who]]
            rules = ("reset", "on", f">{self._password(who)}", f"~{self.prefix}:*", "-@all", *commands)
            client.execute_command("ACL", "SETUSER", self._redis_user(who), *rules)

    def forget(self) -> None:
        with redis.Redis.from_url(self.redis_url) as client:
            client.execute_command("ACL", "DELUSER", *map(self._redis_user, KAFKA_RIGHTS))

    def run(self, who: str, *arguments: str, code: int = 0, leases: bool = True) -> str:
        """The command as one of them; what it says. No password is in it."""
        log = f"kafka://{who}@{self.kafka.tls}?tls=true&ca_file={self.kafka.ca_file}&mechanism=SCRAM-SHA-512"
        where = ["--log", f"{log}&replication=1&prefix={self.prefix}"]
        if leases:
            where += ["--leases", self.redis_url.replace("redis://", f"redis://{self._redis_user(who)}@")]
        passwords = {
            "JOURNAL_LOG_PASSWORD": self._password(who),
            "JOURNAL_LEASES_PASSWORD": self._password(who),
        }
        result = Journal(self.folder)(*arguments, *where, env=passwords, code=code)
        assert self._password(who) not in result.stdout + result.stderr
        return result.stdout + result.stderr

    def _redis_user(self, who: str) -> str:
        return f"{self.prefix}-{who}"

    def _password(self, who: str) -> str:
        return self.kafka.passwords[who]


@pytest.fixture
def rights(
    tmp_path: Path, secure_kafka: SecureKafka, redis_server: RedisService, fresh_prefix: str
) -> Iterator[Rights]:
    Project(tmp_path, m0001_items=ITEMS, m0002_cents=CENTS)
    rights = Rights(tmp_path, secure_kafka, redis_server.url, fresh_prefix)
    for who in KAFKA_RIGHTS:
        rights.grant(who)
    yield rights
    rights.forget()


def test_the_least_rights_of_the_readme_are_enough_for_each_and_no_more(rights: Rights) -> None:
    assert rights.run("writer", "apply").startswith("applied main/0001_items\n")
    assert "2 migrations" not in rights.run("worker", "plan")
    assert "lease     free" in rights.run("worker", "status")
    assert rights.run("worker", "leases") == "no scope is leased\n"
    assert rights.run("auditor", "scopes", leases=False) == "main\n"
    assert "ScopeCreated" in rights.run("auditor", "history", leases=False)
    assert "holds from its start" in rights.run("auditor", "verify", leases=False)
    assert "problem" not in rights.run("writer", "doctor")
    for who in ("worker", "auditor"):
        said = rights.run(who, "rollback", "--steps", "1", code=1)
        assert said.count("\n") == 1
        assert "[journal_not_permitted]" in said


# --- client libraries -------------------------------------------------------------------------------------------------

WITHOUT: Final = (
    "import sys; sys.modules[sys.argv[1]] = None; from journal.cli.invocation import run; sys.exit(run(sys.argv[2:]))"
)
IMPORTS: Final = """
import sys
from journal.cli.invocation import run
assert run(["apply"]) == 0 and run(["status"]) == 0
assert not {"aiokafka", "redis"} & set(sys.modules)
"""


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@pytest.mark.parametrize(("package", "key"), [("aiokafka", "log"), ("redis", "leases")])
def test_a_package_that_is_not_installed_is_named_with_what_installs_it(tmp_path: Path, package: str, key: str) -> None:
    settings = ("--log", "kafka://localhost", "--leases", "redis://localhost")
    result = python(tmp_path, WITHOUT, package, "history", *(settings if key == "log" else settings[2:]))
    assert result.returncode == 2
    assert result.stderr.startswith(f"journal: {key}: ")
    assert (
        f"needs the package {package}, which is not installed: pip install 'fenced-journal[kafka,redis]'"
        in result.stderr
    )


def test_an_embedded_journal_imports_no_client_library(tmp_path: Path) -> None:
    project = Project(tmp_path, m0001_names=NAMES)
    result = python(project.folder, IMPORTS)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
