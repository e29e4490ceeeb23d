"""What a service does before it serves: apply the folder's migrations, or wait until another instance has done it."""

from __future__ import annotations

import asyncio
import os
import socket

from journal.bootstrap import open_database, open_journal
from journal.identities import HolderId, Scope
from journal.migrations.files import read_folder
from journal.settings import load_settings
from projections.executor import Executor
from projections.outcome import Applied, UpToDate
from projections.rehearsal import Rehearsal


async def migrate() -> None:
    """Do as `journal apply` does, with the same settings; raise what a person has to know."""
    settings = load_settings()
    scope = settings.scope or Scope("main")
    migrations = read_folder(settings.dir, settings.app_label).migrations
    database = open_database(settings, create=True)
    rehearsal = Rehearsal(scope, database)
    try:
        async with open_journal(settings, create=True) as journal:
            await journal.create(scope)
            holder = HolderId(f"{socket.gethostname()[:64]}-{os.getpid()}")
            async with journal.lease(scope, holder) as lease:  # waits for its turn, renews itself
                outcome = await Executor(journal, lease, database, rehearsal).apply(migrations)
    finally:
        await rehearsal.close()
        await database.close()
    match outcome:
        case Applied():
            print("applied", *outcome.migrations)
        case UpToDate():
            print("up to date")
        case _:
            raise outcome.error


asyncio.run(migrate())
