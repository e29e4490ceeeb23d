"""Plans against the target: finish what is open, plan what is missing, execute it unit by unit.

Running again is recovery: a run first looks for an open plan and brings it to its end, whoever opened it, and only then
plans anew. An open plan of which nothing is half done may be given up by the run itself, with the reason in the log:
when a file of it was edited meanwhile, or when the run was asked for less.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence

from journal.admission import Admitted
from journal.control import Control
from journal.errors import (
    Code,
    FencedError,
    IntegrityError,
    InvalidContractError,
    JournalError,
    failure,
)
from journal.events import Event
from journal.identities import EventId, Fingerprint, MigrationId
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import ManagedState
from journal.migrations.plan import verify_plan, verify_rollback_plan
from journal.migrations.planner import (
    ApplyPlan,
    RollbackPlan,
    check_files,
    plan_apply,
    plan_rollback,
)
from journal.migrations.source import MigrationSource
from journal.ports import Database
from journal.records import (
    PlanAbandonedRecord,
    PlanRecord,
    RollbackPlanRecord,
)
from journal.state import ScopeState, UnitKey
from journal.vocabulary import Direction
from projections.execution import Session, known, run_unit
from projections.ledger import ledger_of
from projections.open_plan import (
    Carried,
    check_settled,
    floor_of,
    guard_of,
    history_lost,
    rest_to_apply,
    rest_to_roll_back,
    wanted_by,
)
from projections.outcome import (
    Applied,
    Failed,
    MigrationFinished,
    MigrationStarted,
    Observer,
    Outcome,
    PlanGivenUp,
    PlanStarted,
    RequiresExplicitRecovery,
    RetrySafe,
    UnitPosition,
    UpToDate,
)
from projections.rehearsal import Prepared, PreparedBackfill, Rehearsal, stale
from projections.units import BackfillUnit, SchemaUnit, Work, count_of, forward, reverse, unit_name


class Executor:
    """Applies and rolls back on one target, under one lease.

    The caller keeps the journal, the lease and the database, and closes them; `control` bounds the run, `observer` is
    told of its progress. `rehearsal` may have been used before for the same scope: what it learnt is not done again.
    """

    def __init__(
        self,
        journal: Journal,
        lease: Lease,
        database: Database,
        rehearsal: Rehearsal,
        *,
        control: Control | None = None,
        observer: Observer = lambda _: None,
    ) -> None:
        self._journal = journal
        self._lease = lease
        self._database = database
        self._rehearsal = rehearsal
        self._control = control or Control()
        self._observer = observer
        self._finished: list[MigrationId] = []
        self._position: UnitPosition | None = None
        self._opened: Session | None = None

    async def apply(
        self,
        sources: Sequence[MigrationSource],
        target: MigrationId | None = None,
        *,
        allow_out_of_order: bool = False,
    ) -> Outcome:
        """Apply everything that is missing, or what `target` needs and it.

        Raises nothing of the journal's own errors: they come in the outcome.
        """
        return await self._outcome(Direction.FORWARD, self._apply(sources, target, allow_out_of_order))

    async def roll_back(
        self, sources: Sequence[MigrationSource], *, to: MigrationId | None = None, steps: int | None = None
    ) -> Outcome:
        """Take off the last `steps` migrations, or everything that was applied after `to`.

        An open rollback plan is finished first; `steps` then takes off nothing more. Raises as `apply`.
        """
        return await self._outcome(Direction.REVERSE, self._roll_back(sources, to, steps))

    async def _outcome(self, direction: Direction, work: Awaitable[None]) -> Outcome:
        error: JournalError | None = None
        try:
            await work
        except JournalError as raised:
            error = raised
        except BaseException:
            if self._opened is not None:
                self._opened.forget()
            raise
        try:
            if self._opened is not None:
                await self._opened.settle()
        except JournalError as raised:
            error = error or raised
        done = tuple(self._finished)
        if error is None:
            return Applied(direction, done) if done else UpToDate()
        if error.code is Code.EXPLICIT_RECOVERY and self._position is not None:
            return RequiresExplicitRecovery(done, self._position, error)
        # Overtaken is not failed: its own lease is over, and the next run, under another, does what is left.
        overtaken = isinstance(error, FencedError)
        if isinstance(error, IntegrityError | InvalidContractError) and not overtaken:
            return Failed(done, self._position, error)
        return RetrySafe(done, self._position, error)

    # --- applying -----------------------------------------------------------------------------------------------------

    async def _apply(
        self, sources: Sequence[MigrationSource], target: MigrationId | None, allow_out_of_order: bool
    ) -> None:
        ordered = check_files(sources)
        session = await self._session()
        while True:
            state = await self._journal.state(self._lease.scope)
            ledger = ledger_of(state)
            if state.plan is not None:
                await self._resume_apply(session, state, ordered, wanted_by(ordered, target))
                continue
            plan = plan_apply(ordered, ledger, target, allow_out_of_order=allow_out_of_order)
            if not plan.planned:
                return
            await self._open_apply(session, plan)

    async def _open_apply(self, session: Session, plan: ApplyPlan) -> None:
        prepared = await self._rehearsal.prepare([*plan.applied, *plan.planned])
        applied, planned = prepared[: len(plan.applied)], prepared[len(plan.applied) :]
        works = [forward(item) for item in planned]
        check_limits(works, self._control)
        await check_keys(planned, self._database)
        live = await self._live(session, applied, plan.applied)
        verified = verify_plan(applied=[item.manifest for item in applied], planned=[item.manifest for item in planned])
        record = PlanRecord.from_verified_plan(self._lease, verified, _canonical(plan.applied), live)
        session.check()
        await self._check_history(session, works, ())
        entry = await session.append(record)
        opened = Carried(Direction.FORWARD, entry, [(item.source.id, item.manifest.digest) for item in planned])
        self._observer(PlanStarted(Direction.FORWARD, record.migration_ids, resumed=False))
        await self._run(session, opened, works)

    async def _resume_apply(
        self, session: Session, state: ScopeState, ordered: Sequence[MigrationSource], wanted: set[MigrationId] | None
    ) -> None:
        rest = await rest_to_apply(state, ordered, wanted, self._database)
        if rest.kept:
            by_id = {source.id: source for source in rest.ordered}
            ids = [*(entry.id for entry in ledger_of(state)), *(id for id, _ in rest.kept)]
            self._check_profile(rest.opened)
            prepared = await self._rehearsal.prepare([by_id[id] for id in ids])
            await self._carry_on(session, rest.opened, [forward(item) for item in prepared[-len(rest.kept) :]])
        if rest.dropped:
            id = rest.dropped[0][0]
            asked = wanted is not None and id not in wanted
            await self._give_up(session, rest.opened, f"{id} {'was not asked for' if asked else 'has changed'}")

    async def _give_up(self, session: Session, opened: Carried, reason: str) -> None:
        record = PlanAbandonedRecord.new(
            self._lease,
            opened.entry,
            operator=str(self._lease.holder),
            reason=f"nothing of it is half done, and {reason}",
        )
        await session.append(record)
        self._observer(PlanGivenUp(record.reason))

    # --- rolling back -------------------------------------------------------------------------------------------------

    async def _roll_back(self, sources: Sequence[MigrationSource], to: MigrationId | None, steps: int | None) -> None:
        ordered = check_files(sources)
        session = await self._session()
        state = await self._journal.state(self._lease.scope)
        if state.plan is not None:
            await self._resume_rollback(session, state, ordered)
            if to is None:
                return
            state = await self._journal.state(self._lease.scope)
        plan = plan_rollback(ordered, ledger_of(state), to=to, steps=steps)
        if plan.retired:
            await self._open_rollback(session, plan)

    async def _open_rollback(self, session: Session, plan: RollbackPlan) -> None:
        prepared = await self._rehearsal.prepare(plan.applied)
        await self._rehearsal.check_reverses(plan.applied, len(plan.retired))
        works = [reverse(item) for item in reversed(prepared[len(prepared) - len(plan.retired) :])]
        check_limits(works, self._control)
        live = await self._live(session, prepared, plan.applied)
        verified = verify_rollback_plan(
            applied=[item.manifest for item in prepared],
            rollbacks=[work.rollback for work in works if work.rollback is not None],
        )
        record = RollbackPlanRecord.from_verified_rollback_plan(self._lease, verified, _canonical(plan.applied), live)
        session.check()
        await self._check_history(session, works, ())
        entry = await session.append(record)
        members = [(work.prepared.source.id, work.prepared.manifest.digest) for work in works]
        self._observer(PlanStarted(Direction.REVERSE, record.rollback_ids, resumed=False))
        await self._run(session, Carried(Direction.REVERSE, entry, members), works)

    async def _resume_rollback(self, session: Session, state: ScopeState, ordered: Sequence[MigrationSource]) -> None:
        opened, applied = rest_to_roll_back(state, ordered)
        self._check_profile(opened)
        at = {item.source.id: item for item in await self._rehearsal.prepare(applied)}
        await self._carry_on(session, opened, [reverse(at[id]) for id, _ in opened.members if id in at])

    # --- both ---------------------------------------------------------------------------------------------------------

    async def _session(self) -> Session:
        """Under the target fence from here on: nothing is looked at before."""
        state = await self._journal.state(self._lease.scope)
        guard = guard_of(state, self._lease)
        session = Session(self._journal, self._lease, self._database, guard, self._control, self._observer)
        session.check()
        try:
            await self._database.raise_fence(guard, self._control, floor=floor_of(state))
        except FencedError as error:
            await session.confirm()
            raise history_lost(
                f"the target was last changed under a later lease than this one ({error.message})"
            ) from error
        self._opened = session
        return session

    async def _check_history(self, session: Session, works: Sequence[Work], units: Collection[UnitKey]) -> None:
        """What the target has of units that the log does not know to be begun must come from plans that it still knows."""
        known = await self._database.tokens(self._lease.scope)
        begun = {unit_name(unit) for work in works for unit in work.units if unit.key not in units}
        found = {known[name]: name for name in begun & known.keys()}
        if not found:
            return
        async for event, verdict in self._journal.replay(self._lease.scope):
            if isinstance(event, Event) and isinstance(verdict, Admitted):
                found.pop(EventId(event.event_id), None)
        if found:
            await session.confirm()
            raise history_lost(f"the target has {', '.join(sorted(found.values())[:5])}, the log knows nothing of it")

    async def _live(
        self, session: Session, applied: Sequence[Prepared], sources: Sequence[MigrationSource]
    ) -> ManagedState:
        """The live state, which must be what the ledger says."""
        expected = self._rehearsal.state_after(applied)
        observed = await self._database.observe()
        if observed != expected.semantics:
            await session.confirm()
            raise await stale(
                self._database,
                self._rehearsal,
                sources,
                "see `journal verify --migrations`, and bring the schema back, or write what differs as a migration and "
                "adopt that with `journal import`",
            )
        return ManagedState(expected.scope, expected.declared, observed)

    def _check_profile(self, opened: Carried) -> None:
        record = opened.entry.record
        profiles = (self._database.semantic_profile, self._database.lowering_profile)
        if (record.semantic_profile, record.lowering_profile) != profiles:
            raise failure(
                Code.PLAN_DIFFERS,
                "the open plan was made under other rules of what a schema means: finish it with the version of "
                "fenced-journal that opened it",
            )

    async def _carry_on(self, session: Session, opened: Carried, works: Sequence[Work]) -> None:
        self._observer(PlanStarted(opened.direction, tuple(id for id, _ in opened.members), resumed=True))
        await self._check_history(session, works, opened.units)
        await self._run(session, opened, works)

    async def _run(self, session: Session, opened: Carried, works: Sequence[Work]) -> None:
        units = [unit for work in works for unit in work.units]
        begun = max((index for index, unit in enumerate(units) if unit.key in opened.units), default=-1)
        check_settled(opened.units, [unit.key for unit in units[: max(begun, 0)]])
        index, total = 0, len(opened.members)
        for number, work in enumerate(works, start=total - len(works) + 1):
            id = work.prepared.source.id
            self._observer(MigrationStarted(id, work.direction, number, total))
            seen: Fingerprint | None = None
            for unit in work.units:
                self._position = unit.position
                if index >= begun:
                    known_ = known(opened.units.get(unit.key), opened.tokens.get(unit.key, ()))
                    seen = await run_unit(session, unit, known_)
                index += 1
            session.check()
            await self._conclude(session, work, seen, is_last=number == total)
            self._position = None
        await session.settle()

    async def _conclude(self, session: Session, work: Work, seen: Fingerprint | None, *, is_last: bool) -> None:
        observed = await self._database.observe() if seen is None else seen
        if observed != work.target:
            await session.confirm()
            raise self._left(work, observed)
        id, direction = work.prepared.source.id, work.direction

        def finish() -> None:
            self._finished.append(id)
            self._observer(MigrationFinished(id, direction))

        session.send(work.conclude(self._lease), finish, followed=not is_last)

    def _left(self, work: Work, observed: Fingerprint) -> JournalError:
        id = work.prepared.source.id
        return failure(
            Code.EXPLICIT_RECOVERY,
            f"{id}: all of its steps are done, but the live schema is not the one that it leads to: somebody else "
            "changed it. See `journal verify --migrations`, bring the schema back, then run again",
            migration=str(id),
            observed=observed.hex(),
            expected=work.target.hex(),
        )


# --- before a plan opens ----------------------------------------------------------------------------------------------


def check_limits(works: Sequence[Work], control: Control) -> None:
    """Refuse a plan with more units than one run may execute. Raises `journal_limit_exceeded`."""
    limits = control.limits
    groups, backfills = count_of(works, SchemaUnit), count_of(works, BackfillUnit)
    if groups > limits.transaction_groups or backfills > limits.backfill_observations:
        raise failure(
            Code.LIMIT_EXCEEDED,
            f"the plan has {groups} transaction groups and {backfills} backfills, over the limits of "
            f"{limits.transaction_groups} and {limits.backfill_observations}: go there in several steps with --to",
        )


async def check_keys(planned: Sequence[Prepared], database: Database) -> None:
    """Refuse backfills that cannot go through their table, unless it is empty. Raises `journal_backfill_key`."""
    for item in planned:
        for step in item.steps:
            if isinstance(step, PreparedBackfill) and (problem := await _key_problem(step, database)) is not None:
                raise failure(
                    Code.BACKFILL_KEY,
                    f"{item.source.path}:{step.source.line}: {problem}",
                    file=item.source.path,
                    line=step.source.line,
                )


async def _key_problem(step: PreparedBackfill, database: Database) -> str | None:
    if await database.is_empty(step.source.table):
        return None
    return step.key_problem or await database.rows_problem(step.forward)


def _canonical(sources: Sequence[MigrationSource]) -> tuple[MigrationId, ...]:
    return tuple(sorted(source.id for source in sources))
