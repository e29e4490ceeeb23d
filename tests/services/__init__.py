"""Real services for tests, benchmarks and examples: Apache Kafka and Redis.

Each is taken from the first of these that there is: an address in the environment (`FENCED_JOURNAL_TEST_KAFKA`,
`FENCED_JOURNAL_TEST_REDIS`), a container where a Docker engine answers, a process of this machine. Tests of faults and of
credentials start, kill and configure their own nodes, so those are always processes.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services import containers
from tests.services.kafka import KafkaNode, KafkaService, SecureKafka, kafka_nodes
from tests.services.redis import RedisService, redis_process

__all__ = ["KafkaNode", "KafkaService", "RedisService", "SecureKafka", "start_kafka", "start_redis"]

KAFKA_VARIABLE = "FENCED_JOURNAL_TEST_KAFKA"
REDIS_VARIABLE = "FENCED_JOURNAL_TEST_REDIS"


@contextmanager
def start_kafka(nodes: int = 1) -> Iterator[KafkaService]:
    """A Kafka of one node as `KAFKA_VARIABLE` or an engine gives it, of several nodes as processes."""
    given = os.environ.get(KAFKA_VARIABLE)
    if nodes == 1 and given:
        yield KafkaService(tuple(given.split(",")), 1, f"Kafka at {given} (environment)")
    elif nodes == 1 and containers.engine_answers():
        with containers.kafka_container() as service:
            yield service
    else:
        with _folder() as folder, kafka_nodes(nodes, folder) as service:
            yield service


@contextmanager
def start_redis() -> Iterator[RedisService]:
    """A Redis."""
    given = os.environ.get(REDIS_VARIABLE)
    if given:
        yield RedisService(given, f"Redis at {given.rpartition('@')[2]} (environment)")
    elif containers.engine_answers():
        with containers.redis_container() as service:
            yield service
    else:
        with _folder() as folder, redis_process(folder) as service:
            yield service


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fenced-journal-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
