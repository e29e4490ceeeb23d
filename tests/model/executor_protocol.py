"""What may happen next around a target: the states of the executors' model, and the steps between them.

Three things are left out, because what is left in covers them; a test puts the first two back and finds nothing new. An
event that can never count any more is not kept under way. A record of what became of a commit is sent at once. And a copy
that arrives ahead of its parent, which is void and changes nothing, may as well arrive later; what the writer of one is
told is explored by `tests.model.protocol`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from journal import admission
from tests.model.executor_bounds import Bound
from tests.model.executor_run import DOWN, HOLDING, Act, Executor, Run, Sight
from tests.model.executor_target import Target, TargetView
from tests.model.executor_world import NOTHING, ExecutorWorld, Granted

# The log, what is under way to it (sorted), the store's counter, runs left, the target, and the executors (sorted).
State: TypeAlias = tuple[int, tuple[int, ...], int, int, Target, Executor, Executor]


class Move(NamedTuple):
    """A step, as little as its description needs."""

    verb: str
    lease: int
    sent: int = NOTHING


class Step(NamedTuple):
    """A step and where it leads; `flaw` says what it contradicts."""

    move: Move
    state: State
    flaw: str | None


class ExecutorModel:
    """The steps of one bound over the world of its migration.

    `verbs` are those that came up, `futures` what becomes of a fresh run from each log and target that were reached.
    """

    def __init__(self, bound: Bound, world: ExecutorWorld) -> None:
        self.bound = bound
        self.world = world
        self.view = TargetView(world)
        self.run = Run(bound, self.view)
        self.verbs: set[str] = set()
        self.futures: dict[tuple[int, Target], str | None] = {}
        # Only where admission keeps to its rules is it known what can never count.
        self.forgets_hopeless = world.protocol is admission
        self._known_acts: dict[tuple[Executor, Sight], list[Act]] = {}

    def start(self) -> State:
        """Nobody runs."""
        return self.world.start, (), 1, self.bound.runs, self.view.untouched, Executor(), Executor()

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next; what it leads to must be such that a fresh run applies the migration."""
        for step in self._steps(state):
            flaw = step.flaw or self._future(step.state[0], step.state[4])
            yield step if flaw == step.flaw else step._replace(flaw=flaw)

    def _steps(self, state: State) -> Iterator[Step]:
        yield from self._deliveries(state)
        for who in (0,) if state[5] == state[6] else (0, 1):
            executor: Executor = state[5 + who]
            if executor.phase == DOWN:
                yield from self._grants(state, who)
                continue
            for act in self._acts(state, who):
                self.verbs.add(act.verb)
                yield Step(Move(act.verb, executor.lease, act.sent), self._acted(state, who, act), act.flaw)
            # One that neither holds a transaction nor makes room for another run may as well be paused for ever.
            if state[3] or executor.phase in HOLDING:
                stopped = self._acted(state, who, Act("stops", Executor(), state[4]))
                yield Step(Move("stops", executor.lease), stopped, None)

    def _acts(self, state: State, who: int) -> list[Act]:
        executor, other = state[5 + who], state[6 - who]
        others = other.phase in HOLDING
        older = others and self.world.fence(other.lease) < self.world.fence(executor.lease)
        key = (executor, Sight(state[0], state[4], others, older))
        acts = self._known_acts.get(key)
        if acts is None:
            acts = self._known_acts[key] = list(self.run.acts(*key))
        return acts

    def _acted(self, state: State, who: int, act: Act) -> State:
        end, flight, counter, runs, _, *executors = state
        executors[who] = act.executor
        if act.sent:
            flight = self._under_way({*flight, act.sent}, end)
        first, second = sorted(executors)
        return end, flight, counter, runs, act.target, first, second

    # --- the log and the lease store ----------------------------------------------------------------------------------

    def _deliveries(self, state: State) -> Iterator[Step]:
        end, flight, counter, runs, target, first, second = state
        for event in flight:
            behind = self.world.step(end, event)
            if behind is not None:
                flaw = self._contradiction(end, behind, event, target)
                left = self._under_way({*flight} - {event}, behind)
                yield Step(Move("admits", NOTHING, event), (behind, left, counter, runs, target, first, second), flaw)

    def _contradiction(self, end: int, behind: int, event: int, target: Target) -> str | None:
        flaw = self.view.contradiction(end, event, target)
        return self.world.logs[behind].flaw if flaw is None and self.bound.judges_history else flaw

    def _under_way(self, flight: set[int], end: int) -> tuple[int, ...]:
        """What may still count: a head, once left, never returns, and what it makes of an event is final while it lasts."""
        if not self.forgets_hopeless:
            return tuple(sorted(flight))
        kept = [event for event in flight if self.world.step(end, event) is not None]
        for parent in kept:
            kept.extend(event for event in flight if self.world.written[event].parent == parent)
        return tuple(sorted(kept))

    def _grants(self, state: State, who: int) -> Iterator[Step]:
        """A fence from the store, which may have forgotten all that it granted."""
        end, _, counter, runs, target, _, _ = state
        floor = self.world.newest_fence(end)
        for fence in sorted({floor + 1, max(counter, floor) + 1}) if runs else ():
            lease = self.world.lease(Granted(self.bound.runs - runs, fence))
            for act in self.run.ask(lease, Sight(end, target)):
                end, flight, _, _, *rest = self._acted(state, who, act)
                yield Step(Move(act.verb, lease, act.sent), (end, flight, fence, runs - 1, *rest), None)

    # --- what becomes of it all ---------------------------------------------------------------------------------------

    def _future(self, end: int, target: Target) -> str | None:
        """Why a fresh run that nobody disturbs would not bring the migration to its end from here; None when it does."""
        key = (end, target)
        if key not in self.futures:
            self.futures[key] = self._run_alone(end, target)
        return self.futures[key]

    def _run_alone(self, end: int, target: Target) -> str | None:
        """The first act is what happens when nothing fails; when there is none, what it waits for arrives."""
        fence = max(self.world.newest_fence(end), target[0]) + 1
        act = next(self.run.ask(self.world.lease(Granted(self.bound.runs, fence)), Sight(end, target)))
        sent: list[int] = []
        while True:
            if act.flaw is not None:
                return f"a fresh run that nobody disturbs fails: {act.flaw}"
            sent.extend([act.sent] if act.sent else [])
            executor, target = act.executor, act.target
            if executor.phase == DOWN:
                return None
            while (following := next(self.run.acts(executor, Sight(end, target)), None)) is None:
                behind = self.world.step(end, sent[0]) if sent else None
                if behind is None:
                    return f"a fresh run that nobody disturbs waits for ever, in phase {executor.phase}"
                flaw = self._contradiction(end, behind, sent.pop(0), target)
                if flaw is not None:
                    return f"a fresh run that nobody disturbs fails: {flaw}"
                end = behind
            act = following

    # --- for people ---------------------------------------------------------------------------------------------------

    def describe(self, move: Move) -> str:
        """A step as a sentence."""
        if move.lease == NOTHING:
            return f"the log admits {self.world.name(move.sent)}"
        sends = f", and sends {self.world.name(move.sent)}" if move.sent else ""
        return f"{self.world.who(move.lease)} {move.verb}{sends}"
