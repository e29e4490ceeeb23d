"""Verification: what an untouched log gives, and that no change to one goes unseen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest

from journal.codec import Codec, Key, Keyring
from journal.errors import Code, ForgedError, IntegrityError, InvalidContractError
from journal.events import event_hash
from journal.identities import Digest, Scope
from journal.ports import StoredEvent
from journal.records import LeaseAcquiredRecord, LeaseReleasedRecord, MigrationLease
from journal.vocabulary import GroupEventKind
from projections import audit
from projections.audit import MAX_FINDINGS, Verification
from tests.factories import SCOPE, Writer, chain_of, group_record, lease_of, plan_record
from tests.written import events_of, reading, stored

KEY: Final = Key(bytes(range(32)))
OTHER_KEY: Final = Key(bytes(range(1, 33)))


async def verify(events: Sequence[StoredEvent], *, head: bytes | None = None, key: Key | None = None) -> Verification:
    codec = None if key is None else Codec(keyring=Keyring(key))
    return await audit.verify(reading(events, codec=codec), SCOPE, head=None if head is None else Digest(head))


def written(*, key: Key | None = None) -> Writer:
    """Two holders, a plan applied and rolled back, releases between."""
    writer = Writer(codec=Codec(keyring=None if key is None else Keyring(key)), authenticated=key is not None)
    manifests = chain_of(2)
    lease = writer.acquire("alice")
    writer.apply(lease, manifests)
    writer.release(lease)
    lease = writer.acquire("bob")
    writer.roll_back(lease, manifests[::-1], manifests)
    writer.release(lease)
    return writer


def breaks(result: Verification) -> list[tuple[int | None, str]]:
    return [(finding.position, finding.code) for finding in result.findings if finding.breaks]


def renumbered(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """The same events without a gap, as one who covers a deletion leaves them."""
    return stored([event.data for event in events], [event.mac for event in events])


def flipped(events: Sequence[StoredEvent], number: int, byte: int, bit: int = 1) -> list[StoredEvent]:
    data = bytearray(events[number].data)
    data[byte] ^= bit
    return [event._replace(data=bytes(data)) if event.position == number else event for event in events]


# --- logs that hold ---------------------------------------------------------------------------------------------------


async def test_an_untouched_log_holds() -> None:
    writer = written()
    result = await verify(events_of(writer))
    assert result.ok
    assert result.findings == ()
    assert (result.events, result.admitted, result.voids) == (len(writer.data), len(writer.data), {})
    assert (result.head, result.position) == (writer.state.head, len(writer.data) - 1)
    assert (result.keyed, result.complete, result.head_found) == (False, True, None)


async def test_an_authenticated_log_holds_with_its_key() -> None:
    result = await verify(events_of(written(key=KEY)), key=KEY)
    assert (result.ok, result.keyed) == (True, True)


async def test_void_events_of_stale_writers_are_counted_and_break_nothing() -> None:
    writer, (manifest,) = Writer(), chain_of(1)
    stale = writer.acquire("alice")
    writer.write(plan_record(stale, [manifest]), stale)
    before = writer.state.head
    fresh = writer.acquire("bob")
    # On the head that it knew, on the newest, and the copies of both that a log may deliver again.
    late = [
        writer.encode(
            group_record(stale, manifest, GroupEventKind.BEFORE_COMMIT), lease_id=stale.lease_id, fence=1, parent=p
        )
        for p in (before, writer.state.head)
    ]
    for data in (*late, *late):
        writer.append(data)
    writer.write(group_record(fresh, manifest, GroupEventKind.BEFORE_COMMIT), fresh)
    for data in late:
        writer.append(data)
    result = await verify(events_of(writer))
    assert result.ok
    assert result.findings == ()
    assert result.voids == {Code.STALE_PARENT: 4, Code.STALE_FENCE: 2}


async def test_a_pipeline_that_was_cut_off_by_a_successor_breaks_nothing() -> None:
    writer, (manifest,) = Writer(), chain_of(1)
    stale = writer.acquire("alice")
    behind = written_ahead(writer, stale, 3)
    writer.acquire("bob")
    for data in behind:
        writer.append(data)
    result = await verify(events_of(writer))
    assert result.ok
    assert result.voids == {Code.STALE_PARENT: 3}
    assert manifest.id not in writer.state.active


def written_ahead(writer: Writer, lease: MigrationLease, count: int) -> list[bytes]:
    """Events that a writer sends one behind the other without waiting."""
    ahead = Writer()
    ahead.data = list(writer.data)
    ahead.state = writer.state.copy()
    ahead.write(plan_record(lease, chain_of(1)), lease)
    for kind in (GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMITTED):
        ahead.write(group_record(lease, chain_of(1)[0], kind), lease)
    return ahead.data[len(writer.data) :][:count]


async def test_bytes_that_are_no_event_are_reported_and_break_nothing() -> None:
    writer = written()
    writer.append(b"noise")
    result = await verify(events_of(writer))
    assert result.ok
    assert [(finding.position, finding.code) for finding in result.findings] == [(19, Code.UNDECODABLE)]


async def test_events_of_another_creation_are_counted_and_break_nothing() -> None:
    writer, other = written(), Writer()
    other.incarnation = type(other.incarnation).random()
    lease = lease_of("carol", 9)
    data = other.encode(LeaseAcquiredRecord.new(lease.holder, 1), lease_id=lease.lease_id, fence=9, parent=bytes(32))
    writer.append(data)
    result = await verify(events_of(writer))
    assert result.ok
    assert result.voids == {Code.FOREIGN_SCOPE: 1}


async def test_a_forged_event_is_reported_and_breaks_nothing() -> None:
    writer = written(key=KEY)
    writer.append(writer.data[5], mac=bytes(40))
    result = await verify(events_of(writer), key=KEY)
    assert result.ok
    assert [(finding.position, finding.code, finding.breaks) for finding in result.findings] == [
        (19, Code.FORGED, False)
    ]


# --- logs that were altered -------------------------------------------------------------------------------------------


async def test_a_flipped_bit_anywhere_in_any_event_but_the_last_is_found() -> None:
    events = events_of(written())
    unseen: list[tuple[int, int]] = []
    for number, event in enumerate(events[:-1]):
        for byte in range(number % 5, len(event.data), 5):
            try:
                result = await verify(flipped(events, number, byte, 1 << byte % 7))
            except IntegrityError:
                assert number == 0  # without a genesis nothing can be verified
            else:
                place = next((position for position, _ in breaks(result)), None)
                if place is None or not number <= place <= number + 1:
                    unseen.append((number, byte))
    assert unseen == []


@pytest.mark.parametrize("byte", [0, 5, 12, 27, 43, 60, 90, -1])
async def test_a_flipped_bit_in_the_last_event_is_found_with_the_head(byte: int) -> None:
    writer = written()
    events = events_of(writer)
    result = await verify(flipped(events, len(events) - 1, byte), head=writer.state.head)
    assert (None, Code.HISTORY_LOST) in breaks(result) or not result.complete


async def test_a_flipped_bit_in_the_last_event_is_found_with_the_key() -> None:
    events = events_of(written(key=KEY))
    result = await verify(flipped(events, len(events) - 1, 30), key=KEY)
    assert breaks(result) == [(len(events) - 1, Code.FORGED)]


async def test_a_creation_that_was_altered_is_found() -> None:
    events = events_of(written())
    assert breaks(await verify(flipped(events, 0, 12))) == [(0, Code.CHAIN_BROKEN)]


async def test_a_removed_event_is_found_between_the_last_that_counts_and_the_one_that_names_it() -> None:
    events = events_of(written())
    for number in range(1, len(events) - 1):
        result = await verify(renumbered([event for event in events if event.position != number]))
        assert breaks(result) == [(number, Code.CHAIN_BROKEN)]
        assert f"between position {number - 1} (the last that counts before it)" in result.findings[0].what


async def test_several_removed_events_are_found_at_one_place() -> None:
    events = events_of(written())
    result = await verify(renumbered([*events[:4], *events[9:]]))
    assert breaks(result) == [(4, Code.CHAIN_BROKEN)]


async def test_a_removed_genesis_leaves_nothing_to_verify() -> None:
    result = await verify(renumbered(events_of(written())[1:]))
    assert (0, Code.NO_GENESIS) in breaks(result)


async def test_events_in_another_order_are_found() -> None:
    events = events_of(written())
    for number in range(1, len(events) - 1):
        swapped = [*events[:number], events[number + 1], events[number], *events[number + 2 :]]
        result = await verify(renumbered(swapped))
        assert breaks(result)[0] == (number, Code.CHAIN_BROKEN)
        assert f"is behind it, at position {number + 1}" in result.findings[0].what


async def test_a_break_is_still_found_when_history_went_on_behind_it() -> None:
    writer = written()
    removed = renumbered([event for event in events_of(writer) if event.position != 5])
    resumed = Writer()
    resumed.data, resumed.macs = [event.data for event in removed], [None] * len(removed)
    resumed.state = await reading(removed).state(SCOPE)
    resumed.acquire("carol", fence=9)
    result = await verify(events_of(resumed))
    assert breaks(result) == [(5, Code.CHAIN_BROKEN)]
    assert result.head == resumed.state.head


async def test_another_key_cannot_read_the_log_at_all() -> None:
    with pytest.raises(ForgedError) as caught:
        await verify(events_of(written(key=KEY)), key=OTHER_KEY)
    assert caught.value.code == Code.FORGED


async def test_an_authenticated_log_is_not_verified_without_its_key() -> None:
    with pytest.raises(ForgedError) as caught:
        await verify(events_of(written(key=KEY)))
    assert caught.value.code == Code.KEY_REQUIRED


async def test_an_event_that_cannot_be_decoded_stops_the_walk_at_its_place() -> None:
    writer = Writer()
    lease = writer.acquire()
    data = writer.encode(LeaseReleasedRecord.new(lease.holder), lease_id=lease.lease_id, fence=1)
    result = await verify(stored([*writer.data, data[:-1], data]))
    assert breaks(result) == [(2, Code.UNDECODABLE_BODY)]
    assert (result.complete, result.events, result.admitted) == (False, 2, 2)


# --- the head ---------------------------------------------------------------------------------------------------------


async def test_a_log_that_was_cut_off_lacks_the_head_of_an_earlier_verification() -> None:
    writer = written()
    events = events_of(writer)
    head = (await verify(events)).head
    assert (await verify(events[:-1])).ok
    result = await verify(events[:-1], head=head)
    assert breaks(result) == [(None, Code.HISTORY_LOST)]
    assert result.head_found is False


async def test_a_log_that_went_on_still_holds_the_earlier_head() -> None:
    writer = Writer()
    lease = writer.acquire()
    head = writer.state.head
    writer.apply(lease, chain_of(2))
    result = await verify(events_of(writer), head=head)
    assert (result.ok, result.head_found) == (True, True)


async def test_a_void_event_is_no_head() -> None:
    writer = written()
    lease = lease_of("mallory", 1)
    void = writer.encode(LeaseAcquiredRecord.new(lease.holder, 1), lease_id=lease.lease_id, fence=1)
    writer.append(void)
    result = await verify(events_of(writer), head=event_hash(void))
    assert result.head_found is False


# --- bounds -----------------------------------------------------------------------------------------------------------


async def test_findings_are_bounded_and_a_break_behind_them_still_counts() -> None:
    writer = Writer()
    lease = writer.acquire()
    for _ in range(MAX_FINDINGS + 10):
        writer.append(b"noise")
    orphan = writer.encode(LeaseReleasedRecord.new(lease.holder), lease_id=lease.lease_id, fence=1, parent=b"x" * 32)
    writer.append(orphan)
    result = await verify(events_of(writer))
    assert not result.ok
    assert len(result.findings) == MAX_FINDINGS + 1


async def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(InvalidContractError) as caught:
        await audit.verify(reading([]), Scope("other"))
    assert caught.value.code == Code.UNKNOWN_SCOPE
