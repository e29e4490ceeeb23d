"""Replay one journal file in this process and print speed and memory as JSON; run by `replay_million`."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path

from tests.benchmarks.replay import replay_file


def peak_megabytes() -> float:
    """Peak resident set of this process; where the system says no better, that of `getrusage`."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text("utf-8").splitlines())
        return int(fields["VmHWM"].split()[0]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def main() -> None:
    idle = peak_megabytes()
    start = time.perf_counter()
    state = asyncio.run(replay_file(Path(sys.argv[1])))
    elapsed = time.perf_counter() - start
    result = {
        "admitted": state.admitted,
        "events_per_second": state.admitted / elapsed,
        "peak_megabytes": peak_megabytes(),
        "idle_megabytes": idle,
    }
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main()
