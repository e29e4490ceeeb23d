"""Connections to one Redis, each used by one call at a time and given up as soon as it could be out of step.

Answers on a connection belong to commands by their order alone: who reads after somebody who went away reads the other's
answer. So a call runs in a task of its own, which is ended by its deadline and never by its caller's cancellation, and
a connection is used again only after the whole answer was read. After any failure all idle ones are closed, too: they
lead to the same server, which may be gone, or no longer be the primary.

A connection that broke after it was made has lost an answer, not the question: the call is made once more on a new one.
That is safe because everything that is asked is idempotent.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection

from journal.errors import Code, JournalError, failure
from journal.leases.redis_errors import MovedError, is_broken, translated
from journal.tasks import start

# The library would introduce itself on every connection: a question more, and for a user with few rights a refusal each
# in the server's ACL log. How it is told not to depends on its version.
_NAMELESS: Final[dict[str, None]] = (
    {"driver_info": None}
    if "driver_info" in inspect.signature(AbstractConnection).parameters
    else {"lib_name": None, "lib_version": None}
)
_CONNECTIONS: Final = 16
_DEFAULT_PORT: Final = 6379
_RESP: Final = 2  # every answer here is a list of strings; the newer protocol may push others in between

T = TypeVar("T")
Ask = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a Redis is: `redis://[user@]host[:port][/database]`, or `rediss://` with TLS."""

    host: str
    port: int
    database: int
    user: str | None
    tls: bool

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read a URL. Raises `journal_invalid_settings`, which does not repeat it: there may be a password in it."""
        try:
            parts = urlsplit(url)
            host, port, password = parts.hostname, parts.port, parts.password
        except ValueError:
            raise _malformed() from None
        if password is not None:
            raise failure(Code.INVALID_SETTINGS, "a password does not belong into the address of Redis: give it apart")
        database = re.fullmatch(r"/?|/([0-9]{1,5})", parts.path)
        if parts.scheme not in ("redis", "rediss") or not host or database is None or parts.query or parts.fragment:
            raise _malformed()
        user = unquote(parts.username) if parts.username else None
        return cls(host, port or _DEFAULT_PORT, int(database[1] or 0), user, parts.scheme == "rediss")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}/{self.database}"


def _malformed() -> JournalError:
    return failure(
        Code.INVALID_SETTINGS,
        "the address of Redis must be redis://[user@]host[:port][/database], or rediss:// with TLS",
    )


class RedisConnections:
    """Calls to one Redis. Belongs to one event loop for as long as it has a connection."""

    def __init__(self, address: Address, *, password: str | None, ca_file: Path | None, timeout: timedelta) -> None:
        if ca_file is not None and not address.tls:
            raise failure(
                Code.INVALID_SETTINGS, "a CA file is of use with rediss:// only: change the address, or leave it"
            )
        self.address = address
        self._password = password
        self._timeout = timeout
        self._ca_file = ca_file
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Connection] = []
        self._under_way: set[asyncio.Task[Any]] = set()
        self._slots = asyncio.Semaphore(_CONNECTIONS)
        self._closed = False

    async def call(self, work: Callable[[Ask], Awaitable[T]]) -> T:
        """Do `work`, which may ask several times, on a connection of its own; possibly twice, see above.

        A caller that is cancelled does not wait; the work is still done, or given up at the deadline.

        Raises:
            UnavailableError: no answer in time, or one that says that it cannot be done now.
            IntegrityError: `journal_damaged_lease`.
            InvalidContractError: `journal_not_permitted`, `journal_closed`, `journal_forked`, `journal_foreign_loop`.
            MovedError: another node of the cluster has what was asked for.
        """
        self._check()
        task = start(self._within_time(work), f"ask {self.address}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    def of_another(self, address: Address) -> RedisConnections:
        """Connections to another node of the same cluster. Raises `journal_closed`."""
        if self._closed:
            raise self._was_closed()
        return RedisConnections(address, password=self._password, ca_file=self._ca_file, timeout=self._timeout)

    async def close(self) -> None:
        """Let the calls under way come to their ends, which their deadlines bound, and close every connection."""
        self._closed = True
        if os.getpid() != self._process:
            return  # they are the parent's
        if self._is_foreign(asyncio.get_running_loop()):
            raise self._foreign_loop()
        if self._under_way:
            await asyncio.wait(self._under_way)
        await self._drop_idle()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise failure(
                Code.FORKED,
                f"{self.address} was in use when this process was forked: open it after the fork, or use spawn",
            )
        if self._closed:
            raise self._was_closed()
        loop = asyncio.get_running_loop()
        if self._is_foreign(loop):
            raise self._foreign_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, asyncio.Semaphore(_CONNECTIONS)

    def _was_closed(self) -> JournalError:
        return failure(Code.CLOSED, f"{self.address} was closed")

    def _is_foreign(self, loop: asyncio.AbstractEventLoop) -> bool:
        return loop is not self._loop and bool(self._idle or self._under_way)

    def _foreign_loop(self) -> JournalError:
        return failure(Code.FOREIGN_LOOP, f"{self.address} is in use on another event loop: close it there first")

    async def _within_time(self, work: Callable[[Ask], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), self._slots:
                return await self._work(work)
        except TimeoutError:
            raise failure(
                Code.LEASES_UNAVAILABLE,
                f"lease store {self.address} did not answer within {self._timeout.total_seconds():g} s: check the address, that it runs "
                f"and is not overloaded, and that this is its port {'for' if self.address.tls else 'without'} TLS",
                where=str(self.address),
            ) from None
        except JournalError:
            raise
        except redis.ResponseError as error:
            raise MovedError.of(error) or translated(error, str(self.address)) from error
        except Exception as error:  # what is no Redis makes the library's parser raise nearly anything
            raise translated(error, str(self.address)) from error

    async def _work(self, work: Callable[[Ask], Awaitable[T]]) -> T:
        connection = await self._connection()
        try:
            return await self._use(connection, work)
        except redis.ConnectionError as error:
            if not is_broken(error):
                raise
        return await self._use(await self._connection(), work)

    async def _connection(self) -> Connection:
        if self._idle:
            return self._idle.pop()
        connection = self._new()
        try:
            await connection.connect()  # type: ignore[no-untyped-call]  # the library leaves this one without types
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    def _new(self) -> Connection:
        """A connection without timeouts of its own: the deadline covers all of a call."""
        options: dict[str, Any] = {
            "host": self.address.host,
            "port": self.address.port,
            "db": self.address.database,
            "username": self.address.user,
            "password": self._password,
            "protocol": _RESP,
            "socket_timeout": None,
            "socket_connect_timeout": None,
            **_NAMELESS,
        }
        if not self.address.tls:
            return Connection(**options)
        ca_file = None if self._ca_file is None else str(self._ca_file)
        return _TLSConnection(ssl_ca_certs=ca_file, ssl_cert_reqs="required", ssl_check_hostname=True, **options)

    async def _use(self, connection: Connection, work: Callable[[Ask], Awaitable[T]]) -> T:
        async def ask(*command: str | int) -> Any:
            await connection.send_command(*command)
            return await connection.read_response()

        try:
            result = await work(ask)
        except BaseException:
            await connection.disconnect(nowait=True)
            await self._drop_idle()
            raise
        if self._closed:
            await connection.disconnect(nowait=True)
        else:
            self._idle.append(connection)
        return result

    async def _drop_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect()


class _TLSConnection(SSLConnection):
    """A connection with TLS that does not wait for the other side's farewell, which a stopped server never sends."""

    async def disconnect(self, *args: Any, **options: Any) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(*args, **options)
