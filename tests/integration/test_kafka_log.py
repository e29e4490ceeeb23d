"""A Kafka log among strangers and faults: foreign records, gaps, brokers that stand still or die, calls that are given up."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from journal.errors import Code, InvalidContractError, JournalError, OutcomeUnknownError, UnavailableError
from journal.identities import Position, Scope
from journal.log.kafka import KafkaLog
from journal.ports import Outgoing, StoredEvent
from tests.foreign_kafka import Foreigner, foreigner
from tests.services.kafka import KafkaService

SCOPE = Scope("orders")
MAC = "journal-mac"
OpenLog = Callable[..., KafkaLog]


@pytest.fixture
async def open_log(kafka: KafkaService, fresh_prefix: str) -> AsyncIterator[OpenLog]:
    """Opens logs on one prefix, each like one of another process; closes them at the end."""
    opened: list[KafkaLog] = []

    def make(servers: Sequence[str] | None = None, **options: Any) -> KafkaLog:
        opened.append(KafkaLog(servers or kafka.servers, **{"prefix": fresh_prefix, "replication": 1, **options}))
        return opened[-1]

    yield make
    for log in opened:
        await log.close()


@pytest.fixture
async def log(open_log: OpenLog) -> KafkaLog:
    return open_log()


@pytest.fixture
async def other(kafka: KafkaService) -> AsyncIterator[Foreigner]:
    async with foreigner(kafka.servers) as other:
        yield other


@pytest.fixture
def topic(fresh_prefix: str) -> str:
    return f"{fresh_prefix}.{SCOPE}"


def numbered(count: int) -> list[Outgoing]:
    return [Outgoing(b"%d" % number) for number in range(count)]


async def read(log: KafkaLog, after: Position | None = None) -> list[StoredEvent]:
    async with aclosing(log.read(SCOPE, after=after)) as batches:
        return [event async for batch in batches for event in batch]


async def values(log: KafkaLog, after: Position | None = None) -> list[bytes]:
    return [event.data for event in await read(log, after)]


async def take(tail: Any, count: int, seconds: float = 30) -> list[bytes]:
    taken: list[bytes] = []
    async with asyncio.timeout(seconds):
        while len(taken) < count:
            taken += [event.data for event in await anext(tail)]
    return taken


# --- what strangers write ---------------------------------------------------------------------------------------------


async def test_records_of_strangers_are_read_as_bytes_whatever_they_carry(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str
) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, [Outgoing(b"ours", b"mac")])
    async with aclosing(open_log().tail(SCOPE, after=None)) as tail:
        await other.write(topic, None, key=b"a tombstone")
        await other.write(topic, b"with a key", key=b"key")
        await other.write(topic, b"two", headers=[("x", b"y"), (MAC, b"first"), (MAC, b"second")])
        await other.write(topic, b"null", headers=[(MAC, None)])
        await log.append(SCOPE, [Outgoing(b"ours again", b"mac")])
        expected = [b"ours", b"", b"with a key", b"two", b"null", b"ours again"]
        assert await take(tail, 6) == expected
    assert [(event.data, event.mac) for event in await read(log)] == list(
        zip(expected, [b"mac", None, None, b"first", None, b"mac"], strict=True)
    )


async def test_a_header_whose_name_is_no_text_makes_its_batch_empty_and_stops_nobody(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str
) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(3))
    async with aclosing(open_log().tail(SCOPE, after=None)) as tail:
        assert len(await take(tail, 3)) == 3
        await other.write_raw(topic, b"odd", b"\xff\xfe\xfd")
        await other.write_raw(topic, b"odd", b"\xff\xfe\xfd")
        await log.append(SCOPE, numbered(3))
        assert await take(tail, 5) == [b"", b"", b"0", b"1", b"2"]
    assert await values(open_log()) == [b"0", b"1", b"2", b"", b"", b"0", b"1", b"2"]
    assert await values(open_log(), after=Position(3)) == [b"", b"0", b"1", b"2"]
    assert await open_log().end(SCOPE) == 7


@pytest.mark.parametrize("kind", ["gzip"])
async def test_what_a_stranger_compresses_is_kept_plain(
    log: KafkaLog, kafka: KafkaService, topic: str, kind: str
) -> None:
    await log.create(SCOPE)
    async with foreigner(kafka.servers, compression_type=kind) as other:
        await other.write(topic, b"a" * 100_000)
        # A little that unpacks into very much is refused by the broker, for every reader.
        with pytest.raises(MessageSizeTooLargeError):
            await other.write(topic, bytes(30 * 2**20))
    await log.append(SCOPE, numbered(1))
    assert await values(log) == [b"a" * 100_000, b"0"]


async def test_a_record_of_20_mb_is_refused_by_the_topic(log: KafkaLog, other: Foreigner, topic: str) -> None:
    await log.create(SCOPE)
    with pytest.raises(MessageSizeTooLargeError):
        await other.write(topic, bytes(20 * 2**20))
    with pytest.raises(JournalError) as caught:
        await log.append(SCOPE, [Outgoing(bytes(20 * 2**20))])
    assert caught.value.code is Code.EVENT_TOO_LARGE
    await log.append(SCOPE, numbered(1))
    assert await values(log) == [b"0"]


async def test_a_record_of_20_mb_that_a_raised_limit_let_in_is_read_and_passed(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str
) -> None:
    await log.create(SCOPE)
    await other.set(topic, max_message_bytes=str(40 * 2**20))
    async with aclosing(open_log().tail(SCOPE, after=None)) as tail:
        await log.append(SCOPE, numbered(1))
        await other.write(topic, bytes(20 * 2**20))
        await log.append(SCOPE, numbered(1))
        assert [len(data) for data in await take(tail, 3)] == [1, 20 * 2**20, 1]
    assert [len(data) for data in await values(log)] == [1, 20 * 2**20, 1]


# --- gaps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("behind", [0, 1], ids=["at the end", "with events behind"])
async def test_a_strangers_transaction_leaves_a_gap_that_ends_nothing(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str, commit: bool, behind: int
) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(2))
    await other.transact(topic, b"in a transaction", commit=commit)
    if behind:
        await log.append(SCOPE, [Outgoing(b"behind")])
    expected = [b"0", b"1", b"in a transaction", b"behind"][: 3 + behind]
    last = Position(4 if behind else 2)
    for one in (log, open_log()):
        assert await one.end(SCOPE) == last
        events = await read(one)
        assert [event.data for event in events] == expected
        assert await one.end(SCOPE) == events[-1].position == last
        assert await values(one, after=last) == []
        assert await values(one, after=Position(1)) == expected[2:]
    async with aclosing(open_log().tail(SCOPE, after=last)) as tail:
        await log.append(SCOPE, [Outgoing(b"later")])
        assert await take(tail, 1) == [b"later"]


async def test_markers_alone_are_an_empty_log_to_which_the_first_event_can_be_written(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str
) -> None:
    await log.create(SCOPE)
    for _ in range(20):
        await other.transact(topic, b"x", commit=False)
    await other.cut(topic, 0)
    fresh = open_log()
    assert len(await values(fresh)) == 20
    assert await fresh.end(SCOPE) == 38  # behind it is the last marker, at 39
    await log.append(SCOPE, numbered(1))
    assert await fresh.end(SCOPE) == 40


async def test_the_end_is_found_behind_many_gaps(
    log: KafkaLog, open_log: OpenLog, other: Foreigner, topic: str
) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(300))
    for _ in range(3):
        await other.transact(topic, b"x")
    assert await open_log().end(SCOPE) == 304


# --- giving up --------------------------------------------------------------------------------------------------------


def sockets() -> int:
    """Open files of this process that are sockets."""
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += file.readlink().name.startswith("socket:")
    return count


async def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_tails_that_come_and_go_leave_nothing_behind(log: KafkaLog) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(3))
    before = sockets()
    for _ in range(10):
        tails = [log.tail(SCOPE, after=None) for _ in range(20)]
        assert await asyncio.gather(*(take(tail, 3) for tail in tails)) == [[b"0", b"1", b"2"]] * 20
        for tail in tails:
            await tail.aclose()
    await eventually(lambda: sockets() <= before + 2)
    assert not log._readers._in_use
    await eventually(lambda: not log._cluster._stopping)


async def test_an_end_that_was_asked_for_before_an_event_came_is_no_loss(open_log: OpenLog) -> None:
    log, other = open_log(), open_log()
    await log.create(SCOPE)
    count = 300
    ends: list[Position | None] = []

    async def ask() -> None:
        while not ends or ends[-1] != count - 1:
            ends.append(await log.end(SCOPE))

    async with aclosing(log.tail(SCOPE, after=None)) as tail, asyncio.TaskGroup() as group:
        asking = [group.create_task(ask()) for _ in range(4)]
        reading = group.create_task(take(tail, count))
        for event in numbered(count):
            await other.append(SCOPE, [event])
        await asyncio.wait([reading, *asking])
    assert len(ends) > count / 10


async def test_reads_that_are_given_up_half_way_leave_nothing_behind(log: KafkaLog) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(5_000))
    assert len(await read(log)) == 5_000
    before = sockets()
    for _ in range(50):
        async with aclosing(log.read(SCOPE, after=None)) as batches:
            await anext(batches)
    await eventually(lambda: sockets() <= before)
    assert len(await read(log)) == 5_000


async def first_of_tail(log: KafkaLog) -> Sequence[StoredEvent]:
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        return await anext(tail)


async def examined(log: KafkaLog) -> list[Any]:
    return [finding async for finding in log.examine([SCOPE])]


CALLS: dict[str, Callable[[KafkaLog], Any]] = {
    "create": lambda log: log.create(SCOPE),
    "scopes": lambda log: log.scopes(),
    "append": lambda log: log.append(SCOPE, numbered(2)),
    "read": read,
    "end": lambda log: log.end(SCOPE),
    "tail": first_of_tail,
    "examine": examined,
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled_anywhere_leaves_a_log_that_works(open_log: OpenLog, name: str) -> None:
    """Loop turn by loop turn, from a log that has connected to nothing yet, until a call is done before it is cancelled."""
    maker = open_log()
    await maker.create(SCOPE)
    await maker.append(SCOPE, numbered(2))
    turns, done = 0, False
    while not done:
        log = open_log()
        call = asyncio.ensure_future(CALLS[name](log))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = call.done()
        call.cancel()
        await asyncio.wait([call])
        turns += 1 + turns // 8
        async with asyncio.timeout(10):
            assert (await values(log))[:2] == [b"0", b"1"]
            await log.append(SCOPE, [Outgoing(b"later")])
            assert (await values(log))[-1] == b"later"
            await log.close()
    assert turns > 10


@pytest.mark.parametrize("name", CALLS)
async def test_a_log_that_is_closed_during_a_call_ends_it(open_log: OpenLog, name: str) -> None:
    maker = open_log()
    await maker.create(SCOPE)
    await maker.append(SCOPE, numbered(2))
    turns, done = 0, False
    while not done:
        log = open_log()
        call = asyncio.ensure_future(CALLS[name](log))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = call.done()
        async with asyncio.timeout(10):
            await log.close()
            await asyncio.wait([call])
        error = call.exception()
        assert error is None or isinstance(error, JournalError | StopAsyncIteration), repr(error)
        turns += 1 + turns // 8
        with pytest.raises(InvalidContractError):
            await log.end(SCOPE)
    gc.collect()  # what nobody closed would warn now


async def test_closing_during_a_long_read_ends_it(log: KafkaLog) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(20_000))
    async with aclosing(log.read(SCOPE, after=None)) as batches:
        await anext(batches)
        await log.close()
        with pytest.raises(InvalidContractError) as caught:
            async for _ in batches:
                pass
    assert caught.value.code is Code.CLOSED


# --- brokers that stand still or die ------------------------------------------------------------------------------------

DEADLINE = timedelta(seconds=1)
PATIENCE = 4 * DEADLINE.total_seconds()  # a call may be several requests; it must not wait for ever
FAULTS = ["stopped", "killed"]


async def strike(service: KafkaService, fault: str) -> None:
    (node,) = service.nodes
    await asyncio.to_thread(node.stop if fault == "stopped" else node.kill)


async def heal(service: KafkaService) -> None:
    await asyncio.to_thread(service.revive)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("warm", [False, True], ids=["a fresh log", "a log in use"])
async def test_without_an_answer_every_call_ends_in_time_says_what_to_do_and_works_again(
    own_kafka: KafkaService, open_log: OpenLog, fault: str, warm: bool
) -> None:
    maker = open_log(own_kafka.servers)
    await maker.create(SCOPE)
    await maker.append(SCOPE, numbered(2))
    logs = {name: open_log(own_kafka.servers, timeout=DEADLINE) for name in CALLS if name != "examine"}
    if warm:
        for name, log in logs.items():
            await CALLS[name](log)
    await strike(own_kafka, fault)

    async def struck(name: str, log: KafkaLog) -> None:
        began = time.monotonic()
        with pytest.raises((UnavailableError, OutcomeUnknownError)) as caught:
            await CALLS[name](log)
        assert time.monotonic() - began < PATIENCE
        assert "running?" in caught.value.message or "does not answer" in caught.value.message, caught.value.message
        if not warm:
            assert isinstance(caught.value, UnavailableError), "nothing was sent, so nothing can be unknown"

    await asyncio.gather(*(struck(name, log) for name, log in logs.items()))
    await heal(own_kafka)
    for name, log in logs.items():
        await until_it_works(lambda name=name, log=log: CALLS[name](log))
        assert (await until_it_works(lambda log=log: values(log)))[:2] == [b"0", b"1"]


async def until_it_works(call: Callable[[], Any]) -> Any:
    """A broker that was just started needs a moment for its first answers."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await call()
            except (UnavailableError, OutcomeUnknownError):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_tail_outlives_its_broker_and_misses_nothing(
    own_kafka: KafkaService, open_log: OpenLog, fault: str
) -> None:
    log = open_log(own_kafka.servers)
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(2))
    short = open_log(own_kafka.servers, timeout=DEADLINE)
    async with aclosing(short.tail(SCOPE, after=None)) as tail:
        assert await take(tail, 2) == [b"0", b"1"]
        waiting = asyncio.ensure_future(take(tail, 1, seconds=60))
        await strike(own_kafka, fault)
        with pytest.raises(UnavailableError):
            await short.end(SCOPE)
        assert not waiting.done()
        await heal(own_kafka)
        await until_it_works(lambda: log.append(SCOPE, [Outgoing(b"2")]))
        assert (await waiting)[0] == b"2"


@pytest.mark.parametrize("fault", FAULTS)
async def test_closing_does_not_wait_for_a_broker(own_kafka: KafkaService, open_log: OpenLog, fault: str) -> None:
    log = open_log(own_kafka.servers, timeout=DEADLINE)
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(2))
    tail = log.tail(SCOPE, after=None)
    await take(tail, 2)
    await strike(own_kafka, fault)
    appending = log.append(SCOPE, numbered(1))
    waiting = asyncio.ensure_future(anext(tail))
    began = time.monotonic()
    await log.close()
    assert time.monotonic() - began < PATIENCE
    with pytest.raises(JournalError):
        await appending
    with pytest.raises(StopAsyncIteration):
        await waiting
