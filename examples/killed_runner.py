"""Apply the migrations of the current folder, and be killed right behind a commit, before it can be recorded.

    python killed_runner.py 3 --ttl 5

kills the process (SIGKILL) behind the third commit in the target database; its lease lasts 5 seconds longer. Everything
but the wrapper around the database is what `journal apply` does, too: settings, journal, lease, rehearsal, executor.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from journal.bootstrap import open_journal
from journal.control import Control
from journal.databases.sqlite import SQLiteDatabase
from journal.databases.sqlite_transaction import SQLiteTransaction
from journal.identities import HolderId, Scope
from journal.migrations.files import read_folder
from journal.ports import BackfillCursor, BackfillProgram, Guard
from journal.settings import Settings, load_settings
from projections.executor import Executor
from projections.outcome import BackfillAdvanced, MigrationStarted, Progress
from projections.rehearsal import Rehearsal


class KillingDatabase(SQLiteDatabase):
    """A target whose process is killed behind commit number `left`."""

    def __init__(self, path: Path, left: int) -> None:
        super().__init__(path, create=True)
        self._left = left

    @asynccontextmanager
    async def transaction(
        self, guard: Guard, control: Control, *, enforce_references: bool = False
    ) -> AsyncGenerator[SQLiteTransaction, None]:
        """The transaction as it is; the process ends behind it."""
        async with super().transaction(guard, control, enforce_references=enforce_references) as transaction:
            yield transaction
        self._count()

    async def advance_backfill(
        self, guard: Guard, control: Control, unit: str, program: BackfillProgram
    ) -> BackfillCursor:
        """The batch as it is; the process ends behind it."""
        cursor = await super().advance_backfill(guard, control, unit, program)
        self._count()
        return cursor

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def tell(progress: Progress) -> None:
    """One line for what begins."""
    match progress:
        case MigrationStarted():
            print(f"{progress.migration} begins", flush=True)
        case BackfillAdvanced():
            print(f"  {progress.cursor.matched} of {progress.cursor.rows} rows", flush=True)
        case _:
            pass


async def run(settings: Settings, commits: int, ttl: timedelta) -> None:
    """What `journal apply --holder pod-1` does, until it dies."""
    scope = settings.scope or Scope("shop")
    database = KillingDatabase(settings.database_file, commits)
    async with open_journal(settings, create=True) as journal:
        await journal.create(scope)
        async with journal.lease(scope, HolderId("pod-1"), ttl=ttl) as lease:
            executor = Executor(journal, lease, database, Rehearsal(scope, database), observer=tell)
            print(await executor.apply(read_folder(settings.dir, settings.app_label).migrations))


def main() -> None:
    parser = argparse.ArgumentParser(description="Apply the migrations of this folder, and be killed behind a commit.")
    parser.add_argument("commits", type=int, help="behind which commit in the database")
    parser.add_argument("--ttl", type=float, default=2.0, help="seconds that the lease lasts without renewal")
    arguments = parser.parse_args()
    asyncio.run(run(load_settings(), arguments.commits, timedelta(seconds=arguments.ttl)))


if __name__ == "__main__":
    main()
