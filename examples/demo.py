"""`make demo`: migrations of a real database whose process is killed at the worst moments, and how they end well.

Everything that is printed is the real output of real processes, in a temporary folder.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOURNAL = str(Path(sys.executable).with_name("journal"))
HERE = Path(__file__).parent
RUNNER = HERE / "killed_runner.py"
WANTED = ["shop/0001_orders", "shop/0002_total_in_cents", "shop/0003_orders_by_customer"]
FOUND = "SELECT count(*), sum(total_cents = round(total * 100)) FROM orders"


def say(*lines: str) -> None:
    print("", *(f"# {line}" for line in lines), sep="\n", flush=True)


def journal(folder: Path, *arguments: str, expected: int = 0) -> None:
    print(f"$ {shlex.join(['journal', *arguments])}", flush=True)
    ended = subprocess.run([JOURNAL, *arguments], cwd=folder, check=False)
    if ended.returncode != expected:
        raise SystemExit(f"it ended with {ended.returncode}, not {expected}")


def killed(folder: Path, commits: int) -> None:
    """Run the migrations, and be killed right behind a commit of the database, before it can be recorded."""
    print(f"$ python {RUNNER.name} {commits}", flush=True)
    ended = subprocess.run([sys.executable, str(RUNNER), str(commits)], cwd=folder, check=False)
    if ended.returncode != -signal.SIGKILL:
        raise SystemExit(f"it ended with {ended.returncode} instead of being killed")
    print("Killed", flush=True)


def asked(folder: Path, *arguments: str) -> dict[str, Any]:
    answer = subprocess.run([JOURNAL, *arguments, "--json"], cwd=folder, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(answer.stdout))


def is_right(folder: Path) -> bool:
    """Whether journal and database show each migration exactly once."""
    status, verified = asked(folder, "status"), asked(folder, "verify")
    database = sqlite3.connect(folder / "shop.db")
    rows = database.execute(FOUND).fetchone()
    database.close()
    ledger = [row["migration"] for row in status["ledger"]]
    return ledger == WANTED and status["plan"] is None and verified["ok"] is True and rows == (5000, 5000)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="journal-demo-") as name:
        folder = Path(name) / "shop"
        shutil.copytree(HERE / "shop", folder)
        say("Three migrations: a table with 5 000 rows; a column that a backfill fills, in batches; an index.")
        journal(folder, "plan")

        say(
            "They are applied, and the process is killed (kill -9) right behind its second commit in the database: the",
            "column is there, and the journal does not know it.",
        )
        killed(folder, 2)

        say("The journal knows exactly what it does not know; the database has a witness of what was committed.")
        journal(folder, "resolve", expected=5)

        say(
            "Running again is recovery: the lost record is repaired, nothing runs twice. This time the process is killed",
            "in the middle of the backfill, behind a batch.",
        )
        killed(folder, 3)

        say("And again, now by the command itself, as everybody would run it.")
        journal(folder, "apply")

        say("Every event is there, with its verdict and the fence that it was written under.")
        journal(folder, "history")

        say("Ledger, files and the live schema agree, and the history can be verified from its start.")
        journal(folder, "verify", "--migrations")

        right = is_right(folder)
        say("Each statement took effect exactly once." if right else "THE END STATE IS WRONG.")
        return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
