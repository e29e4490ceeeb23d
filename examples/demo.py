"""`make demo`: a migration whose process is killed at the worst moment, and what the journal makes of it.

Everything that is printed is the real output of real processes, in a temporary folder.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

JOURNAL = str(Path(sys.executable).with_name("journal"))
SERVICE = Path(__file__).with_name("orders_service.py")
COLUMNS = "SELECT name FROM pragma_table_info('orders')"


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def show(arguments: list[str]) -> None:
    named = {sys.executable: ["python", SERVICE.name, *arguments[2:]], JOURNAL: ["journal", *arguments[1:]]}
    shown = named[arguments[0]]
    print(f"$ {shlex.join(shown)}", flush=True)


def run(folder: Path, *arguments: str) -> None:
    show(list(arguments))
    subprocess.run(arguments, cwd=folder, check=True)


def ask(folder: Path, *arguments: str) -> dict[str, object]:
    answer = subprocess.run(arguments, cwd=folder, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(answer.stdout))


def migrate(holder: str, *options: str) -> list[str]:
    return [sys.executable, str(SERVICE), "migrate", "--holder", holder, *options]


def run_and_kill(folder: Path) -> None:
    """Let the service commit on its database, and kill it before it can record that."""
    arguments = migrate("pod-1", "--ttl", "2")
    show(arguments)
    environment = {**os.environ, "ORDERS_STOP_AFTER": "commit"}
    with subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith("stopped after"):
                process.send_signal(signal.SIGKILL)
                break
    print(f"killed: it ended with {process.returncode}")


def columns(folder: Path) -> list[str]:
    database = sqlite3.connect(folder / "orders.db")
    names = [name for (name,) in database.execute(COLUMNS)]
    database.close()
    return names


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="journal-demo-") as name:
        folder = Path(name)
        say(
            "A service applies three migrations. It is killed after its database committed the first one, and before it"
        )
        print("# could record that: nobody who looks at the journal alone can know whether the table is there.")
        run_and_kill(folder)

        say("The journal knows exactly what it does not know.")
        run(folder, JOURNAL, "status")

        say(
            "Another pod runs the same command. It waits until the dead holder's lease is over, looks at the database under"
        )
        print("# a greater fence, repairs the record of what was committed, and goes on with the rest.")
        run(folder, *migrate("pod-2"))

        say("Every event is there, with its verdict and the fence that it was written under.")
        run(folder, JOURNAL, "history")

        say("And all of it can be verified from its start.")
        run(folder, JOURNAL, "verify")

        status, verified = ask(folder, JOURNAL, "status", "--json"), ask(folder, JOURNAL, "verify", "--json")
        ledger = status["ledger"]
        right = (
            isinstance(ledger, list)
            and [row["migration"] for row in ledger]
            == ["orders/0001_orders", "orders/0002_total_in_cents", "orders/0003_customer_index"]
            and status["plan"] is None
            and verified["ok"] is True
            and columns(folder) == ["id", "customer", "total", "total_cents"]
        )
    say("The database and the journal agree." if right else "THE END STATE IS WRONG.")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
