"""Children that are forked to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def was_killed(work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Run `work` in a child of its own; says whether SIGKILL ended it. Anything but that, or a good end, is an error."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            asyncio.run(work())
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the run failed by itself"
    return False
