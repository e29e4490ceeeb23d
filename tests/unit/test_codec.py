"""The codec against the library, byte for byte, and against everything that is not one whole event."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given, settings

from journal.codec import (
    EVENT_TYPES,
    MAX_EVENT_BYTES,
    RECORD_TYPES,
    Codec,
    PublishedSchema,
    compile_formats,
    load_schemas,
    published_formats,
    published_schemas,
    read_with_fastavro,
    schema_directory,
)
from journal.errors import Code, IntegrityError, JournalError, ResourceLimitError, UnknownEventError
from journal.events import Event, EventType, Undecodable, event_hash, read_long
from journal.identities import MigrationId
from journal.records import BackfillEventRecord, LedgerImportedRecord, PlanRecord, Record
from journal.vocabulary import BackfillCompletion, Direction, GroupEventKind, UnitKind
from tests.factories import (
    SCOPE,
    altered,
    backfill_record,
    chain_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    print_of,
)
from tests.strategies import DETERMINISTIC, headers, longs, records_of

NEWEST: Final = {schema.type: schema for schema in published_schemas()}
PARSED: Final = {type_: fastavro.parse_schema(schema.json) for type_, schema in NEWEST.items()}
HEADER: Final[dict[str, Any]] = {
    "scope": SCOPE,
    "incarnation": bytes(16),
    "lease_id": bytes(16),
    "parent": bytes(32),
    "fence": 1,
    "recorded_at": 0,
    "event_id": bytes(range(16)),
}

# Every type is tried, so few examples of each are many in all.
A_FEW: Final = settings(DETERMINISTIC, max_examples=30)

each_type = pytest.mark.parametrize("type_", list(EventType), ids=lambda type_: type_.value)


def fields_of(type_: EventType) -> list[str]:
    return [field["name"] for field in NEWEST[type_].json["fields"][1:]]


def plain(value: Any) -> Any:
    """A record's value as the library takes and gives it, written without the codec."""
    match value:
        case BackfillCompletion(plan_fingerprint, direction, counts):
            return {
                "plan_fingerprint": bytes(plan_fingerprint),
                "direction": direction.name,
                **{name: getattr(counts, name) for name in type(counts).__slots__},
            }
        case MigrationId():
            return str(value)
        case Enum():
            return value.name
        case tuple():
            return [plain(item) for item in value]
        case bytes():
            return bytes(value)
        case None | bool() | int() | str():
            return value
        case _:
            return {name: plain(getattr(value, name)) for name in type(value).__slots__}


def written_by_library(record: Record, header: dict[str, Any]) -> bytes:
    type_ = EVENT_TYPES[type(record)]
    values = {name: plain(getattr(record, name)) for name in fields_of(type_)}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[type_], {"header": header, **values}, strict=True)
    return NEWEST[type_].prefix + out.getvalue()


def raw(value: Any, type_: Any) -> Any:
    """What the library read, in the form of a decoded body: tuples, and members for enum symbols."""
    words: dict[str, type[Enum]] = {"GroupEventKind": GroupEventKind, "Direction": Direction, "UnitKind": UnitKind}
    match type_:
        case list():
            return None if value is None else raw(value, type_[1])
        case {"type": "array", "items": items}:
            return tuple(raw(item, items) for item in value)
        case {"type": "record", "fields": fields}:
            return tuple(raw(value[field["name"]], field["type"]) for field in fields)
        case {"type": "enum", "name": name}:
            return words[name][value]
        case str() if type_ in words:
            return words[type_][value]
        case _:
            return value


def read(data: bytes, codec: Codec | None = None) -> Event:
    event = (codec or Codec()).read(7, data)
    assert isinstance(event, Event)
    return event


def refused(data: bytes) -> JournalError:
    with pytest.raises(JournalError) as caught:
        _ = read(data).body
    return caught.value


# --- one event, two opinions ------------------------------------------------------------------------------------------


@each_type
def test_the_compiled_encoder_writes_what_the_library_writes(type_: EventType):
    @A_FEW
    @given(records_of(RECORD_TYPES[type_]), headers)
    def check(record: Record, header: dict[str, Any]) -> None:
        assert Codec().write(record, **header) == written_by_library(record, header)

    check()


@each_type
def test_the_compiled_decoder_reads_what_the_library_reads(type_: EventType):
    @A_FEW
    @given(records_of(RECORD_TYPES[type_]), headers)
    def check(record: Record, header: dict[str, Any]) -> None:
        data = written_by_library(record, header)
        event, values = read(data), read_with_fastavro(data)
        fields = NEWEST[type_].json["fields"][1:]
        assert event.type is type_
        assert event.body == tuple(raw(values[field["name"]], field["type"]) for field in fields)
        assert values["header"] == {name: getattr(event, name) for name in header}

    check()


@each_type
def test_a_record_comes_back_equal_and_with_its_types(type_: EventType):
    cls = RECORD_TYPES[type_]

    @A_FEW
    @given(records_of(cls), headers)
    def check(record: Record, header: dict[str, Any]) -> None:
        if "scope" in cls.__slots__:
            record = altered(record, scope=header["scope"], fence=header["fence"])
        event = read(Codec().write(record, **header))
        assert event.record == record
        for name in cls.__slots__:
            written, found = getattr(record, name), getattr(event.record, name)
            assert isinstance(found, type(written)) or isinstance(written, bytes), name

    check()


def test_an_array_of_many_thousands_of_items_survives():
    ids = tuple(MigrationId("example", f"{number:06d}") for number in range(50_000))
    record = altered(plan_record(lease_of(), [manifest_of(1)]), migration_ids=ids)
    data = Codec().write(record, **HEADER)
    assert data == written_by_library(record, HEADER)
    assert read(data).record == altered(record, scope=SCOPE)


@pytest.mark.parametrize("kind", list(GroupEventKind), ids=lambda kind: kind.value)
def test_every_enum_member_survives(kind: GroupEventKind):
    record = altered(group_record(lease_of(), manifest_of(1), GroupEventKind.BEFORE_COMMIT), kind=kind)
    assert read(Codec().write(record, **HEADER)).record == record


def test_an_event_id_is_drawn_anew_for_each_event():
    record = group_record(lease_of(), manifest_of(1), GroupEventKind.BEFORE_COMMIT)
    header = {name: value for name, value in HEADER.items() if name != "event_id"}
    ids = {read(Codec().write(record, **header)).event_id for _ in range(10)}
    assert len(ids) == 10


@DETERMINISTIC
@given(longs)
def test_numbers_of_every_width_are_read_with_their_end(value: int):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    assert read_long(b"xy" + out.getvalue() + b"z", 2) == (value, 2 + len(out.getvalue()))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_number_of_more_than_64_bits_is_not_written(value: int):
    record = altered(group_record(lease_of(), manifest_of(1), GroupEventKind.BEFORE_COMMIT), group_ordinal=value)
    with pytest.raises(ValueError, match="64 bits"):
        Codec().write(record, **HEADER)


# --- not one whole event ----------------------------------------------------------------------------------------------

# One event of each type, with arrays, optional values and strings in it.
_GENERATOR: Final = random.Random(7)


def sample(type_: EventType) -> bytes:
    """One event of the type with every optional part present and arrays of three."""
    lease, manifests = lease_of(), chain_of(3, backfill=True)
    match type_:
        case EventType.BACKFILL_EVENT:
            record: Record = backfill_record(lease, manifests[0], GroupEventKind.COMMITTED)
        case EventType.GROUP_EVENT:
            record = group_record(lease, manifests[0], GroupEventKind.COMMITTED)
        case EventType.PLAN_OPENED:
            record = plan_record(lease, manifests)
        case EventType.LEDGER_IMPORTED:
            record = imported()
        case _:
            return written_by_library_at_random(type_)
    return Codec().write(record, **HEADER)


def imported() -> LedgerImportedRecord:
    manifests = chain_of(3)
    return LedgerImportedRecord.from_verified_manifests(
        lease_of(), manifests, manifests[-1].target, operator="Ada", reason="adopted"
    )


def written_by_library_at_random(type_: EventType) -> bytes:
    def value(type_: Any, names: dict[str, Any]) -> Any:
        match type_:
            case list():
                return value(type_[1], names)
            case {"type": "array", "items": items}:
                return [value(items, names) for _ in range(3)]
            case {"type": "enum", "symbols": symbols}:
                return symbols[0]
            case {"type": "fixed", "size": size}:
                return _GENERATOR.randbytes(size)
            case "long":
                return _GENERATOR.randrange(300)
            case "string":
                return "example/0001"
            case "boolean":
                return True
            case {"type": "record", "fields": fields}:
                return {field["name"]: value(field["type"], names) for field in fields}
            case str():
                return value(names[type_], names)
            case other:
                raise AssertionError(other)

    schema = NEWEST[type_].json
    names = {"Bytes16": {"type": "fixed", "size": 16}, "Bytes32": {"type": "fixed", "size": 32}}
    names["Direction"] = {"type": "enum", "symbols": ["FORWARD"]}
    values = {field["name"]: value(field["type"], names) for field in schema["fields"][1:]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, PARSED[type_], {"header": HEADER, **values}, strict=True)
    return NEWEST[type_].prefix + out.getvalue()


BODY_AT: Final = 10 + 16 + 16 + 16 + 32 + 1 + 1 + 1 + len(SCOPE)


@each_type
def test_a_sample_of_each_type_decodes(type_: EventType):
    assert len(read(sample(type_)).body) == len(fields_of(type_))


@each_type
def test_an_event_that_is_cut_off_in_its_body_is_an_integrity_error(type_: EventType):
    data = sample(type_)
    for length in range(BODY_AT, len(data)):
        error = refused(data[:length])
        assert isinstance(error, IntegrityError)
        assert error.code is Code.UNDECODABLE_BODY


@each_type
def test_bytes_behind_an_event_are_an_integrity_error(type_: EventType):
    for tail in (b"\0", b"\x02", sample(type_)):
        assert refused(sample(type_) + tail).code is Code.UNDECODABLE_BODY


def test_an_event_that_is_cut_off_in_its_header_has_no_header():
    data = sample(EventType.APPLIED)
    for length in range(BODY_AT):
        assert isinstance(Codec().read(3, data[:length]), Undecodable)


@pytest.mark.parametrize("data", [b"", b"\xc3", b"\xc3\x01", b"{}", bytes(500), b"\xff" * 500], ids=repr)
def test_bytes_without_a_header_keep_their_position_and_content(data: bytes):
    found = Codec().read(3, data)
    assert isinstance(found, Undecodable)
    assert (found.position, found.data) == (3, data)


def test_another_magic_is_no_event():
    data = sample(EventType.APPLIED)
    assert isinstance(Codec().read(0, b"\xc3\x02" + data[2:]), Undecodable)


LENGTH_OF_SCOPE: Final = BODY_AT - len(SCOPE) - 1


@pytest.mark.parametrize(
    "length",
    [b"\x01", b"\x7f", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 9 + b"\x01", b"\xff" * 10 + b"\x01"],
    ids=["minus one", "minus 64", "the greatest", "the least", "over 64 bits"],
)
def test_an_impossible_length_of_the_scope_is_no_header(length: bytes):
    data = sample(EventType.APPLIED)
    assert isinstance(Codec().read(0, data[:LENGTH_OF_SCOPE] + length + data[LENGTH_OF_SCOPE + 1 :]), Undecodable)


def test_a_scope_that_is_not_utf_8_is_no_header():
    data = bytearray(sample(EventType.APPLIED))
    data[BODY_AT - 2] = 0xFF
    assert isinstance(Codec().read(0, bytes(data)), Undecodable)


@pytest.mark.parametrize("at", [90, 91], ids=["fence", "recorded_at"])
@pytest.mark.parametrize("number", [b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 10_000])
def test_a_number_of_more_than_64_bits_in_the_header_is_no_header(at: int, number: bytes):
    data = sample(EventType.APPLIED)
    assert isinstance(Codec().read(0, data[:at] + number + data[at + 1 :]), Undecodable)


def body_event(type_: EventType, *parts: bytes) -> bytes:
    """An event whose body is given byte by byte."""
    return NEWEST[type_].prefix + sample(type_)[10:BODY_AT] + b"".join(parts)


def long(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return long(len(data)) + data


def group_event(kind: bytes = b"\0", observed: bytes = b"\0", ordinal: bytes = b"\0") -> bytes:
    return body_event(EventType.GROUP_EVENT, bytes(32), string("a/b"), ordinal, b"\0\0\x02", kind, observed)


def test_a_body_that_is_given_byte_by_byte_decodes():
    assert read(group_event()).body == (bytes(32), "a/b", 0, 0, 0, 1, GroupEventKind.BEFORE_COMMIT, None)
    assert read(group_event(kind=b"\x02", observed=b"\x02" + bytes(32))).body[-1] == bytes(32)


@pytest.mark.parametrize("index", [-1, -5, 5, 6, 1_000, 2**63 - 1, -(2**63)])
def test_an_enum_index_without_a_word_is_an_error(index: int):
    assert refused(group_event(kind=long(index))).code is Code.UNDECODABLE_BODY


@pytest.mark.parametrize("branch", [long(-1), long(2), long(3), long(64), b"\x80\x00", b"\xff" * 11])
def test_a_union_branch_that_is_not_there_is_an_error(branch: bytes):
    assert refused(group_event(observed=branch + bytes(32))).code is Code.UNDECODABLE_BODY


@pytest.mark.parametrize("number", [b"\x80" * 10 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 100_000])
def test_a_number_of_more_than_64_bits_is_an_error(number: bytes):
    assert refused(group_event(ordinal=number)).code is Code.UNDECODABLE_BODY


def test_a_boolean_other_than_zero_and_one_is_an_error():
    assert read(body_event(EventType.SCOPE_CREATED, long(1), b"\x01")).body == (1, True)
    assert refused(body_event(EventType.SCOPE_CREATED, long(1), b"\x02")).code is Code.UNDECODABLE_BODY


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80"])
def test_a_string_that_is_not_utf_8_is_an_error(text: bytes):
    assert refused(body_event(EventType.LEASE_RELEASED, string(text))).code is Code.UNDECODABLE_BODY


LENGTHS: Final = [-1, -(2**63), 4, 1000, 2**31, 2**62, 2**63 - 1]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_string_that_is_longer_than_its_bytes_is_an_error(length: int):
    assert refused(body_event(EventType.LEASE_RELEASED, long(length), b"abc")).code is Code.UNDECODABLE_BODY


@pytest.mark.parametrize("length", LENGTHS)
def test_a_string_that_is_longer_than_its_bytes_is_an_error_before_more_values_too(length: int):
    item = bytes(5 * 32)
    data = body_event(
        EventType.LEDGER_IMPORTED, bytes(32), string("Ada"), string("why"), long(2), item, long(length), item + b"\0\0"
    )
    assert refused(data).code is Code.UNDECODABLE_BODY


def plan_opened(*arrays: bytes) -> bytes:
    return body_event(EventType.PLAN_OPENED, bytes(7 * 32), *arrays)


NO_ITEMS: Final = b"\0"


@pytest.mark.parametrize("count", [2**31, 2**62, 2**63 - 1, -(2**31), -(2**63)])
def test_an_array_that_is_longer_than_its_bytes_is_an_error_before_anything_is_looped_over(count: int):
    size = long(8) if count < 0 else b""
    data = plan_opened(long(count) + size + b"\0" * 5_000)
    assert refused(data).code is Code.UNDECODABLE_BODY


def test_an_array_without_its_end_is_an_error():
    assert refused(plan_opened(*[NO_ITEMS] * 5, long(1) + bytes(32))).code is Code.UNDECODABLE_BODY


def test_an_array_in_blocks_with_and_without_sizes_is_one_array():
    first, second = string("a/1"), string("a/2")
    blocks = [
        long(2) + first + second + b"\0",
        long(1) + first + long(1) + second + b"\0",
        long(-2) + long(len(first + second)) + first + second + b"\0",
        long(-1) + long(len(first)) + first + long(1) + second + b"\0",
    ]
    bodies = {read(plan_opened(block, *[NO_ITEMS] * 5)).body for block in blocks}
    assert bodies == {(*[bytes(32)] * 7, ("a/1", "a/2"), (), (), (), (), ())}


def test_a_number_in_more_bytes_than_it_needs_is_read_as_the_library_reads_it():
    data = group_event(ordinal=b"\x86\x80\x00")
    assert read(data).body[2] == 3 == read_with_fastavro(data)["group_ordinal"]


def test_an_error_of_a_body_says_where_and_what():
    error = refused(group_event(kind=long(5)))
    assert error.details["position"] == 7
    assert "GroupEvent" in error.message
    assert "position 7" in error.message


@each_type
def test_a_body_is_decoded_once_and_kept(type_: EventType):
    event = read(sample(type_))
    assert event.body is event.body


def test_a_record_that_cannot_be_typed_is_an_integrity_error():
    error_of = read(body_event(EventType.LEASE_RELEASED, string("no holder's label")))
    assert error_of.body == ("no holder's label",)
    with pytest.raises(IntegrityError) as caught:
        _ = error_of.record
    assert caught.value.code is Code.UNDECODABLE_BODY


# --- limits -----------------------------------------------------------------------------------------------------------


def test_the_default_limit_is_16_mib():
    assert MAX_EVENT_BYTES == 16 * 1024 * 1024
    assert Codec().max_event_bytes == MAX_EVENT_BYTES


def test_an_event_of_exactly_the_limit_is_read_and_written_and_one_byte_more_is_not():
    data = sample(EventType.PLAN_OPENED)
    record = read(data).record
    exact, short = Codec(max_event_bytes=len(data)), Codec(max_event_bytes=len(data) - 1)
    assert exact.write(record, **HEADER) == data
    assert read(data, exact).body
    with pytest.raises(ResourceLimitError) as written:
        short.write(record, **HEADER)
    with pytest.raises(ResourceLimitError) as found:
        _ = read(data, short).body
    assert written.value.code is found.value.code is Code.EVENT_TOO_LARGE


def test_an_event_over_the_limit_keeps_its_header():
    data = sample(EventType.PLAN_OPENED)
    event = read(data, Codec(max_event_bytes=50))
    assert event.scope == SCOPE
    assert event.hash == event_hash(data)


# --- schemas that come later ------------------------------------------------------------------------------------------


def changed(directory: Path, name: str, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    schema = json.loads((schema_directory() / f"{name}.v1.avsc").read_text("utf-8"))
    change(schema)
    (directory / f"{name}.v{version}.avsc").write_text(json.dumps(schema), "utf-8")


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """A directory with every published schema, to which a test adds versions."""
    for path in schema_directory().glob("*.avsc"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def decode_with(directory: Path, data: bytes) -> tuple[Any, ...]:
    return compile_formats(load_schemas(directory))[data[:10]].decode(data, BODY_AT)


ADDED: Final[list[tuple[Any, Any, Any]]] = [
    ("long", 7, 7),
    ("string", "none", "none"),
    ("boolean", True, True),
    (["null", "Bytes32"], None, None),
    ({"type": "array", "items": "string"}, [], ()),
    ("GroupEventKind", "COMMITTED", GroupEventKind.COMMITTED),
    (
        {
            "type": "enum",
            "name": "Direction",
            "symbols": ["FORWARD", "REVERSE", "UNRECOGNISED"],
            "default": "UNRECOGNISED",
        },
        "REVERSE",
        Direction.REVERSE,
    ),
    ("Bytes16", "\x00" * 15 + "\xff", bytes(15) + b"\xff"),
]


@pytest.mark.parametrize(("type_", "default", "expected"), ADDED, ids=lambda value: str(value)[:30])
def test_an_older_event_is_read_with_the_default_of_a_field_that_came_later(
    type_: Any, default: Any, expected: Any, later: Path
):
    field = {"name": "added", "type": type_, "doc": "Came later.", "default": default}
    changed(later, "group_event", 2, lambda schema: schema["fields"].append(field))
    body = decode_with(later, group_event())
    assert body == (*read(group_event()).body, expected)
    assert type(body[-1]) is type(expected)


def test_a_field_that_came_later_may_stand_anywhere_behind_the_header(later: Path):
    field = {"name": "added", "type": "long", "doc": "Came later.", "default": 7}
    changed(later, "group_event", 2, lambda schema: schema["fields"].insert(2, field))
    digest, *rest = read(group_event()).body
    assert decode_with(later, group_event()) == (digest, 7, *rest)


def test_events_of_every_version_are_read_in_the_order_of_the_newest(later: Path):
    def version(count: int) -> Callable[[dict[str, Any]], None]:
        fields = [{"name": f"added{n}", "type": "long", "doc": "Later.", "default": n} for n in range(2, count + 1)]
        return lambda schema: schema["fields"].extend(fields)

    changed(later, "group_event", 2, version(2))
    changed(later, "group_event", 3, version(3))
    second, third = [schema for schema in load_schemas(later) if schema.type is EventType.GROUP_EVENT][1:]
    old = group_event()
    assert decode_with(later, old)[-2:] == (2, 3)
    assert decode_with(later, second.prefix + old[10:] + long(20))[-2:] == (20, 3)
    assert decode_with(later, third.prefix + old[10:] + long(20) + long(30))[-2:] == (20, 30)


def test_versions_are_ordered_by_number(later: Path):
    for version in range(2, 12):
        field = {"name": f"added{version}", "type": "long", "doc": "Later.", "default": version}
        changed(later, "group_event", version, lambda schema, field=field: schema["fields"].append(field))
    assert decode_with(later, group_event())[-1] == 11


def test_an_event_of_a_schema_that_came_later_stops_this_version(later: Path):
    field = {"name": "added", "type": "long", "doc": "Came later.", "default": 7}
    changed(later, "group_event", 2, lambda schema: schema["fields"].append(field))
    newest = max(load_schemas(later), key=lambda schema: schema.version)
    event = read(newest.prefix + group_event()[10:] + long(1))
    assert event.format is None
    assert event.type is None
    assert event.scope == SCOPE
    with pytest.raises(UnknownEventError) as caught:
        _ = event.body
    assert caught.value.code is Code.UNKNOWN_EVENT
    assert newest.fingerprint.hex() in caught.value.message


def test_the_header_of_an_unknown_event_is_read_whatever_its_body_is():
    event = read(b"\xc3\x01" + b"\xee" * 8 + sample(EventType.APPLIED)[10:BODY_AT] + b"\xff" * 1_000)
    assert (event.scope, event.fence, event.event_id) == (SCOPE, 1, HEADER["event_id"])


def test_a_symbol_that_came_later_is_an_error_and_not_a_guess(later: Path):
    def add_symbol(schema: dict[str, Any]) -> None:
        (kind,) = (field["type"] for field in schema["fields"] if field["name"] == "kind")
        kind["symbols"].insert(-1, "HALF_COMMITTED")

    changed(later, "group_event", 2, add_symbol)
    newest = max(load_schemas(later), key=lambda schema: schema.version)
    with pytest.raises(ValueError, match="enum symbol"):
        decode_with(later, newest.prefix + group_event(kind=long(5))[10:])


def test_every_published_schema_has_a_reader():
    assert set(published_formats()) == {schema.prefix for schema in published_schemas()}


def test_published_schemas_are_values(tmp_path: Path):
    (tmp_path / "applied.v1.avsc").write_bytes((schema_directory() / "applied.v1.avsc").read_bytes())
    (schema,) = load_schemas(tmp_path)
    assert schema == PublishedSchema(EventType.APPLIED, 1, schema.json, NEWEST[EventType.APPLIED].fingerprint)


# --- records --------------------------------------------------------------------------------------------------------


def test_backfill_counts_are_flat_on_the_wire_and_nested_in_the_record():
    record = backfill_record(lease_of(), manifest_of(1, backfill=True), GroupEventKind.COMMITTED)
    event = read(Codec().write(record, **HEADER))
    assert event.body[-1] == (print_of("backfill 1"), Direction.FORWARD, 5, 3, 2, 2)
    assert isinstance(event.record, BackfillEventRecord)
    assert event.record.completion == record.completion


def test_a_plan_record_has_typed_tuples():
    record = read(sample(EventType.PLAN_OPENED)).record
    assert isinstance(record, PlanRecord)
    assert all(isinstance(id, MigrationId) for id in record.migration_ids)
