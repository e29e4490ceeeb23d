"""An archive: the log of one scope in one file that describes and proves itself.

JSON lines. The first says what the archive holds, as its fold must confirm; then each event of the log has a line, void
ones included, with its verdict, its exact bytes and the MAC that lay beside it; the last is a digest over all lines
before it, so that a file that was cut off is seen. Nothing in it is trusted: what counts is what folding the events
gives, and with a key their MACs.

Both directions stream, so memory does not grow with the log. A file is read and written where the call is made, not in
a thread of its own: it is for commands, whose loop has nothing else to do meanwhile.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NamedTuple

from blake3 import blake3

from journal.admission import Admitted, ScopeState, Verdict, empty_state, step
from journal.codec import Codec
from journal.errors import Code, JournalError, failure
from journal.events import Event, EventType, Readable, event_hash
from journal.identities import Digest, Incarnation, Place, Position, Scope
from journal.ports import Outgoing, StoredEvent

FORMAT: Final = "fenced-journal archive"
VERSION: Final = 1
DIGEST_DOMAIN: Final = "fenced-journal 2026-12 archive digest v1"
COUNTS: Final = "counts"
BESIDE: Final = "beside"  # admitted, about the log that it lay in, and no part of the history
MAX_LINE_BYTES: Final = 2**28

_HEADING_KEYS: Final = [
    "format", "version", "scope", "incarnation", "authenticated", "events", "counting", "sequence", "head", "moved_to",
]  # fmt: skip
_EVENT_KEYS: Final = ["position", "verdict", "mac", "data"]


@dataclass(frozen=True, slots=True)
class Heading:
    """What an archive says of itself. `moved_to`: the place of a move at its end; without one it is a copy."""

    scope: Scope
    incarnation: Incarnation
    authenticated: bool
    events: int
    counting: int
    sequence: int
    head: Digest
    moved_to: Place | None

    @classmethod
    def of(cls, state: ScopeState, events: int) -> Heading:
        """The heading of the archive of a log with `events` events that folds to `state`."""
        return cls(
            scope=Scope(state.scope),
            incarnation=Incarnation(state.incarnation or b""),
            authenticated=state.authenticated,
            events=events,
            counting=state.admitted,
            sequence=state.sequence,
            head=Digest(state.head),
            moved_to=None if state.moved is None else Place(state.moved.place),
        )

    def line(self) -> dict[str, Any]:
        """As the first line has it."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "scope": str(self.scope),
            "incarnation": str(self.incarnation),
            "authenticated": self.authenticated,
            "events": self.events,
            "counting": self.counting,
            "sequence": self.sequence,
            "head": str(self.head),
            "moved_to": None if self.moved_to is None else str(self.moved_to),
        }


class ArchivedEvent(NamedTuple):
    """One event of an archive. `line` counts from 1; `counts` says whether it is part of the history."""

    line: int
    stored: StoredEvent
    verdict: str

    @property
    def counts(self) -> bool:
        """Whether it is a link of the chain."""
        return self.verdict == COUNTS

    @property
    def hash(self) -> bytes:
        """Hash of its exact bytes."""
        return event_hash(self.stored.data)

    @property
    def outgoing(self) -> Outgoing:
        """What a log appends."""
        return Outgoing(self.stored.data, self.stored.mac)


def verdict_word(event: Readable, verdict: Verdict) -> str:
    """A verdict as an archive has it: `counts`, `beside`, or the code that voids the event."""
    if not isinstance(verdict, Admitted):
        return verdict.reason.value
    return BESIDE if isinstance(event, Event) and event.type is EventType.SCOPE_AWAITED else COUNTS


# --- writing ----------------------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes an archive to a file, line by line; without `finish` it is not one."""

    def __init__(self, file: BinaryIO, heading: Heading) -> None:
        self._file = file
        self._hasher = blake3(derive_key_context=DIGEST_DOMAIN)
        self._write(heading.line())

    def add(self, stored: StoredEvent, word: str) -> None:
        """Write the next event with its verdict."""
        self._write(
            {
                "position": stored.position,
                "verdict": word,
                "mac": None if stored.mac is None else stored.mac.hex(),
                "data": base64.b64encode(stored.data).decode(),
            }
        )

    def finish(self) -> None:
        """Write the digest; nothing may follow."""
        self._file.write(_line({"digest": self._hasher.hexdigest()}))

    def _write(self, values: dict[str, Any]) -> None:
        line = _line(values)
        self._hasher.update(line)
        self._file.write(line)


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"


# --- reading ----------------------------------------------------------------------------------------------------------


class Archive:
    """An archive in a file that can be read again and again; `name` is what errors call it.

    Every error names the line:
        IntegrityError: `journal_damaged_archive`: it is none, or is not as it was written.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self.name = name
        file.seek(0)
        self.heading = self._heading(self._next(1))

    def events(self) -> Iterator[ArchivedEvent]:
        """Every event, as it is written there; at the end the digest is checked, and that nothing follows."""
        hasher = blake3(derive_key_context=DIGEST_DOMAIN)
        self._file.seek(0)
        hasher.update(self._next(1))
        for number in range(2, self.heading.events + 2):
            line = self._next(number)
            hasher.update(line)
            yield self._event(number, line)
        last = self.heading.events + 2
        if self._next(last) != _line({"digest": hasher.hexdigest()}):
            raise self.damaged(last, "the digest is not that of the lines before it")
        if self._file.read(1):
            raise self.damaged(last + 1, "something follows the digest")

    def damaged(self, line: int, problem: str) -> JournalError:
        """The error for a line that is not what it must be."""
        return failure(
            Code.DAMAGED_ARCHIVE,
            f"{self.name}, line {line}: {problem}: the archive was altered, damaged or cut off; nothing was written. "
            "Export it again",
            file=self.name,
            line=line,
        )

    def _next(self, number: int) -> bytes:
        line = self._file.readline(MAX_LINE_BYTES)
        if not line:
            raise self.damaged(number, "the file ends here")
        if not line.endswith(b"\n"):
            raise self.damaged(number, "the line has no end")
        return line

    def _heading(self, line: bytes) -> Heading:
        values = self._values(1, line)
        if values.get("format") != FORMAT:
            raise self.damaged(1, "this is not an archive of a journal")
        if values.get("version") != VERSION:
            raise failure(
                Code.FORMAT_TOO_NEW,
                f"{self.name} is an archive of version {values.get('version')!r:.20}, this version reads {VERSION}: "
                "upgrade fenced-journal",
                file=self.name,
            )
        self._check_keys(1, values, _HEADING_KEYS)
        try:
            heading = Heading(
                scope=Scope(values["scope"]),
                incarnation=Incarnation.parse(values["incarnation"]),
                authenticated=values["authenticated"] is True,
                events=int(values["events"]),
                counting=int(values["counting"]),
                sequence=int(values["sequence"]),
                head=Digest.parse(values["head"]),
                moved_to=None if values["moved_to"] is None else Place.parse(values["moved_to"]),
            )
        except (JournalError, TypeError, ValueError) as error:
            raise self.damaged(1, "a value of the heading is malformed") from error
        if heading.line() != values or heading.events < 1:
            raise self.damaged(1, "a value of the heading is malformed")
        return heading

    def _event(self, number: int, line: bytes) -> ArchivedEvent:
        values = self._values(number, line)
        self._check_keys(number, values, _EVENT_KEYS)
        position, verdict, mac, data = values.values()
        if not (type(position) is int and isinstance(verdict, str) and isinstance(data, str)):
            raise self.damaged(number, "a value of the event is malformed")
        try:
            stored = StoredEvent(
                Position(position),
                base64.b64decode(data, validate=True),
                None if mac is None else bytes.fromhex(mac),
            )
        except (TypeError, ValueError) as error:  # binascii.Error is one
            raise self.damaged(number, "a value of the event is malformed") from error
        return ArchivedEvent(number, stored, verdict)

    def _values(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self.damaged(number, "the line is not JSON") from error
        if not isinstance(values, dict):
            raise self.damaged(number, "the line is not a JSON object")
        return values

    def _check_keys(self, number: int, values: dict[str, Any], keys: list[str]) -> None:
        if list(values) != keys:
            raise self.damaged(number, f"the line does not have {', '.join(keys)}")


def verify(archive: Archive, codec: Codec) -> ScopeState:
    """Fold the whole archive and hold everything that it says to the result; returns the state at its end.

    Raises:
        IntegrityError: `journal_damaged_archive`.
        ForgedError: an event's MAC is missing or wrong, or the key does not fit the scope (`journal_key_required`,
            `journal_key_unexpected`).
        UnknownEventError, IntegrityError: the fold stops, as `admit` says.
    """
    heading = archive.heading
    state = empty_state(heading.scope)
    events = 0
    for event in archive.events():
        _check_event(archive, codec, state, event)
        events += 1
    if state.incarnation is None:
        raise archive.damaged(2, "the history does not start with the creation of the scope")
    if Heading.of(state, events) != heading:
        raise archive.damaged(1, "the events are not what the heading says")
    return state


def _check_event(archive: Archive, codec: Codec, state: ScopeState, archived: ArchivedEvent) -> None:
    position, data, mac = archived.stored
    if state.position is not None and position <= state.position:
        raise archive.damaged(archived.line, "the positions do not grow: the order was changed")
    event = codec.read(position, data, mac)
    try:
        verdict = step(state, event)
    except JournalError as error:
        error.message = f"{archive.name}, line {archived.line}: {error.message}"
        error.details |= {"file": archive.name, "line": archived.line}
        raise
    word = verdict_word(event, verdict)
    if word == archived.verdict:
        return
    if word == Code.FORGED.value:
        raise failure(
            Code.FORGED,
            f"{archive.name}, line {archived.line}: the event's MAC is missing or not made with this key; nothing was "
            "written",
            file=archive.name,
            line=archived.line,
        )
    raise archive.damaged(archived.line, f"the event is {word!r} by what is before it, not {archived.verdict!r:.50}")
