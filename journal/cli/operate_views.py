"""What the operators' commands show around their work: errors and notes, places, pending files, how a run ended.

Texts that come from files or from a database are somebody else's: what is not printable is escaped. Text is shortened
where it is long, JSON never.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from journal.cli.output import duration, printable, write_line, write_table
from journal.errors import JournalError, TargetError
from journal.vocabulary import Direction

if TYPE_CHECKING:
    from journal.cli.report import Report
    from journal.migrations.source import MigrationSource

_NAMED: Final = 3


def error_document(error: JournalError | None) -> dict[str, Any] | None:
    """An error as it stands in other documents, too."""
    return None if error is None else {"code": error.code, "message": error.message, "details": error.details}


def write_error(error: JournalError) -> None:
    """An error on stderr, as every command writes it."""
    write_problem(error.code, error.message)


def write_problem(code: str, message: str) -> None:
    """What is wrong: on one line, and what it lists below it on lines of its own."""
    first, *rest = message.split("\n")
    write_note(f"journal: {first} [{code}]")
    for line in rest:
        write_note(line)


def write_note(line: str) -> None:
    """One line on stderr."""
    sys.stderr.write(f"{printable(line)}\n")
    sys.stderr.flush()


def pending_document(pending: Sequence[MigrationSource] | None, problem: str | None) -> dict[str, Any]:
    """The part of `journal status --json` about files; both are null without a folder of migrations."""
    return {
        "pending": None if pending is None else [str(source.id) for source in pending],
        "pending_problem": problem,
    }


def write_pending(pending: Sequence[MigrationSource] | None, problem: str | None) -> None:
    """The same for people."""
    if problem is not None:
        write_line()
        write_line(printable(f"pending migrations are not known: {problem}"), style="yellow")
    elif pending:
        write_line()
        write_table(("PENDING", "FILE"), [(source.id, source.path) for source in pending])


# --- runs -------------------------------------------------------------------------------------------------------------


def run_document(report: Report) -> dict[str, Any]:
    """`journal apply --json` and `journal rollback --json`."""
    error, position = report.error, report.position
    return {
        "outcome": report.word,
        "scope": report.scope,
        "direction": report.direction,
        "migrations": [str(id) for id in report.migrations],
        "position": None if position is None else position.details(),
        "error": error_document(error),
        "recovered": [{"committed": item.committed, **item.position.details()} for item in report.recovered],
        "waited_for": list(report.waited_for),
        "done_by": list(report.done_by),
        "seconds": round(report.seconds, 3),
    }


def write_run(report: Report) -> None:
    """How a run ended, for people; what it did is on stdout already, migration by migration."""
    is_forward = report.direction is Direction.FORWARD
    if report.error is not None:
        write_error(report.error)
        _write_stop(report)
    elif report.word == "applied":
        number = len(report.migrations)
        what = f"{number} migration{'' if number == 1 else 's'}"
        write_line(f"{'applied' if is_forward else 'rolled back'} {what} in {duration(report.seconds)}", style="green")
    else:
        by = f": {'applied' if is_forward else 'rolled back'} meanwhile by {' and '.join(report.done_by)}"
        write_line(f"{'up to date' if is_forward else 'nothing to roll back'}{by if report.done_by else ''}")


def _write_stop(report: Report) -> None:
    done = report.migrations
    if done:
        named = ", ".join(str(id) for id in done[-_NAMED:])
        more = len(done) - _NAMED
        write_note(f"  done     {named}{f' and {more} before' if more > 0 else ''}")
    if report.position is not None:
        write_note(f"  stopped  at {report.position}")
    for line in report.statement:
        write_note(f"           {line}")
    refused = report.word == "retry_safe" and isinstance(report.error, TargetError)
    write_note(f"  next     {'correct what is said above, then ' if refused else ''}{_ADVICE[report.word]}")


_ADVICE: Final = {
    "retry_safe": "run again: what was begun is carried on, nothing runs twice",
    "requires_explicit_recovery": "look with `journal resolve`; running again alone does not help",
    "failed": "nothing that was applied is lost; running again alone does not help",
}
