"""Header rules of admission in their order, genesis, leases, and what stops a reader."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest

from journal.admission import Admitted, ScopeState, Void, admit, empty_state, evolve, fold, step
from journal.codec import Codec, Key, Keyring, published_schemas
from journal.errors import Code, IntegrityError, JournalError, ResourceLimitError, UnknownEventError
from journal.events import NO_LEASE, NO_PARENT, Event, EventType, Readable, Undecodable
from journal.identities import Incarnation, LeaseId, Scope
from journal.records import (
    AppliedRecord,
    LeaseAcquiredRecord,
    LeaseReleasedRecord,
    MigrationLease,
    Record,
    ScopeCreatedRecord,
)
from journal.vocabulary import GroupEventKind
from tests.factories import SCOPE, Writer, altered, group_record, lease_of, long_log, manifest_of, plan_record

KEY: Final = Key(bytes(range(32)))
OTHER_SCOPE: Final = Scope("another")
BEGIN: Final = GroupEventKind.BEFORE_COMMIT


def keyed_writer() -> tuple[Writer, MigrationLease]:
    """An authenticated scope, its lease at fence 5."""
    writer = Writer(codec=Codec(keyring=Keyring(KEY)), authenticated=True)
    return writer, writer.acquire(fence=5)


# --- the order of the header rules --------------------------------------------------------------------------------------


class Draft(NamedTuple):
    """One event before it is encoded; rules are broken by changing it."""

    record: Record
    scope: str
    incarnation: bytes
    lease_id: bytes
    parent: bytes
    fence: int
    genuine: bool = True
    magic: bytes = b"\xc3\x01"


def send(writer: Writer, draft: Draft) -> Readable:
    data = writer.codec.write(
        draft.record,
        scope=draft.scope,
        incarnation=draft.incarnation,
        lease_id=draft.lease_id,
        parent=draft.parent,
        fence=draft.fence,
        recorded_at=0,
    )
    data = draft.magic + data[2:]
    return writer.codec.read(50, data, KEY.mac(data) if draft.genuine else None)


def draft_of(writer: Writer, lease: MigrationLease, record: Record) -> Draft:
    return Draft(record, SCOPE, writer.incarnation, lease.lease_id, writer.state.head, lease.fence)


BREAK_HEADER: Final[list[tuple[Code, dict[str, Any]]]] = [
    (Code.UNDECODABLE, {"magic": b"\xc3\x00"}),
    (Code.FOREIGN_SCOPE, {"scope": OTHER_SCOPE, "incarnation": bytes(16)}),
    (Code.FORGED, {"genuine": False}),
    (Code.STALE_PARENT, {"parent": bytes(32)}),
]
ACQUISITION: Final = [*BREAK_HEADER, (Code.FENCE_NOT_MONOTONIC, {"fence": 5}), (Code.INVALID_HOLDER, {"record": "?"})]
ORDINARY: Final = [
    *BREAK_HEADER,
    (Code.STALE_FENCE, {"fence": 4, "lease_id": bytes(16)}),
    (Code.NO_OPEN_PLAN, {"record": "group event"}),
]


def broken_from(
    first: int, rules: list[tuple[Code, dict[str, Any]]], draft: Draft, records: dict[str, Record]
) -> Draft:
    """The draft with rule `first` and every rule behind it broken."""
    for _, change in rules[first:]:
        named = {"record": records[change["record"]]} if "record" in change else change
        draft = draft._replace(**named)
    return draft


@pytest.mark.parametrize("first", range(len(ACQUISITION)), ids=[code.value for code, _ in ACQUISITION])
def test_a_lease_acquisition_is_void_by_the_first_rule_that_it_breaks(first: int):
    writer, _ = keyed_writer()
    good = LeaseAcquiredRecord.new(lease_of().holder, 1)
    draft = draft_of(writer, lease_of("next", 6), good)
    assert admit(writer.state, send(writer, draft)) == Admitted(None)
    broken = broken_from(first, ACQUISITION, draft, {"?": altered(good, holder="?")})
    assert admit(writer.state, send(writer, broken)) == Void(ACQUISITION[first][0])


@pytest.mark.parametrize("first", range(len(ORDINARY)), ids=[code.value for code, _ in ORDINARY])
def test_any_other_event_is_void_by_the_first_rule_that_it_breaks(first: int):
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, plan_record(lease, [manifest_of(1)]))
    assert admit(writer.state, send(writer, draft)) == Admitted(1)
    broken = broken_from(first, ORDINARY, draft, {"group event": group_record(lease, manifest_of(1), BEGIN)})
    assert admit(writer.state, send(writer, broken)) == Void(ORDINARY[first][0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scope": OTHER_SCOPE}, Code.FOREIGN_SCOPE),
        ({"scope": "no scope's name!"}, Code.FOREIGN_SCOPE),
        ({"scope": ""}, Code.FOREIGN_SCOPE),
        ({"incarnation": Incarnation(b"\xff" * 16)}, Code.FOREIGN_SCOPE),
        ({"parent": NO_PARENT}, Code.STALE_PARENT),
        ({"parent": b"\xff" * 32}, Code.STALE_PARENT),
        ({"fence": 4}, Code.STALE_FENCE),
        ({"fence": 6}, Code.STALE_FENCE),
        ({"fence": 0}, Code.STALE_FENCE),
        ({"fence": -5}, Code.STALE_FENCE),
        ({"lease_id": LeaseId(b"\xff" * 16)}, Code.STALE_FENCE),
        ({"lease_id": NO_LEASE}, Code.STALE_FENCE),
    ],
)
def test_each_header_value_is_checked_by_itself(change: dict[str, Any], reason: Code):
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, plan_record(lease, [manifest_of(1)]))._replace(**change)
    assert admit(writer.state, send(writer, draft)) == Void(reason)


@pytest.mark.parametrize("fence", [-1, 0, 1, 4, 5])
def test_a_lease_whose_fence_is_not_greater_than_every_admitted_one_is_void(fence: int):
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, LeaseAcquiredRecord.new(lease.holder, 1))._replace(fence=fence, lease_id=b"n" * 16)
    assert admit(writer.state, send(writer, draft)) == Void(Code.FENCE_NOT_MONOTONIC)


@pytest.mark.parametrize("fence", [6, 7, 2**32, 2**63 - 1])
def test_fences_may_jump(fence: int):
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, LeaseAcquiredRecord.new(lease.holder, 1))._replace(fence=fence, lease_id=b"n" * 16)
    assert admit(writer.state, send(writer, draft)) == Admitted(None)


def test_bytes_without_a_header_are_void():
    writer, _ = keyed_writer()
    assert admit(writer.state, Undecodable(9, b"junk")) == Void(Code.UNDECODABLE)


def test_admit_only_looks():
    writer = long_log(60)
    for event in writer.read():
        before = writer.state.canonical()
        admit(writer.state, event)
        assert writer.state.canonical() == before


def test_step_is_admit_and_then_evolve():
    left, right = empty_state(SCOPE), empty_state(SCOPE)
    for event in long_log(60).read():
        verdict = step(left, event)
        assert admit(right, event) == verdict
        assert isinstance(verdict, Admitted)
        assert isinstance(event, Event)
        evolve(right, event, verdict)
        right.position = event.position
        assert left.canonical() == right.canonical()


# --- racing writers -----------------------------------------------------------------------------------------------------


def test_of_two_events_on_one_head_the_first_in_the_log_counts():
    writer = Writer()
    lease = writer.acquire()
    manifests = [manifest_of(1), manifest_of(1, app="other")]
    left, right = (
        writer.encode(plan_record(lease, [manifest]), lease_id=lease.lease_id, fence=lease.fence)
        for manifest in manifests
    )
    for first, second in ((left, right), (right, left)):
        state = writer.state.copy()
        assert step(state, writer.codec.read(2, first)) == Admitted(1)
        assert step(state, writer.codec.read(3, second)) == Void(Code.STALE_PARENT)


def test_another_copy_of_an_event_is_void():
    writer = Writer()
    lease = writer.acquire()
    assert writer.write(plan_record(lease, [manifest_of(1)]), lease) == Admitted(1)
    for data in list(writer.data):
        assert writer.append(data) in (Void(Code.STALE_PARENT), Void(Code.FOREIGN_SCOPE))
    assert writer.state.sequence == 1


def test_an_older_holder_does_not_count_on_the_newest_head_either():
    writer = Writer()
    old = writer.acquire("old")
    writer.acquire("new")
    assert writer.write(plan_record(old, [manifest_of(1)]), old) == Void(Code.STALE_FENCE)


def test_void_events_move_the_position_and_the_count_and_nothing_else():
    writer = Writer()
    lease = writer.acquire()
    before = writer.state.copy()
    writer.append(b"junk")
    writer.write(group_record(lease, manifest_of(1), BEGIN), lease)
    assert (writer.state.position, writer.state.voids) == (3, 2)
    before.position, before.voids = 3, 2
    assert writer.state.canonical() == before.canonical()


# --- genesis ------------------------------------------------------------------------------------------------------------


def genesis(codec: Codec | None = None, record: ScopeCreatedRecord | None = None, **changes: Any) -> Readable:
    header: dict[str, Any] = {
        "scope": SCOPE,
        "incarnation": bytes(range(16)),
        "lease_id": NO_LEASE,
        "parent": NO_PARENT,
        "fence": 0,
        "recorded_at": 0,
    }
    codec = codec or Codec()
    data = codec.write(record or ScopeCreatedRecord.new(authenticated=False), **header | changes)
    return codec.read(0, data, codec.authenticate(data))


def test_a_scope_begins_with_its_genesis():
    state = empty_state(SCOPE)
    event = genesis()
    assert step(state, event) == Admitted(None)
    assert isinstance(event, Event)
    assert (state.incarnation, state.head, state.sequence, state.fence) == (bytes(range(16)), event.hash, 0, 0)
    assert (state.admitted, state.position, state.authenticated) == (1, 0, False)


@pytest.mark.parametrize(
    "changes",
    [{"scope": OTHER_SCOPE}, {"lease_id": b"l" * 16}, {"parent": b"p" * 32}, {"fence": 1}, {"fence": -1}],
    ids=str,
)
def test_a_genesis_of_another_scope_or_with_a_lease_is_void(changes: dict[str, Any]):
    assert step(empty_state(SCOPE), genesis(**changes)) == Void(Code.FOREIGN_SCOPE)


def test_a_genesis_behind_anything_else_is_void():
    state = empty_state(SCOPE)
    assert step(state, Codec().read(0, b"junk")) == Void(Code.UNDECODABLE)
    assert step(state, genesis()) == Void(Code.FOREIGN_SCOPE)
    assert state.incarnation is None


def test_no_event_counts_before_a_genesis():
    writer = Writer()
    writer.acquire()
    state = fold(empty_state(SCOPE), writer.read()[1:])
    assert (state.admitted, state.voids) == (0, 1)


def test_a_second_genesis_is_void():
    writer = Writer()
    record = ScopeCreatedRecord.new(authenticated=False)
    assert writer.append(writer.data[0]) == Void(Code.STALE_PARENT)
    other = writer.encode(record, lease_id=NO_LEASE, fence=0, parent=NO_PARENT, incarnation=bytes(16))
    assert writer.append(other) == Void(Code.FOREIGN_SCOPE)
    on_head = writer.encode(record, lease_id=NO_LEASE, fence=0)
    assert writer.append(on_head) == Void(Code.STALE_FENCE)
    lease = writer.acquire()
    assert writer.write(record, lease) == Void(Code.FOREIGN_SCOPE)


def test_a_genesis_of_a_later_format_stops_reading():
    record = altered(ScopeCreatedRecord.new(authenticated=False), format_version=2)
    state = empty_state(SCOPE)
    before = state.canonical()
    with pytest.raises(UnknownEventError) as caught:
        step(state, genesis(record=record))
    assert caught.value.code is Code.FORMAT_TOO_NEW
    assert state.canonical() == before


def test_an_unknown_event_at_the_first_position_stops_reading():
    with pytest.raises(UnknownEventError):
        step(empty_state(SCOPE), unknown(genesis()))


# --- what stops a reader ------------------------------------------------------------------------------------------------


def unknown(event: Readable) -> Readable:
    """The event with a schema that nobody has published."""
    data = event.data[:2] + b"\xee" * 8 + event.data[10:]
    return (
        Codec(keyring=Keyring(KEY)).read(event.position, data, KEY.mac(data))
        if _keyed(event)
        else Codec().read(0, data)
    )


def _keyed(event: Readable) -> bool:
    return isinstance(event, Event) and event.authentic is not None


def damaged(event: Readable) -> Readable:
    """The event with one byte too many."""
    data = event.data + b"\0"
    return Codec(keyring=Keyring(KEY)).read(event.position, data, KEY.mac(data))


STOPS: Final = [(unknown, UnknownEventError, Code.UNKNOWN_EVENT), (damaged, IntegrityError, Code.UNDECODABLE_BODY)]
HEADER_RULES: Final = ORDINARY[1:5]  # those that bytes with a readable header can break, but for their own


@pytest.mark.parametrize(("change", "error", "code"), STOPS, ids=["unknown type", "damaged body"])
def test_an_event_that_cannot_be_understood_stops_reading_when_its_header_is_admissible(
    change: Any, error: type[JournalError], code: Code
):
    writer, lease = keyed_writer()
    event = send(writer, draft_of(writer, lease, plan_record(lease, [manifest_of(1)])))
    before = writer.state.canonical()
    for _ in range(2):
        with pytest.raises(error) as caught:
            step(writer.state, change(event))
        assert caught.value.code is code
        assert caught.value.details["position"] == 50
        assert writer.state.canonical() == before


@pytest.mark.parametrize("change", [unknown, damaged])
@pytest.mark.parametrize(("reason", "header"), HEADER_RULES, ids=[code.value for code, _ in HEADER_RULES])
def test_an_event_that_cannot_be_understood_is_void_when_its_header_is_not_admissible(
    change: Any, reason: Code, header: dict[str, Any]
):
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, plan_record(lease, [manifest_of(1)]))._replace(**header)
    event = send(writer, draft)
    changed = change(event)
    if not draft.genuine:
        changed = writer.codec.read(50, changed.data, None)
    assert step(writer.state, changed) == Void(reason)


def test_an_acquisition_with_a_damaged_body_is_void_under_an_old_fence_and_stops_under_a_new_one():
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, LeaseAcquiredRecord.new(lease.holder, 1))
    assert step(writer.state, damaged(send(writer, draft))) == Void(Code.FENCE_NOT_MONOTONIC)
    with pytest.raises(IntegrityError):
        step(writer.state, damaged(send(writer, draft._replace(fence=6))))


@pytest.mark.parametrize("fence", [4, 5])
def test_an_event_of_unknown_type_under_another_lease_and_no_greater_fence_is_void(fence: int):
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, LeaseAcquiredRecord.new(lease.holder, 1))._replace(fence=fence, lease_id=b"n" * 16)
    assert step(writer.state, unknown(send(writer, draft))) == Void(Code.STALE_FENCE)


def test_an_event_of_unknown_type_under_a_greater_fence_may_be_a_newer_lease_and_stops_reading():
    writer, lease = keyed_writer()
    draft = draft_of(writer, lease, LeaseAcquiredRecord.new(lease.holder, 1))._replace(fence=6, lease_id=b"n" * 16)
    with pytest.raises(UnknownEventError):
        step(writer.state, unknown(send(writer, draft)))


def test_an_event_over_the_limit_stops_reading_when_its_header_is_admissible():
    writer = Writer()
    lease = writer.acquire()
    data = writer.encode(plan_record(lease, [manifest_of(1)]), lease_id=lease.lease_id, fence=lease.fence)
    late = writer.encode(plan_record(lease, [manifest_of(1)]), lease_id=lease.lease_id, fence=0)
    narrow = Codec(max_event_bytes=len(data) - 1)
    assert step(writer.state, narrow.read(2, late)) == Void(Code.STALE_FENCE)
    with pytest.raises(ResourceLimitError) as caught:
        step(writer.state, narrow.read(3, data))
    assert caught.value.code is Code.EVENT_TOO_LARGE
    assert caught.value.details["position"] == 3


def test_a_fold_that_stops_keeps_what_came_before():
    writer = Writer()
    lease = writer.acquire()
    good = writer.state.canonical()
    data = writer.encode(plan_record(lease, [manifest_of(1)]), lease_id=lease.lease_id, fence=lease.fence)
    state = empty_state(SCOPE)
    with pytest.raises(IntegrityError):
        fold(state, [*writer.read(), writer.codec.read(2, data + b"\0"), writer.codec.read(3, data)])
    assert state.canonical() == good


# --- leases -------------------------------------------------------------------------------------------------------------


def test_an_acquisition_begins_a_lease():
    writer = Writer()
    lease = writer.acquire("owner", 3)
    found = writer.state.lease
    assert found is not None
    assert (found.holder, found.fence, found.lease_id, found.ttl_micros) == ("owner", 3, lease.lease_id, 30_000_000)
    assert (writer.state.fence, writer.state.lease_id, writer.state.sequence) == (3, lease.lease_id, 0)


@pytest.mark.parametrize("holder", ["", "two words", "ümlaut", "h" * 129, "a/b", "line\n"])
def test_an_acquisition_by_no_holder_is_void(holder: str):
    writer = Writer()
    record = altered(LeaseAcquiredRecord.new(lease_of().holder, 1), holder=holder)
    assert writer.write(record, lease_of("x", 1)) == Void(Code.INVALID_HOLDER)
    assert writer.state.fence == 0


def test_an_acquisition_with_the_lease_id_of_genesis_is_void():
    record = LeaseAcquiredRecord.new(lease_of().holder, 1)
    assert Writer().write(record, lease_id=NO_LEASE, fence=1) == Void(Code.INVALID_HOLDER)


def test_nothing_is_admitted_before_the_first_lease():
    lease = lease_of(fence=1)
    assert Writer().write(plan_record(lease, [manifest_of(1)]), lease) == Void(Code.STALE_FENCE)
    assert Writer().write(plan_record(lease, [manifest_of(1)]), lease_id=NO_LEASE, fence=0) == Void(Code.STALE_FENCE)


def test_a_release_ends_the_lease_and_keeps_the_fence():
    writer = Writer()
    lease = writer.acquire(fence=3)
    assert writer.release(lease) == Admitted(None)
    assert (writer.state.lease, writer.state.lease_id, writer.state.fence) == (None, None, 3)
    assert writer.release(lease) == Void(Code.STALE_FENCE)
    assert writer.write(plan_record(lease, [manifest_of(1)]), lease) == Void(Code.STALE_FENCE)
    again = LeaseAcquiredRecord.new(lease.holder, 1)
    assert writer.write(again, lease) == Void(Code.FENCE_NOT_MONOTONIC)
    assert writer.acquire().fence == 4


def test_a_release_that_names_another_holder_is_void():
    writer = Writer()
    lease = writer.acquire("owner")
    assert writer.write(LeaseReleasedRecord.new(lease_of("other").holder), lease) == Void(Code.INVALID_HOLDER)
    assert writer.state.lease is not None


def test_a_release_with_an_older_fence_frees_nothing():
    writer = Writer()
    old, new = writer.acquire("old"), writer.acquire("new")
    assert writer.release(old) == Void(Code.STALE_FENCE)
    assert writer.state.lease is not None
    assert writer.state.lease.holder == new.holder


def test_a_successor_needs_no_release():
    writer = Writer()
    writer.acquire("old")
    new = writer.acquire("new")
    assert writer.write(plan_record(new, [manifest_of(1)]), new) == Admitted(1)


def test_two_leases_with_one_fence_never_both_count():
    writer = Writer()
    lease = writer.acquire("left", 3)
    twin = lease_of("right", 3, lease_id=LeaseId(b"t" * 16))
    assert writer.write(LeaseAcquiredRecord.new(twin.holder, 1), twin) == Void(Code.FENCE_NOT_MONOTONIC)
    assert writer.write(plan_record(twin, [manifest_of(1)]), twin) == Void(Code.STALE_FENCE)
    assert writer.write(plan_record(lease, [manifest_of(1)]), lease) == Admitted(1)


# --- sequences ----------------------------------------------------------------------------------------------------------


def test_sequences_are_dense_from_one_and_lease_events_take_none():
    writer = Writer()
    lease = writer.acquire()
    manifest = manifest_of(1)
    verdicts = [
        writer.write(plan_record(lease, [manifest]), lease),
        writer.append(b"junk"),
        writer.write(group_record(lease, manifest, BEGIN), lease),
        writer.write(group_record(lease, manifest, BEGIN), lease),
    ]
    lease = writer.acquire()
    verdicts.append(writer.write(group_record(lease, manifest, BEGIN), lease))
    verdicts.append(writer.write(AppliedRecord.from_verified_manifest(lease, manifest), lease))
    assert verdicts == [
        Admitted(1),
        Void(Code.UNDECODABLE),
        Admitted(2),
        Void(Code.INVALID_EVENT_TRANSITION),
        Admitted(3),
        Admitted(4),
    ]


def test_every_event_type_is_published():
    assert {schema.type for schema in published_schemas()} == set(EventType)


def test_the_state_of_a_scope_that_was_not_read_is_empty():
    assert empty_state(SCOPE) == ScopeState(str(SCOPE))
