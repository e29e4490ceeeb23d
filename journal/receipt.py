"""What a writer is told of one event: its receipt, and the words for a record that does not count."""

from __future__ import annotations

import asyncio
from typing import Any

from journal.admission import Verdict, Void
from journal.errors import Code, JournalError, OutcomeUnknownError, failure
from journal.explanations import EXPLANATIONS
from journal.identities import Scope, Sequence as SequenceNumber
from journal.records import JournalEntry, Record


class Receipt:
    """What became of one event that was sent. `verdict` is None while that is not known."""

    __slots__ = ("_cause", "_settled", "record", "scope", "verdict")

    def __init__(self, scope: Scope, record: Record) -> None:
        self.scope = scope
        self.record = record
        self.verdict: Verdict | None = None
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
        verdict = self.verdict
        if verdict is None:
            error = OutcomeUnknownError(f"the outcome of a {name_of(self.record)} is not settled", receipt=self)
            raise error from self._cause
        if isinstance(verdict, Void):
            raise refusal(verdict.reason, self.record, self.scope, written=True)
        return None if verdict.sequence is None else JournalEntry(SequenceNumber(verdict.sequence), self.record)

    def settle(self, verdict: Verdict) -> None:
        """Note the final verdict and wake those who wait for it."""
        self.verdict = verdict
        self._wake()

    def give_up(self, cause: BaseException) -> None:
        """Nothing more will become known; wake those who wait."""
        self._cause = cause
        self._wake()

    def _wake(self) -> None:
        if self._settled is not None:
            self._settled.set()


def name_of(record: Record) -> str:
    return type(record).__name__.removesuffix("Record")


def refusal(reason: Code, record: Record, scope: Scope, *, written: bool) -> JournalError:
    """The error that tells a writer why its record does not count."""
    what = "is void" if written else "was refused, nothing was written"
    return failure(
        reason, f"{name_of(record)} in scope {scope} {what}: {EXPLANATIONS.get(reason, reason.value)}", scope=str(scope)
    )
