"""How clients prove who they are to a Kafka cluster, and how they know it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from journal.errors import Code, failure

MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """TLS and SASL settings of a client, passed through to aiokafka.

    `tls` encrypts and checks the cluster's certificate, against `ca_file` (PEM) or what the system trusts.
    `certificate_file` and `key_file` (PEM) are the client's own, for clusters that ask for one. With `mechanism`,
    `user` and `password` log in by SASL.
    """

    tls: bool = False
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    mechanism: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of every aiokafka client.

        Raises:
            InvalidContractError: `journal_invalid_settings`: a file cannot be read, or what belongs together is not.
        """
        options: dict[str, Any] = {"security_protocol": self._protocol()}
        if self.tls:
            options["ssl_context"] = self._context()
        if self.mechanism is not None:
            options["sasl_mechanism"] = self.mechanism
            options["sasl_plain_username"] = self.user
            options["sasl_plain_password"] = self.password
        return options

    def _protocol(self) -> str:
        if self.mechanism is None:
            return "SSL" if self.tls else "PLAINTEXT"
        if self.mechanism not in MECHANISMS:
            raise failure(
                Code.INVALID_SETTINGS,
                f"there is no login mechanism {self.mechanism!r:.40}: use one of {', '.join(MECHANISMS)}",
            )
        if self.user is None or self.password is None:
            raise failure(Code.INVALID_SETTINGS, f"the login by {self.mechanism} needs a user and a password")
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                context.load_cert_chain(self.certificate_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(str(path) for path in (self.ca_file, self.certificate_file, self.key_file) if path)
            raise failure(
                Code.INVALID_SETTINGS, f"the certificates cannot be read ({files}): {error.strerror or error}"
            ) from error
        return context
