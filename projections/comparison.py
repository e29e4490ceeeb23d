"""Ledger against files against the live schema: what is edited, missing, pending, and what drifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from journal.errors import Code, IntegrityError
from journal.identities import Digest, Fingerprint, MigrationId
from journal.migrations.planner import check_files, check_ledger
from journal.migrations.source import MigrationSource
from journal.ports import Database
from journal.state import ScopeState
from journal.vocabulary import DONE, IN_DOUBT, Direction
from projections.drift import Difference, differences
from projections.ledger import ledger_of
from projections.rehearsal import Rehearsal, truncated
from projections.units import forward, reverse


@dataclass(frozen=True, slots=True)
class Edited:
    """A migration whose file is not what was applied; `found` is None when the file is gone."""

    id: MigrationId
    recorded: Digest
    found: Digest | None
    path: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ledger against files against the live schema.

    The schema can only be compared when no file of the ledger is edited or missing; `drift` is then complete. While a
    plan is open, what its finished units made is expected, too.
    """

    edited: tuple[Edited, ...]
    pending: tuple[MigrationId, ...]
    is_open: bool
    in_doubt: bool
    live: Fingerprint
    expected: Fingerprint
    drift: tuple[Difference, ...]

    @property
    def compared(self) -> bool:
        """Whether the live schema could be compared."""
        return not self.edited

    @property
    def agrees(self) -> bool:
        """Whether everything fits and nothing is left to do."""
        return self.compared and not self.drift and not self.pending and not self.is_open


async def compare(
    state: ScopeState, sources: Sequence[MigrationSource], database: Database, rehearsal: Rehearsal
) -> Comparison:
    """Compare what the ledger, the files and the live schema say. Raises as reading and replaying the files do."""
    ordered = check_files(sources)
    by_id = {source.id: source for source in ordered}
    ledger = ledger_of(state)
    gone = tuple(Edited(entry.id, entry.digest, None, None) for entry in ledger if entry.id not in by_id)
    edited = gone
    try:
        by_id |= {
            source.id: source
            for source in check_ledger(
                ordered, [entry for entry in ledger if entry.id in by_id], allow_out_of_order=True
            )
        }
    except IntegrityError as error:
        if error.code is not Code.MIGRATION_EDITED:
            raise
        edited += tuple(map(_edited, error.details["migrations"]))
    active = {entry.id for entry in ledger}
    live = await database.observe()
    expected = live
    drift: tuple[Difference, ...] = ()
    if not edited:
        expected, drift = await _compare_schema(state, by_id, database, rehearsal, live)
    return Comparison(
        edited=edited,
        pending=tuple(source.id for source in ordered if source.id not in active),
        is_open=state.plan is not None,
        in_doubt=any(unit.kind in IN_DOUBT for unit in (state.plan.units.values() if state.plan else ())),
        live=live,
        expected=expected,
        drift=drift,
    )


def _edited(details: dict[str, str]) -> Edited:
    recorded, found = Digest.parse(details["recorded"]), Digest.parse(details["found"])
    return Edited(MigrationId.parse(details["migration"]), recorded, found, details["file"])


async def _compare_schema(
    state: ScopeState,
    by_id: dict[MigrationId, MigrationSource],
    database: Database,
    rehearsal: Rehearsal,
    live: Fingerprint,
) -> tuple[Fingerprint, tuple[Difference, ...]]:
    chain = await _done_so_far(state, by_id, rehearsal)
    expected = rehearsal.state_after(await rehearsal.prepare(chain)).semantics
    if expected == live:
        return expected, ()
    return expected, differences(await rehearsal.describe(chain), await database.describe())


async def _done_so_far(
    state: ScopeState, by_id: dict[MigrationId, MigrationSource], rehearsal: Rehearsal
) -> list[MigrationSource]:
    """The ledger, and of a migration that is half done the steps that are done, or not undone yet."""
    chain = [by_id[MigrationId.parse(id)] for id in state.active]
    plan = state.plan
    if plan is None:
        return chain
    done = {key for key, unit in plan.units.items() if unit.kind in DONE and plan.members[key[0]] in plan.remaining}
    source = next((by_id.get(MigrationId.parse(plan.members[key[0]])) for key in done), None)
    if source is None:
        return chain
    before = [item for item in chain if item.id != source.id]
    prepared = (await rehearsal.prepare([*before, source]))[-1]
    work = forward(prepared) if plan.direction is Direction.FORWARD else reverse(prepared)
    steps = [unit.position.step_index for unit in work.units if unit.key in done]
    if not steps:
        return chain  # the file is another by now
    return [*before, truncated(source, steps[-1] + (plan.direction is Direction.FORWARD))]
