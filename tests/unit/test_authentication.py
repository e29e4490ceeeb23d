"""Event MACs: which are believed, who may read what, and that a key shows itself nowhere."""

from __future__ import annotations

import traceback

import pytest

from journal.admission import Admitted, ScopeState, Void, empty_state, fold, step
from journal.codec import Codec, Key, Keyring
from journal.errors import Code, ForgedError, InvalidContractError, JournalError
from journal.events import Event
from journal.records import LeaseReleasedRecord
from tests.factories import SCOPE, Writer

FIRST, SECOND, THIRD = (Key(bytes([number]) * 32) for number in (1, 2, 3))


def keyed(current: Key, previous: Key | None = None) -> Codec:
    return Codec(keyring=Keyring(current, previous))


def written_with(key: Key) -> Writer:
    """An authenticated scope with a lease that was taken and given back."""
    writer = Writer(codec=keyed(key), authenticated=True)
    writer.release(writer.acquire())
    return writer


def folded(writer: Writer, codec: Codec, macs: list[bytes | None] | None = None) -> ScopeState:
    pairs = zip(writer.data, writer.macs if macs is None else macs, strict=True)
    return fold(empty_state(SCOPE), (codec.read(position, data, mac) for position, (data, mac) in enumerate(pairs)))


def stopped(writer: Writer, codec: Codec) -> JournalError:
    with pytest.raises(ForgedError) as caught:
        folded(writer, codec)
    return caught.value


# --- which are believed -----------------------------------------------------------------------------------------------


def test_events_with_their_mac_are_admitted():
    writer = written_with(FIRST)
    state = folded(writer, keyed(FIRST))
    assert (state.admitted, state.voids, state.authenticated) == (3, 0, True)


def test_a_mac_is_the_key_id_and_32_bytes():
    mac = FIRST.mac(b"event")
    assert mac[:8] == FIRST.id
    assert len(mac) == 40


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: None,
        lambda _: b"",
        lambda mac: mac[:-1],
        lambda mac: mac + b"\0",
        lambda mac: mac[:8],
        lambda mac: bytes([mac[0] ^ 1]) + mac[1:],
        lambda mac: mac[:-1] + bytes([mac[-1] ^ 0x80]),
        lambda mac: mac[8:],
        lambda _: bytes(40),
        lambda _: SECOND.mac(b"anything"),
    ],
    ids=["missing", "empty", "short", "long", "id only", "other id", "one bit", "no id", "zeros", "other key"],
)
def test_an_event_with_any_other_mac_is_forged(damage):
    writer = written_with(FIRST)
    state = folded(writer, keyed(FIRST), [*writer.macs[:2], damage(writer.macs[2])])
    assert (state.admitted, state.voids) == (2, 1)


def test_the_verdict_on_a_forged_event_says_forged():
    writer = Writer(codec=keyed(FIRST), authenticated=True)
    lease = writer.acquire()
    data = writer.encode(LeaseReleasedRecord.new(lease.holder), lease_id=lease.lease_id, fence=lease.fence)
    assert step(writer.state.copy(), writer.codec.read(9, data, None)) == Void(Code.FORGED)
    assert step(writer.state.copy(), writer.codec.read(9, data, SECOND.mac(data))) == Void(Code.FORGED)
    assert step(writer.state.copy(), writer.codec.read(9, data, FIRST.mac(data))) == Admitted(None)


def test_the_mac_of_one_event_does_not_serve_another():
    writer = written_with(FIRST)
    state = folded(writer, keyed(FIRST), [writer.macs[0], writer.macs[2], writer.macs[1]])
    assert (state.admitted, state.voids) == (1, 2)


def test_an_event_that_was_changed_behind_its_mac_is_forged():
    writer = written_with(FIRST)
    data = bytearray(writer.data[2])
    data[-1] ^= 1
    event = keyed(FIRST).read(2, bytes(data), writer.macs[2])
    assert isinstance(event, Event)
    assert event.authentic is False


def test_a_reader_without_a_key_says_nothing_about_macs():
    writer = written_with(FIRST)
    event = Codec().read(0, writer.data[0], writer.macs[0])
    assert isinstance(event, Event)
    assert event.authentic is None


def test_a_codec_without_a_key_writes_no_mac():
    assert Codec().authenticate(b"event") is None
    assert keyed(FIRST).authenticate(b"event") == FIRST.mac(b"event")


# --- rotation ---------------------------------------------------------------------------------------------------------


def rotated(*keys: Key) -> Writer:
    """A scope whose holders used one key after the other."""
    writer = written_with(keys[0])
    for key in keys[1:]:
        writer.codec = keyed(key)
        writer.release(writer.acquire())
    return writer


def test_the_previous_key_is_believed_while_keys_are_rotated():
    writer = rotated(FIRST, SECOND)
    state = folded(writer, keyed(SECOND, previous=FIRST))
    assert (state.admitted, state.voids) == (5, 0)


def test_the_current_key_is_the_one_that_writes():
    assert keyed(SECOND, previous=FIRST).authenticate(b"event") == SECOND.mac(b"event")


def test_a_third_key_is_not_believed():
    writer = rotated(FIRST, SECOND, THIRD)
    assert folded(writer, keyed(SECOND, previous=FIRST)).voids == 2


def test_every_previous_key_is_believed_however_often_keys_were_rotated():
    writer = rotated(FIRST, SECOND, THIRD)
    state = folded(writer, Codec(keyring=Keyring(THIRD, SECOND, FIRST)))
    assert (state.voids, state.canonical()) == (0, writer.state.canonical())


def test_a_genesis_under_a_key_that_is_gone_stops_reading():
    assert stopped(rotated(FIRST, SECOND, THIRD), keyed(THIRD, previous=SECOND)).code is Code.FORGED


def test_after_rotation_events_of_the_previous_key_are_forged_without_it():
    ring = Keyring(SECOND)
    assert not ring.verify(b"event", FIRST.mac(b"event"))
    assert Keyring(SECOND, FIRST).verify(b"event", FIRST.mac(b"event"))


# --- who may read what ------------------------------------------------------------------------------------------------


def test_a_reader_without_a_key_refuses_an_authenticated_scope():
    error = stopped(written_with(FIRST), Codec())
    assert error.code is Code.KEY_REQUIRED
    assert "JOURNAL_KEY" in error.message


def test_a_reader_with_a_key_refuses_a_scope_that_is_not_authenticated():
    writer = Writer()
    writer.acquire()
    assert stopped(writer, keyed(FIRST)).code is Code.KEY_UNEXPECTED


def test_a_reader_with_another_key_refuses_the_scope():
    assert stopped(written_with(FIRST), keyed(SECOND)).code is Code.FORGED


def test_a_genesis_that_claims_no_authentication_does_not_open_a_scope_to_a_keyed_reader():
    # An attacker who replaces the genesis by one without authentication is found out by the reader's key.
    writer = Writer(codec=keyed(FIRST), authenticated=True)
    attacker = Writer()
    with pytest.raises(ForgedError) as caught:
        step(empty_state(SCOPE), writer.codec.read(0, attacker.data[0], None))
    assert caught.value.code is Code.KEY_UNEXPECTED


def test_a_genesis_that_is_refused_leaves_the_state_as_it_was():
    state = empty_state(SCOPE)
    before = state.canonical()
    with pytest.raises(ForgedError):
        step(state, Codec().read(0, written_with(FIRST).data[0], None))
    assert state.canonical() == before


# --- keys -------------------------------------------------------------------------------------------------------------

SECRET = "00112233445566778899aabbccddeeff" * 2


def test_a_key_is_read_from_64_hex_digits():
    assert Key.parse(SECRET).mac(b"event") == Key(bytes.fromhex(SECRET)).mac(b"event")
    assert Key.parse(SECRET.upper()).id == Key.parse(SECRET).id


def test_the_secret_is_in_no_description_of_a_key():
    key = Key.parse(SECRET)
    described = [repr(key), str(key), repr(Keyring(key, FIRST)), repr(keyed(key).keyring), f"{key}"]
    for text in described:
        assert SECRET not in text
        assert repr(bytes.fromhex(SECRET)) not in text
    assert key.id.hex() in repr(key)
    assert not hasattr(key, "__dict__")


def test_the_key_itself_is_neither_the_secret_nor_its_id():
    key = Key.parse(SECRET)
    assert key.id.hex() not in SECRET
    assert key._key != bytes.fromhex(SECRET)
    assert key.id not in key._key


@pytest.mark.parametrize(
    "text",
    ["", SECRET[:-1], SECRET[:-2], SECRET + "00", "g" + SECRET[1:], SECRET[:-1] + " ", "é" * 64],
)
def test_a_text_that_is_no_key_is_refused_and_not_repeated(text: str):
    with pytest.raises(InvalidContractError) as caught:
        Key.parse(text)
    assert caught.value.code is Code.INVALID_KEY
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value.details)
    assert SECRET[:16] not in shown


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_a_secret_of_another_size_is_refused(size: int):
    with pytest.raises(InvalidContractError) as caught:
        Key(bytes(size))
    assert caught.value.code is Code.INVALID_KEY


def test_errors_about_keys_do_not_show_them():
    for codec in (keyed(SECOND), Codec()):
        error = stopped(written_with(Key.parse(SECRET)), codec)
        shown = f"{error!r} {error} {error.details}"
        assert SECRET[:16] not in shown
        assert SECOND._key.hex() not in shown
