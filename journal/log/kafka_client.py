"""aiokafka's client, where it does more than is wanted, or less."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaClient
from aiokafka.client import ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import CloseReason, create_conn
from aiokafka.errors import (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaError,
    NodeNotReadyError,
    RequestTimedOutError,
    StaleMetadata,
)
from aiokafka.protocol.metadata import MetadataRequest

PASSING: Final = (  # one broker cannot be asked now
    CorrelationIdError,
    KafkaConnectionError,
    NodeNotReadyError,
    RequestTimedOutError,
    StaleMetadata,
)
_OF_CONNECTIONS: Final = ("client_id", "request_timeout_ms", "security", "ssl", "sasl")


def is_dead(client: AIOKafkaClient) -> bool:
    """Whether what serves a client that was started was cancelled, by whoever cancels all tasks: it would wait for ever."""
    connections: Iterable[Any] = client._conns.values()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    tasks: list[asyncio.Task[None] | None] = [client._sync_task]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    tasks += [connection._read_task for connection in connections if connection.connected()]  # noqa: SLF001
    return any(task is None or task.done() for task in tasks)


def tame(client: AIOKafkaClient, options: Mapping[str, Any]) -> None:
    """Correct a client that was not started yet; `options` are those that it was made with.

    aiokafka has no settings for this: by itself it makes the topics that it asks for, on a broker with
    `auto.create.topics.enable`, when it is cancelled while it starts it leaves a connection open, and it forgets one that
    the broker has ended before it was closed here.
    """
    passed = {name: value for name, value in options.items() if name.startswith(_OF_CONNECTIONS)}

    async def bootstrap() -> None:
        for host, port, _ in client.hosts:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                connection: Any = await create_conn(host, port, **passed)
                try:
                    client.cluster.update_metadata(await connection.send(MetadataRequest([])))
                finally:
                    await connection.close()
                break
        else:
            raise KafkaConnectionError(f"Unable to bootstrap from {client.hosts}")
        client._sync_task = asyncio.create_task(client._md_synchronizer())  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def update(cluster_metadata: ClusterMetadata, topics: Iterable[str]) -> bool:
        question = MetadataRequest(list(topics) or None, allow_auto_topic_creation=False)
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        random.shuffle(nodes)
        for node in nodes:
            with contextlib.suppress(*PASSING):
                cluster_metadata.update_metadata(await client.send(node, question))
                return True
        cluster_metadata.failed_update(None)
        return False

    get_connection = client._get_conn  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def connection(
        node_id: Any, *, group: ConnectionGroup = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> Any:
        known: Any = client._conns.get((node_id, group))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if known is not None and not known.connected():
            known.close(reason=CloseReason.CONNECTION_BROKEN)
        return await get_connection(node_id, group=group, no_hint=no_hint)

    client._get_conn = connection  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    client.bootstrap = bootstrap
    client._metadata_update = update  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
