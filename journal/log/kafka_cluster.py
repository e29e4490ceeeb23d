"""One Kafka cluster as this process reaches it: clients are started and stopped here, within deadlines.

aiokafka's own timeouts do not bound everything (a producer's `stop` waits for what it cannot send, a fetch goes on for
ever without its leader), and some of its errors hide their cause in the log. So every call goes through `call`, which
has the deadline, and every failure to connect is looked into by `reason`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    ProducerClosed,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from journal.errors import Code, JournalError, failure
from journal.log.kafka_probe import reason
from journal.log.kafka_security import KafkaSecurity
from journal.tasks import start

METADATA_SECONDS: Final = 60
RETRY_SECONDS: Final = 0.05
_LOGIN_ERRORS: Final = (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
)
_CONNECTION_ERRORS: Final = (KafkaConnectionError, NodeNotReadyError, OSError)
_TIMEOUTS: Final = (TimeoutError, KafkaTimeoutError, RequestTimedOutError)


T = TypeVar("T")


class KafkaCluster:
    """Addresses, credentials and the deadline of every call; remembers the calls and the clients that are to end."""

    def __init__(self, servers: Sequence[str], security: KafkaSecurity | None, timeout: timedelta) -> None:
        self.servers = tuple(servers)
        self.security = security or KafkaSecurity()
        self.timeout = timeout.total_seconds()
        self._options: dict[str, Any] | None = None
        self._calls: set[asyncio.Timeout] = set()  # under way
        self._no_calls = asyncio.Event()
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    def __str__(self) -> str:
        return f"Kafka at {','.join(self.servers)}"

    def options(self) -> dict[str, Any]:
        """Keyword arguments that all clients share, and without which none is made.

        Raises as `KafkaSecurity.options`, and `journal_closed` once the calls were ended: a client that was made must
        be stopped, also when it was never started.
        """
        if self._closed:
            raise closed()
        if self._options is None:
            self._options = {
                "bootstrap_servers": list(self.servers),
                "client_id": "fenced-journal",
                "request_timeout_ms": int(self.timeout * 1_000),
                "metadata_max_age_ms": METADATA_SECONDS * 1_000,
                "retry_backoff_ms": int(RETRY_SECONDS * 1_000),
                **self.security.options(),
            }
        return self._options

    async def start(self, starting: Callable[[], Awaitable[None]], stopping: Callable[[], Awaitable[None]]) -> None:
        """Start a client; one that cannot be started is stopped.

        Raises:
            UnavailableError: nobody answers.
            InvalidContractError: `journal_not_permitted`: the cluster refuses the login, or what it may do;
                `journal_closed`.
        """
        try:
            await self.call("connect", starting())
        except BaseException:
            self.stop(stopping)
            raise

    def stop(self, stopping: Callable[[], Awaitable[None]]) -> None:
        """Stop something in the background; `close` waits for it."""
        task = start(_quietly(stopping), "stop kafka client")
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    async def end_calls(self) -> None:
        """End every call with `journal_closed`, those under way and those that come; no client is started any more."""
        self._closed = True
        for call in self._calls:
            call.reschedule(0)
        if self._calls:
            await self._no_calls.wait()

    async def close(self) -> None:
        """Wait until everything has stopped, within the deadline; what has not is given up."""
        until = asyncio.get_running_loop().time() + self.timeout
        while self._stopping and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._stopping, timeout=left)  # what stops may leave more to stop
        late = set(self._stopping)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=1)

    @asynccontextmanager
    async def deadline(self) -> AsyncGenerator[None, None]:
        """The deadline for the block; `end_calls` makes it now. Raises TimeoutError."""
        call = asyncio.timeout(0 if self._closed else self.timeout)
        try:
            async with call:
                self._calls.add(call)
                self._no_calls.clear()
                yield
        finally:
            self._calls.discard(call)
            if not self._calls:
                self._no_calls.set()

    async def call(self, doing: str, work: Awaitable[T]) -> T:
        """Await `work` within the deadline; what it raises is translated (see `translate`)."""
        try:
            async with self.deadline():
                return await work
        except (KafkaError, TimeoutError, OSError) as error:
            raise await self.translate(doing, error) from error

    async def translate(self, doing: str, error: BaseException) -> JournalError:
        """The journal's error for one of aiokafka's; asks the cluster for the cause where the library hides it."""
        if isinstance(error, _CONNECTION_ERRORS) and not isinstance(error, TimeoutError) and not self._closed:
            return await self._unreachable(doing, error)
        return self.meaning(doing, error)

    def meaning(self, doing: str, error: BaseException) -> JournalError:
        """As `translate`, from the error alone."""
        if self._closed:
            return closed()
        who = f"user {self.security.user}" if self.security.user else "this client"
        match error:
            case TopicAuthorizationFailedError() | ClusterAuthorizationFailedError() | GroupAuthorizationFailedError():
                what = ", ".join(str(argument) for argument in error.args) or "the cluster"
                return failure(
                    Code.NOT_PERMITTED,
                    f"{self} does not let {who} {doing} ({type(error).__name__}: {what}): grant the right by an ACL",
                )
            case _ if isinstance(error, _LOGIN_ERRORS):
                return failure(Code.NOT_PERMITTED, f"{self} refused the login of {who}: wrong user or password")
            case _ if isinstance(error, _TIMEOUTS):
                return failure(
                    Code.STORAGE_FAILED,
                    f"{self} did not answer within {self.timeout:g} s ({doing}): are enough of its brokers running?",
                )
            case BrokerResponseError():
                return failure(Code.STORAGE_FAILED, f"{self} answered {type(error).__name__} ({doing})")
            case ProducerClosed() | ConsumerStoppedError():
                return failure(Code.STORAGE_FAILED, f"the client of {self} was stopped ({doing})")
            case _:
                return failure(Code.STORAGE_FAILED, f"{self} failed ({doing}): {type(error).__name__}: {error}")

    async def _unreachable(self, doing: str, error: BaseException) -> JournalError:
        with contextlib.suppress(TimeoutError):
            async with self.deadline():
                found = await reason(self.servers, self.security, self.options(), self.timeout)
                return failure(found.code, f"{self} cannot be used ({doing}): {found.message}")
        return self.meaning(doing, error)


def closed() -> JournalError:
    """The log was closed before, or meanwhile."""
    return failure(Code.CLOSED, "the log was closed")


async def _quietly(stopping: Callable[[], Awaitable[None]]) -> None:
    # What is being stopped has no more say: whoever needed an answer has it.
    with contextlib.suppress(KafkaError, ConsumerStoppedError, OSError, TimeoutError):
        await stopping()
