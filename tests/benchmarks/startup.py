"""Starting: how long `journal` takes to import, and how long a small command takes as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from tests.benchmarks.figures import BUILD, Figure, Goal, alternate
from tests.benchmarks.workloads import workplace, write_log
from tests.factories import SCOPE, long_log

_MODULES = "journal, journal.journal, journal.log.sqlite, journal.leases.sqlite"
_IMPORT = f"import time; s = time.perf_counter(); import {_MODULES}; print((time.perf_counter() - s) * 1_000)"
_HAS_COMMAND = "import sys, journal.cli; sys.exit(not hasattr(journal.cli, 'main'))"
_COMMAND = "import sys; from journal.cli import main; sys.exit(main())"


async def import_time(*, quick: bool) -> list[Figure]:
    """Milliseconds for everything that a service with the embedded log imports, in a process of its own."""

    async def product() -> float:
        return float(_run("-c", _IMPORT).stdout)

    (values,) = await alternate(5 if quick else 15, product)
    return [Figure("import_time", "ms", values, goal=Goal("<=", 150, of="value"), note=f"import {_MODULES}")]


async def status_time(*, quick: bool) -> list[Figure]:
    """Seconds of a whole `journal status` on a small scope, beside those of an interpreter that does nothing."""
    if _run("-c", _HAS_COMMAND, check=False).returncode:
        sys.stderr.write("status_time: not measured, journal.cli has no `main` yet\n")
        return []
    folder = workplace("status")
    log = long_log(300)
    await write_log(folder / "journal.db", log.data)
    where = {"JOURNAL_LOG": f"sqlite:///{folder / 'journal.db'}", "JOURNAL_SCOPE": str(SCOPE)}

    async def product() -> float:
        start = time.perf_counter()
        run = _run("-c", _COMMAND, "status", check=False, **where)
        elapsed = time.perf_counter() - start
        if run.returncode not in (0, 5):  # 5: something is pending
            raise AssertionError(f"journal status ended with {run.returncode}: {run.stderr}")
        return elapsed

    async def reference() -> float:
        start = time.perf_counter()
        _run("-c", "pass")
        return time.perf_counter() - start

    values, references = await alternate(5 if quick else 15, product, reference)
    note = f"a scope of {len(log.data)} events"
    return [Figure("status_time", "s", values, "python -c pass", references, Goal("<=", 0.4, of="value"), note)]


def _run(*arguments: str, check: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        check=check,
        capture_output=True,
        text=True,
        cwd=BUILD.parent,
        env={**os.environ, **variables},
    )
