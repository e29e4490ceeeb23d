"""Events to bytes and back: the only module that knows Avro.

Reading is the hot path of every replay and writing that of every append, so the header is sliced at fixed offsets, and
each published schema is compiled, once, to a straight-line Python function a direction that handles its body and
nothing else. fastavro gives the schemas' fingerprints and is the second opinion: the tests hold the compiled functions
to it byte for byte, in both directions, and `journal verify` asks it again for every event.

A reader accepts exactly one event: trailing bytes, an enum index or union branch that does not exist, a number of more
than 64 bits, or an array longer than its bytes are errors, never guesses.
"""

from __future__ import annotations

import hmac
import io
import json
import linecache
import re
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from blake3 import blake3

from journal.errors import Code, failure
from journal.events import Decode, Event, EventFormat, EventType, Readable, Undecodable, read_long
from journal.identities import (
    Digest,
    Fence,
    Fingerprint,
    HolderId,
    Incarnation,
    LeaseId,
    MigrationId,
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
    ScopeCreatedRecord,
    restore,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind, UnitKind

MAGIC: Final = b"\xc3\x01"
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
}
EVENT_TYPES: Final[Mapping[type[Record], EventType]] = {record: type for type, record in RECORD_TYPES.items()}

_ENUMS: Final[Mapping[str, type[Enum]]] = {
    "GroupEventKind": GroupEventKind,
    "Direction": Direction,
    "UnitKind": UnitKind,
}


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
        try:
            return cls(bytes.fromhex(text))
        except ValueError:
            raise failure(Code.INVALID_KEY, "an authentication key is written as 64 hex digits") from None

    def mac(self, data: bytes) -> bytes:
        """Key id (8 bytes) and keyed BLAKE3 (32 bytes) of `data`."""
        return self.id + blake3(data, key=self._key).digest()

    def __repr__(self) -> str:
        return f"Key({self.id.hex()})"


@dataclass(frozen=True, slots=True)
class Keyring:
    """The key that writes, and one previous key whose events are still believed while keys are rotated."""

    current: Key
    previous: Key | None = None

    def verify(self, data: bytes, mac: bytes | None) -> bool:
        """Whether `mac` is that of `data` under one of the keys; the comparison takes constant time."""
        if mac is None:
            return False
        for key in (self.current, self.previous):
            if key is not None and mac[:KEY_ID_BYTES] == key.id:
                return hmac.compare_digest(mac, key.mac(data))
        return False


# --- reading ----------------------------------------------------------------------------------------------------------

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
            fence = data[90]
            if fence < 0x80:
                fence, at = (fence >> 1) ^ -(fence & 1), 91
            else:
                fence, at = read_long(data, 90)
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
        return Event(position, data, format, fence, scope, authentic, (at, offset), decode)

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
        prefix, encode = _writers()[type(record)]
        data = b"".join(
            (
                prefix,
                incarnation,
                event_id or secrets.token_bytes(16),
                lease_id,
                parent,
                _write_long(fence),
                _write_long(recorded_at),
                _write_string(scope),
                encode(record),
            )
        )
        if len(data) > self.max_event_bytes:
            raise failure(
                Code.EVENT_TOO_LARGE, f"the event has {len(data)} bytes, over the limit of {self.max_event_bytes}"
            )
        return data

    def authenticate(self, data: bytes) -> bytes | None:
        """The MAC to store beside an event; None without a key."""
        return None if self.keyring is None else self.keyring.current.mac(data)


def _refuse_unknown(data: bytes, _: int) -> tuple[Any, ...]:
    raise failure(
        Code.UNKNOWN_EVENT,
        f"an event has schema {data[2:10].hex()}, which this version does not know: upgrade fenced-journal before "
        "reading on",
    )


# --- published schemas ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedSchema:
    """One `.avsc` file: its event type, version, parsed JSON, and fingerprint (8 bytes, as the wire has it)."""

    type: EventType
    version: int
    json: dict[str, Any]
    fingerprint: bytes

    @property
    def prefix(self) -> bytes:
        """The first ten bytes of every event written with it."""
        return MAGIC + self.fingerprint


def schema_directory() -> Path:
    """Where the published schemas are: inside the installed package, or beside it in a source tree."""
    installed = Path(__file__).parent / "schemas"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "schemas"


@cache
def published_schemas() -> tuple[PublishedSchema, ...]:
    """Every schema ever published, by type and version."""
    return load_schemas(schema_directory())


def load_schemas(directory: Path) -> tuple[PublishedSchema, ...]:
    """Read `name.vN.avsc` files. Raises ValueError for a file that is not named or made like one."""
    from fastavro.schema import fingerprint, to_parsing_canonical_form  # noqa: PLC0415  (slow to import)

    schemas = []
    for path in sorted(directory.glob("*.avsc")):
        match = re.fullmatch(r"[a-z_]+\.v([1-9][0-9]*)\.avsc", path.name)
        if match is None:
            raise ValueError(f"{path.name} is not named like a published schema")
        schema = json.loads(path.read_text("utf-8"))
        crc = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
        schemas.append(PublishedSchema(EventType(schema["name"]), int(match[1]), schema, crc))
    return tuple(sorted(schemas, key=lambda schema: (schema.type.value, schema.version)))


@cache
def published_formats() -> Mapping[bytes, EventFormat]:
    """Readers of all published schemas, by the first ten bytes of an event."""
    return compile_formats(published_schemas())


def compile_formats(schemas: Iterable[PublishedSchema]) -> dict[bytes, EventFormat]:
    """Compile a reader for each schema that resolves to the newest schema of its type."""
    newest = {schema.type: schema for schema in sorted(schemas, key=lambda schema: schema.version)}
    return {
        schema.prefix: EventFormat(
            schema.type, _compile(schema, newest[schema.type]), _record_builder(newest[schema.type])
        )
        for schema in schemas
    }


def _body_fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [field for field in schema["fields"] if field["name"] != "header"]


# --- the compiler -----------------------------------------------------------------------------------------------------


def _compile(writer: PublishedSchema, reader: PublishedSchema) -> Decode:
    """Generate `decode(data, at)` for bodies that `writer` wrote, giving the fields of `reader`."""
    generator = _Generator(writer.json)
    variables = generator.read_fields(_body_fields(writer.json))
    results = []
    for field in _body_fields(reader.json):
        name = field["name"]
        results.append(variables[name] if name in variables else generator.constant(_default(field)))
    generator.emit("if at != size: raise ValueError('bytes behind the event or missing from it')")
    generator.emit(f"return ({''.join(f'{result}, ' for result in results)})")
    return generator.function(f"{writer.type.value}.v{writer.version}")


def _default(field: dict[str, Any]) -> Any:
    type_ = field["type"]
    if isinstance(type_, dict) and type_["type"] == "enum":
        return _ENUMS[type_["name"]][field["default"]]
    return field["default"]


def named_types(type_: Any) -> dict[str, dict[str, Any]]:
    """Every record, enum and fixed that a schema defines, by name."""
    if isinstance(type_, list):
        return {name: found for branch in type_ for name, found in named_types(branch).items()}
    if not isinstance(type_, dict):
        return {}
    named = {type_["name"]: type_} if "name" in type_ else {}
    for inner in [*(field["type"] for field in type_.get("fields", ())), type_.get("items")]:
        named |= named_types(inner)
    return named


def _define(name: str, source: str, variables: dict[str, Any], file: str) -> Any:
    """Compile generated source and return the function `name` of it; tracebacks show its lines."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), variables)  # noqa: S102  (source from the shipped schemas alone)
    return variables[name]


class _Generator:
    """Writes the source of one decoder, type by type. `data`, `at` and `size` are its variables."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._count = 0
        self._globals: dict[str, Any] = {"long": read_long}
        self._named = named_types(schema)

    def emit(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)

    def variable(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def constant(self, value: Any) -> str:
        name = f"c{len(self._globals)}"
        self._globals[name] = value
        return name

    def read(self, type_: Any) -> str:
        """Emit code that reads one value; returns the variable that holds it."""
        if isinstance(type_, str) and type_ in self._named:
            return self.read(self._named[type_])
        if isinstance(type_, list):
            return self._optional(type_[1])
        kind = type_["type"] if isinstance(type_, dict) else type_
        return cast("str", getattr(self, f"_{kind}")(type_))

    def read_fields(self, fields: list[dict[str, Any]]) -> dict[str, str]:
        """Emit code that reads fields in order; returns the variable of each. Neighbours of fixed width are read at once."""
        variables: dict[str, str] = {}
        for fixed, run in groupby(fields, key=lambda field: self._fixed_size(field["type"]) > 0):
            members = list(run)
            names = [field["name"] for field in members]
            if fixed and len(names) > 1:
                sizes = [self._fixed_size(field["type"]) for field in members]
                unpack = self.constant(struct.Struct("".join(f"{size}s" for size in sizes)).unpack_from)
                values = [self.variable() for _ in names]
                self.emit(f"{', '.join(values)} = {unpack}(data, at); at += {sum(sizes)}")
                variables.update(zip(names, values, strict=True))
            else:
                variables.update({field["name"]: self.read(field["type"]) for field in members})
        return variables

    def _fixed_size(self, type_: Any) -> int:
        if isinstance(type_, str):
            type_ = self._named.get(type_)
        return type_["size"] if isinstance(type_, dict) and type_["type"] == "fixed" else 0

    def _raw_long(self) -> str:
        value = self.variable()
        self.emit(f"{value} = data[at]")
        self.emit(f"if {value} < 128: {value} = ({value} >> 1) ^ -({value} & 1); at += 1")
        self.emit(f"else: {value}, at = long(data, at)")
        return value

    def _long(self, _: Any) -> str:
        return self._raw_long()

    def _fixed(self, type_: dict[str, Any]) -> str:
        value = self.variable()
        self.emit(f"{value} = data[at:at + {type_['size']}]; at += {type_['size']}")
        return value

    def _string(self, _: Any) -> str:
        length = self._raw_long()
        self.emit(f"if {length} < 0: raise ValueError('a string of negative length')")
        value = self.variable()
        self.emit(f"{value} = data[at:at + {length}].decode(); at += {length}")
        return value

    def _boolean(self, _: Any) -> str:
        value = self.variable()
        self.emit(f"{value} = (False, True)[data[at]]; at += 1")
        return value

    def _enum(self, type_: dict[str, Any]) -> str:
        members = [_ENUMS[type_["name"]].__members__.get(symbol) for symbol in type_["symbols"]]
        index, value = self._raw_long(), self.variable()
        self.emit(f"{value} = {self.constant(tuple(members))}[{index}] if {index} >= 0 else None")
        self.emit(f"if {value} is None: raise ValueError('an unknown enum symbol')")
        return value

    def _optional(self, type_: Any) -> str:
        branch, value = self.variable(), self.variable()
        self.emit(f"{branch} = data[at]; at += 1")
        self.emit(f"if {branch} == 2:")
        self._depth += 1
        self.emit(f"{value} = {self.read(type_)}")
        self._depth -= 1
        self.emit(f"elif {branch} == 0: {value} = None")
        self.emit("else: raise ValueError('an unknown union branch')")
        return value

    def _array(self, type_: dict[str, Any]) -> str:
        items = self.variable()
        self.emit(f"{items} = []")
        self.emit("while True:")
        self._depth += 1
        count = self._raw_long()
        self.emit(f"if {count} == 0: break")
        self.emit(f"if {count} < 0: {count} = -{count}; at = long(data, at)[1]")
        # No item is empty, so a count beyond the bytes that are left is a lie, and must not be looped over.
        self.emit(f"if {count} > size - at: raise ValueError('an array longer than its bytes')")
        self.emit(f"for _ in range({count}):")
        self._depth += 1
        self.emit(f"{items}.append({self.read(type_['items'])})")
        self._depth -= 2
        value = self.variable()
        self.emit(f"{value} = tuple({items})")
        return value

    def _record(self, type_: dict[str, Any]) -> str:
        fields = self.read_fields(type_["fields"]).values()
        value = self.variable()
        self.emit(f"{value} = ({''.join(f'{field}, ' for field in fields)})")
        return value

    def function(self, name: str) -> Decode:
        source = "def decode(data, at):\n    size = len(data)\n" + "\n".join(self._lines) + "\n"
        decode: Decode = _define("decode", source, self._globals, f"<decoder of {name}>")
        return decode


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
}


def _typed(name: str, value: Any) -> Any:
    convert = _TYPED.get(name)
    return value if convert is None else convert(value)


def _record_builder(schema: PublishedSchema) -> Callable[[str, int, tuple[Any, ...]], Record]:
    cls = RECORD_TYPES[schema.type]
    names = [field["name"] for field in _body_fields(schema.json)]
    scoped = "scope" in cls.__slots__

    def build(scope: str, fence: int, body: tuple[Any, ...]) -> Record:
        values = {name: _typed(name, value) for name, value in zip(names, body, strict=True)}
        if scoped:
            values |= {"scope": Scope(scope), "fence": Fence(fence)}
        return restore(cls, values)

    return build


def _write_long(value: int) -> bytes:
    """Encode one Avro long. Raises ValueError past 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise ValueError("a number of more than 64 bits")
    word = (value << 1) ^ (value >> 63)
    parts = bytearray()
    while word > 0x7F:
        parts.append(word & 0x7F | 0x80)
        word >>= 7
    parts.append(word)
    return bytes(parts)


def _write_string(text: str) -> bytes:
    data = text.encode()
    return _write_long(len(data)) + data


def _write_fixed(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise ValueError(f"{size} bytes wanted, {len(value)} given")
    return value


class _Encoder:
    """Writes the source of one encoder: an expression a field, joined."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._named = named_types(schema)
        self.globals: dict[str, Any] = {
            "long": _write_long,
            "string": _write_string,
            "fixed": _write_fixed,
            "small": tuple(_write_long(value) for value in range(64)),
        }

    def write(self, type_: Any, value: str, name: str = "") -> str:
        """The expression that encodes `value`, itself an expression, as `type_`."""
        if isinstance(type_, str) and type_ in self._named:
            return self.write(self._named[type_], value, name)
        if isinstance(type_, list):
            return f"(b'\\0' if {value} is None else b'\\2' + {self.write(type_[1], value, name)})"
        match type_["type"] if isinstance(type_, dict) else type_:
            case "fixed":
                return f"fixed({value}, {type_['size']})"
            case "long":
                return f"(small[{value}] if 0 <= {value} < 64 else long({value}))"
            case "boolean":
                return f"(b'\\1' if {value} else b'\\0')"
            case "string":
                return f"string({self._text(name, value)})"
            case "enum":
                return f"{self._symbols(type_)}[{value}]"
            case "array":
                items = f"[{self.write(type_['items'], 'item', name)} for item in {value}]"
                return f"(long(len({value})) + b''.join({items}) + b'\\0' if {value} else b'\\0')"
            case "record":
                return " + ".join(self.write(*field) for field in self._nested(type_, value))
            case other:
                raise ValueError(f"no encoder for {other}")

    @staticmethod
    def _text(name: str, value: str) -> str:
        return f"str({value})" if _TYPED.get(name) in (MigrationId.parse, _ids) or name == "migrations" else value

    @staticmethod
    def _nested(type_: dict[str, Any], value: str) -> list[tuple[Any, str, str]]:
        # Counts of a completion live one level down in the record that people see.
        counts = BackfillCounts.__slots__ if type_["name"] == "BackfillCompletion" else ()
        return [
            (field["type"], f"{value}.{'counts.' if field['name'] in counts else ''}{field['name']}", field["name"])
            for field in type_["fields"]
        ]

    def _symbols(self, type_: dict[str, Any]) -> str:
        members = _ENUMS[type_["name"]].__members__
        table = {members[name]: _write_long(i) for i, name in enumerate(type_["symbols"]) if name in members}
        self.globals[f"symbols_{type_['name']}"] = table
        return f"symbols_{type_['name']}"


Encode: TypeAlias = Callable[[Any], bytes]


def _compile_encoder(schema: PublishedSchema) -> Encode:
    """Generate `encode(record)`: the body of a record, as fastavro would write it."""
    encoder = _Encoder(schema.json)
    parts = [encoder.write(field["type"], f"r.{field['name']}", field["name"]) for field in _body_fields(schema.json)]
    source = f"def encode(r):\n    return b''.join(({', '.join(parts)},))\n"
    return cast(
        "Encode", _define("encode", source, encoder.globals, f"<encoder of {schema.type.value}.v{schema.version}>")
    )


@cache
def _writers() -> Mapping[type[Record], tuple[bytes, Encode]]:
    """First ten bytes and body encoder of the newest schema of each record."""
    return {RECORD_TYPES[schema.type]: (schema.prefix, _compile_encoder(schema)) for schema in published_schemas()}


def read_with_fastavro(data: bytes) -> dict[str, Any]:
    """Decode one event by the library instead of the compiled reader, for checks that want two opinions.

    Raises:
        KeyError: the schema is not published.
    """
    from fastavro import schemaless_reader  # noqa: PLC0415

    return cast("dict[str, Any]", schemaless_reader(io.BytesIO(data[10:]), _library_schemas()[data[:10]], None))


@cache
def _library_schemas() -> Mapping[bytes, Any]:
    from fastavro import parse_schema  # noqa: PLC0415

    return {schema.prefix: parse_schema(schema.json) for schema in published_schemas()}


__all__ = [
    "MAX_EVENT_BYTES",
    "Codec",
    "Incarnation",
    "Key",
    "Keyring",
    "LeaseId",
    "PublishedSchema",
    "compile_formats",
    "load_schemas",
    "published_formats",
    "published_schemas",
    "schema_directory",
]
