"""The `journal` command.

Its parts are imported when they are needed: a small command is over before everything would have been imported.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Run the command with the process's arguments and exit with its code. No traceback reaches anybody."""
    # A command is short and keeps most of what it makes: to look through it for garbage as often as Python does by
    # default takes some twentieth of its time.
    gc.set_threshold(100_000)
    _prepare_streams()
    try:
        from journal.cli.invocation import run  # noqa: PLC0415  (an interrupt while it is imported is caught, too)

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("journal: interrupted\n")
        code = 130
    sys.exit(code)


def _prepare_streams() -> None:
    """Let output neither fail on a character that the terminal lacks nor on a stream that was closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (until the process ends)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


__all__ = ["main"]
