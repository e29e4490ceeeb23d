"""One folder with the same one-table migrations, for this journal and for each peer, and its command as a subprocess.

Every tool gets one file a migration, each after the one before it, and a plain SQLite file as its target; nothing is
tuned. The peers' projects are made the way that their manuals begin: `alembic init` with a revision written from its
template and `op.create_table`, and for yoyo a `yoyo.ini` and SQL files that say what they depend on.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from journal.journal import Journal
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from tests.benchmarks.workloads import environment

_BIN = Path(sys.executable).parent
_REVISION = '''"""create t_{number}

Revision ID: {revision}
Revises: {before}
Create Date: 2026-12-01 00:00:00

"""
from typing import Sequence, Union

from alembic import op
import sqlalchemy as sa


# revision identifiers, used by Alembic.
revision: str = {revision!r}
down_revision: Union[str, Sequence[str], None] = {before!r}
branch_labels: Union[str, Sequence[str], None] = None
depends_on: Union[str, Sequence[str], None] = None


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "t_{number}",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created", sa.Integer),
    )


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_table("t_{number}")
'''


def create_table(number: int) -> str:
    """The statement of one migration."""
    return f"CREATE TABLE t_{number} (id INTEGER PRIMARY KEY, name TEXT NOT NULL, created INTEGER);\n"


class MigrationTool(Protocol):
    """Class of one tool's project; `Tool(folder)` is empty until `write`."""

    @property
    def project(self) -> Project: ...

    def write(self, count: int) -> None:
        """Make the project with `count` migrations."""
        ...


@dataclass(frozen=True, slots=True)
class Project:
    """Where a tool's files lie, and the command that applies everything to `target`."""

    folder: Path
    command: tuple[str, ...]

    @property
    def target(self) -> Path:
        return self.folder / "target.db"

    def reset(self) -> None:
        """Drop the target and, for this journal, its log."""
        for file in self.folder.glob("*.db*"):
            file.unlink()

    def apply(self) -> float:
        """Seconds of the whole command."""
        start = time.perf_counter()
        run = subprocess.run(
            self.command, check=False, capture_output=True, text=True, cwd=self.folder, env=environment()
        )
        elapsed = time.perf_counter() - start
        if run.returncode:
            raise AssertionError(f"{' '.join(self.command)} ended with {run.returncode}: {run.stderr[-2_000:]}")
        return elapsed

    def tables(self) -> int:
        """How many tables of the migrations the target has."""
        connection = sqlite3.connect(self.target)
        try:
            query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name LIKE 't\\_%' ESCAPE '\\'"
            return int(connection.execute(query).fetchone()[0])
        finally:
            connection.close()


class JournalTool:
    """Our own command, embedded: target and log are SQLite files."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "journal.db"
        options = {
            "--dir": folder / "migrations",
            "--database": f"sqlite:///{folder / 'target.db'}",
            "--log": f"sqlite:///{self._log}",
        }
        pairs = [str(word) for pair in options.items() for word in pair]
        self.project = Project(folder, (str(_BIN / "journal"), "apply", *pairs))

    def write(self, count: int) -> None:
        folder = self.project.folder / "migrations"
        folder.mkdir(parents=True)
        for number in range(1, count + 1):
            (folder / f"{number:04d}_t_{number}.sql").write_text(create_table(number))

    async def events(self) -> int:
        """How many events of the one scope count."""
        leases = SQLiteLeases(self._log, read_only=True)
        async with Journal(SQLiteLog(self._log, read_only=True), leases) as journal:
            (scope,) = await journal.scopes()
            return (await journal.state(scope)).admitted


class AlembicTool:
    """Alembic as its tutorial sets it up, with the generic template."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder, (str(_BIN / "alembic"), "upgrade", "head"))

    def write(self, count: int) -> None:
        folder = self.project.folder
        folder.mkdir(parents=True)
        subprocess.run([_BIN / "alembic", "init", "alembic"], check=True, capture_output=True, cwd=folder)
        settings = folder / "alembic.ini"
        lines = settings.read_text().splitlines()
        url = f"sqlalchemy.url = sqlite:///{self.project.target}"
        settings.write_text("\n".join(url if line.startswith("sqlalchemy.url") else line for line in lines) + "\n")
        before: str | None = None
        for number in range(1, count + 1):
            revision = f"{number:012x}"
            text = _REVISION.format(number=number, revision=revision, before=before)
            (folder / "alembic" / "versions" / f"{revision}_create_t_{number}.py").write_text(text)
            before = revision


class YoyoTool:
    """Yoyo with migrations as SQL files, which is what `yoyo new --sql` makes."""

    def __init__(self, folder: Path) -> None:
        self.project = Project(folder, (str(_BIN / "yoyo"), "apply", "--batch"))

    def write(self, count: int) -> None:
        folder = self.project.folder
        (folder / "migrations").mkdir(parents=True)
        (folder / "yoyo.ini").write_text(
            f"[DEFAULT]\nsources = migrations\ndatabase = sqlite:///{self.project.target}\nbatch_mode = on\n"
        )
        for number in range(1, count + 1):
            depends = f"-- depends: {number - 1:04d}_t_{number - 1}\n" if number > 1 else "-- depends:\n"
            (folder / "migrations" / f"{number:04d}_t_{number}.sql").write_text(depends + create_table(number))
