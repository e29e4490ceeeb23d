"""A shared Redis for tests. Those that have one of their own to kill use `tests.redis_process`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.redis_process import RedisProcess
from tests.services.programs import program


@dataclass(frozen=True)
class RedisService:
    """A Redis: `redis://host:port`, and what it is."""

    url: str
    how: str


@contextmanager
def redis_process(folder: Path) -> Iterator[RedisService]:
    """One `redis-server` as a process of this machine."""
    program("redis-server")
    server = RedisProcess(folder)
    server.start()
    try:
        version = server.command("INFO", "server")["redis_version"]
        yield RedisService(server.url, f"Redis {version} (local process)")
    finally:
        server.kill()
