"""Writing: one idempotent producer for all topics, replaced as soon as its word is not good any more.

What a producer accepted may be written at any later time, until it is dead; so from the moment a batch was handed over
there is no "failed", only "confirmed" and "unknown". Idempotence keeps one producer's retries from being written twice
or out of order. It does not reach from one producer to its successor: what an old one still delivers after a new one has
written is settled by admission, not here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from journal.errors import Code, JournalError, OutcomeUnknownError, failure
from journal.log.kafka_client import is_dead, tame
from journal.log.kafka_cluster import KafkaCluster
from journal.log.kafka_reading import MAC_HEADER
from journal.log.kafka_topics import Topic
from journal.ports import Outgoing
from journal.tasks import read_error, start

BATCH_BYTES: Final = 1024 * 1024  # of events that are written together, or not at all
_RECORD_BYTES: Final = 128  # that a record takes beside its event, at most
MAX_RECORDS: Final = 1_000_000  # that one producer writes


class Producer:
    """One producer and what is in flight over it."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.client = AIOKafkaProducer(
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=2 * BATCH_BYTES,  # how much goes into a batch is decided when it is filled
            **cluster.options(),
        )
        tame(self.client.client, cluster.options())
        self._accumulator: Any = self.client._message_accumulator  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        self._append_batch = self._accumulator._append_batch  # noqa: SLF001
        self._accumulator._append_batch = self._append_quietly  # noqa: SLF001
        self._accumulator._pending_batches = _Pending()  # noqa: SLF001
        self.records = 0
        self.in_flight = 0
        self.retired = False

    @property
    def is_dead(self) -> bool:
        """Whether it would never send anything again."""
        sender: Any = self.client._sender.sender_task  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return sender.done() or is_dead(self.client.client)

    def _append_quietly(self, builder: Any, partition: Any) -> Any:
        # asyncio would log the error of a batch that fails once nobody waits for it: whoever did has been answered.
        batch = self._append_batch(builder, partition)
        fail = batch.failure

        def failure(exception: BaseException) -> None:
            for future in (batch.future, batch._drain_waiter):  # noqa: SLF001
                future.add_done_callback(read_error)
            fail(exception)

        batch.failure = failure
        return batch

    async def stop(self) -> None:
        """Let nothing be sent any more, as far as that can be."""
        # `stop` waits until everything is delivered, which may be never; so what is pending is failed first.
        accumulator = self._accumulator
        waiting = chain.from_iterable(accumulator._batches.values())  # noqa: SLF001
        for batch in [*waiting, *accumulator._pending_batches]:  # noqa: SLF001
            batch.failure(KafkaError("the producer was given up"))
        accumulator._batches.clear()  # noqa: SLF001
        accumulator.reenqueue = _drop  # a request that is under way may fail yet, and would be tried again for ever
        try:
            await self.client.stop()
        finally:
            await self.client.client.close()  # `stop` does not get there when the sender ends with an error


class _Pending(set[Any]):
    """Batches that were sent; one that fails while it waits for its next try is removed twice."""

    def remove(self, element: Any, /) -> None:
        self.discard(element)


def _drop(_: Any) -> None:
    pass


class Producers:
    """The producer that is used now; there may be older ones with batches in flight."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._current: Producer | None = None
        self._starting = asyncio.Lock()

    async def take(self) -> Producer:
        """The producer to use for one batch; give it back. Raises as `KafkaCluster.start`."""
        current = self._current
        if current is not None and current.is_dead:
            self.retire(current)
        current = self._current
        if current is None or current.records >= MAX_RECORDS:
            current = await self._replace()
        current.in_flight += 1
        return current

    async def _replace(self) -> Producer:
        async with self._starting:
            if self._current is not None and self._current.records >= MAX_RECORDS:
                self.retire(self._current)
            if self._current is None:
                producer = Producer(self._cluster)
                await self._cluster.start(producer.client.start, producer.stop)
                self._current = producer
            return self._current

    def give_back(self, producer: Producer) -> None:
        """One batch is over, however it went."""
        producer.in_flight -= 1
        if producer.retired and not producer.in_flight:
            self._cluster.stop(producer.stop)

    def retire(self, producer: Producer) -> None:
        """Use it for nothing new; it ends when what others have in flight over it is over."""
        if producer is self._current:
            self._current = None
        if not producer.retired:
            producer.retired = True
            if not producer.in_flight:
                self._cluster.stop(producer.stop)

    def close(self) -> None:
        """Stop the producer in the background."""
        if self._current is not None:
            self.retire(self._current)


@dataclass(slots=True)
class _Append:
    events: Sequence[Outgoing]
    future: asyncio.Future[None]
    sent: int = 0  # events that were handed over


class TopicWriter:
    """Appends to one topic, in the order of the calls, one batch in flight; those that wait go into the next together.

    `verify` gives the topic once its settings were found right; it is asked before the first batch, and again after a
    failure.
    """

    def __init__(
        self, cluster: KafkaCluster, producers: Producers, name: str, verify: Callable[[], Awaitable[Topic]]
    ) -> None:
        self._cluster = cluster
        self._producers = producers
        self._name = name
        self._verify = verify
        self._topic: Topic | None = None
        self._waiting: deque[_Append] = deque()
        self._running: asyncio.Task[None] | None = None

    def append(self, events: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Queue an append; the future is done when it is confirmed. Raises as `Log.append`."""
        append = _Append(events, asyncio.get_running_loop().create_future())
        if not events:
            append.future.set_result(None)
            return append.future
        self._waiting.append(append)
        if self._running is None:
            self._running = start(self._run(), f"append {self._name}")
        return append.future

    async def drain(self) -> None:
        """Wait until nothing waits any more."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._write_some()
        finally:
            self._running = None

    async def _write_some(self) -> None:
        """Write one batch, and answer whoever has an answer by it."""
        producer: Producer | None = None
        try:
            topic = self._topic = self._topic or await self._verify()
            producer = await self._producers.take()
            covered, batch, count = self._fill(producer, topic)
            await self._send(producer, batch, count)
        except JournalError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001  (whatever it is: nobody may be left waiting, nor this producer be used)
            self._topic = None
            if producer is not None:
                self._producers.retire(producer)
            self._refuse(await self._cluster.translate(f"write to topic {self._name}", error))
        else:
            for append in covered:
                self._waiting.popleft()
                _answer(append.future, None)
        finally:
            if producer is not None:
                self._producers.give_back(producer)

    def _fill(self, producer: Producer, topic: Topic) -> tuple[list[_Append], Any, int]:
        """Put as many of the waiting events into a batch as it holds; says which appends end with it."""
        batch = producer.client.create_batch()
        room = min(BATCH_BYTES, topic.max_event_bytes)
        covered: list[_Append] = []
        count = 0
        for append in self._waiting:
            for event in append.events[append.sent :]:
                room -= len(event.data) + _RECORD_BYTES
                if count and room < 0:
                    return covered, batch, count
                self._check_size(event, topic)
                headers = [] if event.mac is None else [(MAC_HEADER, event.mac)]
                batch.append(timestamp=None, key=None, value=event.data, headers=headers)
                count += 1
                append.sent += 1
            covered.append(append)
        return covered, batch, count

    def _check_size(self, event: Outgoing, topic: Topic) -> None:
        if len(event.data) > topic.max_event_bytes:
            raise failure(
                Code.EVENT_TOO_LARGE,
                f"an event of {len(event.data)} bytes is larger than topic {self._name} takes "
                f"({topic.max_event_bytes}): raise its max.message.bytes",
            )

    async def _send(self, producer: Producer, batch: Any, count: int) -> None:
        producer.records += count
        async with self._cluster.deadline():
            await (await producer.client.send_batch(batch, self._name, partition=0))

    def _refuse(self, error: JournalError) -> None:
        """Answer everybody who waits: nothing is written behind what may be missing."""
        waiting, self._waiting = self._waiting, deque()
        for append in waiting:
            _answer(append.future, _told(self._name, append, error))


def _told(name: str, append: _Append, error: JournalError) -> JournalError:
    """What an append is told when the writing ended with `error`: only what was never handed over is surely not there."""
    if not append.sent:
        return error
    unknown = OutcomeUnknownError(f"an append to topic {name} was not confirmed: {error.message}")
    unknown.__cause__ = error
    return unknown


def _answer(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
