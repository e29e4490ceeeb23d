"""Statements that cannot be in a transaction: each commits by itself, and those before a failure stay."""

from __future__ import annotations

from journal.databases.sqlite_bookkeeping import check_fence
from journal.databases.sqlite_lowering import keyword
from journal.databases.sqlite_pragmas import expected, pragma
from journal.databases.sqlite_session import Session, SessionThread
from journal.databases.sqlite_transaction import execute
from journal.errors import Code, JournalError, UnavailableError, failure
from journal.ports import Guard, Program


class Outside:
    """One run of a program outside of transactions; `journal_target_busy` comes at once, so that it can be retried."""

    def __init__(self, thread: SessionThread, guard: Guard, program: Program) -> None:
        self._thread = thread
        self._guard = guard
        self._program = program
        self._done = 0

    async def begin(self) -> None:
        """Check the fence, with the write lock that an older holder's transaction would have."""

        def work(session: Session) -> None:
            session.enforce_references(self._program.enforce_references)
            session.begin()
            session.atomically(lambda held: check_fence(held.connection, self._guard))
            session.rollback()

        await self._thread.call(work)

    async def run_next(self) -> None:
        """Run the next statement."""

        def work(session: Session) -> None:
            session.schema.forget()  # VACUUM numbers the rows of the schema anew
            execute(session, self._program.statements[self._done], self._program.numbers[self._done])

        await self._thread.call(lambda session: session.atomically(work))
        self._done += 1

    def failed(self, error: UnavailableError) -> JournalError:
        """The error for a target that became unavailable: nothing was written only as long as no statement was run."""
        if not self._done:
            return error
        return failure(Code.STATEMENT_FAILED, error.message, statement=self._program.numbers[self._done])

    async def check_settings(self) -> None:
        """SQLite ignores a setting that cannot be made now (a page size in WAL mode): that is a failure too."""
        await self._thread.call(self._check_settings)

    def _check_settings(self, session: Session) -> None:
        for number, statement in zip(self._program.numbers, self._program.statements, strict=True):
            if keyword(statement) != "pragma":
                continue
            asked = pragma(statement)
            if (wanted := expected(asked)) is None:
                continue
            (found,) = session.connection.execute(f"PRAGMA main.{asked.name}").fetchone()
            if str(found) != wanted:
                raise failure(
                    Code.STATEMENT_FAILED,
                    f"{session.where}: statement {number}: {asked.name} stays {found}: SQLite cannot change it to "
                    f"{wanted} in this database as it is",
                    statement=number,
                )
