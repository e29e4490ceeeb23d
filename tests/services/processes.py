"""Processes of services: started with a log of their own, ended with the test run even when that is killed."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import IO

# Ends what this process started once this process is gone, however it went: its end of the pipe closes then.
_REAPER = """
import os, signal, sys
for number in [int(line) for line in sys.stdin]:
    try:
        os.kill(number, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        _leave_to_the_reaper(self._process.pid)

    def wait_until_it_answers(self) -> None:
        """Return once it answers; what it logged is in the error when it does not."""
        until = time.monotonic() + self._seconds
        while not self._answers():
            if not self.runs or time.monotonic() > until:
                self.kill()
                raise AssertionError(f"{self._command[0]} does not answer: {self.log.read_text('utf-8')[-4_000:]}")
            time.sleep(0.02)

    def start(self) -> None:
        """Start it, on whatever it left behind, and wait until it answers."""
        self.launch()
        self.wait_until_it_answers()

    def kill(self) -> None:
        """End it as a power failure does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(30)

    def terminate(self) -> None:
        """Ask it to end, and wait until it has."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)

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


def _leave_to_the_reaper(number: int) -> None:
    pipe = _reaper()
    pipe.write(f"{number}\n")
    pipe.flush()


def is_listening(port: int) -> bool:
    """Whether something accepts connections at a port of this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_until_listening(port: int, *, seconds: float = 60) -> None:
    """Return once something accepts connections there."""
    until = time.monotonic() + seconds
    while not is_listening(port):
        assert time.monotonic() < until, f"nothing listens at port {port}"
        time.sleep(0.02)
