"""What a writer is told of its events: receipts, batches, and the words for a record that does not count."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from journal.admission import Admitted, Verdict
from journal.errors import Code, JournalError, OutcomeUnknownError, failure
from journal.explanations import EXPLANATIONS
from journal.identities import Scope, Sequence as SequenceNumber
from journal.records import JournalEntry, Record


class Receipt:
    """What became of one event that was sent. `verdict` is None while that is not known."""

    __slots__ = ("_cause", "_outcome", "_settled", "record", "scope", "verdict")

    def __init__(self, scope: Scope, record: Record) -> None:
        self.scope = scope
        self.record = record
        self.verdict: Verdict | None = None
        self._outcome: JournalEntry[Any] | JournalError | None = None
        self._cause: BaseException | None = None
        self._settled: asyncio.Event | None = None  # made for the few that are waited for

    async def settled(self) -> JournalEntry[Any] | None:
        """Wait until the verdict is final, then return the entry (None for lease events) or raise why it is void.

        Raises:
            FencedError: another lease came first; other errors by the reason that voided the event.
            OutcomeUnknownError: the scope is not followed any more, so nothing will become known here.
        """
        if self.verdict is None and self._cause is None:
            self._settled = self._settled or asyncio.Event()
            await self._settled.wait()
        return self.result()

    def result(self) -> JournalEntry[Any] | None:
        """As `settled`, without waiting. Raises OutcomeUnknownError while nothing is known."""
        if self.verdict is None:
            error = OutcomeUnknownError(f"the outcome of a {name_of(self.record)} is not settled", receipt=self)
            raise error from self._cause
        if isinstance(self._outcome, JournalError):
            raise self._outcome
        return self._outcome

    def settle(self, verdict: Verdict, outcome: JournalEntry[Any] | JournalError | None) -> None:
        """Note the final verdict and what it means for the record's writer, and wake those who wait for it."""
        self.verdict = verdict
        self._outcome = outcome
        self._wake()

    def give_up(self, cause: BaseException) -> None:
        """Nothing more will become known; wake those who wait."""
        self._cause = cause
        self._wake()

    def _wake(self) -> None:
        if self._settled is not None:
            self._settled.set()


_OPEN: Final = object()


class Batch:
    """Several records that one caller waits for: `future` gives their entries in order, or raises the first error.

    Whoever fills it seals it; until then it does not end.
    """

    __slots__ = ("_open", "_outcomes", "future")

    def __init__(self) -> None:
        self.future: asyncio.Future[list[JournalEntry[Any] | None]] = asyncio.get_running_loop().create_future()
        self._outcomes: list[Any] = []
        self._open = 1  # the one who seals it counts too

    def add(self) -> int:
        """The place of one more record."""
        self._outcomes.append(_OPEN)
        self._open += 1
        return len(self._outcomes) - 1

    def note(self, place: int, outcome: JournalEntry[Any] | BaseException | None) -> None:
        """Say what became of a record. What was said first stays."""
        if self._outcomes[place] is _OPEN:
            self._outcomes[place] = outcome
            self._close_one()

    def seal(self, error: BaseException | None = None) -> None:
        """There is no more; `error` says what stands in the way of it."""
        if error is not None:
            self._outcomes.append(error)
        self._close_one()

    def _close_one(self) -> None:
        self._open -= 1
        if self._open or self.future.done():
            return
        error = next((outcome for outcome in self._outcomes if isinstance(outcome, BaseException)), None)
        if error is None:
            self.future.set_result(self._outcomes)
        else:
            self.future.set_exception(error)


def entry_of(verdict: Admitted, record: Record) -> JournalEntry[Any] | None:
    """The entry that an admitted record has become; None for lease events."""
    return None if verdict.sequence is None else JournalEntry(SequenceNumber(verdict.sequence), record)


def name_of(record: Record) -> str:
    return type(record).__name__.removesuffix("Record")


def refusal(reason: Code, record: Record, scope: Scope, *, written: bool) -> JournalError:
    """The error that tells a writer why its record does not count."""
    what = "is void" if written else "was refused, nothing was written"
    return failure(
        reason, f"{name_of(record)} in scope {scope} {what}: {EXPLANATIONS.get(reason, reason.value)}", scope=str(scope)
    )
