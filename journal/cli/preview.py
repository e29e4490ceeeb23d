"""Looking ahead: what a run would do and meet, which units are in doubt, where ledger, files and live schema differ.

Nothing is written, neither to the journal nor to the target, and no lease is taken.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from journal.admission import Admitted
from journal.bootstrap import open_database, open_journal
from journal.cli import output, plan_views, views
from journal.cli.exits import Exit, exit_code
from journal.cli.operate_views import write_error
from journal.cli.project import Project, check_target
from journal.errors import Code, JournalError, LeaseContendedError, failure
from journal.events import Event, EventType
from journal.identities import MigrationId, Scope
from journal.journal import Journal
from journal.migrations.files import read_folder
from journal.ports import Database
from journal.records import LeaseAcquiredRecord
from journal.settings import Settings
from journal.state import ScopeState
from journal.vocabulary import Direction
from projections.audit import Verification
from projections.comparison import Comparison, compare
from projections.doubts import Doubt, find_doubts
from projections.drift import summary
from projections.preview import Preview, preview_apply, preview_rollback
from projections.rehearsal import Rehearsal


@dataclass(frozen=True, slots=True)
class Wish:
    """What a run is asked for. `to` and `steps`: both None is everything, or the rest of the plan that is open."""

    direction: Direction
    to: MigrationId | None = None
    steps: int | None = None
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class Foresight:
    """What a run would do, and the error that it would meet, as far as that can be seen now."""

    preview: Preview
    doubts: Sequence[Doubt]
    error: JournalError | None


@asynccontextmanager
async def opened_target(
    settings: Settings, scope: Scope, *, create: bool = False, read_only: bool = False
) -> AsyncGenerator[tuple[Database, Rehearsal], None]:
    """The target and a rehearsal for it, which are closed at the end of the block."""
    database = open_database(settings, create=create, read_only=read_only)
    rehearsal = Rehearsal(scope, database)
    try:
        yield database, rehearsal
    finally:
        await rehearsal.close()
        await database.close()


# --- plans ------------------------------------------------------------------------------------------------------------


async def show_plan(project: Project, wish: Wish, *, as_json: bool, pending_code: bool) -> int:
    """Print what a run would do; gives the exit code."""
    foresight = await foresee(project, wish)
    if as_json:
        output.write_json(plan_views.plan_document(project, wish.direction, foresight.preview, foresight.error))
    else:
        plan_views.write_plan(project, wish.direction, foresight.preview)
    if foresight.error is not None:
        write_error(foresight.error)
        return exit_code(foresight.error)
    return Exit.PENDING if pending_code and foresight.preview.works else Exit.DONE


async def foresee(project: Project, wish: Wish) -> Foresight:
    """Look ahead. Raises what a run would meet before anything of it could be shown.

    What contradicts the journal may be somebody's work under way: then the look is repeated, or it is said who is at
    work.

    Raises:
        LeaseContendedError: a run is under way, so that there is nothing certain to show.
    """
    while True:
        foresight = await _foresee(project, wish)
        if foresight.error is None:
            return foresight
        state = await undisturbed(project.settings, project.scope)
        if state.position == project.state.position:
            return foresight
        project = replace(project, state=state)


async def undisturbed(settings: Settings, scope: Scope) -> ScopeState:
    """What counts now; refused while somebody holds the lease. Raises LeaseContendedError."""
    async with open_journal(settings, read_only=True) as journal:
        state = await journal.state(scope)
        grant = await journal.lease_in_store(scope)
    if grant is not None and state.lease_id == grant.lease_id and grant.expires_at > time.time():
        until = f"{datetime.fromtimestamp(grant.expires_at, UTC):%Y-%m-%d %H:%M:%S}"
        raise LeaseContendedError(
            f"{grant.holder} is at work on scope {scope}, or died under its lease, so what the database shows may be half "
            f"of it: look again after {until} UTC, or when it has ended",
            holder=str(grant.holder),
            expires_at=grant.expires_at,
        )
    return state


async def _foresee(project: Project, wish: Wish) -> Foresight:
    check_target(project.settings, project.state)
    async with opened_target(project.settings, project.scope, read_only=True) as (database, rehearsal):
        if wish.direction is Direction.FORWARD:
            preview = await preview_apply(
                project.state,
                project.sources,
                database,
                rehearsal,
                target=wish.to,
                allow_out_of_order=wish.allow_out_of_order,
            )
        else:
            preview = await preview_rollback(
                project.state, project.sources, database, rehearsal, to=wish.to, steps=wish.steps
            )
        doubts = await find_doubts(project.state, project.sources, database, rehearsal)
    if doubts and all(doubt.settled_by_running for doubt in doubts):
        # What a unit in doubt did, or did not do, is no drift: the run settles it first.
        return Foresight(replace(preview, drift=()), doubts, None)
    return Foresight(preview, doubts, _obstacle(preview, doubts))


def _obstacle(preview: Preview, doubts: Sequence[Doubt]) -> JournalError | None:
    """What stops a run at its first step."""
    if doubts:
        names = [doubt.name for doubt in doubts]
        return failure(
            Code.EXPLICIT_RECOVERY,
            f"what became of {', '.join(names)} cannot be proven: look with `journal resolve`",
            units=names,
        )
    if not preview.drift:
        return None
    objects = [item.name for item in preview.drift]
    if preview.is_open:
        return failure(
            Code.EXPLICIT_RECOVERY,
            f"the live schema is not what the finished steps of the open plan made: {summary(preview.drift)}; bring it "
            "back before you run",
            objects=objects,
        )
    return failure(
        Code.STALE_SOURCE_STATE,
        f"the live schema is not what the applied migrations make: {summary(preview.drift)}; bring it back, or write "
        "what differs as a migration and adopt that with `journal import`",
        objects=objects,
    )


# --- doubts -----------------------------------------------------------------------------------------------------------


async def show_doubts(project: Project, *, as_json: bool) -> int:
    """Print every unit in doubt; the exit code says whether an operator has to decide."""
    check_target(project.settings, project.state)
    async with opened_target(project.settings, project.scope, read_only=True) as (database, rehearsal):
        found = await find_doubts(project.state, project.sources, database, rehearsal)
    holders: dict[int, str] = {}
    if found:
        async with open_journal(project.settings, read_only=True) as journal:
            holders = await holders_of(journal, project.scope)
    if as_json:
        output.write_json(plan_views.doubts_document(project.scope, found, holders, None))
    else:
        plan_views.write_doubts(found, holders)
    if not found:
        return Exit.DONE
    return Exit.PENDING if all(doubt.settled_by_running for doubt in found) else Exit.OPERATOR


async def holders_of(journal: Journal, scope: Scope) -> dict[int, str]:
    """Who took each fence; reads the log from its start."""
    return (await _fences(journal, scope, None))[0]


async def workers_since(journal: Journal, scope: Scope, position: int | None) -> list[str]:
    """Who has changed the ledger behind a position, each once, in order."""
    holders, fences = await _fences(journal, scope, position)
    return list(dict.fromkeys(holders[fence] for fence in fences if fence in holders))


async def _fences(journal: Journal, scope: Scope, position: int | None) -> tuple[dict[int, str], list[int]]:
    """Who took each fence, and under which of them the ledger was changed behind a position."""
    holders: dict[int, str] = {}
    fences: dict[int, None] = {}
    async for event, verdict in journal.replay(scope):
        if not isinstance(event, Event) or not isinstance(verdict, Admitted):
            continue
        if event.type is EventType.LEASE_ACQUIRED:
            record = event.record
            assert isinstance(record, LeaseAcquiredRecord)
            holders[event.fence] = record.holder
        elif event.type in _CHANGES and (position is None or event.position > position):
            fences[event.fence] = None
    return holders, list(fences)


_CHANGES = (EventType.APPLIED, EventType.ROLLED_BACK, EventType.LEDGER_IMPORTED)


# --- comparing --------------------------------------------------------------------------------------------------------


async def show_verification(settings: Settings, journal: Journal, result: Verification, *, as_json: bool) -> int:
    """Print the verification of the chain and, when it holds, what ledger, files and live schema say; the exit code."""
    if not as_json:
        views.write_verification(result)
    comparison = await _compare(settings, journal, result.scope) if result.ok else None
    if as_json:
        document = views.verification_document(result)
        document["migrations"] = None if comparison is None else plan_views.comparison_document(comparison)
        output.write_json(document)
    elif comparison is not None:
        plan_views.write_comparison(comparison)
    if comparison is None:
        return Exit.INTEGRITY
    return Exit.DONE if comparison.agrees else Exit.PENDING


async def _compare(settings: Settings, journal: Journal, scope: Scope) -> Comparison:
    sources = read_folder(settings.dir, settings.app_label).migrations
    state = await journal.state(scope)
    check_target(settings, state)
    async with opened_target(settings, scope, read_only=True) as (database, rehearsal):
        while True:
            comparison = await compare(state, sources, database, rehearsal)
            if not comparison.drift:
                return comparison
            latest = await undisturbed(settings, scope)
            if latest.position == state.position:
                return comparison
            state = latest
