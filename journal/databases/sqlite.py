"""SQLite as the target: one file, one connection, one thread.

Failure model. A process may be killed at any instruction: SQLite rolls back what was not committed when the file is
opened the next time. It may be stopped and go on later: the write lock that it holds stops everybody else for as long,
and once it is gone the fence that was raised meanwhile refuses it. Relied on: SQLite's locking on a local file system,
and `synchronous=FULL`. Whoever waits for a lock can be cancelled, because the waiting is done on the event loop.

Everything that is asked of the database itself (`observe`, `witness`, ...) is about what is committed. There is one
connection, so it waits until a transaction that another task began has ended.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from journal.control import Control
from journal.databases import (
    sqlite_backfill as backfill,
    sqlite_bookkeeping as bookkeeping,
    sqlite_examination as examination,
)
from journal.databases.sqlite_connect import TargetFile
from journal.databases.sqlite_names import quoted
from journal.databases.sqlite_outside import Outside
from journal.databases.sqlite_schema import BUCKET_DOMAIN, OBJECT_DOMAIN, SCHEMA_DOMAIN
from journal.databases.sqlite_session import Session, SessionThread
from journal.databases.sqlite_shadow import SQLiteShadow
from journal.databases.sqlite_transaction import GIVE_UP_SECONDS, PAUSE_SECONDS, SQLiteTransaction
from journal.errors import Code, JournalError, UnavailableError, failure
from journal.identities import EventId, Fingerprint, Scope, fingerprint
from journal.ports import BackfillCursor, BackfillProgram, Finding, Guard, Level, Program, Shadow

T = TypeVar("T")

_SEMANTICS: Final = fingerprint(
    "fenced-journal 2026-12 sqlite semantic profile v1",
    *(domain.encode() for domain in (SCHEMA_DOMAIN, BUCKET_DOMAIN, OBJECT_DOMAIN)),
)
_LOWERING: Final = fingerprint("fenced-journal 2026-12 sqlite lowering profile v1")
_UNBOUND: Final = Control()
_HAS_TABLE: Final = "SELECT 1 FROM main.sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"


class SQLiteDatabase:
    """`Database` on one SQLite file.

    `create`: a file that is missing is made when the fence is raised; until then it shows an empty schema. `read_only`:
    nothing is ever written, and a file that is missing shows an empty schema too. Otherwise it must be there.

    Raises:
        InvalidContractError: `journal_missing_target`: the path can be no file.
    """

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        self._thread = SessionThread(str(path), TargetFile(path, create, read_only).open)
        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[Any] | None = None

    @property
    def semantic_profile(self) -> Fingerprint:
        """See `Database.semantic_profile`."""
        return _SEMANTICS

    @property
    def lowering_profile(self) -> Fingerprint:
        """See `Database.lowering_profile`."""
        return _LOWERING

    async def raise_fence(self, guard: Guard, control: Control, *, floor: int = 0, adopt: bool = False) -> None:
        """See `Database.raise_fence`."""

        def work(session: Session) -> None:
            session.begin()
            session.atomically(lambda held: _raise_fence(held, guard, floor=floor, adopt=adopt))

        async with self._turn(control):
            await self._patiently(control, lambda: self._thread.call(work, make=True))

    async def observe(self) -> Fingerprint:
        """See `Database.observe`."""
        return await self._read(lambda session: session.observe().fingerprint)

    async def describe(self) -> Mapping[str, str]:
        """See `Database.describe`."""
        return await self._read(lambda session: dict(session.observe().objects))

    async def witness(self, scope: Scope, unit: str) -> EventId | None:
        """See `Database.witness`."""
        return await self._read(lambda session: bookkeeping.witness(session.connection, scope, unit))

    async def cursor(self, scope: Scope, unit: str) -> BackfillCursor | None:
        """See `Database.cursor`."""
        place = backfill.Place(scope, unit)
        return await self._read(lambda session: backfill.read(session.connection, place))

    async def tokens(self, scope: Scope) -> Mapping[str, EventId]:
        """See `Database.tokens`."""
        return await self._read(lambda session: bookkeeping.tokens(session.connection, scope))

    @asynccontextmanager
    async def transaction(
        self, guard: Guard, control: Control, *, enforce_references: bool = False
    ) -> AsyncGenerator[SQLiteTransaction]:
        """See `Database.transaction`."""
        async with self._turn(control):
            transaction = SQLiteTransaction(self._thread, guard, control, enforces=enforce_references)
            try:
                await self._patiently(control, transaction.begin)
                yield transaction
            finally:
                await transaction.leave()

    async def advance_backfill(
        self, guard: Guard, control: Control, unit: str, program: BackfillProgram
    ) -> BackfillCursor:
        """See `Database.advance_backfill`."""
        async with self._turn(control):
            transaction = SQLiteTransaction(self._thread, guard, control, enforces=True)
            try:
                return await self._patiently(control, lambda: transaction.run_batch(unit, program))
            finally:
                await transaction.leave()

    async def execute_outside(self, guard: Guard, program: Program) -> None:
        """See `Database.execute_outside`."""
        outside = Outside(self._thread, guard, program)
        async with self._turn(_UNBOUND):
            await self._patiently(_UNBOUND, outside.begin)
            try:
                for _ in program.statements:
                    await self._patiently(_UNBOUND, outside.run_next)
            except UnavailableError as error:
                raise outside.failed(error) from error
            await outside.check_settings()

    async def is_empty(self, table: str) -> bool:
        """See `Database.is_empty`."""
        return await self._read(lambda session: _is_empty(session.connection, table))

    async def rows_problem(self, program: BackfillProgram) -> str | None:
        """See `Database.rows_problem`."""
        return await self._read(lambda session: backfill.rows_problem(session.connection, program))

    async def raised(self, scope: Scope) -> Guard | None:
        """On whose behalf the fence of a scope was raised last; None when it never was."""
        return await self._read(lambda session: examination.raised(session.connection, scope))

    async def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:  # noqa: ARG002  (it has no part)
        """See `Examined.examine`."""
        try:
            findings = await self._read(examination.findings)
        except JournalError as error:
            findings = [Finding("target", Level.PROBLEM, error.message, "see the message")]
        for finding in findings:
            yield finding

    async def shadow(self) -> Shadow:
        """See `Database.shadow`."""
        return SQLiteShadow()

    async def close(self) -> None:
        """See `Database.close`."""
        await self._thread.close()

    async def _read(self, work: Callable[[Session], T]) -> T:
        async with self._turn(_UNBOUND):
            return await self._patiently(_UNBOUND, lambda: self._thread.call(work))

    @asynccontextmanager
    async def _turn(self, control: Control) -> AsyncGenerator[None]:
        """Have the connection for oneself."""
        task = asyncio.current_task()
        if self._owner is not None and self._owner is task:
            raise failure(
                Code.TARGET_BUSY, "the transaction that this task has begun is still open: leave it before you ask more"
            )
        control.check()
        while self._lock.locked():
            await control.sleep(PAUSE_SECONDS)
        async with self._lock:
            self._owner = task
            try:
                yield
            finally:
                self._owner = None

    @staticmethod
    async def _patiently(control: Control, attempt: Callable[[], Awaitable[T]]) -> T:
        """Try again while another process keeps the database locked."""
        give_up = control.clock() + GIVE_UP_SECONDS
        while True:
            try:
                return await attempt()
            except UnavailableError as error:
                if error.code is not Code.TARGET_BUSY or (control.deadline is None and control.clock() >= give_up):
                    raise
                await control.sleep(PAUSE_SECONDS)


def _raise_fence(session: Session, guard: Guard, *, floor: int, adopt: bool) -> None:
    bookkeeping.raise_fence(session.connection, guard, floor=floor, adopt=adopt)
    session.commit()


def _is_empty(connection: sqlite3.Connection, table: str) -> bool:
    if connection.execute(_HAS_TABLE, (table,)).fetchone() is None:
        return True
    query = f"SELECT 1 FROM main.{quoted(table)} LIMIT 1"  # noqa: S608  (a quoted name)
    return connection.execute(query).fetchone() is None
