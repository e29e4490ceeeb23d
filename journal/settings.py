"""Settings: the only reader of the environment.

Each key is taken from the first of these that names it: a flag of the command, the environment variable `JOURNAL_<KEY>`,
the file `journal.toml`, the default. The folder that holds the migrations' folder (`dir`) is the project folder:
`journal.toml` and, by default, `journal.db` lie there, beside the migrations. Relative paths in `journal.toml` are
relative to it; those in flags and variables to the current folder.

Secrets never come from flags, which other users of a machine can see, or from `journal.toml`, which gets committed: a
key comes from `JOURNAL_KEY` (and `JOURNAL_PREVIOUS_KEY` while keys are rotated) or from the file that `key_file` (and
`previous_key_file`) names.

This module takes long to import, because of pydantic: import it where it is used.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from journal.errors import Code, JournalError, failure
from journal.identities import MigrationId, Scope

PREFIX: Final = "JOURNAL_"
FILE_NAME: Final = "journal.toml"
LOG_NAME: Final = "journal.db"
DEFAULT_APP: Final = "main"
DEFAULT_SCOPE: Final = "main"
DEFAULT_MAX_EVENT_BYTES: Final = 16 * 2**20
_MAX_KEY_FILE_BYTES: Final = 4_096
_LATER: Final = ("kafka", "redis", "rediss", "postgresql")
_SECRETS: Final = ("key", "previous_key")
_PATHS: Final = ("key_file", "previous_key_file")
_URLS: Final = ("log", "leases", "database")


class Settings(BaseSettings):
    """What the command and `bootstrap` are told. Build it with `load_settings`, which reports errors as the journal's."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, env_ignore_empty=True
    )

    dir: Path = Field(Path("migrations"), description="folder of the migrations; the project folder is its parent")
    scope: Scope | None = Field(None, description="managed target")
    app: str | None = Field(None, description="label of the migration ids")
    database: SecretStr | None = Field(None, description="target database; secret, since it may hold a password")
    log: str | None = Field(None, description="sqlite:///file; by default journal.db in the project folder")
    leases: str | None = Field(None, description="sqlite:///file; by default with the log")
    key: SecretStr | None = Field(None, description="64 hex digits; makes and checks the events' MACs")
    previous_key: SecretStr | None = Field(None, description="the keys before it, comma-separated; these only check")
    key_file: Path | None = Field(None, description="file that holds the key")
    previous_key_file: Path | None = Field(None, description="file that holds the keys before it, one a line")
    max_event_bytes: int = Field(DEFAULT_MAX_EVENT_BYTES, ge=1_024, le=2**30, description="largest event accepted")

    @property
    def project(self) -> Path:
        """The project folder."""
        return project_folder(self.dir)

    @property
    def log_file(self) -> Path:
        """File of the embedded log."""
        return self.project / LOG_NAME if self.log is None else sqlite_file("log", self.log)

    @property
    def leases_file(self) -> Path:
        """File of the embedded lease store."""
        return self.log_file if self.leases is None else sqlite_file("leases", self.leases)

    @property
    def app_label(self) -> str:
        """Label of the migration ids."""
        return DEFAULT_APP if self.app is None else self.app

    @property
    def database_file(self) -> Path:
        """File of an SQLite target. Raises `journal_invalid_settings` when none is named, or another database."""
        if self.database is None:
            raise _invalid(
                "database: name the target with --database sqlite:///file, JOURNAL_DATABASE or journal.toml",
                key="database",
            )
        return sqlite_file("database", self.database.get_secret_value())

    @field_validator("scope", mode="before")
    @classmethod
    def _check_scope(cls, value: object) -> object:
        return Scope(value) if isinstance(value, str) else value

    @field_validator("app")
    @classmethod
    def _check_app(cls, value: str | None) -> str | None:
        return value if value is None else MigrationId(value, "0").app

    @field_validator("database")
    @classmethod
    def _check_database(cls, value: SecretStr | None) -> SecretStr | None:
        scheme = None if value is None else _scheme(value.get_secret_value())
        if scheme not in (None, "sqlite", "postgresql"):
            raise ValueError("must be sqlite:///file or postgresql://...")
        return value

    @field_validator(*_SECRETS)
    @classmethod
    def _check_key(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and not _is_key(info.field_name, value.get_secret_value()):
            raise ValueError("must be 64 hex digits")
        return value

    @field_validator("log", "leases")
    @classmethod
    def _check_url(cls, value: str | None, info: Any) -> str | None:
        if value is not None:
            sqlite_file(info.field_name, value)
        return value

    @model_validator(mode="after")
    def _check_one_key(self) -> Settings:
        for name in _SECRETS:
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"{name} and {name}_file are both given: leave one out")
        return self

    def secret(self, name: str) -> str | None:
        """The digits of `key` or `previous_key`, wherever they come from. Raises `journal_invalid_settings`."""
        given: SecretStr | None = getattr(self, name)
        path: Path | None = getattr(self, f"{name}_file")
        if path is None:
            return None if given is None else given.get_secret_value()
        return _read_key(name, path)

    def previous_keys(self) -> list[str]:
        """The digits of each key before the current one. Raises `journal_invalid_settings`."""
        return [digits for digits in re.split(r"[,\s]+", self.secret("previous_key") or "") if digits]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (there are none: what a file says is in journal.toml)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        flags, variables = init_settings(), env_settings()
        directory = Path(flags.get("dir") or variables.get("dir") or cls.model_fields["dir"].default)
        return init_settings, env_settings, InitSettingsSource(settings_cls, _read_file(project_folder(directory)))


def load_settings(**flags: Any) -> Settings:
    """Read all sources; `flags` that are None were not given.

    Raises:
        InvalidContractError: `journal_invalid_settings` and, for what these name, `journal_invalid_scope` and
            `journal_invalid_migration_id`. The value of a secret is in no message.
    """
    _check_environment(os.environ)
    try:
        return Settings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise _translate(error) from None


def known_keys() -> tuple[str, ...]:
    """Every key, as `journal.toml` spells it."""
    return tuple(Settings.model_fields)


def project_folder(directory: Path) -> Path:
    """The folder in which the migrations' folder lies. Does not ask the file system, so that neither need exist."""
    return Path(os.path.normpath(directory.absolute())).parent


def sqlite_file(key: str, url: str) -> Path:
    """The file that `sqlite:///file` (relative) or `sqlite:////folder/file` (absolute) names.

    Raises:
        InvalidContractError: `journal_invalid_settings`. The message names the scheme alone: a URL may hold a password.
    """
    scheme = _scheme(url)
    if scheme in _LATER:
        raise _invalid(f"{key}: {scheme}:// is not in this version yet: use sqlite:///file", key=key)
    path = url.removeprefix("sqlite:///")
    if path == url or not path or "?" in path or "\0" in path:
        raise _invalid(f"{key}: must be sqlite:///file (relative) or sqlite:////folder/file (absolute)", key=key)
    return Path(path)


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower()


def _invalid(message: str, **details: Any) -> JournalError:
    return failure(Code.INVALID_SETTINGS, message, **details)


# --- journal.toml -----------------------------------------------------------------------------------------------------


def _read_file(folder: Path) -> dict[str, Any]:
    path = folder / FILE_NAME
    try:
        values = tomllib.loads(path.read_text("utf-8-sig"))  # some editors write a byte order mark
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid(f"{path} cannot be read: {error}", file=str(path)) from error
    _check_keys(values, path)
    return {key: _anchored(key, value, folder) for key, value in values.items()}


def _check_keys(values: Iterable[str], path: Path) -> None:
    allowed = [key for key in known_keys() if key not in (*_SECRETS, "dir")]
    for key in values:
        if key in _SECRETS:
            raise _invalid(
                f"{path}: {key} is a secret: set {PREFIX}{key.upper()}, or name a file with {key}_file", file=str(path)
            )
        if key == "dir":
            raise _invalid(f"{path}: dir cannot be set here: this file is found by it", file=str(path))
        if key not in allowed:
            raise _invalid(f"{path}: there is no setting {key!r:.100}{_nearest(key, allowed)}", file=str(path), key=key)


def _nearest(key: str, allowed: Iterable[str]) -> str:
    allowed = list(allowed)
    near = difflib.get_close_matches(key.lower(), allowed, n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else f": the settings are {', '.join(allowed)}"


def _anchored(key: str, value: Any, folder: Path) -> Any:
    """Make a relative path of the file relative to the file's folder."""
    if not isinstance(value, str):
        return value
    if key in _PATHS:
        return folder / value
    if key in _URLS and value.startswith("sqlite:///"):
        return f"sqlite:///{folder / value.removeprefix('sqlite:///')}"
    return value


# --- environment and key files ----------------------------------------------------------------------------------------


def _check_environment(environment: Mapping[str, str]) -> None:
    """A variable that is nearly one of ours is a mistake; any other belongs to somebody (systemd has JOURNAL_STREAM)."""
    known = [f"{PREFIX}{key.upper()}" for key in known_keys()]
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            key = name.removeprefix(PREFIX)
            near = difflib.get_close_matches(key, [other.removeprefix(PREFIX) for other in known], n=1, cutoff=0.8)
            if near:
                raise _invalid(f"there is no variable {name}: did you mean {PREFIX}{near[0]}?", variable=name)


def _read_key(name: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise _invalid(f"{name}_file: {path} cannot be read: {error.strerror}", key=f"{name}_file") from error
    digits = content.decode("ascii", "replace").strip()
    if not _is_key(name, digits):
        raise _invalid(f"{name}_file: {path} must hold 64 hex digits and nothing else", key=f"{name}_file")
    return digits


def _is_key(name: str | None, text: str) -> bool:
    """Whether `text` is a key or, for previous ones, a list of them."""
    key = r"[0-9A-Fa-f]{64}"
    return bool(re.fullmatch(rf"{key}([,\s]+{key})*" if name == "previous_key" else key, text))


def _translate(error: ValidationError) -> JournalError:
    """The first problem, by the name that people know, without the value."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = f"there is no such setting{_nearest(key, known_keys())}"
    return _invalid(f"{key}: {message}" if key else message, key=key)
