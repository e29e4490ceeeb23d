"""The small types: every limit from both sides, every code, and hashes that cannot be confused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import example, given, strategies as st

from journal.errors import Code, InvalidContractError, JournalError, ResourceLimitError
from journal.identities import (
    MAX_COMPONENT_BYTES,
    MAX_FENCE,
    MAX_HOLDER_BYTES,
    MAX_POSITION_U32,
    Digest,
    EventId,
    Fence,
    Fingerprint,
    HolderId,
    Incarnation,
    LeaseId,
    MigrationId,
    Position,
    Scope,
    Sequence,
    digest,
    fingerprint,
    is_holder,
    is_migration_id,
    u32,
)

LOWER = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
LABEL = LOWER + LOWER.upper() + DIGITS + "._-"
EVERY_BYTE = [chr(code) for code in range(256)]


def refusal(call: Callable[..., Any], *arguments: Any) -> JournalError:
    """The error that `call` raises."""
    with pytest.raises(JournalError) as caught:
        call(*arguments)
    return caught.value


# --- scopes and holders -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a", "Z", "0", "orders", "Orders.eu-1_b", "9.-_", "a" * 128])
def test_a_scope_is_1_to_128_of_its_alphabet(text):
    assert Scope(text) == text
    assert isinstance(Scope(text), Scope)


@pytest.mark.parametrize(
    "text", ["", "a" * 129, ".a", "_a", "-a", "a b", "a/b", "a\n", "\na", "a\x00", "ä", "aé", "a\u0660", "\uff41"]
)
def test_any_other_scope_is_refused(text):
    error = refusal(Scope, text)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_SCOPE)


def test_a_scope_admits_exactly_the_characters_of_its_alphabet():
    assert [char for char in EVERY_BYTE if accepts(Scope, "a" + char)] == sorted(LABEL)
    assert [char for char in EVERY_BYTE if accepts(Scope, char)] == sorted(set(LABEL) - set("._-"))


def accepts(call: Callable[[str], Any], text: str) -> bool:
    try:
        call(text)
    except JournalError:
        return False
    return True


@pytest.mark.parametrize("text", ["o", ".", "-", "_", "0", "ci.job-17_a", "h" * MAX_HOLDER_BYTES])
def test_a_holder_is_1_to_128_of_its_alphabet(text):
    assert HolderId(text) == text
    assert is_holder(text)


@pytest.mark.parametrize("text", ["", "h" * (MAX_HOLDER_BYTES + 1), "a b", "a/b", "a@b", "a:1", "a\n", "ü", "\u0661"])
def test_any_other_holder_is_refused(text):
    error = refusal(HolderId, text)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_HOLDER)
    assert not is_holder(text)


def test_a_holder_admits_exactly_the_characters_of_its_alphabet():
    assert [char for char in EVERY_BYTE if accepts(HolderId, char)] == sorted(LABEL)


@given(st.text(max_size=140))
def test_asking_whether_a_text_is_a_holder_agrees_with_building_one(text):
    assert is_holder(text) == accepts(HolderId, text)


def test_a_refusal_quotes_a_long_text_shortened():
    assert len(str(refusal(Scope, "!" * 1_000_000))) < 500
    assert len(str(refusal(HolderId, "!" * 1_000_000))) < 500
    assert len(str(refusal(MigrationId, "!" * 1_000_000, "a"))) < 700
    assert len(str(refusal(Digest.parse, "!" * 1_000_000))) < 500


# --- fences, sequences, positions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 2, 2**31, 2**32, MAX_FENCE])
def test_a_fence_is_1_to_2_to_the_63_less_1(value):
    assert Fence(value) == value
    assert MAX_FENCE == 2**63 - 1


@pytest.mark.parametrize("value", [0, -1, -(2**63), -(2**70)])
def test_a_fence_below_1_is_refused(value):
    error = refusal(Fence, value)
    assert (type(error), error.code) == (InvalidContractError, Code.ZERO_FENCE)


@pytest.mark.parametrize("value", [MAX_FENCE + 1, 2**64])
def test_a_fence_past_its_range_is_refused(value):
    error = refusal(Fence, value)
    assert (type(error), error.code) == (ResourceLimitError, Code.FENCE_EXHAUSTED)


def test_the_successor_of_a_fence_is_the_next_greater_one():
    assert Fence(1).successor() == Fence(2)
    assert isinstance(Fence(1).successor(), Fence)
    assert Fence(MAX_FENCE - 1).successor() == MAX_FENCE


def test_the_last_fence_has_no_successor_and_does_not_wrap():
    error = refusal(Fence(MAX_FENCE).successor)
    assert (type(error), error.code) == (ResourceLimitError, Code.FENCE_EXHAUSTED)


def test_fences_are_ordered_as_numbers():
    assert sorted([Fence(10), Fence(9), Fence(100)]) == [9, 10, 100]


@pytest.mark.parametrize("value", [1, MAX_FENCE])
def test_a_sequence_is_1_to_2_to_the_63_less_1(value):
    assert Sequence(value) == value


@pytest.mark.parametrize("value", [0, -1])
def test_a_sequence_below_1_is_refused(value):
    error = refusal(Sequence, value)
    assert (type(error), error.code) == (InvalidContractError, Code.ZERO_SEQUENCE)


def test_a_sequence_past_its_range_is_refused():
    error = refusal(Sequence, MAX_FENCE + 1)
    assert (type(error), error.code) == (ResourceLimitError, Code.SEQUENCE_EXHAUSTED)


@pytest.mark.parametrize("value", [0, 1, MAX_POSITION_U32])
def test_a_step_position_is_0_to_2_to_the_32_less_1(value):
    assert u32(value) == value
    assert MAX_POSITION_U32 == 2**32 - 1


@pytest.mark.parametrize("value", [-1, MAX_POSITION_U32 + 1, 2**64])
def test_a_step_position_outside_its_range_is_refused(value):
    error = refusal(u32, value)
    assert (type(error), error.code) == (ResourceLimitError, Code.POSITION_LIMIT)


def test_log_positions_are_ordered_from_0():
    assert sorted([Position(7), Position(0), Position(10)]) == [0, 7, 10]


# --- migration ids ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "name"),
    [
        ("a", "0"),
        ("a", "a"),
        ("billing", "0001_initial"),
        ("b-2_c", "0-_z"),
        ("a" * MAX_COMPONENT_BYTES, "0" * MAX_COMPONENT_BYTES),
    ],
)
def test_a_migration_id_is_shown_as_app_and_name_and_read_back(app, name):
    id = MigrationId(app, name)
    assert str(id) == f"{app}/{name}"
    assert MigrationId.parse(str(id)) == id
    assert is_migration_id(str(id))


REFUSED_COMPONENTS = ["", "A", "aB", "a b", "a.b", "a\n", "_a", "-a", "ä", "a\u0660", "a" * (MAX_COMPONENT_BYTES + 1)]


@pytest.mark.parametrize("part", [*REFUSED_COMPONENTS, "0", "0a", "a/b"])
def test_any_other_app_label_is_refused(part):
    error = refusal(MigrationId, part, "a")
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_MIGRATION_ID)


@pytest.mark.parametrize("part", [*REFUSED_COMPONENTS, "a/b", "a/"])
def test_any_other_migration_name_is_refused(part):
    error = refusal(MigrationId, "a", part)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_MIGRATION_ID)
    assert not is_migration_id(f"a/{part}")


def test_app_and_name_admit_exactly_the_characters_of_their_alphabets():
    inner = sorted(LOWER + DIGITS + "_-")
    assert [char for char in EVERY_BYTE if is_migration_id(f"{char}/a")] == list(LOWER)
    assert [char for char in EVERY_BYTE if is_migration_id(f"a/{char}")] == sorted(LOWER + DIGITS)
    assert [char for char in EVERY_BYTE if is_migration_id(f"a{char}/a")] == inner
    assert [char for char in EVERY_BYTE if is_migration_id(f"a/a{char}")] == inner


@pytest.mark.parametrize("text", ["", "/", "a", "a/", "/a", "a//b", "a/b/c", " a/b", "a/b ", "a/b\n", "a\\b", "A/b"])
def test_any_other_form_of_a_migration_id_is_refused(text):
    error = refusal(MigrationId.parse, text)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_MIGRATION_ID)
    assert not is_migration_id(text)


@given(st.one_of(st.text(max_size=12), st.text("ab0_-/A", max_size=12)))
def test_asking_whether_a_text_is_a_migration_id_agrees_with_parsing_it(text):
    assert is_migration_id(text) == accepts(MigrationId.parse, text)


def test_migration_ids_are_ordered_by_app_and_then_name_not_by_how_they_are_shown():
    ids = [MigrationId("a-b", "1"), MigrationId("a", "2"), MigrationId("b", "0"), MigrationId("a", "10")]
    assert [str(id) for id in sorted(ids)] == ["a/10", "a/2", "a-b/1", "b/0"]
    assert min(map(str, ids)) == "a-b/1"


def test_migration_ids_with_equal_parts_are_one_key():
    assert {MigrationId("a", "b"): 1}[MigrationId.parse("a/b")] == 1
    assert MigrationId("a", "b") != MigrationId("b", "a")


# --- digests, fingerprints, random ids ----------------------------------------------------------------------------------

WIDTHS = [(Digest, 32), (Fingerprint, 32), (LeaseId, 16), (EventId, 16), (Incarnation, 16)]


@pytest.mark.parametrize(("type_", "width"), WIDTHS)
def test_hex_identities_have_one_width_and_one_spelling(type_, width):
    value = type_(bytes(range(width)))
    assert str(value) == bytes(range(width)).hex()
    assert len(str(value)) == 2 * width
    assert type_.parse(str(value)) == value
    assert isinstance(type_.parse(str(value)), type_)
    assert repr(value) == f"{type_.__name__}({value})"


@pytest.mark.parametrize(("type_", "width"), WIDTHS)
@pytest.mark.parametrize("delta", [-1, 1])
def test_hex_identities_of_another_width_are_refused(type_, width, delta):
    for call, argument in [(type_, bytes(width + delta)), (type_.parse, "00" * (width + delta))]:
        error = refusal(call, argument)
        assert (type(error), error.code) == (InvalidContractError, Code.INVALID_DIGEST)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 63,
        "0" * 65,
        "g" + "0" * 63,
        "0x" + "0" * 62,
        "-" + "0" * 63,
        "\uff10" * 64,
        " " + "0" * 64,
        "0" * 64 + "\n",
        "00 " * 31 + "00",
        "00:" * 31 + "00",
    ],
)
def test_anything_but_64_hex_digits_is_no_digest(text):
    error = refusal(Digest.parse, text)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_DIGEST)


@pytest.mark.parametrize("type_", [LeaseId, EventId, Incarnation])
def test_random_ids_are_drawn_anew_each_time(type_):
    drawn = {type_.random() for _ in range(100)}
    assert len(drawn) == 100
    assert all(isinstance(value, type_) and len(value) == 16 for value in drawn)


FIELDS = st.lists(st.binary(max_size=6), max_size=5)
DOMAIN = "fenced-journal tests"


@given(FIELDS, FIELDS)
@example([], [b""])
@example([b"ab"], [b"a", b"b"])
@example([b"a", b"b"], [b"b", b"a"])
@example([b""], [b"", b""])
@example([b"\x01\0\0\0\0\0\0\0a"], [b"", b"a"])
def test_two_lists_of_fields_have_one_digest_only_when_they_are_equal(left, right):
    assert (digest(DOMAIN, *left) == digest(DOMAIN, *right)) == (left == right)
    assert (fingerprint(DOMAIN, *left) == fingerprint(DOMAIN, *right)) == (left == right)


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=4), st.lists(st.integers(0, 40), max_size=4))
def test_cutting_one_text_in_two_ways_gives_two_digests(data, left, right):
    left_cut, right_cut = cut(data, left), cut(data, right)
    assert (digest(DOMAIN, *left_cut) == digest(DOMAIN, *right_cut)) == (left_cut == right_cut)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(ends)]


@given(FIELDS)
def test_the_same_fields_in_another_domain_have_another_digest(fields):
    assert digest(DOMAIN, *fields) != digest(DOMAIN + " 2", *fields)
    assert digest(DOMAIN, *fields) != digest("", *fields)


def test_a_domain_is_not_a_field():
    assert digest("domain", b"field") != digest("domainfield")
    assert digest("domain", b"field") != blake3(b"domainfield").digest()


@given(FIELDS)
def test_a_digest_is_blake3_in_derive_key_mode_over_length_prefixed_fields(fields):
    framed = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    assert digest(DOMAIN, *fields) == blake3(framed, derive_key_context=DOMAIN).digest()
    assert fingerprint(DOMAIN, *fields) == digest(DOMAIN, *fields)


def test_digests_stay_what_they_were_published_as():
    assert str(digest("golden")) == "9843002b941a5cfe0184bb192935bd5a6a63dfb0900bf32d0ccb01a8fb8f9a32"
    assert str(digest("golden", b"")) == "b3e430446fe3e42801d5e28f0b09a474fc76a813fa8359c3b4952896c5e292dd"
    assert (
        str(fingerprint("golden", b"one", b"two")) == "d086872fa664a922ca26e1e3042e7933e8706cf6f7a3bc0a6ad7a8b4d235ce6f"
    )


def test_digests_and_fingerprints_are_types_of_their_own():
    assert type(digest("golden")) is Digest
    assert type(fingerprint("golden")) is Fingerprint
