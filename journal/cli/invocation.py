"""One run of the command, from its arguments to its exit code.

An error is one line on stderr, `journal: <message> [<code>]`, with what it lists on the lines below. With `--json` stdout also gets, as the document or as the
last line of a stream, `{"error": {"code": ..., "message": ..., "details": {...}}}`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from journal.cli.command import journal
from journal.cli.exits import Exit, exit_code
from journal.cli.operate_views import write_problem
from journal.cli.output import write_json
from journal.errors import JournalError


def run(arguments: Sequence[str]) -> int:
    """Run the command and say how it ended; every error is told on the way."""
    as_json = "--json" in arguments
    try:
        return _finish(arguments, as_json=as_json)
    except BrokenPipeError:
        _give_up_output()  # nobody reads any more
        return Exit.BROKEN_PIPE
    except OSError as error:
        # What the journal meets comes as its own errors; this was met on the way out.
        _give_up_output()
        sys.stderr.write(f"journal: cannot write the output: {error.strerror or error}\n")
        return Exit.FAILED


def _give_up_output() -> None:
    """Without this the interpreter complains about what it could not write when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _finish(arguments: Sequence[str], *, as_json: bool) -> int:
    try:
        code = _invoke(arguments)
    except click.UsageError as error:
        _tell("usage", _usage(error), {}, as_json=as_json)
        code = Exit.USAGE
    except JournalError as error:
        _tell(error.code, error.message, error.details, as_json=as_json)
        code = exit_code(error)
    except OSError:
        raise
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("journal: interrupted\n")
        code = Exit.INTERRUPTED
    except Exception as error:  # noqa: BLE001  (a fault of the command itself: still no traceback)
        _tell("internal", _internal(error), {}, as_json=as_json)
        code = Exit.FAILED
    sys.stdout.flush()
    return code


def _invoke(arguments: Sequence[str]) -> int:
    if not arguments:
        with click.Context(journal, info_name="journal") as context:
            click.echo(journal.get_help(context))
        return Exit.USAGE
    try:
        with journal.make_context("journal", list(arguments)) as context:
            result = journal.invoke(context)
    except click.exceptions.Exit as end:  # help and version
        return end.exit_code
    return result if isinstance(result, int) else Exit.DONE


def _tell(code: str, message: str, details: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        write_json({"error": {"code": str(code), "message": message, "details": details}})
        sys.stdout.flush()
    write_problem(code, message)


def _usage(error: click.UsageError) -> str:
    hint = error.ctx.command_path if error.ctx is not None else "journal"
    return f"{error.format_message().rstrip('.')} (see {hint} --help)"


def _internal(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
    return f"internal error, please report it: {type(error).__name__}{where}: {error}"
