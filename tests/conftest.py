"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import pytest

from journal.codec import Codec
from journal.errors import JournalError
from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Leases, Log

pytest_plugins = ["tests.hanging", "tests.services.fixtures", "tests.services.summary"]


@pytest.fixture
def journal_file(tmp_path: Path) -> Path:
    """Where a journal's file may be made; there is none yet."""
    return tmp_path / "journal.db"


class OpenJournal(Protocol):
    """Opens a `Journal` on SQLite, with wrappers around its ports when asked for."""

    def __call__(
        self,
        path: Path | None = None,
        *,
        wrap_log: Callable[[Log], Log] = ...,
        wrap_leases: Callable[[Leases], Leases] = ...,
        leases_path: Path | None = None,
        clock: Callable[[], float] = ...,
        append_timeout: timedelta = ...,
        codec: Codec | None = None,
    ) -> Journal: ...


@pytest.fixture
async def open_journal(journal_file: Path) -> AsyncIterator[OpenJournal]:
    """Makes journals on one file (another one when asked), each like one of another process; closes them at the end."""
    opened: list[Journal] = []

    def make(
        path: Path | None = None,
        *,
        wrap_log: Callable[[Log], Log] = lambda log: log,
        wrap_leases: Callable[[Leases], Leases] = lambda leases: leases,
        leases_path: Path | None = None,
        clock: Callable[[], float] = time.time,
        append_timeout: timedelta = timedelta(seconds=5),
        codec: Codec | None = None,
    ) -> Journal:
        path = path or journal_file
        log = wrap_log(SQLiteLog(path, poll=timedelta(milliseconds=10)))
        leases = wrap_leases(SQLiteLeases(leases_path or path, clock=clock))
        journal = Journal(log, leases, codec=codec, append_timeout=append_timeout)
        opened.append(journal)
        return journal

    yield make
    for journal in opened:
        with suppress(JournalError):  # a test may have left it with a scope that cannot be read
            await journal.close()
