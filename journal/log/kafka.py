"""The cluster's log: one Kafka topic a scope, one partition a topic.

Failure model. A broker may die at any moment, the leader move, an acknowledgement get lost, a request wait in a network
and arrive when nobody expects it any more, a process be stopped for hours and go on. Relied on: the order of one
partition; that what a majority of its replicas has is not lost (`acks=all`, `min.insync.replicas`, no unclean election);
that a record batch is there whole or not at all. Not relied on: that an acknowledgement arrives or is true (its offset
is never looked at), that a producer which was given up stays silent, that a topic is still the one it was.

What Kafka cannot say is not guessed. An append that was handed to a producer and not confirmed is unknown, whatever the
error is called; that producer is replaced. There is no conditional append and no transaction here (one an event costs a
hundred times a plain append, and would decide nothing that admission does not): which events count is decided by who
reads them. Transaction markers and other gaps that someone else may have left take offsets, so positions have gaps, and
the end of the log is where its last event is, not where its last offset is.

What history rests on is verified before a topic is written for the first time (see kafka_topics). A topic whose first
events were deleted, that ends before what was read, or that has another event at the position read last, stops
everything: `HistoryLostError`. A tail looks for that at intervals, every other operation when it begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from journal.errors import Code, JournalError, failure
from journal.identities import Position, Scope
from journal.log.kafka_cluster import KafkaCluster, closed
from journal.log.kafka_directory import Directory, lost
from journal.log.kafka_examination import examine
from journal.log.kafka_reading import Extent, Offsets, Reader, Readers, replaced
from journal.log.kafka_security import KafkaSecurity
from journal.log.kafka_topics import OVERHEAD_BYTES, Rules, Topic, Topics
from journal.log.kafka_writing import Producers, TopicWriter
from journal.ports import Finding, Outgoing, StoredEvent

_READ_BYTES: Final = 4 * 2**20
_LOOK_SECONDS: Final = 5.0  # between two looks of a tail at whether the topic is still what it was
_IDLE_SECONDS: Final = 1.0
_FIRST_WAIT_SECONDS: Final = 0.01


class KafkaLog:
    """`Log` on an Apache Kafka cluster. Belongs to the event loop that it is first used on.

    `servers` are `host:port`; a scope's topic is `<prefix>.<scope>`, with `replication` replicas (a lower factor must be
    said). `timeout` bounds every call. With `read_only`, nothing is made or written. `create` says whether topics may be
    made.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        prefix: str = "journal",
        replication: int = 3,
        security: KafkaSecurity | None = None,
        timeout: timedelta = timedelta(seconds=5),
        max_event_bytes: int = 16 * 2**20,
        create: bool = True,
        read_only: bool = False,
    ) -> None:
        self._cluster = KafkaCluster(servers, security, timeout)
        self._directory = Directory(self._cluster)
        self._topics = Topics(self._cluster, self._directory, Rules(prefix, replication, max_event_bytes))
        self._offsets = Offsets(self._cluster, self._directory)
        self._readers = Readers(self._cluster, max(_READ_BYTES, max_event_bytes + OVERHEAD_BYTES))
        self._producers = Producers(self._cluster)
        self._writers: dict[Scope, TopicWriter] = {}
        self._verified: dict[Scope, Topic] = {}  # by `create`, for the first append
        self._last: dict[Scope, StoredEvent] = {}  # the newest event that was read, by which a topic is known again
        self._may_create = create and not read_only
        self._read_only = read_only
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    async def create(self, scope: Scope) -> None:
        """See `Log.create`. Raises `journal_unsafe_log` when there is a topic that could lose history."""
        self._check_open()
        if self._read_only:
            raise self._is_read_only()
        if self._may_create:
            await self._topics.create(scope)
        self._verified[scope] = await self._topics.verify(scope)

    async def scopes(self) -> Sequence[Scope]:
        """See `Log.scopes`."""
        self._check_open()
        found = (self._topics.rules.scope(topic) for topic in await self._topics.names())
        return sorted(scope for scope in found if scope is not None)

    def append(self, scope: Scope, events: Sequence[Outgoing]) -> Awaitable[None]:
        """See `Log.append`. Events that take more than a batch (1 MiB) are next to each other in parts only."""
        self._check_open()
        if self._read_only:
            raise self._is_read_only()
        writer = self._writers.get(scope)
        if writer is None:
            writer = self._writers[scope] = TopicWriter(
                self._cluster, self._producers, self._topics.rules.topic(scope), partial(self._verify, scope)
            )
        return writer.append(events)

    async def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """See `Log.read`."""
        topic, extent = await self._begin(scope, after)
        if extent.end == 0:
            return
        reader = await self._readers.take(topic, after or 0)
        try:
            async for batch in self._events(reader, scope, after, extent.end):
                yield batch
        except GeneratorExit:
            pass  # who reads has had enough
        except BaseException:
            self._readers.discard(reader)
            raise
        self._readers.give_back(reader)

    async def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """See `Log.tail`."""
        topic, _ = await self._begin(scope, after)
        if after is not None:
            await self._recognise(scope, topic, after)
        reader = await self._readers.follow(topic, 0 if after is None else after + 1)
        next_look = time.monotonic() + _LOOK_SECONDS
        try:
            while True:
                batch = await reader.next(_IDLE_SECONDS)
                if batch:
                    self._remember(scope, batch[-1])
                    yield batch
                if time.monotonic() >= next_look or not reader.is_known:
                    await self._look(scope, topic)
                    next_look = time.monotonic() + _LOOK_SECONDS
        except JournalError:
            if not self._closed:
                raise
        finally:
            self._readers.discard(reader)

    async def end(self, scope: Scope) -> Position | None:
        """See `Log.end`."""
        last = self._last.get(scope)  # of before: a tail may meanwhile read beyond what is answered
        topic, extent = await self._begin(scope, None)
        if last is not None:
            self._check_reaches(topic, extent, last)
            if last.position == extent.end - 1:
                return last.position
        return await self._last_event(topic, extent.end) if extent.end else None

    def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:
        """See `Examined.examine`."""
        return examine(self._cluster, self._topics, self._offsets, scopes)

    async def close(self) -> None:
        """See `Log.close`. Waits for appends that are under way, within the deadline."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close kafka log")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed = True
        if self._writers:
            drains = [asyncio.create_task(writer.drain()) for writer in self._writers.values()]
            await asyncio.wait(drains, timeout=self._cluster.timeout)
        await self._cluster.end_calls()
        for part in (self._readers, self._producers, self._topics, self._directory):
            part.close()
        await self._cluster.close()

    async def _verify(self, scope: Scope) -> Topic:
        return self._verified.pop(scope, None) or await self._topics.verify(scope)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _begin(self, scope: Scope, after: Position | None) -> tuple[str, Extent]:
        """The topic of a scope and its extent, which must reach at least to `after`."""
        self._check_open()
        topic = self._topics.rules.topic(scope)
        last = self._last.get(scope)
        extent = await self._offsets.extent(topic, last=max(after or -1, last.position if last else -1))
        if extent is None:
            raise self._topics.unknown(scope)
        if after is not None and after >= extent.end:
            raise lost(topic, f"it ends before offset {after}, which was read from it")
        return topic, extent

    async def _events(
        self, reader: Reader, scope: Scope, after: Position | None, end: int
    ) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """What lies behind `after` and before the offset `end`; the event at `after` must be the one that was read."""
        while reader.offset < end:
            batch = await self._progress(reader)
            if after is not None:
                self._check_same(scope, batch, after)
                batch, after = batch[1:], None
            if batch and batch[-1].position >= end:
                batch = [event for event in batch if event.position < end]
            if batch:
                self._remember(scope, batch[-1])
                yield batch

    async def _progress(self, reader: Reader) -> list[StoredEvent]:
        """The next events, or none when the reader passed over something without."""
        offset, deadline = reader.offset, time.monotonic() + self._cluster.timeout
        wait = _FIRST_WAIT_SECONDS
        while time.monotonic() < deadline:
            batch = await reader.next(wait)  # which waits for events, also when it has passed over other things
            if batch or reader.offset > offset:
                return batch
            wait = min(2 * wait, _IDLE_SECONDS)
        raise self._cluster.meaning("read", TimeoutError())

    async def _recognise(self, scope: Scope, topic: str, position: Position) -> None:
        """Raise unless the event at `position` is still the one that was read there."""
        reader = await self._readers.take(topic, position)
        try:
            self._check_same(scope, await self._progress(reader), position)
        except BaseException:
            self._readers.discard(reader)
            raise
        self._readers.give_back(reader)

    def _check_same(self, scope: Scope, batch: Sequence[StoredEvent], position: Position) -> None:
        """Raise unless what was read from `position` on begins with the event that was read there before."""
        last = self._last.get(scope)
        if not batch or batch[0].position != position or (last and last.position == position and last != batch[0]):
            raise replaced(self._topics.rules.topic(scope), position, scope)

    def _remember(self, scope: Scope, event: StoredEvent) -> None:
        last = self._last.get(scope)
        if last is None or last.position < event.position:
            self._last[scope] = event

    async def _look(self, scope: Scope, topic: str) -> None:
        """Whether the topic is still what it was, as far as can be seen from outside."""
        last = self._last.get(scope)
        try:
            extent = await self._offsets.extent(topic, last=last.position if last else -1)
            if extent is not None and last is not None:
                self._check_reaches(topic, extent, last)
                await self._recognise(scope, topic, last.position)
        except JournalError as error:
            if error.code is Code.HISTORY_LOST:
                raise
            # Nobody answers: that is not for a tail to report, which goes on as soon as somebody does.

    def _check_reaches(self, topic: str, extent: Extent, last: StoredEvent) -> None:
        if last.position >= extent.end:
            raise lost(topic, f"it ends at offset {extent.end}, but an event at {last.position} was read from it")

    async def _last_event(self, topic: str, end: int) -> Position | None:
        """Position of the last event before the offset `end`: the last offsets may hold none."""
        span = 1
        while True:
            begin = max(0, end - span)
            reader = await self._readers.take(topic, begin)
            last: Position | None = None
            try:
                while reader.offset < end:
                    batch = [event for event in await self._progress(reader) if event.position < end]
                    last = batch[-1].position if batch else last
            except BaseException:
                self._readers.discard(reader)
                raise
            self._readers.give_back(reader)
            if last is not None or begin == 0:
                return last
            span *= 16

    # --- guards -------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise closed()

    def _is_read_only(self) -> JournalError:
        return failure(Code.READ_ONLY, "the log was opened for reading only")
