"""A scope that is carried from one log to another, in every interleaving: who lives where, and whether a history forks.

Three logs: the source, the destination that awaits the scope, and a decoy that awaits it too and gets the archive of the
move that was not meant for it. Whatever is sent to a log may be delivered at any time, never, late, or often. So there is
one kind of step: an event comes into a log that somebody can have sent there, now or earlier, and changes something.
Everybody acts on any prefix of a log that counted once, so on knowledge of any age:

* the last writer writes under its lease whatever has become of it;
* the mover takes a lease, and moves the scope to the destination's place;
* a late comer takes a lease at the source; a stubborn one even where it could have read that the scope has moved;
* importers copy what the source's chain is, once and again, before the move and behind it, and arrive;
* a careless one copies to the decoy and arrives there, too;
* the next writer takes a lease and writes at the destination as soon as it may.

At every moment at most one log is lived in, and its chain continues every chain that was ever lived in. The verdicts,
effects and the check before a lease are the product's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Final, NamedTuple, TypeAlias

from journal import admission
from journal.admission import ScopeState, empty_state
from journal.codec import Codec
from journal.events import NO_LEASE, NO_PARENT, Event, EventType
from journal.identities import Incarnation, LeaseId, Place
from journal.records import (
    LeaseAcquiredRecord,
    MigrationLease,
    Record,
    ScopeArrivedRecord,
    ScopeAwaitedRecord,
    ScopeCreatedRecord,
    ScopeMovedRecord,
)
from journal.vocabulary import GroupEventKind
from journal.whereabouts import absence
from tests.factories import EPOCH_MICROS, SCOPE, group_record, lease_of, manifest_of, plan_record

SOURCE, DESTINATION, DECOY = LOGS = range(3)
PLACES: Final = [Place(bytes([log + 1]) * 16) for log in LOGS]
INCARNATION: Final = Incarnation(bytes(range(16)))
MANIFESTS: Final = [manifest_of(number) for number in range(1, 7)]
WRITER, MOVER, COMER, NEXT, IMPORTER, CARELESS, COPIED = (
    "writer", "mover", "comer", "next", "importer", "careless", "copied"
)  # fmt: skip

# What counted in a log, in order, as numbers of events.
Log: TypeAlias = tuple[int, ...]


class State(NamedTuple):
    """One moment. `left` says how often everybody may still act, `lived` is the chain of the log that was lived in last."""

    logs: tuple[Log, ...]
    left: tuple[tuple[str, int], ...]
    lived: Log


@dataclass(frozen=True, slots=True)
class Bound:
    """How many events of each may count in a log; copies as many as there are.

    `stubborn`: the late comer does not care what it read. `back`: the scope has been carried once, and goes back where it
    was first; the writer of its first life there still writes.
    """

    name: str
    writer: int = 2
    mover: int = 3
    comer: int = 2
    next: int = 2
    stubborn: bool = False
    back: bool = False

    def budget(self) -> tuple[tuple[str, int], ...]:
        """Everybody's share. Two of each kind of arrival: the second must not count."""
        return (
            (WRITER, self.writer), (MOVER, self.mover), (COMER, self.comer), (NEXT, self.next), (IMPORTER, 2), (CARELESS, 2),
            (COPIED, 1),
        )  # fmt: skip


@dataclass
class World:
    """The events that somebody made, each once, and what folding any of them in any order gives."""

    admission: ModuleType = admission
    codec: Codec = field(default_factory=Codec)
    events: list[Event] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _folds: dict[Log, ScopeState] = field(default_factory=lambda: {(): empty_state(SCOPE)})
    _changing: dict[tuple[Log, int], bool] = field(default_factory=dict)

    def event(self, name: str, record: Record, lease_id: bytes, fence: int, parent: bytes, number: int = 0) -> int:
        """The number of an event; the same for the same one."""
        key = (name, lease_id, fence, parent, number)
        if key not in self._numbers:
            data = self.codec.write(
                record,
                scope=SCOPE,
                incarnation=bytes(16) if isinstance(record, ScopeAwaitedRecord) and not number else INCARNATION,
                lease_id=lease_id,
                parent=parent,
                fence=fence,
                recorded_at=EPOCH_MICROS,
                event_id=len(self.events).to_bytes(16, "big"),
            )
            event = self.codec.read(0, data)
            assert isinstance(event, Event)
            self._numbers[key] = len(self.events)
            self.events.append(event)
            self.names.append(name)
        return self._numbers[key]

    def fold(self, log: Log) -> ScopeState:
        """The state of a log that `counts` was asked about; not to be changed."""
        return self._folds[log]

    def counts(self, log: Log, event: int) -> bool:
        """Whether an event that is delivered next changes anything."""
        known = self._changing.get((log, event))
        if known is not None:
            return known
        before = self.fold(log)
        after = before.copy()
        verdict = self.admission.step(after, self.events[event])
        changes = isinstance(verdict, self.admission.Admitted) and _essence(after) != _essence(before)
        if changes:
            self._folds[*log, event] = after
        self._changing[log, event] = changes
        return changes

    def chain(self, log: Log) -> Log:
        """What of a log is carried."""
        return tuple(event for event in log if self.events[event].type is not EventType.SCOPE_AWAITED)


def _essence(state: ScopeState) -> tuple[object, ...]:
    return state.head, state.places, state.away


class Model:
    """The steps that may come next, for one bound."""

    def __init__(self, bound: Bound, rules: ModuleType = admission) -> None:
        self.bound = bound
        self.world = World(rules)

    # --- the start ----------------------------------------------------------------------------------------------------

    def start(self) -> State:
        """The last writer has a lease and an open plan at the source."""
        log: Log = self._extended((), self._genesis())
        log = self._extended(log, self._acquired(log, WRITER))
        state = self.world.fold(log)
        lease = self._lease(WRITER, state.fence)
        plan = plan_record(lease, MANIFESTS[:1])
        log = self._extended(log, self.world.event("plan", plan, lease.lease_id, lease.fence, state.head))
        logs = [log, (), ()]
        for place in (DESTINATION, DECOY):
            logs[place] = self._extended((), self._awaited(place, ()))
        start = State(tuple(logs), self.bound.budget(), self.world.chain(log))
        return self._carried_once(start) if self.bound.back else start

    def _carried_once(self, start: State) -> State:
        """The scope went to the destination and lives there; the two change their parts, and the first log awaits it."""
        source, destination, decoy = start.logs
        source = self._extended(source, self._acquired(source, MOVER))
        source = self._extended(source, self._moved(source, DESTINATION))
        for event in self.world.chain(source):
            destination = self._extended(destination, event)
        destination = self._extended(destination, self._arrived(self.world.fold(destination), 0))
        destination = self._extended(destination, self._acquired(destination, NEXT))
        source = self._extended(source, self._awaited(SOURCE, source, again=1))
        return start._replace(logs=(destination, source, decoy), lived=self.world.chain(destination))

    def _extended(self, log: Log, event: int) -> Log:
        assert self.world.counts(log, event), self.world.names[event]
        return (*log, event)

    # --- events -------------------------------------------------------------------------------------------------------

    def _genesis(self) -> int:
        return self.world.event("genesis", ScopeCreatedRecord.new(authenticated=False), NO_LEASE, 0, NO_PARENT)

    def _awaited(self, place: int, log: Log, again: int = 0) -> int:
        head = self.world.fold(log).head
        return self.world.event(f"awaited {place}", ScopeAwaitedRecord.new(PLACES[place]), NO_LEASE, 0, head, again)

    def _lease(self, who: str, fence: int) -> MigrationLease:
        return lease_of(who, fence, lease_id=LeaseId(who.encode().ljust(15, b".") + bytes([fence])))

    def _acquired(self, log: Log, who: str) -> int:
        state = self.world.fold(log)
        lease = self._lease(who, state.fence + 1)
        record = LeaseAcquiredRecord.new(lease.holder, 1)
        return self.world.event(f"lease of {who}", record, lease.lease_id, lease.fence, state.head)

    def _moved(self, log: Log, to: int) -> int:
        state = self.world.fold(log)
        lease = self._lease(MOVER, state.fence)
        record = ScopeMovedRecord.new(lease, PLACES[to], destination="there", operator="Ada", reason="because")
        return self.world.event(f"move to {to}", record, lease.lease_id, lease.fence, state.head)

    def _arrived(self, state: ScopeState, number: int) -> int:
        assert state.moved is not None
        record = ScopeArrivedRecord.new(Place(state.moved.place))
        return self.world.event("arrival", record, state.moved.lease_id, state.moved.fence, state.head, 1 + number)

    def _written(self, state: ScopeState, who: str, fence: int) -> int:
        lease = self._lease(who, fence)
        record = group_record(lease, MANIFESTS[0], GroupEventKind.BEFORE_COMMIT)
        return self.world.event(f"record of {who}", record, lease.lease_id, fence, state.head)

    # --- steps --------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Everything that may happen next, with words for it."""
        left = dict(state.left)
        for who, log, event in set(self._sendable(state)):
            if left[who] and self.world.counts(state.logs[log], event):
                logs = tuple((*taken, event) if log == index else taken for index, taken in enumerate(state.logs))
                rest = tuple((name, number - (name == who != COPIED)) for name, number in state.left)
                after = self._noted(State(logs, rest, state.lived))
                yield f"{self.world.names[event]} comes into log {log}", after

    def _sendable(self, state: State) -> Iterator[tuple[str, int, int]]:
        """Who can have sent what to which log, with what it may have read."""
        source, destination, _ = state.logs
        yield from self._of_the_living(source)
        for copy in (DESTINATION, DECOY):
            yield from ((COPIED, copy, event) for event in self.world.chain(source))
        if self.bound.back:
            for _, seen in self._prefixes(destination):
                yield WRITER, DESTINATION, self._written(seen, WRITER, 1)
        for log, who in ((DESTINATION, IMPORTER), (DECOY, CARELESS)):
            for _, seen in self._prefixes(state.logs[log]):
                if seen.moved is not None and (who == CARELESS or seen.moved.place in seen.places):
                    yield from ((who, log, self._arrived(seen, number)) for number in range(2))
        for prefix, seen in self._prefixes(destination):
            if absence(seen) is None:
                yield NEXT, DESTINATION, self._acquired(prefix, NEXT)
                if seen.lease is not None and seen.lease.holder == NEXT:
                    yield NEXT, DESTINATION, self._written(seen, NEXT, seen.fence)

    def _of_the_living(self, source: Log) -> Iterator[tuple[str, int, int]]:
        last = NEXT if self.bound.back else WRITER
        fences = [self.world.events[event].fence for event in source if self.world.names[event] == f"lease of {last}"]
        for prefix, seen in self._prefixes(source):
            lives = absence(seen) is None
            yield WRITER, SOURCE, self._written(seen, last, fences[-1])
            if lives:
                yield MOVER, SOURCE, self._acquired(prefix, MOVER)
            if lives or self.bound.stubborn:
                yield COMER, SOURCE, self._acquired(prefix, COMER)
            if seen.lease is not None and seen.lease.holder == MOVER:
                yield MOVER, SOURCE, self._moved(prefix, SOURCE if self.bound.back else DESTINATION)
            if seen.lease is not None and seen.lease.holder == COMER:
                yield COMER, SOURCE, self._written(seen, COMER, seen.fence)

    def _prefixes(self, log: Log) -> Iterator[tuple[Log, ScopeState]]:
        """What somebody may know of a log: it as it is, or as it was since the last writer's lease."""
        for length in range(1, len(log) + 1):
            seen = self.world.fold(log[:length])
            if seen.incarnation is not None and seen.fence:
                yield log[:length], seen

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _noted(self, state: State) -> State:
        living = self._living(state)
        return state._replace(lived=self.world.chain(state.logs[living[0]])) if len(living) == 1 else state

    def _living(self, state: State) -> list[int]:
        folds = [self.world.fold(log) for log in state.logs]
        return [log for log, fold in enumerate(folds) if fold.incarnation is not None and absence(fold) is None]

    def flaw(self, before: State, state: State) -> str | None:
        """What must not be: two logs that are lived in, one that does not continue what was lived, or a life elsewhere."""
        living = self._living(state)
        if state.logs[SOURCE] != before.logs[SOURCE] and SOURCE not in self._living(before):
            return "something counts in the log that the scope has left"
        if len(living) > 1:
            return f"logs {living} are lived in at once"
        if living and self.world.chain(state.logs[living[0]])[: len(before.lived)] != before.lived:
            return f"log {living[0]} is lived in and lacks what counted before"
        return None


@dataclass(frozen=True, slots=True)
class Result:
    """What an exploration found. `arrived`: moments at which the destination is lived in."""

    states: int
    arrived: int
    flaw: str | None
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.states} states, {self.arrived} arrived: {self.flaw or 'no flaw'}", *self.trace])


def explore(model: Model) -> Result:
    """Every state that can be reached, the nearest first; stops at the first flaw, with the shortest way to it."""
    start = model.start()
    came: dict[State, tuple[State, str] | None] = {start: None}
    waiting, arrived = deque([start]), 0
    while waiting:
        state = waiting.popleft()
        arrived += DESTINATION in model._living(state)
        for words, after in model.steps(state):
            flaw = model.flaw(state, after)
            if after not in came:
                came[after] = (state, words)
                waiting.append(after)
            if flaw is not None:
                return Result(len(came), arrived, flaw, _way(came, after))
    return Result(len(came), arrived, None, ())


def _way(came: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    words: list[str] = []
    step = came[state]
    while step is not None:
        words.append(step[1])
        step = came[step[0]]
    return tuple(reversed(words))
