"""A shared Redis for tests. Those that have one of their own to kill use `tests.redis_process`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.services.processes import ServiceProcess, free_port
from tests.services.programs import program


@dataclass(frozen=True)
class RedisService:
    """A Redis: `redis://host:port`, and what it is."""

    url: str
    how: str


def redis_answers(port: int) -> bool:
    """Whether a Redis answers at a port of this machine."""
    try:
        with Redis("127.0.0.1", port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            client.ping()
    except RedisError:
        return False
    return True


@contextmanager
def redis_process(folder: Path) -> Iterator[RedisService]:
    """One `redis-server` as a process of this machine, in memory alone."""
    port = free_port()
    place = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder))
    command = [program("redis-server"), *place, "--save", ""]
    server = ServiceProcess(command, folder / "redis.log", lambda: redis_answers(port))
    server.start()
    try:
        with Redis("127.0.0.1", port) as client:
            version = client.info("server")["redis_version"]
        yield RedisService(f"redis://127.0.0.1:{port}", f"Redis {version} (local process)")
    finally:
        server.kill()
