"""Settings: where each comes from, which one counts, and what is refused in which words."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from journal.addresses import KAFKA_PARAMETERS, MECHANISMS, FileAddress, KafkaAddress, RedisAddress
from journal.bootstrap import open_journal, open_leases
from journal.errors import InvalidContractError
from journal.identities import Scope
from journal.log.kafka_security import MECHANISMS as KNOWN_MECHANISMS
from journal.settings import known_keys, load_settings

KEY = "0123456789abcdef" * 4
OTHER_KEY = "fedcba9876543210" * 4


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder, which is the current one, and an environment without settings."""
    for key in known_keys():
        monkeypatch.delenv(f"JOURNAL_{key.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(**flags: object) -> InvalidContractError:
    with pytest.raises(InvalidContractError) as caught:
        load_settings(**flags)
    assert caught.value.code == "journal_invalid_settings"
    return caught.value


def file_of(address: object) -> Path:
    assert isinstance(address, FileAddress)
    return address.path


def kafka(url: str, **flags: object) -> KafkaAddress:
    address = load_settings(log=url, **flags).log_at
    assert isinstance(address, KafkaAddress)
    return address


def redis(url: str, **flags: object) -> RedisAddress:
    address = load_settings(leases=url, **flags).leases_at
    assert isinstance(address, RedisAddress)
    return address


def test_without_anything_the_log_is_journal_db_beside_the_migrations(project: Path) -> None:
    settings = load_settings()
    assert settings.dir == Path("migrations")
    assert file_of(settings.log_at) == project / "journal.db"
    assert settings.leases_at == settings.log_at
    assert settings.scope is None
    assert settings.max_event_bytes == 16 * 2**20


def test_the_project_folder_is_the_one_that_holds_the_migrations(project: Path) -> None:
    assert file_of(load_settings(dir=Path("service/db/migrations/")).log_at) == project / "service/db/journal.db"
    assert file_of(load_settings(dir=Path("/srv/app/migrations")).log_at) == Path("/srv/app/journal.db")
    assert file_of(load_settings(dir=Path("service/../migrations")).log_at) == project / "journal.db"


def test_a_flag_comes_before_a_variable_and_a_variable_before_the_file(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "journal.toml").write_text('scope = "of-the-file"\n')
    assert load_settings().scope == "of-the-file"
    monkeypatch.setenv("JOURNAL_SCOPE", "of-the-variable")
    assert load_settings().scope == "of-the-variable"
    assert load_settings(scope="of-the-flag").scope == "of-the-flag"
    assert load_settings(scope=None).scope == "of-the-variable"


def test_an_empty_variable_is_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "journal.toml").write_text('scope = "of-the-file"\n')
    monkeypatch.setenv("JOURNAL_SCOPE", "")
    assert load_settings().scope == "of-the-file"


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_the_file_is_found_by_dir(project: Path, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    (project / "service").mkdir()
    (project / "service/journal.toml").write_text('scope = "found"\n')
    (project / "journal.toml").write_text('scope = "not-this-one"\n')
    if by == "variable":
        monkeypatch.setenv("JOURNAL_DIR", "service/migrations")
        assert load_settings().scope == "found"
    else:
        assert load_settings(dir=Path("service/migrations")).scope == "found"


def test_relative_paths_in_the_file_are_relative_to_it(project: Path) -> None:
    (project / "service").mkdir()
    (project / "service/journal.toml").write_text(
        'log = "sqlite:///data/j.db"\nleases = "sqlite:////var/l.db"\nkey_file = "secret"\n'
    )
    settings = load_settings(dir=Path("service/migrations"))
    assert file_of(settings.log_at) == project / "service/data/j.db"
    assert file_of(settings.leases_at) == Path("/var/l.db")
    assert settings.key_file == project / "service/secret"


def test_relative_paths_elsewhere_are_relative_to_the_current_folder(project: Path) -> None:
    assert file_of(load_settings(log="sqlite:///data/j.db", dir=Path("x/migrations")).log_at) == Path("data/j.db")


def test_leases_are_with_the_log_unless_they_are_named(project: Path) -> None:
    assert file_of(load_settings(log="sqlite:///a.db").leases_at) == Path("a.db")
    assert file_of(load_settings(log="sqlite:///a.db", leases="sqlite:///b.db").leases_at) == Path("b.db")


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("scpoe", "scope"), ("Scope", "scope"), ("databse", "database"), ("max_event_byte", "max_event_bytes")],
)
def test_an_unknown_key_names_the_nearest_known_one_and_the_file(project: Path, key: str, nearest: str) -> None:
    path = project / "journal.toml"
    path.write_text(f'{key} = "x"\n')
    error = refusal()
    assert f"did you mean {nearest}?" in error.message
    assert str(path) in error.message
    assert error.details["file"] == str(path)


def test_an_unknown_key_that_is_near_to_none_lists_them(project: Path) -> None:
    (project / "journal.toml").write_text("zzz = 1\n")
    assert "the settings are scope, app, database, log" in refusal().message


def test_an_unknown_flag_names_the_nearest_known_one(project: Path) -> None:
    assert "did you mean leases?" in refusal(lease="sqlite:///x.db").message


def test_a_variable_that_is_nearly_one_of_ours_is_a_mistake(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_SCOEP", "x")
    assert "did you mean JOURNAL_SCOPE?" in refusal().message


def test_a_variable_of_somebody_else_is_left_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")  # what systemd sets for every service
    assert load_settings().scope is None


@pytest.mark.parametrize("text", ["scope = ", "scope = \xff", "[[[", 'a = "b"\na = "c"'])
def test_a_file_that_cannot_be_read_is_named(project: Path, text: str) -> None:
    path = project / "journal.toml"
    path.write_bytes(text.encode("latin-1"))
    assert str(path) in refusal().message


@pytest.mark.parametrize(
    "url", ["j.db", "sqlite:j.db", "sqlite://j.db", "sqlite:///", "mysql://root:hunter2@host/db", "sqlite:///a?mode=rw"]
)
def test_any_other_log_is_refused_without_repeating_it(project: Path, url: str) -> None:
    error = refusal(log=url)
    assert "must be sqlite:///file" in error.message
    assert "hunter2" not in str(error)


def test_a_target_database_is_a_secret(project: Path) -> None:
    settings = load_settings(database="postgresql://user:hunter2@host/db")
    assert settings.database is not None
    assert settings.database.get_secret_value() == "postgresql://user:hunter2@host/db"
    assert "hunter2" not in repr(settings)
    assert "database" in refusal(database="mongodb://user:hunter2@host").message
    with pytest.raises(InvalidContractError, match="postgresql:// is not in this version yet"):
        settings.database_file  # noqa: B018  (it raises)


@pytest.mark.parametrize("value", ["0", "-5", "much", "1e9", str(2**31)])
def test_a_limit_outside_its_range_is_refused_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("JOURNAL_MAX_EVENT_BYTES", value)
    assert refusal().message.startswith("max_event_bytes: ")


@pytest.mark.parametrize("line", ["scope = 5", "log = []", 'max_event_bytes = "many"', "key_file = 3"])
def test_a_value_of_another_type_is_refused_by_name(project: Path, line: str) -> None:
    (project / "journal.toml").write_text(f"{line}\n")
    assert refusal().message.startswith(line.partition(" ")[0])


def test_a_malformed_scope_or_app_has_its_own_code(project: Path) -> None:
    with pytest.raises(InvalidContractError) as caught:
        load_settings(scope="-orders")
    assert caught.value.code == "journal_invalid_scope"
    with pytest.raises(InvalidContractError) as caught:
        load_settings(app="Orders")
    assert caught.value.code == "journal_invalid_migration_id"
    assert load_settings(scope="orders.eu", app="orders").app == "orders"


# --- Kafka and Redis --------------------------------------------------------------------------------------------------


def test_a_kafka_log_has_servers_and_what_its_parameters_say(project: Path) -> None:
    assert kafka("kafka://broker") == KafkaAddress(("broker:9092",), replication=3)
    assert kafka("kafka://a:1,b,[::1]:19092,[fe80::2]/?prefix=orders.eu&replication=1&timeout=0.5") == KafkaAddress(
        ("a:1", "b:9092", "[::1]:19092", "[fe80::2]:9092"),
        prefix="orders.eu",
        replication=1,
        timeout=timedelta(seconds=0.5),
    )
    assert kafka("KAFKA://broker").servers == ("broker:9092",)


def test_the_security_of_a_kafka_log_is_in_its_url_but_for_the_password(project: Path) -> None:
    url = (
        "kafka://wri%40ter@a,b?tls=true&ca_file=ca%26.pem&certificate_file=/c.pem&private_key_file=k.pem"
        "&mechanism=SCRAM-SHA-512"
    )
    assert kafka(url) == KafkaAddress(
        ("a:9092", "b:9092"),
        tls=True,
        ca_file=Path("ca&.pem"),
        certificate_file=Path("/c.pem"),
        private_key_file=Path("k.pem"),
        mechanism="SCRAM-SHA-512",
        user="wri@ter",
    )


def test_redis_leases_have_a_server_a_database_and_what_their_parameters_say(project: Path) -> None:
    assert redis("redis://host") == RedisAddress("host:6379")
    assert redis("rediss://me@[::1]:7000/3?prefix=p&ca_file=/ca.pem&timeout=1") == RedisAddress(
        "[::1]:7000",
        database=3,
        tls=True,
        user="me",
        prefix="p",
        ca_file=Path("/ca.pem"),
        timeout=timedelta(seconds=1),
    )
    assert redis("rediss://m%2Fe@host/1").url == "rediss://m%2Fe@host:6379/1"


def test_relative_files_in_a_url_of_journal_toml_are_relative_to_it(project: Path) -> None:
    (project / "service").mkdir()
    (project / "service/journal.toml").write_text(
        'log = "kafka://host?tls=true&ca_file=certs/my%20ca.pem&prefix=x"\n'
        'leases = "rediss://host?ca_file=/etc/ca.pem"\nlog_password_file = "pw"\n'
    )
    settings = load_settings(dir=Path("service/migrations"))
    assert settings.log_at == KafkaAddress(
        ("host:9092",), prefix="x", tls=True, ca_file=project / "service/certs/my ca.pem"
    )
    assert settings.leases_at == RedisAddress("host:6379", tls=True, ca_file=Path("/etc/ca.pem"))
    assert settings.log_password_file == project / "service/pw"
    assert kafka("kafka://host?tls=true&ca_file=certs/ca.pem").ca_file == Path("certs/ca.pem")


PASSWORDS = (
    "kafka://:hunter2@host", "kafka://me:hunter2@host?prefix=x", "kafka://me:hun@ter2@host", "kafka://me:hunter/2@host",
    "kafka://me:hunter?2@host", "kafka://me:9092?hunter2@host", "kafka://me:9?hunter2&x@host", "kafka://me:1/hunter2@host",
    "kafka://me:hunter#2@host", "kafka://me:#hunter2", "kafka://host?prefix=hunter2@host", "kafka://me:hunter 2@host",
    "kafka://a,b:hunter2@c", "kafka://me:hunter2", "kafka://hunter2:hunter2:hunter2",
)  # fmt: skip


@pytest.mark.parametrize("url", [*PASSWORDS, *(url.replace("kafka", "redis", 1) for url in PASSWORDS)])
@pytest.mark.parametrize("by", ["flag", "variable", "file"])
def test_a_password_in_a_url_is_refused_and_shown_by_no_message(
    project: Path, monkeypatch: pytest.MonkeyPatch, url: str, by: str
) -> None:
    key = "log" if url.startswith("kafka") else "leases"
    if by == "variable":
        monkeypatch.setenv(f"JOURNAL_{key.upper()}", url)
    elif by == "file":
        (project / "journal.toml").write_text(f'{key} = "{url}"\n')
    error = refusal(**({key: url} if by == "flag" else {}))
    assert error.message.startswith(f"{key}: ")
    assert "hunter" not in f"{error}{error.details}"
    if "@host" in url and " " not in url:
        assert (
            f"set JOURNAL_{key.upper()}_PASSWORD, or name a file that holds it with {key}_password_file"
            in error.message
        )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("kafka:host", "must begin with kafka://"),
        ("kafka://", "the host must be a name or an address"),
        ("kafka://a,,b", "host 2 must be a name or an address"),
        ("kafka://a,b:0", "the port of host 2 must be a number from 1 to 65535"),
        ("kafka://a:65536", "the port of the host must be"),
        ("kafka://a:", "the port of the host must be"),
        ("kafka://a:9o92", "the port of the host must be"),
        ("kafka://::1:9092", "the host must be a name or an address, IPv6 in brackets"),
        ("kafka://[::g]:9092", "the host must be a name or an address, IPv6 in brackets"),
        ("kafka://[::1]9092x", "the port of the host must be"),
        ("kafka://b\u00fccher", "the host must be"),
        ("kafka://a/topic", "behind the hosts come parameters alone"),
        ("kafka://u@a,u@b", "the user is named once, before the first host"),
        ("kafka://@a", "the user is named once, before the first host"),
        ("kafka://a?replicaton=1", "kafka:// has no parameter 'replicaton': did you mean replication?"),
        ("kafka://a?zzz=1", f"the parameters are {', '.join(KAFKA_PARAMETERS)}"),
        ("kafka://a?replication=0", "replication must be a number of brokers from 1"),
        ("kafka://a?replication=-1", "replication must be a number of brokers from 1"),
        ("kafka://a?replication=three", "replication must be a number of brokers from 1"),
        ("kafka://a?replication=40000", "replication must be a number of brokers from 1"),
        ("kafka://a?replication", "replication needs a value"),
        ("kafka://a?replication=", "replication needs a value"),
        ("kafka://a?prefix=x&prefix=y", "prefix is given twice"),
        ("kafka://a?prefix=-x", "prefix must be 1 to 120 of"),
        ("kafka://a?tls=yes", "tls must be true or false"),
        ("kafka://a?ca_file=x", "ca_file goes with tls=true"),
        ("kafka://a?tls=true&private_key_file=x", "private_key_file goes with certificate_file"),
        ("kafka://a?mechanism=PLAIN", "a login takes both a user (kafka://user@host:port) and mechanism="),
        ("kafka://u@a", "a login takes both a user (kafka://user@host:port) and mechanism="),
        ("kafka://u@a?mechanism=scram", "mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("kafka://a?timeout=0", "timeout must be a number of seconds"),
        ("kafka://a?timeout=1e9", "timeout must be a number of seconds"),
        ("redis://a", "must be sqlite:///file"),
    ],
)
def test_a_malformed_kafka_log_is_refused_by_what_is_wrong(project: Path, url: str, message: str) -> None:
    assert refusal(log=url).message.startswith("log: ")
    assert message in refusal(log=url).message


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://a,b", "name one host"),
        ("redis://a/x", "behind the host comes the number of a database, as in redis://host:port/0"),
        ("rediss://a/1/2", "as in rediss://host:port/0"),
        (
            "redis://a?replication=1",
            "redis:// has no parameter 'replication': the parameters are prefix, ca_file, timeout",
        ),
        ("redis://a?perfix=1", "did you mean prefix?"),
        ("redis://a?ca_file=x", "ca_file goes with rediss://"),
        ("redis://a:70000", "the port of the host must be"),
        ("kafka://a", "must be sqlite:///file"),
    ],
)
def test_malformed_redis_leases_are_refused_by_what_is_wrong(project: Path, url: str, message: str) -> None:
    assert refusal(leases=url).message.startswith("leases: ")
    assert message in refusal(leases=url).message


def test_what_is_shown_of_a_service_names_no_user(project: Path) -> None:
    log = kafka("kafka://somebody@a:1,b?mechanism=PLAIN&prefix=p&timeout=1")
    assert str(log) == "kafka://a:1,b:9092?prefix=p"
    assert str(redis("redis://somebody@a?prefix=p")) == "redis://a:6379/0"


def test_the_mechanisms_are_those_of_the_adapter() -> None:
    assert MECHANISMS == KNOWN_MECHANISMS


@pytest.mark.parametrize("name", ["log_password", "leases_password"])
def test_a_password_comes_from_the_environment_or_a_file_and_is_never_shown(
    project: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (project / "password").write_text(" hunter 2 \n")
    assert load_settings(**{f"{name}_file": Path("password")}).secret(name) == " hunter 2 "
    monkeypatch.setenv(f"JOURNAL_{name.upper()}", "hunter2")
    settings = load_settings()
    assert settings.secret(name) == "hunter2"
    assert "hunter2" not in repr(settings) + str(settings)
    assert f"{name} and {name}_file are both given" in refusal(**{f"{name}_file": Path("password")}).message


@pytest.mark.parametrize("name", ["log_password", "leases_password"])
def test_a_password_in_journal_toml_is_refused_without_repeating_it(project: Path, name: str) -> None:
    (project / "journal.toml").write_text(f'{name} = "hunter2"\n')
    error = refusal()
    assert f"set JOURNAL_{name.upper()}, or name a file with {name}_file" in error.message
    assert "hunter2" not in f"{error}{error.details}"


@pytest.mark.parametrize("content", [b"", b"\n", b"hunter2\nhunter2\n", b"\xffhunter2", b"hunter2\0"])
def test_a_malformed_password_file_is_refused_by_name(project: Path, content: bytes) -> None:
    path = project / "password"
    path.write_bytes(content)
    with pytest.raises(InvalidContractError) as caught:
        load_settings(log_password_file=path).secret("log_password")
    assert f"log_password_file: {path} must hold the password" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_a_login_needs_user_and_password(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for log, leases, key in (
        ("kafka://u@a?mechanism=PLAIN", "redis://b", "log_password"),
        ("kafka://a", "redis://u@b", "leases_password"),
    ):
        with pytest.raises(InvalidContractError, match=f"set JOURNAL_{key.upper()}, or name a file") as caught:
            open_journal(load_settings(log=log, leases=leases))
        assert caught.value.details["key"] == key
    monkeypatch.setenv("JOURNAL_LOG_PASSWORD", "hunter2")
    with pytest.raises(InvalidContractError, match="there is a password, but no user"):
        open_journal(load_settings(log="kafka://a", leases="redis://b"))
    assert file_of(load_settings(log="sqlite:///export.db").log_at) == Path("export.db"), "a file has no use for one"


def test_a_kafka_log_needs_a_lease_store_that_is_named(project: Path) -> None:
    settings = load_settings(log="kafka://a")
    assert settings.leases_at is None
    with pytest.raises(
        InvalidContractError, match="leases: a log on Kafka needs a lease store: name one with --leases"
    ):
        open_journal(settings, create=True)
    assert file_of(load_settings(log="kafka://a", leases="sqlite:///l.db").leases_at) == Path("l.db")


async def test_a_kafka_log_is_read_without_a_lease_store_until_a_lease_is_asked_for(project: Path) -> None:
    leases = open_leases(load_settings(log="kafka://a"), read_only=True)
    with pytest.raises(InvalidContractError, match="leases: a log on Kafka needs a lease store"):
        await leases.inspect(Scope("main"))
    await leases.close()


def test_leases_on_redis_go_with_an_embedded_log(project: Path) -> None:
    settings = load_settings(leases="redis://host")
    assert file_of(settings.log_at) == project / "journal.db"
    assert settings.leases_at == RedisAddress("host:6379")


@pytest.mark.parametrize(
    ("log", "leases", "prefix"),
    [
        ("kafka://a?prefix=orders", "redis://b", "orders"),
        ("kafka://a?prefix=orders", "redis://b?prefix=own", "own"),
        ("kafka://a", "redis://b", "journal"),
        (None, "redis://b", "journal"),
    ],
)
def test_leases_have_the_prefix_of_the_log_unless_they_have_one_of_their_own(
    project: Path, log: str | None, leases: str, prefix: str
) -> None:
    store = open_leases(load_settings(log=log, leases=leases))
    assert repr(store) == f"RedisLeases('redis://b:6379/0', prefix='{prefix}')"


# --- keys -------------------------------------------------------------------------------------------------------------


def test_a_key_comes_from_the_environment_and_is_never_shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_KEY", KEY)
    monkeypatch.setenv("JOURNAL_PREVIOUS_KEY", OTHER_KEY)
    settings = load_settings()
    assert settings.secret("key") == KEY
    assert settings.secret("previous_key") == OTHER_KEY
    assert KEY not in repr(settings) + str(settings)


def test_a_key_comes_from_a_file_too(project: Path) -> None:
    (project / "secret").write_text(f"{KEY}\n")
    assert load_settings(key_file=Path("secret")).secret("key") == KEY


@pytest.mark.parametrize("key", ["key", "previous_key"])
def test_a_key_in_journal_toml_is_refused_without_repeating_it(project: Path, key: str) -> None:
    (project / "journal.toml").write_text(f'{key} = "{KEY}"\n')
    error = refusal()
    assert f"JOURNAL_{key.upper()}" in error.message
    assert KEY not in f"{error}{error.details}"


@pytest.mark.parametrize("key", [KEY[:-1], KEY + "0", "secret", "z" * 64])
def test_a_malformed_key_is_refused_without_repeating_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("JOURNAL_KEY", key)
    error = refusal()
    assert error.message == "key: must be 64 hex digits"
    assert key not in f"{error}{error.details}"


@pytest.mark.parametrize("content", [b"", b"secret", f"{KEY}\n{KEY}".encode(), b"\xff" * 64])
def test_a_malformed_key_file_is_refused_by_name(project: Path, content: bytes) -> None:
    path = project / "secret"
    path.write_bytes(content)
    settings = load_settings(key_file=path)
    with pytest.raises(InvalidContractError) as caught:
        settings.secret("key")
    assert str(path) in caught.value.message


def test_a_missing_key_file_is_refused_by_name(project: Path) -> None:
    settings = load_settings(key_file=Path("nowhere"))
    with pytest.raises(InvalidContractError, match=r"key_file: nowhere cannot be read"):
        open_journal(settings)


def test_a_key_and_a_key_file_contradict_each_other(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_KEY", KEY)
    assert "key and key_file are both given" in refusal(key_file=Path("secret")).message


def test_several_previous_keys_come_with_commas_or_a_line_each(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "old").write_text(f"{KEY}\n{OTHER_KEY}\n")
    assert load_settings(previous_key_file=Path("old")).previous_keys() == [KEY, OTHER_KEY]
    monkeypatch.setenv("JOURNAL_PREVIOUS_KEY", f"{KEY}, {OTHER_KEY}")
    assert load_settings().previous_keys() == [KEY, OTHER_KEY]


def test_a_previous_key_needs_a_current_one(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_PREVIOUS_KEY", KEY)
    with pytest.raises(InvalidContractError, match="previous_key is given without key"):
        open_journal(load_settings())


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# --- wiring -----------------------------------------------------------------------------------------------------------


async def test_opening_makes_the_file_only_when_it_is_asked_to(project: Path) -> None:
    settings = load_settings()
    for read_only in (False, True):
        async with open_journal(settings, create=read_only, read_only=read_only) as journal:
            with pytest.raises(InvalidContractError) as caught:
                await journal.scopes()
            assert caught.value.code == "journal_missing_file"
    assert names_in(project) == []
    async with open_journal(settings, create=True) as journal:
        assert await journal.scopes() == []
    assert "journal.db" in names_in(project)
