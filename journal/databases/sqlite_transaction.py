"""One transaction of the target: what runs in it, and what is proven about its end."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

from journal.control import Control
from journal.databases import sqlite_backfill as backfill, sqlite_bookkeeping as bookkeeping
from journal.databases.sqlite_errors import DRIVER_ERRORS, primary, translate
from journal.databases.sqlite_lowering import CANNOT_BREAK_REFERENCES, keyword
from journal.databases.sqlite_references import Violation, broken, violations
from journal.databases.sqlite_session import Session, SessionThread
from journal.errors import Code, CommitFailedError, JournalError, failure
from journal.identities import EventId, Fingerprint
from journal.ports import BackfillCursor, BackfillProgram, Guard, Program

T = TypeVar("T")

GIVE_UP_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.02


class SQLiteTransaction:
    """`Transaction` on SQLite. Anything that fails in it rolls all of it back, there and then."""

    def __init__(self, thread: SessionThread, guard: Guard, control: Control, *, enforces: bool) -> None:
        self._thread = thread
        self._guard = guard
        self._control = control
        self._enforces = enforces
        self._stamps: dict[str, EventId] = {}
        self._dangling: Counter[Violation] | None = None  # before the first statement that can break a reference
        self._source: Fingerprint | None = None
        self._is_over = False

    async def begin(self) -> None:
        """Take the write lock, check the fence and look at the schema, in one way to the thread and back.

        Raises as `Database.transaction`, `journal_target_busy` at once.
        """

        def work(session: Session) -> Fingerprint:
            self._begin(session)
            return session.atomically(lambda held: held.observe().fingerprint)

        self._source = await self._thread.call(work)

    def _begin(self, session: Session) -> None:
        session.enforce_references(self._enforces)
        session.begin()
        session.atomically(lambda held: bookkeeping.check_fence(held.connection, self._guard))

    @property
    def source(self) -> Fingerprint:
        """See `Transaction.source`."""
        assert self._source is not None
        return self._source

    async def leave(self) -> None:
        """Roll back what was not committed."""
        if not self._is_over and not self._thread.is_closed:
            self._is_over = True
            await self._thread.call(Session.rollback, interruptible=False)

    async def holds(self, query: str) -> bool:
        """See `Transaction.holds`."""
        return await self._do(lambda session: holds(session, query, {}))

    async def execute(self, program: Program) -> Fingerprint:
        """See `Transaction.execute`."""
        return await self._do(lambda session: self._execute(session, program))

    def _execute(self, session: Session, program: Program) -> Fingerprint:
        with session.schema.following():
            for number, statement in zip(program.numbers, program.statements, strict=True):
                if keyword(statement) not in CANNOT_BREAK_REFERENCES:
                    self._look_before(session)
                execute(session, statement, number)
        return session.observe().fingerprint

    def _look_before(self, session: Session) -> None:
        if self._dangling is None and not self._enforces:
            self._dangling = violations(session.connection)

    async def observe(self) -> Fingerprint:
        """See `Transaction.observe`."""
        return await self._do(lambda session: session.observe().fingerprint)

    async def stamp(self, unit: str, token: EventId) -> None:
        """See `Transaction.stamp`. It is written right before the commit, which spares a way to the thread and back."""
        self._check()
        self._stamps[unit] = token

    async def begin_backfill(self, unit: str, token: EventId, program: BackfillProgram) -> BackfillCursor:
        """See `Transaction.begin_backfill`."""
        place = backfill.Place(self._guard.scope, unit)
        return await self._do(lambda session: backfill.begin(session.connection, place, token, program))

    async def run_batch(self, unit: str, program: BackfillProgram) -> BackfillCursor:
        """Begin, run one batch of a backfill and commit, in one way to the thread and back.

        Whoever is cancelled interrupts it, even the commit: that is then done, or it is not and is rolled back.
        """
        place = backfill.Place(self._guard.scope, unit)

        def work(session: Session) -> tuple[BackfillCursor, bool]:
            self._begin(session)
            return session.atomically(lambda held: (_advance(held, place, program), self._commit(held)))

        cursor, is_committed = await self._thread.call(work)
        if not is_committed:
            await self._commit_behind_readers()
        self._is_over = True
        return cursor

    async def commit(self) -> None:
        """See `Transaction.commit`. Waits for readers, which keep a commit from a database that is not in WAL mode."""
        if self._dangling is not None:
            await self._do(self._check_references)
        await self._commit_behind_readers()
        self._is_over = True

    async def _commit_behind_readers(self) -> None:
        give_up = self._control.clock() + GIVE_UP_SECONDS
        while not await self._do(self._commit, interruptible=False):
            try:
                await self._control.sleep(PAUSE_SECONDS)
            except JournalError as stopped:
                await self.leave()
                raise _not_committed(f"other processes were reading, and {stopped.message}") from stopped
            if self._control.deadline is None and self._control.clock() >= give_up:
                await self.leave()
                raise _not_committed(f"other processes were reading for {GIVE_UP_SECONDS:.0f} s")

    def _check_references(self, session: Session) -> None:
        if found := violations(session.connection) - (self._dangling or Counter()):
            raise broken(found)

    def _commit(self, session: Session) -> bool:
        """Whether it is committed; not yet when readers are in the way."""
        try:
            for unit, token in self._stamps.items():
                bookkeeping.stamp(session.connection, self._guard.scope, unit, token)
            session.commit()
        except sqlite3.Error as error:
            if not session.connection.in_transaction:
                raise CommitFailedError(f"{session.where}: the commit failed: {error}") from error
            if primary(error) == sqlite3.SQLITE_BUSY:
                return False
            if primary(error) == sqlite3.SQLITE_CONSTRAINT:  # deferred foreign keys, which acted
                raise broken(violations(session.connection)) from error
            raise _not_committed(f"{session.where}: {error}") from error
        return True

    def _check(self) -> None:
        if self._is_over:
            raise failure(Code.STATEMENT_FAILED, "the transaction is over: begin another one")

    async def _do(self, work: Callable[[Session], T], *, interruptible: bool = True) -> T:
        self._check()
        try:
            return await self._thread.call(lambda session: session.atomically(work), interruptible=interruptible)
        except JournalError:
            self._is_over = True
            raise


def _not_committed(why: str) -> CommitFailedError:
    return CommitFailedError(f"nothing was committed: {why}; run again", aborted=True)


def execute(session: Session, statement: str, number: int) -> None:
    """Run one statement of a step to its end."""
    try:
        for _ in session.connection.execute(statement):
            pass
    except DRIVER_ERRORS as error:
        raise translate(error, session.where, statement=number) from error


def _advance(session: Session, place: backfill.Place, program: BackfillProgram) -> BackfillCursor:
    cursor = backfill.advance(session.connection, place, program)
    if cursor.done and program.verify is not None:
        _verify(session, place, program, program.verify)
    return cursor


def _verify(session: Session, place: backfill.Place, program: BackfillProgram, query: str) -> None:
    last = backfill.last_key(session.connection, place, program)
    try:
        verified = holds(session, query, last)
    except DRIVER_ERRORS as error:
        raise translate(error, session.where, statement=2) from error
    if not verified:
        raise failure(
            Code.VERIFY_FAILED,
            f"{session.where}: all rows were gone through, but the verification does not hold; the last batch was "
            "rolled back",
        )


def holds(session: Session, query: str, parameters: backfill.Parameters) -> bool:
    """Whether a query gives exactly one row with one true value."""
    cursor = session.connection.execute(query, parameters)
    try:
        rows = cursor.fetchmany(2)
    finally:
        cursor.close()
    if len(rows) != 1 or len(rows[0]) != 1:
        return False
    return bool(session.connection.execute("SELECT ? IS TRUE", rows[0]).fetchone()[0])
