"""A journal on a Kafka that fails: what its callers are told, when, and what is in the log afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path

import pytest

from journal.admission import Void
from journal.errors import Code, FencedError, OutcomeUnknownError, UnavailableError
from journal.journal import Journal
from tests.desk import BOB, LONG, SHORT, SLACK_SECONDS, Desk, desk_at, stream, until
from tests.factories import SCOPE
from tests.numbered import NumberedWriter, contradictions, numbers_of
from tests.services.kafka import KafkaService
from tests.services.proxy import Proxy


@pytest.fixture
async def desk(
    own_kafka: KafkaService,
    proxied_kafka: Proxy,
    fresh_prefix: str,
    journal_file: Path,
    caplog: pytest.LogCaptureFixture,
) -> AsyncIterator[Desk]:
    """Before one node, through a proxy."""
    async with desk_at(fresh_prefix, journal_file, own_kafka.servers, [proxied_kafka.address], caplog) as made:
        yield made


# --- lost acknowledgements ----------------------------------------------------------------------------------------------


async def test_an_append_whose_answer_is_lost_with_its_connection_gets_its_verdict_in_time(
    desk: Desk, proxied_kafka: Proxy
) -> None:
    writer = await desk.open()
    written = await desk.written()
    proxied_kafka.hold_answers()
    writing = asyncio.ensure_future(writer.write())
    await written()
    await proxied_kafka.cut()
    proxied_kafka.release()
    await writing
    assert writer.account.counted
    await desk.check()


async def test_an_append_whose_answer_is_late_is_unknown_in_time_and_told_by_its_receipt_then(
    desk: Desk, proxied_kafka: Proxy
) -> None:
    writer = await desk.open(SHORT)
    written = await desk.written()
    proxied_kafka.hold_answers()
    began = time.monotonic()
    writing = asyncio.ensure_future(writer.write())
    await written()
    await writing
    assert time.monotonic() - began < SHORT.total_seconds() + SLACK_SECONDS
    (receipt,) = writer.account.unknown.values()
    assert receipt.verdict is None
    proxied_kafka.release()
    assert (await asyncio.wait_for(receipt.settled(), 10)).sequence == 5  # type: ignore[union-attr]
    await desk.check()
    assert writer.account.found == 1


async def test_an_append_that_waits_in_the_network_is_unknown_and_counts_or_not_when_it_arrives(
    desk: Desk, proxied_kafka: Proxy
) -> None:
    writer = await desk.open(SHORT)
    proxied_kafka.hold_requests()
    await writer.write()
    assert list(writer.account.unknown) == [1]
    proxied_kafka.release()
    await desk.check()


async def test_a_broker_killed_between_append_and_answer_gets_its_caller_a_verdict_once_it_is_back(
    desk: Desk, proxied_kafka: Proxy, own_kafka: KafkaService
) -> None:
    writer = await desk.open()
    written = await desk.written()
    proxied_kafka.hold_answers()
    writing = asyncio.ensure_future(writer.write())
    await written()
    await asyncio.to_thread(own_kafka.nodes[0].kill)
    await proxied_kafka.cut()
    proxied_kafka.release()
    await asyncio.to_thread(own_kafka.revive)
    await writing
    assert writer.account.counted or writer.account.unknown
    await desk.check()
    assert 1 in writer.account.counted


@pytest.mark.parametrize("arrives", [False, True])
async def test_a_broker_killed_before_an_append_reached_it_gets_its_caller_a_verdict_once_it_is_back(
    desk: Desk, proxied_kafka: Proxy, own_kafka: KafkaService, arrives: bool
) -> None:
    """What the network still has is lost with the connection, or meets the broker's successor."""
    writer = await desk.open()
    proxied_kafka.hold_requests()
    writing = asyncio.ensure_future(writer.write())
    await proxied_kafka.requests.held.wait()
    await asyncio.to_thread(own_kafka.nodes[0].kill)
    if not arrives:
        await proxied_kafka.cut()
    proxied_kafka.release()
    await asyncio.to_thread(own_kafka.revive)
    await writing
    assert 1 in writer.account.counted
    await desk.check()


async def test_a_broker_killed_under_a_stream_of_appends_takes_nothing_that_was_confirmed(
    desk: Desk, own_kafka: KafkaService
) -> None:
    writer = await desk.open(SHORT)
    for _ in range(2):
        streaming = asyncio.ensure_future(stream(writer))
        await until(lambda before=writer.number: writer.number > before + 200)
        await asyncio.to_thread(own_kafka.nodes[0].kill)
        await streaming
        await asyncio.to_thread(own_kafka.revive)
        await writer.recover()
    await desk.check()


# --- overtaken ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("timeout", [SHORT, LONG])
async def test_a_produce_request_that_is_delivered_after_the_takeover_is_void_for_everybody(
    desk: Desk,
    proxied_kafka: Proxy,
    timeout: timedelta,  # noqa: ASYNC109  (the log's)
    count: int,
) -> None:
    zombie = await desk.open(timeout, ttl=SHORT / 3, forgotten=True)
    await zombie.write()
    proxied_kafka.hold_requests()
    writing = asyncio.ensure_future(zombie.write(count))
    await proxied_kafka.requests.held.wait()

    successor = NumberedWriter(desk.journal(desk.known), SCOPE, BOB, account=zombie.account, number=100)
    await successor.take(SHORT)
    await successor.write(2)
    if timeout is SHORT:
        await writing
        assert zombie.account.unknown.keys() == {2}
    proxied_kafka.release()
    await writing
    for receipt in zombie.account.unknown.values():
        with pytest.raises(FencedError) as fenced:
            await asyncio.wait_for(receipt.settled(), 10)
        assert fenced.value.details["newer_fence"] == successor.lease.fence
    zombie.account.settle()

    assert zombie.account.void | zombie.account.unwritten == set(range(2, 2 + count))
    assert zombie.account.counted.keys() == {1, 101, 102}
    await zombie.write()
    assert zombie.number in zombie.account.void, "it has learnt that it was overtaken"
    with pytest.raises(FencedError):
        zombie.lease.check()
    await successor.write()
    for reader in (desk.journal(desk.known), desk.journal(desk.servers)):
        numbers = await numbers_of(reader, SCOPE)
        assert zombie.account.void - {zombie.number} <= numbers.present, "it was delivered"
        assert list(contradictions(zombie.account, numbers)) == []
        assert {reason async for reason in void_reasons(reader)} == {Code.STALE_PARENT}
        assert (await reader.state(SCOPE)).canonical() == (await successor.journal.state(SCOPE)).canonical()


async def void_reasons(journal: Journal) -> AsyncIterator[Code]:
    """Why events of the scope do not count."""
    async with aclosing(journal.replay(SCOPE)) as events:
        async for _, verdict in events:
            if isinstance(verdict, Void):
                yield verdict.reason


# --- connections cut at each stage --------------------------------------------------------------------------------------

POINTS = 24  # at which the bytes of one direction are cut


@pytest.mark.parametrize("direction", ["requests", "answers"])
async def test_a_connection_cut_at_any_byte_of_an_append_costs_no_verdict(
    desk: Desk, proxied_kafka: Proxy, direction: str
) -> None:
    writer = await desk.open()
    way = getattr(proxied_kafka, direction)
    before = way.passed
    await writer.write()
    await asyncio.sleep(0.1)  # requests and answers of the tail belong to it
    total = way.passed - before
    for point in range(POINTS):
        way.cut_after(1 + total * point // POINTS)
        await writer.write(1 + point % 3)
        assert not writer.account.unknown
        assert not writer.account.void
        assert not writer.lease.in_doubt
    await desk.check()


@pytest.mark.parametrize("direction", ["requests", "answers"])
async def test_a_connection_cut_at_any_byte_from_connecting_to_closing_leaves_a_log_that_can_be_written(
    desk: Desk, proxied_kafka: Proxy, direction: str
) -> None:
    """A new process at each point: it connects, asks what there is, takes the lease, writes, reads and gives it back."""
    writer = await desk.open()
    await writer.journal.close()
    way = getattr(proxied_kafka, direction)
    before = way.passed
    await visit(desk, writer)
    total = way.passed - before
    for point in range(POINTS):
        way.cut_after(1 + total * point // POINTS)
        await visit(desk, writer)
    writer.journal = desk.journal(desk.servers)
    await writer.take()
    await desk.check()


async def visit(desk: Desk, writer: NumberedWriter) -> None:
    """Do all that there is as a new process; goes on at whatever is not confirmed."""
    writer.journal = desk.journal(desk.servers)
    while True:
        try:
            await writer.take()
            break
        except (UnavailableError, OutcomeUnknownError):
            pass
    await writer.write(2)
    if writer.lease.in_doubt:
        await writer.recover()
    await writer.journal.close()
