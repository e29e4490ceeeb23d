"""Settings to wired objects: the one place that names adapters, and so the answer to "what runs here?".

Adapters that need a package of their own are imported when they are asked for: the embedded log must not pay for them.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from journal.addresses import DEFAULT_PREFIX, FileAddress, KafkaAddress, RedisAddress
from journal.codec import Codec, Key, Keyring
from journal.errors import Code, JournalError, failure
from journal.identities import Scope
from journal.journal import DEFAULT_APPEND_TIMEOUT, Journal
from journal.leases.missing import MissingLeases
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Database, Examined, Guard, Leases, Log

if TYPE_CHECKING:  # importing it costs as much as the rest of the command
    from collections.abc import Generator

    from journal.log.kafka_security import KafkaSecurity
    from journal.settings import Settings

_INSTALL: Final = "pip install 'fenced-journal[kafka,redis]'"
_NO_LEASES: Final = (
    "leases: a log on Kafka needs a lease store: name one with --leases redis://host:port, JOURNAL_LEASES or journal.toml "
    "(sqlite:///file only if every writer runs on this machine)"
)


class ExaminedLog(Log, Examined, Protocol):
    """Every adapter of `Log` that settings can name."""


class ExaminedLeases(Leases, Examined, Protocol):
    """Every adapter of `Leases` that settings can name."""


class ExaminedDatabase(Database, Examined, Protocol):
    """Every adapter of `Database` that settings can name."""

    async def raised(self, scope: Scope) -> Guard | None:
        """On whose behalf the fence of a scope was raised last; None when it never was."""
        ...


def open_journal(settings: Settings, *, create: bool = False, read_only: bool = False) -> Journal:
    """Wire a journal; it connects at its first use. With `create`, a missing file or topic is made.

    With `read_only`, nothing is ever made or written, and a log on Kafka can be read without a lease store.

    Raises:
        InvalidContractError: `journal_invalid_settings`, `journal_invalid_key`.
    """
    create = create and not read_only
    address = settings.log_at
    return Journal(
        open_log(settings, create=create, read_only=read_only),
        open_leases(settings, create=create, read_only=read_only),
        codec=Codec(keyring=keyring_of(settings), max_event_bytes=settings.max_event_bytes),
        append_timeout=address.timeout if isinstance(address, KafkaAddress) else DEFAULT_APPEND_TIMEOUT,
    )


def open_log(settings: Settings, *, create: bool = False, read_only: bool = False) -> ExaminedLog:
    """The adapter of the log. Raises as `open_journal`."""
    address = settings.log_at
    if isinstance(address, FileAddress):
        return SQLiteLog(address.path, create=create, read_only=read_only)
    security = _security(settings, address)
    with _extra("log", "kafka://", "aiokafka"):
        from journal.log.kafka import KafkaLog  # noqa: PLC0415
    # What the library has to say goes where the application sends it, and not to stderr when it says nothing of it.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    return KafkaLog(
        address.servers,
        prefix=address.prefix or DEFAULT_PREFIX,
        replication=address.replication,
        security=security,
        timeout=address.timeout,
        max_event_bytes=settings.max_event_bytes,
        create=create,
        read_only=read_only,
    )


def open_leases(settings: Settings, *, create: bool = False, read_only: bool = False) -> ExaminedLeases:
    """The adapter of the lease store. Raises as `open_journal`."""
    address = settings.leases_at
    if address is None:
        if not read_only:
            raise no_leases()
        return MissingLeases(no_leases)
    if isinstance(address, FileAddress):
        return SQLiteLeases(address.path, create=create, read_only=read_only)
    with _extra("leases", "redis://", "redis"):
        from journal.leases.redis import RedisLeases  # noqa: PLC0415
    return RedisLeases(
        address.url,
        password=_redis_password(settings, address),
        ca_file=address.ca_file,
        prefix=address.prefix or _prefix_of(settings),
        timeout=address.timeout,
    )


def no_leases() -> JournalError:
    """The error of a log on Kafka for which no lease store was named."""
    return failure(Code.INVALID_SETTINGS, _NO_LEASES, key="leases")


def open_database(settings: Settings, *, create: bool = False, read_only: bool = False) -> ExaminedDatabase:
    """Wire the target database; it connects at its first use. With `create`, a missing file is made.

    Raises:
        InvalidContractError: `journal_invalid_settings`.
    """
    from journal.databases.sqlite import SQLiteDatabase  # noqa: PLC0415  (reading the journal does not need it)

    path = settings.database_file
    for address in (settings.log_at, settings.leases_at):
        if isinstance(address, FileAddress) and address.path.absolute() == path.absolute():
            raise failure(Code.INVALID_SETTINGS, f"database: {path} is the journal's own file", key="database")
    return SQLiteDatabase(path, create=create and not read_only, read_only=read_only)


def keyring_of(settings: Settings) -> Keyring | None:
    """The keys that the settings name. Raises `journal_invalid_settings`, `journal_invalid_key`."""
    current, previous = settings.secret("key"), settings.previous_keys()
    if current is None:
        if previous:
            raise failure(Code.INVALID_SETTINGS, "previous_key is given without key: it can only accompany one")
        return None
    return Keyring(Key.parse(current), *map(Key.parse, previous))


# --- services ---------------------------------------------------------------------------------------------------------


def _security(settings: Settings, address: KafkaAddress) -> KafkaSecurity:
    password = settings.secret("log_password")
    if password is not None and address.user is None:
        raise failure(
            Code.INVALID_SETTINGS,
            "log: there is a password, but no user: kafka://user@host:port?mechanism=...",
            key="log",
        )
    if password is None and address.user is not None:
        raise failure(
            Code.INVALID_SETTINGS,
            "log: the password of its user is missing: set JOURNAL_LOG_PASSWORD, or name a file that holds it with "
            "log_password_file",
            key="log_password",
        )
    with _extra("log", "kafka://", "aiokafka"):
        from journal.log.kafka_security import KafkaSecurity  # noqa: PLC0415
    return KafkaSecurity(
        tls=address.tls,
        ca_file=address.ca_file,
        certificate_file=address.certificate_file,
        key_file=address.private_key_file,
        mechanism=address.mechanism,
        user=address.user,
        password=password,
    )


def _redis_password(settings: Settings, address: RedisAddress) -> str | None:
    password = settings.secret("leases_password")
    if password is None and address.user is not None:
        raise failure(
            Code.INVALID_SETTINGS,
            "leases: the password of its user is missing: set JOURNAL_LEASES_PASSWORD, or name a file that holds it with "
            "leases_password_file",
            key="leases_password",
        )
    return password


def _prefix_of(settings: Settings) -> str:
    """The log's prefix, so that two logs that share a Redis server do not wait for each other's leases."""
    address = settings.log_at
    return (address.prefix if isinstance(address, KafkaAddress) else None) or DEFAULT_PREFIX


@contextmanager
def _extra(key: str, what: str, package: str) -> Generator[None, None, None]:
    """Say what to install when an adapter's own package is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise failure(
            Code.INVALID_SETTINGS,
            f"{key}: {what} needs the package {package}, which is not installed: {_INSTALL}",
            key=key,
        ) from None
