"""What counts: the pure fold that gives every event of a log its verdict.

Failure model. The log keeps one total order and loses nothing that it confirmed; that order is all that is relied on.
Not relied on: that appends are conditional (Kafka's are not), that a lease store remembers or hands out each fence once,
that clocks agree, that a process which was told to stop has stopped, that an event arrives once, or soon, or in order.

So nothing is decided when an event is written. Each reader folds the log from genesis and decides for itself:

* `parent` makes every append a compare-and-append. A head, once left, never returns, so of all copies of all events
  that name one parent exactly one counts. This alone keeps histories linear.
* `fence` and lease id make an older holder's event void even when it names the newest head: a writer that slept through
  its successor, read the log, and wrote on must not count.
* A lease's own fence must exceed every fence admitted before: a lease store that forgot and starts again from one can
  make people wait, not make an old holder's fence valid again.
* What is behind these is about meaning: seed 000's store contract, kept in `rules`.
* A scope lives in one log. `ScopeMoved`, written under the lease of the one who moves, ends the lease and everything
  else there: the last writer's late events are void by parent or fence before it and by it behind it. It names the
  place it goes to, a random name that exactly one log gave itself with `ScopeAwaited`. A copy of the chain counts as
  history in any log; the scope lives in the log whose place the copied move names, from its `ScopeArrived` on, and in no
  other (`ScopeState.away`). So all copies are prefixes of one history, however often an archive is imported and wherever,
  and a copy that is not complete, or is at the wrong place, is not written on.

`admit` only looks, `evolve` only applies what `admit` admitted, `fold` is both over many events. `settle` decides what
a writer may be told about events of its own; its rules are below, beside the ones that they follow from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from journal.errors import Code, JournalError, failure
from journal.events import NO_LEASE, NO_PARENT, Event, EventType, Readable, Undecodable
from journal.records import FORMAT_VERSION
from journal.rules import EFFECTS, NO_SEQUENCE, RULES, Ruling
from journal.state import Move, ScopeState, empty_state


class Admitted(NamedTuple):
    """The event counts. `sequence` is that of its record; None for genesis and lease events, which take none.

    An exact retry is admitted with the sequence of the record that it repeats.
    """

    sequence: int | None


class Void(NamedTuple):
    """The event is in the log and has no effect; `reason` is the first rule that it broke."""

    reason: Code


Verdict: TypeAlias = Admitted | Void

_LEASE_ACQUIRED: Final = EventType.LEASE_ACQUIRED
_SCOPE_AWAITED: Final = EventType.SCOPE_AWAITED
_SCOPE_ARRIVED: Final = EventType.SCOPE_ARRIVED
_UNLEASED: Final = frozenset({EventType.SCOPE_AWAITED, EventType.SCOPE_RESTORED})

_VOID: Final[Mapping[Code, Void]] = {code: Void(code) for code in Code}


# --- the fold ---------------------------------------------------------------------------------------------------------


def admit(state: ScopeState, event: Readable) -> Verdict:
    """Give the next event of the log its verdict, by the rules of the module's head, in their fixed order.

    Raises:
        UnknownEventError: its header would be admitted but its type is not known here: it may change state that this
            version cannot see, so reading stops.
        IntegrityError: likewise, its body cannot be decoded.
        ForgedError: the genesis is authenticated and this reader has no key or another one, or the reverse.
    """
    return _verdict(Code.UNDECODABLE if isinstance(event, Undecodable) else _rule_on(state, event))


def _verdict(ruling: Ruling) -> Verdict:
    if isinstance(ruling, Code):
        return _VOID[ruling]
    return Admitted(ruling or None)


def _rule_on(state: ScopeState, event: Event) -> Ruling:
    if state.incarnation is None:
        return _admit_first(state, event)
    if event.incarnation != state.incarnation or event.scope != state.scope:
        return Code.FOREIGN_SCOPE
    if event.authentic is False:
        return Code.FORGED
    if event.parent != state.head:
        return Code.STALE_PARENT
    if event.type is None:
        return _rule_on_unknown(state, event)
    if event.type is _LEASE_ACQUIRED:
        if event.fence <= state.fence:
            return Code.FENCE_NOT_MONOTONIC
    elif event.lease_id != state.lease_id or event.fence != state.fence:
        if state.moved is None and event.type not in _UNLEASED:
            return Code.STALE_FENCE
        if state.moved is not None and not _may_follow(state.moved, event):
            return Code.SCOPE_MOVED
    return RULES[event.type](state, event)


def _may_follow(moved: Move, event: Event) -> bool:
    """Behind a move: its arrival, under the very lease that wrote it, and what needs no lease."""
    is_of_the_mover = event.lease_id == moved.lease_id and event.fence == moved.fence
    return event.type in _UNLEASED or (event.type is _SCOPE_ARRIVED and is_of_the_mover)


def _rule_on_unknown(state: ScopeState, event: Event) -> Ruling:
    """Stop when the header would be admitted, be it that of a record or of a lease in a later version's form."""
    is_current = event.lease_id == state.lease_id and event.fence == state.fence
    if is_current or event.fence > state.fence:
        _ = event.body  # raises UnknownEventError
    return Code.STALE_FENCE


def evolve(state: ScopeState, event: Event, verdict: Admitted) -> None:
    """Apply an event that `admit` admitted to this very state."""
    _apply(state, event, verdict.sequence or NO_SEQUENCE)


def _apply(state: ScopeState, event: Event, sequence: int) -> None:
    effect = EFFECTS[event.type]
    if sequence == NO_SEQUENCE:
        effect(state, event, sequence)
        if event.type is _SCOPE_AWAITED:
            return  # it stands beside the chain
    elif sequence > state.sequence:  # anything else repeats a record that is there already
        effect(state, event, sequence)
        state.sequence = sequence
    state.head = event.hash
    state.admitted += 1


def step(state: ScopeState, event: Readable) -> Verdict:
    """Admit and evolve one event. When it raises, the state is as before."""
    return _verdict(_step(state, event))


def _step(state: ScopeState, event: Readable) -> Ruling:
    if isinstance(event, Undecodable):
        ruling: Ruling = Code.UNDECODABLE
        state.voids += 1
    else:
        ruling = _rule_on(state, event)
        if type(ruling) is int:  # isinstance asks an enum's metaclass, which takes longer than the rule
            _apply(state, event, ruling)
        else:
            state.voids += 1
    state.position = event.position
    return ruling


def fold(state: ScopeState, events: Iterable[Readable]) -> ScopeState:
    """Admit and evolve events in log order; returns the same state. O(1) an event, O(plan) a plan that opens.

    Raises as `admit` does; the state is then that of the events before the one that stopped it.
    """
    for event in events:
        _step(state, event)
    return state


def _admit_first(state: ScopeState, event: Event) -> Ruling:
    """Genesis comes at the first position, or in a log that awaits its scope behind what says so."""
    if event.scope != state.scope or (state.position is not None and not state.places):
        return Code.FOREIGN_SCOPE
    if event.type is _SCOPE_AWAITED:
        ruling = RULES[_SCOPE_AWAITED](state, event) if event.parent == NO_PARENT else Code.FOREIGN_SCOPE
        if ruling == NO_SEQUENCE and event.authentic is False:
            raise _forged(f"what says that the log awaits scope {state.scope}")
        return ruling
    return _admit_genesis(state, event)


def _admit_genesis(state: ScopeState, event: Event) -> Ruling:
    if event.type not in (EventType.SCOPE_CREATED, None):
        return Code.FOREIGN_SCOPE
    if event.parent != NO_PARENT or event.lease_id != NO_LEASE or event.fence != 0:
        return Code.FOREIGN_SCOPE
    format_version, authenticated = event.body
    # Without a genesis that is believed nothing of the scope can be read, so these stop instead of giving a verdict.
    if format_version > FORMAT_VERSION:
        raise failure(
            Code.FORMAT_TOO_NEW,
            f"scope {state.scope} has format {format_version}, this version reads up to {FORMAT_VERSION}: upgrade "
            "fenced-journal",
        )
    if authenticated and event.authentic is None:
        raise failure(Code.KEY_REQUIRED, f"scope {state.scope} is authenticated: give the key (JOURNAL_KEY)")
    if not authenticated and event.authentic is not None:
        raise failure(Code.KEY_UNEXPECTED, f"scope {state.scope} is not authenticated: read it without a key")
    if event.authentic is False:
        raise _forged(f"the genesis of scope {state.scope}")
    return NO_SEQUENCE


def _forged(what: str) -> JournalError:
    return failure(Code.FORGED, f"{what} was not written with this key")


# --- what a writer may be told ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pending:
    """One event that was sent and is not settled.

    `rooted` says that its parent was a head that the writer had read; otherwise its parent is an earlier event of the
    writer's own, in flight too. `verdict` is what the writer's own fold said of copies of it.
    """

    hash: bytes
    parent: bytes
    fence: int
    rooted: bool
    verdict: Verdict | None = None

    def note(self, verdict: Verdict) -> None:
        """Remember what a copy was judged. Behind one that counts, or is void for ever, a copy says nothing new."""
        if self.verdict is None or self.verdict == _VOID[Code.STALE_PARENT]:
            self.verdict = verdict


def settle(state: ScopeState, chain: Sequence[Pending]) -> list[Verdict | None]:
    """Decide what the writer of `chain` may be told, given all that it has folded; None: not yet.

    `chain` is in order of sending, so that an event comes after its parent. An admitted event is final: the head moved on, so
    every other copy is void by its parent. A void one is final when no later copy can count, which is when

    * a rule other than `stale_parent` voided a copy (what is before that rule depends on bytes and keys alone; what is
      behind it was judged under the right head, and would be judged the same while that head lasts and not at all
      afterwards), or
    * its parent was a head once and is no longer (a head never returns), or can never become one because the event
      before it is void for ever, or
    * a fence that it cannot get past has been admitted.

    It is not final while its parent may still become the head: of two events in flight the second may arrive first, and
    count when both arrive again.
    """
    answers: dict[bytes, Verdict | None] = {}
    for pending in chain:
        answers[pending.hash] = _settle_one(state, pending, answers.get(pending.parent))
    return list(answers.values())


def _settle_one(state: ScopeState, pending: Pending, of_parent: Verdict | None) -> Verdict | None:
    verdict = pending.verdict
    if isinstance(verdict, Admitted):
        return verdict
    if verdict is not None and verdict.reason is not Code.STALE_PARENT:
        return verdict
    if isinstance(of_parent, Void):
        return _VOID[Code.STALE_PARENT]
    if pending.fence < state.fence:
        return verdict or _VOID[Code.STALE_FENCE]
    parent_was_head = pending.rooted or isinstance(of_parent, Admitted)
    if parent_was_head and state.head != pending.parent:
        return _VOID[Code.STALE_PARENT]
    return None


__all__ = [
    "Admitted",
    "Pending",
    "ScopeState",
    "Verdict",
    "Void",
    "admit",
    "empty_state",
    "evolve",
    "fold",
    "settle",
    "step",
]
