"""Where a log and a lease store are: the URLs of the settings, parsed and checked.

```
sqlite:///file                                                             log, leases
kafka://[user@]host[:9092],host[:9092],...?prefix=...&replication=...      log
redis://[user@]host[:6379][/db]?prefix=...    rediss://... by TLS          leases
```

A URL is shown in process lists, committed in `journal.toml` and printed by whoever debugs, so a password has no place in
it, wherever it comes from. It may be there all the same, and in any part when it was not percent-encoded: until a URL
was found to hold none, messages repeat nothing of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from journal.errors import Code, JournalError, failure

KAFKA_PORT: Final = 9092
REDIS_PORT: Final = 6379
DEFAULT_PREFIX: Final = "journal"
DEFAULT_REPLICATION: Final = 3
KAFKA_TIMEOUT: Final = timedelta(seconds=5)
REDIS_TIMEOUT: Final = timedelta(seconds=2)
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
KAFKA_PARAMETERS: Final = (
    "prefix", "replication", "tls", "ca_file", "certificate_file", "private_key_file", "mechanism", "timeout",
)  # fmt: skip
REDIS_PARAMETERS: Final = ("prefix", "ca_file", "timeout")
_FILES: Final = ("ca_file", "certificate_file", "private_key_file")
_SERVICES: Final = ("kafka", "redis", "rediss")
_MAX_REPLICATION: Final = 2**15 - 1  # what Kafka's protocol has room for
_MAX_DATABASE: Final = 99_999
_MAX_TIMEOUT_SECONDS: Final = 300
_HOST: Final = r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_.])?"
_PREFIX: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}"
_NUMBER: Final = r"[0-9]{1,10}"
_SECONDS: Final = r"[0-9]{1,6}(\.[0-9]{1,6})?"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileAddress:
    """An SQLite file that holds a log, leases, or both."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """A log on a Kafka cluster, and how its clients prove who they are; the password is elsewhere.

    `servers` are `host:port`, IPv6 addresses in brackets. `prefix` is None when none was said.
    """

    servers: tuple[str, ...]
    prefix: str | None = None
    replication: int = DEFAULT_REPLICATION
    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    private_key_file: Path | None = None
    mechanism: str | None = None
    user: str | None = None
    timeout: timedelta = KAFKA_TIMEOUT

    def __str__(self) -> str:
        return f"kafka://{','.join(self.servers)}?prefix={self.prefix or DEFAULT_PREFIX}"


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """Leases on a Redis server; the password is elsewhere. `prefix` is None when none was said."""

    server: str
    database: int = 0
    tls: bool = False
    user: str | None = None
    prefix: str | None = None
    ca_file: Path | None = None
    timeout: timedelta = REDIS_TIMEOUT

    @property
    def url(self) -> str:
        """The URL as a client takes it: without parameters."""
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        return f"redis{'s' if self.tls else ''}://{user}{self.server}/{self.database}"

    def __str__(self) -> str:
        return f"redis{'s' if self.tls else ''}://{self.server}/{self.database}"


LogAddress: TypeAlias = FileAddress | KafkaAddress
LeasesAddress: TypeAlias = FileAddress | RedisAddress


def log_address(url: str) -> LogAddress:
    """The address that `log` names.

    Raises:
        InvalidContractError: `journal_invalid_settings`, as everything here. No message shows a password.
    """
    if scheme(url) == "kafka":
        return _kafka(_Url.parse("log", url, KAFKA_PARAMETERS))
    return FileAddress(sqlite_file("log", url, others=" or kafka://host:port,host:port"))


def leases_address(url: str) -> LeasesAddress:
    """The address that `leases` names."""
    if scheme(url) in ("redis", "rediss"):
        return _redis(_Url.parse("leases", url, REDIS_PARAMETERS))
    return FileAddress(sqlite_file("leases", url, others=", redis://host:port or rediss://host:port"))


def sqlite_file(key: str, url: str, *, others: str = "") -> Path:
    """The file that `sqlite:///file` (relative) or `sqlite:////folder/file` (absolute) names; `others`: what fits too."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or "?" in path or "\0" in path:
        raise _invalid(key, f"must be sqlite:///file (relative), sqlite:////folder/file (absolute){others}")
    return Path(path)


def scheme(url: str) -> str:
    """The part before the colon."""
    return url.partition(":")[0].lower()


def anchored(url: str, folder: Path) -> str:
    """`url` with the relative files that it names made relative to `folder`; what is malformed is left for others."""
    if url.startswith("sqlite:///"):
        return f"sqlite:///{folder / url.removeprefix('sqlite:///')}"
    place, mark, query = url.partition("?")
    if scheme(url) not in _SERVICES or not mark:
        return url
    return f"{place}?{'&'.join(_anchored(parameter, folder) for parameter in query.split('&'))}"


def _anchored(parameter: str, folder: Path) -> str:
    name, _, value = parameter.partition("=")
    return f"{name}={quote(str(folder / unquote(value)))}" if name in _FILES and value else parameter


def nearest(name: str, known: Iterable[str], *, what: str) -> str:
    """The end of a message about a name that nobody knows: the one that was meant, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f": did you mean {near[0]}?" if near else f": {what} are {', '.join(known)}"


# --- what services have -----------------------------------------------------------------------------------------------


def _kafka(url: _Url) -> KafkaAddress:
    if url.path not in ("", "/"):
        raise url.invalid("behind the hosts come parameters alone: kafka://host:port,host:port?prefix=...")
    mechanism = url.parameter("mechanism", _mechanism)
    if (mechanism is None) != (url.user is None):
        raise url.invalid(
            "a login takes both a user (kafka://user@host:port) and mechanism=, one of " + ", ".join(MECHANISMS)
        )
    tls = url.parameter("tls", _truth) or False
    files = {name: url.parameter(name, _file) for name in _FILES}
    for name, path in files.items():
        if path is not None and not tls:
            raise url.invalid(f"{name} goes with tls=true")
    if files["private_key_file"] is not None and files["certificate_file"] is None:
        raise url.invalid("private_key_file goes with certificate_file")
    return KafkaAddress(
        servers=tuple(url.servers(KAFKA_PORT)),
        prefix=url.parameter("prefix", _prefix),
        replication=url.parameter("replication", _replication) or DEFAULT_REPLICATION,
        tls=tls,
        **files,
        mechanism=mechanism,
        user=url.user,
        timeout=url.parameter("timeout", _timeout) or KAFKA_TIMEOUT,
    )


def _redis(url: _Url) -> RedisAddress:
    servers = url.servers(REDIS_PORT)
    if len(servers) > 1:
        raise url.invalid("name one host: the primary, or what stands before it")
    database = url.path.removeprefix("/") or "0"
    if not re.fullmatch(_NUMBER, database) or int(database) > _MAX_DATABASE:
        raise url.invalid(f"behind the host comes the number of a database, as in {url.scheme}://host:port/0")
    tls = url.scheme == "rediss"
    ca_file = url.parameter("ca_file", _file)
    if ca_file is not None and not tls:
        raise url.invalid("ca_file goes with rediss://")
    return RedisAddress(
        server=servers[0],
        database=int(database),
        tls=tls,
        user=url.user,
        prefix=url.parameter("prefix", _prefix),
        ca_file=ca_file,
        timeout=url.parameter("timeout", _timeout) or REDIS_TIMEOUT,
    )


# --- URLs of services -------------------------------------------------------------------------------------------------


class _Url(NamedTuple):
    """The parts of one URL. Once it is made, what was said of a password is true."""

    key: str
    scheme: str
    user: str | None
    hosts: Sequence[str]
    path: str
    parameters: Mapping[str, str]

    @classmethod
    def parse(cls, key: str, text: str, known: Sequence[str]) -> _Url:
        """Split, and check what is the same for every service."""
        name = scheme(text)
        if text[len(name) : len(name) + 3] != "://" or not text.isprintable() or " " in text:
            raise _invalid(key, f"must begin with {name}:// and have no blanks")
        place, _, query = text[len(name) + 3 :].partition("?")
        authority, slash, path = place.partition("/")
        if "@" in path or "@" in query or "#" in text:
            raise _invalid(key, f"write @ as %40 and # as %23 behind the host; {_elsewhere(key)}")
        userinfo, at, hosts = authority.rpartition("@")
        if ":" in userinfo:
            raise _invalid(key, _elsewhere(key))
        if at and not re.fullmatch(r"[^@,]+", userinfo):
            raise _invalid(key, f"the user is named once, before the first host: {name}://user@host:port")
        parameters = _parameters(key, name, query, known)
        return cls(key, name, unquote(userinfo) if at else None, hosts.split(","), slash + path, parameters)

    def invalid(self, message: str) -> JournalError:
        """The error of this URL."""
        return _invalid(self.key, message)

    def servers(self, default_port: int) -> list[str]:
        """Each `host:port`, with the default port where none is said."""
        return [self._server(place, number, default_port) for number, place in enumerate(self.hosts, 1)]

    def _server(self, place: str, number: int, default_port: int) -> str:
        where = "the host" if len(self.hosts) == 1 else f"host {number}"
        host, port = _split(place)
        if not _is_host(host):
            raise self.invalid(
                f"{where} must be a name or an address, IPv6 in brackets, with its port: host:{default_port}"
            )
        if port is not None and not (re.fullmatch(_NUMBER, port) and 0 < int(port) < 2**16):
            raise self.invalid(f"the port of {where} must be a number from 1 to 65535")
        return f"{host}:{default_port if port is None else int(port)}"

    def parameter(self, name: str, read: Callable[[str], T]) -> T | None:
        """The value of a parameter, None when it is not given. `read` raises ValueError with what it must be."""
        value = self.parameters.get(name)
        try:
            return None if value is None else read(value)
        except ValueError as error:
            raise self.invalid(f"{name} must be {error}") from None


def _split(place: str) -> tuple[str, str | None]:
    """Host and port; the colons of an IPv6 address are in brackets."""
    host, bracket, behind = place.partition("]")
    if bracket:
        return host + bracket, behind.removeprefix(":") if behind else None
    host, colon, port = place.partition(":")
    return host, port if colon else None


def _is_host(host: str) -> bool:
    if not host.startswith("["):
        return bool(re.fullmatch(_HOST, host))
    import ipaddress  # noqa: PLC0415  (hardly anybody needs it)

    try:
        ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        return False
    return True


def _parameters(key: str, name: str, query: str, known: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for parameter in query.split("&") if query else ():
        word, equals, value = parameter.partition("=")
        if word not in known:
            text = f"{name}:// has no parameter {word!r:.40}"
            raise _invalid(key, text + nearest(word, known, what="the parameters"))
        if not equals or not value:
            raise _invalid(key, f"{word} needs a value: {word}=...")
        if word in found:
            raise _invalid(key, f"{word} is given twice")
        found[word] = unquote(value)
    return found


def _elsewhere(key: str) -> str:
    return (
        f"a password does not belong in a URL, which others get to see: set JOURNAL_{key.upper()}_PASSWORD, or name a "
        f"file that holds it with {key}_password_file"
    )


def _invalid(key: str, message: str, **details: Any) -> JournalError:
    return failure(Code.INVALID_SETTINGS, f"{key}: {message}", key=key, **details)


# --- values of parameters ---------------------------------------------------------------------------------------------


def _prefix(value: str) -> str:
    if not re.fullmatch(_PREFIX, value):
        raise ValueError("1 to 120 of A-Z a-z 0-9 . _ - and start with a letter or digit")
    return value


def _replication(value: str) -> int:
    if not re.fullmatch(_NUMBER, value) or not 1 <= int(value) <= _MAX_REPLICATION:
        raise ValueError("a number of brokers from 1")
    return int(value)


def _truth(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError("true or false")
    return value == "true"


def _mechanism(value: str) -> str:
    if value not in MECHANISMS:
        raise ValueError(f"one of {', '.join(MECHANISMS)}")
    return value


def _file(value: str) -> Path:
    if "\0" in value:
        raise ValueError("a path")
    return Path(value)


def _timeout(value: str) -> timedelta:
    if not re.fullmatch(_SECONDS, value) or not 0 < float(value) <= _MAX_TIMEOUT_SECONDS:
        raise ValueError(f"a number of seconds, more than 0 and at most {_MAX_TIMEOUT_SECONDS}")
    return timedelta(seconds=float(value))
