"""A TCP proxy in the test's own event loop: what is on its way can be held, delivered later, or cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_CHUNK: Final = 65_536


class _Gate:
    """One direction: open, or holding what comes."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self.passed = 0

    def close(self) -> None:
        self.held.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def passage(self, count: int) -> None:
        if not self._open.is_set():
            self.held.set()
            await self._open.wait()
        self.passed += count


class Proxy:
    """Passes connections on to one address. What is held is delivered on `release`, also when its client has gone."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.requests = _Gate()
        self.answers = _Gate()
        self.refuses = False
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> None:
        """Listen on a port of this machine; 0 takes a free one."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port)

    @property
    def address(self) -> str:
        """`host:port` where it listens."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold_requests(self) -> None:
        """From now on nothing reaches the service; `requests.held` is set when there is something."""
        self.requests.close()

    def hold_answers(self) -> None:
        """From now on nothing comes back; `answers.held` is set when there is something."""
        self.answers.close()

    def release(self) -> None:
        """Deliver what was held, and go on."""
        self.requests.open()
        self.answers.open()

    async def cut(self) -> None:
        """Cut every connection hard; what is held on it is lost."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        if connections:
            await asyncio.wait(connections)

    async def close(self) -> None:
        """Cut everything and listen no more."""
        if self._server is not None:
            self._server.close()
            await self.cut()
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._pass_on(reader, writer), name="proxied connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self.target.split(":")
        ends, ways = [writer], []
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
            ends.append(upstream_writer)
            ways = [
                asyncio.create_task(_pump(reader, upstream_writer, self.requests)),
                asyncio.create_task(_pump(upstream_reader, writer, self.answers)),
            ]
            # A client that goes away does not take back what it has sent: that is delivered before this ends.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # the client sees its connection end
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: _Gate) -> None:
    try:
        while data := await reader.read(_CHUNK):
            await gate.passage(len(data))
            writer.write(data)
            await writer.drain()
        await gate.passage(0)
    except OSError:
        return


@asynccontextmanager
async def proxy(target: str, port: int = 0) -> AsyncIterator[Proxy]:
    """A proxy for the block."""
    passing = Proxy(target)
    await passing.start(port)
    try:
        yield passing
    finally:
        await passing.close()
