"""Redis servers of a test's own: real processes that can be killed, stopped, emptied, secured."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

START_SECONDS = 20.0


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class RedisProcess:
    """One `redis-server` on a port and a folder of its own. Calls block; they are short."""

    def __init__(self, folder: Path, *options: str, tls: dict[str, Any] | None = None) -> None:
        """`options` are the server's; `tls` is how `command` is to connect, when the server speaks TLS."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.options = options
        self.tls = tls
        self.password: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What `RedisLeases` is given."""
        return f"{'rediss' if self.tls else 'redis'}://127.0.0.1:{self.port}"

    def start(self, *, loaded: bool = True) -> None:
        """Start it, or start it again on what its folder holds; returns once it answers, by default with its data."""
        from tests.services.programs import program  # its package imports this module

        binary = program("redis-server")
        ports = ("--port", "0", "--tls-port", str(self.port)) if self.tls else ("--port", str(self.port))
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, *ports, "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder), *self.options],
                stdout=log,
                stderr=log,
            )
        try:
            self._wait_until_it_answers(loaded=loaded)
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_answers(self, *, loaded: bool) -> None:
        until = time.monotonic() + START_SECONDS
        while not self._answers(loaded=loaded):
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "redis.log").read_text()
            assert time.monotonic() < until, f"no answer on port {self.port}"
            time.sleep(0.01)

    def _answers(self, *, loaded: bool) -> bool:
        try:
            self.command("PING")
        except redis.AuthenticationError:
            return True
        except redis.BusyLoadingError:
            return not loaded
        except (OSError, redis.ConnectionError, redis.TimeoutError):
            return False
        return True

    def command(self, *command: Any) -> Any:
        """Ask it directly, past what is tested."""
        with redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self.password,
            decode_responses=True,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            **(self.tls or {}),
        ) as client:
            return client.execute_command(*command)

    def kill(self) -> None:
        """End it as a power failure does: nothing is saved."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(10)

    def stop(self) -> None:
        """Let it stand still, connections and all."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after `stop`."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
