"""The migration that the model's executors work on, and its log: real units, real events, real verdicts.

Events, leases and logs are small integers here, as in `world`; what admission says of (log, event) is asked once and
kept. A log is a history of admitted events: what is void changes nothing, and no two histories have the same head.
"""

from __future__ import annotations

from enum import Enum
from types import ModuleType
from typing import Final, NamedTuple

from journal import admission
from journal.admission import ScopeState
from journal.events import Event
from journal.identities import LeaseId, MigrationId
from journal.migrations.manifest import (
    BackfillStep,
    SchemaStep,
    Step as ManifestStep,
    VerifiedManifest,
    verify_manifest,
)
from journal.migrations.source import BackfillSource, MigrationSource, SchemaSource, Statement, StepSource
from journal.ports import BackfillProgram, Program
from journal.records import LeaseAcquiredRecord, LeaseLike, MigrationLease, Record
from journal.vocabulary import BackfillCompletion, BackfillCounts, GroupEventKind
from projections.rehearsal import Prepared, PreparedBackfill, PreparedSchema, PreparedStep
from projections.units import BackfillUnit, SchemaUnit, Work, WorkUnit, forward, reverse
from tests.factories import (
    EPOCH_MICROS,
    LOWERING,
    PROFILE,
    SCOPE,
    Writer,
    lease_of,
    plan_record,
    rollback_plan_record,
    state_of,
)

BATCHES: Final = 2  # of each backfill
NOTHING: Final = 0  # no lease, no token, no event of the model's: ids start at 1
_UNITS: Final = 8  # more than any migration here has


class Step(Enum):
    """What one step of the model's migration is."""

    DISTINCT = "group"  # the schema before it and after it differ
    EQUAL = "group that the schema does not show"
    OUTSIDE = "group outside a transaction"
    OUTSIDE_EQUAL = "group outside a transaction that the schema does not show"
    FORMAL = "group that changes nothing"
    BACKFILL = "backfill"


class What(Enum):
    """What an event says."""

    LEASE = "LeaseAcquired"
    PLAN = "the plan"
    BEFORE = "before_commit"
    COMMITTED = "committed"
    UNKNOWN = "commit_outcome_unknown"
    ABORTED = "definitely_aborted"
    FORMAL = "formal_only_advanced"
    CHECKPOINT = "a checkpoint"
    CONCLUDED = "the conclusion"  # Applied or RolledBack

    __hash__ = object.__hash__


OF_KIND: Final = {kind: What(kind.value) for kind in GroupEventKind}


class Granted(NamedTuple):
    """A lease: which one of the store's grants it is, counted from 0."""

    number: int
    fence: int


class Written(NamedTuple):
    """An event before it is encoded; `lease` and `parent` are ids. Under one lease each is written once."""

    lease: int
    what: What
    unit: int
    parent: int


class Known(NamedTuple):
    """What a log says of a unit: its last event, the tokens of its attempts, and those that it says are aborted."""

    last: GroupEventKind | None
    tokens: tuple[int, ...]
    aborted: tuple[int, ...]


class Log(NamedTuple):
    """What a log says. `lease` is the one that counts, `counted` are the admitted events of the model.

    `is_open`: its plan is; `is_concluded`: its migration is in the ledger, or out of it when it is rolled back. `flaw`
    says what is wrong with its last event, whatever the target is like.
    """

    head: int
    lease: int
    counted: frozenset[int]
    is_open: bool
    is_concluded: bool
    units: tuple[Known, ...]
    flaw: str | None


def token_of(lease: int, unit: int) -> int:
    """The token of a lease's attempt at a unit; it makes one at most."""
    return lease * _UNITS + unit


class ExecutorWorld:
    """One migration in one direction, and everything that its log may say.

    `protocol` is `journal.admission` or a variant of it with a rule left out. Parallel lists, by id: `leases`, `events`
    and `written`, `logs`. `start` is the log before the executors: of a scope that was just founded, or, to roll back,
    with the migration applied; `source` is the schema that the target has then.
    """

    def __init__(self, steps: tuple[Step, ...], *, rolls_back: bool = False, protocol: ModuleType = admission) -> None:
        self.protocol = protocol
        prepared = _prepare(steps)
        self.manifest = prepared.manifest
        self.work = reverse(prepared) if rolls_back else forward(prepared)
        self.units = self.work.units
        self.source = (prepared.manifest.target if rolls_back else prepared.manifest.source).semantics
        self.leases: list[Granted] = [Granted(-1, 0)]
        self.written: list[Written] = [Written(NOTHING, What.LEASE, 0, NOTHING)]
        self.events: list[Event | None] = [None]
        self.logs: list[Log] = []
        self._rolls_back = rolls_back
        self._states: list[ScopeState] = []
        self._lease_ids: dict[Granted, int] = {}
        self._event_ids: dict[Written, int] = {}
        self._steps: dict[int, int | None] = {}
        self._writer = _founded(forward(prepared) if rolls_back else None)
        unknown = tuple(Known(None, (), ()) for _ in self.units)
        self.start = self._remember(self._writer.state, Log(NOTHING, NOTHING, frozenset(), False, False, unknown, None))

    # --- identities ---------------------------------------------------------------------------------------------------

    def lease(self, granted: Granted) -> int:
        """The id of a lease."""
        if granted not in self._lease_ids:
            self._lease_ids[granted] = len(self.leases)
            self.leases.append(granted)
        return self._lease_ids[granted]

    def fence(self, lease: int) -> int:
        """The fence of a lease."""
        return self.leases[lease].fence

    def events_of(self, log: int) -> tuple[int, ...]:
        """The events of a log in their order."""
        events: list[int] = []
        event = self.logs[log].head
        while event != NOTHING:
            events.append(event)
            event = self.written[event].parent
        return tuple(reversed(events))

    def newest_fence(self, log: int) -> int:
        """The fence of the newest lease that counts in a log."""
        return self._states[log].fence

    def event(self, written: Written) -> int:
        """The id of an event; its bytes come from the real codec."""
        event = self._event_ids.get(written)
        if event is None:
            event = self._event_ids[written] = len(self.events)
            self.written.append(written)
            self.events.append(self._encode(event, written))
        return event

    def _encode(self, id: int, written: Written) -> Event:
        lease = self._as_lease(written.lease)
        parent = self.events[written.parent]
        # A begun unit's event id is its token; no other event is asked for its own.
        token = written.what is What.BEFORE
        event_id = token_of(written.lease, written.unit).to_bytes(16) if token else bytes([1, *id.to_bytes(15)])
        data = self._writer.codec.write(
            self._record(lease, written),
            scope=SCOPE,
            incarnation=self._writer.incarnation,
            lease_id=lease.lease_id,
            fence=lease.fence,
            parent=self._writer.state.head if parent is None else parent.hash,
            recorded_at=EPOCH_MICROS,
            event_id=event_id,
        )
        event = self._writer.codec.read(id, data)
        assert isinstance(event, Event)
        return event

    def _as_lease(self, lease: int) -> MigrationLease:
        number, fence = self.leases[lease]
        return lease_of(f"run-{number}", fence, lease_id=LeaseId(bytes([1 + number, fence, *bytes(14)])))

    def _record(self, lease: MigrationLease, written: Written) -> Record:
        unit = self.units[written.unit]
        match written.what:
            case What.LEASE:
                return LeaseAcquiredRecord.new(lease.holder, 30_000_000)
            case What.PLAN if self._rolls_back:
                return rollback_plan_record(lease, [self.manifest], [self.manifest])
            case What.PLAN:
                return plan_record(lease, [self.manifest])
            case What.CONCLUDED:
                return self.work.conclude(lease)
            case What.CHECKPOINT:
                assert isinstance(unit, BackfillUnit)
                return unit.checkpoint(lease, counts_at(1))
            case what:
                return unit_record(lease, unit, GroupEventKind(what.value))

    # --- decisions ----------------------------------------------------------------------------------------------------

    def step(self, log: int, event: int) -> int | None:
        """The log behind the next event, None when admission says that it is void."""
        key = log << 32 | event
        if key not in self._steps:
            self._steps[key] = self._admit(log, event)
        return self._steps[key]

    def _admit(self, log: int, event: int) -> int | None:
        state, read = self._states[log].copy(), self.events[event]
        verdict = self.protocol.admit(state, read)
        if not isinstance(verdict, self.protocol.Admitted):
            return None
        self.protocol.evolve(state, read, verdict)
        before, written = self.logs[log], self.written[event]
        units, flaw = list(before.units), None
        if written.what in OF_KIND.values():
            units[written.unit], flaw = self._advanced(before.units[written.unit], written)
        return self._remember(
            state,
            Log(
                event,
                written.lease if written.what is What.LEASE else before.lease,
                before.counted | {event},
                state.plan is not None,
                (str(self.manifest.id) in state.active) is not self._rolls_back,
                tuple(units),
                flaw,
            ),
        )

    def _remember(self, state: ScopeState, log: Log) -> int:
        self._states.append(state)
        self.logs.append(log)
        return len(self.logs) - 1

    def _advanced(self, known: Known, written: Written) -> tuple[Known, str | None]:
        """What is known of a unit behind one more event of it, and what is wrong with that history."""
        last, tokens, aborted = known
        unit, flaw = self.units[written.unit], None
        if written.what is What.BEFORE:
            proven = not isinstance(unit, SchemaUnit) or unit.program.transactional
            if proven and last not in (None, GroupEventKind.DEFINITELY_ABORTED):
                flaw = f"unit {written.unit} is begun again, but what became of its attempt before is not recorded"
            tokens = (*tokens, token_of(written.lease, written.unit))
        elif written.what is What.ABORTED:
            aborted = (*aborted, tokens[-1])
        return Known(GroupEventKind(written.what.value), tokens, aborted), flaw

    # --- for people ---------------------------------------------------------------------------------------------------

    def who(self, lease: int) -> str:
        """Whose lease it is, readable: `run 2 (fence 3)`."""
        number, fence = self.leases[lease]
        return f"run {number + 1} (fence {fence})"

    def name_of_attempt(self, token: int) -> str:
        """Whose attempt a token is, readable."""
        return self.who(token // _UNITS)

    def name(self, event: int) -> str:
        """An event, readable: `run 2 (fence 3)'s committed of unit 0`."""
        lease, what, unit, _ = self.written[event]
        of = f" of unit {unit}" if what in (*OF_KIND.values(), What.CHECKPOINT) else ""
        return f"{self.who(lease)}'s {what.value}{of}"


def unit_record(lease: LeaseLike, unit: WorkUnit, kind: GroupEventKind) -> Record:
    """The record of a unit, with the evidence that a committed one must have."""
    committed = kind is GroupEventKind.COMMITTED
    match unit:
        case SchemaUnit():
            return unit.record(lease, kind, unit.target if committed else None)
        case BackfillUnit():
            return unit.record(lease, kind, completion_of(unit) if committed else None)


def completion_of(unit: BackfillUnit) -> BackfillCompletion:
    """The proof that all batches of a backfill are done."""
    return unit.completion(counts_at(BATCHES))


def counts_at(position: int) -> BackfillCounts:
    """The counts of a backfill behind so many batches, of ten rows each."""
    return BackfillCounts(10 * position, 10 * position, 0, position)


# --- the migration ----------------------------------------------------------------------------------------------------


def _founded(applied: Work | None) -> Writer:
    """A log of a scope that was just founded, or with one migration applied."""
    writer = Writer()
    lease = writer.acquire("founder")
    if applied is not None:
        writer.write(plan_record(lease, [applied.prepared.manifest]), lease)
        for unit in applied.units:
            if isinstance(unit, SchemaUnit) and unit.is_formal:
                writer.write(unit_record(lease, unit, GroupEventKind.FORMAL_ONLY_ADVANCED), lease)
                continue
            writer.write(unit_record(lease, unit, GroupEventKind.BEFORE_COMMIT), lease)
            writer.write(unit_record(lease, unit, GroupEventKind.COMMITTED), lease)
        writer.write(applied.conclude(lease), lease)
        assert writer.state.plan is None
    return writer


def _prepare(steps: tuple[Step, ...]) -> Prepared:
    sources = tuple(_source(number, step) for number, step in enumerate(steps))
    source = MigrationSource(MigrationId("model", "0001_explored"), (), sources, "0001_explored.sql")
    return Prepared(source, _manifest(source, steps), tuple(map(_prepared, sources)))


def _source(number: int, step: Step) -> StepSource:
    statement, undo = Statement(f"statement {number}", number + 1), Statement(f"undo {number}", number + 1)
    if step is Step.BACKFILL:
        return BackfillSource("t", ("id",), 10, statement, None, undo, number + 1)
    if step is Step.FORMAL:
        return SchemaSource((), (), True, number + 1)
    transactional = step not in (Step.OUTSIDE, Step.OUTSIDE_EQUAL)
    return SchemaSource((statement,), (undo,), transactional, number + 1)


def _manifest(source: MigrationSource, steps: tuple[Step, ...]) -> VerifiedManifest:
    state = first = state_of("0")
    evidence: list[ManifestStep] = []
    for number, (written, step) in enumerate(zip(source.steps, steps, strict=True)):
        match written:
            case BackfillSource():
                evidence.append(BackfillStep(written.fingerprint, reversible=True))
            case SchemaSource(statements=statements):
                after = state_of(str(number + 1)) if step in (Step.DISTINCT, Step.OUTSIDE) else state
                evidence.append(SchemaStep(written.digest, state, after, len(statements), len(statements)))
                state = after
    return verify_manifest(
        id=source.id,
        source=first,
        target=state,
        steps=evidence,
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
    )


def _prepared(source: StepSource) -> PreparedStep:
    match source:
        case BackfillSource(table=table, key=key, batch=batch, statement=statement, reverse=undo):
            assert undo is not None
            programs = (BackfillProgram(table, key, batch, text) for text in (statement.text, undo.text))
            return PreparedBackfill(source, *programs, key_problem=None)
        case SchemaSource(statements=statements, reverse=undo, transactional=transactional):
            assert undo is not None
            return PreparedSchema(source, _program(statements, transactional), _program(undo, transactional))
        case _:
            return source


def _program(statements: tuple[Statement, ...], transactional: bool) -> Program:
    return Program(
        tuple(statement.text for statement in statements), tuple(range(1, len(statements) + 1)), transactional
    )
