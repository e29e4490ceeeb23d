"""The published schemas: what they may say, that they never change, and that the code unpacks them as they are.

`python -m tests.unit.test_schemas --write` pins schemas that were added; it never changes a pin that is there.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from journal import admission, rules
from journal.codec import RECORD_TYPES, PublishedSchema, load_schemas, published_schemas, schema_directory
from journal.events import EventType
from journal.records import ImportedMigration
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind, UnitKind

GOLDEN: Final = Path(__file__).parent.parent / "golden" / "schemas.json"
FILES: Final = sorted(schema_directory().glob("*.avsc"))
PRIMITIVES: Final = {"boolean", "long", "string"}
HEADER: Final = ["incarnation", "event_id", "lease_id", "parent", "fence", "recorded_at", "scope"]
NEWEST: Final = {schema.type: schema for schema in published_schemas()}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
each_type = pytest.mark.parametrize("type_", list(EventType), ids=lambda type_: type_.value)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def body_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return schema["fields"][1:]


def nodes(type_: Any) -> Iterator[Any]:
    """The type and every type inside it, definitions and references alike."""
    yield type_
    match type_:
        case list():
            inner = type_
        case dict():
            inner = [field["type"] for field in type_.get("fields", ())] + [type_[k] for k in ("items",) if k in type_]
        case _:
            inner = []
    for item in inner:
        yield from nodes(item)


def defined(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in nodes(schema) if isinstance(node, dict) and "name" in node}


# --- lint -------------------------------------------------------------------------------------------------------------


def test_every_event_type_has_a_schema_and_every_schema_an_event_type():
    assert {schema.type for schema in published_schemas()} == set(EventType)
    assert len(FILES) == len(published_schemas())


@each_file
def test_a_file_is_named_after_its_record_and_version(path: Path):
    snake = re.sub(r"(?<!^)(?=[A-Z])", "_", read(path)["name"]).lower()
    assert re.fullmatch(rf"{snake}\.v[1-9][0-9]*\.avsc", path.name)


def test_versions_of_a_type_are_numbered_from_one_without_gaps():
    for type_ in EventType:
        versions = [schema.version for schema in published_schemas() if schema.type is type_]
        assert versions == list(range(1, len(versions) + 1))


@each_file
def test_every_record_enum_and_field_is_documented(path: Path):
    for node in nodes(read(path)):
        if isinstance(node, dict) and node["type"] in ("record", "enum"):
            assert node.get("doc", "").strip(), node["name"]
        if isinstance(node, dict) and node["type"] == "record":
            for field in node["fields"]:
                assert field.get("doc", "").strip(), f"{node['name']}.{field['name']}"


@each_file
def test_only_the_allowed_types_occur(path: Path):
    known: set[str] = set()
    for node in nodes(read(path)):
        match node:
            case str():
                assert node in PRIMITIVES | known | {"null"}
            case list():
                assert len(node) == 2
                assert node[0] == "null"
                assert node[1] != "null"
            case _:
                assert node["type"] in ("record", "enum", "fixed", "array")
                # A definition is known behind its head only, so a record that contains itself fails above.
                known |= {node["name"]} if node["type"] in ("enum", "fixed") else set()


@each_file
def test_no_type_is_logical(path: Path):
    assert "logicalType" not in path.read_text("utf-8")


@each_file
def test_null_stands_in_unions_only(path: Path):
    for node in nodes(read(path)):
        if isinstance(node, dict):
            inner = [field["type"] for field in node.get("fields", ())] + [node.get("items")]
            assert "null" not in inner


@each_file
def test_every_enum_has_a_default_that_means_unrecognised(path: Path):
    enums = [node for node in nodes(read(path)) if isinstance(node, dict) and node["type"] == "enum"]
    for enum in enums:
        assert enum["default"] == "UNRECOGNISED" == enum["symbols"][-1]
        assert len(set(enum["symbols"])) == len(enum["symbols"])


@each_file
def test_an_optional_field_defaults_to_null(path: Path):
    for node in nodes(read(path)):
        for field in node.get("fields", ()) if isinstance(node, dict) else ():
            if isinstance(field["type"], list):
                assert field["default"] is None, field["name"]


@each_file
def test_no_array_item_can_take_zero_bytes(path: Path):
    schema = read(path)
    names = defined(schema)

    def width(type_: Any) -> int:
        if isinstance(type_, str):
            return width(names[type_]) if type_ in names else 1
        if isinstance(type_, list):
            return 1
        match type_["type"]:
            case "record":
                return sum(width(field["type"]) for field in type_["fields"])
            case "fixed":
                return type_["size"]
            case _:
                return 1

    for node in nodes(schema):
        if isinstance(node, dict) and node["type"] == "array":
            assert width(node["items"]) > 0


@each_file
def test_instants_are_plain_long_microseconds(path: Path):
    for node in nodes(read(path)):
        for field in node.get("fields", ()) if isinstance(node, dict) else ():
            if field["name"].endswith(("_at", "_micros")):
                assert field["type"] == "long"
                assert "microsecond" in field["doc"].lower()


@each_file
def test_the_header_comes_first_and_is_the_same_everywhere(path: Path):
    schema, first = read(path), read(FILES[0])
    assert schema["fields"][0] == first["fields"][0]
    assert schema["fields"][0]["name"] == "header"
    assert [field["name"] for field in schema["fields"][0]["type"]["fields"]] == HEADER
    assert schema["namespace"] == "fenced_journal"


@each_file
def test_a_name_means_the_same_type_in_every_schema(path: Path):
    others = {name: node for other in FILES for name, node in defined(read(other)).items()}
    for name, node in defined(read(path)).items():
        assert node == others[name]


@pytest.mark.parametrize("words", [GroupEventKind, Direction, UnitKind], ids=lambda words: words.__name__)
def test_enum_symbols_are_the_names_of_the_words(words: type):
    enums = {name: node for path in FILES for name, node in defined(read(path)).items() if node["type"] == "enum"}
    assert enums[words.__name__]["symbols"] == [*words.__members__, "UNRECOGNISED"]


@pytest.mark.parametrize("name", ["Applied.v1.avsc", "applied.avsc", "applied.v0.avsc", "applied.v01.avsc"])
def test_a_file_that_is_not_named_like_a_published_schema_is_refused(name: str, tmp_path: Path):
    (tmp_path / name).write_bytes((schema_directory() / "applied.v1.avsc").read_bytes())
    with pytest.raises(ValueError, match="not named like a published schema"):
        load_schemas(tmp_path)


# --- the code and the schemas -----------------------------------------------------------------------------------------


@each_type
def test_body_fields_are_the_fields_of_the_record_in_its_order(type_: EventType):
    fields = [field["name"] for field in body_of(NEWEST[type_].json)]
    # Scope and fence are in the header.
    assert fields == [name for name in RECORD_TYPES[type_].__slots__ if name not in ("scope", "fence")]


def test_nested_records_have_the_fields_of_their_classes_in_their_order():
    named = {name: node for path in FILES for name, node in defined(read(path)).items() if node["type"] == "record"}
    imported = [field["name"] for field in named["ImportedMigration"]["fields"]]
    completion = [field["name"] for field in named["BackfillCompletion"]["fields"]]
    assert imported == list(ImportedMigration.__slots__)
    assert completion == [*BackfillCompletion.__slots__[:-1], *BackfillCounts.__slots__]


# What rules call a field where it is not the field's own name.
ALIASES: Final = {
    "digest": {"manifest_digest"},
    "digests": {"manifest_digests"},
    "fingerprint": {"plan_fingerprint"},
    "fingerprints": {"manifest_plan_fingerprints"},
    "migration": {"migration_id"},
    "ids": {"migration_ids", "rollback_ids"},
    "applied": {"source_applied"},
    "remaining": {"remaining_applied"},
    "ordinal": {"group_ordinal", "operation_ordinal", "step_ordinal"},
    "step_index": {"manifest_step_index"},
    "first": {"first_step_index"},
    "delta": {"schema_delta_step_index"},
    "end": {"end_step_index"},
    "observed": {"observed_target"},
    "unit_kind": {"unit"},
}


def unpackings(function: Any) -> list[list[tuple[str, bool]]]:
    """The names to which a function unpacks `event.body`, each with whether it is starred."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(function).strip())):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == "event.body":
            assert isinstance(node.targets[0], ast.Tuple), ast.unparse(node)
            names = [
                (element.value.id, True) if isinstance(element, ast.Starred) else (element.id, False)
                for element in node.targets[0].elts
            ]
            found.append(names)
    return found


def check_unpacking(names: list[tuple[str, bool]], fields: list[str]) -> None:
    starred = [index for index, (_, star) in enumerate(names) if star]
    if not starred:
        assert len(names) == len(fields)
        pairs = list(zip(names, fields, strict=True))
    else:
        (star,) = starred
        behind = len(names) - star - 1
        pairs = [
            *zip(names[:star], fields, strict=False),
            *zip(names[star + 1 :], fields[len(fields) - behind :], strict=True),
        ]
    for (name, _), field in pairs:
        assert name.startswith("_") or field == name or field in ALIASES.get(name, ()), f"{name} is not {field}"


@each_type
def test_rules_and_effects_unpack_bodies_in_schema_order(type_: EventType):
    fields = [field["name"] for field in body_of(NEWEST[type_].json)]
    for function in (rules.RULES[type_], rules.EFFECTS[type_]):
        for names in unpackings(function):
            check_unpacking(names, fields)


def test_fields_that_are_taken_by_index_are_where_the_rules_look():
    fields = {type_: [field["name"] for field in body_of(NEWEST[type_].json)] for type_ in EventType}
    assert fields[EventType.SCOPE_CREATED][1] == "authenticated"
    assert fields[EventType.LEDGER_IMPORTED][3] == "migrations"
    (genesis,) = unpackings(admission._admit_genesis)
    check_unpacking(genesis, fields[EventType.SCOPE_CREATED])


def test_every_event_type_has_a_rule_and_an_effect():
    assert set(rules.RULES) == set(rules.EFFECTS) == set(EventType)


# --- published for ever -----------------------------------------------------------------------------------------------


def canonical(type_: Any, namespace: str = "fenced_journal") -> str:
    """Avro's parsing canonical form, written from the specification for the types that occur here."""
    match type_:
        case str():
            return f'"{type_}"' if type_ in PRIMITIVES | {"null"} else f'"{namespace}.{type_}"'
        case list():
            return "[" + ",".join(map(canonical, type_)) + "]"
        case {"type": "array", "items": items}:
            return '{"type":"array","items":' + canonical(items) + "}"
    head = f'{{"name":"{namespace}.{type_["name"]}","type":"{type_["type"]}",'
    match type_["type"]:
        case "record":
            fields = [f'{{"name":"{field["name"]}","type":{canonical(field["type"])}}}' for field in type_["fields"]]
            return head + '"fields":[' + ",".join(fields) + "]}"
        case "enum":
            return head + '"symbols":[' + ",".join(f'"{symbol}"' for symbol in type_["symbols"]) + "]}"
        case "fixed":
            return head + f'"size":{type_["size"]}}}'
        case other:
            raise AssertionError(other)


def crc_64_avro(text: str) -> bytes:
    """CRC-64-AVRO as the specification has it, in the byte order of single-object encoding (little-endian)."""
    empty = 0xC15D213AA4D7A795
    result = empty
    for byte in text.encode():
        value = (result ^ byte) & 0xFF
        for _ in range(8):
            value = (value >> 1) ^ (empty if value & 1 else 0)
        result = (result >> 8) ^ value
    return result.to_bytes(8, "little")


def pin_of(path: Path) -> dict[str, str]:
    return {
        "fingerprint": crc_64_avro(canonical(read(path))).hex(),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def pins() -> dict[str, dict[str, str]]:
    return json.loads(GOLDEN.read_text("utf-8"))


def test_the_fingerprint_function_gives_the_known_value():
    # The schema "int" is the one whose fingerprint every implementation of Avro has in its tests.
    assert crc_64_avro('"int"').hex() == "8f5c393f1ad57572"


@pytest.mark.parametrize("schema", published_schemas(), ids=lambda schema: f"{schema.type.value}.v{schema.version}")
def test_the_library_and_the_specification_give_one_fingerprint(schema: PublishedSchema):
    assert schema.fingerprint == crc_64_avro(canonical(schema.json))
    assert schema.prefix == b"\xc3\x01" + schema.fingerprint


def test_every_published_schema_is_pinned_and_every_pinned_schema_is_published():
    assert set(pins()) == {path.name for path in FILES}


@each_file
def test_a_published_schema_never_changes(path: Path):
    assert pin_of(path) == pins()[path.name], "publish another version instead of changing this one"


def write_missing_pins() -> None:
    known = pins() if GOLDEN.exists() else {}
    for path in FILES:
        known.setdefault(path.name, pin_of(path))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n", "utf-8")


if __name__ == "__main__" and "--write" in sys.argv:
    write_missing_pins()
