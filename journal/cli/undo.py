"""What an open plan has done so far, and what would undo by hand the steps of a migration that is half done.

Once a plan is abandoned, its half-done migration is in no ledger, and what its steps left in the target is a person's
business. The statements come from the file, as long as that is still what was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from journal.cli.output import printable, write_line
from journal.cli.plan_views import write_statement
from journal.migrations.source import AssertionSource, BackfillSource, MigrationSource, SchemaSource, Statement
from journal.state import OpenPlan, Unit, UnitKey
from journal.vocabulary import DONE, Direction, UnitKind


@dataclass(frozen=True, slots=True)
class HalfDone:
    """A step that took effect, in a migration that did not come to its end. `undo` is None when no file tells it."""

    migration: str
    unit: UnitKind
    ordinal: int
    whole: bool
    source: MigrationSource | None
    undo: tuple[Statement, ...] | None


def done_of(plan: OpenPlan) -> list[str]:
    """The migrations of a plan that are finished."""
    return [id for id in plan.members.values() if id not in plan.remaining]


def half_done(plan: OpenPlan, sources: Sequence[MigrationSource]) -> Iterator[HalfDone]:
    """The steps to undo, in the order in which they are to be undone: last first."""
    by_id = {str(source.id): source for source in sources}
    for key, unit in reversed(plan.units.items()):
        digest, kind, ordinal, direction = key
        migration = plan.members[digest]
        if migration not in plan.remaining or not _took_effect(key, unit):
            continue
        source = by_id.get(migration)
        if source is not None and source.digest != digest:
            source = None
        undo = None if source is None else _undo(source, kind, ordinal, direction)
        yield HalfDone(migration, kind, ordinal, unit.kind in DONE, source, undo)


def _took_effect(key: UnitKey, unit: Unit) -> bool:
    """Of a backfill that was stopped, batches may have committed."""
    return unit.kind in DONE or key[1] is UnitKind.BACKFILL


def _undo(source: MigrationSource, kind: UnitKind, ordinal: int, direction: Direction) -> tuple[Statement, ...] | None:
    """The other direction of a step."""
    steps = [step for step in source.steps if not isinstance(step, AssertionSource)]
    schemas = [step for step in steps if isinstance(step, SchemaSource)]
    if kind is UnitKind.GROUP:
        return schemas[ordinal].reverse
    if kind is UnitKind.ROLLBACK_STEP:
        return schemas[-1 - ordinal].statements
    # Forward backfills are counted by the steps of the file, reverse ones by the operations of the rollback.
    step = source.steps[ordinal] if direction is Direction.FORWARD else steps[-1 - ordinal]
    assert isinstance(step, BackfillSource)
    statement = step.reverse if direction is Direction.FORWARD else step.statement
    return None if statement is None else (statement,)


def half_done_document(plan: OpenPlan, sources: Sequence[MigrationSource]) -> list[dict[str, Any]]:
    """The same as `half_done`, for programs."""
    return [
        {
            "migration": step.migration,
            "unit": step.unit,
            "ordinal": step.ordinal,
            "whole": step.whole,
            "undo": None if step.undo is None else [statement.text for statement in step.undo],
        }
        for step in half_done(plan, sources)
    ]


def write_half_done(plan: OpenPlan, sources: Sequence[MigrationSource]) -> None:
    """Print what of a plan is done, and what is half done with the statements that undo it."""
    done = "applied" if plan.direction is Direction.FORWARD else "rolled back"
    write_line(f"{done} and stays so: {', '.join(done_of(plan)) or 'nothing'}")
    steps = list(half_done(plan, sources))
    if not steps:
        write_line("half done: nothing")
    for step in steps:
        _write_step(step)


def _write_step(step: HalfDone) -> None:
    what = "done" if step.whole else "begun, and may be done in part"
    write_line(
        f"half done: {step.migration}, {step.unit.value.replace('_', ' ')} {step.ordinal} is {what}; to undo it by hand:"
    )
    if step.source is None:
        write_line(printable("      (its file is gone or has changed, so what undoes it is not known)"))
    elif not step.undo:
        write_line("      (the file has nothing that undoes it)")
    else:
        for statement in step.undo:
            write_statement(step.source.path, statement)
