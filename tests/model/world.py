"""Events, folded states and verdicts as small integers; every decision of the real functions made once and kept.

Admission is pure, so what it says of (state, event) is a table; the table is filled by asking it. The rules that
nothing may break are checked here on the sequence of admitted events alone, from what the model knows of each event.
"""

from __future__ import annotations

from enum import Enum
from types import ModuleType
from typing import Final, NamedTuple

from journal import admission
from journal.admission import ScopeState
from journal.codec import Codec
from journal.events import NO_LEASE, NO_PARENT, Event
from journal.identities import HolderId, LeaseId
from journal.records import LeaseAcquiredRecord, LeaseReleasedRecord, MigrationLease, Record, ScopeCreatedRecord
from journal.vocabulary import GroupEventKind
from tests.factories import EPOCH_MICROS, SCOPE, chain_of, group_record, lease_of, plan_record

INCARNATION: Final = bytes(range(16))
HOLDERS: Final = (HolderId("ann"), HolderId("bob"))
FOUNDER: Final = 2  # the writer of the log's first events, who does nothing more
RECORDS_PER_WRITER: Final = 4
MANIFESTS: Final = chain_of(2 * RECORDS_PER_WRITER)
NOTHING: Final = 0  # no lease, no verdict yet; ids start at 1


class Kind(Enum):
    """What an event of the model is."""

    LEASE = "LeaseAcquired"
    RELEASE = "LeaseReleased"
    RECORD = "record"
    GENESIS = "ScopeCreated"

    __hash__ = object.__hash__


class Granted(NamedTuple):
    """A lease: the `number`-th of its writer."""

    writer: int
    number: int
    fence: int


class Written(NamedTuple):
    """An event before it is encoded: the `number`-th of its kind of its writer. `parent` and `lease` are ids."""

    writer: int
    kind: Kind
    number: int
    parent: int
    lease: int


class Reading(NamedTuple):
    """What a batch did to its reader: the state it folded, the chain that waits, and events with their verdicts."""

    state: int
    waiting: tuple[int, ...]
    told: tuple[tuple[int, int], ...]


class World:
    """One protocol's verdicts. `protocol` is `journal.admission` or a variant of it with a rule left out.

    Parallel lists, by id: `events` and `written`; `leases`; `states`, with `heads`, `fences`, `current` (the lease that
    counts) and `counted` (admitted events and the sequence of each); `verdicts`. `flaws` says of a state which rule its
    history breaks.
    """

    def __init__(self, protocol: ModuleType = admission) -> None:
        self.protocol = protocol
        self.events: list[Event] = []
        self.written: list[Written] = []
        self.leases: list[Granted | None] = [None]
        self.states: list[ScopeState] = []
        self.heads: list[int] = []
        self.fences: list[int] = []
        self.current: list[int] = []
        self.counted: list[dict[int, int | None]] = []
        self.flaws: list[str | None] = []
        self.verdicts: list[admission.Verdict | None] = [None]
        self.is_admitted: list[bool] = [False]
        self._codec = Codec()
        self._event_ids: dict[Written, int] = {}
        self._lease_ids: dict[Granted, int] = {}
        self._verdict_ids: dict[object, int] = {None: NOTHING}
        self._steps: dict[int, tuple[int, int]] = {}
        self.start = self._found()

    def _found(self) -> int:
        """Genesis, a first lease of a founder, and a plan that all records of the model belong to."""
        lease = self.lease(Granted(FOUNDER, 0, 1))
        state = self._remember(self.protocol.empty_state(SCOPE), NOTHING, NOTHING, {}, None)
        for written in (
            Written(FOUNDER, Kind.GENESIS, 0, NOTHING, NOTHING),
            Written(FOUNDER, Kind.LEASE, 0, 0, lease),
            Written(FOUNDER, Kind.RECORD, 0, 1, lease),
        ):
            state, verdict = self.step(state, self.event(written))
            assert self.is_admitted[verdict]
        return state

    # --- identities ---------------------------------------------------------------------------------------------------

    def lease(self, granted: Granted) -> int:
        """The id of a lease."""
        if granted not in self._lease_ids:
            self._lease_ids[granted] = len(self.leases)
            self.leases.append(granted)
        return self._lease_ids[granted]

    def fence(self, lease: int) -> int:
        """The fence of a lease, 0 without one."""
        granted = self.leases[lease]
        return 0 if granted is None else granted.fence

    def event(self, written: Written) -> int:
        """The id of an event; its bytes come from the real codec and are the same whenever it is written again."""
        event = self._event_ids.get(written)
        if event is None:
            event = self._event_ids[written] = len(self.events)
            self.written.append(written)
            self.events.append(self._encode(event, written))
        return event

    def _encode(self, id: int, written: Written) -> Event:
        granted = self.leases[written.lease]
        lease = None if granted is None else _as_lease(granted)
        data = self._codec.write(
            _record(written, lease),
            scope=SCOPE,
            incarnation=INCARNATION,
            lease_id=NO_LEASE if lease is None else lease.lease_id,
            parent=NO_PARENT if lease is None else self.events[written.parent].hash,
            fence=0 if lease is None else lease.fence,
            recorded_at=EPOCH_MICROS,
            event_id=id.to_bytes(16, "big"),
        )
        event = self._codec.read(id, data)
        assert isinstance(event, Event)
        return event

    def verdict(self, verdict: admission.Verdict | None) -> int:
        """The id of a verdict; `NOTHING` is no verdict yet."""
        admitted = isinstance(verdict, self.protocol.Admitted)
        key = (admitted, verdict) if verdict is not None else None  # admitted and void ones are both tuples
        id = self._verdict_ids.get(key)
        if id is None:
            id = self._verdict_ids[key] = len(self.verdicts)
            self.verdicts.append(verdict)
            self.is_admitted.append(admitted)
        return id

    # --- decisions ----------------------------------------------------------------------------------------------------

    def step(self, state: int, event: int) -> tuple[int, int]:
        """The next event of a log in a state: the state behind it, the same one when it is void, and its verdict."""
        key = state << 32 | event
        answer = self._steps.get(key)
        if answer is None:
            answer = self._steps[key] = self._admit(state, event)
        return answer

    def _admit(self, state: int, event: int) -> tuple[int, int]:
        before = self.states[state]
        after = before.copy()
        verdict = self.protocol.admit(after, self.events[event])
        assert after == before, "admit only looks"
        id = self.verdict(verdict)
        if not self.is_admitted[id]:
            return state, id
        self.protocol.evolve(after, self.events[event], verdict)
        written = self.written[event]
        current = {Kind.LEASE: written.lease, Kind.RELEASE: NOTHING}.get(written.kind, self.current[state])
        counted = {**self.counted[state], event: verdict.sequence}
        flaw = self.flaws[state] or self._flaw(state, event, verdict.sequence)
        return self._remember(after, event, current, counted, flaw), id

    def _remember(
        self, state: ScopeState, head: int, current: int, counted: dict[int, int | None], flaw: str | None
    ) -> int:
        self.states.append(state)
        self.heads.append(head)
        self.fences.append(max((self.fence(self.written[event].lease) for event in counted), default=0))
        self.current.append(current)
        self.counted.append(counted)
        self.flaws.append(flaw)
        return len(self.states) - 1

    def _flaw(self, state: int, event: int, sequence: int | None) -> str | None:
        """What is wrong with counting this event after those that counted: said without admission."""
        written, counted = self.written[event], self.counted[state]
        fence = self.fence(written.lease)
        if event in counted:
            return f"{self.name(event)} counts twice"
        if written.kind is Kind.LEASE and fence <= self.fences[state]:
            return f"{self.name(event)} counts, whose fence {fence} is not above {self.fences[state]}"
        if written.kind in (Kind.RECORD, Kind.RELEASE):
            if fence < self.fences[state]:
                return f"{self.name(event)} with fence {fence} counts after fence {self.fences[state]}"
            if written.lease != self.current[state]:
                return f"{self.name(event)} counts under a lease that is over"
        records = sum(number is not None for number in counted.values())
        if sequence != (records + 1 if written.kind is Kind.RECORD else None):
            return f"{self.name(event)} got sequence {sequence} after {records} records"
        return None

    def read(self, state: int, batch: tuple[int, ...], chain: tuple[int, ...]) -> Reading:
        """A writer with this chain reads a batch: `Spine._take`, which folds all of it first, and `Spine._settle`."""
        for event in batch:
            state, verdict = self.step(state, event)
            chain = tuple(self._note(entry, verdict) if entry >> 9 == event else entry for entry in chain)
        answers = self.protocol.settle(self.states[state], [self._pending(entry) for entry in chain])
        told = [(entry >> 9, self.verdict(answer)) for entry, answer in zip(chain, answers, strict=True)]
        counted = {event for event, answer in told if self.is_admitted[answer]}
        # When what it follows counts, its parent is from now on a head that was read.
        waiting = tuple(
            entry | (self.written[event].parent in counted)
            for entry, (event, answer) in zip(chain, told, strict=True)
            if not answer
        )
        return Reading(state, waiting, tuple(pair for pair in told if pair[1]))

    def _pending(self, entry: int) -> admission.Pending:
        event, verdict, rooted = unpack(entry)
        sent = self.events[event]
        return self.protocol.Pending(sent.hash, sent.parent, sent.fence, rooted, self.verdicts[verdict])

    def _note(self, entry: int, verdict: int) -> int:
        pending = self._pending(entry)
        pending.note(self.verdicts[verdict])
        event, _, rooted = unpack(entry)
        return pack(event, self.verdict(pending.verdict), rooted)

    # --- for people ---------------------------------------------------------------------------------------------------

    def name(self, event: int) -> str:
        """An event, readable: `bob's LeaseAcquired 1 (fence 3)`."""
        written = self.written[event]
        who = "the founder" if written.writer == FOUNDER else HOLDERS[written.writer]
        return f"{who}'s {written.kind.value} {written.number + 1} (fence {self.fence(written.lease)})"

    def told(self, verdict: int) -> str:
        """A verdict, readable."""
        value = self.verdicts[verdict]
        match value:
            case None:
                return "nothing yet"
            case _ if self.is_admitted[verdict]:
                return "admitted" if value.sequence is None else f"admitted as {value.sequence}"
            case _:
                return f"void ({value.reason.value})"


def pack(event: int, verdict: int, rooted: bool) -> int:
    """One entry of a writer's chain as an integer; they sort by event."""
    return event << 9 | verdict << 1 | rooted


def unpack(entry: int) -> tuple[int, int, bool]:
    """Event, verdict of the last copy that was read, and whether it is rooted."""
    return entry >> 9, entry >> 1 & 0xFF, bool(entry & 1)


def _as_lease(granted: Granted) -> MigrationLease:
    holder = "founder" if granted.writer == FOUNDER else HOLDERS[granted.writer]
    return lease_of(holder, granted.fence, lease_id=LeaseId(bytes([1 + granted.writer, granted.number, *bytes(14)])))


def _record(written: Written, lease: MigrationLease | None) -> Record:
    if lease is None:
        return ScopeCreatedRecord.new(authenticated=False)
    if written.kind is Kind.LEASE:
        return LeaseAcquiredRecord.new(lease.holder, 30_000_000)
    if written.kind is Kind.RELEASE:
        return LeaseReleasedRecord.new(lease.holder)
    if written.writer == FOUNDER:
        return plan_record(lease, MANIFESTS)
    # Each record begins a group of its own, so that any number of them, in any order, is legal behind the header.
    manifest = MANIFESTS[written.writer * RECORDS_PER_WRITER + written.number]
    return group_record(lease, manifest, GroupEventKind.BEFORE_COMMIT)
