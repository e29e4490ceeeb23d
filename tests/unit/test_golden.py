"""Events of every published schema, as bytes that must decode to the same values for ever.

`python -m tests.unit.test_golden --write` adds examples that are missing from the file; what is in it never changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

import pytest

from journal.codec import Codec, published_schemas, read_with_fastavro
from journal.events import NO_LEASE, NO_PARENT, Event, EventType, event_hash
from journal.identities import HolderId, Incarnation, MigrationId, Place, Sequence
from journal.migrations.manifest import verify_rollback
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    JournalEntry,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    LedgerImportedRecord,
    MigrationLease,
    PlanAbandonedRecord,
    Record,
    RecoveryAttestedRecord,
    RolledBackRecord,
    ScopeArrivedRecord,
    ScopeAwaitedRecord,
    ScopeCreatedRecord,
    ScopeMovedRecord,
    ScopeRestoredRecord,
)
from journal.vocabulary import BackfillCounts, GroupEventKind
from tests.factories import (
    EPOCH_MICROS,
    altered,
    backfill_record,
    chain_of,
    group_record,
    lease_of,
    manifest_of,
    plan_record,
    print_of,
    reverse_backfill_record,
    rollback_plan_record,
    step_record,
)

FILE: Final = Path(__file__).parent.parent / "golden" / "events.json"
NEWEST: Final = {schema.type: schema for schema in published_schemas()}
INCARNATION: Final = Incarnation(bytes(range(16)))
BIG: Final = 2**63 - 1


# --- the examples -----------------------------------------------------------------------------------------------------


def examples() -> Iterator[tuple[str, Record, MigrationLease | None]]:
    """Records of every type: each optional field both ways, each enum symbol, empty and long arrays, wide numbers."""
    small, large = lease_of("deploy-7", 1), lease_of("node_1.example-pod", BIG)
    one, two, three = manifest_of(1), *chain_of(3)[1:]
    data = manifest_of(1, backfill=True)
    reverse = verify_rollback(data)
    longest = altered(AppliedRecord.from_verified_manifest(small, one), migration_id=MigrationId("a" * 255, "0" * 255))
    event = group_record(small, one, GroupEventKind.COMMIT_OUTCOME_UNKNOWN)
    plan = plan_record(small, chain_of(3))

    yield "scope_created plain", ScopeCreatedRecord.new(authenticated=False), None
    yield "scope_created authenticated", ScopeCreatedRecord.new(authenticated=True), None
    yield "lease_acquired", LeaseAcquiredRecord.new(small.holder, 30_000_000), small
    yield "lease_acquired at the last fence", LeaseAcquiredRecord.new(large.holder, BIG), large
    yield "lease_acquired by the longest holder", LeaseAcquiredRecord.new(HolderId("h" * 128), 1), small
    yield "lease_released", LeaseReleasedRecord.new(small.holder), small
    yield "lease_released at the last fence", LeaseReleasedRecord.new(large.holder), large
    yield "plan_opened of one", plan_record(small, [one]), small
    yield "plan_opened on a ledger", plan_record(large, [two, three], [chain_of(1)[0]]), large
    yield "plan_opened of seventy", plan_record(small, chain_of(70)), small
    for kind in GroupEventKind:
        yield f"group_event {kind.value}", altered(event, kind=kind), small
    yield "group_event committed with observation", group_record(large, one, GroupEventKind.COMMITTED), large
    yield (
        "group_event at the last positions",
        altered(event, group_ordinal=2**32 - 1, first_step_index=64, schema_delta_step_index=8192, end_step_index=8193),
        small,
    )
    for kind in (GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED, GroupEventKind.DEFINITELY_ABORTED):
        yield f"backfill_event forward {kind.value}", backfill_record(small, data, kind), small
        yield f"backfill_event reverse {kind.value}", reverse_backfill_record(large, data, kind), large
    vast = (2**62, 2**61, 2**61, 2**32 - 1)
    yield "backfill_event vast", backfill_record(small, data, GroupEventKind.COMMITTED, vast), small
    yield (
        "backfill_checkpoint forward",
        BackfillCheckpointRecord.new_apply(small, data, 1, BackfillCounts(5, 3, 2, 1)),
        small,
    )
    yield (
        "backfill_checkpoint reverse",
        BackfillCheckpointRecord.new_rollback(large, reverse, 0, BackfillCounts(*vast)),
        large,
    )
    yield "applied", AppliedRecord.from_verified_manifest(small, one), small
    yield "applied with the longest id", longest, small
    yield "rollback_plan_opened of all", rollback_plan_record(small, [one], [one]), small
    yield "rollback_plan_opened of some", rollback_plan_record(large, chain_of(3)[:0:-1], chain_of(3)), large
    for kind in GroupEventKind:
        step = altered(step_record(small, one, GroupEventKind.BEFORE_COMMIT), kind=kind)
        yield f"rollback_step_event {kind.value}", step, small
    yield "rollback_step_event committed with observation", step_record(large, one, GroupEventKind.COMMITTED), large
    yield "rolled_back", RolledBackRecord.from_verified_rollback(small, verify_rollback(one)), small
    yield "rolled_back at the last fence", RolledBackRecord.from_verified_rollback(large, verify_rollback(two)), large
    for count in (1, 3, 70):
        yield (
            f"ledger_imported of {count}",
            LedgerImportedRecord.from_verified_manifests(
                small, chain_of(count), chain_of(count)[-1].target, operator="Ada Lovelace", reason="adopted, série № 5"
            ),
            small,
        )
    units = [
        event,
        backfill_record(small, data, GroupEventKind.BEFORE_COMMIT),
        step_record(small, one, GroupEventKind.BEFORE_COMMIT),
    ]
    for unit in units:
        for outcome, observed in (
            (GroupEventKind.COMMITTED, print_of("seen")),
            (GroupEventKind.DEFINITELY_ABORTED, None),
        ):
            record = RecoveryAttestedRecord.new(
                small, unit, outcome, observed=observed, operator="Ada", reason="looked at the table: 表"
            )
            yield f"recovery_attested {record.unit.value} {outcome.value}", record, small
    forward = JournalEntry(Sequence(1), plan)
    yield "plan_abandoned forward", PlanAbandonedRecord.new(small, forward, operator="Ada", reason="superseded"), small
    backward = JournalEntry(Sequence(BIG), rollback_plan_record(small, [one], [one]))
    yield "plan_abandoned reverse", PlanAbandonedRecord.new(small, backward, operator="Ada", reason="r" * 4096), small
    here, there = Place(bytes(range(16))), Place(b"\xff" * 16)
    said = {"operator": "Ada Lovelace", "reason": "to the cluster, № 5"}
    yield "scope_awaited", ScopeAwaitedRecord.new(here), None
    yield "scope_awaited at the last place", ScopeAwaitedRecord.new(there), None
    yield "scope_moved", ScopeMovedRecord.new(small, here, destination="kafka, cluster eu-1", **said), small
    yield "scope_moved far", ScopeMovedRecord.new(large, there, destination="ü" * 2048, **said), large
    yield "scope_arrived", ScopeArrivedRecord.new(here), small
    yield "scope_arrived at the last fence", ScopeArrivedRecord.new(there), large
    yield "scope_restored", ScopeRestoredRecord.new(here, **said), small
    yield "scope_restored at the last fence", ScopeRestoredRecord.new(there, **said), large


def header_of(lease: MigrationLease | None, number: int) -> dict[str, Any]:
    return {
        "scope": "journal-test" if number % 2 else "S" + "x" * 127,
        "incarnation": INCARNATION,
        "lease_id": NO_LEASE if lease is None else lease.lease_id,
        "parent": NO_PARENT if lease is None else event_hash(bytes([number])),
        "fence": 0 if lease is None else lease.fence,
        "recorded_at": (EPOCH_MICROS + number, 0, -1, BIG)[number % 4],
        "event_id": number.to_bytes(16, "big"),
    }


def plain(value: Any) -> Any:
    """A value of a decoded body as JSON."""
    match value:
        case bytes():
            return value.hex()
        case Enum():
            return value.name
        case tuple():
            return [plain(item) for item in value]
        case _:
            return value


def described(event: Event) -> dict[str, Any]:
    assert event.type is not None
    names = [field["name"] for field in NEWEST[event.type].json["fields"][1:]]
    return {
        "type": event.type.value,
        "header": {
            "incarnation": event.incarnation.hex(),
            "event_id": event.event_id.hex(),
            "lease_id": event.lease_id.hex(),
            "parent": event.parent.hex(),
            "fence": event.fence,
            "recorded_at": event.recorded_at,
            "scope": event.scope,
        },
        "body": {name: plain(value) for name, value in zip(names, event.body, strict=True)},
        "hash": event.hash.hex(),
    }


def load() -> dict[str, dict[str, Any]]:
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def write_missing_events() -> None:
    known, codec = load(), Codec()
    for number, (name, record, lease) in enumerate(examples()):
        key = f"{name} (v{NEWEST_OF_NAME[type(record).__name__]})"
        if key not in known:
            data = codec.write(record, **header_of(lease, number))
            event = codec.read(0, data)
            assert isinstance(event, Event)
            known[key] = {**described(event), "bytes": data.hex()}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", "utf-8")


NEWEST_OF_NAME: Final = {f"{type_.value}Record": schema.version for type_, schema in NEWEST.items()} | {
    "PlanRecord": NEWEST[EventType.PLAN_OPENED].version,
    "RollbackPlanRecord": NEWEST[EventType.ROLLBACK_PLAN_OPENED].version,
}


# --- the tests --------------------------------------------------------------------------------------------------------

GOLDEN: Final = load()
each_golden = pytest.mark.parametrize("name", GOLDEN)
NEWEST_PREFIXES: Final = {schema.prefix for schema in published_schemas() if schema is NEWEST[schema.type]}
WRITTEN_ANEW: Final = [
    name for name, golden in GOLDEN.items() if bytes.fromhex(golden["bytes"])[:10] in NEWEST_PREFIXES
]


def event_of(name: str) -> Event:
    event = Codec().read(0, bytes.fromhex(GOLDEN[name]["bytes"]))
    assert isinstance(event, Event)
    return event


def test_every_published_schema_has_several_golden_events():
    prefixes = [bytes.fromhex(golden["bytes"])[:10] for golden in GOLDEN.values()]
    for schema in published_schemas():
        assert prefixes.count(schema.prefix) >= 2, schema.type.value


def test_optional_fields_are_golden_both_ways():
    bodies = [golden["body"] for golden in GOLDEN.values()]
    for field in ("observed_target", "observed", "completion"):
        values = [body[field] for body in bodies if field in body]
        assert None in values
        assert any(value is not None for value in values)


@each_golden
def test_a_golden_event_decodes_to_the_same_values_for_ever(name: str):
    expected = {key: value for key, value in GOLDEN[name].items() if key != "bytes"}
    decoded = described(event_of(name))
    # A later schema may have added fields; those that the event was written with keep their values.
    assert decoded["body"] | expected["body"] == decoded["body"]
    assert decoded | {"body": None} == expected | {"body": None}


@each_golden
def test_the_library_reads_a_golden_event_too(name: str):
    values = read_with_fastavro(bytes.fromhex(GOLDEN[name]["bytes"]))
    assert set(values) == {"header", *GOLDEN[name]["body"]}
    assert values["header"]["scope"] == GOLDEN[name]["header"]["scope"]


@pytest.mark.parametrize("name", WRITTEN_ANEW)
def test_a_golden_event_of_the_newest_schema_is_written_to_the_same_bytes(name: str):
    event = event_of(name)
    written = Codec().write(
        event.record,
        scope=event.scope,
        incarnation=event.incarnation,
        lease_id=event.lease_id,
        parent=event.parent,
        fence=event.fence,
        recorded_at=event.recorded_at,
        event_id=event.event_id,
    )
    assert written.hex() == GOLDEN[name]["bytes"]


def test_every_newest_schema_has_a_golden_event_that_is_written_anew():
    types = {GOLDEN[name]["type"] for name in WRITTEN_ANEW}
    assert types == {type_.value for type_ in EventType}


def test_every_example_is_in_the_golden_file():
    named = {name.rpartition(" (v")[0] for name in GOLDEN}
    assert named >= {name for name, _, _ in examples()}


if __name__ == "__main__" and "--write" in sys.argv:
    write_missing_events()
