"""Reading one topic: where it begins and ends, its events in order, and whether it is still the same topic.

A topic may be truncated, deleted, or made again under its name while nobody looks. So whoever goes on behind a position
reads the event at it once more and compares: another event, or none, means that history was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaClient, AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    ConsumerStoppedError,
    CorruptRecordException,
    KafkaError,
    LeaderNotAvailableError,
    NoError,
    OffsetOutOfRangeError,
    for_code,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords

from journal.errors import Code, JournalError, failure
from journal.identities import Position, Scope
from journal.log.kafka_client import is_dead, tame
from journal.log.kafka_cluster import RETRY_SECONDS, KafkaCluster, closed
from journal.log.kafka_directory import DOUBT_SECONDS, Directory, lost
from journal.ports import StoredEvent
from journal.tasks import start

MAC_HEADER: Final = "journal-mac"
LATEST: Final = -1
EARLIEST: Final = -2
_IDLE_READERS: Final = 4
_BATCH: Final = 2_000  # events that are handed on at once: who folds them holds up the event loop meanwhile
_READ_WAIT_MS: Final = 5
_TAIL_WAIT_MS: Final = 500


class Extent(NamedTuple):
    """Offsets of a topic: of its first record, and behind its last. Some in between may hold no event."""

    begin: int
    end: int


class Offsets:
    """Asks leaders for the extent of topics."""

    def __init__(self, cluster: KafkaCluster, directory: Directory) -> None:
        self._cluster = cluster
        self._directory = directory
        self._leaders: dict[str, int | None] = {}

    async def extent(self, topic: str, *, last: int = -1) -> Extent | None:
        """Where a topic begins and ends now; None when there is none, and never was as far as is known here.

        When it does not reach to the offset `last`, which was read, it is asked for again before that is said: a broker
        that stood still takes itself for the leader until it hears of its successor.

        Raises:
            HistoryLostError: the topic is gone, another has its name, or its first events were deleted.
            UnavailableError: its leader does not answer.
        """
        doing = f"find the end of topic {topic}"
        extent = await self._cluster.call(doing, self._ask(topic))
        if extent is not None and extent.end <= last:
            await asyncio.sleep(DOUBT_SECONDS)
            extent = await self._cluster.call(doing, self._ask(topic))
        if extent is not None and extent.begin > 0:
            raise lost(topic, f"it starts at offset {extent.begin}: its first events were deleted")
        return extent

    async def _ask(self, topic: str) -> Extent | None:
        """Ask who leads the topic and, at the same time, who led it last: usually nothing has changed."""
        while True:
            leader = self._leaders.get(topic)
            asking = None if leader is None else start(self._ask_leader(topic, leader), f"extent of {topic}")
            try:
                listed = await self._directory.look(topic)
                if listed is None:
                    return None
                if asking is not None and listed.leader == leader and (extent := await asking) is not None:
                    return extent
            finally:
                if asking is not None:
                    asking.cancel()  # it may be a broker that stands still
            self._leaders[topic] = listed.leader
            if asking is not None or listed.leader is None:
                await asyncio.sleep(RETRY_SECONDS)

    async def _ask_leader(self, topic: str, leader: int) -> Extent | None:
        """The extent; None when this broker cannot tell now."""
        client = await self._directory.client()
        try:
            return Extent(*await asyncio.gather(*(_offset(client, leader, topic, at) for at in (EARLIEST, LATEST))))
        except KafkaError as error:
            if not error.retriable:
                raise
            return None


async def _offset(client: AIOKafkaClient, leader: int, topic: str, at: int) -> int:
    answer = await client.send(leader, OffsetRequest(-1, 0, [(topic, [(0, at)])]))
    for _, partitions in answer.topics:
        for _, code, *found in partitions:
            error = for_code(code)
            if error is not NoError:
                raise error(topic)
            return int(found[-1])
    raise LeaderNotAvailableError(topic)


class Reader:
    """One consumer, on one topic at a time, without a group."""

    def __init__(self, cluster: KafkaCluster, *, max_bytes: int, wait_ms: int) -> None:
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._partition = TopicPartition("", 0)
        self.offset = 0  # that is read next; it passes over what holds no event
        self.consumer = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_uncommitted",
            fetch_max_wait_ms=wait_ms,
            fetch_max_bytes=max_bytes,
            max_partition_fetch_bytes=max_bytes,
            **cluster.options(),
        )
        tame(self.consumer._client, cluster.options())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def begin(self, topic: str, offset: int) -> None:
        """Go to an offset of a topic."""
        partition = TopicPartition(topic, 0)
        if partition != self._partition:
            self._partition = partition
            self.consumer.assign([partition])
        self.consumer.seek(partition, offset)
        self.consumer.resume(partition)
        self.offset = offset

    @property
    def is_known(self) -> bool:
        """Whether the broker that was asked last knows the topic."""
        known: set[int] | None = self.consumer.partitions_for_topic(self._partition.topic)
        return bool(known)

    @property
    def is_dead(self) -> bool:
        """Whether it would never read anything again."""
        fetcher: Any = self.consumer._fetcher  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        client = self.consumer._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return bool(fetcher._fetch_task.done()) or is_dead(client)  # noqa: SLF001

    def rest(self) -> None:
        """Stop asking for what comes next, until another begins."""
        self.consumer.pause(self._partition)

    async def next(self, wait_seconds: float) -> list[StoredEvent]:
        """The next events; none when there are none for so long.

        Raises:
            HistoryLostError: the offset is not in the topic any more.
            UnavailableError, InvalidContractError: see `KafkaCluster.meaning`.
        """
        topic = self._partition.topic
        try:
            return await self._next(wait_seconds)
        except OffsetOutOfRangeError as error:
            raise lost(
                topic, "it does not have the offset that was to be read: it was truncated or replaced"
            ) from error
        except ConsumerStoppedError as error:
            raise closed() from error
        except KafkaError as error:
            raise self._cluster.meaning(f"read topic {topic}", error) from error

    async def _next(self, wait_seconds: float) -> list[StoredEvent]:
        try:
            fetched = await self.consumer.getmany(
                self._partition, timeout_ms=int(wait_seconds * 1_000), max_records=_BATCH
            )
        except UnicodeDecodeError:
            return await self._next_past_the_consumer()
        self.offset = await self.consumer.position(self._partition)  # does not wait: there always is one
        return _stored(fetched.get(self._partition, ()))

    async def _next_past_the_consumer(self) -> list[StoredEvent]:
        """Fetch once without the consumer, which never gets past a header whose name is not UTF-8."""
        client = self.consumer._client  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        topic = self._partition.topic
        ask = FetchRequest(0, 1, self._max_bytes, 0, [(topic, [(0, self.offset, self._max_bytes)])])
        answer: Any = await client.send(client.cluster.leader_for_partition(self._partition), ask)
        events: list[StoredEvent] = []
        offset = self.offset
        for _, partitions in answer.topics:
            for _, code, *_, data in partitions:
                error = for_code(code)
                if error is not NoError:
                    raise error(topic)
                for batch in _batches(data):
                    events += [event for event in _events_of(batch) if event.position >= self.offset]
                    offset = batch.next_offset
        self.consumer.seek(self._partition, offset)
        self.offset = offset
        return events


def _batches(data: bytes) -> Iterator[Any]:
    records: Any = MemoryRecords(data)
    while records.has_next():
        batch = records.next_batch()
        if not batch.validate_crc():
            raise CorruptRecordException
        yield batch


def _events_of(batch: Any) -> list[StoredEvent]:
    """The events of a batch; when one of them cannot be read, nobody of ours wrote it, and all of them are empty."""
    if batch.is_control_batch:
        return []
    try:
        return _stored(list(batch))
    except UnicodeDecodeError:
        return [StoredEvent(Position(offset), b"", None) for offset in range(batch.base_offset, batch.next_offset)]


def _stored(records: Sequence[Any]) -> list[StoredEvent]:
    # Goes past the constructors, which would add nothing but time: a replay makes millions of these.
    new = tuple.__new__
    return [
        new(StoredEvent, (record.offset, record.value or b"", _mac(record.headers) if record.headers else None))
        for record in records
    ]


def _mac(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    return next((value for name, value in headers if name == MAC_HEADER), None)


class Readers:
    """Readers that are ready: starting one takes longer than most reads."""

    def __init__(self, cluster: KafkaCluster, max_bytes: int) -> None:
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._idle: list[Reader] = []
        self._in_use: set[Reader] = set()
        self._closed = False

    async def take(self, topic: str, offset: int) -> Reader:
        """A reader at `offset`; give it back or discard it."""
        while self._idle:
            reader = self._idle.pop()
            if not reader.is_dead:
                return self._use(reader, topic, offset)
            self._cluster.stop(reader.consumer.stop)
        return self._use(await self._start(_READ_WAIT_MS), topic, offset)

    def give_back(self, reader: Reader) -> None:
        """The read went well: let another use it."""
        if reader in self._in_use and len(self._idle) < _IDLE_READERS:
            self._in_use.discard(reader)
            reader.rest()
            self._idle.append(reader)
        else:
            self.discard(reader)

    async def follow(self, topic: str, offset: int) -> Reader:
        """A reader that waits for what is new; discard it at the end."""
        return self._use(await self._start(_TAIL_WAIT_MS), topic, offset)

    def discard(self, reader: Reader) -> None:
        """Stop a reader in the background."""
        if reader in self._in_use:
            self._in_use.discard(reader)
            self._cluster.stop(reader.consumer.stop)

    def _use(self, reader: Reader, topic: str, offset: int) -> Reader:
        self._in_use.add(reader)
        if self._closed:  # while it was started
            self.discard(reader)
            raise closed()
        reader.begin(topic, offset)
        return reader

    async def _start(self, wait_ms: int) -> Reader:
        reader = Reader(self._cluster, max_bytes=self._max_bytes, wait_ms=wait_ms)
        await self._cluster.start(reader.consumer.start, reader.consumer.stop)
        return reader

    def close(self) -> None:
        """Stop all readers in the background, those in use too: their reads and tails end."""
        self._closed = True
        self._in_use.update(self._idle)
        self._idle.clear()
        for reader in list(self._in_use):
            self.discard(reader)


def replaced(topic: str, position: Position, scope: Scope) -> JournalError:
    """Another event lies where one was read before."""
    return failure(
        Code.HISTORY_LOST,
        f"scope {scope}: topic {topic} has another event at offset {position} than was read there before: it was "
        "truncated, or deleted and made again",
        scope=str(scope),
        topic=topic,
        position=int(position),
    )
