"""One scope's log as bytes: how its history goes out to another log and comes in from one, exactly as it is.

Nothing here takes a lease. What is appended counts by the fold or not at all: events of a history that the log holds
already are void when they come again, and so is everything that does not follow. The few events that are written here
say where the scope lives; `admission` has the rules.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from datetime import timedelta

from journal.admission import ScopeState, Verdict, empty_state, step
from journal.codec import Codec
from journal.errors import Code, OutcomeUnknownError, failure
from journal.events import NO_LEASE, Readable
from journal.identities import LeaseId, Place, Scope
from journal.ports import Log, Outgoing, StoredEvent
from journal.records import ScopeArrivedRecord, ScopeAwaitedRecord, ScopeRestoredRecord, UnleasedRecord
from journal.spine import Spine


class Carriage:
    """What `Journal.carriage` gives: the scope as the log holds it, be it there, moved away, awaited or not there yet."""

    def __init__(self, scope: Scope, log: Log, codec: Codec, spine: Spine, timeout: timedelta) -> None:
        self.scope = scope
        self.codec = codec
        self._log = log
        self._spine = spine
        self._timeout = timeout.total_seconds()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def exists(self) -> bool:
        """Whether the log has the scope, even an empty one."""
        return self.scope in await self._log.scopes()

    async def state(self) -> ScopeState:
        """Everything that is in the log, folded; empty when there is nothing. Raises as `Journal.state`."""
        return (await self._spine.catch_up()).copy() if await self.exists() else empty_state(self.scope)

    async def events(self, state: ScopeState) -> AsyncGenerator[tuple[StoredEvent, Readable, Verdict], None]:
        """Every event as it is stored, with its verdict; `state`, an empty one, follows along."""
        async with aclosing(self._log.read(self.scope, after=None)) as batches:
            async for batch in batches:
                for stored in batch:
                    event = self.codec.read(*stored)
                    yield stored, event, step(state, event)
                await asyncio.sleep(0)  # a long log must not keep the loop from other work

    # --- writing ------------------------------------------------------------------------------------------------------

    async def append(self, events: Sequence[Outgoing]) -> None:
        """Append events of the scope's history as they are; raises as `Log.append`, in the time that an append has."""
        await self._within(self._log.append(self.scope, events), f"events of scope {self.scope} were not confirmed")

    async def await_scope(self) -> Place:
        """Make this log a place for the scope, and say which; the log is made when it is not there.

        Raises:
            InvalidContractError: `journal_not_moved`: the scope lives here.
            IntegrityError: `journal_no_genesis`: the log holds something else.
            UnavailableError, OutcomeUnknownError: asking again is safe.
        """
        await self._log.create(self.scope)
        state = await self._spine.catch_up()
        if not state.places:
            _check_free(state)
            await self._write(ScopeAwaitedRecord.new(Place.random()), state.head, NO_LEASE, 0)
            state = await self._spine.catch_up()
        if not state.places:
            _check_free(state)
            raise OutcomeUnknownError(f"it is not confirmed that this log awaits scope {self.scope}: ask again")
        return Place(state.places[0])

    async def arrive(self) -> None:
        """Let the scope live here, once its history is here up to a move to this place.

        Does nothing when it lives here already, as it does when two finish the same import.

        Raises:
            InvalidContractError: `journal_not_moved`: the history does not end with a move to this place.
            UnavailableError, OutcomeUnknownError: asking again is safe.
        """
        state = await self._spine.catch_up()
        moved = state.moved
        if not state.away:
            return
        if moved is None or moved.place not in state.places:
            raise failure(Code.NOT_MOVED, f"scope {self.scope} was not moved to this log")
        await self._write(ScopeArrivedRecord.new(Place(moved.place)), state.head, moved.lease_id, moved.fence)
        await self._check_arrived()

    async def restore(self, *, operator: str, reason: str) -> None:
        """Let the scope live here because an operator says so, wherever else it may be. Does nothing when it does already.

        Raises:
            InvalidContractError: `journal_invalid_text`.
            IntegrityError: `journal_no_genesis`: nothing of its history is here.
            UnavailableError, OutcomeUnknownError: asking again is safe.
        """
        state = await self._spine.catch_up()
        if state.incarnation is not None and not state.away:
            return
        place = await self.await_scope()
        state = await self._spine.catch_up()
        if state.incarnation is None:
            raise failure(Code.NO_GENESIS, f"nothing of scope {self.scope} is in this log: restore it from an archive")
        record = ScopeRestoredRecord.new(place, operator=operator, reason=reason)
        await self._write(record, state.head, LeaseId.random(), state.fence + 1)
        await self._check_arrived()

    async def _check_arrived(self) -> None:
        if (await self._spine.catch_up()).away:
            raise OutcomeUnknownError(f"it is not confirmed that scope {self.scope} lives in this log now: ask again")

    async def _write(self, record: UnleasedRecord, parent: bytes, lease_id: bytes, fence: int) -> None:
        data = self.codec.write(
            record,
            scope=self.scope,
            incarnation=self._spine.state.incarnation or bytes(16),
            lease_id=lease_id,
            parent=parent,
            fence=fence,
            recorded_at=time.time_ns() // 1_000,
        )
        await self.append([Outgoing(data, self.codec.authenticate(data))])

    async def _within(self, appending: Awaitable[None], doubt: str) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await appending
        except TimeoutError:
            raise OutcomeUnknownError(f"{doubt} within {self._timeout:g} s: asking again is safe") from None


def _check_free(state: ScopeState) -> None:
    if state.incarnation is None and state.position is not None:
        raise failure(Code.NO_GENESIS, f"the log of scope {state.scope} holds something else: use another log")
    if state.incarnation is not None and not state.away:
        raise failure(
            Code.NOT_MOVED,
            f"scope {state.scope} lives in this log: there is nothing to await. Move it away before it can come back",
            scope=state.scope,
        )
