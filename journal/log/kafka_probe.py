"""Why a Kafka cluster cannot be used: one look at each address, as far as a client gets.

aiokafka says "unable to bootstrap" for a refused connection, a wrong password and an untrusted certificate alike; what
it was is only in its log. People need the cause, so it is looked for again, step by step.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from journal.errors import Code
from journal.log.kafka_security import KafkaSecurity

_SHARE: Final = 0.4  # of the deadline, for one address
_OTHER_NAME: Final = (62, 64)  # OpenSSL's codes of a certificate for another host, and for another IP address
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # length, request, its version, its number, no name


class Reason(NamedTuple):
    """What stands in the way, and what to do about it."""

    code: Code
    message: str


async def reason(
    servers: Sequence[str], security: KafkaSecurity, options: Mapping[str, Any], timeout_seconds: float
) -> Reason:
    """The cause at the first address that gives one; the answers of the others are more of the same or less."""
    found: list[Reason] = []
    for server in servers:
        host, _, port = server.rpartition(":")
        looked = await _look(host.strip("[]"), int(port), security, options, timeout_seconds * _SHARE)
        if looked.code is Code.NOT_PERMITTED:
            return looked
        found.append(looked)
    return found[0]


async def _look(
    host: str, port: int, security: KafkaSecurity, options: Mapping[str, Any], timeout_seconds: float
) -> Reason:
    address = f"{host}:{port}"
    passed = {name: value for name, value in options.items() if name.startswith(("security", "ssl", "sasl"))}
    try:
        async with asyncio.timeout(timeout_seconds):
            connection = await create_conn(
                host, port, client_id="fenced-journal", request_timeout_ms=int(timeout_seconds * 1_000), **passed
            )
            try:
                await connection.send(MetadataRequest([]))
            finally:
                connection.close()
    except (AuthenticationFailedError, SaslAuthenticationFailed):
        return Reason(
            Code.NOT_PERMITTED, f"{address} refused the login of user {security.user}: wrong user or password"
        )
    except (AuthenticationMethodNotSupported, UnsupportedSaslMechanismError):
        return Reason(Code.NOT_PERMITTED, f"{address} does not know the login mechanism {security.mechanism}")
    except ssl.SSLCertVerificationError as error:
        return _untrusted(address, error)
    except TimeoutError:
        return await _silent(host, port, security, timeout_seconds)
    except (KafkaConnectionError, KafkaError, OSError) as error:
        return await _broken(host, port, security, options.get("ssl_context"), error, timeout_seconds)
    return Reason(Code.STORAGE_FAILED, f"{address} answers now: try again")


def _untrusted(address: str, error: ssl.SSLCertVerificationError) -> Reason:
    what = f"the certificate of {address} is not trusted ({error.verify_message.rstrip('.')})"
    todo = "use the name that it was made for" if error.verify_code in _OTHER_NAME else "name its CA, by ca_file"
    return Reason(Code.NOT_PERMITTED, f"{what}: {todo}")


async def _silent(host: str, port: int, security: KafkaSecurity, timeout_seconds: float) -> Reason:
    if not security.tls and await _speaks_tls(host, port, timeout_seconds):
        return Reason(Code.STORAGE_FAILED, f"{host}:{port} speaks TLS: say so with tls=true")
    return Reason(Code.STORAGE_FAILED, f"{host}:{port} does not answer")


async def _broken(
    host: str,
    port: int,
    security: KafkaSecurity,
    context: ssl.SSLContext | None,
    error: BaseException,
    timeout_seconds: float,
) -> Reason:
    address = f"{host}:{port}"
    match error:
        case ConnectionRefusedError():
            return Reason(Code.STORAGE_FAILED, f"nothing listens at {address}: is it running?")
        case socket.gaierror():
            return Reason(Code.STORAGE_FAILED, f"the host {host} is not known ({error.strerror}): check the address")
        case IllegalSaslStateError():
            return Reason(
                Code.STORAGE_FAILED,
                f"{address} takes no login: leave out mechanism, user and password, or use another port",
            )
        case _:
            pass
    if context is None and await _speaks_tls(host, port, timeout_seconds):
        return Reason(Code.STORAGE_FAILED, f"{address} speaks TLS: say so with tls=true")
    if context is not None and await _is_kafka(host, port, None, timeout_seconds) is True:
        return Reason(Code.STORAGE_FAILED, f"{address} does not speak TLS: leave out tls=true")
    match await _is_kafka(host, port, context, timeout_seconds):
        case ssl.SSLError() as refusal if "ALERT" in str(refusal.reason):
            todo = (
                "asks for a certificate of ours: give certificate_file and private_key_file"
                if security.certificate_file is None
                else "does not accept our certificate"
            )
            return Reason(Code.NOT_PERMITTED, f"{address} {todo} ({refusal.reason})")
        case True if security.mechanism is None:
            return Reason(Code.NOT_PERMITTED, f"{address} asks for a login: give mechanism, user and password")
        case True:
            return Reason(Code.STORAGE_FAILED, f"{address} broke the connection off ({error})")
        case False:
            return Reason(Code.STORAGE_FAILED, f"{address} does not answer as a Kafka does: check the address")
        case other:
            return Reason(Code.STORAGE_FAILED, f"{address} broke the connection off ({other})")


async def _is_kafka(
    host: str, port: int, context: ssl.SSLContext | None, timeout_seconds: float
) -> bool | OSError | TimeoutError:
    """Whether it answers what every Kafka answers, before any login too; or what came instead of an answer."""
    try:
        answer = await asyncio.to_thread(_answer, host, port, context, timeout_seconds)
    except (OSError, TimeoutError) as error:
        return error
    if not answer:
        return ConnectionResetError("it ended without an answer")
    return answer[4:] == _API_VERSIONS[8:12]


def _answer(host: str, port: int, context: ssl.SSLContext | None, timeout_seconds: float) -> bytes:
    # With blocking calls: asyncio reports the end of a connection, and not the TLS alert that says why it ended.
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((host, port), timeout_seconds))
        if context is not None:
            connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
        connection.sendall(_API_VERSIONS)
        return stack.enter_context(connection.makefile("rb")).read(8)


async def _speaks_tls(host: str, port: int, timeout_seconds: float) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent: who it is does not matter
    try:
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, ssl.SSLError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()
    return True
