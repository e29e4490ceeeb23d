"""Carrying a scope from one log to another, and back: the same history, event by event, and one log where it goes on.

    where it goes      journal import --prepare          the log gets a name: a place
    where it lives     journal export --move --place     ScopeMoved under the lease: nothing behind it counts; the archive
    where it goes      journal import --archive          the history, then ScopeArrived: from here on it lives there

Every step can be cut off anywhere and run again, by two at once, too: what is there already is void when it comes again.
Between the move and the arrival the scope lives nowhere; an incomplete copy is recognised by what stands before it (its
log awaits the scope), so nobody writes on in it. The archive of a move counts in the one log that it was moved to, and
is only something to read in any other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import BinaryIO, Final

from journal.admission import ScopeState, empty_state
from journal.carriage import Carriage
from journal.errors import Code, JournalError, OutcomeUnknownError, UnavailableError, failure
from journal.events import Event
from journal.identities import Place
from journal.journal import Journal
from journal.lease import Lease
from journal.ports import Outgoing
from journal.records import JournalEntry, ScopeMovedRecord
from projections.archive import COUNTS, Archive, ArchivedEvent, ArchiveWriter, Heading, verdict_word, verify
from projections.operations import Attestation

_CHUNK_BYTES: Final = 512 * 1024
_CHUNK_EVENTS: Final = 500
_IN_FLIGHT: Final = 4
_ATTEMPTS: Final = 5
_PAUSE_SECONDS: Final = 0.05

# How many events are done of how many.
Tell = Callable[[int, int], None]


def tell_nobody(_: int, __: int) -> None:
    """For those who do not want to know how far it is."""


# --- out --------------------------------------------------------------------------------------------------------------


async def move(
    journal: Journal, lease: Lease, place: Place, destination: str, attestation: Attestation
) -> JournalEntry[ScopeMovedRecord]:
    """Move the scope to the log that awaits it under `place`. The lease is over with it.

    Raises:
        InvalidContractError: `journal_not_moved`: the place is this very log; `journal_invalid_text`.
        OutcomeUnknownError: whether it is moved says `Journal.state`, at the latest behind another lease.
    """
    if place in (await journal.state(lease.scope)).places:
        raise failure(
            Code.NOT_MOVED, f"place {place} is this log: name the log that the scope goes to", place=str(place)
        )
    record = ScopeMovedRecord.new(
        lease, place, destination=destination, operator=attestation.operator, reason=attestation.reason
    )
    return await journal.record(lease, record)


async def pack(carriage: Carriage, file: BinaryIO, tell: Tell = tell_nobody) -> Heading:
    """Write the archive of everything that is in the log now. Needs no lease; memory does not grow with the log.

    Raises:
        InvalidContractError: `journal_unknown_scope`.
        IntegrityError: `journal_no_genesis`, and whatever stops the fold.
    """
    state, count = empty_state(carriage.scope), 0
    async with aclosing(carriage.events(state)) as events:
        async for _ in events:
            count += 1
    if state.incarnation is None:
        raise failure(Code.NO_GENESIS, f"nothing of scope {carriage.scope} is in this log", scope=carriage.scope)
    heading = Heading.of(state, count)
    writer = ArchiveWriter(file, heading)
    written = 0
    async with aclosing(carriage.events(empty_state(carriage.scope))) as events:
        async for stored, event, verdict in events:
            writer.add(stored, verdict_word(event, verdict))
            written += 1
            tell(written, count)
            if written == count:
                break  # what came since is in the next archive
    writer.finish()
    return heading


# --- in ---------------------------------------------------------------------------------------------------------------


class Manner(Enum):
    """What an archive is brought in for."""

    ARRIVE = "arrive"  # a move, to this place: the scope lives here afterwards
    COPY = "copy"  # to be read
    RESTORE = "restore"  # the scope lives here because an operator says so


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of it: how many events of the history were there before, how many were written, and what is there now."""

    found: int
    written: int
    state: ScopeState


async def bring(
    carriage: Carriage,
    archive: Archive,
    manner: Manner,
    attestation: Attestation | None = None,
    tell: Tell = tell_nobody,
) -> Brought:
    """Bring a verified archive into a log. Whatever is refused is refused before anything is written.

    `attestation` is for `RESTORE`. Run again after whatever ended it, it goes on where it was.

    Raises:
        IntegrityError: `journal_damaged_archive`; `journal_foreign_archive`: the log holds another history, or goes on
            where the archive ends, or was not moved to; and as `archive.verify`.
        UnavailableError, OutcomeUnknownError: running it again is safe.
    """
    target = verify(archive, carriage.codec)
    found = await _compare(carriage, archive)
    state = await carriage.state()
    if found.is_complete and not state.away:
        return Brought(archive.heading.counting, 0, state)
    _check_manner(carriage, archive, manner, target, state)
    if manner is not Manner.ARRIVE:
        await carriage.await_scope()
    await _insist(partial(_fill, carriage, archive, target, tell))
    if manner is Manner.ARRIVE:
        await _insist(carriage.arrive)
    elif attestation is not None:
        await _insist(partial(carriage.restore, operator=attestation.operator, reason=attestation.reason))
    return Brought(found.shared, archive.heading.counting - found.shared, await carriage.state())


def _check_manner(carriage: Carriage, archive: Archive, manner: Manner, target: ScopeState, state: ScopeState) -> None:
    """Refuse what would not make a scope live here, or would write to where it lives."""
    scope = carriage.scope
    if state.incarnation is not None and not state.away:
        raise _foreign(
            archive,
            f"scope {scope} lives in this log, and the archive goes on where its history ends: find out which of the two "
            "is true, and import into a log of its own to compare them",
        )
    if manner is not Manner.ARRIVE:
        return
    advice = "to only read it import with --copy; if where it lived is lost, import with --restore"
    if target.moved is None:
        raise _foreign(
            archive,
            f"it is a copy of scope {scope}, which lives on where it was exported. Move it there with `journal export "
            f"--move --place`; {advice}",
        )
    if target.moved.place not in state.places:
        raise _foreign(
            archive,
            f"scope {scope} was moved to {target.moved.destination}, place {target.moved.place.hex()}, and this log is not "
            f"that place. Import it where `journal import --prepare` printed this; {advice}",
        )


def _foreign(archive: Archive, problem: str) -> JournalError:
    return failure(
        Code.FOREIGN_ARCHIVE,
        f"{archive.name} cannot be imported here: {problem}. Nothing was written",
        file=archive.name,
        scope=str(archive.heading.scope),
    )


# --- what is there already --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """How many events of the history are in the log already, from the first on; complete: all of the archive's are."""

    shared: int
    is_complete: bool


async def _compare(carriage: Carriage, archive: Archive) -> _Found:
    """Lay the log's history beside the archive's, from their start.

    Raises:
        IntegrityError: `journal_foreign_archive`: they differ, or the log's goes on although nobody lives there.
    """
    chain = _chain_of(archive)
    shared, is_complete = 0, False
    state = empty_state(carriage.scope)
    if archive.heading.scope != carriage.scope:
        raise _foreign(archive, f"it is of scope {archive.heading.scope}, not of {carriage.scope}")
    if not await carriage.exists():
        return _Found(0, is_complete=False)
    async with aclosing(_hashes(carriage, state)) as hashes:
        async for hash in hashes:
            archived = next(chain, None)
            if archived is None:
                is_complete = True
                break
            if archived.hash != hash:
                raise _foreign(archive, _difference(archive, archived, state))
            shared += 1
    if not is_complete:
        return _Found(shared, is_complete=next(chain, None) is None)
    if (await carriage.state()).away:
        raise _foreign(archive, "this log holds more of the history than it: it is older. Use the newest archive")
    return _Found(shared, is_complete=True)


def _chain_of(archive: Archive) -> Iterator[ArchivedEvent]:
    return (event for event in archive.events() if event.counts)


async def _hashes(carriage: Carriage, state: ScopeState) -> AsyncGenerator[bytes, None]:
    """The links of the log's chain."""
    async with aclosing(carriage.events(state)) as events:
        async for _, event, verdict in events:
            if isinstance(event, Event) and verdict_word(event, verdict) == COUNTS:
                yield event.hash


def _difference(archive: Archive, archived: ArchivedEvent, state: ScopeState) -> str:
    if state.incarnation != archive.heading.incarnation:
        return (
            f"the log has another scope of that name: incarnation {(state.incarnation or b'').hex()}, not "
            f"{archive.heading.incarnation}"
        )
    return (
        f"the histories differ: the event at position {state.position} of the log is not that of line {archived.line}. One "
        "of them was written on where it did not live"
    )


# --- writing ----------------------------------------------------------------------------------------------------------


async def _insist(attempt: Callable[[], Awaitable[None]]) -> None:
    """Try what is safe to be done again until the log has done it, a few times."""
    for number in range(_ATTEMPTS):
        try:
            return await attempt()
        except (UnavailableError, OutcomeUnknownError):
            if number == _ATTEMPTS - 1:
                raise
        await asyncio.sleep(_PAUSE_SECONDS * 2**number)
    raise AssertionError("the last attempt returns or raises")


async def _fill(carriage: Carriage, archive: Archive, target: ScopeState, tell: Tell) -> None:
    await _append_missing(carriage, archive, tell)
    await _check_same(carriage, archive, target)


async def _append_missing(carriage: Carriage, archive: Archive, tell: Tell) -> None:
    """Append what the log lacks as it is now, several portions under way at a time."""
    done, total = (await _compare(carriage, archive)).shared, archive.heading.counting
    flying: deque[tuple[int, asyncio.Future[None]]] = deque()
    try:
        for chunk in _chunks(archive, done):
            flying.append((len(chunk), asyncio.ensure_future(carriage.append(chunk))))
            await asyncio.sleep(0)  # calls keep their order, once they are made
            while len(flying) >= _IN_FLIGHT:
                done = await _landed(flying, done, total, tell)
        while flying:
            done = await _landed(flying, done, total, tell)
    finally:
        await asyncio.gather(*(append for _, append in flying), return_exceptions=True)


async def _landed(flying: deque[tuple[int, asyncio.Future[None]]], done: int, total: int, tell: Tell) -> int:
    count, append = flying.popleft()
    await append
    tell(done + count, total)
    return done + count


def _chunks(archive: Archive, shared: int) -> Iterator[list[Outgoing]]:
    """What is behind the first `shared` events of the history, in portions that a log takes at once."""
    chunk: list[Outgoing] = []
    size = 0
    for number, event in enumerate(_chain_of(archive)):
        if number < shared:
            continue
        if chunk and (len(chunk) == _CHUNK_EVENTS or size + len(event.stored.data) > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(event.outgoing)
        size += len(event.stored.data)
    if chunk:
        yield chunk


async def _check_same(carriage: Carriage, archive: Archive, target: ScopeState) -> None:
    """Read back what was written: the same chain must fold to the same state.

    Raises:
        OutcomeUnknownError: it does not: some of it came in another order, or not yet.
    """
    state = await carriage.state()
    if state.carried() == target.carried():
        return
    if (await _compare(carriage, archive)).is_complete and not state.away:
        return  # another import was faster, and the scope goes on here already
    raise OutcomeUnknownError(
        f"scope {carriage.scope} in this log is not yet what {archive.name} holds, although all of it was sent there: import "
        "it again, which is safe, and if that does not help look with `journal history`"
    )
