"""What brokers say of a topic: whether it is there, which one it is, who leads it.

A name does not tell a topic from another that was made in its place; its id does, and `Directory` remembers it. aiokafka
has no ids, so topics are asked for in a way of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaClient
from aiokafka.errors import NoError, UnknownTopicOrPartitionError, for_code

from journal.errors import Code, JournalError, failure
from journal.log.kafka_client import PASSING, is_dead, tame
from journal.log.kafka_cluster import RETRY_SECONDS, KafkaCluster
from journal.log.kafka_protocol import TopicRequest
from journal.tasks import start

_NODE_SHARE: Final = 0.2  # of the deadline, for one broker, when there are others
_ASKED: Final = 3  # brokers at a time
_ENOUGH: Final = 2  # of them that answer
DOUBT_SECONDS: Final = 0.5


class Listed(NamedTuple):
    """One topic as a broker has it. `leader` is that of its first partition, None when it has none now; each has an epoch."""

    id: bytes
    partitions: int
    leader: int | None
    epoch: int
    replicas: int
    in_sync: int

    @classmethod
    def of(cls, id: bytes, partitions: Sequence[Any]) -> Listed:
        """Read the partitions of an answer. The lowest counts of replicas are the topic's."""
        leader, epoch = {number: (leader, epoch) for _, number, leader, epoch, *_ in partitions}.get(0, (-1, -1))
        return cls(
            id,
            len(partitions),
            leader if leader >= 0 else None,
            epoch,
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
            await asyncio.sleep(DOUBT_SECONDS)  # who asked was told otherwise before: let a broker that woke up learn
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
            answers = await self._answers(client, topic)
            if answers:
                known = (answer for answer in answers if answer is not None)
                return max(known, key=lambda listed: listed.epoch, default=None)
            await client.force_metadata_update()
            await asyncio.sleep(RETRY_SECONDS)

    async def _answers(self, client: AIOKafkaClient, topic: str) -> list[Listed | None]:
        """What two brokers say, one of whom knows the topic; or else all that answer.

        One alone may have stood still, and takes itself for the leader that it was until it hears of its successor.
        """
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        seconds = self._cluster.timeout * (_NODE_SHARE if len(nodes) > 1 else 1)
        answers: list[Listed | None] = []
        for first in range(0, len(nodes), _ASKED):
            asked = [self._answer(client, node, topic, seconds) for node in nodes[first : first + _ASKED]]
            asking = [start(asks, f"look for topic {topic}") for asks in asked]
            try:
                for answering in asyncio.as_completed(asking):
                    answers += await answering
                    if len(answers) >= _ENOUGH and any(answers):
                        return answers
            finally:
                for task in asking:
                    task.cancel()
        return answers

    @staticmethod
    async def _answer(client: AIOKafkaClient, node: int, topic: str, seconds: float) -> list[Listed | None]:
        """What one broker says; nothing when it does not answer."""
        with contextlib.suppress(TimeoutError, *PASSING):
            async with asyncio.timeout(seconds):
                return [await _ask(client, node, topic)]
        return []

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
