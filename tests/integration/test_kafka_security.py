"""A Kafka behind logins, rights and TLS, and everything that is not quite one: each error names its cause, in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from journal.errors import Code, InvalidContractError, JournalError, OutcomeUnknownError, UnavailableError
from journal.identities import Scope
from journal.log.kafka import KafkaLog
from journal.log.kafka_security import KafkaSecurity
from journal.ports import Outgoing
from tests.services import KafkaService, SecureKafka
from tests.services.processes import free_port

SCOPE = Scope("orders")
TIMEOUT = timedelta(seconds=3)
SLACK_SECONDS = 1.5
MECHANISM = "SCRAM-SHA-512"
WRITER = ("Read", "Write", "Create", "DescribeConfigs")
EVENT = Outgoing(b"an event", None)


@dataclass(frozen=True)
class Door:
    """The secured listeners, as one user of them comes in, and what that user may do to the topics of one prefix."""

    kafka: SecureKafka
    prefix: str
    user: str = "nobody"

    @property
    def password(self) -> str:
        return self.kafka.passwords[self.user]

    def log(self, server: str | None = None, *, timeout: timedelta = TIMEOUT, **changes: object) -> KafkaLog:
        """The log over TLS, unless `changes` (of the settings) say otherwise."""
        settings: dict[str, object] = {
            "tls": True,
            "ca_file": self.kafka.ca_file,
            "mechanism": MECHANISM,
            "user": self.user,
            "password": self.password,
        }
        security = KafkaSecurity(**(settings | changes))  # type: ignore[arg-type]
        return KafkaLog(
            [server or self.kafka.tls], prefix=self.prefix, replication=1, security=security, timeout=timeout
        )

    def grant(self, *operations: str) -> None:
        self._acl("--add", operations)

    def revoke(self, *operations: str) -> None:
        self._acl("--remove", operations)

    def _acl(self, change: str, operations: Sequence[str]) -> None:
        named = [word for operation in operations for word in ("--operation", operation)]
        self.kafka.acl(
            *(change, "--allow-principal", f"User:{self.user}", *named, "--topic", f"{self.prefix}."),
            *("--resource-pattern-type", "prefixed", *(["--force"] if change == "--remove" else [])),
        )


@pytest.fixture
def door(secure_kafka: SecureKafka, fresh_prefix: str) -> Door:
    return Door(secure_kafka, fresh_prefix)


async def failing(log: KafkaLog, secret: str, seconds: float = TIMEOUT.total_seconds()) -> JournalError:
    """The error of a log that cannot be used: the same for all calls, in time, and without the secret in any form."""
    errors: list[JournalError] = []
    for call in (log.scopes, lambda: log.end(SCOPE), lambda: log.create(SCOPE)):
        errors.append(await error_of(call, secret, seconds))
    began = time.monotonic()
    await log.close()
    assert time.monotonic() - began < seconds + SLACK_SECONDS
    assert {error.code for error in errors} == {errors[0].code}
    return errors[0]


async def error_of(
    call: Callable[[], Awaitable[object]], secret: str, seconds: float = TIMEOUT.total_seconds()
) -> JournalError:
    began = time.monotonic()
    with pytest.raises(JournalError) as caught:
        await call()
    assert time.monotonic() - began < seconds + SLACK_SECONDS
    error = caught.value
    shown = f"{error} {error!r} {error.details} {error.__cause__!r} {caught.getrepr(style='native')}"
    assert secret not in shown
    return error


async def exercise(log: KafkaLog) -> None:
    """Everything that a writer does with a scope, and a second time as somebody who comes later."""
    await log.create(SCOPE)
    assert await log.scopes() == [SCOPE]
    await log.append(SCOPE, [EVENT])
    await look(log, 1)


async def look(log: KafkaLog, count: int) -> None:
    """Everything that a reader does with a scope that has so many events."""
    assert await log.scopes() == [SCOPE]
    assert await log.end(SCOPE) == count - 1
    for follow in (log.read, log.tail):
        async with asyncio.timeout(10), aclosing(follow(SCOPE, after=None)) as batches:
            assert [event.data for event in await anext(batches)] == [EVENT.data] * count


# --- logins -------------------------------------------------------------------------------------------------------------

SAID: dict[str, tuple[dict[str, object], Code, str]] = {
    "a wrong password": ({"password": "wrong-secret"}, Code.NOT_PERMITTED, "refused the login of user nobody"),
    "an empty password": ({"password": ""}, Code.NOT_PERMITTED, "refused the login of user nobody"),
    "an unknown user": ({"user": "stranger"}, Code.NOT_PERMITTED, "refused the login of user stranger"),
    "another mechanism": ({"mechanism": "PLAIN"}, Code.NOT_PERMITTED, "does not know the login mechanism PLAIN"),
    "another hash": ({"mechanism": "SCRAM-SHA-256"}, Code.NOT_PERMITTED, "login mechanism SCRAM-SHA-256"),
    "no login": ({"mechanism": None, "user": None, "password": None}, Code.NOT_PERMITTED, "asks for a login"),
    "no TLS": ({"tls": False}, Code.STORAGE_FAILED, "speaks TLS: say so with tls=true"),
    "the system's trust": ({"ca_file": None}, Code.NOT_PERMITTED, "is not trusted"),
}


@pytest.mark.parametrize("case", SAID)
async def test_what_keeps_a_client_out_is_said(door: Door, case: str) -> None:
    changes, code, said = SAID[case]
    error = await failing(door.log(**changes), str(changes.get("password") or door.password))
    assert (error.code, said in error.message) == (code, True), error
    assert door.kafka.tls in error.message


async def test_a_wrong_password_is_in_no_log(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await failing(door.log(password="wrong-secret"), "wrong-secret")
    await failing(door.log(ca_file=None), door.password)
    assert caplog.records, "the client library does log"
    assert "wrong-secret" not in caplog.text
    assert door.password not in caplog.text


async def test_an_authority_that_did_not_sign_the_certificate_is_said(door: Door) -> None:
    error = await failing(door.log(ca_file=door.kafka.other_ca_file), door.password)
    assert (error.code, "is not trusted" in error.message) == (Code.NOT_PERMITTED, True), error
    assert "name its CA" in error.message


async def test_a_certificate_for_another_host_is_said(door: Door) -> None:
    error = await failing(door.log(door.kafka.tls.replace("127.0.0.1", "localhost")), door.password)
    assert "not valid for 'localhost'" in error.message
    assert "use the name that it was made for" in error.message


async def test_an_authority_that_cannot_be_read_is_said(door: Door, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for ca_file in (rubbish, tmp_path / "missing.pem"):
        error = await failing(door.log(ca_file=ca_file), door.password)
        assert (error.code, str(ca_file) in error.message) == (Code.INVALID_SETTINGS, True), error


async def test_tls_at_a_port_without_is_said(door: Door) -> None:
    error = await failing(door.log(door.kafka.plain), door.password)
    assert (type(error), "does not speak TLS: leave out tls=true" in error.message) == (UnavailableError, True), error


async def test_a_login_at_a_port_without_is_said(door: Door, own_kafka: KafkaService) -> None:
    error = await failing(door.log(own_kafka.servers[0], tls=False), door.password)
    assert (type(error), "takes no login" in error.message) == (UnavailableError, True), error


async def test_a_login_without_tls_works_where_the_port_has_none(door: Door) -> None:
    door.grant(*WRITER)
    log = door.log(door.kafka.plain, tls=False)
    await exercise(log)
    await log.close()


def with_certificate(kafka: SecureKafka, files: tuple[Path, Path] | None) -> KafkaSecurity:
    certificate, key = files or (None, None)
    return KafkaSecurity(tls=True, ca_file=kafka.ca_file, certificate_file=certificate, key_file=key)


async def test_a_certificate_of_ours_serves_as_a_login(door: Door) -> None:
    security = with_certificate(door.kafka, door.kafka.certificate)
    log = KafkaLog([door.kafka.mutual], prefix=door.prefix, replication=1, security=security)
    await exercise(log)
    await log.close()


async def test_a_certificate_of_ours_that_is_missing_or_not_accepted_is_said(door: Door) -> None:
    for files, said in [
        (None, "asks for a certificate of ours: give certificate_file and private_key_file"),
        (door.kafka.other_certificate, "does not accept our certificate"),
    ]:
        log = KafkaLog([door.kafka.mutual], security=with_certificate(door.kafka, files), timeout=TIMEOUT)
        error = await failing(log, "no secret")
        assert (error.code, said in error.message) == (Code.NOT_PERMITTED, True), error


async def test_the_cause_is_found_behind_addresses_where_nobody_is(door: Door) -> None:
    log = KafkaLog(
        [f"127.0.0.1:{free_port()}", door.kafka.tls],
        prefix=door.prefix,
        security=KafkaSecurity(
            tls=True, ca_file=door.kafka.ca_file, mechanism=MECHANISM, user="nobody", password="wrong-secret"
        ),
        timeout=TIMEOUT,
    )
    error = await failing(log, "wrong-secret")
    assert f"{door.kafka.tls} refused the login" in error.message


# --- rights -------------------------------------------------------------------------------------------------------------


async def test_a_writers_rights_suffice_for_a_writer_and_read_for_a_reader(door: Door) -> None:
    door.grant(*WRITER)
    log = door.log()
    await exercise(log)
    door.revoke(*WRITER[1:])
    for reader in (log, door.log()):
        await look(reader, 1)
        await reader.close()


MISSING = {
    "Create": "create topic",
    "DescribeConfigs": "read the settings of topic",
    "Write": "write to topic",
    "Read": "read topic",
}


@pytest.mark.parametrize("right", WRITER)
async def test_a_right_that_is_missing_is_said_with_what_it_is_for(door: Door, right: str) -> None:
    door.grant(*(other for other in WRITER if other != right))
    log = door.log()
    error = await error_of(lambda: exercise(log), door.password)
    cause: BaseException = error.__cause__ if isinstance(error, OutcomeUnknownError) and error.__cause__ else error
    assert isinstance(cause, InvalidContractError), error
    assert cause.code is Code.NOT_PERMITTED
    assert f"{MISSING[right]} {door.prefix}.orders" in cause.message
    assert "user nobody" in cause.message
    door.grant(right)
    async with asyncio.timeout(20):
        while not await works(log):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await log.close()


async def works(log: KafkaLog) -> bool:
    """Whether a writer's whole work is possible now; only a refusal says that it is not."""
    try:
        await log.create(SCOPE)
        await log.append(SCOPE, [EVENT])
        end = await log.end(SCOPE)
        assert end is not None
        await look(log, end + 1)
    except JournalError as error:
        if not (isinstance(error, OutcomeUnknownError) or error.code is Code.NOT_PERMITTED):
            raise
        return False
    return True


async def test_a_user_without_any_right_sees_no_scope_and_is_told_that_of_one(door: Door) -> None:
    owner = Door(door.kafka, door.prefix, "writer")
    owner.grant(*WRITER)
    log = owner.log()
    await exercise(log)
    await log.close()
    stranger = door.log()
    assert await stranger.scopes() == []
    for call in (lambda: stranger.end(SCOPE), lambda: anext(stranger.read(SCOPE, after=None))):
        error = await error_of(call, door.password)
        assert (error.code, "user nobody" in error.message) == (Code.NOT_PERMITTED, True), error
    await stranger.close()


async def test_a_right_that_is_taken_away_ends_a_tail_and_fails_appends_until_it_is_back(door: Door) -> None:
    door.grant(*WRITER)
    log = door.log()
    await exercise(log)
    async with aclosing(log.tail(SCOPE, after=None)) as batches:
        assert len(await anext(batches)) == 1
        following = asyncio.ensure_future(anext(batches))
        await asyncio.to_thread(door.revoke, *WRITER)
        with pytest.raises(InvalidContractError) as ended:
            await asyncio.wait_for(following, 10)
    assert ended.value.code is Code.NOT_PERMITTED
    error = await error_of(lambda: log.append(SCOPE, [EVENT]), door.password)
    refusal = error.__cause__ if isinstance(error, OutcomeUnknownError) else error
    assert isinstance(refusal, InvalidContractError), error
    assert refusal.code is Code.NOT_PERMITTED
    door.grant(*WRITER)
    async with asyncio.timeout(20):
        while not await works(log):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await log.close()


# --- what is no Kafka ---------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listener(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Somebody at a port who treats each connection by `answer`."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(serve(reader, writer))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        ending = list(connections)
        for connection in ending:
            connection.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def hang_up(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    """Say nothing and end the connection."""


async def say_nothing(_: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await writer.drain()


async def speak_otherwise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"-ERR unknown command\r\n")
    await say_nothing(reader, writer)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (hang_up, "broke the connection off"),
        (say_nothing, "did not answer within 1 s"),
        (speak_http, "does not answer as a Kafka does"),
        (speak_otherwise, "did not answer within 1 s"),
    ],
)
@pytest.mark.parametrize("tls", [False, True])
async def test_a_port_where_something_else_listens_is_said_in_time(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], said: str, tls: bool
) -> None:
    async with listener(answer) as address:
        log = KafkaLog([address], security=KafkaSecurity(tls=tls), timeout=timedelta(seconds=1))
        error = await failing(log, "no secret", 1)
        assert isinstance(error, UnavailableError)
        assert address in error.message
        assert tls or said in error.message, error


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("127.0.0.1:1", "nothing listens at 127.0.0.1:1"),
        ("[::1]:1", "::1"),
        ("no-such-host.invalid:9092", "the host no-such-host.invalid is not known"),
    ],
)
async def test_an_address_where_nothing_is_is_said(server: str, said: str) -> None:
    error = await failing(KafkaLog([server], timeout=TIMEOUT), "no secret")
    assert (type(error), said in error.message) == (UnavailableError, True), error
