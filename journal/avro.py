"""Avro as this journal uses it: the published schemas, and a compiler from a schema to Python functions.

Each published schema is compiled, once, to a straight-line decoder and encoder of its body. fastavro gives the schemas'
fingerprints and is the second opinion: the tests hold the compiled functions to it byte for byte, in both directions,
and `journal verify` asks it again for every event. Only `codec` uses this module.

A decoder accepts exactly one event: trailing bytes, an enum index or union branch that does not exist, a number of more
than 64 bits, or an array longer than its bytes are errors (ValueError, IndexError, struct.error), never guesses.

A later version of a schema adds fields with defaults to the body itself; the records nested in it never change.
"""

from __future__ import annotations

import io
import json
import linecache
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from journal.events import Decode, EventType, read_long
from journal.vocabulary import Direction, GroupEventKind, UnitKind

MAGIC: Final = b"\xc3\x01"
Encode: TypeAlias = Callable[[Any], bytes]

# The enums of the schemas, by their Avro names.
ENUMS: Final[Mapping[str, type[Enum]]] = {
    "GroupEventKind": GroupEventKind,
    "Direction": Direction,
    "UnitKind": UnitKind,
}

# Where a field is not an attribute of the same name: "record.field" -> attribute path.
_PATHS: Final[Mapping[str, str]] = {
    f"BackfillCompletion.{name}": f"counts.{name}" for name in ("matched", "changed", "skipped", "transaction_groups")
}

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


def body_fields(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [field for field in schema["fields"] if field["name"] != "header"]


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


# --- the compiler -----------------------------------------------------------------------------------------------------


def compile_decoder(writer: PublishedSchema, reader: PublishedSchema) -> Decode:
    """Generate `decode(data, at)` for bodies that `writer` wrote, giving the fields of `reader`."""
    generator = _Generator(writer.json)
    variables = generator.read_fields(body_fields(writer.json))
    named = named_types(reader.json)
    results = []
    for field in body_fields(reader.json):
        name = field["name"]
        results.append(variables[name] if name in variables else generator.constant(_default(field, named)))
    generator.emit("if at != size: raise ValueError('bytes behind the event or missing from it')")
    generator.emit(f"return ({''.join(f'{result}, ' for result in results)})")
    return generator.function(f"{writer.type.value}.v{writer.version}")


def _default(field: dict[str, Any], named: Mapping[str, dict[str, Any]]) -> Any:
    """The default of a field that came later, in the form that a decoder gives."""
    type_ = field["type"]
    match named.get(type_, type_) if isinstance(type_, str) else type_:
        case {"type": "enum", "name": name}:
            return ENUMS[name][field["default"]]
        case {"type": "fixed"}:
            return field["default"].encode("latin-1")  # Avro writes the bytes of a default as code points
        case {"type": "array"}:
            return tuple(field["default"])
        case _:
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
        self.emit(f"if not 0 <= {length} <= size - at: raise ValueError('a string longer than its bytes')")
        value = self.variable()
        self.emit(f"{value} = data[at:at + {length}].decode(); at += {length}")
        return value

    def _boolean(self, _: Any) -> str:
        value = self.variable()
        self.emit(f"{value} = (False, True)[data[at]]; at += 1")
        return value

    def _enum(self, type_: dict[str, Any]) -> str:
        members = [ENUMS[type_["name"]].__members__.get(symbol) for symbol in type_["symbols"]]
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


# --- encoding ---------------------------------------------------------------------------------------------------------


_ONE_BYTE: Final = tuple(bytes((word,)) for word in range(0x80))


def write_long(value: int) -> bytes:
    """Encode one Avro long. Raises ValueError past 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise ValueError("a number of more than 64 bits")
    word = (value << 1) ^ (value >> 63)
    if word < 0x80:
        return _ONE_BYTE[word]
    if 2**49 <= word < 2**56:  # what an instant takes, so every event has one
        # Eight groups of seven bits are spread to eight bytes in three steps: two lanes of 28 bits, four of 14, eight of 7.
        word = (word & 0xFFF_FFFF) | (word & 0xFF_FFFF_F000_0000) << 4
        word = (word & 0x3FFF_0000_3FFF) | (word & 0xFFF_C000_0FFF_C000) << 2
        word = (word & 0x7F_007F_007F_007F) | (word & 0x3F80_3F80_3F80_3F80) << 1
        return (word | 0x80_8080_8080_8080).to_bytes(8, "little")
    parts = bytearray()
    while word > 0x7F:
        parts.append(word & 0x7F | 0x80)
        word >>= 7
    parts.append(word)
    return bytes(parts)


def write_string(text: str) -> bytes:
    data = text.encode()
    return write_long(len(data)) + data


def _write_fixed(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise ValueError(f"{size} bytes wanted, {len(value)} given")
    return value


class _Encoder:
    """Writes the source of one encoder: an expression a field, joined."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._named = named_types(schema)
        self.globals: dict[str, Any] = {
            "long": write_long,
            "string": write_string,
            "fixed": _write_fixed,
            "small": tuple(write_long(value) for value in range(64)),
        }

    def write(self, type_: Any, value: str) -> str:
        """The expression that encodes `value`, itself an expression, as `type_`."""
        if isinstance(type_, str) and type_ in self._named:
            return self.write(self._named[type_], value)
        if isinstance(type_, list):
            return f"(b'\\0' if {value} is None else b'\\2' + {self.write(type_[1], value)})"
        schema: dict[str, Any] = type_ if isinstance(type_, dict) else {"type": type_}
        match schema["type"]:
            case "fixed":
                return f"fixed({value}, {schema['size']})"
            case "long":
                return f"(small[{value}] if 0 <= {value} < 64 else long({value}))"
            case "boolean":
                return f"(b'\\1' if {value} else b'\\0')"
            case "string":
                return f"string(str({value}))"
            case "enum":
                return f"{self._symbols(schema)}[{value}]"
            case "array":
                items = f"[{self.write(schema['items'], 'item')} for item in {value}]"
                return f"(long(len({value})) + b''.join({items}) + b'\\0' if {value} else b'\\0')"
            case "record":
                return " + ".join(self.write(*field) for field in self._nested(schema, value))
            case other:
                raise ValueError(f"no encoder for {other}")

    @staticmethod
    def _nested(type_: dict[str, Any], value: str) -> list[tuple[Any, str]]:
        names = [(field["type"], field["name"]) for field in type_["fields"]]
        return [(inner, f"{value}.{_PATHS.get(type_['name'] + '.' + name, name)}") for inner, name in names]

    def _symbols(self, type_: dict[str, Any]) -> str:
        members = ENUMS[type_["name"]].__members__
        table = {members[name]: write_long(i) for i, name in enumerate(type_["symbols"]) if name in members}
        self.globals[f"symbols_{type_['name']}"] = table
        return f"symbols_{type_['name']}"


def compile_encoder(schema: PublishedSchema) -> Encode:
    """Generate `encode(record)`: the body of a record, as fastavro would write it."""
    encoder = _Encoder(schema.json)
    parts = [encoder.write(field["type"], f"r.{field['name']}") for field in body_fields(schema.json)]
    source = f"def encode(r):\n    return b''.join(({', '.join(parts)},))\n"
    return cast(
        "Encode", _define("encode", source, encoder.globals, f"<encoder of {schema.type.value}.v{schema.version}>")
    )
