"""What a run would do now, shown without an effect: no lease is taken, nothing is written to journal or target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from journal.control import Control
from journal.errors import JournalError
from journal.identities import Fingerprint, MigrationId
from journal.migrations.planner import Known, check_files, plan_apply, plan_rollback
from journal.migrations.source import MigrationSource
from journal.ports import Database
from journal.state import ScopeState, UnitKey
from projections.comparison import compare
from projections.drift import Difference
from projections.executor import check_keys, check_limits
from projections.ledger import ledger_of
from projections.open_plan import rest_to_apply, rest_to_roll_back, wanted_by
from projections.rehearsal import Rehearsal
from projections.units import Work, forward, reverse


@dataclass(frozen=True, slots=True)
class Preview:
    """What a run would do now: the rest of the open plan (`is_open`), or what it would plan.

    `live` is the live schema's fingerprint, `expected` the one that the first unit to run starts from.
    `reverse_problems` say which of the works could not be undone afterwards, and why.
    """

    works: tuple[Work, ...]
    is_open: bool
    begun: frozenset[UnitKey]
    live: Fingerprint
    expected: Fingerprint
    drift: tuple[Difference, ...]
    reverse_problems: tuple[str, ...]


async def preview_apply(
    state: ScopeState,
    sources: Sequence[MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    *,
    target: MigrationId | None = None,
    allow_out_of_order: bool = False,
) -> Preview:
    """What `Executor.apply` would do. Raises what it would meet before its first effect."""
    ordered = check_files(sources)
    ledger = ledger_of(state)
    rest = 0
    if state.plan is not None:
        left = await rest_to_apply(state, ordered, wanted_by(ordered, target), database)
        ordered, rest = left.ordered, len(left.kept)
        ledger += [Known(id, digest) for id, digest in left.kept]
    plan = plan_apply(ordered, ledger, target, allow_out_of_order=allow_out_of_order)
    chain = [*plan.applied, *plan.planned]
    count = rest + len(plan.planned)
    prepared = (await rehearsal.prepare(chain))[len(chain) - count :]
    works = [forward(item) for item in prepared]
    check_limits(works, Control())
    await check_keys(prepared[rest:], database)
    problems = await _reverse_problems(rehearsal, chain, count)
    return await _preview(state, ordered, database, rehearsal, works, problems)


async def preview_rollback(
    state: ScopeState,
    sources: Sequence[MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    *,
    to: MigrationId | None = None,
    steps: int | None = None,
) -> Preview:
    """What `Executor.roll_back` would do. Raises what it would meet before its first effect."""
    ordered = check_files(sources)
    if state.plan is None:
        plan = plan_rollback(ordered, ledger_of(state), to=to, steps=steps)
        applied, count = plan.applied, len(plan.retired)
    else:
        _, applied = rest_to_roll_back(state, ordered)
        count = len(state.plan.remaining)
    prepared = await rehearsal.prepare(applied)
    await rehearsal.check_reverses(applied, count)
    works = [reverse(item) for item in reversed(prepared[len(prepared) - count :])]
    check_limits(works, Control())
    return await _preview(state, ordered, database, rehearsal, works, ())


async def _reverse_problems(rehearsal: Rehearsal, sources: Sequence[MigrationSource], count: int) -> tuple[str, ...]:
    """What a later rollback would meet; it is no reason not to apply."""
    try:
        await rehearsal.check_reverses(sources, count)
    except JournalError as error:
        return (error.message,)
    return ()


async def _preview(
    state: ScopeState,
    ordered: Sequence[MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    works: Sequence[Work],
    problems: tuple[str, ...],
) -> Preview:
    comparison = await compare(state, ordered, database, rehearsal)
    return Preview(
        works=tuple(works),
        is_open=state.plan is not None,
        begun=frozenset(() if state.plan is None else state.plan.units),
        live=comparison.live,
        expected=comparison.expected,
        drift=comparison.drift,
        reverse_problems=problems,
    )
