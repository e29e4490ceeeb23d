"""The proxy of the tests delivers, holds, delays and cuts as it says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from tests.services.proxy import Proxy, proxy


@dataclass
class Echo:
    """A service that answers each byte with itself until it is sent `end`, and knows what each connection sent."""

    port: int = 0
    received: list[bytearray] = field(default_factory=list)
    ended: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = bytearray()
        self.received.append(received)
        try:
            while data := await reader.read(1_000):
                received += data
                if data == b"end":
                    break
                writer.write(data)
        except ConnectionError:
            pass  # it was cut
        finally:
            writer.transport.abort()
            self.ended.put_nowait(bytes(received))


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    service = Echo()
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
    service.port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(30), server:
        yield service


@pytest.fixture
async def passing(echo: Echo) -> AsyncIterator[Proxy]:
    async with proxy(f"127.0.0.1:{echo.port}") as passing:
        yield passing


@asynccontextmanager
async def connected(passing: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*passing.address.split(":"))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def test_bytes_pass_both_ways_and_are_counted(passing: Proxy) -> None:
    async with connected(passing) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
    assert passing.requests.passed == passing.answers.passed == 5


async def test_much_passes_whole(passing: Proxy) -> None:
    much = bytes(range(256)) * 20_000
    async with connected(passing) as (reader, writer):
        writer.write(much)
        assert await reader.readexactly(len(much)) == much


async def test_a_held_request_reaches_the_service_on_release(passing: Proxy, echo: Echo) -> None:
    passing.hold_requests()
    async with connected(passing) as (reader, writer):
        writer.write(b"late")
        await passing.requests.held.wait()
        assert b"".join(echo.received) == b""
        passing.release()
        assert await reader.readexactly(4) == b"late"


async def test_a_held_answer_is_late_though_its_request_was_served(passing: Proxy, echo: Echo) -> None:
    passing.hold_answers()
    async with connected(passing) as (reader, writer):
        writer.write(b"late")
        await passing.answers.held.wait()
        assert echo.received == [b"late"]
        passing.release()
        assert await reader.readexactly(4) == b"late"


async def test_what_a_client_sent_is_delivered_whole_after_it_was_killed(passing: Proxy, echo: Echo) -> None:
    passing.hold()
    async with connected(passing) as (_, writer):
        writer.transport.set_write_buffer_limits(0)  # `drain` waits until all of it has been sent
        writer.write(b"a" * 100_000)
        await passing.requests.held.wait()
        writer.write(b"b" * 100_000)
        await writer.drain()
    passing.release()
    assert await echo.ended.get() == b"a" * 100_000 + b"b" * 100_000


async def test_what_is_held_on_a_connection_that_is_cut_is_lost(passing: Proxy, echo: Echo) -> None:
    passing.hold_requests()
    async with connected(passing) as (reader, writer):
        writer.write(b"lost")
        await passing.requests.held.wait()
        await passing.cut()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
    assert await echo.ended.get() == b""


@pytest.mark.parametrize("count", [0, 3, 5])
async def test_a_connection_is_cut_after_so_many_bytes_of_requests(passing: Proxy, echo: Echo, count: int) -> None:
    passing.requests.cut_after(count)
    async with connected(passing) as (_, writer):
        writer.write(b"hello")
        assert await echo.ended.get() == b"hello"[:count]


@pytest.mark.parametrize("count", [0, 3, 5])
async def test_a_connection_is_cut_after_so_many_bytes_of_answers(passing: Proxy, echo: Echo, count: int) -> None:
    passing.answers.cut_after(count)
    async with connected(passing) as (reader, writer):
        writer.write(b"hello")
        assert await reader.read() == b"hello"[:count]
        assert await echo.ended.get() == b"hello"


async def test_one_connection_is_cut_and_the_next_one_is_not(passing: Proxy) -> None:
    passing.answers.cut_after(7)
    async with connected(passing) as (reader, writer):
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write(b"again")
        assert await reader.read() == b"ag"
    async with connected(passing) as (reader, writer):
        writer.write(b"hello, hello")
        assert await reader.readexactly(12) == b"hello, hello"


async def test_a_delay_holds_bytes_back_and_keeps_their_order(passing: Proxy) -> None:
    passing.answers.delay = timedelta(seconds=0.1)
    async with connected(passing) as (reader, writer):
        start = time.monotonic()
        for number in range(10):
            writer.write(b"%d" % number)
            await asyncio.sleep(0)
        assert await reader.readexactly(10) == b"0123456789"
        assert time.monotonic() - start >= 0.1


async def test_connections_are_refused_until_they_are_not(passing: Proxy) -> None:
    passing.refuses = True
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with connected(passing) as (reader, _):
            await reader.readexactly(1)
    passing.refuses = False
    async with connected(passing) as (reader, writer):
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"


async def test_a_service_that_is_not_there_ends_the_connection(passing: Proxy) -> None:
    passing.target = "127.0.0.1:1"
    async with connected(passing) as (reader, _):
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_a_service_that_ends_a_connection_ends_it_for_the_client(passing: Proxy, echo: Echo) -> None:
    async with connected(passing) as (reader, writer):
        writer.write(b"end")
        assert await reader.read() == b""
    assert await echo.ended.get() == b"end"
