"""One unit against the target: look, decide by the tables, execute between two records, or repair the checkpoint.

What happens around a commit, and what a crash leaves at each point:

| done so far                          | log says        | target shows      | the next run                             |
|--------------------------------------|-----------------|-------------------|------------------------------------------|
| statements run, not committed        | nothing         | no witness        | executes                                 |
| `before_commit` admitted             | `before_commit` | no witness        | records `definitely_aborted`, executes   |
| target committed                     | `before_commit` | the witness       | records `committed`                      |
| `committed` admitted                 | `committed`     | the unit's target | goes on                                  |

The target fence has been raised before anything is looked at, so no older run can commit after the look. `before_commit`
is awaited while the target's transaction is open, everything else is sent and settled together with the next one: no
record counts without those before it, so the order in the log is the order of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from journal.control import Control
from journal.errors import Code, CommitFailedError, JournalError, TargetError, failure
from journal.identities import EventId, Fingerprint, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.source import AssertionSource
from journal.ports import BackfillCursor, Database, Guard, Transaction
from journal.records import JournalEntry, ScopedRecord
from journal.recovery import (
    BackfillObservation,
    LastEvent,
    RecoveryDecision,
    Witness,
    decide_backfill_recovery,
    weigh,
)
from journal.state import Unit
from journal.vocabulary import IN_DOUBT, BackfillCounts, GroupEventKind
from projections.outcome import BackfillAdvanced, Observer, UnitAction, UnitDoubted, UnitFinished
from projections.rehearsal import located
from projections.units import BackfillUnit, SchemaUnit, WorkUnit, unit_name

CHECKPOINT_SECONDS: Final = 1.0
_BEFORE: Final = GroupEventKind.BEFORE_COMMIT
_COMMITTED: Final = GroupEventKind.COMMITTED
_ABORTED: Final = GroupEventKind.DEFINITELY_ABORTED
_UNKNOWN: Final = GroupEventKind.COMMIT_OUTCOME_UNKNOWN
_FORMAL: Final = GroupEventKind.FORMAL_ONLY_ADVANCED

R = TypeVar("R", bound=ScopedRecord)


@dataclass(frozen=True, slots=True)
class Known:
    """What the open plan knows of a unit: its last event, and the events under which it was begun."""

    last: LastEvent = None
    tokens: tuple[EventId, ...] = ()


def known(unit: Unit | None, tokens: Sequence[EventId]) -> Known:
    """The same from the folded state."""
    return Known(None if unit is None else unit.kind, tuple(tokens))


@dataclass(slots=True)
class Session:
    """One lease at work on one target: checks before each effect, records in order."""

    journal: Journal
    lease: Lease
    database: Database
    guard: Guard
    control: Control
    observer: Observer
    _sent: list[tuple[asyncio.Future[Any], Callable[[], None] | None]] = field(default_factory=list)

    def check(self) -> None:
        """Refuse to begin another effect once the run was cancelled, ran out of time, or lost its lease."""
        self.control.check()
        self.lease.check()

    async def confirm(self) -> None:
        """Ask the log once more whether the lease still counts; raises FencedError when it does not.

        A look at the target says something about this run's own work only if nobody else had taken over by then. So
        before an operator is called, or evidence is said to contradict itself, the log is asked after the look.
        """
        await self.journal.state(self.lease.scope)
        self.lease.check()

    def send(self, record: ScopedRecord, then: Callable[[], None] | None = None, *, followed: bool = True) -> None:
        """Append without waiting; `then` is called once the record counts.

        One that will be `followed` by another soon may wait for it, so that one commit of the log holds both.
        """
        self._sent.append((self.journal.send(self.lease, record, linger=followed), then))

    async def append(self, record: R, event_id: EventId | None = None) -> JournalEntry[R]:
        """Append, and wait until this record and everything sent before counts."""
        future = self.journal.send(self.lease, record, event_id=event_id)
        self._sent.append((future, None))
        await self.settle()
        return future.result()

    async def settle(self) -> None:
        """Wait until everything that was sent counts; raises the first refusal after all have been answered."""
        sent, self._sent = self._sent, []
        first: JournalError | None = None
        try:
            for future, then in sent:
                try:
                    await future
                except JournalError as error:
                    first = first or error
                else:
                    if then is not None:
                        then()
        except asyncio.CancelledError:
            self._sent = sent
            self.forget()
            raise
        if first is not None:
            raise first

    def forget(self) -> None:
        """Give up on what was sent: nobody will ask for the verdicts any more."""
        sent, self._sent = self._sent, []
        for future, _ in sent:
            future.cancel()


async def run_unit(session: Session, unit: WorkUnit, known: Known) -> Fingerprint | None:
    """Bring one unit to its end, from wherever earlier runs left it.

    Gives the schema as it was seen last: under the lock of the transaction that was committed, or by a look. None when
    it was not looked at.

    Raises:
        IntegrityError: `journal_explicit_recovery`: an operator has to decide. Others as the ports and the journal do.
    """
    session.check()
    seen: Fingerprint | None = None
    match unit:
        case SchemaUnit():
            action, seen = await _run_schema(session, unit, known)
        case BackfillUnit():
            action = await _run_backfill(session, unit, known)
    if action is not None:
        session.observer(UnitFinished(unit.position, action))
    return seen


# --- groups and reverse steps -----------------------------------------------------------------------------------------


async def _run_schema(session: Session, unit: SchemaUnit, known: Known) -> tuple[UnitAction | None, Fingerprint]:
    last = known.last
    if last is None and unit.program.transactional and not unit.is_formal:
        return await _execute_first(session, unit)
    if last in IN_DOUBT:
        last = weigh(last, await witness_of(session.database, session.guard.scope, unit, known.tokens))
    observed = await session.database.observe()
    decision = unit.decide(last, observed)
    if last is not known.last:
        session.observer(UnitDoubted(unit.position, committed=last is _COMMITTED))
    if last is _ABORTED and known.last is not _ABORTED:
        await session.append(unit.record(session.lease, _ABORTED))
    match decision:
        case RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY:
            await session.confirm()
            raise _explicit(unit, last, _relation(unit, observed))
        case RecoveryDecision.REPAIR_CHECKPOINT:
            if known.last in (_COMMITTED, _FORMAL):
                return None, observed
            session.send(unit.record(session.lease, _COMMITTED, observed))
            return UnitAction.REPAIRED, observed
        case RecoveryDecision.EXECUTE_NORMALLY:
            return await _execute_schema(session, unit, observed)


async def _execute_first(session: Session, unit: SchemaUnit) -> tuple[UnitAction, Fingerprint]:
    """Execute what was not begun before. The look at the schema is that of the transaction itself."""
    async with _transaction(session, unit) as transaction:
        found = transaction.source
        if unit.decide(None, found) is RecoveryDecision.EXECUTE_NORMALLY:
            observed = await _execute_in(transaction, session, unit)
            session.send(unit.record(session.lease, _COMMITTED, observed))
            return UnitAction.EXECUTED, observed
    await session.confirm()
    raise _explicit(unit, None, _relation(unit, found))


async def witness_of(database: Database, scope: Scope, unit: SchemaUnit, tokens: Sequence[EventId]) -> Witness:
    """What the target proves of a unit that is in doubt; `tokens` are the events under which it was begun."""
    if not unit.program.transactional:
        return Witness.NONE
    token = await database.witness(scope, unit_name(unit))
    return Witness.PRESENT if token in tokens else Witness.ABSENT


async def _execute_schema(session: Session, unit: SchemaUnit, observed: Fingerprint) -> tuple[UnitAction, Fingerprint]:
    if unit.is_formal:
        session.send(unit.record(session.lease, _FORMAL))
        return UnitAction.ADVANCED, observed
    if unit.program.transactional:
        async with _transaction(session, unit) as transaction:
            observed = await _execute_in(transaction, session, unit)
    else:
        observed = await _execute_outside(session, unit)
    session.send(unit.record(session.lease, _COMMITTED, observed))
    return UnitAction.EXECUTED, observed


def _transaction(session: Session, unit: SchemaUnit) -> AbstractAsyncContextManager[Transaction]:
    enforces = unit.program.enforce_references
    return session.database.transaction(session.guard, session.control, enforce_references=enforces)


async def _execute_in(transaction: Transaction, session: Session, unit: SchemaUnit) -> Fingerprint:
    token = EventId.random()
    await _assert_all(transaction, unit)
    try:
        observed = await transaction.execute(unit.program)
    except JournalError as error:
        raise located(error, unit.position.file, unit.statements) from (error.__cause__ or error)
    if observed != unit.target:
        raise _unexpected(unit)
    await transaction.stamp(unit_name(unit), token)
    session.check()
    await session.append(unit.record(session.lease, _BEFORE), token)
    await _commit(session, unit, transaction)
    return observed


async def _assert_all(transaction: Transaction, unit: SchemaUnit) -> None:
    for assertion in unit.assertions:
        try:
            holds = await transaction.holds(assertion.query.text)
        except JournalError as error:
            raise located(error, unit.position.file, [assertion.query]) from (error.__cause__ or error)
        if not holds:
            raise _assertion_failed(unit, assertion)


async def _commit(session: Session, unit: WorkUnit, transaction: Transaction) -> None:
    """Commit, and record what a failure proves."""
    try:
        await transaction.commit()
    except TargetError as error:
        aborted = error.aborted if isinstance(error, CommitFailedError) else True
        await session.append(unit.record(session.lease, _ABORTED if aborted else _UNKNOWN))
        raise located(error, unit.position.file, []) from (error.__cause__ or error)


async def _execute_outside(session: Session, unit: SchemaUnit) -> Fingerprint:
    """Statements that no transaction can hold: what became of them is known only if they answer and the target shows it."""
    if unit.assertions:
        async with session.database.transaction(session.guard, session.control) as transaction:
            await _assert_all(transaction, unit)
    session.check()
    await session.append(unit.record(session.lease, _BEFORE))
    try:
        await session.database.execute_outside(session.guard, unit.program)
    except JournalError as error:
        told = located(error, unit.position.file, unit.statements)
        nothing_ran = error.details.get("statement") == 1 and isinstance(error, TargetError)
        await session.append(unit.record(session.lease, _ABORTED if nothing_ran else _UNKNOWN))
        if nothing_ran:
            raise told from (error.__cause__ or error)
        raise _explicit(unit, _UNKNOWN, f"{told.message}; the statements before it stay") from error
    observed = await session.database.observe()
    if observed != unit.target:
        await session.append(unit.record(session.lease, _UNKNOWN))
        raise _explicit(unit, _UNKNOWN, _relation(unit, observed))
    return observed


# --- backfills --------------------------------------------------------------------------------------------------------


async def _run_backfill(session: Session, unit: BackfillUnit, known: Known) -> UnitAction | None:
    found = await session.database.cursor(session.guard.scope, unit_name(unit))
    cursor = found if found is not None and found.token in known.tokens else None
    completion = unit.completion(_counts(cursor)) if cursor is not None and cursor.done else None
    # The cursor moves in the batches' own transactions, so it proves what a witness proves of a group.
    last = weigh(known.last, Witness.ABSENT) if completion is None else known.last
    observation = BackfillObservation(available=True, completion=completion)
    decision = decide_backfill_recovery(last, observation, plan=unit.fingerprint, direction=unit.position.direction)
    if last is not known.last:
        session.observer(UnitDoubted(unit.position, committed=False))
        await session.append(unit.record(session.lease, _ABORTED))
    match decision:
        case RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY:
            await session.confirm()
            raise _explicit(unit, last, "its cursor is " + ("complete" if completion else "not complete"))
        case RecoveryDecision.REPAIR_CHECKPOINT:
            if known.last is _COMMITTED:
                return None
            session.send(unit.record(session.lease, _COMMITTED, completion))
            return UnitAction.REPAIRED
        case RecoveryDecision.EXECUTE_NORMALLY:
            if await session.database.observe() != unit.schema:
                await session.confirm()
                raise _explicit(unit, last, "the live schema is not the one that it is for")
            await _execute_backfill(session, unit, cursor)
            return UnitAction.EXECUTED


async def _execute_backfill(session: Session, unit: BackfillUnit, cursor: BackfillCursor | None) -> None:
    token, name = EventId.random(), unit_name(unit)
    if cursor is None:
        cursor = await _begin_backfill(session, unit, token)
    else:
        await session.append(unit.record(session.lease, _BEFORE), token)
    told = session.control.clock()
    try:
        while not cursor.done:
            session.check()
            cursor = await session.database.advance_backfill(session.guard, session.control, name, unit.program)
            session.observer(BackfillAdvanced(unit.position, cursor))
            now = session.control.clock()
            if not cursor.done and now - told >= CHECKPOINT_SECONDS:
                session.send(unit.checkpoint(session.lease, _counts(cursor)))
                told = now
    except TargetError as error:
        # Batches that committed stay, and the cursor with them: aborted is this attempt to come to the end.
        unclear = isinstance(error, CommitFailedError) and not error.aborted
        await session.append(unit.record(session.lease, _UNKNOWN if unclear else _ABORTED))
        if error.code is Code.VERIFY_FAILED:
            raise _verify_failed(unit, cursor) from error
        statements = [unit.statement] if unit.verify is None else [unit.statement, unit.verify]
        raise located(error, unit.position.file, statements) from (error.__cause__ or error)
    session.send(unit.record(session.lease, _COMMITTED, unit.completion(_counts(cursor))))


async def _begin_backfill(session: Session, unit: BackfillUnit, token: EventId) -> BackfillCursor:
    async with session.database.transaction(session.guard, session.control, enforce_references=True) as transaction:
        try:
            cursor = await transaction.begin_backfill(unit_name(unit), token, unit.program)
        except JournalError as error:
            raise located(error, unit.position.file, [unit.statement]) from (error.__cause__ or error)
        session.check()
        await session.append(unit.record(session.lease, _BEFORE), token)
        await _commit(session, unit, transaction)
    return cursor


def _counts(cursor: BackfillCursor) -> BackfillCounts:
    return BackfillCounts(cursor.matched, cursor.changed, cursor.skipped, cursor.transaction_groups)


# --- what is told -----------------------------------------------------------------------------------------------------


def _relation(unit: SchemaUnit, observed: Fingerprint) -> str:
    if observed == unit.source:
        return "the live schema is the one before it" + (" and after it" if unit.source == unit.target else "")
    if observed != unit.target:
        return "the live schema is neither the one before nor after it"
    unclear = ", which does not show whether its last statements ran" if unit.commits_piecemeal else ""
    return f"the live schema is the one after it{unclear}"


def _explicit(unit: WorkUnit, last: LastEvent, seen: str) -> JournalError:
    said = "nothing" if last is None else last.value
    return failure(
        Code.EXPLICIT_RECOVERY,
        f"{unit.position}: the journal says {said}, and {seen}; what happened cannot be proven. Look with "
        "`journal resolve` and `journal verify --migrations`, then bring the schema into one of the two states, or "
        "attest the outcome",
        last=said,
        **unit.position.details(),
    )


def _unexpected(unit: SchemaUnit) -> JournalError:
    return failure(
        Code.UNEXPECTED_RESULT,
        f"{unit.position}: the statements left another schema than they leave on an empty database; everything was "
        "rolled back. Do they depend on rows or on settings of the database?",
        **unit.position.details(),
    )


def _assertion_failed(unit: SchemaUnit, assertion: AssertionSource) -> JournalError:
    return failure(
        Code.ASSERTION_FAILED,
        f"{unit.position.file}:{assertion.line}: it does not hold that {assertion.description}; nothing was changed. "
        "Correct the data, then run again",
        **{**unit.position.details(), "line": assertion.line},
    )


def _verify_failed(unit: BackfillUnit, cursor: BackfillCursor) -> JournalError:
    assert unit.verify is not None
    return failure(
        Code.VERIFY_FAILED,
        f"{unit.position.file}:{unit.verify.line}: all {cursor.rows} rows were gone through, but the verification does "
        "not hold; the last batch was rolled back. Correct the data, then run again",
        **{**unit.position.details(), "line": unit.verify.line},
    )
