"""What `journal doctor` says of a Kafka log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from journal.errors import Code, JournalError
from journal.identities import Scope
from journal.log.kafka_cluster import KafkaCluster
from journal.log.kafka_reading import Offsets
from journal.log.kafka_topics import Topic, Topics
from journal.ports import Finding, Level

_RIGHTS: Final = "grant this user Describe and DescribeConfigs on the topics, or run doctor as one who has them"


async def examine(
    cluster: KafkaCluster, topics: Topics, offsets: Offsets, scopes: Sequence[Scope]
) -> AsyncGenerator[Finding, None]:
    """The cluster, then for each scope its topic: replication, settings, where it begins."""
    try:
        known = await topics.names()
    except JournalError as error:
        yield Finding("broker", Level.PROBLEM, error.message, "start it, or correct the log setting")
        return
    own = sum(topics.rules.scope(name) is not None for name in known)
    yield Finding("broker", Level.GOOD, f"{cluster} answers; {own} topics {topics.rules.prefix}.*")
    for scope in scopes:
        async for finding in _examine_topic(topics, offsets, scope):
            yield finding


async def _examine_topic(topics: Topics, offsets: Offsets, scope: Scope) -> AsyncGenerator[Finding, None]:
    name = topics.rules.topic(scope)
    try:
        topic = await topics.describe(scope)
        if topic is None:
            yield Finding(f"topic {name}", Level.PROBLEM, "there is no such topic", "create the scope: journal apply")
            return
        yield _settings(topics, topic)
        yield _replicas(topic)
        yield await _beginning(offsets, topic)
    except JournalError as error:
        remedy = _RIGHTS if error.code is Code.NOT_PERMITTED else "see whether its leader is running"
        yield Finding(f"topic {name}", Level.PROBLEM, error.message, remedy)


def _settings(topics: Topics, topic: Topic) -> Finding:
    if faults := topics.rules.faults(topic):
        return Finding(
            f"topic {topic.name}",
            Level.HISTORY,
            "; ".join(faults),
            f"kafka-configs --alter --topic {topic.name} --add-config NAME=VALUE (replicas: kafka-reassign-partitions)",
        )
    if topic.max_event_bytes < topics.rules.max_event_bytes:
        return Finding(
            f"topic {topic.name}",
            Level.WARNING,
            f"max.message.bytes is {topic.number('max.message.bytes')}: events over {topic.max_event_bytes} bytes are "
            "refused",
            f"raise it to {topics.rules.new(topic.name).topic_configs['max.message.bytes']}, or lower max_event_bytes",
        )
    return Finding(
        f"topic {topic.name}",
        Level.GOOD,
        f"kept for ever; replication {topic.replicas}, min.insync.replicas {topic.number('min.insync.replicas')}",
    )


def _replicas(topic: Topic) -> Finding:
    check = f"replicas {topic.name}"
    if topic.in_sync < topic.number("min.insync.replicas"):
        return Finding(
            check,
            Level.PROBLEM,
            f"{topic.in_sync} of {topic.replicas} replicas are in sync: nothing can be written",
            "start the brokers that are missing",
        )
    if topic.in_sync < topic.replicas:
        return Finding(
            check,
            Level.WARNING,
            f"{topic.in_sync} of {topic.replicas} replicas are in sync",
            "start the brokers that are missing",
        )
    return Finding(check, Level.GOOD, f"all {topic.replicas} in sync")


async def _beginning(offsets: Offsets, topic: Topic) -> Finding:
    check = f"history {topic.name}"
    try:
        extent = await offsets.extent(topic.name)
    except JournalError as error:
        if error.code is not Code.HISTORY_LOST:
            raise
        return Finding(check, Level.HISTORY, error.message, "restore the topic from a copy")
    if extent is None:
        return Finding(check, Level.PROBLEM, "the topic is not there any more", "see who deletes topics")
    return Finding(check, Level.GOOD, f"complete: offsets {extent.begin} to {extent.end}")
