"""What the operators' commands do: settings to journal, lease, database and executor, and back to an exit code.

Each looks first, without a lease: what cannot work, or need not be done, is said before anything is made or locked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from journal.bootstrap import open_journal
from journal.cli import operate_views, output, plan_views
from journal.cli.exits import Exit
from journal.cli.interrupts import Interrupts
from journal.cli.preview import Wish, holders_of, opened_target, workers_since
from journal.cli.progress import Heard, shown
from journal.cli.project import Project
from journal.cli.report import Report
from journal.cli.undo import done_of, half_done_document, write_half_done
from journal.control import Control
from journal.errors import Code, LeaseContendedError, failure
from journal.identities import HolderId, MigrationId
from journal.journal import DEFAULT_TTL, Journal
from journal.lease import Lease
from journal.state import ScopeState
from journal.vocabulary import Direction, GroupEventKind
from projections import operations
from projections.doubts import Doubt, find_doubts
from projections.executor import Executor
from projections.open_plan import floor_of, guard_of
from projections.operations import Attestation
from projections.outcome import Outcome, RetrySafe, UpToDate


@dataclass(frozen=True, slots=True)
class Claim:
    """How a command takes the lease. `wait`: how long it waits for another holder, None as long as it takes."""

    holder: HolderId
    wait: timedelta | None = None
    ttl: timedelta = DEFAULT_TTL


@dataclass(frozen=True, slots=True)
class Task:
    """One command at work on one project."""

    project: Project
    claim: Claim
    interrupts: Interrupts
    as_json: bool
    waited_for: list[str] = field(default_factory=list)

    @property
    def control(self) -> Control:
        """What bounds it."""
        return Control(self.interrupts.cancellation)

    @asynccontextmanager
    async def held(self, *, create: bool = False) -> AsyncGenerator[tuple[Journal, Lease], None]:
        """The journal with the lease of the scope; with `create`, log and scope are made when they are not there."""
        project, claim = self.project, self.claim
        async with open_journal(project.settings, create=create) as journal:
            if create:
                await journal.create(project.scope)
            lease = await journal.acquire(
                project.scope, claim.holder, ttl=claim.ttl, wait=claim.wait, control=self.control, on_wait=self._waits
            )
            try:
                yield journal, lease
            finally:
                self.interrupts.finish()

    def _waits(self, error: LeaseContendedError) -> None:
        self.waited_for.append(error.holder)
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(error.expires_at))
        operate_views.write_note(
            f"journal: waiting for {error.holder}, who holds scope {self.project.scope} until {until} UTC or longer"
        )


# --- applying and rolling back ----------------------------------------------------------------------------------------


async def execute(task: Task, wish: Wish, expected: Sequence[MigrationId]) -> int:
    """Apply or roll back; `expected` is what was to be done when it was looked at. Gives the exit code."""
    began, heard, project = time.monotonic(), Heard(), task.project
    forward = wish.direction is Direction.FORWARD
    done_by: list[str] = []
    create = forward and not project.state.active  # a target that lost its file is not made anew
    async with (
        opened_target(project.settings, project.scope, create=create) as (database, rehearsal),
        task.held(create=forward) as (journal, lease),
    ):
        with shown(heard, as_json=task.as_json) as observer:
            executor = Executor(journal, lease, database, rehearsal, control=task.control, observer=observer)
            outcome = await _outcome(
                task, executor, wish, heard, _steps(wish, expected, await journal.state(project.scope))
            )
        task.interrupts.finish()
        if isinstance(outcome, UpToDate) and expected:
            done_by = await workers_since(journal, project.scope, project.state.position)
    report = Report(
        project.scope,
        wish.direction,
        outcome,
        time.monotonic() - began,
        recovered=heard.recovered,
        waited_for=task.waited_for,
        done_by=done_by,
        sources=project.sources,
    )
    tell(report, as_json=task.as_json)
    return report.exit_code(task.interrupts)


def tell(report: Report, *, as_json: bool) -> None:
    """Print how a run ended."""
    if as_json:
        output.write_json(operate_views.run_document(report))
        if report.error is not None:
            operate_views.write_error(report.error)
    else:
        operate_views.write_run(report)


def _steps(wish: Wish, expected: Sequence[MigrationId], state: ScopeState) -> int | None:
    """How many migrations are left to take off: those that were meant when this run looked, not others in their place."""
    if wish.steps is None or state.plan is not None:
        return wish.steps
    left = [str(id) for id in expected if str(id) in state.active]
    if set(left) != set(list(state.active)[len(state.active) - len(left) :]):
        raise failure(
            Code.STALE_APPLIED_SET,
            "others were applied while this run waited, so the last migrations are not those that were meant: look with "
            "`journal status`, and run again",
            migrations=[str(id) for id in expected],
        )
    return len(left)


async def _outcome(task: Task, executor: Executor, wish: Wish, heard: Heard, steps: int | None) -> Outcome:
    sources = task.project.sources
    try:
        if wish.direction is Direction.FORWARD:
            return await executor.apply(sources, wish.to, allow_out_of_order=wish.allow_out_of_order)
        if steps == 0:
            return UpToDate()
        return await executor.roll_back(sources, to=wish.to, steps=steps)
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if not task.interrupts.at_once or current is None:
            raise
        current.uncancel()  # it was our own, and it has done its work
        error = failure(Code.CANCELLED, f"stopped at once by {task.interrupts.name}", signal=task.interrupts.name)
        return RetrySafe(tuple(heard.finished), heard.position, error)


# --- resolving --------------------------------------------------------------------------------------------------------


async def attest(task: Task, unit: str | None, outcome: GroupEventKind, attestation: Attestation) -> int:
    """Look again under lease and target fence, show it, and record what the operator says."""
    project = task.project
    async with (
        opened_target(project.settings, project.scope) as (database, rehearsal),
        task.held() as (journal, lease),
    ):
        state = await journal.state(project.scope)
        await database.raise_fence(guard_of(state, lease), task.control, floor=floor_of(state))
        doubts = await find_doubts(state, project.sources, database, rehearsal)
        holders = await holders_of(journal, project.scope)
        if not task.as_json:
            plan_views.write_doubts(doubts, holders)
        doubt = chosen(doubts, unit, project.settings.app_label)
        task.control.check()
        entry = await operations.attest(journal, lease, doubt, outcome, attestation)
    if task.as_json:
        output.write_json(plan_views.doubts_document(project.scope, doubts, holders, entry.record))
    else:
        command = "apply" if doubt.direction is Direction.FORWARD else "rollback"
        output.write_line(f"recorded: {doubt.name} is {outcome.value}; go on with `journal {command}`")
    return Exit.DONE


def chosen(doubts: Sequence[Doubt], unit: str | None, app: str) -> Doubt:
    """The unit that an operator names, or the only one.

    Raises:
        IntegrityError: `journal_nothing_in_doubt`: there is none, or not this one.
    """
    named = [doubt for doubt in doubts if unit is None or _is_named(doubt, unit, app)]
    if len(named) == 1:
        return named[0]
    names = [doubt.name for doubt in doubts]
    if not doubts:
        message = "nothing is in doubt: there is nothing to attest"
    elif named:
        message = f"say which unit: {', '.join(repr(doubt.name) for doubt in named)}"
    else:
        message = f"{unit!r:.150} is not in doubt: in doubt is {', '.join(map(repr, names))}"
    raise failure(Code.NOTHING_IN_DOUBT, message, unit=unit, in_doubt=names)


def _is_named(doubt: Doubt, unit: str, app: str) -> bool:
    """Whether a unit's name starts with what was typed, word by word; the app may be left out."""
    words = unit.split()
    if words and "/" not in words[0]:
        words[0] = f"{app}/{words[0]}"
    return doubt.name.split()[: len(words)] == words


# --- abandoning and adopting ------------------------------------------------------------------------------------------


async def abandon(task: Task, attestation: Attestation) -> int:
    """Give the open plan up, after showing what of it is done and what is half done."""
    project = task.project
    async with task.held() as (journal, lease):
        state = await journal.state(project.scope)
        if state.plan is not None and not task.as_json:
            write_half_done(state.plan, project.sources)
        task.control.check()
        entry = await operations.abandon(journal, lease, attestation)
    if task.as_json:
        record = entry.record
        output.write_json(
            {
                "scope": project.scope,
                "direction": record.direction,
                "plan_sequence": record.plan_sequence,
                "done": [] if state.plan is None else done_of(state.plan),
                "half_done": [] if state.plan is None else half_done_document(state.plan, project.sources),
                "operator": record.operator,
                "reason": record.reason,
            }
        )
    else:
        output.write_line("the open plan was given up")
    return Exit.DONE


async def adopt(task: Task, target: MigrationId | None, attestation: Attestation) -> int:
    """Take migrations into the ledger that the target has already."""
    project = task.project
    async with (
        opened_target(project.settings, project.scope) as (database, rehearsal),
        task.held(create=True) as (journal, lease),
    ):
        entry = await operations.adopt(
            journal, lease, database, rehearsal, project.sources, target, attestation, task.control
        )
    tell_adopted(
        project,
        [] if entry is None else [str(item.migration_id) for item in entry.record.migrations],
        as_json=task.as_json,
    )
    return Exit.DONE


def tell_adopted(project: Project, ids: Sequence[str], *, as_json: bool) -> None:
    """Print what an import took in."""
    if as_json:
        word = "imported" if ids else "up_to_date"
        output.write_json({"outcome": word, "scope": project.scope, "migrations": list(ids)})
        return
    for id in ids:
        output.write_line(f"imported {id}")
    if not ids:
        output.write_line("nothing to import: all of it is in the ledger")
