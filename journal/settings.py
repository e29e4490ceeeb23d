"""Settings: the only reader of the environment.

Each key is taken from the first of these that names it: a flag of the command, the environment variable `JOURNAL_<KEY>`,
the file `journal.toml`, the default. The folder that holds the migrations' folder (`dir`) is the project folder:
`journal.toml` and, by default, `journal.db` lie there, beside the migrations. Relative paths in `journal.toml` are
relative to it; those in flags and variables to the current folder.

Secrets never come from flags, which other users of a machine can see, or from `journal.toml`, which gets committed: a
key comes from `JOURNAL_KEY` (and `JOURNAL_PREVIOUS_KEY` while keys are rotated) or from the file that `key_file` (and
`previous_key_file`) names, the passwords of Kafka and Redis from `JOURNAL_LOG_PASSWORD` and `JOURNAL_LEASES_PASSWORD` or
the files that `log_password_file` and `leases_password_file` name.

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

from journal.addresses import (
    FileAddress,
    LeasesAddress,
    LogAddress,
    anchored,
    leases_address,
    log_address,
    nearest,
    scheme,
    sqlite_file,
)
from journal.errors import Code, JournalError, failure
from journal.identities import MigrationId, Scope

PREFIX: Final = "JOURNAL_"
FILE_NAME: Final = "journal.toml"
LOG_NAME: Final = "journal.db"
DEFAULT_APP: Final = "main"
DEFAULT_SCOPE: Final = "main"
DEFAULT_MAX_EVENT_BYTES: Final = 16 * 2**20
_MAX_SECRET_FILE_BYTES: Final = 4_096
_KEYS: Final = ("key", "previous_key")
_PASSWORDS: Final = ("log_password", "leases_password")
_SECRETS: Final = (*_KEYS, *_PASSWORDS)
_PATHS: Final = tuple(f"{name}_file" for name in _SECRETS)
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
    log: str | None = Field(
        None, description="sqlite:///file or kafka://host:port,...; by default journal.db in the project folder"
    )
    leases: str | None = Field(
        None, description="sqlite:///file, redis://host:port or rediss://...; by default in the log's file"
    )
    log_password: SecretStr | None = Field(None, description="password of the user that the log's URL names")
    log_password_file: Path | None = Field(None, description="file that holds it")
    leases_password: SecretStr | None = Field(None, description="password for the lease store")
    leases_password_file: Path | None = Field(None, description="file that holds it")
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
    def log_at(self) -> LogAddress:
        """Where the log is."""
        return FileAddress(self.project / LOG_NAME) if self.log is None else log_address(self.log)

    @property
    def leases_at(self) -> LeasesAddress | None:
        """Where the leases are; None for a log on Kafka when nobody said it: a file would be another on every machine."""
        if self.leases is not None:
            return leases_address(self.leases)
        return self.log_at if isinstance(self.log_at, FileAddress) else None

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
        if scheme(self.database.get_secret_value()) == "postgresql":
            raise _invalid("database: postgresql:// is not in this version yet: use sqlite:///file", key="database")
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
        if value is not None and scheme(value.get_secret_value()) not in ("sqlite", "postgresql"):
            raise ValueError("must be sqlite:///file or postgresql://...")
        return value

    @field_validator(*_KEYS)
    @classmethod
    def _check_key(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is not None and not _is_key(info.field_name, value.get_secret_value()):
            raise ValueError("must be 64 hex digits")
        return value

    @field_validator("log")
    @classmethod
    def _check_log(cls, value: str | None) -> str | None:
        if value is not None:
            log_address(value)
        return value

    @field_validator("leases")
    @classmethod
    def _check_leases(cls, value: str | None) -> str | None:
        if value is not None:
            leases_address(value)
        return value

    @model_validator(mode="after")
    def _check_one_of_each(self) -> Settings:
        for name in _SECRETS:
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"{name} and {name}_file are both given: leave one out")
        return self

    def secret(self, name: str) -> str | None:
        """The digits of a key, or a password, wherever it comes from. Raises `journal_invalid_settings`."""
        given: SecretStr | None = getattr(self, name)
        path: Path | None = getattr(self, f"{name}_file")
        if path is None:
            return None if given is None else given.get_secret_value()
        return _read_password(name, path) if name in _PASSWORDS else _read_key(name, path)

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
            raise _invalid(
                f"{path}: there is no setting {key!r:.100}{nearest(key, allowed, what='the settings')}",
                file=str(path),
                key=key,
            )


def _anchored(key: str, value: Any, folder: Path) -> Any:
    """Make a relative path of the file relative to the file's folder."""
    if not isinstance(value, str):
        return value
    if key in _PATHS:
        return folder / value
    return anchored(value, folder) if key in _URLS else value


# --- environment and secret files -------------------------------------------------------------------------------------


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
    digits = _read_secret(name, path).decode("ascii", "replace").strip()
    if not _is_key(name, digits):
        raise _invalid(f"{name}_file: {path} must hold 64 hex digits and nothing else", key=f"{name}_file")
    return digits


def _read_password(name: str, path: Path) -> str:
    """One line; blanks at its ends are the password's own."""
    text = _read_secret(name, path).decode("utf-8", "surrogateescape").removesuffix("\n").removesuffix("\r")
    if not text or not text.isprintable():
        raise _invalid(f"{name}_file: {path} must hold the password, on one line, and nothing else", key=f"{name}_file")
    return text


def _read_secret(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET_FILE_BYTES)
    except OSError as error:
        raise _invalid(f"{name}_file: {path} cannot be read: {error.strerror}", key=f"{name}_file") from error


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
        message = f"there is no such setting{nearest(key, known_keys(), what='the settings')}"
    return _invalid(f"{key}: {message}" if key else message, key=key)
