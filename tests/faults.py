"""Ports that misbehave: each wraps a real adapter and does to its calls what networks, disks and signals do.

Two kinds. `FaultyLog` and `FaultyLeases` take a script of faults, one a call, and pass everything else through.
`StoppingLog`, `StoppingLeases` and `StoppingDatabase` share a `Fuse` that counts port calls and ends the process (or what looks like it
from below the ports) before or after call i.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from journal.control import Control
from journal.errors import OutcomeUnknownError
from journal.identities import EventId, Fingerprint, HolderId, LeaseId, Position, Scope
from journal.ports import (
    BackfillCursor,
    BackfillProgram,
    Database,
    Grant,
    Guard,
    Leases,
    Log,
    Outgoing,
    Program,
    Shadow,
    StoredEvent,
    Transaction,
)

T = TypeVar("T")
Call = Callable[[], Awaitable[Any]]
Fault = Callable[[Call], Awaitable[Any]]


# --- faults: what happens to one call ---------------------------------------------------------------------------------


def refuse(error: BaseException) -> Fault:
    """The call does nothing and raises `error`."""

    async def fault(_: Call) -> None:
        raise error

    return fault


def lose_answer(error: BaseException | None = None) -> Fault:
    """The call is done, and its answer lost: OutcomeUnknownError (or `error`) instead."""

    async def fault(call: Call) -> None:
        await call()
        raise error or OutcomeUnknownError("the acknowledgement was lost")

    return fault


def lose_call() -> Fault:
    """The call never arrives, and nobody knows: OutcomeUnknownError."""
    return refuse(OutcomeUnknownError("the request was lost"))


def twice() -> Fault:
    """The call is delivered two times."""

    async def fault(call: Call) -> Any:
        await call()
        return await call()

    return fault


async def passed_on(call: Call) -> Any:
    """Nothing happens to the call."""
    return await call()


class Held:
    """A fault that keeps the call until `release`, even when its caller has given up: a request under way."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self._released = asyncio.Event()
        self._delivery: asyncio.Task[Any] | None = None

    async def __call__(self, call: Call) -> Any:
        self._delivery = asyncio.create_task(self._deliver(call), name="held call")
        self.arrived.set()
        return await asyncio.shield(self._delivery)

    async def _deliver(self, call: Call) -> Any:
        await self._released.wait()
        return await call()

    async def release(self) -> None:
        """Deliver the call now, and wait until it is done."""
        await asyncio.wait_for(self.arrived.wait(), 10)
        self._released.set()
        assert self._delivery is not None
        await self._delivery


async def _through(faults: list[Fault], call: Callable[[], Awaitable[T]]) -> T:
    return await (faults.pop(0) if faults else passed_on)(call)


class FaultyLog(Log):
    """A log whose appends meet `on_append`, one fault a call, and whose tails break or stall when told to."""

    def __init__(self, inner: Log) -> None:
        self.inner = inner
        self.on_append: list[Fault] = []
        self.on_end: list[Fault] = []
        self.on_read: list[BaseException] = []
        self.appended: list[Sequence[Outgoing]] = []
        self._breaking: asyncio.Future[BaseException] | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def create(self, scope: Scope) -> None:
        await self.inner.create(scope)

    async def scopes(self) -> Sequence[Scope]:
        return await self.inner.scopes()

    async def append(self, scope: Scope, events: Sequence[Outgoing]) -> None:
        self.appended.append(events)
        await _through(self.on_append, lambda: self.inner.append(scope, events))

    async def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        if self.on_read:
            raise self.on_read.pop(0)
        async with aclosing(self.inner.read(scope, after=after)) as batches:
            async for batch in batches:
                yield batch

    async def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        async with aclosing(self.inner.tail(scope, after=after)) as batches:
            while True:
                yield await self._next(batches)

    async def _next(self, batches: AsyncGenerator[Sequence[StoredEvent], None]) -> Sequence[StoredEvent]:
        if self._breaking is None:
            self._breaking = asyncio.get_running_loop().create_future()
        arriving = asyncio.ensure_future(anext(batches))
        try:
            await asyncio.wait([arriving, self._breaking], return_when=asyncio.FIRST_COMPLETED)
            if not self._breaking.done():
                await self._flowing.wait()
            if self._breaking.done():
                error, self._breaking = self._breaking.result(), None
                raise error
            return arriving.result()
        finally:
            if arriving.cancel():
                await asyncio.wait([arriving])

    def break_tails(self, error: BaseException) -> None:
        """Make the tail that waits raise `error`."""
        assert self._breaking is not None
        self._breaking.set_result(error)

    def stall(self) -> None:
        """From now on tails bring nothing."""
        self._flowing.clear()

    def flow(self) -> None:
        """Let tails go on."""
        self._flowing.set()

    async def end(self, scope: Scope) -> Position | None:
        return await _through(self.on_end, lambda: self.inner.end(scope))

    async def close(self) -> None:
        await self.inner.close()


class FaultyLeases(Leases):
    """A lease store whose calls meet `on_acquire`, `on_renew` and `on_release`, one fault a call."""

    def __init__(self, inner: Leases) -> None:
        self.inner = inner
        self.on_acquire: list[Fault] = []
        self.on_renew: list[Fault] = []
        self.on_release: list[Fault] = []
        self.renewals = 0
        self.releases = 0

    async def acquire(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        lease_id: LeaseId,
        ttl: timedelta,
        floor: int = 0,
        replaces: LeaseId | None = None,
    ) -> Grant:
        return await _through(
            self.on_acquire,
            lambda: self.inner.acquire(scope, holder, lease_id=lease_id, ttl=ttl, floor=floor, replaces=replaces),
        )

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        renewed = await _through(self.on_renew, lambda: self.inner.renew(grant, ttl=ttl))
        self.renewals += 1
        return renewed

    async def release(self, grant: Grant) -> bool:
        released = await _through(self.on_release, lambda: self.inner.release(grant))
        self.releases += 1
        return released

    async def inspect(self, scope: Scope) -> Grant | None:
        return await self.inner.inspect(scope)

    async def close(self) -> None:
        await self.inner.close()


# --- crashes: what happens at call i ----------------------------------------------------------------------------------


class DeadError(BaseException):
    """The process is over: nothing that it does reaches a port any more. Not an Exception, so nobody handles it."""


class Fuse:
    """Counts port calls in order and blows before or after call `at` (None: never).

    `blow` is what happens then: by default the ports go dead, as they look to the world after a crash.
    `signalling` gives fuses that send a signal to their own process instead.
    """

    def __init__(self, at: int | None = None, *, after: bool = False, blow: Callable[[], None] | None = None) -> None:
        self.at = at
        self.after = after
        self.calls: list[str] = []
        self.blown = asyncio.Event()
        self._blow = blow or self.blown.set

    @classmethod
    def signalling(cls, number: signal.Signals, at: int | None, *, after: bool = False) -> Fuse:
        """A fuse that sends `number` to its own process."""
        return cls(at, after=after, blow=lambda: os.kill(os.getpid(), number))

    async def guard(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        """Do one port call, or die around it."""
        number = self.before(name)
        result = await call()
        self.behind(number)
        return result

    def before(self, name: str) -> int:
        """Note that a call begins; returns its number."""
        self.check()
        number = len(self.calls)
        self.calls.append(name)
        if number == self.at and not self.after:
            self._blow()
        self.check()
        return number

    def behind(self, number: int) -> None:
        """Note that call `number` is done."""
        if number == self.at and self.after:
            self._blow()
        self.check()

    def check(self) -> None:
        """Raise when the process is over."""
        if self.blown.is_set():
            raise DeadError


class StoppingLog(Log):
    """A log under a fuse. A read is one call; so is a tail, which is done with its first batch."""

    def __init__(self, inner: Log, fuse: Fuse) -> None:
        self.inner = inner
        self.fuse = fuse

    async def create(self, scope: Scope) -> None:
        await self.fuse.guard("log.create", lambda: self.inner.create(scope))

    async def scopes(self) -> Sequence[Scope]:
        return await self.fuse.guard("log.scopes", self.inner.scopes)

    async def append(self, scope: Scope, events: Sequence[Outgoing]) -> None:
        await self.fuse.guard("log.append", lambda: self.inner.append(scope, events))

    async def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        number = self.fuse.before("log.read")
        async with aclosing(self.inner.read(scope, after=after)) as batches:
            async for batch in batches:
                self.fuse.check()
                yield batch
        self.fuse.behind(number)

    async def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        number = self.fuse.before("log.tail")
        async with aclosing(self.inner.tail(scope, after=after)) as batches:
            async for batch in batches:
                self.fuse.behind(number)
                number = -1
                yield batch

    async def end(self, scope: Scope) -> Position | None:
        return await self.fuse.guard("log.end", lambda: self.inner.end(scope))

    async def close(self) -> None:
        await self.inner.close()


class StoppingLeases(Leases):
    """A lease store under a fuse. Renewals are not counted: how many there are depends on the clock."""

    def __init__(self, inner: Leases, fuse: Fuse) -> None:
        self.inner = inner
        self.fuse = fuse

    async def acquire(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        lease_id: LeaseId,
        ttl: timedelta,
        floor: int = 0,
        replaces: LeaseId | None = None,
    ) -> Grant:
        return await self.fuse.guard(
            "leases.acquire",
            lambda: self.inner.acquire(scope, holder, lease_id=lease_id, ttl=ttl, floor=floor, replaces=replaces),
        )

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        self.fuse.check()
        return await self.inner.renew(grant, ttl=ttl)

    async def release(self, grant: Grant) -> bool:
        return await self.fuse.guard("leases.release", lambda: self.inner.release(grant))

    async def inspect(self, scope: Scope) -> Grant | None:
        return await self.fuse.guard("leases.inspect", lambda: self.inner.inspect(scope))

    async def close(self) -> None:
        await self.inner.close()


class StoppingDatabase(Database):
    """A target database under a fuse; the calls on its transactions are counted, too, those on its shadow are not."""

    def __init__(self, inner: Database, fuse: Fuse) -> None:
        self.inner = inner
        self.fuse = fuse

    @property
    def semantic_profile(self) -> Fingerprint:
        return self.inner.semantic_profile

    @property
    def lowering_profile(self) -> Fingerprint:
        return self.inner.lowering_profile

    async def raise_fence(self, guard: Guard, control: Control, *, floor: int = 0, adopt: bool = False) -> None:
        await self.fuse.guard(
            "database.raise_fence", lambda: self.inner.raise_fence(guard, control, floor=floor, adopt=adopt)
        )

    async def tokens(self, scope: Scope) -> Mapping[str, EventId]:
        return await self.fuse.guard("database.tokens", lambda: self.inner.tokens(scope))

    async def observe(self) -> Fingerprint:
        return await self.fuse.guard("database.observe", self.inner.observe)

    async def describe(self) -> Mapping[str, str]:
        return await self.fuse.guard("database.describe", self.inner.describe)

    async def witness(self, scope: Scope, unit: str) -> EventId | None:
        return await self.fuse.guard("database.witness", lambda: self.inner.witness(scope, unit))

    async def cursor(self, scope: Scope, unit: str) -> BackfillCursor | None:
        return await self.fuse.guard("database.cursor", lambda: self.inner.cursor(scope, unit))

    @asynccontextmanager
    async def transaction(
        self, guard: Guard, control: Control, *, enforce_references: bool = False
    ) -> AsyncGenerator[Transaction, None]:
        number = self.fuse.before("database.transaction")
        async with self.inner.transaction(guard, control, enforce_references=enforce_references) as transaction:
            self.fuse.behind(number)
            yield StoppingTransaction(transaction, self.fuse)

    async def advance_backfill(
        self, guard: Guard, control: Control, unit: str, program: BackfillProgram
    ) -> BackfillCursor:
        return await self.fuse.guard(
            "database.advance_backfill", lambda: self.inner.advance_backfill(guard, control, unit, program)
        )

    async def execute_outside(self, guard: Guard, program: Program) -> None:
        await self.fuse.guard("database.execute_outside", lambda: self.inner.execute_outside(guard, program))

    async def is_empty(self, table: str) -> bool:
        return await self.fuse.guard("database.is_empty", lambda: self.inner.is_empty(table))

    async def rows_problem(self, program: BackfillProgram) -> str | None:
        return await self.fuse.guard("database.rows_problem", lambda: self.inner.rows_problem(program))

    async def shadow(self) -> Shadow:
        return await self.inner.shadow()

    async def close(self) -> None:
        await self.inner.close()


class StoppingTransaction(Transaction):
    """A target transaction under a fuse."""

    def __init__(self, inner: Transaction, fuse: Fuse) -> None:
        self.inner = inner
        self.fuse = fuse

    @property
    def source(self) -> Fingerprint:
        return self.inner.source

    async def holds(self, query: str) -> bool:
        return await self.fuse.guard("transaction.holds", lambda: self.inner.holds(query))

    async def execute(self, program: Program) -> Fingerprint:
        return await self.fuse.guard("transaction.execute", lambda: self.inner.execute(program))

    async def observe(self) -> Fingerprint:
        return await self.fuse.guard("transaction.observe", self.inner.observe)

    async def stamp(self, unit: str, token: EventId) -> None:
        await self.fuse.guard("transaction.stamp", lambda: self.inner.stamp(unit, token))

    async def begin_backfill(self, unit: str, token: EventId, program: BackfillProgram) -> BackfillCursor:
        return await self.fuse.guard(
            "transaction.begin_backfill", lambda: self.inner.begin_backfill(unit, token, program)
        )

    async def commit(self) -> None:
        await self.fuse.guard("transaction.commit", self.inner.commit)
