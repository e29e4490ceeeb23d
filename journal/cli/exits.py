"""How the command ends: its exit codes.

| code | meaning                                                                                       |
|------|-----------------------------------------------------------------------------------------------|
| 0    | done                                                                                          |
| 1    | failed                                                                                        |
| 2    | usage: an option, a setting or a name is wrong, or the scope must be named                    |
| 3    | another holder has the lease                                                                  |
| 4    | an operator has to decide                                                                     |
| 5    | pending or differs                                                                            |
| 6    | integrity: evidence contradicts evidence, history is lost, the key is missing or wrong        |
| 130  | interrupted, at a safe boundary where there is one                                            |
| 141  | whoever read the output is gone                                                               |
| 143  | terminated, in the same way                                                                   |
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from journal.errors import Code, IntegrityError, JournalError, LeaseContendedError


class Exit(IntEnum):
    """Exit codes of the command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CONTENDED = 3
    OPERATOR = 4
    PENDING = 5
    INTEGRITY = 6
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


_USAGE: Final = frozenset(
    {
        Code.INVALID_SETTINGS,
        Code.INVALID_SCOPE,
        Code.INVALID_MIGRATION_ID,
        Code.INVALID_DIGEST,
        Code.INVALID_KEY,
        Code.INVALID_HOLDER,
        Code.INVALID_TEXT,
        Code.UNKNOWN_MIGRATION,
    }
)
_OPERATOR: Final = frozenset({Code.UNIT_IN_DOUBT, Code.EXPLICIT_RECOVERY, Code.SCOPE_MOVED, Code.SCOPE_AWAITED})


def exit_code(error: JournalError) -> Exit:
    """The exit code that an error ends the command with."""
    if error.code in _USAGE:
        return Exit.USAGE
    if error.code in _OPERATOR:
        return Exit.OPERATOR
    if error.code is Code.CANCELLED:
        return Exit.TERMINATED if error.details.get("signal") == "SIGTERM" else Exit.INTERRUPTED
    if isinstance(error, LeaseContendedError):
        return Exit.CONTENDED
    return Exit.INTEGRITY if isinstance(error, IntegrityError) else Exit.FAILED
