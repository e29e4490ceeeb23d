"""Running the `journal` command as a process of its own, over logs that are written first."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from journal.codec import Codec
from journal.identities import Scope
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.ports import Outgoing
from tests.factories import SCOPE, Writer

BIN: Final = Path(sys.executable).parent
DEADLINE: Final = 60


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process without anybody's settings, the command's folder first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JOURNAL_", "ORDERS_"))}
    kept.pop("NO_COLOR", None)
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"} | dict(extra or {})


class Journal:
    """The command, run in one folder. Every run checks that nobody sees a traceback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run and check the exit code."""
        result = subprocess.run(
            ["journal", *arguments],
            cwd=self.folder,
            env=environment(env),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        assert "Traceback" not in result.stderr
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def json(self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 0) -> Any:
        """Run with `--json` and read the one document."""
        return json.loads(self(*arguments, "--json", env=env, code=code).stdout)

    def lines(self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 0) -> list[Any]:
        """Run with `--json` and read one document a line."""
        return [json.loads(line) for line in self(*arguments, "--json", env=env, code=code).stdout.splitlines()]

    def error(self, *arguments: str, env: Mapping[str, str] | None = None, code: int = 1) -> str:
        """Run and read the one line that says what is wrong."""
        result = self(*arguments, env=env, code=code)
        assert result.stdout == ""
        (line,) = result.stderr.splitlines()
        return line


def save(path: Path, *writers: Writer) -> None:
    """Make a journal file with what these writers wrote."""
    scopes = {writer.scope: list(zip(writer.data, writer.macs, strict=True)) for writer in writers}
    asyncio.run(_save(path, scopes))


async def _save(path: Path, scopes: Mapping[Scope, Sequence[tuple[bytes, bytes | None]]]) -> None:
    log, leases = SQLiteLog(path), SQLiteLeases(path)
    await log.open()
    for scope, events in scopes.items():
        await log.create(scope)
        await log.append(scope, [Outgoing(data, mac) for data, mac in events])
    await leases.close()
    await log.close()


def writer_of(scope: str = SCOPE, *, codec: Codec | None = None) -> Writer:
    """A writer of a new scope, authenticated when the codec has a key."""
    return Writer(Scope(scope), codec=codec, authenticated=codec is not None and codec.keyring is not None)
