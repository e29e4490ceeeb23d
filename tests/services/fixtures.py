"""The services as pytest fixtures: started once a session, at first use, shared by means of fresh prefixes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack

import pytest

from tests.services import KafkaService, RedisService, SecureKafka, start_kafka, start_redis
from tests.services.kafka import kafka_nodes
from tests.services.proxy import Proxy, proxy

# A node that was killed may come back, and others may lead for it, once its session is over.
_SHORT = {"broker.session.timeout.ms": "2500", "broker.heartbeat.interval.ms": "500"}

used: dict[str, str] = {}
"""What was started in this session, by the name of its fixture: printed at the end."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaService]:
    """One node for ordinary tests, which leave it as it is."""
    with start_kafka() as service:
        used["kafka"] = service.how
        yield service


@pytest.fixture(scope="session")
def _own_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaService]:
    with kafka_nodes(1, tmp_path_factory.mktemp("kafka"), **_SHORT) as service:
        used["a Kafka for faults"] = service.how
        yield service


@pytest.fixture
def own_kafka(_own_node: KafkaService) -> Iterator[KafkaService]:
    """One node that a test may stop, kill and start again, and reach through a proxy; it runs again at the end."""
    yield _own_node
    _own_node.revive()


@pytest.fixture
def secure_kafka(_own_node: KafkaService) -> SecureKafka:
    """The secured listeners of the node of `own_kafka`."""
    assert _own_node.secure is not None
    return _own_node.secure


@pytest.fixture
async def proxied_kafka(own_kafka: KafkaService) -> AsyncIterator[Proxy]:
    """A proxy before the node of `own_kafka`; a client that begins at its address stays on it."""
    (node,) = own_kafka.nodes
    async with proxy(node.at("PROXIED"), node.ports["PROXY"]) as passing:
        yield passing


@pytest.fixture(scope="session")
def _three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaService]:
    with kafka_nodes(3, tmp_path_factory.mktemp("kafka3"), **_SHORT) as service:
        used["a Kafka cluster"] = service.how
        yield service


@pytest.fixture
def kafka_cluster(_three_nodes: KafkaService) -> Iterator[KafkaService]:
    """Three nodes that a test may stop, kill and start again; all of them run again at the end."""
    yield _three_nodes
    _three_nodes.revive()


@pytest.fixture
async def proxied_cluster(kafka_cluster: KafkaService) -> AsyncIterator[Mapping[int, Proxy]]:
    """A proxy before each node of `kafka_cluster`, by its number; a client that begins at one of them stays on them."""
    async with AsyncExitStack() as proxies:
        yield {
            node.number: await proxies.enter_async_context(proxy(node.at("PROXIED"), node.ports["PROXY"]))
            for node in kafka_cluster.nodes
        }


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisService]:
    """One Redis, shared."""
    with start_redis() as service:
        used["redis"] = service.how
        yield service


@pytest.fixture
def fresh_prefix() -> str:
    """A prefix of topics and keys that nobody else uses."""
    return f"test-{secrets.token_hex(8)}"
