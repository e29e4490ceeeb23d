"""The services as containers, with the images and settings of docker-compose.yml, where a Docker engine answers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.services.kafka import KafkaService, nodes_seen_at
from tests.services.processes import free_port, wait_until
from tests.services.redis import RedisService, redis_answers

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


def described(service: str) -> str:
    """What docker-compose.yml says of a service, as text."""
    found = re.search(rf"^  {service}:\n((?:    .*\n)+)", COMPOSE.read_text("utf-8"), re.MULTILINE)
    assert found is not None, f"docker-compose.yml has no service {service}"
    return found[1]


def image(service: str) -> str:
    """The image of a service of docker-compose.yml."""
    (found,) = re.findall(r"^    image: (\S+)$", described(service), re.MULTILINE)
    return found


def environment(service: str) -> dict[str, str]:
    """The environment of a service of docker-compose.yml."""
    return dict(re.findall(r'^      ([A-Z_]+): "(.*)"$', described(service), re.MULTILINE))


def _container(name: str) -> Any:
    from testcontainers.core.container import DockerContainer  # it looks for the engine when it is imported

    return DockerContainer(name)


@contextmanager
def kafka_container() -> Iterator[KafkaService]:
    """One node in a container."""
    name, port = image("kafka"), free_port()
    address = f"127.0.0.1:{port}"
    container = _container(name).with_bind_ports(9092, ("127.0.0.1", port))
    settings = environment("kafka")
    settings["KAFKA_ADVERTISED_LISTENERS"] = f"EXTERNAL://{address},INTERNAL://localhost:19092"
    for setting, value in settings.items():
        container = container.with_env(setting, value)
    with container:
        wait_until(lambda: nodes_seen_at(address) > 0, name)
        yield KafkaService((address,), 1, f"{name} (container)")


@contextmanager
def redis_container() -> Iterator[RedisService]:
    """Redis in a container."""
    name, port = image("redis"), free_port()
    with _container(name).with_bind_ports(6379, ("127.0.0.1", port)):
        wait_until(lambda: redis_answers(port), name)
        yield RedisService(f"redis://127.0.0.1:{port}", f"{name} (container)")
