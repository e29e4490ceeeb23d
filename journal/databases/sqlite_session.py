"""One SQLite connection, the transaction that is open on it, and the dedicated thread that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

from journal.databases.sqlite_errors import DRIVER_ERRORS, primary, translate
from journal.databases.sqlite_observer import Observer
from journal.databases.sqlite_schema import Semantics
from journal.databases.sqlite_watch import Watch
from journal.errors import Code, failure

T = TypeVar("T")

BUSY_SECONDS: Final = 0.1  # short, because whoever waits longer does so on the loop, where it can be cancelled
_AGAIN_SECONDS: Final = 0.02


class Session:
    """A connection in autocommit mode and what is known about it. Only its thread uses it, `interrupt` aside.

    `is_substitute`: it stands for a database that does not exist, and is asked for once.
    """

    def __init__(self, connection: sqlite3.Connection, where: str, *, is_substitute: bool = False) -> None:
        self.connection = connection
        self.where = where
        self.is_substitute = is_substitute
        self.watch = Watch(connection)
        self.schema = Observer(connection, self.watch)
        self._enforces: bool | None = None

    def enforce_references(self, enforces: bool) -> None:
        """Let foreign keys act at once, or not at all; SQLite ignores it within a transaction."""
        if enforces is not self._enforces:  # it makes SQLite compile every statement anew
            self.connection.execute(f"PRAGMA foreign_keys = {'ON' if enforces else 'OFF'}")
            self._enforces = enforces

    def begin(self) -> None:
        """Begin a transaction with its write lock held."""
        self.connection.execute("BEGIN IMMEDIATE")

    def observe(self) -> Semantics:
        """The semantics of the schema, all of it as of one moment."""
        if self.connection.in_transaction:
            return self.schema.observe()
        known = self.schema.unchanged()
        if known is not None:
            return known
        self.connection.execute("BEGIN")
        try:
            semantics = self.schema.observe()
            self.commit()
        except BaseException:
            self.rollback()
            raise
        return semantics

    def commit(self) -> None:
        """Commit; what was read of the schema is what lasts."""
        self.connection.execute("COMMIT")
        self.schema.committed()

    def rollback(self) -> None:
        """Leave no transaction open, whatever became of it."""
        while self.connection.in_transaction:
            try:
                self.connection.execute("ROLLBACK")
            except sqlite3.OperationalError as error:  # an interrupt that was meant for the statement before
                if primary(error) != sqlite3.SQLITE_INTERRUPT:
                    raise
        self.schema.rolled_back()

    def close(self) -> None:
        """Close the connection, as a process that comes to its end does."""
        with contextlib.suppress(sqlite3.Error):
            # An interrupt that found nothing to interrupt counts until a statement begins; it would keep SQLite from
            # moving the write-ahead log into the database.
            self.connection.execute("SELECT 1")
        self.connection.close()

    def atomically(self, work: Callable[[Session], T]) -> T:
        """Do a part of a transaction; when that fails, all of the transaction is rolled back."""
        try:
            return work(self)
        except BaseException:
            self.rollback()
            raise


@dataclass(eq=False)
class _Job(Generic[T]):
    work: Callable[[Session], T]
    make: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[T]
    is_abandoned: bool = False
    is_finished: bool = False
    settled: asyncio.Future[None] | None = field(default=None)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        """Hand over the outcome, on the loop."""
        self.is_finished = True
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)  # type: ignore[arg-type]  # the result of `work`
        else:
            self.future.set_exception(error)


@dataclass(frozen=True)
class _End:
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class SessionThread:
    """The one thread that uses a session; coroutines send it functions and await their results.

    `open_session` is called in the thread, before the first function that needs one and again after it failed; its
    argument says whether a database that is missing is to be made.
    """

    def __init__(self, where: str, open_session: Callable[[bool], Session]) -> None:
        self.where = where
        self._open_session = open_session
        self._process = os.getpid()
        self._jobs: SimpleQueue[_Job[Any] | _End] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._session: Session | None = None
        self._closed = False

    async def call(self, work: Callable[[Session], T], *, make: bool = False, interruptible: bool = True) -> T:
        """Run `work` in the thread; the driver's errors come back translated.

        A caller that is cancelled waits until the thread has answered: nothing runs on behalf of nobody. It interrupts
        the statement that runs, or takes work back that has not begun, unless that must not be.
        """
        self._check()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        job = _Job(work, make, loop, future)
        self._jobs.put(job)
        try:
            return await future
        except asyncio.CancelledError:
            await self._abandon(job, interruptible=interruptible)
            raise

    async def close(self) -> None:
        """Interrupt what runs, roll back, end the thread."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._process:
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        self._jobs.put(_End(loop, ended))
        while not ended.done():
            self._interrupt()
            await asyncio.wait([ended], timeout=_AGAIN_SECONDS)
        thread.join()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise failure(
                Code.FORKED, f"{self.where} was open when this process was forked: open it after the fork, or use spawn"
            )
        if self._closed:
            raise failure(Code.CLOSED, f"{self.where} was closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name="journal-target", daemon=True)
            self._thread.start()

    async def _abandon(self, job: _Job[Any], *, interruptible: bool) -> None:
        job.is_abandoned = interruptible
        while not job.is_finished:
            if interruptible:  # again and again: it may have come just before a statement began
                self._interrupt()
            job.settled = job.loop.create_future()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([job.settled], timeout=_AGAIN_SECONDS)

    def _interrupt(self) -> None:
        session = self._session
        if session is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # the thread has just closed it
                session.connection.interrupt()

    def _main(self) -> None:
        while isinstance(job := self._jobs.get(), _Job):
            self._do(job)
        self._drop_session()
        _deliver(job.loop, _succeed, job.future)

    def _do(self, job: _Job[Any]) -> None:
        result, error = None, None
        try:
            if self._closed:
                raise failure(Code.CLOSED, f"{self.where} was closed")
            if not job.is_abandoned:
                result = job.work(self._have_session(make=job.make))
        except DRIVER_ERRORS as raised:
            error = self._translated(raised)
        except BaseException as raised:  # noqa: BLE001  (it is raised in the caller)
            error = raised
        if self._session is not None and self._session.is_substitute:
            self._drop_session()
        _deliver(job.loop, job.finish, result, error)

    def _have_session(self, *, make: bool) -> Session:
        if self._session is None:
            self._session = self._open_session(make)
        return self._session

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _translated(self, error: Any) -> BaseException:
        if self._closed and primary(error) == sqlite3.SQLITE_INTERRUPT:
            return failure(Code.CLOSED, f"{self.where} was closed in the middle of a statement, which was undone")
        return translate(error, self.where)


def _deliver(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *args: Any) -> None:
    """Have `call` run on a loop, from a thread; a loop that was closed has nobody left who waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *args)


def _succeed(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
