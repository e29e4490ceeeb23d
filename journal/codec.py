"""Events to bytes and back: the only module that knows Avro.

Reading is the hot path of every replay and writing that of every append, so the header is sliced at fixed offsets and
the bodies go through the functions that `avro` compiles from the published schemas. A reader accepts exactly one event.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, lru_cache
from typing import Any, Final

from blake3 import blake3

from journal.avro import (
    MAGIC,
    Encode,
    PublishedSchema,
    body_fields,
    compile_decoder,
    compile_encoder,
    load_schemas,
    published_schemas,
    read_with_fastavro,
    schema_directory,
    write_long,
    write_string,
)
from journal.errors import Code, failure
from journal.events import Decode, Event, EventFormat, EventType, Readable, Undecodable, read_long
from journal.identities import (
    Digest,
    Fence,
    Fingerprint,
    HolderId,
    MigrationId,
    Place,
    Scope,
    Sequence,
)
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    ImportedMigration,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    PlanRecord,
    Record,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
    ScopeArrivedRecord,
    ScopeAwaitedRecord,
    ScopeCreatedRecord,
    ScopeMovedRecord,
    ScopeRestoredRecord,
    restore,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts

MAX_EVENT_BYTES: Final = 16 * 2**20
MAC_DOMAIN: Final = "fenced-journal 2026-11 event mac key v1"
KEY_ID_DOMAIN: Final = "fenced-journal 2026-11 mac key id v1"
KEY_ID_BYTES: Final = 8

RECORD_TYPES: Final[Mapping[EventType, type[Record]]] = {
    EventType.SCOPE_CREATED: ScopeCreatedRecord,
    EventType.LEASE_ACQUIRED: LeaseAcquiredRecord,
    EventType.LEASE_RELEASED: LeaseReleasedRecord,
    EventType.PLAN_OPENED: PlanRecord,
    EventType.GROUP_EVENT: GroupEventRecord,
    EventType.BACKFILL_EVENT: BackfillEventRecord,
    EventType.BACKFILL_CHECKPOINT: BackfillCheckpointRecord,
    EventType.APPLIED: AppliedRecord,
    EventType.ROLLBACK_PLAN_OPENED: RollbackPlanRecord,
    EventType.ROLLBACK_STEP_EVENT: RollbackStepEventRecord,
    EventType.ROLLED_BACK: RolledBackRecord,
    EventType.LEDGER_IMPORTED: LedgerImportedRecord,
    EventType.RECOVERY_ATTESTED: RecoveryAttestedRecord,
    EventType.PLAN_ABANDONED: PlanAbandonedRecord,
    EventType.SCOPE_AWAITED: ScopeAwaitedRecord,
    EventType.SCOPE_MOVED: ScopeMovedRecord,
    EventType.SCOPE_ARRIVED: ScopeArrivedRecord,
    EventType.SCOPE_RESTORED: ScopeRestoredRecord,
}
EVENT_TYPES: Final[Mapping[type[Record], EventType]] = {record: type for type, record in RECORD_TYPES.items()}

# --- authentication ---------------------------------------------------------------------------------------------------


class Key:
    """A 32-byte secret for event MACs. Its id is derived from it, so that keys need no names."""

    __slots__ = ("_key", "id")

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise failure(Code.INVALID_KEY, f"an authentication key has 32 bytes (64 hex digits), not {len(secret)}")
        self._key = blake3(secret, derive_key_context=MAC_DOMAIN).digest()
        self.id = blake3(secret, derive_key_context=KEY_ID_DOMAIN).digest(length=KEY_ID_BYTES)

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read 64 hex digits. Raises `journal_invalid_key`, which does not repeat the text."""
        if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
            raise failure(Code.INVALID_KEY, "an authentication key is written as 64 hex digits")
        return cls(bytes.fromhex(text))

    def mac(self, data: bytes) -> bytes:
        """Key id (8 bytes) and keyed BLAKE3 (32 bytes) of `data`."""
        return self.id + blake3(data, key=self._key).digest()

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


class Keyring:
    """The key that writes, and the keys before it, whose events are still believed.

    Nothing is ever deleted from a log, so what was written under a key needs it for ever: rotating adds one.
    """

    __slots__ = ("_keys", "current")

    def __init__(self, current: Key, *previous: Key | None) -> None:
        self.current = current
        self._keys = {key.id: key for key in (current, *previous) if key is not None}

    def verify(self, data: bytes, mac: bytes | None) -> bool:
        """Whether `mac` is that of `data` under one of the keys; the comparison takes constant time."""
        key = None if mac is None else self._keys.get(mac[:KEY_ID_BYTES])
        return key is not None and mac is not None and hmac.compare_digest(mac, key.mac(data))

    def __repr__(self) -> str:
        return f"Keyring({', '.join(map(repr, self._keys.values()))})"


# --- reading ----------------------------------------------------------------------------------------------------------

_FENCE_OFFSET: Final = 90
_EIGHT_BYTE_LONG_MASK: Final = 0x8080808080808080
_EIGHT_BYTE_LONG: Final = 0x0080808080808080


class Codec:
    """Reads and writes the events of any scope, with one set of limits and keys."""

    def __init__(self, *, keyring: Keyring | None = None, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.keyring = keyring
        self.max_event_bytes = max_event_bytes
        self._formats = published_formats()

    def read(self, position: int, data: bytes, mac: bytes | None = None) -> Readable:
        """Read one event's header; never raises. Bytes without one are `Undecodable`."""
        try:
            if data[:2] != MAGIC:
                return Undecodable(position, data)
            fence = data[_FENCE_OFFSET]
            if fence < 0x80:
                fence, at = (fence >> 1) ^ -(fence & 1), _FENCE_OFFSET + 1
            else:
                fence, at = read_long(data, _FENCE_OFFSET)
            if int.from_bytes(data[at : at + 8], "little") & _EIGHT_BYTE_LONG_MASK == _EIGHT_BYTE_LONG:
                start = at + 8  # what instants from 1978 to 3111 take
            else:
                _, start = read_long(data, at)
            length = data[start]
            if length < 0x80 and not length & 1:
                length, start = length >> 1, start + 1
            else:
                length, start = read_long(data, start)
            offset = start + length
            if length < 0 or offset > len(data):
                return Undecodable(position, data)
            scope = data[start:offset].decode()
        except (IndexError, ValueError):
            return Undecodable(position, data)
        format = self._formats.get(data[:10])
        if format is None:
            decode: Decode = _refuse_unknown
        elif len(data) > self.max_event_bytes:
            decode = self._refuse_large
        else:
            decode = format.decode
        keyring = self.keyring
        authentic = None if keyring is None else keyring.verify(data, mac)
        return Event(position, data, format, fence, scope, authentic, at, offset, decode)

    def _refuse_large(self, data: bytes, _: int) -> tuple[Any, ...]:
        raise failure(
            Code.EVENT_TOO_LARGE,
            f"an event of {len(data)} bytes is over the limit of {self.max_event_bytes}: raise max_event_bytes if it is "
            "genuine",
        )

    def write(
        self,
        record: Record,
        *,
        scope: str,
        incarnation: bytes,
        lease_id: bytes,
        parent: bytes,
        fence: int,
        recorded_at: int,
        event_id: bytes | None = None,
    ) -> bytes:
        """Encode one event. `recorded_at` is in microseconds since 1970 UTC; the event id is drawn when not given.

        Raises:
            ResourceLimitError: `journal_event_too_large`.
        """
        identity = (incarnation, event_id or os.urandom(16), lease_id, parent)
        return self._compose(record, identity, scope, fence, recorded_at)[0]

    def draft(
        self,
        record: Record,
        *,
        scope: str,
        incarnation: bytes,
        lease_id: bytes,
        parent: bytes,
        fence: int,
        recorded_at: int,
        event_id: bytes | None = None,
    ) -> tuple[Event, bytes | None]:
        """`write` an event and `read` it, with the MAC to store beside it, in less time than the two take."""
        identity = (incarnation, event_id or os.urandom(16), lease_id, parent)
        data, format, time_offset, body_offset = self._compose(record, identity, scope, fence, recorded_at)
        mac = self.authenticate(data)
        authentic = None if mac is None else True
        return Event(-1, data, format, fence, scope, authentic, time_offset, body_offset, format.decode), mac

    def _compose(
        self, record: Record, identity: tuple[bytes, bytes, bytes, bytes], scope: str, fence: int, recorded_at: int
    ) -> tuple[bytes, EventFormat, int, int]:
        """The event's bytes, the format that reads them, and where time and body begin."""
        prefix, format, encode = _writers()[type(record)]
        fence_bytes, scope_bytes = _fence_and_scope(fence, scope)
        time_bytes = write_long(recorded_at)
        data = b"".join((prefix, *identity, fence_bytes, time_bytes, scope_bytes, encode(record)))
        if len(data) > self.max_event_bytes:
            raise failure(
                Code.EVENT_TOO_LARGE, f"the event has {len(data)} bytes, over the limit of {self.max_event_bytes}"
            )
        time_offset = _FENCE_OFFSET + len(fence_bytes)
        return data, format, time_offset, time_offset + len(time_bytes) + len(scope_bytes)

    def authenticate(self, data: bytes) -> bytes | None:
        """The MAC to store beside an event; None without a key."""
        return None if self.keyring is None else self.keyring.current.mac(data)


def _refuse_unknown(data: bytes, _: int) -> tuple[Any, ...]:
    raise failure(
        Code.UNKNOWN_EVENT,
        f"an event has schema {data[2:10].hex()}, which this version does not know: upgrade fenced-journal before "
        "reading on",
    )


# --- published formats ------------------------------------------------------------------------------------------------


@cache
def published_formats() -> Mapping[bytes, EventFormat]:
    """Readers of all published schemas, by the first ten bytes of an event."""
    return compile_formats(published_schemas())


def compile_formats(schemas: Iterable[PublishedSchema]) -> dict[bytes, EventFormat]:
    """Compile a reader for each schema that resolves to the newest schema of its type."""
    newest = {schema.type: schema for schema in sorted(schemas, key=lambda schema: schema.version)}
    return {
        schema.prefix: EventFormat(
            schema.type, compile_decoder(schema, newest[schema.type]), _record_builder(newest[schema.type])
        )
        for schema in schemas
    }


@cache
def _writers() -> Mapping[type[Record], tuple[bytes, EventFormat, Encode]]:
    """First ten bytes, format and body encoder of the newest schema of each record."""
    formats = published_formats()
    return {
        RECORD_TYPES[schema.type]: (schema.prefix, formats[schema.prefix], compile_encoder(schema))
        for schema in published_schemas()
    }


@lru_cache(maxsize=64)
def _fence_and_scope(fence: int, scope: str) -> tuple[bytes, bytes]:
    """Their encodings, which stay the same for as long as a lease is held."""
    return write_long(fence), write_string(scope)


# --- raw values to records and back -----------------------------------------------------------------------------------


def _ids(values: tuple[str, ...]) -> tuple[MigrationId, ...]:
    return tuple(map(MigrationId.parse, values))


def _optional_fingerprint(value: bytes | None) -> Fingerprint | None:
    return None if value is None else Fingerprint(value)


def _completion(value: tuple[Any, ...] | None) -> BackfillCompletion | None:
    if value is None:
        return None
    return BackfillCompletion(Fingerprint(value[0]), value[1], BackfillCounts(*value[2:]))


def _imported(values: tuple[tuple[Any, ...], ...]) -> tuple[ImportedMigration, ...]:
    names = ImportedMigration.__slots__
    return tuple(
        restore(ImportedMigration, {name: _typed(name, item) for name, item in zip(names, value, strict=True)})
        for value in values
    )


# Field names mean one thing in every record, so they name the type too; what is not here keeps its raw value.
_TYPED: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        [
            "source_declared",
            "target_declared",
            "source_semantics",
            "target_semantics",
            "semantic_profile",
            "lowering_profile",
            "observed_live_source",
            "observed_live",
            "plan_fingerprint",
        ],
        Fingerprint,
    ),
    **dict.fromkeys(["observed_target", "observed"], _optional_fingerprint),
    **dict.fromkeys(
        ["source_applied", "source_frontier", "target_frontier", "migration_ids", "remaining_applied", "rollback_ids"],
        _ids,
    ),
    "manifest_digest": Digest,
    "manifest_digests": lambda values: tuple(map(Digest, values)),
    "manifest_plan_fingerprints": lambda values: tuple(map(Fingerprint, values)),
    "migration_id": MigrationId.parse,
    "completion": _completion,
    "migrations": _imported,
    "holder": HolderId,
    "plan_sequence": Sequence,
    "place": Place,
}


def _typed(name: str, value: Any) -> Any:
    convert = _TYPED.get(name)
    return value if convert is None else convert(value)


def _record_builder(schema: PublishedSchema) -> Callable[[str, int, tuple[Any, ...]], Record]:
    cls = RECORD_TYPES[schema.type]
    names = [field["name"] for field in body_fields(schema.json)]
    scoped = "scope" in cls.__slots__

    def build(scope: str, fence: int, body: tuple[Any, ...]) -> Record:
        values = {name: _typed(name, value) for name, value in zip(names, body, strict=True)}
        if scoped:
            values |= {"scope": Scope(scope), "fence": Fence(fence)}
        return restore(cls, values)

    return build


__all__ = [
    "MAX_EVENT_BYTES",
    "Codec",
    "Key",
    "Keyring",
    "PublishedSchema",
    "compile_formats",
    "load_schemas",
    "published_formats",
    "published_schemas",
    "read_with_fastavro",
    "schema_directory",
]
