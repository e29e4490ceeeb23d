"""What `journal doctor` finds in a scope that is read from its start: history, schemas, keys, clocks, and its target.

The target must be looked at before the log is read: what it knows was in the log by then, so whatever the log lacks of it
is lost, and nobody who is at work meanwhile looks like that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from journal.admission import Admitted, ScopeState, Verdict, empty_state
from journal.errors import Code, JournalError
from journal.events import Event, Readable
from journal.identities import EventId, Scope
from journal.journal import Journal
from journal.ports import Database, Finding, Guard, Level
from journal.whereabouts import absence
from projections.open_plan import floor_of

_AHEAD_SECONDS: Final = 5.0
_SCHEMA_PREFIX: Final = 10
_LOST: Final = frozenset({Code.HISTORY_LOST, Code.DAMAGED_FILE, Code.CHAIN_BROKEN})
_KEYS: Final = frozenset({Code.KEY_REQUIRED, Code.KEY_UNEXPECTED, Code.FORGED})
_NEWER: Final = frozenset({Code.UNKNOWN_EVENT, Code.FORMAT_TOO_NEW})
_GIVE_BACK: Final = "put the newest copy of the log back, or adopt the database under another scope: `journal import`"


@dataclass(frozen=True, slots=True)
class Target:
    """What a target knows of a scope: on whose behalf its fence was raised last, and the event of each unit."""

    raised: Guard | None
    tokens: Mapping[str, EventId]


async def look_at(database: Database, raised: Guard | None, scope: Scope) -> Target:
    """What the target knows of a scope, now. Raises as `Database.tokens`."""
    return Target(raised, {} if raised is None else await database.tokens(scope))


@dataclass(slots=True)
class _Reading:
    scope: Scope
    state: ScopeState
    schemas: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)
    forged: int = 0
    newest: int = 0
    missing: dict[bytes, str] = field(default_factory=dict)  # units of the target by event, until the log brings it

    def take(self, event: Readable, verdict: Verdict) -> None:
        if not isinstance(event, Event):
            return
        (self.schemas if event.format is not None else self.unknown).add(event.data[:_SCHEMA_PREFIX])
        if isinstance(verdict, Admitted):
            self.newest = max(self.newest, event.recorded_at)
            self.missing.pop(event.event_id, None)
        elif verdict.reason is Code.FORGED:
            self.forged += 1


async def examine_scope(journal: Journal, scope: Scope, target: Target | None) -> list[Finding]:
    """Read a scope from its start; what cannot be read is a finding. `target`: what was found there before, if anywhere."""
    reading = _Reading(scope, empty_state(scope))
    if target is not None:
        reading.missing = {bytes(token): unit for unit, token in target.tokens.items()}
    try:
        async with aclosing(journal.replay(scope, state=reading.state)) as events:
            async for event, verdict in events:
                reading.take(event, verdict)
    except JournalError as error:
        return [_unreadable(scope, error)]
    away = absence(reading.state)
    if away is not None:  # where it lives it goes on, and so does its target
        where = Finding(f"scope {scope} place", Level.WARNING, away.message, "name the log in which it lives")
        return [*_history(reading), where]
    # What does not count for want of a key would look as if it were lost.
    compared = [] if target is None or reading.forged else _target(reading, target)
    return [*_history(reading), *compared]


def _unreadable(scope: Scope, error: JournalError) -> Finding:
    where = error.message if error.details.get("position") is None else f"{error.message} ({error.details['position']})"
    if error.code in _LOST:
        return Finding(f"scope {scope} history", Level.HISTORY, where, "stop, and restore the log from a copy")
    if error.code in _KEYS:
        return Finding(f"scope {scope} key", Level.PROBLEM, where, "give the keys that the scope was written with")
    if error.code in _NEWER:
        return Finding(f"scope {scope} schemas", Level.PROBLEM, where, "upgrade fenced-journal")
    return Finding(f"scope {scope} history", Level.PROBLEM, where, "see the message, then `journal verify`")


def _history(reading: _Reading) -> Iterator[Finding]:
    scope, state = reading.scope, reading.state
    if state.position is None:
        yield Finding(
            f"scope {scope} history", Level.WARNING, "it has no event: its maker was stopped", "`journal apply` goes on"
        )
        return
    text = f"{state.admitted} events count, {state.voids} are void"
    if state.incarnation is None and not state.away:
        yield Finding(
            f"scope {scope} history", Level.HISTORY, f"it has no first event; {text}", "restore the log from a copy"
        )
        return
    yield Finding(f"scope {scope} history", Level.GOOD, text)
    yield _schemas(reading)
    yield _key(reading)
    yield _clock(reading)


def _schemas(reading: _Reading) -> Finding:
    check = f"scope {reading.scope} schemas"
    if reading.unknown:
        return Finding(
            check,
            Level.WARNING,
            f"{len(reading.unknown)} in use, all in void events, are not known to this version",
            "upgrade fenced-journal, if a later version writes here",
        )
    return Finding(check, Level.GOOD, f"{len(reading.schemas)} in use, all known to this version")


def _key(reading: _Reading) -> Finding:
    check = f"scope {reading.scope} key"
    if not reading.state.authenticated:
        return Finding(check, Level.GOOD, "not authenticated: who can write the log can make events up")
    if reading.forged:
        return Finding(
            check,
            Level.PROBLEM,
            f"{reading.forged} events do not have the MAC of a key that was given",
            "give every earlier key as a previous one; if that changes nothing, find who writes them",
        )
    return Finding(check, Level.GOOD, "authenticated, and every event has the MAC of a key that was given")


def _clock(reading: _Reading) -> Finding:
    check = f"scope {reading.scope} clock"
    ahead = reading.newest / 1_000_000 - time.time()
    if ahead > _AHEAD_SECONDS:
        return Finding(
            check,
            Level.WARNING,
            f"its newest event is dated {ahead:.0f} s ahead of this machine's clock",
            "synchronise the clocks of all writers and this one with NTP",
        )
    return Finding(check, Level.GOOD, "no event is dated ahead of this machine's clock")


def _target(reading: _Reading, target: Target) -> Iterator[Finding]:
    """Whether target and log are of one age. A fence is raised in a target before anything is done there."""
    check, state = f"scope {reading.scope} target", reading.state
    raised, floor = target.raised, floor_of(state)
    if raised is None:
        if floor:
            yield Finding(
                check,
                Level.PROBLEM,
                f"the log has work under fence {floor}, the target has seen no fence of this scope",
                "it is another database or an older copy: put the right one back",
            )
        else:
            yield Finding(check, Level.GOOD, "nothing was done there yet")
    elif raised.incarnation != state.incarnation:
        yield Finding(
            check,
            Level.PROBLEM,
            "it was migrated under this scope by another journal",
            "see which journal and which database belong together, or adopt it with `journal import`",
        )
    elif raised.fence > state.fence:
        text = f"it has seen fence {raised.fence}, the log knows none above {state.fence}: events were lost"
        yield Finding(check, Level.HISTORY, text, _GIVE_BACK)
    elif reading.missing:
        text = f"it has {', '.join(sorted(reading.missing.values())[:5])}, of which the log knows nothing: events were lost"
        yield Finding(check, Level.HISTORY, text, _GIVE_BACK)
    elif raised.fence < floor:
        yield Finding(
            check,
            Level.PROBLEM,
            f"the log has work under fence {floor}, it has seen fence {raised.fence} at most: it is an older copy",
            "put the newest one back",
        )
    else:
        yield Finding(check, Level.GOOD, f"of one age with the log, at fence {raised.fence}")
