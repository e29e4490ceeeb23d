"""A TCP proxy that cuts connections at a byte, or keeps answers back until it is told to deliver them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cut:
    """Cut one connection, both ways and hard, once so many bytes of one direction have passed."""

    questions: int | None = None
    answers: int | None = None


@dataclass
class CuttingProxy:
    """Passes connections on to one port of this machine. The next connections meet `cuts`, one each, in order."""

    target: int
    port: int = 0
    cuts: list[Cut] = field(default_factory=list)
    questions: int = 0
    answers: int = 0
    connections: int = 0
    _delivering: asyncio.Event = field(default_factory=asyncio.Event)
    kept_back: asyncio.Event = field(default_factory=asyncio.Event)

    def keep_answers_back(self) -> None:
        """From now on no answer is delivered; `kept_back` is set when there is one."""
        self._delivering.clear()
        self.kept_back.clear()

    def deliver(self) -> None:
        """Deliver what was kept back, and go on."""
        self._delivering.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        cut = self.cuts.pop(0) if self.cuts else Cut()
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self.target)
        ways = (
            asyncio.create_task(self._ask(reader, upstream_writer, cut.questions)),
            asyncio.create_task(self._answer(upstream_reader, writer, cut.answers)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, upstream_writer):
                end.transport.abort()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
        async for count in _passed_on(reader, writer, limit):
            self.questions += count

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
        async for count in _passed_on(reader, writer, limit, self._delivered):
            self.answers += count

    async def _delivered(self) -> None:
        if not self._delivering.is_set():
            self.kept_back.set()
            await self._delivering.wait()


async def _at_once() -> None:
    pass


async def _passed_on(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    limit: int | None,
    delivered: Callable[[], Awaitable[None]] = _at_once,
) -> AsyncIterator[int]:
    """Pass bytes on up to a limit; gives how many went at a time."""
    passed = 0
    while limit is None or passed < limit:
        data = await reader.read(65_536 if limit is None else limit - passed)
        if not data:
            return
        await delivered()
        writer.write(data)
        await writer.drain()
        passed += len(data)
        yield len(data)


@asynccontextmanager
async def cutting_proxy(target: int) -> AsyncIterator[CuttingProxy]:
    """A proxy for the block."""
    proxy = CuttingProxy(target)
    proxy.deliver()
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()
