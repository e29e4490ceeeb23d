"""How a run ended: its outcome with what else is told of it, and the exit code that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from journal.cli.exits import Exit, exit_code
from journal.cli.interrupts import Interrupts
from journal.cli.plan_views import excerpt
from journal.cli.progress import Recovered
from journal.errors import Code, JournalError, LeaseContendedError
from journal.identities import MigrationId, Scope
from journal.migrations.source import AssertionSource, BackfillSource, MigrationSource, SchemaSource, Statement
from journal.vocabulary import Direction
from projections.outcome import (
    Applied,
    Failed,
    Outcome,
    RequiresExplicitRecovery,
    RetrySafe,
    UnitPosition,
    UpToDate,
)

Stopped: TypeAlias = RetrySafe | RequiresExplicitRecovery | Failed

_WORDS: Final[dict[type[Outcome], str]] = {
    Applied: "applied",
    UpToDate: "up_to_date",
    RetrySafe: "retry_safe",
    RequiresExplicitRecovery: "requires_explicit_recovery",
    Failed: "failed",
}


@dataclass(frozen=True, slots=True)
class Report:
    """One run at its end. `done_by` says who did meanwhile what this run was to do."""

    scope: Scope
    direction: Direction
    outcome: Outcome
    seconds: float
    recovered: Sequence[Recovered] = ()
    waited_for: Sequence[str] = ()
    done_by: Sequence[str] = ()
    sources: Sequence[MigrationSource] = ()

    @property
    def word(self) -> str:
        """The outcome as programs know it; it is the same word for both directions."""
        return _WORDS[type(self.outcome)]

    @property
    def migrations(self) -> tuple[MigrationId, ...]:
        """What was finished."""
        return () if isinstance(self.outcome, UpToDate) else self.outcome.migrations

    @property
    def position(self) -> UnitPosition | None:
        """Where it stopped."""
        return self.outcome.position if isinstance(self.outcome, Stopped) else None

    @property
    def error(self) -> JournalError | None:
        """Why it stopped."""
        return self.outcome.error if isinstance(self.outcome, Stopped) else None

    @property
    def statement(self) -> list[str]:
        """The statement at which it stopped, as people get to see it; empty when it stopped at none."""
        line = None if self.error is None else self.error.details.get("line")
        source = next((item for item in self.sources if self.position and item.id == self.position.migration), None)
        if source is None or self.position is None:
            return []
        found = [item for item in _statements(source) if item.line == (line or self.position.line)]
        return excerpt(found[0].text) if found else []

    def exit_code(self, interrupts: Interrupts) -> int:
        """The exit code of the command."""
        match self.outcome:
            case Applied() | UpToDate():
                return Exit.DONE
            case RequiresExplicitRecovery():
                return Exit.OPERATOR
            case Failed(_, _, error):
                return exit_code(error)
            case RetrySafe(_, _, error):
                if error.code is Code.CANCELLED:
                    return interrupts.exit_code
                return Exit.CONTENDED if isinstance(error, LeaseContendedError) else Exit.FAILED


def _statements(source: MigrationSource) -> list[Statement]:
    found: list[Statement] = []
    for step in source.steps:
        match step:
            case AssertionSource():
                found.append(step.query)
            case SchemaSource():
                found.extend((*step.statements, *(step.reverse or ())))
            case BackfillSource():
                found.extend(item for item in (step.statement, step.verify, step.reverse) if item is not None)
    return found
