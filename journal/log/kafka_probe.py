"""Why a Kafka cluster cannot be used: one look at each address, as far as a client gets.

aiokafka says "unable to bootstrap" for a refused connection, a wrong password and an untrusted certificate alike; what
it was is only in its log. People need the cause, so it is looked for again, step by step.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from journal.errors import Code
from journal.log.kafka_security import KafkaSecurity

_SHARE: Final = 0.4  # of the deadline, for one address


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
        return Reason(
            Code.NOT_PERMITTED, f"the certificate of {address} is not trusted ({error.verify_message}): name its CA"
        )
    except ssl.SSLError as error:
        return Reason(
            Code.STORAGE_FAILED, f"{address} does not speak TLS, or not with us ({error.reason}): is it a plain port?"
        )
    except TimeoutError:
        return await _silent(host, port, security, timeout_seconds)
    except (KafkaConnectionError, KafkaError, OSError) as error:
        return await _broken(host, port, security, error, timeout_seconds)
    return Reason(Code.STORAGE_FAILED, f"{address} answers now: try again")


async def _silent(host: str, port: int, security: KafkaSecurity, timeout_seconds: float) -> Reason:
    if not security.tls and await _speaks_tls(host, port, timeout_seconds):
        return Reason(Code.STORAGE_FAILED, f"{host}:{port} speaks TLS: say so with tls=true")
    return Reason(Code.STORAGE_FAILED, f"{host}:{port} does not answer")


async def _broken(
    host: str, port: int, security: KafkaSecurity, error: BaseException, timeout_seconds: float
) -> Reason:
    if isinstance(error, ConnectionRefusedError):
        return Reason(Code.STORAGE_FAILED, f"nothing listens at {host}:{port}: is it running?")
    if not security.tls and await _speaks_tls(host, port, timeout_seconds):
        return Reason(Code.STORAGE_FAILED, f"{host}:{port} speaks TLS: say so with tls=true")
    hint = "" if security.mechanism else ": perhaps it asks for a login (mechanism, user, password)"
    return Reason(Code.STORAGE_FAILED, f"{host}:{port} broke the connection off ({error}){hint}")


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
