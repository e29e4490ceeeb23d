"""Options that several commands share, and the settings that come of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from journal.settings import Settings

MAX_SECONDS: Final = 10**8

Function = TypeVar("Function", bound=Callable[..., Any])


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Options may stand before or behind the command's name; the last one counts."""
    options: dict[str, Any] = context.ensure_object(dict)
    if value is not None:
        options[parameter.name] = value


def _option(*names: str, **attributes: Any) -> Callable[[Function], Function]:
    return click.option(*names, callback=_keep, expose_value=False, **attributes)


SCOPE: Final = _option(
    "--scope",
    metavar="NAME",
    help="Scope, one managed target; by default the only one in the log. [JOURNAL_SCOPE]",
)
APP: Final = _option(
    "--app",
    metavar="LABEL",
    help="Label of the migration ids, the part before the slash; by default main. [JOURNAL_APP]",
)
DATABASE: Final = _option("--database", metavar="URL", help="Target database, as sqlite:///file. [JOURNAL_DATABASE]")
_GENERAL: Final = (
    _option("--json", "as_json", is_flag=True, default=None, help="Print JSON instead of text."),
    _option(
        "--dir",
        type=click.Path(path_type=Path),
        help="Folder of the migrations; journal.toml and, by default, journal.db lie beside it, in its parent folder. "
        "By default migrations, so these are in the current folder. [JOURNAL_DIR]",
    ),
    _option(
        "--log",
        metavar="URL",
        help="Log, as sqlite:///file or kafka://[user@]host:port,host:port?prefix=...&replication=...; by default "
        "journal.db. Other parameters: tls=true, ca_file, certificate_file, private_key_file, mechanism, timeout. "
        "[JOURNAL_LOG]",
    ),
    _option(
        "--leases",
        metavar="URL",
        help="Lease store, as sqlite:///file, redis://[user@]host:port/db?prefix=... or rediss://; by default in the "
        "log's file. Other parameters: ca_file, timeout. [JOURNAL_LEASES]",
    ),
    _option(
        "--log-password-file",
        type=click.Path(path_type=Path),
        help="File with the password of the user that --log names. The password itself: only by JOURNAL_LOG_PASSWORD. "
        "[JOURNAL_LOG_PASSWORD_FILE]",
    ),
    _option(
        "--leases-password-file",
        type=click.Path(path_type=Path),
        help="File with the password for the lease store. The password itself: only by JOURNAL_LEASES_PASSWORD. "
        "[JOURNAL_LEASES_PASSWORD_FILE]",
    ),
    _option(
        "--key-file",
        type=click.Path(path_type=Path),
        help="File with the key (64 hex digits) of authenticated scopes. The key itself: only by JOURNAL_KEY. "
        "[JOURNAL_KEY_FILE]",
    ),
    _option(
        "--previous-key-file",
        type=click.Path(path_type=Path),
        help="File with the keys before it, one a line: what was written under them is still believed. "
        "[JOURNAL_PREVIOUS_KEY_FILE]",
    ),
    _option(
        "--max-event-bytes",
        type=int,
        metavar="N",
        help="Largest event that is read; 16 MiB by default. [JOURNAL_MAX_EVENT_BYTES]",
    ),
)


def _duration(_: click.Context, parameter: click.Parameter, seconds: float | None) -> timedelta | None:
    if seconds is not None and math.isnan(seconds):
        raise click.BadParameter("that is no number of seconds", param=parameter)
    return None if seconds is None else timedelta(seconds=seconds)


_CLAIM: Final = (
    click.option(
        "--holder",
        metavar="LABEL",
        help="Who takes the lease, 1 to 128 of A-Z a-z 0-9 . _ -; by default user-host-process.",
    ),
    click.option(
        "--lock-timeout",
        type=click.FloatRange(min=0, max=MAX_SECONDS),
        callback=_duration,
        metavar="SECONDS",
        help="How long to wait for another holder: by default as long as it takes, 0 fails at once with exit code 3.",
    ),
    click.option(
        "--ttl",
        type=click.FloatRange(min=0, max=MAX_SECONDS, min_open=True),
        callback=_duration,
        metavar="SECONDS",
        help="How long the lease outlives this process if it dies; 30 by default. It is renewed until the command ends.",
    ),
)
_ATTESTATION: Final = (
    click.option("--reason", metavar="TEXT", help="Why; it is kept in the history."),
    click.option("--operator", metavar="NAME", help="Who decides; by default the name of the user."),
)


def general(function: Function) -> Function:
    """The options of every command."""
    return _all(_GENERAL, function)


def migrations(function: Function) -> Function:
    """The options of every command that reads migrations and looks at a target."""
    return _all((SCOPE, DATABASE, APP, *_GENERAL), function)


def claim(function: Function) -> Function:
    """The options of every command that takes the lease."""
    return _all(_CLAIM, function)


def attestation(function: Function) -> Function:
    """The options of every command that records a person's decision."""
    return _all(_ATTESTATION, function)


def _all(options: tuple[Callable[[Function], Function], ...], function: Function) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def settings() -> Settings:
    """The settings of the command that runs; takes long to import."""
    from journal.settings import load_settings  # noqa: PLC0415

    options: dict[str, Any] = click.get_current_context().obj
    return load_settings(**{name: value for name, value in options.items() if name != "as_json"})


def wants_json() -> bool:
    """Whether the output of the command that runs is for a program."""
    return bool(click.get_current_context().obj.get("as_json"))
