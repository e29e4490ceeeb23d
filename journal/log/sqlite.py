"""The embedded log: one SQLite file, several processes, nothing to start.

Failure model. A process may die at any instruction; a transaction is then there or not, whole. The disk may fill up; a
commit may fail half way, and is then unknown until it is read. Relied on: SQLite's locking on a local file system, WAL
with `synchronous=FULL` (a commit that returned survives power loss), and that nobody deletes rows. A process that is
stopped inside a transaction (well under a millisecond) keeps the file locked until it goes on or dies: others are told
so, and nothing else can be done about it on a file.

One thread owns the writing connection. Appends that wait while a commit is under way go into the next one together, so
64 callers pay for one `fsync`. The same thread hands what it committed to the tails in the step that completes the
append. When the transaction found a tail's last row to be the log's last, the tail gets the very rows that were inserted;
anything else is read from the database. What other processes commit it sees by SQLite's data version.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from pathlib import Path
from queue import Empty
from typing import Any, Final, cast

from journal.errors import Code, JournalError, OutcomeUnknownError, failure
from journal.identities import Position, Scope
from journal.ports import Finding, Outgoing, StoredEvent
from journal.sqlite_examination import durability, integrity, place, unusable
from journal.sqlite_file import SQLiteThread, damaged, deliver, transaction, translate
from journal.tasks import start

_SHIFT: Final = 40  # see the schema in sqlite_file: key = scope number * 2^40 + position
_BATCH: Final = 2_000
_BATCH_BYTES: Final = 8 * 2**20
_FETCH: Final = 32
_MAX_WAITING: Final = 20_000


_INSERT: Final = "INSERT INTO events (key, data, mac) VALUES "
_ROWS: Final = 25  # that one statement inserts; 100 of these take a fifth less time than 100 statements
_INSERT_ONE: Final = """
INSERT INTO events (key, data, mac)
VALUES ((SELECT coalesce(max(key) + 1, ?) FROM events WHERE key >= ? AND key < ?), ?, ?)
"""


class SQLiteLog:
    """`Log` on one SQLite file. `poll` is how soon events of other processes are noticed by a tail."""

    def __init__(
        self,
        path: Path | str,
        *,
        create: bool = True,
        read_only: bool = False,
        poll: timedelta = timedelta(milliseconds=50),
    ) -> None:
        path = Path(path)
        self._writer = _WriterThread(path, create=create, read_only=read_only, poll=poll)
        # Long reads must not stand in the way of appends.
        self._reader = SQLiteThread(path, create=create, read_only=read_only)

    async def open(self) -> None:
        """Connect now rather than at the first call; raises what `sqlite_file.connect` raises."""
        await self._writer.start()

    async def create(self, scope: Scope) -> None:
        """See `Log.create`."""
        await self._writer.call(lambda connection: transaction(connection, lambda c: _create_scope(c, scope)))

    async def scopes(self) -> Sequence[Scope]:
        """See `Log.scopes`."""
        rows = await self._reader.call(lambda c: c.execute("SELECT name FROM scopes ORDER BY name").fetchall())
        try:
            return [Scope(name) for (name,) in rows]
        except JournalError as error:
            raise damaged(self._reader.path, f"it has a scope with an impossible name: {error.message}") from error

    def append(self, scope: Scope, events: Sequence[Outgoing]) -> Awaitable[None]:
        """See `Log.append`."""
        return self._writer.append(scope, events)

    async def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """See `Log.read`."""
        base, key, last = await self._begin(scope, after)
        while key < last:
            rows = await self._reader.call(_reading(key, last))
            whole = _without_gap(key, rows)
            key += len(whole)
            if whole:
                yield _stored(base, whole)
            if not rows or len(whole) < len(rows):
                raise _deleted(scope, key + 1 - base)

    async def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """See `Log.tail`."""
        base, key, _ = await self._begin(scope, after)
        tail = _Tail(scope, base, key, asyncio.get_running_loop())
        await self._writer.follow(tail)
        try:
            while (batch := await tail.next()) is not None:
                yield batch
        finally:
            self._writer.forget(tail)

    async def _begin(self, scope: Scope, after: Position | None) -> tuple[int, int, int]:
        """Key of the scope's first event, of the one to read behind, and of the last that there is."""
        base, last = await self._reader.call(lambda connection: _extent(connection, scope))
        key = base - 1 if after is None else base + after
        if key > last:
            raise _lost(scope, key - base, last - base)
        return base, key, last

    async def end(self, scope: Scope) -> Position | None:
        """See `Log.end`."""
        base, last = await self._writer.call(lambda connection: _extent(connection, scope))
        return None if last < base else Position(last - base)

    async def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:  # noqa: ARG002  (one file for all)
        """See `Examined.examine`."""
        path = self._reader.path
        try:
            findings = await self._reader.call(
                lambda c: [*place("log", path), durability("log", c), integrity("log", c)]
            )
        except JournalError as error:
            findings = [unusable("log", error)]
        for finding in findings:
            yield finding

    async def close(self) -> None:
        """See `Log.close`."""
        await self._writer.close()
        await self._reader.close()


# --- SQL --------------------------------------------------------------------------------------------------------------

_Row = tuple[int, bytes, bytes | None]


def _create_scope(connection: sqlite3.Connection, scope: Scope) -> None:
    connection.execute("INSERT INTO scopes (name) VALUES (?) ON CONFLICT DO NOTHING", (str(scope),))


def _base(connection: sqlite3.Connection, scope: Scope) -> int:
    row = connection.execute("SELECT number FROM scopes WHERE name = ?", (str(scope),)).fetchone()
    if row is None:
        raise failure(Code.UNKNOWN_SCOPE, f"there is no scope {scope} in this log", scope=str(scope))
    return int(row[0]) << _SHIFT


def _extent(connection: sqlite3.Connection, scope: Scope) -> tuple[int, int]:
    """Key of a scope's first event and of its last; the last is below the first when there is none."""
    base = _base(connection, scope)
    return base, _last(connection, base)


def _last(connection: sqlite3.Connection, base: int) -> int:
    (last,) = connection.execute(
        "SELECT max(key) FROM events WHERE key >= ? AND key < ?", (base, base + (1 << _SHIFT))
    ).fetchone()
    return base - 1 if last is None else int(last)


def _rows(connection: sqlite3.Connection, key: int, last: int) -> list[_Row]:
    """The next rows, at most `_BATCH` and about `_BATCH_BYTES`, at least one when there is one."""
    cursor = connection.execute(
        "SELECT key, data, mac FROM events WHERE key > ? AND key <= ? ORDER BY key LIMIT ?", (key, last, _BATCH)
    )
    rows: list[_Row] = []
    size = 0
    while size < _BATCH_BYTES and (some := cursor.fetchmany(_FETCH)):
        rows += some
        if len(some) < _FETCH:
            break
        size += sum(len(data) for _, data, _ in some)
    cursor.close()
    return rows


def _insert_rows(connection: sqlite3.Connection, base: int, rows: list[StoredEvent]) -> None:
    values = f"({base} + ?, ?, ?)"  # written into the statement, so that the rows are its parameters as they are
    whole = len(rows) // _ROWS * _ROWS
    if whole:
        statement = _INSERT + ", ".join([values] * _ROWS)
        for first in range(0, whole, _ROWS):
            connection.execute(statement, list(chain.from_iterable(rows[first : first + _ROWS])))
    connection.executemany(_INSERT + values, rows[whole:])


def _is_end(rows: list[_Row]) -> bool:
    """Whether `_rows` stopped because there was no more; a second query would say the same."""
    return len(rows) < _FETCH


def _reading(key: int, last: int) -> Callable[[sqlite3.Connection], list[_Row]]:
    return lambda connection: _rows(connection, key, last)


def _stored(base: int, rows: Iterable[_Row]) -> list[StoredEvent]:
    # A replay makes one of these an event, so it goes past the constructors, which would add nothing but time.
    new = tuple.__new__
    return [new(StoredEvent, (key - base, data, mac)) for key, data, mac in rows]


def _without_gap(key: int, rows: list[_Row]) -> list[_Row]:
    """The rows that follow `key` without a gap. Positions have none in this adapter, so one is a deletion."""
    if rows and rows[-1][0] - key == len(rows):
        return rows
    return [row for number, row in enumerate(rows, 1) if row[0] == key + number]


def _deleted(scope: Scope, position: int) -> JournalError:
    return failure(
        Code.HISTORY_LOST,
        f"scope {scope}: the event at position {position} was in the log and is gone: restore the file from a backup",
        scope=str(scope),
        position=position,
    )


def _lost(scope: Scope, position: int, last: int) -> JournalError:
    return failure(
        Code.HISTORY_LOST,
        f"scope {scope}: the log ends at position {last}, but position {position} was read from it before: it was "
        "truncated or replaced",
        scope=str(scope),
        position=position,
    )


# --- the writing thread -----------------------------------------------------------------------------------------------


class _Tail:
    """One follower of one scope: filled by the thread, emptied by its coroutine."""

    def __init__(self, scope: Scope, base: int, key: int, loop: asyncio.AbstractEventLoop) -> None:
        self.scope = scope
        self.base = base
        self.key = key
        self.loop = loop
        self.behind = True  # whether there may be rows that were not handed over; the thread's
        self._pushed = 0  # rows handed over, counted by the thread
        self._taken = 0  # rows taken, counted by the loop
        self._closed = False
        self._batches: list[list[StoredEvent]] = []
        self._error: BaseException | None = None
        self._arrived: asyncio.Future[None] | None = None

    @property
    def has_room(self) -> bool:
        """Whether more rows may be handed over; keeps a slow follower from filling the memory."""
        return self._pushed - self._taken < _MAX_WAITING

    def hand_over(self, batch: list[StoredEvent], handover: _Handover) -> None:
        self.key = self.base + batch[-1][0]
        self._pushed += len(batch)
        handover.add(self.loop, self._push, batch)

    def is_next(self, batch: list[StoredEvent]) -> bool:
        """Whether these are the very next rows, and few enough to be handed over at once."""
        return self.base + batch[0][0] == self.key + 1 and self.has_room and len(batch) <= _BATCH

    def _push(self, batch: list[StoredEvent]) -> None:
        self._batches.append(batch)
        self._wake()

    def close(self, _: object) -> None:
        self._closed = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    async def next(self) -> list[StoredEvent] | None:
        """The next rows, awaited; None when the log was closed."""
        while not self._batches:
            if self._error is not None:
                raise self._error
            if self._closed:
                return None
            self._arrived = self.loop.create_future()
            await self._arrived
        batch = self._batches.pop(0)
        self._taken += len(batch)
        return batch


@dataclass(slots=True)
class _Append:
    """Events to be appended; `rows` is what they became in the transaction, in order."""

    scope: Scope
    events: Sequence[Outgoing]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]
    rows: list[StoredEvent] = field(default_factory=list)
    error: BaseException | None = None


class _Handover:
    """What a loop gets in one call: rows for tails first, then the ends of appends, so that a verdict never waits."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[asyncio.AbstractEventLoop, list[tuple[Callable[..., None], Any]]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, call: Callable[..., None], argument: Any) -> None:
        self._calls.setdefault(loop, []).append((call, argument))

    def send(self) -> None:
        for loop, calls in self._calls.items():
            deliver(loop, _run_all, calls)


def _run_all(calls: list[tuple[Callable[..., None], Any]]) -> None:
    for call, argument in calls:
        call(argument)


class _WriterThread(SQLiteThread):
    def __init__(self, path: Path, *, create: bool, read_only: bool, poll: timedelta) -> None:
        super().__init__(path, create=create, read_only=read_only)
        self._poll = poll.total_seconds()
        self._tails: list[_Tail] = []
        self._bases: dict[Scope, int] = {}  # a scope keeps its number for ever
        self._version = 0
        self._next_look = 0.0
        self._early: list[_Append] = []  # appends that came before there was a connection

    def append(self, scope: Scope, events: Sequence[Outgoing]) -> Awaitable[None]:
        self.check_process()
        loop = asyncio.get_running_loop()
        append = _Append(scope, events, loop, loop.create_future())
        # No coroutine in between: the job is under way, or has its place, when this returns.
        if self._is_connected and not self._early:
            self._jobs.put(append)
        else:
            self._early.append(append)
            if len(self._early) == 1:
                start(self._put_early(), f"connect {self.path}")
        return append.future

    async def _put_early(self) -> None:
        try:
            await self.start()
        except JournalError as error:
            for append in self._early:
                if not append.future.done():
                    append.future.set_exception(error)
        else:
            for append in self._early:
                self._jobs.put(append)
        finally:
            self._early = []

    async def follow(self, tail: _Tail) -> None:
        await self.call(lambda connection: self._add(connection, tail))

    def forget(self, tail: _Tail) -> None:
        if not self._closed:
            self._jobs.put(lambda _: self._drop(tail))

    def _drop(self, tail: _Tail) -> None:
        if tail in self._tails:
            self._tails.remove(tail)

    def _add(self, connection: sqlite3.Connection, tail: _Tail) -> None:
        self._tails.append(tail)
        handover = _Handover()
        self._feed(connection, [tail], handover)
        handover.send()

    def _work(self, connection: sqlite3.Connection) -> None:
        while True:
            jobs = self._take_jobs()
            appends: list[_Append] = []
            for job in jobs:
                if isinstance(job, _Append):
                    appends.append(job)
                    continue
                self._commit(connection, appends)
                appends = []
                if job is None:
                    self._close_tails()
                    return
                job(connection)
            self._commit(connection, appends)
            # Also between jobs: one busy scope must not keep the tails of others from foreign events.
            if self._tails and time.monotonic() >= self._next_look:
                self._look_around(connection)

    def _take_jobs(self) -> list[Any]:
        """All jobs that wait, the first of them awaited; none when it is time to look for foreign events."""
        waiting = self._jobs
        try:
            jobs: list[Any] = [waiting.get(timeout=self._pause())]
        except Empty:
            return []
        while not waiting.empty():  # nobody else takes from it
            jobs.append(waiting.get())
        return jobs

    def _pause(self) -> float | None:
        if not self._tails:
            return None
        if any(tail.behind and tail.has_room for tail in self._tails):
            self._next_look = 0.0
            return 0.0
        return max(0.0, self._next_look - time.monotonic())

    def _commit(self, connection: sqlite3.Connection, appends: list[_Append]) -> None:
        if not appends:
            return
        if len(appends) == 1 and len(appends[0].events) == 1:
            self._commit_one(connection, appends[0])
        else:
            self._commit_many(connection, appends)
        handover = _Handover()
        by_scope: dict[Scope, list[_Append]] = {}
        for append in appends:
            by_scope.setdefault(append.scope, []).append(append)
        for tail in self._tails:
            if tail.scope in by_scope:
                self._show(connection, tail, by_scope[tail.scope], handover)
        for append in appends:
            handover.add(append.loop, _finish, append)
        handover.send()

    def _show(self, connection: sqlite3.Connection, tail: _Tail, appends: list[_Append], handover: _Handover) -> None:
        """Hand a tail what was appended to its scope. The rows of one transaction have nothing foreign between them."""
        rows = appends[0].rows if len(appends) == 1 else [row for append in appends for row in append.rows]
        if any(append.error is not None for append in appends) or (rows and not tail.is_next(rows)):
            self._feed(connection, [tail], handover)
        elif rows:
            tail.hand_over(rows, handover)

    def _commit_one(self, connection: sqlite3.Connection, append: _Append) -> None:
        """The common case in one statement, which is a transaction of its own."""
        try:
            base = self._base_of(connection, append.scope)
            ((data, mac),) = append.events
            cursor = connection.execute(_INSERT_ONE, (base, base, base + (1 << _SHIFT), data, mac))
            append.rows = _stored(base, [(cast("int", cursor.lastrowid), data, mac)])
        except JournalError as error:
            append.error = error
        except sqlite3.Error as error:
            self._abort(connection, [append], self._after_commit(error), error)
        except Exception as error:  # noqa: BLE001  (not the database's, so it never got there)
            self._abort(connection, [append], _refusal(error), error)

    def _commit_many(self, connection: sqlite3.Connection, appends: list[_Append]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            ends: dict[Scope, int] = {}
            for append in appends:
                self._insert(connection, append, ends)
        except Exception as error:  # noqa: BLE001  (whatever it is, nothing is written before COMMIT: an explicit no)
            refusal = translate(error, self.path) if isinstance(error, sqlite3.Error) else _refusal(error)
            self._abort(connection, appends, refusal, error)
            return
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._abort(connection, appends, self._after_commit(error), error)

    def _insert(self, connection: sqlite3.Connection, append: _Append, ends: dict[Scope, int]) -> None:
        """`ends` has the next position of each scope that this transaction has asked for."""
        scope = append.scope
        try:
            base = self._base_of(connection, scope)
        except JournalError as error:
            append.error = error
            return
        first = ends[scope] if scope in ends else _last(connection, base) + 1 - base
        new = tuple.__new__  # as in `_stored`
        append.rows = [new(StoredEvent, (position, *event)) for position, event in enumerate(append.events, first)]
        ends[scope] = first + len(append.rows)
        _insert_rows(connection, base, append.rows)

    def _base_of(self, connection: sqlite3.Connection, scope: Scope) -> int:
        base = self._bases.get(scope)
        if base is None:
            base = self._bases[scope] = _base(connection, scope)
        return base

    def _after_commit(self, error: sqlite3.Error) -> JournalError:
        if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY):
            # The frame that makes a transaction count is written last: without room for it there is none.
            return translate(error, self.path)
        return OutcomeUnknownError(f"{self.path}: the commit of an append failed: {error}")

    @staticmethod
    def _abort(connection: sqlite3.Connection, appends: list[_Append], error: JournalError, cause: Exception) -> None:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        error.__cause__ = cause
        for append in appends:
            append.error = append.error or error

    def _look_around(self, connection: sqlite3.Connection) -> None:
        """Has another process committed something? SQLite's data version says so without reading a table."""
        self._next_look = time.monotonic() + self._poll
        try:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error as error:
            self._fail_tails(self._tails, error)
            return
        changed, self._version = version != self._version, version
        handover = _Handover()
        self._feed(connection, [tail for tail in self._tails if changed or tail.behind], handover)
        handover.send()

    def _feed(self, connection: sqlite3.Connection, tails: list[_Tail], handover: _Handover) -> None:
        for tail in tails:
            try:
                tail.behind = True
                while tail.has_room:
                    rows = _rows(connection, tail.key, tail.base + (1 << _SHIFT) - 1)
                    if not rows:
                        tail.behind = False
                        break
                    whole = _without_gap(tail.key, rows)
                    if whole:
                        tail.hand_over(_stored(tail.base, whole), handover)
                    if len(whole) < len(rows):
                        raise _deleted(tail.scope, tail.key + 1 - tail.base)
                    if _is_end(rows):
                        tail.behind = False
                        break
            except (sqlite3.Error, JournalError) as error:
                self._fail_tails([tail], error)

    def _fail_tails(self, tails: list[_Tail], error: BaseException) -> None:
        handover = _Handover()
        for tail in tails:
            handover.add(tail.loop, tail.fail, self._translated(error))
        self._tails = [tail for tail in self._tails if tail not in tails]
        handover.send()

    def _close_tails(self) -> None:
        handover = _Handover()
        for tail in self._tails:
            handover.add(tail.loop, tail.close, None)
        handover.send()


def _refusal(error: Exception) -> JournalError:
    return failure(Code.STORAGE_FAILED, f"the append could not be prepared: {error!r}")


def _finish(append: _Append) -> None:
    if append.future.done():
        return
    if append.error is None:
        append.future.set_result(None)
    else:
        append.future.set_exception(append.error)
