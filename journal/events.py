"""An event as it was read: header fields at hand, hash and body on demand.

What a fold touches for every event is taken from the fixed-width header; the body is decoded when a rule or a reader
asks for it, and only once. `codec` makes these objects; everything else reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from blake3 import blake3

from journal.errors import Code, JournalError, failure
from journal.records import Record

EVENT_DOMAIN: Final = "fenced-journal 2026-11 event hash v1"
NO_PARENT: Final = bytes(32)
NO_LEASE: Final = bytes(16)

# Incarnation, lease id and parent; the event id between them is skipped.
_FIXED: Final = struct.Struct("16s16x16s32s").unpack_from
_HASHER: Final = blake3(derive_key_context=EVENT_DOMAIN)


def event_hash(data: bytes) -> bytes:
    """Hash of an event's exact bytes, 32 bytes: what the next event names as its parent."""
    hasher = _HASHER.copy()
    hasher.update(data)
    return hasher.digest()


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read one Avro long: its value and the offset behind it. IndexError at the end, ValueError past 64 bits."""
    shift = result = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            if result >= 2**64:
                raise ValueError("a number of more than 64 bits")
            return (result >> 1) ^ -(result & 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


Decode: TypeAlias = Callable[[bytes, int], tuple[Any, ...]]


class EventType(Enum):
    """Every event type that this version knows; the value is the Avro record's name."""

    SCOPE_CREATED = "ScopeCreated"
    LEASE_ACQUIRED = "LeaseAcquired"
    LEASE_RELEASED = "LeaseReleased"
    PLAN_OPENED = "PlanOpened"
    GROUP_EVENT = "GroupEvent"
    BACKFILL_EVENT = "BackfillEvent"
    BACKFILL_CHECKPOINT = "BackfillCheckpoint"
    APPLIED = "Applied"
    ROLLBACK_PLAN_OPENED = "RollbackPlanOpened"
    ROLLBACK_STEP_EVENT = "RollbackStepEvent"
    ROLLED_BACK = "RolledBack"
    LEDGER_IMPORTED = "LedgerImported"
    RECOVERY_ATTESTED = "RecoveryAttested"
    PLAN_ABANDONED = "PlanAbandoned"
    SCOPE_AWAITED = "ScopeAwaited"
    SCOPE_MOVED = "ScopeMoved"
    SCOPE_ARRIVED = "ScopeArrived"
    SCOPE_RESTORED = "ScopeRestored"

    # Members are looked up for every event of a fold; identity is what they are compared by.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class EventFormat:
    """One published schema, ready to read with.

    `decode(data, offset)` returns the body's values in the order of the newest schema of the type, raw: bytes, str,
    int, enum members, None, and tuples of them. `to_record(scope, fence, body)` gives them their types.
    """

    type: EventType
    decode: Decode
    to_record: Callable[[str, int, tuple[Any, ...]], Record]


class Event:
    """One event with a readable header. `format` is None when its schema is not known here.

    `authentic` says whether the MAC beside it was right; None when the reader has no key. `recorded_at` and the body
    are behind offsets into `data`, read when asked for.
    """

    __slots__ = (
        "_body",
        "_body_offset",
        "_decode",
        "_hash",
        "_time_offset",
        "authentic",
        "data",
        "fence",
        "format",
        "incarnation",
        "lease_id",
        "parent",
        "position",
        "scope",
        "type",
    )

    def __init__(
        self,
        position: int,
        data: bytes,
        format: EventFormat | None,
        fence: int,
        scope: str,
        authentic: bool | None,
        time_offset: int,
        body_offset: int,
        decode: Decode,
    ) -> None:
        self.position = position
        self.data = data
        self.format = format
        self.type = None if format is None else format.type
        self.incarnation, self.lease_id, self.parent = _FIXED(data, 10)
        self.fence = fence
        self.scope = scope
        self.authentic = authentic
        self._time_offset = time_offset
        self._body_offset = body_offset
        self._decode = decode
        self._body: tuple[Any, ...] | None = None
        self._hash: bytes | None = None

    @property
    def event_id(self) -> bytes:
        """Random identity, 16 bytes, the same in every copy."""
        return self.data[26:42]

    @property
    def recorded_at(self) -> int:
        """The writer's clock, microseconds since 1970 UTC."""
        return read_long(self.data, self._time_offset)[0]

    @property
    def hash(self) -> bytes:
        """Hash of the exact bytes, 32 bytes."""
        if self._hash is None:
            self._hash = event_hash(self.data)
        return self._hash

    @property
    def body(self) -> tuple[Any, ...]:
        """Raw values of the record, in schema order.

        Raises:
            UnknownEventError: `journal_unknown_event`: the schema is not known to this version.
            IntegrityError: `journal_undecodable_body`.
            ResourceLimitError: `journal_event_too_large`: over the reader's `max_event_bytes`.
        """
        body = self._body
        if body is None:
            try:
                self._body = body = self._decode(self.data, self._body_offset)
            except (IndexError, ValueError, struct.error) as error:
                raise self._undecodable(str(error)) from error
            except JournalError as error:
                error.details["position"] = self.position
                raise
        return body

    @property
    def record(self) -> Record:
        """The typed record. Raises as `body` does."""
        body = self.body
        assert self.format is not None
        try:
            return self.format.to_record(self.scope, self.fence, body)
        except JournalError as error:
            raise self._undecodable(error.message) from error

    def _undecodable(self, problem: str) -> JournalError:
        name = "unknown" if self.type is None else self.type.value
        return failure(
            Code.UNDECODABLE_BODY,
            f"the {name} event at position {self.position} of scope {self.scope} cannot be decoded ({problem}): it was "
            "damaged or written by a faulty writer; nothing behind it can be read",
            position=self.position,
        )


class Undecodable:
    """Bytes without a readable event header."""

    __slots__ = ("data", "position")

    def __init__(self, position: int, data: bytes) -> None:
        self.position = position
        self.data = data


Readable: TypeAlias = Event | Undecodable
