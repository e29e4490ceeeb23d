"""What one executor does next, given the log and the target as they are.

The steps are those of `projections.executor` and `projections.execution`, in their order; methods name the functions that
they mirror. What is decided, the product's own functions decide: `admit` and `evolve` (in `executor_world`), `weigh`,
`decide_group_recovery`, `decide_backfill_recovery`. Of the acts that a method gives, the first is what happens when nothing
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from journal import admission
from journal.recovery import (
    BackfillObservation,
    LastEvent,
    RecoveryDecision,
    Witness,
    decide_backfill_recovery,
    decide_group_recovery,
    weigh,
)
from journal.vocabulary import GroupEventKind
from projections.units import BackfillUnit, SchemaUnit, WorkUnit
from tests.model.executor_bounds import Bound
from tests.model.executor_target import FOREIGN, TORN, Done, Target, TargetView
from tests.model.executor_world import BATCHES, NOTHING, Known, What, Written, completion_of, token_of

_BEFORE: Final = GroupEventKind.BEFORE_COMMIT
_COMMITTED: Final = GroupEventKind.COMMITTED
_UNKNOWN: Final = GroupEventKind.COMMIT_OUTCOME_UNKNOWN
_FORMAL: Final = GroupEventKind.FORMAL_ONLY_ADVANCED

# What an executor does next. States are plain tuples of integers, because a search writes them as bytes.
DOWN: Final = 0
LEASING: Final = 1  # waits for its LeaseAcquired; then raises the target's fence and reads the log
OPENING: Final = 2  # looks at the live schema, and appends a plan
PLANNING: Final = 3  # waits for its plan, then as LOOKING
LOOKING: Final = 4  # looks at a unit's witness or cursor
DECIDING: Final = 5  # looks at the live schema; the note says which witness it saw
ABORTING: Final = 6  # waits for its definitely_aborted, then as BEGINNING or, the note says so, REPEATING
BEGINNING: Final = 7  # begins the unit's transaction and appends before_commit
BEGUN: Final = 8  # waits for its before_commit, the transaction being open; then commits
REPEATING: Final = 9  # appends before_commit of a backfill that has its cursor
RESUMING: Final = 10  # waits for it, then as ADVANCING
ADVANCING: Final = 11  # begins the transaction of a batch
IN_BATCH: Final = 12  # commits it
OUTSIDE: Final = 13  # waits for its before_commit, then checks the target's fence and runs what no transaction can hold
CHECKED: Final = 14  # has checked it, and runs
TELLING: Final = 15  # appends what the note says became of a commit
CONCLUDING: Final = 16  # looks at the live schema, and appends the conclusion
SETTLING: Final = 17  # waits for everything that it sent, and reports success

HOLDING: Final = (BEGUN, IN_BATCH)  # a transaction is open
_WAITING: Final = (PLANNING, ABORTING, BEGUN, RESUMING, OUTSIDE, SETTLING)  # until all that it sent is admitted
_WITNESSES: Final = (Witness.NONE, Witness.PRESENT, Witness.ABSENT)  # by note
_TELLS: Final = (What.COMMITTED, What.FORMAL, What.CHECKPOINT, What.UNKNOWN, What.ABORTED)  # by note


class Executor(NamedTuple):
    """One executor: its phase, its lease, the log as it will be when all that it sent counts, its unit, and a note."""

    phase: int = DOWN
    lease: int = NOTHING
    ahead: int = 0
    unit: int = 0
    note: int = 0


class Act(NamedTuple):
    """What an executor may do: what becomes of it and of the target, the event that it sends, and what is wrong with it."""

    verb: str
    executor: Executor
    target: Target
    sent: int = NOTHING
    flaw: str | None = None


class Sight(NamedTuple):
    """What there is beside an executor: the log, the target, and whether others, or older ones, have transactions open."""

    end: int
    target: Target
    others: bool = False
    older: bool = False


_Acts: TypeAlias = Iterator[Act]


class Run:
    """The acts of the executors of one bound."""

    def __init__(self, bound: Bound, view: TargetView) -> None:
        self.bound = bound
        self.view = view
        self.world = view.world
        # Under the real rules it makes no difference when a record is sent, only when it arrives.
        self.sends_at_once = self.world.protocol is admission
        self._phases: dict[int, Callable[[Executor, Sight], _Acts]] = {
            LEASING: self._lead_in,
            OPENING: self._open,
            PLANNING: self._look,
            LOOKING: self._look,
            DECIDING: self._decide_schema,
            ABORTING: self._record_aborted,
            BEGINNING: self._begin,
            BEGUN: self._commit,
            REPEATING: self._repeat,
            RESUMING: self._begin_batch,
            ADVANCING: self._begin_batch,
            IN_BATCH: self._commit_batch,
            OUTSIDE: self._check_outside,
            CHECKED: self._run_outside,
            TELLING: self._record_it,
            CONCLUDING: self._conclude,
            SETTLING: self._report,
        }

    def acts(self, executor: Executor, sight: Sight) -> _Acts:
        """Everything that an executor that is up may do, stopping aside."""
        waits = executor.phase in _WAITING and not (executor.phase == BEGUN and self._leaves_out("await"))
        if not waits or self._is_told(executor, sight):
            yield from self._phases[executor.phase](executor, sight)

    def ask(self, lease: int, sight: Sight) -> _Acts:
        """`Acquisition.run`: the lease is granted, and announced on the head."""
        yield from self._send("asks for a lease", Executor(LEASING, lease, sight.end), sight, What.LEASE)

    # --- what it knows, and what it sends -----------------------------------------------------------------------------

    def _leaves_out(self, part: str) -> bool:
        return self.bound.leaves_out == part

    def _is_told(self, executor: Executor, sight: Sight) -> bool:
        return self.world.logs[executor.ahead].head in self.world.logs[sight.end].counted

    def _holds_lease(self, executor: Executor, sight: Sight) -> bool:
        return self.world.logs[sight.end].lease == executor.lease

    def _unit(self, executor: Executor) -> WorkUnit:
        return self.world.units[executor.unit]

    def _known(self, executor: Executor) -> Known:
        return self.world.logs[executor.ahead].units[executor.unit]

    def _name(self, executor: Executor) -> str:
        return self.world.who(executor.lease)

    def _send(
        self,
        verb: str,
        executor: Executor,
        sight: Sight,
        what: What,
        *,
        target: Target | None = None,
        flaw: str | None = None,
    ) -> _Acts:
        """`Spine.submit`: behind what it has sent, or, when others wrote and it has read that, behind what they wrote.

        What admission refuses there is not sent; then it stops.
        """
        bases = [executor.ahead]
        head = self.world.logs[sight.end].head
        if head != NOTHING and head not in self.world.logs[executor.ahead].counted:
            bases.append(sight.end)
        for base in bases:
            event = self.world.event(Written(executor.lease, what, executor.unit, self.world.logs[base].head))
            ahead = self.world.step(base, event)
            if ahead is not None:
                yield Act(verb, executor._replace(ahead=ahead), sight.target if target is None else target, event, flaw)

    def _tell(
        self,
        verb: str,
        executor: Executor,
        sight: Sight,
        what: What,
        *,
        target: Target | None = None,
        flaw: str | None = None,
    ) -> _Acts:
        """Do something to the target and record it."""
        teller = executor._replace(phase=TELLING, note=_TELLS.index(what))
        if self.sends_at_once:
            for act in self._send(verb, teller, sight, what, target=target, flaw=flaw):
                yield act._replace(executor=self._told(act.executor))
        else:
            yield Act(verb, teller, sight.target if target is None else target, flaw=flaw)

    def _record_it(self, executor: Executor, sight: Sight) -> _Acts:
        for act in self._send("records it", executor, sight, _TELLS[executor.note]):
            yield act._replace(executor=self._told(act.executor))

    def _told(self, executor: Executor) -> Executor:
        match _TELLS[executor.note]:
            case What.UNKNOWN | What.ABORTED:
                return Executor()
            case What.CHECKPOINT:
                return executor._replace(phase=ADVANCING, note=0)
            case _:
                return self._next(executor)

    def _next(self, executor: Executor) -> Executor:
        if executor.unit + 1 == len(self.world.units):
            return executor._replace(phase=CONCLUDING, unit=0, note=0)
        return executor._replace(phase=LOOKING, unit=executor.unit + 1, note=0)

    def _call_operator(self, executor: Executor, sight: Sight, why: str) -> _Acts:
        """It says that an operator is needed; one that was overtaken finds that out first, and stops."""
        if self._holds_lease(executor, sight):
            flaw = None if self.bound.may_need_operator else f"{self._name(executor)} calls an operator: {why}"
        elif self._leaves_out("ask again"):
            flaw = f"{self._name(executor)} calls an operator although it was overtaken: {why}"
        else:
            return
        yield Act(f"calls an operator: {why}", Executor(), sight.target, flaw=flaw)

    # --- from the lease to the first unit, and from the last to the end -----------------------------------------------

    def _lead_in(self, executor: Executor, sight: Sight) -> _Acts:
        """`Acquisition._announce` once more; then `Executor._session` and what follows on the state that it reads."""
        fence, raised = self.world.fence(executor.lease), sight.target[0]
        if not self._is_told(executor, sight):
            if self.world.step(sight.end, self.world.logs[executor.ahead].head) is None:
                fresh = executor._replace(ahead=sight.end)
                yield from self._send("announces its lease again", fresh, sight, What.LEASE)
        elif self._leaves_out("raise"):
            yield self._read("reads the log", executor, sight)
        elif raised <= fence and not self._must_wait_to_raise(sight):
            above = sight._replace(target=(fence, sight.target[1]))
            yield self._read("raises the fence and reads the log", executor, above)

    def _must_wait_to_raise(self, sight: Sight) -> bool:
        """For the write lock; where there is none, for transactions that hold on to the older fence that they checked."""
        if self.bound.several_writers:
            return sight.older and not self._leaves_out("target fence")
        return sight.others

    def _read(self, verb: str, executor: Executor, sight: Sight) -> Act:
        log, reader = self.world.logs[sight.end], executor._replace(ahead=sight.end)
        if not self._holds_lease(executor, sight):
            return Act(f"{verb}: it was overtaken", Executor(), sight.target)
        if log.is_concluded:
            return self._success(f"{verb}: all is done", executor, sight)
        if not log.is_open:
            return Act(verb, reader._replace(phase=OPENING), sight.target)
        begun = max((number for number, unit in enumerate(log.units) if unit.last is not None), default=0)
        settled = all(unit.last in (_COMMITTED, _FORMAL) for unit in log.units[:begun])
        flaw = None if settled else "the plan went on although a unit of it had not come to its end"
        return Act(verb, reader._replace(phase=LOOKING, unit=begun), sight.target, flaw=flaw)

    def _success(self, verb: str, executor: Executor, sight: Sight) -> Act:
        is_false = not self.view.is_complete(sight.target)
        flaw = f"{self._name(executor)} reports success, but the target has not all of it" if is_false else None
        return Act(verb, Executor(), sight.target, flaw=flaw)

    def _open(self, executor: Executor, sight: Sight) -> _Acts:
        """`Executor._open_apply`, `Executor._open_rollback`."""
        if self.view.live(sight.target) == self.world.source:
            yield from self._send("opens a plan", executor._replace(phase=PLANNING), sight, What.PLAN)
        else:
            yield from self._call_operator(executor, sight, "the live schema is not the one that the ledger says")

    def _conclude(self, executor: Executor, sight: Sight) -> _Acts:
        """`Executor._conclude`."""
        if self.view.live(sight.target) == self.world.work.target:
            yield from self._send("concludes", executor._replace(phase=SETTLING), sight, What.CONCLUDED)
        else:
            yield from self._call_operator(executor, sight, "all is done, but the live schema is another")

    def _report(self, executor: Executor, sight: Sight) -> _Acts:
        yield self._success("reports success", executor, sight)

    # --- looking and deciding -----------------------------------------------------------------------------------------

    def _look(self, executor: Executor, sight: Sight) -> _Acts:
        """`run_unit`."""
        unit, looker = self._unit(executor), executor._replace(phase=DECIDING, note=0)
        if isinstance(unit, BackfillUnit):
            yield from self._decide_backfill(executor, sight, unit)
            return
        witness = self._witness(executor, sight, unit)
        if witness is Witness.NONE:
            yield from self._decide_schema(looker, sight)
        else:
            verb = f"sees that the witness is {witness.value}"
            yield Act(verb, looker._replace(note=_WITNESSES.index(witness)), sight.target)

    def _witness(self, executor: Executor, sight: Sight, unit: SchemaUnit) -> Witness:
        """`_witness`."""
        known = self._known(executor)
        if known.last not in (_BEFORE, _UNKNOWN) or not unit.program.transactional or self._leaves_out("witness"):
            return Witness.NONE
        done = sight.target[1][executor.unit]
        assert isinstance(done, int)
        return Witness.PRESENT if self._is_mine(done or FOREIGN, known) else Witness.ABSENT

    def _is_mine(self, token: int, known: Known) -> bool:
        if self._leaves_out("witness seen"):
            return False
        return token in known.tokens or self._leaves_out("token")

    def _decide_schema(self, executor: Executor, sight: Sight) -> _Acts:
        """`_run_schema`, from where it observes."""
        unit, known, observed = self._unit(executor), self._known(executor).last, self.view.live(sight.target)
        assert isinstance(unit, SchemaUnit)
        last = weigh(known, _WITNESSES[executor.note])
        decider = executor._replace(note=0)
        match decide_group_recovery(last, observed, source=unit.source, target=unit.target):
            case RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY:
                yield from self._call_operator(executor, sight, _said(executor, last))
            case RecoveryDecision.REPAIR_CHECKPOINT:
                yield from self._repair(decider, sight, known)
            case RecoveryDecision.EXECUTE_NORMALLY if unit.is_formal:
                yield from self._tell("advances formally", decider, sight, What.FORMAL)
            case RecoveryDecision.EXECUTE_NORMALLY if not unit.program.transactional:
                yield from self._send("decides to execute", decider._replace(phase=OUTSIDE), sight, What.BEFORE)
            case RecoveryDecision.EXECUTE_NORMALLY:
                yield from self._execute(decider, sight, BEGINNING, was_aborted=last is not known)

    def _decide_backfill(self, executor: Executor, sight: Sight, unit: BackfillUnit) -> _Acts:
        """`_run_backfill`."""
        known, done = self._known(executor), sight.target[1][executor.unit]
        assert isinstance(done, tuple)
        is_mine = self._is_mine(done[0], known)
        completion = completion_of(unit) if is_mine and done[1] == BATCHES else None
        looks = completion is None and not self._leaves_out("witness")
        last = weigh(known.last, Witness.ABSENT) if looks else known.last
        observation = BackfillObservation(available=True, completion=completion)
        match decide_backfill_recovery(last, observation, plan=unit.fingerprint, direction=unit.position.direction):
            case RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY:
                yield from self._call_operator(executor, sight, _said(executor, last))
            case RecoveryDecision.REPAIR_CHECKPOINT:
                yield from self._repair(executor, sight, known.last)
            case RecoveryDecision.EXECUTE_NORMALLY:
                phase = REPEATING if is_mine else BEGINNING
                yield from self._execute(executor, sight, phase, was_aborted=last is not known.last)

    def _repair(self, executor: Executor, sight: Sight, known: LastEvent) -> _Acts:
        if known in (_COMMITTED, _FORMAL):
            yield Act("finds a unit done", self._next(executor), sight.target)
        else:
            yield from self._tell("repairs the checkpoint", executor, sight, What.COMMITTED)

    def _execute(self, executor: Executor, sight: Sight, phase: int, *, was_aborted: bool) -> _Acts:
        if was_aborted and not self._leaves_out("aborted"):
            recorder = executor._replace(phase=ABORTING, note=int(phase == REPEATING))
            yield from self._send("decides to execute again", recorder, sight, What.ABORTED)
        else:
            yield Act("decides to execute", executor._replace(phase=phase), sight.target)

    def _record_aborted(self, executor: Executor, sight: Sight) -> _Acts:
        decider = executor._replace(note=0)
        yield from self._repeat(decider, sight) if executor.note else self._begin(decider, sight)

    # --- transactions -------------------------------------------------------------------------------------------------

    def _passes(self, executor: Executor, sight: Sight) -> bool:
        """Whether a transaction begins: the write lock is free, and its fence is the one that was raised last."""
        if sight.others and not self.bound.several_writers:
            return False
        fence, raised = self.world.fence(executor.lease), sight.target[0]
        return raised == fence or self._leaves_out("target fence") or (self._leaves_out("raise") and raised < fence)

    def _begin(self, executor: Executor, sight: Sight) -> _Acts:
        """`_execute_inside`, `_begin_backfill`, up to where they wait for the verdict."""
        if self._passes(executor, sight):
            yield from self._send("begins a transaction", executor._replace(phase=BEGUN), sight, What.BEFORE)

    def _commit(self, executor: Executor, sight: Sight) -> _Acts:
        """`_commit`, and how the run goes on."""
        done, token = sight.target[1][executor.unit], token_of(executor.lease, executor.unit)
        flaw = self._false_commit(executor, sight)
        if isinstance(done, tuple):
            target = self._changed(executor, sight, (token, 0, done[2]))
            yield Act("commits the cursor", executor._replace(phase=ADVANCING), target, flaw=flaw)
        else:
            flaw = f"unit {executor.unit} takes effect a second time" if done else flaw
            target = self._changed(executor, sight, token)
            yield from self._tell("commits", executor, sight, What.COMMITTED, target=target, flaw=flaw)
        yield from self._fail(executor, sight, target, flaw)

    def _false_commit(self, executor: Executor, sight: Sight) -> str | None:
        """The log says that this attempt is aborted, and so it must stay."""
        if token_of(executor.lease, executor.unit) in self.world.logs[sight.end].units[executor.unit].aborted:
            return f"{self._name(executor)} commits, but the log says that its attempt is aborted"
        return None

    def _changed(self, executor: Executor, sight: Sight, done: Done) -> Target:
        fence, units = sight.target
        if self._leaves_out("raise"):
            fence = self.world.fence(executor.lease)
        return fence, (*units[: executor.unit], done, *units[executor.unit + 1 :])

    def _fail(self, executor: Executor, sight: Sight, committed: Target, flaw: str | None) -> _Acts:
        """A commit that fails: nothing is committed, for certain or not, or it is and the answer is lost."""
        yield from self._tell("fails to commit, provably", executor, sight, What.ABORTED)
        yield from self._tell("fails to commit, perhaps", executor, sight, What.UNKNOWN)
        yield from self._tell("commits without an answer", executor, sight, What.UNKNOWN, target=committed, flaw=flaw)

    # --- batches ------------------------------------------------------------------------------------------------------

    def _repeat(self, executor: Executor, sight: Sight) -> _Acts:
        """`_execute_backfill` with a cursor."""
        yield from self._send("resumes the backfill", executor._replace(phase=RESUMING), sight, What.BEFORE)

    def _begin_batch(self, executor: Executor, sight: Sight) -> _Acts:
        """`_advance_backfill`, up to its commit."""
        if self._passes(executor, sight):
            yield Act("begins a batch", executor._replace(phase=IN_BATCH), sight.target)

    def _commit_batch(self, executor: Executor, sight: Sight) -> _Acts:
        """`_advance_backfill`: the cursor moves in the transaction of the batch."""
        done = sight.target[1][executor.unit]
        assert isinstance(done, tuple)
        token, position, ran = done
        moved = min(position + 1, BATCHES)
        flaw = self._false_commit(executor, sight)
        if position < moved <= ran:
            flaw = f"batch {moved} of unit {executor.unit} takes effect a second time"
        target = self._changed(executor, sight, (token, moved, max(ran, moved)))
        if moved == BATCHES:
            yield from self._tell("commits the last batch", executor, sight, What.COMMITTED, target=target, flaw=flaw)
        else:
            yield Act("commits a batch", executor._replace(phase=ADVANCING), target, flaw=flaw)
            if self.bound.checkpoints:
                verb = "commits a batch and reports it"
                yield from self._tell(verb, executor, sight, What.CHECKPOINT, target=target, flaw=flaw)
        yield from self._fail(executor, sight, target, flaw)

    # --- outside a transaction ----------------------------------------------------------------------------------------

    def _check_outside(self, executor: Executor, sight: Sight) -> _Acts:
        """`Database.execute_outside`."""
        if not self._passes(executor, sight):
            return
        if self.bound.pauses_outside:
            yield Act("checks the fence", executor._replace(phase=CHECKED), sight.target)
        else:
            yield from self._run_outside(executor, sight)

    def _run_outside(self, executor: Executor, sight: Sight) -> _Acts:
        """`_execute_outside`, from where it has checked the fence."""
        done, token = sight.target[1][executor.unit], token_of(executor.lease, executor.unit)
        flaw = f"unit {executor.unit} takes effect a second time" if done else self._false_commit(executor, sight)
        ran, torn = self._changed(executor, sight, token), self._changed(executor, sight, TORN)
        yield from self._tell("runs the statements", executor, sight, What.COMMITTED, target=ran, flaw=flaw)
        yield from self._tell("fails in the first statement", executor, sight, What.ABORTED)
        yield from self._tell("fails in a later statement", executor, sight, What.UNKNOWN, target=torn, flaw=flaw)
        yield from self._tell(
            "runs the statements without an answer", executor, sight, What.UNKNOWN, target=ran, flaw=flaw
        )


def _said(executor: Executor, last: LastEvent) -> str:
    said = "not begun" if last is None else last.value
    return f"unit {executor.unit} is {said}, which the target contradicts"
