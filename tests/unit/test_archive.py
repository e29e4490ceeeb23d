"""Archives: everything that a log holds, exactly as it is, and nothing that was altered on the way."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given

from journal.admission import Admitted
from journal.codec import Codec
from journal.errors import Code, ForgedError, IntegrityError, JournalError, UnknownEventError
from journal.identities import Position
from journal.ports import StoredEvent
from journal.records import ScopeMovedRecord
from projections.archive import DIGEST_DOMAIN, Archive, ArchiveWriter, Heading, verdict_word, verify
from tests.factories import SCOPE, Writer, chain_of, plan_record
from tests.stories import plots, tell
from tests.strategies import DETERMINISTIC
from tests.unit.test_authentication import FIRST, SECOND, keyed, written_with
from tests.unit.test_whereabouts import THERE


def archived(writer: Writer) -> bytes:
    """The archive of what a writer wrote."""
    file = io.BytesIO()
    archive = ArchiveWriter(file, Heading.of(writer.state, len(writer.data)))
    events = zip(writer.data, writer.macs, writer.read(), writer.verdicts, strict=True)
    for position, (data, mac, event, verdict) in enumerate(events):
        archive.add(StoredEvent(Position(position), data, mac), verdict_word(event, verdict))
    archive.finish()
    return file.getvalue()


def opened(content: bytes) -> Archive:
    return Archive(io.BytesIO(content), "orders.archive")


def busy() -> Writer:
    """A scope with a plan, a second holder, void events of every sort, and foreign bytes."""
    writer = Writer()
    lease = writer.acquire("ann")
    writer.apply(lease, chain_of(2))
    writer.append(b"rubbish")
    writer.append(writer.data[2])
    writer.acquire("bob")
    writer.write(plan_record(lease, chain_of(3)[2:], chain_of(2)), lease)
    return writer


def moved() -> Writer:
    """The same, moved away."""
    writer = busy()
    lease = writer.acquire("mover")
    writer.write(ScopeMovedRecord.new(lease, THERE, destination="there", operator="Ada", reason="because"), lease)
    return writer


BUSY = archived(busy())


def refused(content: bytes, codec: Codec | None = None) -> JournalError:
    with pytest.raises(JournalError) as caught:
        verify(opened(content), codec or Codec())
    return caught.value


# --- what is in it ----------------------------------------------------------------------------------------------------


@DETERMINISTIC
@given(plots)
def test_an_archive_holds_every_event_as_it_is_and_folds_to_the_state_of_the_log(plot: list[tuple[int, int]]):
    story = tell(plot)
    archive = opened(archived(story))
    assert [event.stored.data for event in archive.events()] == story.data
    assert verify(archive, Codec()).canonical() == story.state.canonical()
    assert archive.heading == Heading.of(story.state, len(story.data))


def test_the_same_log_gives_the_same_archive():
    assert archived(busy()) == BUSY


def test_void_events_are_kept_with_their_reason_and_do_not_count():
    events = list(opened(BUSY).events())
    verdicts = busy().verdicts
    assert [event.counts for event in events] == [isinstance(verdict, Admitted) for verdict in verdicts]
    assert {event.verdict for event in events} == {
        "counts",
        "undecodable",
        "stale_parent",
        "migration_execution_stale_fence",
    }


def test_the_first_line_says_what_the_archive_holds():
    writer = moved()
    heading = json.loads(archived(writer).splitlines()[0])
    assert heading == {
        "format": "fenced-journal archive",
        "version": 1,
        "scope": SCOPE,
        "incarnation": writer.incarnation.hex(),
        "authenticated": False,
        "events": len(writer.data),
        "counting": writer.state.admitted,
        "sequence": writer.state.sequence,
        "head": writer.state.head.hex(),
        "moved_to": str(THERE),
    }


def test_macs_are_kept():
    writer = written_with(FIRST)
    events = opened(archived(writer)).events()
    assert [event.stored.mac for event in events] == writer.macs


def test_an_archive_can_be_read_again():
    archive = opened(BUSY)
    assert list(archive.events()) == list(archive.events())


# --- what was altered -------------------------------------------------------------------------------------------------


def test_an_archive_that_was_cut_off_is_refused_wherever_that_was():
    for length in range(len(BUSY)):
        with pytest.raises(IntegrityError) as caught:
            verify(opened(BUSY[:length]), Codec())
        assert caught.value.code is Code.DAMAGED_ARCHIVE
        assert caught.value.details["line"] == BUSY[:length].count(b"\n") + 1
        assert "orders.archive, line" in caught.value.message


def test_an_archive_with_one_flipped_bit_is_refused_and_names_file_and_line():
    for index in range(0, len(BUSY), 5):
        content = bytearray(BUSY)
        content[index] ^= 1 << index % 8
        error = refused(bytes(content))
        assert error.code in (Code.DAMAGED_ARCHIVE, Code.UNKNOWN_EVENT, Code.FORMAT_TOO_NEW, Code.UNDECODABLE_BODY)
        assert "orders.archive" in error.message


def test_something_behind_the_digest_is_refused():
    assert refused(BUSY + b"\n").code is Code.DAMAGED_ARCHIVE
    assert refused(BUSY + BUSY).details["line"] == len(BUSY.splitlines()) + 1


def resealed(lines: list[bytes]) -> bytes:
    """The lines with the digest that an attacker would put under them."""
    body = b"".join(line + b"\n" for line in lines)
    return (
        body
        + json.dumps({"digest": blake3(body, derive_key_context=DIGEST_DOMAIN).hexdigest()}).replace(" ", "").encode()
        + b"\n"
    )


def test_lines_in_another_order_are_refused_even_with_a_digest_that_fits():
    lines = BUSY.splitlines()[:-1]
    for index in range(1, len(lines) - 1):
        swapped = [*lines[:index], lines[index + 1], lines[index], *lines[index + 2 :]]
        error = refused(resealed(swapped))
        assert error.code is Code.DAMAGED_ARCHIVE
        assert error.details["line"] in (index + 1, index + 2)


@pytest.mark.parametrize("dropped", range(1, 12))
def test_an_archive_that_lacks_an_event_is_refused_even_with_a_digest_that_fits(dropped: int):
    lines = BUSY.splitlines()[:-1]
    assert refused(resealed([*lines[:dropped], *lines[dropped + 1 :]])).code is Code.DAMAGED_ARCHIVE


def changed(content: bytes, line: int, **values: Any) -> bytes:
    lines = content.splitlines()[:-1]
    document = json.loads(lines[line]) | values
    lines[line] = json.dumps(document, separators=(",", ":")).encode()
    return resealed(lines)


@pytest.mark.parametrize(
    "values",
    [
        {"scope": "other"},
        {"scope": "no scope!"},
        {"scope": 7},
        {"incarnation": "00" * 16},
        {"incarnation": "xx"},
        {"authenticated": True},
        {"authenticated": 1},
        {"events": 3},
        {"events": 0},
        {"events": -1},
        {"events": "4"},
        {"events": 1.5},
        {"counting": 5},
        {"sequence": 99},
        {"head": "00" * 32},
        {"moved_to": "00" * 16},
        {"moved_to": ""},
        {"format": "another"},
    ],
)
def test_a_heading_that_the_events_do_not_confirm_is_refused(values: dict[str, Any]):
    assert refused(changed(BUSY, 0, **values)).code is Code.DAMAGED_ARCHIVE


@pytest.mark.parametrize(
    "values",
    [
        {"verdict": "stale_parent"},
        {"verdict": None},
        {"mac": 5},
        {"mac": "xy"},
        {"data": "%%%"},
        {"data": None},
        {"data": base64.b64encode(b"rubbish").decode()},
        {"position": 1},
        {"position": "3"},
        {"position": True},
        {"more": 1},
    ],
)
def test_an_event_that_is_not_what_its_line_says_is_refused(values: dict[str, Any]):
    error = refused(changed(BUSY, 3, **values))
    assert error.code is Code.DAMAGED_ARCHIVE
    assert error.details["line"] in (4, 5)


@pytest.mark.parametrize("line", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_object_is_refused(line: bytes):
    lines = BUSY.splitlines()[:-1]
    lines[2] = line
    assert refused(resealed(lines)).details["line"] == 3
    assert refused(resealed([line])).details["line"] == 1


def test_an_archive_of_a_later_version_asks_for_an_upgrade():
    with pytest.raises(UnknownEventError, match="upgrade"):
        opened(changed(BUSY, 0, version=2))


def test_an_archive_without_a_creation_is_refused():
    lines = [line for number, line in enumerate(BUSY.splitlines()[:-1]) if number != 1]
    error = refused(changed(resealed(lines), 0, events=len(lines) - 1))
    assert error.code is Code.DAMAGED_ARCHIVE


# --- keys -------------------------------------------------------------------------------------------------------------


def test_with_the_key_an_authenticated_archive_is_believed():
    writer = written_with(FIRST)
    assert verify(opened(archived(writer)), keyed(FIRST)).carried() == writer.state.carried()
    assert verify(opened(archived(writer)), keyed(SECOND, FIRST)).carried() == writer.state.carried()


@pytest.mark.parametrize(
    ("write", "codec", "code"),
    [
        (lambda: written_with(FIRST), Codec(), Code.KEY_REQUIRED),
        (lambda: written_with(FIRST), keyed(SECOND), Code.FORGED),
        (busy, keyed(FIRST), Code.KEY_UNEXPECTED),
    ],
)
def test_an_archive_needs_the_key_of_its_scope(write: Callable[[], Writer], codec: Codec, code: Code):
    with pytest.raises(ForgedError) as caught:
        verify(opened(archived(write())), codec)
    assert caught.value.code is code
    assert "orders.archive, line 2" in caught.value.message


@pytest.mark.parametrize("mac", [None, "00" * 40])
def test_an_event_without_its_mac_is_refused_by_line(mac: str | None):
    content = changed(archived(written_with(FIRST)), 2, mac=mac)
    with pytest.raises(ForgedError, match=r"orders\.archive, line 3"):
        verify(opened(content), keyed(FIRST))
