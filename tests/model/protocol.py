"""What may happen next: the states of the model, and the steps between them.

Three things are left out, because what is left in covers them; a test puts them back and finds nothing new. A copy that
is void, and whose writer does not wait for it, changes nothing when it arrives: it may as well be lost. For the same
reason it is not kept in what the other writer has yet to read. While both writers are alike and neither has moved, the
first to move is called Ann.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from tests.model.world import HOLDERS, NOTHING, Granted, Kind, World, Written, pack


@dataclass(frozen=True, slots=True)
class Habits:
    """What one writer does: its carelessness, and how often it takes a fence, announces one, and writes."""

    stubborn: bool = False
    floorless: bool = False
    grants: int = 1
    announcements: int = 1
    records: int = 2
    releases: bool = False


@dataclass(frozen=True, slots=True)
class Bound:
    """What is explored. Every event arrives at most `copies` times, `doubled` of all events more than once.

    `steps` bounds the length of a run, None explores all of them.
    """

    name: str
    writers: tuple[Habits, Habits]
    copies: int = 2
    doubled: int = 2
    forgets: int = 1
    in_flight: int = 2
    steps: int | None = None


class Writer(NamedTuple):
    """One writer: the state that it folded, the events that it has yet to read, its leases, its chain, what is left.

    `lease` is the one whose announcement it was told is admitted, `released` says that it sent word of giving it back,
    `fresh` is one that the store granted since.
    """

    state: int
    unread: tuple[int, ...]
    lease: int
    fresh: int
    released: bool
    chain: tuple[int, ...]
    grants: int
    announcements: int
    records: int


# Counter of the store, times it may still forget, events that may still be doubled, the state at the log's end, what is
# under way (sorted, see `_flying`), and the writers.
State: TypeAlias = tuple[int, int, int, int, tuple[int, ...], Writer, Writer]
END: Final = 3
FLIGHT: Final = 4
WRITERS: Final = 5


class Move(NamedTuple):
    """One step, as little as its description needs: who and what; and of reads, events and what is told of them."""

    verb: str
    subject: int
    detail: int
    told: tuple[tuple[int, int], ...] = ()


class Step(NamedTuple):
    """A step and where it leads; `flaw` says what it contradicts."""

    move: Move
    state: State
    flaw: str | None


def _flying(event: int, copies: int, told_void: bool) -> int:
    return event << 3 | copies << 1 | told_void


class Model:
    """The steps of one bound over one protocol's world."""

    def __init__(self, bound: Bound, world: World) -> None:
        self.bound = bound
        self.world = world
        self._known_batches: tuple[dict[Writer, list[tuple[Move, Writer, set[int]]]], ...] = ({}, {})

    def start(self) -> State:
        """Both writers have read the founder's events; the store granted the founder's fence."""
        state = self.world.start
        ann, bob = (
            Writer(state, (), NOTHING, NOTHING, False, (), habits.grants, habits.announcements, habits.records)
            for habits in self.bound.writers
        )
        return 1, self.bound.forgets, self.bound.doubled, state, (), ann, bob

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen next."""
        yield from self._deliveries(state)
        for who in (0, 1):
            yield from self._reads(state, who)
            yield from self._acts(state, who)
            if who == 0 and self._untouched(state):
                return

    def _untouched(self, state: State) -> bool:
        return self.bound.writers[0] == self.bound.writers[1] and state[WRITERS] == state[WRITERS + 1]

    # --- the log ------------------------------------------------------------------------------------------------------

    def _deliveries(self, state: State) -> Iterator[Step]:
        world = self.world
        counter, forgets, doubled, end, flight, *writers = state
        for at, flying in enumerate(flight):
            event, copies, told_void = flying >> 3, flying >> 1 & 3, flying & 1
            behind, verdict = world.step(end, event)
            admitted = world.is_admitted[verdict]
            concerned = [admitted or self._waits(writer, event) for writer in writers]
            if not any(concerned):
                continue
            left, doubled_now = copies - 1, doubled
            if copies < self.bound.copies:
                if not doubled:
                    continue
                doubled_now -= 1
            rest = flight[:at] + ((_flying(event, left, bool(told_void)),) if left else ()) + flight[at + 1 :]
            ann, bob = (
                writer._replace(unread=(*writer.unread, event)) if concerns else writer
                for writer, concerns in zip(writers, concerned, strict=True)
            )
            flaw = None
            if admitted:
                flaw = world.flaws[behind]
                if told_void:
                    flaw = f"{world.name(event)} counts, whose writer was told that it is void"
            yield Step(Move("deliver", event, verdict), (counter, forgets, doubled_now, behind, rest, ann, bob), flaw)

    def _waits(self, writer: Writer, event: int) -> bool:
        for entry in writer.chain:  # noqa: SIM110  (asked most of all, and a loop is three times faster)
            if entry >> 9 == event:
                return True
        return False

    # --- reading ------------------------------------------------------------------------------------------------------

    def _reads(self, state: State, who: int) -> Iterator[Step]:
        counter, forgets, doubled, end, flight, ann, bob = state
        for move, reader, voided in self._batches(who, bob if who else ann):
            flaw = self._false_answer(end, move.told) if move.told else None
            if voided:
                flight = tuple(flying | (flying >> 3 in voided) for flying in state[FLIGHT])
            after = (ann, reader) if who else (reader, bob)
            yield Step(move, (counter, forgets, doubled, end, flight, *after), flaw)
            flight = state[FLIGHT]

    def _batches(self, who: int, writer: Writer) -> list[tuple[Move, Writer, set[int]]]:
        """What reading each possible batch does to a writer, and what it is told is void: the same in every state."""
        batches = self._known_batches[who].get(writer)
        if batches is None:
            sizes = range(1, len(writer.unread) + 1)
            batches = self._known_batches[who][writer] = [self._read(who, writer, size) for size in sizes]
        return batches

    def _read(self, who: int, writer: Writer, size: int) -> tuple[Move, Writer, set[int]]:
        world = self.world
        reading = world.read(writer.state, writer.unread[:size], writer.chain)
        lease, fresh, released, voided = writer.lease, writer.fresh, writer.released, set()
        for event, answer in reading.told:
            written = world.written[event]
            if not world.is_admitted[answer]:
                voided.add(event)
            elif written.kind is Kind.LEASE and written.lease == fresh:
                lease, fresh, released = fresh, NOTHING, False
        reader = Writer(reading.state, writer.unread[size:], lease, fresh, released, reading.waiting, *writer[6:])
        return Move("read", who, size, reading.told), self._without_irrelevant(reader), voided

    def _false_answer(self, end: int, told: tuple[tuple[int, int], ...]) -> str | None:
        """How an answer differs from the log as it is now; what comes later is held against it in `_deliveries`."""
        for event, answer in told:
            if self.world.is_admitted[answer]:
                flaw = self._false_admission(end, event, answer)
            else:
                flaw = self._false_void(end, event)
            if flaw is not None:
                return flaw
        return None

    def _false_admission(self, end: int, event: int, answer: int) -> str | None:
        counted, told = self.world.counted[end], self.world.verdicts[answer]
        if event not in counted or counted[event] != told.sequence:
            return (
                f"{HOLDERS[self.world.written[event].writer]} is told {self.world.told(answer)}, the log says otherwise"
            )
        return None

    def _false_void(self, end: int, event: int) -> str | None:
        if event in self.world.counted[end]:
            return f"{self.world.name(event)} counts, and its writer is told that it is void"
        return None

    def _without_irrelevant(self, writer: Writer) -> Writer:
        state, kept = writer.state, []
        for event in writer.unread:
            state, verdict = self.world.step(state, event)
            if self.world.is_admitted[verdict] or self._waits(writer, event):
                kept.append(event)
        return writer._replace(unread=tuple(kept))

    # --- acting -------------------------------------------------------------------------------------------------------

    def _acts(self, state: State, who: int) -> Iterator[Step]:
        writer, habits = state[WRITERS + who], self.bound.writers[who]
        announced = writer.fresh and self._is_announced(writer)
        if writer.grants and (
            not writer.fresh or announced or self.world.fences[writer.state] >= self.world.fence(writer.fresh)
        ):
            yield from self._grants(state, who)
        if writer.fresh and not announced and writer.announcements:
            yield from self._announcement(state, who)
        if writer.records and writer.lease and self._records_in_flight(writer) < self.bound.in_flight:
            yield from self._record(state, who, Kind.RECORD)
            if habits.releases and not writer.released:
                yield from self._record(state, who, Kind.RELEASE)

    def _is_announced(self, writer: Writer) -> bool:
        sent = (self.world.written[entry >> 9] for entry in writer.chain)
        return any(written.kind is Kind.LEASE and written.lease == writer.fresh for written in sent)

    def _records_in_flight(self, writer: Writer) -> int:
        return sum(self.world.written[entry >> 9].kind is not Kind.LEASE for entry in writer.chain)

    def _grants(self, state: State, who: int) -> Iterator[Step]:
        """A fence from the store: it may forget just before, which is a step only when it gives another fence."""
        counter, forgets, doubled, end, flight, *writers = state
        writer, habits = writers[who], self.bound.writers[who]
        floors = {self.world.fences[writer.state], 0} if habits.floorless else {self.world.fences[writer.state]}
        remembered = {max(counter, floor) + 1 for floor in floors}
        forgotten = {floor + 1 for floor in floors} - remembered if forgets else set()
        for fence in sorted(remembered | forgotten):
            left = forgets - (fence in forgotten)
            lease = self.world.lease(Granted(who, habits.grants - writer.grants, fence))
            writers[who] = writer._replace(fresh=lease, grants=writer.grants - 1)
            move = Move("forget and grant" if fence in forgotten else "grant", who, fence)
            yield Step(move, (fence, left, doubled, end, flight, *writers), None)

    def _announcement(self, state: State, who: int) -> Iterator[Step]:
        """`Spine.announce`: on the newest head that was read, whatever is in doubt."""
        writer, habits = state[WRITERS + who], self.bound.writers[who]
        number = habits.announcements - writer.announcements
        head = self.world.heads[writer.state]
        event = self.world.event(Written(who, Kind.LEASE, number, head, writer.fresh))
        if habits.floorless or self._would_count(writer.state, event):
            yield self._send(state, who, event, True, writer._replace(announcements=writer.announcements - 1))

    def _record(self, state: State, who: int, kind: Kind) -> Iterator[Step]:
        """`Spine.submit`: on what is expected to count, unless admission would refuse it; or stubbornly."""
        world, writer, habits = self.world, state[WRITERS + who], self.bound.writers[who]
        number = habits.records - writer.records
        sender = writer._replace(records=writer.records - 1, released=writer.released or kind is Kind.RELEASE)
        if habits.stubborn or not (writer.fresh or writer.released):
            ahead = writer.state
            for entry in writer.chain:
                ahead, _ = world.step(ahead, entry >> 9)
            event = world.event(Written(who, kind, number, world.heads[ahead], writer.lease))
            if self._would_count(ahead, event):
                yield self._send(state, who, event, ahead == writer.state, sender)
        if habits.stubborn and world.current[writer.state] != writer.lease:  # it knows, and does not care
            event = world.event(Written(who, kind, number, world.heads[writer.state], writer.lease))
            yield self._send(state, who, event, True, sender)

    def _would_count(self, state: int, event: int) -> bool:
        return self.world.is_admitted[self.world.step(state, event)[1]]

    def _send(self, state: State, who: int, event: int, rooted: bool, sender: Writer) -> Step:
        counter, forgets, doubled, end, flight, *writers = state
        writers[who] = sender._replace(chain=(*sender.chain, pack(event, NOTHING, rooted)))
        flight = tuple(sorted((*flight, _flying(event, self.bound.copies, False))))
        return Step(Move("send", who, event), (counter, forgets, doubled, end, flight, *writers), None)

    # --- for people ---------------------------------------------------------------------------------------------------

    def describe(self, move: Move) -> str:
        """A step as a sentence."""
        world, detail = self.world, move.detail
        if move.verb == "deliver":
            return f"the log takes in {world.name(move.subject)}: {world.told(detail)}"
        who = HOLDERS[move.subject]
        match move.verb:
            case "read":
                told = ", ".join(f"{world.name(event)} is {world.told(answer)}" for event, answer in move.told)
                return f"{who} reads on ({detail}) and is told {told or 'nothing'}"
            case "send":
                parent = world.written[detail].parent
                return f"{who} sends {world.name(detail)}, its parent is {world.name(parent)}"
            case verb:
                forgot = "forgets everything, then " if verb.startswith("forget") else ""
                return f"the store {forgot}grants {who} fence {detail}"
