"""The services as containers, of the images that docker-compose.yml names, where a Docker engine answers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.services.kafka import KafkaService
from tests.services.processes import free_port, wait_until_listening
from tests.services.redis import RedisService

COMPOSE = Path(__file__).parents[2] / "docker-compose.yml"
_ENGINE_SECONDS = 10


@cache
def engine_answers() -> bool:
    """Whether there is a Docker engine to start containers with."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        asked = subprocess.run([docker, "info"], capture_output=True, timeout=_ENGINE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def image(service: str) -> str:
    """The image of a service of docker-compose.yml."""
    found = re.search(rf"^  {service}:\n(?:    .*\n|\n)*?    image: (\S+)$", COMPOSE.read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"docker-compose.yml has no image for {service}"
    return found[1]


def _container(name: str) -> Any:
    from testcontainers.core.container import DockerContainer  # it looks for the engine when it is imported

    return DockerContainer(name)


@contextmanager
def kafka_container() -> Iterator[KafkaService]:
    """One node in a container."""
    name, port = image("kafka"), free_port()
    container = _container(name).with_bind_ports(9092, ("127.0.0.1", port))
    for setting, value in {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }.items():
        container = container.with_env(setting, value)
    with container:
        wait_until_listening(port)
        yield KafkaService((f"127.0.0.1:{port}",), 1, f"{name} (container)")


@contextmanager
def redis_container() -> Iterator[RedisService]:
    """Redis in a container."""
    name, port = image("redis"), free_port()
    with _container(name).with_bind_ports(6379, ("127.0.0.1", port)):
        wait_until_listening(port)
        yield RedisService(f"redis://127.0.0.1:{port}", f"{name} (container)")
