"""What a failed call to Redis means: the only place that knows the client library's errors.

An answer of Redis begins with a word (`READONLY`, `OOM`, ...), which the library turns into a class, keeps, or, when it
comes out of a script of an older server, leaves in the middle of a sentence. A connection that failed hides its cause
behind the library's own error. Both are taken apart here, so that a message names the cause and what to do about it.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from redis import exceptions

from journal.errors import Code, JournalError, failure

_Meaning: TypeAlias = tuple[Code, str]

_ANSWERS: Final[Mapping[str, _Meaning]] = {
    "READONLY": (
        Code.LEASES_UNAVAILABLE,
        "it is a read-only replica: give the address of the primary, or try again once a failover is over",
    ),
    "LOADING": (Code.STORAGE_BUSY, "it is still loading its data: try again in a moment"),
    "BUSY": (Code.STORAGE_BUSY, "a script of another client keeps it busy: try again, or end it with SCRIPT KILL"),
    "TRYAGAIN": (Code.STORAGE_BUSY, "the cluster is moving these keys: try again in a moment"),
    "OOM": (Code.STORAGE_FULL, "its memory is full: raise maxmemory, or remove other data"),
    "MISCONF": (
        Code.LEASES_UNAVAILABLE,
        "it refuses writes because it cannot save its data: look at its log and at its disk",
    ),
    "NOREPLICAS": (Code.LEASES_UNAVAILABLE, "too few replicas follow it (min-replicas-to-write): look at the replicas"),
    "MASTERDOWN": (Code.LEASES_UNAVAILABLE, "it is a replica without its primary: give the address of the primary"),
    "CLUSTERDOWN": (Code.LEASES_UNAVAILABLE, "its cluster is down: look at CLUSTER INFO"),
    "ASK": (Code.STORAGE_BUSY, "the cluster is moving this scope to another node: try again in a moment"),
    "NOAUTH": (Code.NOT_PERMITTED, "it wants a password, and none was given: set user and password"),
    "WRONGPASS": (Code.NOT_PERMITTED, "it refused user and password: check both, and that the user is enabled"),
    "NOPERM": (Code.NOT_PERMITTED, "the user lacks a right: grant what the README lists for lease stores"),
    "DENIED": (
        Code.NOT_PERMITTED,
        "it is in protected mode and answers this machine only: set a password or a bind address on the server",
    ),
    "WRONGTYPE": (
        Code.DAMAGED_LEASE,
        "another kind of data is under the key of this lease: give another prefix, or find who else writes there",
    ),
}
_SENTENCES: Final[Mapping[str, _Meaning]] = {
    "the user executing the script can't": _ANSWERS["NOPERM"],
    "max number of clients": (
        Code.STORAGE_BUSY,
        "it has as many clients as it takes: try again, or raise maxclients",
    ),
    "without any password configured": (Code.NOT_PERMITTED, "a password was given, and it has none: leave it out"),
    "db index": (Code.INVALID_SETTINGS, "it has no database of this number: correct the end of the address"),
    "unknown command": (
        Code.NOT_PERMITTED,
        "it does not know a command that leases need: it may be renamed, or this is not Redis 5 or newer",
    ),
}
_CLASSES: Final[Mapping[type[exceptions.RedisError], str]] = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.NoPermissionError: "NOPERM",
    exceptions.AskError: "ASK",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
}
_MOVED: Final = re.compile(r"(?:MOVED )?[0-9]+ (.*):([0-9]+)", re.ASCII)
_WORD: Final = re.compile(r"(?:^|-|: )([A-Z]{3,})\b")
_CAUSES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ssl.SSLCertVerificationError, "its certificate is not trusted: give the CA that signed it, or the name it is for"),
    (ssl.SSLError, "no TLS with it: check the CA file, and that this is the TLS port (redis:// is for the plain one)"),
    (socket.gaierror, "its name cannot be resolved: check the address"),
    (ConnectionRefusedError, "nothing listens there: start Redis, or check the address"),
    (FileNotFoundError, "the CA file is missing: check its path"),
    (PermissionError, "the CA file cannot be read: check its permissions"),
    (
        exceptions.InvalidResponse,
        "it does not speak Redis's protocol: check the port, and use rediss:// for a TLS port",
    ),
    (
        ConnectionResetError,
        "it closed the connection: it was stopped, or this is a TLS port (rediss://) or not Redis's",
    ),
)
_CLOSED: Final = "it closed the connection: it was stopped, or this is a TLS port (rediss://) or not Redis's"


class MovedError(Exception):
    """The scope is on another node of the cluster; an empty host is the one that was asked."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"moved to {host}:{port}")
        self.host = host
        self.port = port

    @classmethod
    def of(cls, error: Exception) -> MovedError | None:
        """What an answer says of another node, if it does; versions of the library differ in how they show it."""
        if not isinstance(error, exceptions.MovedError) and not str(error).startswith("MOVED "):
            return None
        place = _MOVED.fullmatch(str(error))
        return None if place is None else cls(place[1], int(place[2]))


def translated(error: Exception, where: str) -> JournalError:
    """The journal's error for one of the client library's; `where` names the server, without any secret."""
    code, advice = _meaning(error)
    said = " ".join(str(error).split())[:300]
    return failure(code, f"lease store {where}: {advice} ({said})", where=where)


def is_broken(error: exceptions.RedisError) -> bool:
    """Whether the connection broke, rather than that Redis answered: then the answer is lost, and may be asked again."""
    return type(error) is exceptions.ConnectionError


def _meaning(error: BaseException) -> _Meaning:
    word = next((word for kind, word in _CLASSES.items() if isinstance(error, kind)), None)
    if word is None and isinstance(error, exceptions.AuthenticationError):
        word = "NOAUTH" if "required" in str(error) else "WRONGPASS"
    for meaning in _said(str(error)):
        return meaning
    if word is not None:
        return _ANSWERS[word]
    for cause in _chain(error):
        for kind, advice in _CAUSES:
            if isinstance(cause, kind):
                return Code.LEASES_UNAVAILABLE, advice
    if "closed by server" in str(error):
        return Code.LEASES_UNAVAILABLE, _CLOSED
    if isinstance(error, exceptions.ResponseError):
        return Code.LEASES_UNAVAILABLE, "it refused the call: look at its log"
    return Code.LEASES_UNAVAILABLE, "it cannot be reached: check the address, and that Redis runs there"


def _said(text: str) -> Iterator[_Meaning]:
    """What the words of an answer mean."""
    for word in _WORD.findall(text):
        if word in _ANSWERS:
            yield _ANSWERS[word]
    for sentence, meaning in _SENTENCES.items():
        if sentence in text.lower():
            yield meaning


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it was raised from, the innermost cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
