"""What is shown of a run while it is under way.

On stdout a line for each migration that is finished and each unit that was recovered; it is the record of the run. On
stderr how far it is: bars on a terminal, otherwise now and then a line about a long backfill. Nothing with `--json`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from journal.cli.output import duration, is_terminal, printable, write_line
from journal.identities import MigrationId
from journal.ports import BackfillCursor
from journal.vocabulary import Direction, UnitKind
from projections.outcome import (
    BackfillAdvanced,
    MigrationFinished,
    MigrationStarted,
    Observer,
    PlanGivenUp,
    PlanStarted,
    Progress,
    UnitAction,
    UnitDoubted,
    UnitFinished,
    UnitPosition,
)

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress, TaskID

PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Recovered:
    """A unit that an earlier run had left in doubt, and what had become of it."""

    position: UnitPosition
    committed: bool

    def __str__(self) -> str:
        place = f"{self.position.migration} step {self.position.step_index}"
        if self.committed:
            return f"{place}: had committed, its record was repaired"
        if self.position.unit is UnitKind.BACKFILL:
            return f"{place}: had not come to its end, goes on behind its last batch"
        return f"{place}: had not committed, is run again"


def recovered(event: Progress) -> Recovered | None:
    """What an event says of a unit that was in doubt, told once a unit."""
    match event:
        case UnitFinished(position, UnitAction.REPAIRED):
            return Recovered(position, committed=True)
        case UnitDoubted(position, committed=False):
            return Recovered(position, committed=False)
        case _:
            return None


@dataclass(slots=True)
class Heard:
    """What a run told, kept for the report at its end."""

    finished: list[MigrationId] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    position: UnitPosition | None = None

    def __call__(self, event: Progress) -> None:
        """Keep what the report needs."""
        found = recovered(event)
        if found is not None:
            self.recovered.append(found)
        match event:
            case MigrationFinished(migration):
                self.finished.append(migration)
            case BackfillAdvanced(position) | UnitFinished(position):
                self.position = position
            case _:
                pass


@contextmanager
def shown(heard: Heard, *, as_json: bool) -> Generator[Observer, None, None]:
    """An observer that keeps what it hears in `heard` and, unless a program reads the output, shows it."""
    if as_json:
        yield heard
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield _all(heard, _write, bars)
    else:
        yield _all(heard, _write, BackfillLines())


def _all(*observers: Observer) -> Observer:
    def observe(event: Progress) -> None:
        for observer in observers:
            observer(event)

    return observe


# --- lines ------------------------------------------------------------------------------------------------------------


def _write(event: Progress) -> None:
    """One line on stdout for what lasts."""
    line = _line(event)
    if line is not None:
        write_line(printable(line))
        sys.stdout.flush()


def _line(event: Progress) -> str | None:
    found = recovered(event)
    if found is not None:
        return str(found)
    match event:
        case PlanStarted(direction, migrations, resumed=True):
            return f"an open plan to {verb(direction)} {count(migrations)} is carried on"
        case PlanGivenUp(reason):
            return f"the open plan was given up: {reason}"
        case MigrationFinished(migration, direction):
            return f"{done(direction)} {migration}"
        case _:
            return None


def verb(direction: Direction) -> str:
    """What a plan is going to do."""
    return "apply" if direction is Direction.FORWARD else "roll back"


def done(direction: Direction) -> str:
    """What a plan has done."""
    return "applied" if direction is Direction.FORWARD else "rolled back"


def count(migrations: Sequence[object]) -> str:
    """How many migrations."""
    return f"{len(migrations)} migration{'' if len(migrations) == 1 else 's'}"


class BackfillLines:
    """A line on stderr about a backfill that takes long; `clock` gives seconds, `write` takes a line."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, write: Callable[[str], object] | None = None
    ) -> None:
        self._clock = clock
        self._write = write or _write_error
        self._pace: Pace | None = None
        self._told = clock()

    def __call__(self, event: Progress) -> None:
        """Tell of a batch, when nothing was told for a while."""
        match event:
            case MigrationStarted() | UnitFinished():
                self._pace, self._told = None, self._clock()
            case BackfillAdvanced(position, cursor):
                now = self._clock()
                self._pace = self._pace or Pace(now, cursor.matched)
                if now - self._told >= PAUSE_SECONDS:
                    self._told = now
                    self._write(
                        f"{position.migration} step {position.step_index}: {self._pace.describe(cursor, now)}\n"
                    )
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a backfill goes, from the time and the rows at which it was first seen."""

    since: float
    rows: int

    def describe(self, cursor: BackfillCursor, now: float) -> str:
        """Rows, rate and the time that is left, as far as it can be known."""
        total = max(cursor.rows, cursor.matched)
        text = f"{cursor.matched} of {total} rows"
        elapsed, gone = now - self.since, cursor.matched - self.rows
        if elapsed <= 0 or gone <= 0:
            return text
        rate = gone / elapsed
        return f"{text}, {rate:.0f} rows/s, {duration((total - cursor.matched) / rate)} left"


def _write_error(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


# --- bars -------------------------------------------------------------------------------------------------------------


@contextmanager
def _bars() -> Generator[Observer, None, None]:
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress as RichProgress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}", markup=False),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeRemainingColumn(),
    )
    with RichProgress(
        *columns,
        console=Console(stderr=True, highlight=False),
        transient=True,
        redirect_stdout=is_terminal(),  # lines stand above the bars there; in a pipe they are none of its business
    ) as progress:
        yield _Bars(progress)


class _Bars:
    """A bar for the plan and, below it, one for the backfill that runs."""

    def __init__(self, progress: RichProgress) -> None:
        self._progress = progress
        self._plan: TaskID | None = None
        self._backfill: TaskID | None = None
        self._pace: Pace | None = None

    def __call__(self, event: Progress) -> None:
        match event:
            case MigrationStarted(migration, _, number, total):
                self._advance(f"{migration}", number - 1, total)
            case BackfillAdvanced(position, cursor):
                self._advance_backfill(position, cursor)
            case UnitFinished():
                self._end_backfill()
            case _:
                pass

    def _advance(self, description: str, completed: int, total: int) -> None:
        self._end_backfill()
        if self._plan is None:
            self._plan = self._progress.add_task(description, total=total, unit="migrations", rate="")
        self._progress.update(self._plan, description=description, completed=completed, total=total)

    def _advance_backfill(self, position: UnitPosition, cursor: BackfillCursor) -> None:
        now, total = time.monotonic(), max(cursor.rows, cursor.matched)
        if self._backfill is None or self._pace is None:
            self._pace = Pace(now, cursor.matched)
            name = f"  backfill, step {position.step_index}"
            self._backfill = self._progress.add_task(name, total=total, unit="rows", rate="")
        elapsed = now - self._pace.since
        rate = f"{(cursor.matched - self._pace.rows) / elapsed:.0f} rows/s" if elapsed > 0 else ""
        self._progress.update(self._backfill, completed=cursor.matched, total=total, rate=rate)

    def _end_backfill(self) -> None:
        if self._backfill is not None:
            self._progress.remove_task(self._backfill)
        self._backfill = self._pace = None
