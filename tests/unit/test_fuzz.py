"""Hostile bytes: whatever is in a log, reading it ends in a verdict or an error of the tree, and soon."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from journal.admission import Admitted, ScopeState, Verdict, Void, empty_state, fold, step
from journal.codec import Codec, Key, Keyring, published_schemas
from journal.errors import Code, JournalError
from journal.events import Event, EventType, Readable, event_hash
from tests.factories import SCOPE
from tests.stories import ACTIONS, Story, tell

INPUTS: Final = 10_000
SECONDS_AN_INPUT: Final = 10.0  # thousands of times what the slowest needs, on the slowest machine
MAX_BYTES: Final = 64 * 1024
PREFIXES: Final = [schema.prefix for schema in published_schemas()]
LEASE_ACQUIRED: Final = next(s.prefix for s in published_schemas() if s.type is EventType.LEASE_ACQUIRED)
PLAN_OPENED: Final = next(s.prefix for s in published_schemas() if s.type is EventType.PLAN_OPENED)


class StuckError(BaseException):
    """An input took too long. Not an Exception, so that nothing on the way can take it for its own."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Interrupt what runs inside when it does not end."""

    def ring(*_: object) -> None:
        raise StuckError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_alarm_interrupts_what_does_not_end():
    def endless() -> None:
        while True:
            pass

    with pytest.raises(StuckError), alarm(0.05):
        endless()


# --- where inputs meet a scope ------------------------------------------------------------------------------------------


def stories() -> list[Story]:
    found = []
    for seed in range(12):
        generator = random.Random(seed)
        story = tell([(generator.randrange(ACTIONS), generator.randrange(1000)) for _ in range(10 + 10 * seed)])
        if story.state.lease_id is None:
            story.begin_lease(1)
        found.append(story)
    return found


STORIES: Final = stories()
EVENTS: Final = [data for story in STORIES for data in story.data if len(data) > 100]


def readmitted(data: bytes, state: ScopeState, chance: random.Random) -> bytes:
    """The event with a header that the state admits, so that its body is reached; now and then as a new lease."""
    lease_id, fence = state.lease_id or bytes(16), state.fence
    if chance.random() < 0.1 or data[:10] == LEASE_ACQUIRED:
        lease_id, fence = chance.randbytes(16), fence + 1
    header = b"".join(
        (
            state.incarnation or b"",
            data[26:42],
            lease_id,
            state.head,
            long(fence),
            long(1_764_500_000_000_000),
            string(SCOPE),
        )
    )
    return data[:10] + header + body_of(data)


def body_of(data: bytes) -> bytes:
    event = Codec().read(0, data)
    return data[event._body_offset :] if isinstance(event, Event) else data[120:]


def long(value: int) -> bytes:
    word, out = (value << 1) ^ (value >> 63), bytearray()
    while word > 0x7F:
        out.append(word & 0x7F | 0x80)
        word >>= 7
    return bytes([*out, word])


def string(text: str) -> bytes:
    return long(len(text.encode())) + text.encode()


# --- ways to spoil an event ---------------------------------------------------------------------------------------------

HUGE: Final = [
    b"\xfe" + b"\xff" * 8 + b"\x01",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10,
    b"\x80" * 40,
    b"\xfe\xff\xff\xff\x0f",
]


def random_bytes(_: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(400))


def random_body(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(PREFIXES) + data[10:] + chance.randbytes(chance.randrange(200))


def truncated(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def spliced(data: bytes, chance: random.Random) -> bytes:
    other = chance.choice(EVENTS)
    return data[: chance.randrange(len(data))] + other[chance.randrange(len(other)) :]


def retyped(data: bytes, chance: random.Random) -> bytes:
    return chance.choice(PREFIXES) + data[10:]


def of_unknown_type(data: bytes, chance: random.Random) -> bytes:
    return data[:2] + chance.randbytes(8) + data[10:]


def lengthened(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(90, len(data))
    return data[:at] + chance.choice(HUGE) + data[at + chance.randrange(2) :]


def repeated(data: bytes, chance: random.Random) -> bytes:
    return data + data[chance.randrange(len(data)) :] * chance.randrange(1, 4)


def oversized(data: bytes, chance: random.Random) -> bytes:
    return data + chance.choice([b"\0", b"\x02", b"\xff", b"\x01\x02"]) * chance.choice(
        [MAX_BYTES - 500, MAX_BYTES, 10**6]
    )


def untouched(data: bytes, _: random.Random) -> bytes:
    return data


SPOILERS: Final[list[tuple[Callable[[bytes, random.Random], bytes], int]]] = [
    (random_bytes, 8),
    (random_body, 8),
    (truncated, 16),
    (flipped, 24),
    (spliced, 12),
    (retyped, 8),
    (of_unknown_type, 4),
    (lengthened, 16),
    (repeated, 4),
    (oversized, 1),
    (untouched, 8),
]


def inputs(chance: random.Random) -> Iterator[tuple[ScopeState, bytes]]:
    spoilers, weights = zip(*SPOILERS, strict=True)
    for _ in range(INPUTS):
        state = chance.choice(STORIES).state
        (spoil,) = chance.choices(spoilers, weights)
        data = spoil(chance.choice(EVENTS), chance)
        yield state, readmitted(data, state, chance) if chance.random() < 0.6 and len(data) > 100 else data


def test_no_bytes_raise_anything_outside_the_error_tree_or_hang():
    codec, counts = Codec(max_event_bytes=MAX_BYTES), Counter[Any]()
    for state, data in inputs(random.Random(20261)):
        before = state.canonical()
        here = state.copy()
        with alarm(SECONDS_AN_INPUT):
            try:
                event = codec.read(1_000, data)
                verdict = step(here, event)
                if isinstance(verdict, Admitted):
                    assert isinstance(event, Event)
                    assert event.record is not None
                    here.active_ledger()
                    here.open_plan()
                    here.open_rollback_plan()
                counts[verdict if isinstance(verdict, Void) else Admitted] += 1
            except JournalError as error:
                counts[error.code] += 1
                assert here.canonical() == before
    assert counts.total() == INPUTS
    # The inputs did reach every part of the way.
    for reached in (
        Void(Code.UNDECODABLE),
        Void(Code.FOREIGN_SCOPE),
        Void(Code.STALE_PARENT),
        Void(Code.FOREIGN_EVENT),
    ):
        assert counts[reached] > 10
    for reached in (Admitted, Code.UNDECODABLE_BODY, Code.UNKNOWN_EVENT, Code.EVENT_TOO_LARGE):
        assert counts[reached] > 10


def test_no_bytes_raise_anything_outside_the_error_tree_with_a_key():
    key = Key(bytes(range(32)))
    codec, chance = Codec(keyring=Keyring(key), max_event_bytes=MAX_BYTES), random.Random(20262)
    said: set[Verdict | Code] = set()
    for number, (state, data) in enumerate(inputs(chance)):
        if number == 1_000:
            break
        mac = chance.choice([None, key.mac(data), chance.randbytes(40), b"", key.id])
        with alarm(SECONDS_AN_INPUT):
            said.add(verdict_or_code(state.copy(), codec.read(1_000, data, mac)))
    assert Void(Code.FORGED) in said
    assert any(isinstance(answer, Admitted) for answer in said)


def test_no_bytes_at_the_first_position_raise_anything_outside_the_error_tree():
    codec, chance = Codec(max_event_bytes=MAX_BYTES), random.Random(20263)
    genesis, said = STORIES[0].data[0], set[Verdict | Code]()
    for spoil, weight in SPOILERS:
        for _ in range(weight * 10):
            with alarm(SECONDS_AN_INPUT):
                said.add(verdict_or_code(empty_state(SCOPE), codec.read(0, spoil(genesis, chance))))
    assert said >= {Admitted(None), Void(Code.FOREIGN_SCOPE), Code.UNDECODABLE_BODY, Code.UNKNOWN_EVENT}


def verdict_or_code(state: ScopeState, event: Readable) -> Verdict | Code:
    try:
        return step(state, event)
    except JournalError as error:
        return error.code


def test_the_same_bytes_get_the_same_answer_again():
    chance = random.Random(20264)
    for number, (state, data) in enumerate(inputs(chance)):
        if number == 500:
            break
        left, right = (verdict_or_code(state.copy(), Codec().read(1_000, data)) for _ in range(2))
        assert left == right


def test_whole_logs_of_spoiled_events_fold_or_stop():
    chance = random.Random(20265)
    spoilers = [spoil for spoil, _ in SPOILERS if spoil is not oversized]
    for story in STORIES:
        for _ in range(20):
            log = [
                chance.choice(spoilers)(data, chance) if len(data) > 100 and chance.random() < 0.1 else data
                for data in story.data
            ]
            state = empty_state(SCOPE)
            with alarm(SECONDS_AN_INPUT):
                try:
                    fold(state, (Codec().read(position, data) for position, data in enumerate(log)))
                except JournalError:
                    assert state.position != len(log) - 1
            assert len(state.canonical()) > 0


def test_an_event_of_the_greatest_size_is_read_in_bounded_time():
    data = STORIES[0].data[0]
    for filler in (b"\x02", b"\x01\x02", b"\0", b"\xff", b"\x80"):
        big = PLAN_OPENED + data[10:-2] + bytes(7 * 32) + filler * (2**22 // len(filler))
        with alarm(SECONDS_AN_INPUT):
            event = Codec().read(0, big)
            assert isinstance(event, Event)
            assert event.hash == event_hash(big)
            with pytest.raises(JournalError):
                _ = event.body
