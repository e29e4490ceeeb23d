"""Settings: where each comes from, which one counts, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.bootstrap import open_journal
from journal.errors import InvalidContractError
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


def test_without_anything_the_log_is_journal_db_beside_the_migrations(project: Path) -> None:
    settings = load_settings()
    assert settings.dir == Path("migrations")
    assert settings.log_file == project / "journal.db"
    assert settings.leases_file == settings.log_file
    assert settings.scope is None
    assert settings.max_event_bytes == 16 * 2**20


def test_the_project_folder_is_the_one_that_holds_the_migrations(project: Path) -> None:
    assert load_settings(dir=Path("service/db/migrations/")).log_file == project / "service/db/journal.db"
    assert load_settings(dir=Path("/srv/app/migrations")).log_file == Path("/srv/app/journal.db")
    assert load_settings(dir=Path("service/../migrations")).log_file == project / "journal.db"


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
    assert settings.log_file == project / "service/data/j.db"
    assert settings.leases_file == Path("/var/l.db")
    assert settings.key_file == project / "service/secret"


def test_relative_paths_elsewhere_are_relative_to_the_current_folder(project: Path) -> None:
    assert load_settings(log="sqlite:///data/j.db", dir=Path("x/migrations")).log_file == Path("data/j.db")


def test_leases_are_with_the_log_unless_they_are_named(project: Path) -> None:
    assert load_settings(log="sqlite:///a.db").leases_file == Path("a.db")
    assert load_settings(log="sqlite:///a.db", leases="sqlite:///b.db").leases_file == Path("b.db")


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


@pytest.mark.parametrize("url", ["kafka://host:9092?prefix=x", "redis://:hunter2@host", "rediss://:hunter2@host"])
@pytest.mark.parametrize("key", ["log", "leases"])
def test_a_deployment_of_a_later_version_is_refused_by_name(project: Path, key: str, url: str) -> None:
    error = refusal(**{key: url})
    assert error.message.startswith(f"{key}: {url.partition(':')[0]}:// is not in this version yet")
    assert "hunter2" not in str(error)


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
