"""Verification of one scope's log: everything is read from genesis again, and whatever does not fit is said with its place.

What is checked: that bytes are what they claim (each event is decoded by the compiled reader and by fastavro), the MACs,
the chain, and the records' rules, which are admission's own. What a void event is: nothing bad by itself. A stale
writer's late event is in the log for good and has no effect; it is counted by its reason.

How a break shows. The chain makes a reader that meets an altered event void all that follows it, so an altered log looks
like a shorter history with many void events behind it. What gives it away is that no writer makes such events. A writer,
however stale, names as parent what it read as counting, or, in flight, what it wrote just before under the same lease. It
writes under a lease that was admitted, writes nothing after it gave it back, and while its lease is the current one
nobody can come before it: only copies of its events that count, and what follows its own faulty event, can be void then.
A void event of this scope that fits none of this was made void by a change of the log. This relies on the log keeping
one writer's appends in order, as the embedded one does.

What the log alone cannot show: that its last events were cut off, or that its last event was altered, as nothing names
it. For the first and, without a key, for the second, keep the head that a verification printed and give it to the next
one. Without a key, whoever can write the file can also write another history that fits; with one, not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, Final

from journal.admission import ScopeState, Verdict, Void, empty_state
from journal.codec import published_schemas, read_with_fastavro
from journal.errors import Code, JournalError
from journal.events import Event, EventType, Readable
from journal.identities import Digest, Incarnation, Scope
from journal.journal import Journal

MAX_FINDINGS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not fit, at a position. `breaks`: the history cannot be trusted from there on."""

    position: int | None
    code: Code
    breaks: bool
    what: str
    advice: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying one scope.

    `keyed`: MACs were checked. `complete`: the log could be read to its end. `head_found`: whether the head that was
    given is in the chain, None when none was. `findings` holds the first 1 000, in order of position.
    """

    scope: Scope
    incarnation: Incarnation | None
    keyed: bool
    events: int
    admitted: int
    voids: Mapping[Code, int]
    position: int | None
    head: Digest
    head_found: bool | None
    complete: bool
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the history can be trusted."""
        return not any(finding.breaks for finding in self.findings)


async def verify(journal: Journal, scope: Scope, *, head: Digest | None = None) -> Verification:
    """Verify a scope from genesis; `head` is one that must be in its chain. Takes memory by void events, not by events.

    Raises:
        InvalidContractError: `journal_unknown_scope`.
        ForgedError: `journal_key_required`, `journal_key_unexpected`, or the genesis was written with another key.
        UnknownEventError: `journal_format_too_new`.
        IntegrityError: `journal_damaged_file` and what else keeps the log from being opened.
        UnavailableError: the log did not answer.
    """
    walk = _Walk(scope, head)
    try:
        async with aclosing(journal.replay(scope, state=walk.state)) as events:
            async for event, verdict in events:
                walk.take(event, verdict)
    except JournalError as error:
        if error.code not in _READING_STOPS:
            raise
        walk.stop(error)
    if walk.suspects:
        await _examine_suspects(journal, walk)
    return walk.result()


# What the bytes in the log are or lack, in contrast to a log that does not answer or a scope that cannot be opened.
_READING_STOPS: Final = frozenset({Code.UNDECODABLE_BODY, Code.UNKNOWN_EVENT, Code.EVENT_TOO_LARGE, Code.HISTORY_LOST})


class _Standing(Enum):
    """What the lease of a void event was when the event came."""

    SUPERSEDED = "superseded"
    CURRENT = "current"
    RELEASED = "released"
    NEVER_ADMITTED = "never admitted"


@dataclass(slots=True)
class _VoidEvent:
    """What is kept of a void event of this scope until its parent's place is known."""

    position: int
    hash: bytes
    parent: bytes
    lease_id: bytes
    announces: bool
    reason: Code
    standing: _Standing
    last_admitted: int | None


@dataclass(slots=True)
class _Walk:
    scope: Scope
    expected_head: Digest | None
    events: int = 0
    voids: Counter[Code] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    suspects: list[_VoidEvent] = field(default_factory=list)
    _leases: dict[bytes, bool] = field(default_factory=dict)  # admitted lease -> whether it was given back
    keyed: bool = False
    head_found: bool = False
    complete: bool = True
    state: ScopeState = field(init=False)
    _last_admitted: int | None = None

    def __post_init__(self) -> None:
        self.state = empty_state(self.scope)

    def take(self, event: Readable, verdict: Verdict) -> None:
        self.events += 1
        if isinstance(verdict, Void):
            self.voids[verdict.reason] += 1
        if not isinstance(event, Event):
            self._find(event.position, Code.UNDECODABLE, "the bytes are no event", _FOREIGN_ADVICE, breaks=False)
            return
        self.keyed = event.authentic is not None
        self._compare_readers(event)
        if isinstance(verdict, Void):
            self._examine_void(event, verdict.reason)
        else:
            self._last_admitted = event.position
            self.head_found = self.head_found or event.hash == self.expected_head
            if event.type is EventType.LEASE_ACQUIRED:
                self._leases[event.lease_id] = False
            elif event.type is EventType.LEASE_RELEASED:
                self._leases[event.lease_id] = True

    def stop(self, error: JournalError) -> None:
        """The log cannot be read behind this point."""
        self.complete = False
        position = error.details.get("position")
        advice = "nothing behind it was verified"
        self._find(position if isinstance(position, int) else None, error.code, error.message, advice, breaks=True)

    def broken(self, position: int, what: str) -> None:
        """No writer makes this event void: the log was changed."""
        self._find(position, Code.CHAIN_BROKEN, what, _BREAK_ADVICE, breaks=True)

    def result(self) -> Verification:
        """All that was found."""
        self._check_genesis()
        if self.expected_head is not None and not self.head_found:
            what = f"the head {self.expected_head} is not in the chain: events behind it or it itself were cut off or altered"
            self._find(None, Code.HISTORY_LOST, what, _BREAK_ADVICE, breaks=True)
        incarnation = self.state.incarnation
        return Verification(
            scope=self.scope,
            incarnation=None if incarnation is None else Incarnation(incarnation),
            keyed=self.keyed,
            events=self.events,
            admitted=self.state.admitted,
            voids=dict(self.voids.most_common()),
            position=self.state.position,
            head=Digest(self.state.head),
            head_found=None if self.expected_head is None else self.head_found,
            complete=self.complete,
            findings=tuple(sorted(self.findings, key=lambda finding: (finding.position is None, finding.position))),
        )

    def _examine_void(self, event: Event, reason: Code) -> None:
        if reason is Code.FORGED:
            # In the place of a true event: the next to follow the head, under the current lease.
            fits = event.parent == self.state.head and event.lease_id == self.state.lease_id
            what = "it was altered, or written without the key" if fits else "it was not written with the key"
            self._find(event.position, Code.FORGED, what, _BREAK_ADVICE if fits else _FOREIGN_ADVICE, breaks=fits)
            return
        if reason is Code.FOREIGN_SCOPE:
            if event.type is not EventType.SCOPE_CREATED and self.state.incarnation is not None:
                what = "it is of another scope, or of another incarnation of this one"
                self._find(event.position, Code.FOREIGN_SCOPE, what, _FOREIGN_ADVICE, breaks=False)
            return
        if event.type is EventType.SCOPE_AWAITED:
            return  # it follows nothing, and says something of the log alone
        announces = event.type is EventType.LEASE_ACQUIRED
        standing = self._standing(event.lease_id)
        self.suspects.append(
            _VoidEvent(
                event.position,
                event.hash,
                event.parent,
                event.lease_id,
                announces,
                reason,
                standing,
                self._last_admitted,
            )
        )

    def _standing(self, lease_id: bytes) -> _Standing:
        if lease_id not in self._leases:
            return _Standing.NEVER_ADMITTED
        if self._leases[lease_id]:
            return _Standing.RELEASED
        return _Standing.CURRENT if lease_id == self.state.lease_id else _Standing.SUPERSEDED

    def _check_genesis(self) -> None:
        if self.state.incarnation is None and self.state.places:
            return  # the log awaits its scope
        if self.state.incarnation is None and self.complete:
            what = "the log does not start with the creation of this scope"
            self._find(0, Code.NO_GENESIS, what, _BREAK_ADVICE, breaks=True)
        elif self.events > 1 and self.voids[Code.FOREIGN_SCOPE] == self.events - 1:
            what = "nothing follows this creation of the scope, and all others are of another one: it was altered"
            self._find(0, Code.CHAIN_BROKEN, what, _BREAK_ADVICE, breaks=True)

    def _compare_readers(self, event: Event) -> None:
        if event.type is None:
            return  # it is void, or reading would have stopped here
        try:
            body = event.body
        except JournalError as error:
            # Likewise. fastavro's opinion is not asked: it forgives what the strict reader refuses, such as more bytes.
            self._find(event.position, error.code, "its body cannot be decoded", _FOREIGN_ADVICE, breaks=False)
            return
        problem = _disagreement(event, event.type, body)
        if problem is not None:
            advice = "report it: one of the two readers has a fault"
            self._find(event.position, Code.READERS_DISAGREE, problem, advice, breaks=True)

    def _find(self, position: int | None, code: Code, what: str, advice: str, *, breaks: bool) -> None:
        if len(self.findings) < MAX_FINDINGS or (breaks and all(not finding.breaks for finding in self.findings)):
            self.findings.append(Finding(position, code, breaks, what, advice))


_BREAK_ADVICE: Final = "stop writing to this scope, and compare the log with a backup or with another reader's copy"
_FOREIGN_ADVICE: Final = "it has no effect; if nothing else writes to this log, find out what wrote it or altered it"


async def _examine_suspects(journal: Journal, walk: _Walk) -> None:
    """Look once more for the parents of void events, and for what void events are copies of."""
    wanted = {suspect.parent for suspect in walk.suspects} | {suspect.hash for suspect in walk.suspects}
    counted: dict[bytes, int] = {}
    places: dict[bytes, int] = {}
    seen = 0
    async with aclosing(journal.replay(walk.scope)) as events:
        async for event, verdict in events:
            if isinstance(event, Event) and event.hash in wanted:
                places.setdefault(event.hash, event.position)
                if not isinstance(verdict, Void):
                    counted[event.hash] = event.position
            seen += 1
            if seen == walk.events:
                break
    explained: dict[bytes, _VoidEvent] = {}
    broken: set[bytes] = set()
    for suspect in walk.suspects:
        problem = _problem_of(suspect, counted, places, explained)
        if problem is None:
            explained[suspect.hash] = suspect
            continue
        broken.add(suspect.hash)
        if suspect.parent not in broken:  # what follows a break is void because of it, and says nothing new
            walk.broken(suspect.position, problem)


def _problem_of(
    event: _VoidEvent, counted: Mapping[bytes, int], places: Mapping[bytes, int], explained: Mapping[bytes, _VoidEvent]
) -> str | None:
    """Why no writer can have made this event void; None when one can."""
    if event.hash in counted:
        return None  # a copy of one that counts: a late one, or one that came before what it follows and was sent again
    place = places.get(event.parent)
    if place is None:
        start = "the start" if event.last_admitted is None else f"position {event.last_admitted}"
        return (
            f"the event that it follows is not in the log: between {start} (the last that counts before it) and position "
            f"{event.position} an event was altered or removed"
        )
    if place > event.position:
        return f"the event that it follows is behind it, at position {place}: the order was changed"
    if event.reason is not Code.STALE_PARENT:
        return None  # it came in its place and broke a rule of its own
    parent = explained.get(event.parent)
    if counted.get(event.parent, event.position) >= event.position:
        if event.announces or parent is None or parent.lease_id != event.lease_id:
            return f"it follows an event that never counted, at position {place}: something before it was changed"
        if parent.reason is not Code.STALE_PARENT:
            return None  # it was sent together with a faulty one
    if event.announces or event.standing is _Standing.SUPERSEDED:
        return None
    if parent is not None and event.standing is _Standing.CURRENT and _follows_a_fault(parent, explained):
        return None
    return (
        f"its lease was {event.standing.value} when it came, so nobody can have come before it: something was inserted"
    )


def _follows_a_fault(event: _VoidEvent, explained: Mapping[bytes, _VoidEvent]) -> bool:
    """Whether a chain of void events began with one that broke a rule of its own."""
    current: _VoidEvent | None = event
    while current is not None and current.reason is Code.STALE_PARENT:
        current = explained.get(current.parent)
    return current is not None


# --- two readers ------------------------------------------------------------------------------------------------------

_HEADER: Final = ("incarnation", "event_id", "lease_id", "parent", "fence", "recorded_at", "scope")


def _disagreement(event: Event, event_type: EventType, body: tuple[Any, ...]) -> str | None:
    """What fastavro sees differently in an event of a known schema, None when nothing."""
    try:
        other = read_with_fastavro(event.data)
    except (ValueError, IndexError, EOFError, TypeError, LookupError, OverflowError) as error:
        return f"fastavro cannot read what the compiled reader reads ({type(error).__name__})"
    header = other.pop("header")
    if any(getattr(event, name) != header[name] for name in _HEADER):
        return "fastavro reads another header than the compiled reader"
    # What an older schema lacks was filled in with defaults: the library was not asked for it.
    pairs = [(value, other[name]) for name, value in zip(_fields(event_type), body, strict=True) if name in other]
    if len(pairs) != len(other) or any(_plain(value) != _plain(theirs) for value, theirs in pairs):
        return "fastavro reads another body than the compiled reader"
    return None


@cache
def _fields(event_type: EventType) -> list[str]:
    newest = max(
        (schema for schema in published_schemas() if schema.type is event_type), key=lambda schema: schema.version
    )
    return [field["name"] for field in newest.json["fields"] if field["name"] != "header"]


def _plain(value: Any) -> Any:
    """One form for what both readers give: members by name, records and arrays as tuples."""
    match value:
        case Enum():
            return value.name
        case dict():
            return tuple(map(_plain, value.values()))
        case list() | tuple():
            return tuple(map(_plain, value))
        case _:
            return value
