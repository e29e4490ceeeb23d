"""The `journal` command.

Its parts are imported when they are needed: a small command is over before everything would have been imported.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command with the process's arguments and exit with its code. No traceback reaches anybody."""
    try:
        from journal.cli.invocation import run  # noqa: PLC0415  (an interrupt while it is imported is caught, too)

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        sys.stderr.write("journal: interrupted\n")
        code = 130
    sys.exit(code)


__all__ = ["main"]
