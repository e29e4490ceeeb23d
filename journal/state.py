"""The state of one scope: what is active, as the fold keeps it.

Raw values, as events carry them; the methods give them their types. A state is changed in place by the one that owns
it; `ScopeState.copy` is for those who need to keep one.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, cast

from journal.entries import OpenPlanRecord, OpenRollbackPlanRecord
from journal.events import NO_PARENT, Event, EventType
from journal.identities import Scope, Sequence as SequenceNumber
from journal.records import (
    AppliedRecord,
    BackfillEventRecord,
    GroupEventRecord,
    JournalEntry,
    LedgerImportedRecord,
    PlanRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    restore,
)
from journal.vocabulary import Direction, GroupEventKind, UnitKind


class Entry(NamedTuple):
    """An admitted event with its record's sequence."""

    sequence: int
    event: Event


class ActiveEntry(NamedTuple):
    """One migration of the active ledger. `place` is its place in the import that brought it, None when executed."""

    sequence: int
    digest: bytes
    event: Event
    place: int | None


class Unit(NamedTuple):
    """What is known of one group, backfill or rollback step: its last kind, the fence under which it was last begun, and
    counts so far.
    """

    kind: GroupEventKind
    fence: int
    counts: tuple[int, int, int, int] | None


UnitKey: TypeAlias = tuple[bytes, UnitKind, int, Direction]


@dataclass(slots=True)
class OpenPlan:
    """The one open plan. `members` maps manifest digest to migration, `remaining` is what keeps it open."""

    direction: Direction
    entry: Entry
    members: dict[bytes, str]
    remaining: set[str]
    units: dict[UnitKey, Unit] = field(default_factory=dict)
    events: list[Entry] = field(default_factory=list)

    def copy(self) -> OpenPlan:
        """A copy that shares nothing that changes."""
        return OpenPlan(
            self.direction, self.entry, self.members, set(self.remaining), dict(self.units), list(self.events)
        )


@dataclass(slots=True)
class LeaseState:
    """The current lease as the log tells it: its event gives holder, duration and the writer's time."""

    lease_id: bytes
    fence: int
    holder: str
    ttl_micros: int
    recorded_at: int


class Move(NamedTuple):
    """Where a scope was moved to, who says so and why, and the lease under which its arrival is written."""

    place: bytes
    destination: str
    operator: str
    reason: str
    recorded_at: int
    lease_id: bytes
    fence: int


@dataclass(slots=True)
class ScopeState:
    """Everything that admission needs to know of a scope: what is active, not what was.

    Raw values, as events carry them; the methods at the end give them their types.

    `moved` is a move whose arrival has not come yet. `places` and `away` are about this log, not about the chain, and
    differ from log to log: `places` are its names as a place for the scope, and `away` says that the scope does not live
    here, so that nobody may write, whatever else the state says.
    """

    scope: str
    incarnation: bytes | None = None
    authenticated: bool = False
    head: bytes = NO_PARENT
    position: int | None = None
    sequence: int = 0
    fence: int = 0
    lease_id: bytes | None = None
    lease: LeaseState | None = None
    active: dict[str, ActiveEntry] = field(default_factory=dict)
    plan: OpenPlan | None = None
    retired: dict[str, Entry] = field(default_factory=dict)
    admitted: int = 0
    voids: int = 0
    moved: Move | None = None
    places: tuple[bytes, ...] = ()
    away: bool = False

    def copy(self) -> ScopeState:
        """A copy that shares nothing that changes; costs as much as there is active."""
        return ScopeState(
            self.scope,
            self.incarnation,
            self.authenticated,
            self.head,
            self.position,
            self.sequence,
            self.fence,
            self.lease_id,
            self.lease,
            dict(self.active),
            None if self.plan is None else self.plan.copy(),
            dict(self.retired),
            self.admitted,
            self.voids,
            self.moved,
            self.places,
            self.away,
        )

    def active_ledger(self) -> list[JournalEntry[AppliedRecord]]:
        """Active applied records in the order in which they entered; imported ones share the import's sequence."""
        return [_applied_entry(entry) for entry in self.active.values()]

    def open_plan(self) -> OpenPlanRecord | None:
        """The open apply plan with its group events and forward backfill events."""
        if self.plan is None or self.plan.direction is not Direction.FORWARD:
            return None
        return OpenPlanRecord(
            cast("JournalEntry[PlanRecord]", journal_entry(self.plan.entry)),
            tuple(
                cast("JournalEntry[GroupEventRecord]", journal_entry(entry))
                for entry in self.plan.events
                if entry.event.type is EventType.GROUP_EVENT
            ),
            _backfill_entries(self.plan, Direction.FORWARD),
        )

    def open_rollback_plan(self) -> OpenRollbackPlanRecord | None:
        """The open rollback plan with its step events and reverse backfill events."""
        if self.plan is None or self.plan.direction is not Direction.REVERSE:
            return None
        return OpenRollbackPlanRecord(
            cast("JournalEntry[RollbackPlanRecord]", journal_entry(self.plan.entry)),
            tuple(
                cast("JournalEntry[RollbackStepEventRecord]", journal_entry(entry))
                for entry in self.plan.events
                if entry.event.type is EventType.ROLLBACK_STEP_EVENT
            ),
            _backfill_entries(self.plan, Direction.REVERSE),
        )

    def carried(self) -> bytes:
        """What every log that holds the same chain agrees on, as canonical JSON: all but where it lies and what is void."""
        return replace(self, position=None, voids=0, places=(), away=False).canonical()

    def canonical(self) -> bytes:
        """The whole state as canonical JSON: equal states give equal bytes, in every process."""
        return json.dumps(_describe(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _backfill_entries(plan: OpenPlan, direction: Direction) -> tuple[JournalEntry[BackfillEventRecord], ...]:
    entries = (journal_entry(entry) for entry in plan.events if entry.event.type is EventType.BACKFILL_EVENT)
    backfills = (cast("JournalEntry[BackfillEventRecord]", entry) for entry in entries)
    return tuple(entry for entry in backfills if entry.record.direction is direction)


def journal_entry(entry: Entry) -> JournalEntry[Any]:
    """The typed form of an entry."""
    return JournalEntry(SequenceNumber(entry.sequence), entry.event.record)


def _applied_entry(entry: ActiveEntry) -> JournalEntry[AppliedRecord]:
    record = entry.event.record
    if isinstance(record, LedgerImportedRecord) and entry.place is not None:
        imported = record.migrations[entry.place]
        values = {name: getattr(imported, name) for name in type(imported).__slots__}
        record = restore(AppliedRecord, {"scope": record.scope, "fence": record.fence, **values})
    return JournalEntry(SequenceNumber(entry.sequence), cast("AppliedRecord", record))


def _describe(value: Any) -> Any:
    match value:
        case Event():
            return base64.b64encode(value.data).decode()
        case bytes():
            return value.hex()
        case ScopeState() | OpenPlan() | LeaseState():
            return {name: _describe(getattr(value, name)) for name in value.__slots__}
        case dict():
            return [[_describe(key), _describe(item)] for key, item in value.items()]
        case tuple() | list():
            return [_describe(item) for item in value]
        case set():
            return sorted(value)
        case UnitKind() | Direction() | GroupEventKind():
            return value.value
        case _:
            return value


def empty_state(scope: Scope) -> ScopeState:
    """The state of a scope of which nothing has been read."""
    return ScopeState(str(scope))
