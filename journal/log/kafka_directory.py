"""What brokers say of a topic: whether it is there, which one it is, who leads it.

A name does not tell a topic from another that was made in its place; its id does, and `Directory` remembers it. aiokafka
has no ids, so topics are asked for in a way of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaClient
from aiokafka.errors import NoError, UnknownTopicOrPartitionError, for_code

from journal.errors import Code, JournalError, failure
from journal.log.kafka_client import PASSING, is_dead, tame
from journal.log.kafka_cluster import RETRY_SECONDS, KafkaCluster
from journal.log.kafka_protocol import TopicRequest

_NODE_SHARE: Final = 0.2  # of the deadline, for one broker, when there are others
_DOUBT_SECONDS: Final = 0.5


class Listed(NamedTuple):
    """One topic as a broker has it. `leader` is that of its first partition, None when it has none now."""

    id: bytes
    partitions: int
    leader: int | None
    replicas: int
    in_sync: int

    @classmethod
    def of(cls, id: bytes, partitions: Sequence[Any]) -> Listed:
        """Read the partitions of an answer. The lowest counts of replicas are the topic's."""
        leaders = {number: leader for _, number, leader, *_ in partitions}
        return cls(
            id,
            len(partitions),
            leader if (leader := leaders.get(0, -1)) >= 0 else None,
            min((len(replicas) for *_, replicas, _, _, _ in partitions), default=0),
            min((len(in_sync) for *_, in_sync, _, _ in partitions), default=0),
        )


class Directory:
    """Looks topics up, over connections of its own, which no waiting fetch holds up."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._client: AIOKafkaClient | None = None
        self._starting = asyncio.Lock()
        self._ids: dict[str, bytes] = {}
        self._answered: int | None = None  # the broker that did last

    async def look(self, topic: str) -> Listed | None:
        """The topic as it is now; None when there is none, and never was as far as is known here.

        Raises:
            HistoryLostError: it is gone, or another has its name.
            InvalidContractError: `journal_not_permitted`.
            UnavailableError: no broker answers.
        """
        doing = f"look for topic {topic}"
        listed = await self._cluster.call(doing, self._look(topic))
        if listed is None and topic in self._ids:
            await asyncio.sleep(_DOUBT_SECONDS)  # who asked was told otherwise before: let a broker that woke up learn
            listed = await self._cluster.call(doing, self._look(topic))
            if listed is None:
                raise lost(topic, "it is not there any more")
        if listed is None:
            return None
        if self._ids.setdefault(topic, listed.id) != listed.id:
            raise lost(topic, "it was deleted and made again")
        return listed

    async def client(self) -> AIOKafkaClient:
        """The client that is asked, for asking more. Raises as `KafkaCluster.start`."""
        async with self._starting:
            if self._client is not None and is_dead(self._client):
                self.close()
            if self._client is None:
                client = AIOKafkaClient(**self._cluster.options())
                tame(client, self._cluster.options())
                await self._cluster.start(client.bootstrap, client.close)
                self._client = client
        return self._client

    async def _look(self, topic: str) -> Listed | None:
        """Ask until a broker answers; None when none of those that do knows the topic."""
        client = await self.client()
        while True:
            answers = [answer async for answer in self._answers(client, topic)]
            if answers:
                return answers[-1]
            await client.force_metadata_update()
            await asyncio.sleep(RETRY_SECONDS)

    async def _answers(self, client: AIOKafkaClient, topic: str) -> AsyncGenerator[Listed | None, None]:
        """Answers of brokers, up to the first that knows the topic: one may not have heard of it yet."""
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        nodes.sort(key=lambda node: node != self._answered)  # one that stands still takes its time each time
        seconds = self._cluster.timeout * (_NODE_SHARE if len(nodes) > 1 else 1)
        for node in nodes:
            with contextlib.suppress(TimeoutError, *PASSING):
                async with asyncio.timeout(seconds):
                    listed = await _ask(client, node, topic)
                self._answered = node
                yield listed
                if listed is not None:
                    return

    def close(self) -> None:
        """Stop the client in the background."""
        if self._client is not None:
            self._cluster.stop(self._client.close)
            self._client = None


async def _ask(client: AIOKafkaClient, node: int, topic: str) -> Listed | None:
    answer = await client.send(node, TopicRequest(topic))
    code, _, id, _, partitions, *_ = answer.topics[0]
    error = for_code(code)
    if error is UnknownTopicOrPartitionError:
        return None
    if error is not NoError:
        raise error(topic)
    return Listed.of(id, partitions)


def lost(topic: str, what: str) -> JournalError:
    """History that was there is gone."""
    return failure(
        Code.HISTORY_LOST, f"topic {topic}: {what}. Stop, and restore it or find out who did it", topic=topic
    )
