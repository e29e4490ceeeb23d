"""The small types that everything else is named by.

An identity is the built-in type that carries it (`str`, `int`, `bytes`) with a name and a rule: constructing one checks
the rule, and nothing behind the constructor checks again. Limits and codes are seed 000's.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final, Self

from blake3 import blake3

from journal.errors import Code, failure

MAX_FENCE: Final = 2**63 - 1
MAX_POSITION_U32: Final = 2**32 - 1
MAX_HOLDER_BYTES: Final = 128
MAX_COMPONENT_BYTES: Final = 255

_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_HOLDER = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)
_APP = re.compile(r"[a-z][a-z0-9_-]{0,254}", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,254}", re.ASCII)


class Scope(str):
    """One managed target: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`. Raises `journal_invalid_scope`."""

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if not _SCOPE.fullmatch(value):
            raise failure(
                Code.INVALID_SCOPE,
                f"scope {value!r:.150} must be 1 to 128 of A-Z a-z 0-9 . _ - and start with a letter or digit",
                value=value,
            )
        return super().__new__(cls, value)


class HolderId(str):
    """Caller-supplied label of a lease holder: 1 to 128 of `[A-Za-z0-9._-]`.

    Nothing is added to it (no host name, no process id). Raises `migration_execution_invalid_holder`.
    """

    __slots__ = ()

    def __new__(cls, value: str) -> Self:
        if not _HOLDER.fullmatch(value):
            raise failure(
                Code.INVALID_HOLDER,
                f"lease holder {value!r:.150} must be 1 to {MAX_HOLDER_BYTES} of A-Z a-z 0-9 . _ -",
                value=value,
            )
        return super().__new__(cls, value)


class Fence(int):
    """Fencing token, 1 to 2^63 - 1, strictly greater than every fence issued before in its scope.

    Raises `migration_execution_zero_fence` below 1, `migration_execution_fence_exhausted` past the range.
    """

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if value < 1:
            raise failure(Code.ZERO_FENCE, f"fences are integers from 1, not {value}", value=value)
        if value > MAX_FENCE:
            raise failure(Code.FENCE_EXHAUSTED, "the range of fences is exhausted", value=value)
        return super().__new__(cls, value)

    def successor(self) -> Fence:
        """Return the next greater fence. Raises `migration_execution_fence_exhausted` at the end of the range."""
        return Fence(self + 1)


class Sequence(int):
    """Dense per-scope number, from 1, of admitted records. Raises `migration_execution_zero_sequence`."""

    __slots__ = ()

    def __new__(cls, value: int) -> Self:
        if value < 1:
            raise failure(Code.ZERO_SEQUENCE, f"journal sequences are integers from 1, not {value}", value=value)
        if value > MAX_FENCE:
            raise failure(Code.SEQUENCE_EXHAUSTED, "the range of journal sequences is exhausted", value=value)
        return super().__new__(cls, value)


class Position(int):
    """Where an event lies in the log (Kafka offset, SQLite row): ordered, may have gaps. Made by adapters, not checked."""

    __slots__ = ()


def u32(value: int) -> int:
    """Check a step or group position. Raises `migration_execution_position_limit` outside 0 to 2^32 - 1."""
    if not 0 <= value <= MAX_POSITION_U32:
        raise failure(Code.POSITION_LIMIT, f"position {value} is outside 0 to {MAX_POSITION_U32}", value=value)
    return value


class _Hex(bytes):
    """Fixed-width bytes, shown and parsed as hex digits."""

    __slots__ = ()
    size = 32

    def __new__(cls, value: bytes) -> Self:
        if len(value) != cls.size:
            raise failure(Code.INVALID_DIGEST, f"{cls.__name__} takes {cls.size} bytes, not {len(value)}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the form that `str()` shows. Raises `journal_invalid_digest`."""
        if not re.fullmatch(rf"[0-9A-Fa-f]{{{2 * cls.size}}}", text):
            raise failure(Code.INVALID_DIGEST, f"{text!r:.100} is not {2 * cls.size} hex digits", value=text)
        return cls(bytes.fromhex(text))

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"


class Digest(_Hex):
    """BLAKE3 digest of content (a manifest, an event): 32 bytes, 64 hex digits."""

    __slots__ = ()


class Fingerprint(_Hex):
    """BLAKE3 identity of a meaning (a schema state, a plan, a profile): 32 bytes, 64 hex digits."""

    __slots__ = ()


class _Random16(_Hex):
    __slots__ = ()
    size = 16

    @classmethod
    def random(cls) -> Self:
        """Draw a new one from the operating system's generator."""
        return cls(secrets.token_bytes(16))


class LeaseId(_Random16):
    """The caller's token for one lease: 16 random bytes, so that a retried acquisition finds its own fence again."""

    __slots__ = ()


class EventId(_Random16):
    """Random identity of one event, the same in every copy of it."""

    __slots__ = ()


class Place(_Random16):
    """Random name of one log as a place for one scope; a move of the scope names where it goes."""

    __slots__ = ()


class Incarnation(_Random16):
    """Random identity that a scope gets when it is created; a re-created scope has another."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class MigrationId:
    """App label and name of one migration, shown as `app/name`; ordered by (app, name).

    Each component has 1 to 255 bytes of `a-z 0-9 _ -`; a label starts with a letter, a name may start with a digit.
    Raises `journal_invalid_migration_id`.
    """

    app: str
    name: str

    def __post_init__(self) -> None:
        if not _APP.fullmatch(self.app) or not _NAME.fullmatch(self.name):
            raise failure(
                Code.INVALID_MIGRATION_ID,
                f"migration id {f'{self.app}/{self.name}'!r:.300} must be app/name: lower-case a-z 0-9 _ -, each part "
                "1 to 255 bytes, the app starting with a letter and the name with a letter or digit",
            )

    @classmethod
    def parse(cls, text: str) -> MigrationId:
        """Read `app/name`. Raises `journal_invalid_migration_id`."""
        app, _, name = text.partition("/")
        return cls(app, name)

    def __str__(self) -> str:
        return f"{self.app}/{self.name}"


def is_migration_id(text: str) -> bool:
    """Say whether `text` is the canonical form of a migration id, without building one."""
    app, _, name = text.partition("/")
    return bool(_APP.fullmatch(app) and _NAME.fullmatch(name))


def is_holder(text: str) -> bool:
    """Say whether `text` is a lease holder's label, without building one."""
    return bool(_HOLDER.fullmatch(text))


def _hash(domain: str, fields: tuple[bytes, ...]) -> bytes:
    hasher = blake3(derive_key_context=domain)
    for field in fields:
        hasher.update(len(field).to_bytes(8, "little"))
        hasher.update(field)
    return hasher.digest()


def digest(domain: str, *fields: bytes) -> Digest:
    """Hash content: BLAKE3 in derive-key mode under `domain`, each field preceded by its length (8 bytes, LE).

    Two lists of fields give one digest only when they are equal field by field; two domains never meet.
    """
    return Digest(_hash(domain, fields))


def fingerprint(domain: str, *fields: bytes) -> Fingerprint:
    """Hash a meaning; the same construction as `digest`, typed apart."""
    return Fingerprint(_hash(domain, fields))
