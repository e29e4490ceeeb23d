"""The contract of `Log`, held against every adapter."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from journal.errors import Code, HistoryLostError, InvalidContractError, JournalError
from journal.identities import Position, Scope
from journal.ports import Log, Outgoing, StoredEvent
from tests.contract.conftest import LogSite

SCOPE = Scope("orders")
ROOT = Path(__file__).parents[2]


def events(*data: bytes) -> list[Outgoing]:
    return [Outgoing(one) for one in data]


def numbered(count: int, prefix: str = "e") -> list[Outgoing]:
    return events(*(f"{prefix}{number}".encode() for number in range(count)))


async def read_all(log: Log, scope: Scope = SCOPE, after: Position | None = None) -> list[StoredEvent]:
    async with aclosing(log.read(scope, after=after)) as batches:
        return [event async for batch in batches for event in batch]


async def take(tail: AsyncGenerator[Sequence[StoredEvent], None], count: int, seconds: float = 20) -> list[StoredEvent]:
    """The next `count` events of a tail; fails when they do not come."""
    taken: list[StoredEvent] = []
    async with asyncio.timeout(seconds):
        while len(taken) < count:
            taken += await anext(tail)
    return taken


def data_of(stored: Sequence[StoredEvent]) -> list[bytes]:
    return [event.data for event in stored]


# --- scopes -----------------------------------------------------------------------------------------------------------


async def test_a_new_log_has_no_scopes(log: Log) -> None:
    assert list(await log.scopes()) == []


async def test_creating_a_scope_again_changes_nothing(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, events(b"one"))
    await log.create(SCOPE)
    assert list(await log.scopes()) == [SCOPE]
    assert data_of(await read_all(log)) == [b"one"]


async def test_scopes_are_sorted_and_seen_by_every_instance(log_site: LogSite) -> None:
    writer, reader = log_site.open(), log_site.open()
    for name in ("zebra", "Alpha", "mid.dle", "0-first"):
        await writer.create(Scope(name))
    assert list(await reader.scopes()) == sorted(["zebra", "Alpha", "mid.dle", "0-first"])
    assert all(isinstance(scope, Scope) for scope in await reader.scopes())


async def test_instances_that_create_one_scope_at_once_agree(log_site: LogSite) -> None:
    logs = [log_site.open() for _ in range(8)]
    await asyncio.gather(*(log.create(SCOPE) for log in logs))
    assert list(await logs[0].scopes()) == [SCOPE]


@pytest.mark.parametrize("operation", ["append", "read", "tail", "end"])
async def test_an_unknown_scope_is_refused_by_name(log: Log, operation: str) -> None:
    calls = {
        "append": lambda: log.append(SCOPE, events(b"one")),
        "read": lambda: anext(log.read(SCOPE, after=None)),
        "tail": lambda: anext(log.tail(SCOPE, after=None)),
        "end": lambda: log.end(SCOPE),
    }
    await log.create(Scope("another"))
    with pytest.raises(InvalidContractError, match=SCOPE) as caught:
        await calls[operation]()
    assert caught.value.code is Code.UNKNOWN_SCOPE


async def test_an_append_to_an_unknown_scope_leaves_those_beside_it_alone(log: Log) -> None:
    await log.create(SCOPE)
    outcomes = await asyncio.gather(
        log.append(SCOPE, events(b"before")),
        log.append(Scope("missing"), events(b"lost")),
        log.append(SCOPE, events(b"behind")),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), InvalidContractError, type(None)]
    assert data_of(await read_all(log)) == [b"before", b"behind"]


async def test_scopes_do_not_see_each_other(log: Log) -> None:
    scopes = [Scope(f"scope-{number}") for number in range(50)]
    for scope in scopes:
        await log.create(scope)
    await asyncio.gather(*(log.append(scope, numbered(5, f"{scope}:")) for scope in scopes for _ in range(2)))
    for scope in scopes:
        assert data_of(await read_all(log, scope)) == data_of_outgoing(numbered(5, f"{scope}:")) * 2


def data_of_outgoing(outgoing: Sequence[Outgoing]) -> list[bytes]:
    return [event.data for event in outgoing]


# --- order, batches, positions ------------------------------------------------------------------------------------------


async def test_events_come_back_exactly_and_in_the_order_of_appending(log: Log) -> None:
    await log.create(SCOPE)
    sent = [Outgoing(b"", None), Outgoing(b"\0\xff\n", b"mac"), Outgoing(b"a", b""), Outgoing(b"a", b"mac")]
    await log.append(SCOPE, sent[:1])
    await log.append(SCOPE, sent[1:])
    stored = await read_all(log)
    assert [(event.data, event.mac) for event in stored] == [(event.data, event.mac) for event in sent]


async def test_positions_grow_and_stay(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(10))
    first = await read_all(log)
    await log.append(SCOPE, numbered(10, "f"))
    again = await read_all(log_site.open())
    assert again[:10] == first
    positions = [event.position for event in again]
    assert positions == sorted(set(positions))
    assert positions[0] >= 0


async def test_an_empty_append_writes_nothing(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, [])
    assert await read_all(log) == []


async def test_the_end_is_none_and_then_the_last_position(log: Log) -> None:
    await log.create(SCOPE)
    assert await log.end(SCOPE) is None
    for _ in range(3):
        await log.append(SCOPE, numbered(4))
        assert await log.end(SCOPE) == (await read_all(log))[-1].position


async def test_reading_starts_behind_a_position(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(6))
    stored = await read_all(log)
    for index, event in enumerate(stored):
        assert await read_all(log, after=event.position) == stored[index + 1 :]


async def test_reading_behind_a_position_that_is_not_there_says_that_history_was_lost(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(2))
    last = await log.end(SCOPE)
    assert last is not None
    with pytest.raises(HistoryLostError):
        await read_all(log, after=Position(last + 1))
    with pytest.raises(HistoryLostError):
        await anext(log.tail(SCOPE, after=Position(last + 1)))


async def test_a_long_read_comes_in_batches_and_complete(log: Log) -> None:
    await log.create(SCOPE)
    for start in range(0, 9_000, 3_000):
        await log.append(SCOPE, events(*(b"%d" % number for number in range(start, start + 3_000))))
    async with aclosing(log.read(SCOPE, after=None)) as reading:
        batches = [batch async for batch in reading]
    assert len(batches) > 1
    assert all(batches)
    assert [event.data for batch in batches for event in batch] == [b"%d" % number for number in range(9_000)]


async def test_a_read_ends_at_the_end_that_it_began_with(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(5_000))
    async with aclosing(log.read(SCOPE, after=None)) as reading:
        first = await anext(reading)
        await log_site.open().append(SCOPE, events(b"later"))
        rest = [event async for batch in reading for event in batch]
    assert data_of([*first, *rest]) == data_of_outgoing(numbered(5_000))


async def test_a_read_that_is_given_up_half_way_harms_nothing(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(5_000))
    async with aclosing(log.read(SCOPE, after=None)) as reading:
        await anext(reading)
    assert len(await read_all(log)) == 5_000


async def test_events_of_several_megabytes_come_back_whole(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    large = [bytes([number]) * (4 * 2**20 + number) for number in range(4)]
    async with aclosing(log_site.open().tail(SCOPE, after=None)) as tail:
        for data in large:
            await log.append(SCOPE, [Outgoing(data, b"m" * 40)])
        assert data_of(await take(tail, 4)) == large
    assert data_of(await read_all(log)) == large


async def test_an_append_of_many_events_is_contiguous_among_appends_of_others(log_site: LogSite) -> None:
    logs = [log_site.open() for _ in range(4)]
    await logs[0].create(SCOPE)
    batches = {(who, turn): numbered(25, f"{who}.{turn}.") for who in range(4) for turn in range(10)}

    async def write(who: int) -> None:
        for turn in range(10):
            await logs[who].append(SCOPE, batches[who, turn])

    await asyncio.gather(*(write(who) for who in range(4)))
    data = data_of(await read_all(logs[0]))
    assert len(data) == 4 * 10 * 25
    for batch in batches.values():
        start = data.index(batch[0].data)
        assert data[start : start + 25] == data_of_outgoing(batch)
    for who in range(4):  # and each writer's own appends keep their order
        starts = [data.index(batches[who, turn][0].data) for turn in range(10)]
        assert starts == sorted(starts)


async def test_appends_that_are_not_awaited_in_turn_keep_the_order_of_the_calls(log: Log) -> None:
    await log.create(SCOPE)
    await asyncio.gather(*(log.append(SCOPE, events(b"%d" % number)) for number in range(500)))
    assert data_of(await read_all(log)) == [b"%d" % number for number in range(500)]


async def test_the_first_appends_of_an_instance_keep_the_order_of_the_calls(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    new = log_site.open()
    appending = []
    for number in range(300):  # some are called while it connects, some behind that
        appending.append(asyncio.ensure_future(new.append(SCOPE, events(b"%d" % number))))
        await asyncio.sleep(0)
    await asyncio.gather(*appending)
    assert data_of(await read_all(log)) == [b"%d" % number for number in range(300)]


# --- tail -------------------------------------------------------------------------------------------------------------


async def test_a_tail_brings_what_was_there_and_what_comes(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(3))
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        assert data_of(await take(tail, 3)) == [b"e0", b"e1", b"e2"]
        await log.append(SCOPE, events(b"next"))
        assert data_of(await take(tail, 1)) == [b"next"]


async def test_a_tail_of_an_empty_log_waits_for_its_first_event(log: Log) -> None:
    await log.create(SCOPE)
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        taking = asyncio.ensure_future(take(tail, 1))
        await log.append(SCOPE, events(b"first"))
        assert data_of(await taking) == [b"first"]


async def test_a_tail_from_the_end_brings_only_what_is_new(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, numbered(3))
    async with aclosing(log.tail(SCOPE, after=await log.end(SCOPE))) as tail:
        taking = asyncio.ensure_future(take(tail, 2))
        await log.append(SCOPE, events(b"here"))
        await log_site.open().append(SCOPE, events(b"elsewhere"))
        assert data_of(await taking) == [b"here", b"elsewhere"]


async def test_a_tail_brings_the_same_positions_as_a_read(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    async with aclosing(log_site.open().tail(SCOPE, after=None)) as tail:
        for number in range(20):
            await log.append(SCOPE, numbered(number % 4 + 1))
        stored = await read_all(log)
        assert await take(tail, len(stored)) == stored


async def test_a_tail_far_behind_the_end_catches_up_however_long_the_history_is(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    for start in range(0, 100_000, 10_000):
        await log.append(SCOPE, [Outgoing(b"%d" % number) for number in range(start, start + 10_000)])
    async with aclosing(log_site.open().tail(SCOPE, after=None)) as tail:
        assert data_of(await take(tail, 100_000)) == [b"%d" % number for number in range(100_000)]


async def test_a_slow_follower_misses_nothing_and_does_not_stop_the_writer(log: Log) -> None:
    await log.create(SCOPE)
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        await log.append(SCOPE, events(b"first"))
        taken = await take(tail, 1)
        for start in range(0, 50_000, 5_000):
            await log.append(SCOPE, [Outgoing(b"%d" % number) for number in range(start, start + 5_000)])
        taken += await take(tail, 50_000)
        assert data_of(taken) == [b"first", *(b"%d" % number for number in range(50_000))]


async def test_a_tail_hears_of_another_instance_while_its_own_writes_to_another_scope_all_the_time(
    log: Log, log_site: LogSite
) -> None:
    quiet, busy = Scope("quiet"), Scope("busy")
    other = log_site.open()
    for scope in (quiet, busy):
        await log.create(scope)

    async def write_on() -> None:
        while True:
            await log.append(busy, events(b"noise"))

    async with aclosing(log.tail(quiet, after=None)) as tail:
        writing = asyncio.create_task(write_on())
        try:
            await other.append(quiet, events(b"heard"))
            assert data_of(await take(tail, 1, seconds=5)) == [b"heard"]
        finally:
            writing.cancel()
            await asyncio.wait([writing])


async def test_many_tails_of_many_instances_see_one_order(log_site: LogSite) -> None:
    logs = [log_site.open() for _ in range(3)]
    await logs[0].create(SCOPE)
    tails = [log.tail(SCOPE, after=None) for log in logs for _ in range(2)]
    taking = [asyncio.ensure_future(take(tail, 300)) for tail in tails]
    await asyncio.gather(*(log.append(SCOPE, events(b"%d" % n)) for n in range(100) for log in logs))
    seen = await asyncio.gather(*taking)
    for tail in tails:
        await tail.aclose()
    assert all(one == seen[0] for one in seen)
    assert seen[0] == await read_all(logs[0])


async def test_a_tail_sees_what_another_process_writes(log: Log, log_site: LogSite) -> None:
    await log.create(SCOPE)
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        script = [sys.executable, "-m", "tests.integration.scripts.append", log_site.url, SCOPE, "30"]
        writers = [asyncio.to_thread(subprocess.run, [*script, name], cwd=ROOT, check=True) for name in ("p", "q")]
        stored, *_ = await asyncio.gather(take(tail, 60, seconds=10), *writers)
        data = data_of(stored)
    for name in (b"p", b"q"):
        assert [one for one in data if one.startswith(name)] == [b"%s%d" % (name, number) for number in range(30)]
    assert data == data_of(await read_all(log))


async def test_a_tail_that_is_cancelled_leaves_the_log_usable(log: Log) -> None:
    await log.create(SCOPE)
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        taking = asyncio.ensure_future(take(tail, 1))
        await log.append(SCOPE, [])
        taking.cancel()
        await asyncio.wait([taking])
    await log.append(SCOPE, events(b"one"))
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        assert data_of(await take(tail, 1)) == [b"one"]


async def test_an_append_whose_caller_is_cancelled_is_there_whole_or_not_at_all(log: Log) -> None:
    await log.create(SCOPE)
    appending = asyncio.ensure_future(log.append(SCOPE, numbered(100)))
    await asyncio.sleep(0)
    appending.cancel()
    await asyncio.wait([appending])
    await log.append(SCOPE, events(b"behind"))
    assert len(await read_all(log)) in (1, 101)


# --- closing ----------------------------------------------------------------------------------------------------------


async def test_what_was_appended_is_there_after_closing(log_site: LogSite) -> None:
    first = log_site.open()
    await first.create(SCOPE)
    await first.append(SCOPE, numbered(3))
    await first.close()
    assert data_of(await read_all(log_site.open())) == [b"e0", b"e1", b"e2"]


async def test_closing_twice_or_unused_does_nothing(log_site: LogSite) -> None:
    log = log_site.open()
    await log.close()
    await log.close()
    used = log_site.open()
    await used.create(SCOPE)
    await used.close()
    await used.close()


async def test_closing_ends_the_tails(log: Log) -> None:
    await log.create(SCOPE)
    await log.append(SCOPE, events(b"one"))
    async with aclosing(log.tail(SCOPE, after=None)) as tail:
        await take(tail, 1)
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        await log.close()
        done, _ = await asyncio.wait([waiting], timeout=5)
        if not done:
            waiting.cancel()
            await asyncio.wait([waiting])
    assert done, "the tail goes on waiting after its log was closed"
    assert isinstance(waiting.exception(), StopAsyncIteration | JournalError)


@pytest.mark.parametrize("operation", ["create", "scopes", "append", "read", "tail", "end"])
async def test_a_closed_log_refuses_to_work(log: Log, operation: str) -> None:
    await log.create(SCOPE)
    await log.close()
    calls = {
        "create": lambda: log.create(SCOPE),
        "scopes": log.scopes,
        "append": lambda: log.append(SCOPE, events(b"one")),
        "read": lambda: anext(log.read(SCOPE, after=None)),
        "tail": lambda: anext(log.tail(SCOPE, after=None)),
        "end": lambda: log.end(SCOPE),
    }
    with pytest.raises(InvalidContractError) as caught:
        await calls[operation]()
    assert caught.value.code is Code.CLOSED


async def test_a_first_call_that_is_cancelled_leaves_one_thread_that_can_be_closed(log_site: LogSite) -> None:
    log = log_site.open()
    for _ in range(3):
        first = asyncio.ensure_future(log.scopes())
        await asyncio.sleep(0)  # it is connecting now
        first.cancel()
        await asyncio.wait([first])
    assert list(await log.scopes()) == []
    closing = asyncio.create_task(log.close())
    done, _ = await asyncio.wait([closing], timeout=5)
    assert done, "closing waits for a thread that nobody told to end"


async def test_closing_waits_for_appends_that_are_under_way(log_site: LogSite) -> None:
    log = log_site.open()
    await log.create(SCOPE)
    appending = [asyncio.ensure_future(log.append(SCOPE, numbered(50, f"{n}."))) for n in range(4)]
    await asyncio.sleep(0)
    await log.close()
    async with asyncio.timeout(5):
        await asyncio.gather(*appending)
    assert len(await read_all(log_site.open())) == 200
