"""The adapters that the contract suites run over: everything that is particular to one is here.

A `Site` is one place where an adapter keeps its data. `open` gives a new instance on it, as another process would have,
and closes it at the end of the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Leases, Log


class FakeClock:
    """UTC seconds since 1970 that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class LogSite:
    """Where one adapter of `Log` keeps its events."""

    name: str
    path: Path
    open: Callable[[], Log]


@dataclass
class LeaseSite:
    """Where one adapter of `Leases` keeps its leases. `forget` loses all of its memory."""

    name: str
    clock: FakeClock
    open: Callable[[], Leases]
    forget: Callable[[], Leases]


@pytest.fixture(params=["sqlite"])
async def log_site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LogSite]:
    opened: list[Log] = []
    path = tmp_path / "log.db"

    def open_sqlite() -> Log:
        opened.append(SQLiteLog(path, poll=timedelta(milliseconds=10)))
        return opened[-1]

    yield LogSite(request.param, path, {"sqlite": open_sqlite}[request.param])
    for log in opened:
        await log.close()


@pytest.fixture
async def log(log_site: LogSite) -> Log:
    return log_site.open()


@pytest.fixture(params=["sqlite"])
async def lease_site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LeaseSite]:
    opened: list[Leases] = []
    clock = FakeClock()
    files = [tmp_path / "leases-0.db"]

    def open_sqlite() -> Leases:
        opened.append(SQLiteLeases(files[-1], clock=clock))
        return opened[-1]

    def forget_sqlite() -> Leases:
        files.append(tmp_path / f"leases-{len(files)}.db")
        return open_sqlite()

    openers = {"sqlite": (open_sqlite, forget_sqlite)}
    yield LeaseSite(request.param, clock, *openers[request.param])
    for leases in opened:
        await leases.close()


@pytest.fixture
async def leases(lease_site: LeaseSite) -> Leases:
    return lease_site.open()
