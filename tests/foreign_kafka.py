"""What others do to a Kafka cluster, past the journal: change topics, delete them, write whatever they like."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.util import calc_crc32c

_CRC = slice(17, 21)  # of a record batch; covers everything behind itself

SAFE = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
    "max.message.bytes": str(17 * 2**20),
}


class Foreigner:
    """An admin and a producer that know nothing of the journal."""

    def __init__(
        self, admin: AIOKafkaAdminClient, producer: AIOKafkaProducer, consumer: AIOKafkaConsumer, servers: Sequence[str]
    ) -> None:
        self.admin = admin
        self.producer = producer
        self.servers = servers
        self._consumer = consumer

    async def make(self, topic: str, settings: Mapping[str, str], partitions: int = 1) -> None:
        """A topic with these settings and otherwise the broker's."""
        made = await self.admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=dict(settings))])
        assert [error[1] for error in made.topic_errors] == [0], made

    async def set(self, topic: str, **settings: str) -> None:
        """Replace the settings of a topic by the safe ones and `settings` (dots as underscores)."""
        changed = SAFE | {name.replace("_", "."): value for name, value in settings.items()}
        for answer in await self.admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, configs=changed)]
        ):
            assert [error[0] for error in answer.resources] == [0], answer

    async def delete(self, topic: str) -> None:
        """Delete a topic, and return once nobody knows it any more."""
        deleted = await self.admin.delete_topics([topic])
        assert [code for _, code in deleted.topic_error_codes] == [0], deleted
        while topic in await self.admin.list_topics():
            pass

    async def make_again(self, topic: str, *values: bytes) -> None:
        """Delete a topic, make one of its name, and write into that."""
        await self.delete(topic)
        await self.make(topic, SAFE)
        for value in values:
            await self.write(topic, value)

    async def cut(self, topic: str, before: int) -> None:
        """Delete the records before an offset."""
        await self.admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before)})

    async def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Write one record."""
        await self.producer.send_and_wait(topic, value, key=key, headers=headers, partition=0)

    async def write_raw(self, topic: str, value: bytes, header_name: bytes) -> None:
        """Write one record with a header whose name is any bytes: the protocol says UTF-8, and brokers do not look."""
        stand_in = "n" * len(header_name)
        batch = self.producer.create_batch()
        batch.append(timestamp=None, key=None, value=value, headers=[(stand_in, b"")])
        batch.close()
        data = bytearray(batch._build().replace(stand_in.encode(), header_name))
        data[_CRC] = calc_crc32c(data[_CRC.stop :]).to_bytes(4, "big")
        client = self.producer.client
        await client._wait_on_metadata(topic)
        leader = client.cluster.leader_for_partition(TopicPartition(topic, 0))
        answer = await client.send(leader, ProduceRequest(None, -1, 5_000, [(topic, [(0, bytes(data))])]))
        assert [code for _, partitions in answer.topics for _, code, *_ in partitions] == [0], answer

    async def transact(self, topic: str, *values: bytes, commit: bool = True) -> None:
        """Write records in a transaction, and return once its marker lies behind them."""
        end = await self.end(topic)
        producer = AIOKafkaProducer(bootstrap_servers=list(self.servers), transactional_id=f"foreign-{topic}")
        await producer.start()
        try:
            await producer.begin_transaction()
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()
        while await self.end(topic) <= end + len(values):
            pass

    async def leader(self, topic: str) -> int:
        """The number of the node that leads the topic's partition; -1 while none does."""
        (described,) = await self.admin.describe_topics([topic])
        (partition,) = described["partitions"]
        leader: int = partition["leader"]
        return leader

    async def end(self, topic: str) -> int:
        """The offset behind the last record or marker."""
        partition = TopicPartition(topic, 0)
        return (await self._consumer.end_offsets([partition]))[partition]


@asynccontextmanager
async def foreigner(servers: Sequence[str], **options: Any) -> AsyncIterator[Foreigner]:
    """Somebody else on a cluster; `options` are those of the producer."""
    admin = AIOKafkaAdminClient(bootstrap_servers=list(servers))
    producer = AIOKafkaProducer(bootstrap_servers=list(servers), max_request_size=64 * 2**20, **options)
    consumer = AIOKafkaConsumer(bootstrap_servers=list(servers))
    async with AsyncExitStack() as started:
        for client, stop in ((admin, admin.close), (producer, producer.stop), (consumer, consumer.stop)):
            started.push_async_callback(stop)
            await client.start()
        yield Foreigner(admin, producer, consumer, servers)
