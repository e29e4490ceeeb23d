"""A TCP proxy in the test's own event loop: what is on its way can be held, delivered later, delayed, or cut off.

What arrives is taken from its connection at once and queued, also while it is held. So what a client has sent is delivered
whole on `release`, as a network delivers it, however its sender has ended meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta


class Direction:
    """One direction of every connection: to the service, or back from it."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.passed = 0
        self.delay = timedelta()
        self._open = asyncio.Event()
        self._open.set()
        self._left: int | None = None

    def hold(self) -> None:
        """From now on nothing is delivered; `held` is set when there is something to deliver."""
        self.held.clear()
        self._open.clear()

    def release(self) -> None:
        """Deliver what was held, and go on."""
        self._open.set()

    def cut_after(self, count: int) -> None:
        """Deliver so many bytes from now on, and cut the connection over which the last of them goes."""
        self._left = count

    async def passage(self, data: bytes, arrived: float) -> tuple[bytes, bool]:
        """Wait until these bytes may be delivered. Gives those that are, and whether the connection goes on."""
        await asyncio.sleep(arrived + self.delay.total_seconds() - asyncio.get_running_loop().time())
        if not self._open.is_set():
            self.held.set()
            await self._open.wait()
        goes_on = self._left is None or len(data) < self._left
        data = data[: self._left]
        self._left = self._left - len(data) if goes_on and self._left is not None else None
        self.passed += len(data)
        return data, goes_on


class _End(asyncio.Protocol):
    """One end of a connection; `received` has what came from it and when, and last `None`."""

    transport: asyncio.Transport

    def __init__(self, made: Callable[[_End], None] = lambda end: None) -> None:
        self.received = asyncio.Queue[tuple[bytes, float] | None]()
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self.received.put_nowait((data, asyncio.get_running_loop().time()))

    def connection_lost(self, error: Exception | None) -> None:
        self.received.put_nowait(None)

    def send(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)


class Proxy:
    """Passes connections on to one address, `requests` to it and `answers` back."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.requests = Direction()
        self.answers = Direction()
        self.refuses = False
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        """Listen on a port of this machine; 0 takes a free one."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _End(self._accept), "127.0.0.1", port)

    @property
    def address(self) -> str:
        """`host:port` where it listens."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def hold_requests(self) -> None:
        """From now on nothing reaches the service; `requests.held` is set when there is something."""
        self.requests.hold()

    def hold_answers(self) -> None:
        """From now on nothing comes back; `answers.held` is set when there is something."""
        self.answers.hold()

    def hold(self) -> None:
        """From now on nothing is delivered in either direction."""
        self.hold_requests()
        self.hold_answers()

    def release(self) -> None:
        """Deliver what was held, and go on."""
        self.requests.release()
        self.answers.release()

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

    def _accept(self, client: _End) -> None:
        if self.refuses:
            client.transport.abort()
            return
        task = asyncio.create_task(self._connection(client), name="proxied connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connection(self, client: _End) -> None:
        host, port = self.target.rsplit(":", 1)
        ends = [client]
        try:
            _, service = await asyncio.get_running_loop().create_connection(_End, host, int(port))
            ends.append(service)
            await _until_one_ends(
                _pump(client, service, self.requests),
                _pump(service, client, self.answers),
            )
            for end in ends:
                end.transport.close()  # behind what was written to it
        except OSError:
            client.transport.abort()  # there is no service: the client sees its connection end
        except asyncio.CancelledError:
            for end in ends:
                end.transport.abort()
            raise


async def _until_one_ends(*ways: asyncio._CoroutineLike[None]) -> None:
    """Run both ways of a connection until one has delivered all that its sender sent before it ended."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(sender: _End, receiver: _End, direction: Direction) -> None:
    goes_on = True
    while goes_on and (received := await sender.received.get()) is not None:
        data, goes_on = await direction.passage(*received)
        receiver.send(data)


@asynccontextmanager
async def proxy(target: str, port: int = 0) -> AsyncIterator[Proxy]:
    """A proxy for the block."""
    passing = Proxy(target)
    await passing.start(port)
    try:
        yield passing
    finally:
        await passing.close()
