"""The cluster: appends, pipelines, replays and leases on Kafka and Redis, against the bare clients on the same services."""

from __future__ import annotations

import asyncio
import io
import resource
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import median

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from fastavro import parse_schema, schemaless_reader
from redis.asyncio import Redis

from journal.codec import published_schemas
from journal.identities import HolderId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.leases.redis import RedisLeases
from journal.log.kafka import KafkaLog
from journal.log.kafka_writing import BATCH_BYTES
from journal.records import ScopedRecord
from tests.benchmarks.figures import Figure, Goal, alternate
from tests.benchmarks.workloads import Scene
from tests.factories import SCOPE, chain_of
from tests.services import start_kafka, start_redis

RAW = Scope("raw")
BATCH = 100
IN_FLIGHT = 8
_FETCH_BYTES = 16 * 2**20


@dataclass
class Stage:
    """A journal on real services, beside a bare topic that is set up the same."""

    servers: list[str]
    prefix: str
    redis: str
    log: KafkaLog
    journal: Journal

    def topic(self, scope: Scope) -> str:
        return f"{self.prefix}.{scope}"

    @asynccontextmanager
    async def producer(self, max_batch_size: int) -> AsyncIterator[AIOKafkaProducer]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.servers,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=max_batch_size,
        )
        async with producer:
            yield producer

    @asynccontextmanager
    async def consumer(self, scope: Scope) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.servers,
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_bytes=_FETCH_BYTES,
        )
        async with consumer:
            consumer.assign([TopicPartition(self.topic(scope), 0)])
            yield consumer


@asynccontextmanager
async def _stage(nodes: int = 1) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        kafka = stack.enter_context(start_kafka(nodes=nodes))
        redis = stack.enter_context(start_redis())
        prefix = f"bench-{secrets.token_hex(4)}"
        log = KafkaLog(kafka.servers, prefix=prefix, replication=kafka.replication)
        leases = RedisLeases(redis.url, prefix=prefix)
        journal = await stack.enter_async_context(Journal(log, leases))
        await journal.create(SCOPE)
        await log.create(RAW)
        yield Stage(list(kafka.servers), prefix, redis.url, log, journal)


# --- one event at a time ----------------------------------------------------------------------------------------------


async def kafka_verdict_vs_send(*, quick: bool) -> list[Figure]:
    """`Journal.record`, one at a time, until its verdict, against the idempotent `send_and_wait` of the same bytes."""
    return await _verdict("kafka_verdict_vs_send", 1, Goal("<=", 2), quick=quick)


async def kafka3_verdict_vs_send(*, quick: bool) -> list[Figure]:
    """The same on three nodes, RF 3, `min.insync.replicas=2`."""
    return await _verdict("kafka3_verdict_vs_send", 3, Goal("<=", 1.4), quick=quick)


async def _verdict(name: str, nodes: int, goal: Goal, *, quick: bool) -> list[Figure]:
    async with _stage(nodes) as stage, stage.producer(BATCH_BYTES) as producer, AsyncExitStack() as stack:
        lease = await stack.enter_async_context(stage.journal.lease(SCOPE, HolderId("bench")))
        place = Scene(stage.journal, stage.log, lease, chain_of(60))
        written: list[bytes] = []

        async def product() -> float:
            records = [make() for unit in await place.open_plan() for make in unit]
            times = []
            for record in records:
                start = time.perf_counter()
                await stage.journal.record(lease, record)
                times.append(time.perf_counter() - start)
            written[:] = await place.newest(len(records))
            return median(times) * 1_000

        async def send() -> float:
            return await _send_each(stage, producer, written)

        async def send_and_read_back() -> float:
            return await _send_and_read_back(stage, producer, written)

        rounds = 5 if quick else 15
        values, sends, read_back = await alternate(rounds, product, send, send_and_read_back)
    return [
        Figure(name, "ms, p50", values, "aiokafka, idempotent send_and_wait", sends, goal),
        Figure(f"{name}_read_back", "ms, p50", values, "the same, read back by one bare tail", read_back),
    ]


async def _send_each(stage: Stage, producer: AIOKafkaProducer, written: Sequence[bytes]) -> float:
    times = []
    for data in written:
        start = time.perf_counter()
        await producer.send_and_wait(stage.topic(RAW), data)
        times.append(time.perf_counter() - start)
    return median(times) * 1_000


async def _send_and_read_back(stage: Stage, producer: AIOKafkaProducer, written: Sequence[bytes]) -> float:
    partition = TopicPartition(stage.topic(RAW), 0)
    times = []
    async with stage.consumer(RAW) as consumer:
        await consumer.seek_to_end(partition)
        for data in written:
            start = time.perf_counter()
            sent = await producer.send(stage.topic(RAW), data)
            while not await consumer.getmany(partition, timeout_ms=1_000):
                pass
            times.append(time.perf_counter() - start)
            await sent
    return median(times) * 1_000


# --- many at a time ---------------------------------------------------------------------------------------------------


async def kafka_pipelined_vs_send(*, quick: bool) -> list[Figure]:
    """`Journal.record_all` by 100, eight in flight, to the verdicts, against pipelined sends of the ready bytes."""
    events = 3_000 if quick else 12_000
    async with _stage() as stage, stage.producer(BATCH_BYTES) as producer, AsyncExitStack() as stack:
        lease = await stack.enter_async_context(stage.journal.lease(SCOPE, HolderId("bench")))
        place = Scene(stage.journal, stage.log, lease, chain_of(events // 3))
        written: list[bytes] = []

        async def product() -> float:
            records = [make() for make in chain.from_iterable(await place.open_plan())]
            start = time.perf_counter()
            await _in_flight(stage.journal, lease, records)
            elapsed = time.perf_counter() - start
            written[:] = await place.newest(len(records))
            return len(records) / elapsed

        async def reference() -> float:
            start = time.perf_counter()
            await asyncio.gather(*[await producer.send(stage.topic(RAW), data) for data in written])
            return len(written) / (time.perf_counter() - start)

        values, references = await alternate(4 if quick else 9, product, reference)
    name = f"aiokafka, idempotent sends, batches of {BATCH_BYTES // 1024} KiB"
    return [Figure("kafka_pipelined_vs_send", "events/s", values, name, references, Goal(">=", 0.4, floor=0.3))]


async def _in_flight(journal: Journal, lease: Lease, records: Sequence[ScopedRecord]) -> None:
    """All records, by 100, with eight of these calls waiting at any time."""
    waiting: list[asyncio.Task[object]] = []
    for first in range(0, len(records), BATCH):
        waiting.append(asyncio.create_task(journal.record_all(lease, records[first : first + BATCH])))
        await asyncio.sleep(0)
        if len(waiting) >= IN_FLIGHT:
            await waiting.pop(0)
    await asyncio.gather(*waiting)


async def kafka_replay_vs_read(*, quick: bool) -> list[Figure]:
    """`Journal.state` of a scope from its topic against a bare reader that decodes each event with fastavro."""
    async with _stage() as stage:
        async with stage.journal.lease(SCOPE, HolderId("bench")) as lease:
            place = Scene(stage.journal, stage.log, lease, chain_of(2_000))
            for _ in range(2 if quick else 10):
                await _in_flight(
                    stage.journal, lease, [make() for make in chain.from_iterable(await place.open_plan())]
                )
        events = int(await stage.log.end(SCOPE) or 0) + 1
        schemas = {schema.prefix: parse_schema(schema.json) for schema in published_schemas()}

        async def product() -> float:
            log = KafkaLog(stage.servers, prefix=stage.prefix, replication=1)
            async with Journal(log, RedisLeases(stage.redis, prefix=stage.prefix)) as journal:
                start = time.perf_counter()
                state = await journal.state(SCOPE)
                elapsed = time.perf_counter() - start
            if state.admitted != events:
                raise AssertionError(f"{state.admitted} of {events} events were admitted")
            return events / elapsed

        async def reference() -> float:
            partition = TopicPartition(stage.topic(SCOPE), 0)
            async with stage.consumer(SCOPE) as consumer:
                start = time.perf_counter()
                consumer.seek(partition, 0)
                read = 0
                while read < events:
                    for record in (await consumer.getmany(partition, timeout_ms=1_000)).get(partition, ()):
                        schemaless_reader(io.BytesIO(record.value[10:]), schemas[record.value[:10]], None)
                        read += 1
                return events / (time.perf_counter() - start)

        values, references = await alternate(3 if quick else 7, product, reference)
    name = "aiokafka getmany and fastavro.schemaless_reader"
    return [Figure("kafka_replay_vs_read", "events/s", values, name, references, Goal(">=", 0.6), f"{events:,} events")]


# --- leases, many scopes ----------------------------------------------------------------------------------------------


async def lease_vs_calls(*, quick: bool) -> list[Figure]:
    """`Journal.acquire` until it is admitted, against one produce and one Redis call."""
    async with _stage() as stage, stage.producer(BATCH_BYTES) as producer, AsyncExitStack() as stack:
        redis = Redis.from_url(stage.redis)
        stack.push_async_callback(redis.aclose)

        async def product() -> float:
            times = []
            for _ in range(50):
                start = time.perf_counter()
                lease = await stage.journal.acquire(SCOPE, HolderId("bench"))
                times.append(time.perf_counter() - start)
                await stage.journal.release(lease)
            return median(times) * 1_000

        async def reference() -> float:
            times = []
            for number in range(50):
                start = time.perf_counter()
                await producer.send_and_wait(stage.topic(RAW), b"x" * 300)
                await redis.set(f"{stage.prefix}:bench", number)
                times.append(time.perf_counter() - start)
            return median(times) * 1_000

        values, references = await alternate(5 if quick else 15, product, reference)
    name = "aiokafka send_and_wait, then redis SET"
    return [Figure("lease_vs_calls", "ms, p50", values, name, references, Goal("<=", 3))]


async def kafka_1000_scopes(*, quick: bool) -> list[Figure]:
    """Create a thousand scopes, then take each one's lease, which is one event, and give it back; 20 at a time."""
    scopes = [Scope(f"scope-{number}") for number in range(100 if quick else 1_000)]
    async with _stage() as stage:
        start = time.perf_counter()
        await _each(scopes, partial(_create, stage))
        created = len(scopes) / (time.perf_counter() - start)
        before = _resident()
        start = time.perf_counter()
        await _each(scopes, partial(_open_append_close, stage))
        opened = len(scopes) / (time.perf_counter() - start)
        grown = (_resident() - before) / len(scopes)
    note = f"{len(scopes)} scopes, all of them open at the end; creating: {created:.0f} scopes/s"
    return [
        Figure("kafka_1000_scopes", "scopes/s", [opened], note=note),
        Figure("kafka_1000_scopes_memory", "KiB a scope", [grown], note="growth of the greatest resident size"),
    ]


async def _each(scopes: Sequence[Scope], work: Callable[[Scope], Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(20)

    async def one(scope: Scope) -> None:
        async with gate:
            await work(scope)

    async with asyncio.TaskGroup() as group:
        for scope in scopes:
            group.create_task(one(scope))


async def _create(stage: Stage, scope: Scope) -> None:
    await stage.journal.create(scope)


async def _open_append_close(stage: Stage, scope: Scope) -> None:
    async with stage.journal.lease(scope, HolderId("bench")):
        pass


def _resident() -> float:
    """Greatest resident size of this process so far, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
