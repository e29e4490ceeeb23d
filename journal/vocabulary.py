"""The words of a unit's life, the counts of a backfill, and the rules that constructors and admission share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from journal.errors import Code, failure
from journal.identities import Fingerprint, is_migration_id

MAX_REASON_BYTES: Final = 4_096


class _Word(Enum):
    # Words are keys of tables that a fold looks into for every event; identity is enough to tell them apart.
    __hash__ = object.__hash__


class GroupEventKind(_Word):
    """Commit-boundary vocabulary, shared by groups, backfills and rollback steps."""

    BEFORE_COMMIT = "before_commit"
    COMMITTED = "committed"
    COMMIT_OUTCOME_UNKNOWN = "commit_outcome_unknown"
    DEFINITELY_ABORTED = "definitely_aborted"
    FORMAL_ONLY_ADVANCED = "formal_only_advanced"


class CommitCertainty(Enum):
    """What a failed commit proves. Only the database's own proof may say `DEFINITELY_ABORTED`."""

    DEFINITELY_ABORTED = "definitely_aborted"
    UNKNOWN = "unknown"

    @property
    def event_kind(self) -> GroupEventKind:
        """The durable event that records it."""
        if self is CommitCertainty.DEFINITELY_ABORTED:
            return GroupEventKind.DEFINITELY_ABORTED
        return GroupEventKind.COMMIT_OUTCOME_UNKNOWN


class Direction(_Word):
    """Forward program or plan, or its verified reverse."""

    FORWARD = "forward"
    REVERSE = "reverse"


# A unit whose last event this is came to its end, or may or may not have committed, as far as the log tells.
DONE: Final = (GroupEventKind.COMMITTED, GroupEventKind.FORMAL_ONLY_ADVANCED)
IN_DOUBT: Final = (GroupEventKind.BEFORE_COMMIT, GroupEventKind.COMMIT_OUTCOME_UNKNOWN)
# What an operator can attest of a unit that is in doubt.
ATTESTABLE: Final = (GroupEventKind.COMMITTED, GroupEventKind.DEFINITELY_ABORTED)


class UnitKind(_Word):
    """What a unit of work is; with migration, ordinal and direction it names one unit."""

    GROUP = "group"
    BACKFILL = "backfill"
    ROLLBACK_STEP = "rollback_step"


# --- counts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackfillCounts:
    """Counts of a backfill: rows matched, changed, skipped (already as wanted), and committed batches.

    Raises `migration_backfill_zero_transaction_groups`, `migration_backfill_count_mismatch` (matched must be changed
    plus skipped), or `migration_execution_position_limit` for a number outside its range.
    """

    matched: int
    changed: int
    skipped: int
    transaction_groups: int

    def __post_init__(self) -> None:
        code = count_violation(self.matched, self.changed, self.skipped, self.transaction_groups)
        if code is not None:
            raise failure(code, f"backfill counts contradict each other: {self}")


def count_violation(matched: int, changed: int, skipped: int, transaction_groups: int) -> Code | None:
    """The rule that these counts break, in the seed's order, or None."""
    if transaction_groups == 0:
        return Code.BACKFILL_ZERO_TRANSACTION_GROUPS
    if changed < 0 or skipped < 0 or not 0 < transaction_groups < 2**32 or matched >= 2**63:
        return Code.POSITION_LIMIT
    if changed + skipped != matched:
        return Code.BACKFILL_COUNT_MISMATCH
    return None


@dataclass(frozen=True, slots=True)
class BackfillCompletion:
    """Proof that one program's postcondition holds: program, direction and terminal counts."""

    plan_fingerprint: Fingerprint
    direction: Direction
    counts: BackfillCounts


# --- rules shared by constructors and admission -------------------------------------------------------------------------

_COMMITTED: Final = GroupEventKind.COMMITTED
_FORMAL: Final = GroupEventKind.FORMAL_ONLY_ADVANCED


def observation_violation(kind: GroupEventKind, observed: bytes | None) -> Code | None:
    """Committed events carry the observed semantics, and no other does."""
    if kind is _COMMITTED:
        return Code.COMMIT_EVIDENCE_MISMATCH if observed is None else None
    if observed is None:
        return None
    if kind is _FORMAL:
        return Code.INVALID_FORMAL_ADVANCE
    return Code.UNEXPECTED_OBSERVATION


def completion_violation(
    kind: GroupEventKind, completion: tuple[bytes, Direction] | None, plan: bytes, direction: Direction
) -> Code | None:
    """A committed backfill carries completion of the same program and direction, and no other event does."""
    if kind is _COMMITTED:
        return None if completion == (plan, direction) else Code.BACKFILL_COMPLETION_MISMATCH
    if kind is _FORMAL:
        return Code.BACKFILL_FORMAL_ADVANCE
    return None if completion is None else Code.UNEXPECTED_BACKFILL_COMPLETION


def plan_violation(ids: Sequence[str], digests: Sequence[bytes], fingerprints: Sequence[bytes]) -> Code | None:
    """A plan names at least one migration, each once, and binds a digest and a fingerprint to each."""
    if not ids:
        return Code.EMPTY_PLAN
    if len(set(ids)) != len(ids) or len(set(digests)) != len(ids) or len(digests) != len(ids):
        return Code.PLAN_BINDING_MISMATCH
    if len(fingerprints) != len(ids):
        return Code.PLAN_BINDING_MISMATCH
    return None if all(map(is_migration_id, ids)) else Code.INVALID_MIGRATION_ID


def text_violation(*texts: str) -> Code | None:
    """Reasons, destinations and operator names: not blank, at most 4 096 bytes, one line of printable text each."""
    for text in texts:
        if not text.strip() or not text.isprintable() or len(text.encode()) > MAX_REASON_BYTES:
            return Code.INVALID_TEXT
    return None
