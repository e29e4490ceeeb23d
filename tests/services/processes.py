"""Processes of services: started with a log of their own, ended with the test run even when that is killed."""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import IO

# Ends what this process started once this process is gone, however it went: its end of the pipe closes then. It is told
# of those that have ended, too: their numbers may belong to others by then. (A parent-death signal would come when the
# thread ends that started the service.)
_REAPER = """
import os, signal, sys
running = set()
for line in sys.stdin:
    (running.add if line[0] == "+" else running.discard)(int(line[1:]))
for number in running:
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""

# Below the ports that Linux and others give to outgoing connections. A port of theirs can be taken by any connection of
# this machine while its node is down, even by a client that asks whether the node is there again and meets itself.
_PORTS = range(12_000, 32_000)


# One for each port that was given out, of the same number: what keeps other processes of this run from taking it too.
_taken: list[socket.socket] = []


def free_port() -> int:
    """A port of this machine that nobody listens on now, nor gets by chance or from here before this process ends."""
    while True:
        port = random.choice(_PORTS)
        mark = socket.socket(type=socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            mark.close()
            continue
        _taken.append(mark)
        return port


class ServiceProcess:
    """One process of a service. Calls block; they are short."""

    def __init__(self, command: Sequence[str], log: Path, answers: Callable[[], bool], *, seconds: float = 60) -> None:
        self.log = log
        self._command = list(command)
        self._answers = answers
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether there is such a process, stopped or not."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start it; does not wait until it answers."""
        assert not self.runs, "it runs already"
        self._end(lambda ended: None)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        _tell_the_reaper(f"+{self._process.pid}")

    def wait_until_it_answers(self) -> None:
        """Return once it answers; what it logged is in the error when it does not."""
        until = time.monotonic() + self._seconds
        while not self._answers():
            if not self.runs or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"{self._command[0]} does not answer. Its log ends with:\n{self.log_end()}")
            time.sleep(0.02)

    def log_end(self) -> str:
        """The last of what it logged."""
        return self.log.read_text("utf-8", errors="replace")[-4_000:]

    def start(self) -> None:
        """Start it, on whatever it left behind, and wait until it answers."""
        self.launch()
        self.wait_until_it_answers()

    def kill(self) -> None:
        """End it as a power failure does."""
        self._end(subprocess.Popen.kill)

    def terminate(self) -> None:
        """Ask it to end, and wait until it has."""
        self.go_on()
        self._end(subprocess.Popen.terminate)

    def _end(self, how: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        how(process)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        _tell_the_reaper(f"-{process.pid}")

    def stop(self) -> None:
        """Let it stand still, connections and all."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on after `stop`."""
        if self.runs:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "it does not run"
        os.kill(self._process.pid, number)


@cache
def _reaper() -> IO[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _REAPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    atexit.register(_end, process)
    return process.stdin


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=30)


def _tell_the_reaper(line: str) -> None:
    pipe = _reaper()
    pipe.write(f"{line}\n")
    pipe.flush()


def is_listening(port: int) -> bool:
    """Whether something accepts connections at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until(answers: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    """Return once it answers."""
    until = time.monotonic() + seconds
    while not answers():
        assert time.monotonic() < until, f"{what} does not answer"
        time.sleep(0.02)
