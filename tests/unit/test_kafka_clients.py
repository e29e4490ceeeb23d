"""Clients of Kafka that are asked for when the log is being closed: none is left behind."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from journal.errors import Code, InvalidContractError
from journal.log.kafka_cluster import KafkaCluster
from journal.log.kafka_directory import Directory
from journal.log.kafka_reading import Readers
from journal.log.kafka_topics import Rules, Topics
from journal.log.kafka_writing import Producers

USES: dict[str, Callable[[KafkaCluster], Awaitable[object]]] = {
    "reader": lambda cluster: Readers(cluster, 1).take("topic", 0),
    "tail": lambda cluster: Readers(cluster, 1).follow("topic", 0),
    "producer": lambda cluster: Producers(cluster).take(),
    "directory": lambda cluster: Directory(cluster).client(),
    "admin": lambda cluster: Topics(cluster, Directory(cluster), Rules("journal", 3, 1_000)).names(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
async def test_no_client_is_made_after_the_calls_were_ended(
    use: Callable[[KafkaCluster], Awaitable[object]],
) -> None:
    cluster = KafkaCluster(["127.0.0.1:1"], None, timedelta(seconds=1))
    await cluster.end_calls()
    with pytest.raises(InvalidContractError) as caught:
        await use(cluster)
    assert caught.value.code is Code.CLOSED
    del caught
    gc.collect()  # a client that nobody stopped would warn now
