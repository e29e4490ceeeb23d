"""What the journal needs from the outside: read this first.

Three ports: a log that keeps bytes in one order a scope, a lease store that hands out fences, and the target database
that is migrated. Adapters of the first two move bytes and know nothing of what they mean; a database knows statements
and what a schema means, and nothing of records. Their docstrings are the contract, `Raises:` says what the caller knows
afterwards, and one suite of contract tests holds every adapter to them.

Neither log nor leases are trusted with safety. A log may confirm what it lost the answer to, deliver an append late or
twice, and a lease store may forget: admission decides from the log's order alone. Of the database its transactions are
relied on: what they say about fence, witness and cursor holds together with the change itself. What else is relied on
is written down here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import NamedTuple, Protocol

from journal.control import Control
from journal.identities import EventId, Fence, Fingerprint, HolderId, Incarnation, LeaseId, Position, Scope


class Outgoing(NamedTuple):
    """One event to append: its exact bytes and the MAC to keep beside it."""

    data: bytes
    mac: bytes | None = None


class StoredEvent(NamedTuple):
    """One event as the log holds it."""

    position: Position
    data: bytes
    mac: bytes | None


class Log(Protocol):
    """An append-only log with one total order a scope.

    Relied on: what was read once at a position is read there for ever; positions grow in the order of reading; events
    of one append keep their order and are next to each other or not there.
    """

    async def create(self, scope: Scope) -> None:
        """Make an empty log for `scope`, durable when this returns. Does nothing when there is one."""
        ...

    async def scopes(self) -> Sequence[Scope]:
        """All scopes that have a log, sorted."""
        ...

    def append(self, scope: Scope, events: Sequence[Outgoing]) -> Awaitable[None]:
        """Append events in order; of two calls, those of the first come first, whether or not it was awaited.

        The awaitable (a coroutine will do) is done when the log confirmed; the caller still believes only what it reads.

        Raises:
            OutcomeUnknownError: some or all may be in the log, now or later.
            UnavailableError, and every other JournalError: nothing was written, and nothing of this call will be.
            InvalidContractError: `journal_unknown_scope`, `journal_read_only`; nothing was written.
        """
        ...

    def read(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Read from behind `after` (None: from the start) to the end as it was at the call, in batches.

        Raises:
            HistoryLostError: events that were there are gone.
            InvalidContractError: `journal_unknown_scope`.
            UnavailableError: the log did not answer.
        """
        ...

    def tail(self, scope: Scope, *, after: Position | None) -> AsyncGenerator[Sequence[StoredEvent], None]:
        """Read from behind `after` and go on for ever: an event that is appended here or elsewhere arrives soon.

        Raises as `read` does. Ends when the iterator is closed or the log is.
        """
        ...

    async def end(self, scope: Scope) -> Position | None:
        """Position of the last event, None when there is none. Raises as `read` does."""
        ...

    async def close(self) -> None:
        """Give up connections and threads. Calling it again does nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as the store granted it; `expires_at` is the store's clock, UTC seconds since 1970."""

    scope: Scope
    holder: HolderId
    fence: Fence
    lease_id: LeaseId
    expires_at: float


class Leases(Protocol):
    """A store that keeps at most one unexpired lease a scope.

    Wanted, not relied on: that fences grow even past a restart. The caller gives the highest fence of the log as floor,
    and admission voids a fence that does not grow.
    """

    async def acquire(
        self,
        scope: Scope,
        holder: HolderId,
        *,
        lease_id: LeaseId,
        ttl: timedelta,
        floor: int = 0,
        replaces: LeaseId | None = None,
    ) -> Grant:
        """Take the lease with a fence above every one granted before and above `floor`.

        `lease_id` is the caller's token: asking again with the same one gives the same fence back, as long as the lease
        was not taken by another. `replaces` names a lease of the caller's own that this one may take the place of.

        Raises:
            LeaseContendedError: another holds it; says who and until when.
            ResourceLimitError: `migration_execution_fence_exhausted`.
            UnavailableError: the store did not answer; asking again with the same `lease_id` is safe.
        """
        ...

    async def renew(self, grant: Grant, *, ttl: timedelta) -> Grant | None:
        """Make the lease last `ttl` from now; None when it is no longer this holder's. Raises UnavailableError."""
        ...

    async def release(self, grant: Grant) -> bool:
        """Free the scope if exactly this lease holds it; anything else is left alone. Says whether it was freed."""
        ...

    async def inspect(self, scope: Scope) -> Grant | None:
        """The lease as the store has it, expired or not; None when it was released or never taken."""
        ...

    async def close(self) -> None:
        """Give up connections and threads. Calling it again does nothing."""
        ...


# --- what an adapter finds when it is examined ------------------------------------------------------------------------


class Level(Enum):
    """How much a finding matters."""

    GOOD = "good"
    WARNING = "warning"
    PROBLEM = "problem"
    HISTORY = "history"  # history could be lost, or is


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked: what it is about, how it is, and what to do when that is not good."""

    check: str
    level: Level
    message: str
    remedy: str = ""


class Examined(Protocol):
    """An adapter that can say how it is set up, and whether that is safe."""

    def examine(self, scopes: Sequence[Scope]) -> AsyncGenerator[Finding, None]:
        """Check everything that is relied on, in general and for each of `scopes`; changes nothing.

        A service that does not answer is a finding, not an error.
        """
        ...


# --- the target database ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guard:
    """On whose behalf the target is changed: a transaction commits only while no greater fence was raised there."""

    scope: Scope
    incarnation: Incarnation
    fence: Fence


@dataclass(frozen=True, slots=True)
class Program:
    """A step lowered to what the database executes.

    `numbers` gives, for each statement, which of the step's statements it comes from, counted from 1: some are turned
    into settings instead. `enforce_references`: foreign keys act at once; otherwise they are checked before the commit.
    """

    statements: tuple[str, ...]
    numbers: tuple[int, ...]
    transactional: bool = True
    enforce_references: bool = False


@dataclass(frozen=True, slots=True)
class BackfillProgram:
    """One direction of a backfill: `statement` is run over `table` in batches of at most `batch` rows in `key` order.

    Parameters are `:after` (exclusive) and `:upto` (inclusive), for a key of several columns `:after_<column>` and
    `:upto_<column>`. `verify` is a query that must hold in the end, with the parameters `:upto...` of the last key of all.
    """

    table: str
    key: tuple[str, ...]
    batch: int
    statement: str
    verify: str | None = None


@dataclass(frozen=True, slots=True)
class BackfillCursor:
    """How far a backfill is, as its own transactions left it in the target.

    `token` is the event under which it was begun, `rows` how many there were up to the last key at that time; `done`:
    no row is left. `matched`, `changed`, `skipped` count rows, `transaction_groups` committed batches.
    """

    token: EventId
    rows: int
    matched: int
    changed: int
    skipped: int
    transaction_groups: int
    done: bool


class Transaction(Protocol):
    """One target transaction: entered with its locks held and its fence checked, or not at all.

    Any failure rolls all of it back at once; beside what each call names, it may be UnavailableError
    (`journal_target_unavailable`). The task that is inside must not use the Database itself meanwhile.
    """

    @property
    def source(self) -> Fingerprint:
        """The semantics of the schema that it began with, once it had its locks."""
        ...

    async def holds(self, query: str) -> bool:
        """Whether a query gives exactly one row with one true value.

        Raises:
            TargetError: `journal_statement_failed`; the transaction can only be rolled back.
        """
        ...

    async def execute(self, program: Program) -> Fingerprint:
        """Run all statements of a program in order and give the semantics that they leave, as `observe` does.

        References are enforced as they were when the transaction began.

        Raises:
            TargetError: `journal_statement_failed`, with `details["statement"]`; nothing of the program stays.
        """
        ...

    async def observe(self) -> Fingerprint:
        """The semantics of the schema as this transaction leaves it."""
        ...

    async def stamp(self, unit: str, token: EventId) -> None:
        """Leave a witness of this transaction: once it is committed, and only then, `witness(unit)` gives `token`."""
        ...

    async def begin_backfill(self, unit: str, token: EventId, program: BackfillProgram) -> BackfillCursor:
        """Fix the last key and put the cursor before the first; a cursor that an earlier run left is replaced.

        Raises:
            InvalidContractError: `journal_backfill_key`: rows cannot be told apart, or not be reached, by this key.
        """
        ...

    async def commit(self) -> None:
        """Commit durably.

        Raises:
            TargetError: `journal_references_broken`: a foreign key would dangle; the transaction is rolled back.
            CommitFailedError: `aborted` says whether the database proves that nothing was committed.
        """
        ...


class Database(Protocol):
    """A target database. Its bookkeeping (tables `_journal_*`) is no part of its semantics."""

    @property
    def semantic_profile(self) -> Fingerprint:
        """Identity of the rules by which semantics are made; they can be compared under one profile only."""
        ...

    @property
    def lowering_profile(self) -> Fingerprint:
        """Identity of the rules by which steps are lowered and executed."""
        ...

    async def raise_fence(self, guard: Guard, control: Control, *, floor: int = 0, adopt: bool = False) -> None:
        """From when this returns, no transaction under a lower fence of the scope commits, begun before or later.

        Makes the bookkeeping where it is missing. Waits for a transaction of an older holder that is in flight, within
        `control`. `floor` is a fence that this target must have seen, as the log tells. `adopt`: the target now belongs
        to this journal, whoever migrated it under this scope before, and whatever it has seen.

        Raises:
            FencedError: `journal_target_fenced`: a greater fence was raised.
            IntegrityError: `journal_foreign_target`: another journal has migrated this database under this scope.
                `journal_target_older`: it has not seen `floor`; it is left as it is.
            UnavailableError: `journal_target_busy`, `journal_target_unavailable`.
            InvalidContractError: `journal_missing_target`.
            UnknownEventError: `journal_format_too_new`: a later version keeps its books there.
            OperationCancelledError, ResourceLimitError: by `control`.
        """
        ...

    async def observe(self) -> Fingerprint:
        """Semantics of the live schema. Raises UnavailableError, `journal_missing_target`."""
        ...

    async def describe(self) -> Mapping[str, str]:
        """The live schema in canonical form, object by object: `table orders` -> its canonical definition."""
        ...

    async def witness(self, scope: Scope, unit: str) -> EventId | None:
        """The token of the last transaction that was stamped for `unit` and committed."""
        ...

    async def cursor(self, scope: Scope, unit: str) -> BackfillCursor | None:
        """The cursor of a backfill, None when none was begun."""
        ...

    async def tokens(self, scope: Scope) -> Mapping[str, EventId]:
        """The tokens of all witnesses and cursors, by unit."""
        ...

    def transaction(
        self, guard: Guard, control: Control, *, enforce_references: bool = False
    ) -> AbstractAsyncContextManager[Transaction]:
        """Begin a transaction: take the write lock, check the fence. Leaving it without a commit rolls back.

        Raises, when entered: as `raise_fence`.
        """
        ...

    async def advance_backfill(
        self, guard: Guard, control: Control, unit: str, program: BackfillProgram
    ) -> BackfillCursor:
        """Run the next batch and move the cursor behind it, in a transaction of its own, references enforced.

        One call, because there are so many batches. The last one commits only if `program.verify` holds behind it.

        Raises, with nothing of the batch left but where a commit is uncertain:
            As `transaction` and `Transaction.commit`.
            TargetError: `journal_statement_failed`, with `details["statement"]` 2 if it is `verify` that failed;
                `journal_backfill_rows`: more rows changed than the batch has; `journal_verify_failed`;
                `journal_unexpected_result`: it was not begun.
        """
        ...

    async def execute_outside(self, guard: Guard, program: Program) -> None:
        """Check the fence, then run statements that cannot be in a transaction, each committed by itself.

        The fence holds up to the check: one who is overtaken behind it is not stopped by the target.

        Raises:
            FencedError: nothing was run.
            TargetError: `journal_statement_failed`; the statements before stay.
        """
        ...

    async def is_empty(self, table: str) -> bool:
        """Whether a table has no row, or is not there."""
        ...

    async def rows_problem(self, program: BackfillProgram) -> str | None:
        """Why a backfill could not reach all rows that are there now; None when it could, or what it needs comes later."""
        ...

    async def shadow(self) -> Shadow:
        """A new, empty database of the same kind, for replaying files."""
        ...

    async def close(self) -> None:
        """Give up connections and threads. Calling it again does nothing."""
        ...


class Shadow(Protocol):
    """A scratch database that files are replayed on, to learn what they make of a schema. Nothing of it lasts."""

    async def lower(self, statements: Sequence[str], *, transactional: bool) -> Program:
        """Turn a step's statements into what is executed.

        Raises:
            InvalidContractError: `journal_statement_refused`, with `details["statement"]`: it would be without effect
                or break the transaction; the message says what to write instead.
        """
        ...

    async def run(self, program: Program) -> Fingerprint:
        """Execute a program and give the semantics that it leaves. Statements about rows are compiled, not run.

        Raises:
            TargetError: `journal_statement_failed`, with `details["statement"]`.
            InvalidContractError: `journal_statement_refused`, as `lower`: some of it shows only here.
        """
        ...

    async def run_all(self, programs: Sequence[Program]) -> Sequence[Fingerprint]:
        """`run` programs one after the other, and give the semantics that each leaves.

        Raises as `run`, with `details["program"]`, counted from 0; those before it stay.
        """
        ...

    async def observe(self) -> Fingerprint:
        """The semantics of the schema as it is now."""
        ...

    async def describe(self) -> Mapping[str, str]:
        """As `Database.describe`."""
        ...

    async def check_query(self, query: str, program: BackfillProgram | None = None) -> None:
        """Compile an assertion, or the verification of a backfill with its `:upto...`; it is not run.

        Raises:
            TargetError: `journal_statement_failed`. InvalidContractError: `journal_statement_refused`: not one query.
        """
        ...

    async def check_backfill(self, program: BackfillProgram) -> None:
        """Compile the statement of a backfill with its parameters; it is not run. Raises as `check_query`."""
        ...

    async def key_problem(self, program: BackfillProgram) -> str | None:
        """Why a backfill cannot go through its table by its key; None when it can.

        Raises:
            InvalidContractError: `journal_backfill_key`: there is no such table.
        """
        ...

    async def close(self) -> None:
        """Drop the scratch database."""
        ...
