"""What a run of migrations tells: progress while it is under way, and one outcome at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from journal.errors import JournalError
from journal.identities import MigrationId
from journal.ports import BackfillCursor
from journal.vocabulary import Direction, UnitKind


@dataclass(frozen=True, slots=True)
class UnitPosition:
    """Where in the files a unit stands: the migration, which unit of it, and its step (from 0), file and line."""

    migration: MigrationId
    unit: UnitKind
    ordinal: int
    direction: Direction
    step_index: int
    file: str
    line: int

    def details(self) -> dict[str, Any]:
        """The same for errors and for programs."""
        return {
            "migration": str(self.migration),
            "unit": self.unit.value,
            "ordinal": self.ordinal,
            "direction": self.direction.value,
            "step": self.step_index,
            "file": self.file,
            "line": self.line,
        }

    def __str__(self) -> str:
        way = "" if self.direction is Direction.FORWARD else "reverse of "
        return f"{self.migration} step {self.step_index} ({way}{self.file}:{self.line})"


class UnitAction(Enum):
    """How a unit came to its end in this run."""

    EXECUTED = "executed"
    REPAIRED = "repaired"  # it had committed: its checkpoint was missing
    ADVANCED = "advanced"  # it changes nothing that the target can see


# --- progress ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanStarted:
    """A plan is open from here on; `resumed`: an earlier run had opened it."""

    direction: Direction
    migrations: tuple[MigrationId, ...]
    resumed: bool


@dataclass(frozen=True, slots=True)
class PlanGivenUp:
    """An open plan of which nothing is half done was abandoned, because the files or the target of this run differ."""

    reason: str


@dataclass(frozen=True, slots=True)
class MigrationStarted:
    """Work on one migration begins; `number` counts from 1 within the plan."""

    migration: MigrationId
    direction: Direction
    number: int
    total: int


@dataclass(frozen=True, slots=True)
class UnitDoubted:
    """An earlier run left this unit in doubt; the target proves what became of it."""

    position: UnitPosition
    committed: bool


@dataclass(frozen=True, slots=True)
class BackfillAdvanced:
    """A batch of a backfill was committed."""

    position: UnitPosition
    cursor: BackfillCursor


@dataclass(frozen=True, slots=True)
class UnitFinished:
    """A unit came to its end."""

    position: UnitPosition
    action: UnitAction


@dataclass(frozen=True, slots=True)
class MigrationFinished:
    """The migration entered the ledger, or left it."""

    migration: MigrationId
    direction: Direction


Progress: TypeAlias = (
    PlanStarted | PlanGivenUp | MigrationStarted | UnitDoubted | BackfillAdvanced | UnitFinished | MigrationFinished
)
Observer: TypeAlias = Callable[[Progress], None]


# --- outcomes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """Everything that was planned is done: these migrations entered the ledger or, rolling back, left it."""

    direction: Direction
    migrations: tuple[MigrationId, ...]


@dataclass(frozen=True, slots=True)
class UpToDate:
    """There was nothing to do."""


@dataclass(frozen=True, slots=True)
class RetrySafe:
    """Stopped where nothing is half done or in doubt that the next run does not settle: run again.

    `migrations` were finished before that; `position` says at which unit it stopped, None when at none.
    """

    migrations: tuple[MigrationId, ...]
    position: UnitPosition | None
    error: JournalError


@dataclass(frozen=True, slots=True)
class RequiresExplicitRecovery:
    """What became of a unit cannot be proven, or the target is in neither of its states: an operator has to decide."""

    migrations: tuple[MigrationId, ...]
    position: UnitPosition
    error: JournalError


@dataclass(frozen=True, slots=True)
class Failed:
    """Refused, or stopped by evidence that contradicts other evidence: running again alone does not help."""

    migrations: tuple[MigrationId, ...]
    position: UnitPosition | None
    error: JournalError


Outcome: TypeAlias = Applied | UpToDate | RetrySafe | RequiresExplicitRecovery | Failed
