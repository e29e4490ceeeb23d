"""The error tree and every diagnostic code.

The classes are split by what the caller does next (retry, stop, ask an operator, fix the call); the code says what
happened. Codes are stable: tools may match on them. The same codes are the reasons that admission gives for a void
event, so what a writer is told and what `journal history` shows are the same word.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """Every diagnostic code. Codes that start with `migration_` come from seed 000 and keep its spelling."""

    # Header rules of admission, in the order in which they are checked.
    UNDECODABLE = "undecodable"
    FOREIGN_SCOPE = "foreign_scope"
    FORGED = "forged"
    STALE_PARENT = "stale_parent"
    FENCE_NOT_MONOTONIC = "fence_not_monotonic"
    STALE_FENCE = "migration_execution_stale_fence"
    SCOPE_MOVED = "journal_scope_moved"

    # The records' own rules.
    INVALID_EVENT_TRANSITION = "migration_execution_invalid_event_transition"
    PLAN_ALREADY_OPEN = "migration_execution_plan_already_open"
    NO_OPEN_PLAN = "migration_execution_no_open_plan"
    EMPTY_PLAN = "migration_execution_empty_plan"
    STALE_APPLIED_SET = "migration_execution_stale_applied_set"
    STALE_SOURCE_STATE = "migration_execution_stale_source_state"
    SCOPE_MISMATCH = "migration_execution_scope_mismatch"
    PLAN_BINDING_MISMATCH = "migration_execution_plan_binding_mismatch"
    FOREIGN_EVENT = "migration_execution_foreign_event"
    FOREIGN_GROUP = "migration_execution_foreign_group"
    GROUP_POSITION_MISMATCH = "migration_execution_group_position_mismatch"
    GROUP_LOWERING_MISSING = "migration_execution_group_lowering_missing"
    COMMIT_EVIDENCE_MISMATCH = "migration_execution_commit_evidence_mismatch"
    INVALID_FORMAL_ADVANCE = "migration_execution_invalid_formal_advance"
    UNEXPECTED_OBSERVATION = "migration_execution_unexpected_observation"
    BACKFILL_STEP_POSITION = "migration_execution_backfill_step_position"
    BACKFILL_COMPLETION_MISMATCH = "migration_execution_backfill_completion_mismatch"
    BACKFILL_FORMAL_ADVANCE = "migration_execution_backfill_formal_advance"
    UNEXPECTED_BACKFILL_COMPLETION = "migration_execution_unexpected_backfill_completion"
    BACKFILL_ZERO_TRANSACTION_GROUPS = "migration_backfill_zero_transaction_groups"
    BACKFILL_COUNT_MISMATCH = "migration_backfill_count_mismatch"
    ROLLBACK_STEP_POSITION = "migration_execution_rollback_step_position"
    APPLIED_IDENTITY_CONFLICT = "migration_execution_applied_identity_conflict"
    FOREIGN_APPLIED_RECORD = "migration_execution_foreign_applied_record"
    RETIREMENT_CONFLICT = "migration_execution_retirement_conflict"
    UNMATCHED_RETIREMENT = "migration_execution_unmatched_retirement"
    INVALID_OPEN_PLAN = "migration_execution_invalid_open_plan"
    POSITION_LIMIT = "migration_execution_position_limit"
    FOREIGN_PLAN = "migration_execution_foreign_plan"
    UNIT_IN_DOUBT = "migration_execution_unit_in_doubt"
    CHECKPOINT_REGRESSION = "migration_backfill_checkpoint_regression"
    NOT_MOVED = "journal_not_moved"
    EMPTY_IMPORT = "migration_execution_empty_import"

    # Identities and control.
    INVALID_HOLDER = "migration_execution_invalid_holder"
    ZERO_FENCE = "migration_execution_zero_fence"
    FENCE_EXHAUSTED = "migration_execution_fence_exhausted"
    ZERO_SEQUENCE = "migration_execution_zero_sequence"
    SEQUENCE_EXHAUSTED = "migration_execution_sequence_exhausted"
    INVALID_SCOPE = "journal_invalid_scope"
    INVALID_MIGRATION_ID = "journal_invalid_migration_id"
    INVALID_DIGEST = "journal_invalid_digest"
    INVALID_TEXT = "journal_invalid_text"
    INVALID_MANIFEST = "journal_invalid_manifest"
    IRREVERSIBLE = "journal_irreversible"
    INVALID_SETTINGS = "journal_invalid_settings"
    CANCELLED = "migration_execution_cancelled"
    DEADLINE_EXCEEDED = "migration_execution_deadline_exceeded"
    LIMIT_EXCEEDED = "journal_limit_exceeded"

    # Leases and writing.
    LEASE_CONTENDED = "migration_execution_lease_contended"
    LEASE_LOST = "journal_lease_lost"
    LEASE_IN_DOUBT = "journal_lease_in_doubt"
    FOREIGN_LEASE = "journal_foreign_lease"
    DAMAGED_LEASE = "journal_damaged_lease"
    LEASES_UNAVAILABLE = "journal_leases_unavailable"
    OUTCOME_UNKNOWN = "journal_outcome_unknown"
    NOT_WRITTEN = "journal_not_written"
    CLOSED = "journal_closed"
    FOREIGN_LOOP = "journal_foreign_loop"
    FORKED = "journal_forked"

    # Logs, files and keys.
    UNKNOWN_SCOPE = "journal_unknown_scope"
    UNKNOWN_EVENT = "journal_unknown_event"
    UNDECODABLE_BODY = "journal_undecodable_body"
    READERS_DISAGREE = "journal_readers_disagree"
    EVENT_TOO_LARGE = "journal_event_too_large"
    FORMAT_TOO_NEW = "journal_format_too_new"
    NO_GENESIS = "journal_no_genesis"
    NOT_YET_CREATED = "journal_not_yet_created"
    HISTORY_LOST = "journal_history_lost"
    CHAIN_BROKEN = "journal_chain_broken"
    KEY_REQUIRED = "journal_key_required"
    KEY_UNEXPECTED = "journal_key_unexpected"
    INVALID_KEY = "journal_invalid_key"
    FOREIGN_FILE = "journal_foreign_file"
    DAMAGED_FILE = "journal_damaged_file"
    MISSING_FILE = "journal_missing_file"
    READ_ONLY = "journal_read_only"
    SCOPE_AWAITED = "journal_scope_awaited"
    DAMAGED_ARCHIVE = "journal_damaged_archive"
    FOREIGN_ARCHIVE = "journal_foreign_archive"
    STORAGE_FULL = "journal_storage_full"
    STORAGE_BUSY = "journal_storage_busy"
    STORAGE_FAILED = "journal_storage_failed"
    NOT_PERMITTED = "journal_not_permitted"
    UNSAFE_LOG = "journal_unsafe_log"

    # Migration files, graph and planning.
    INVALID_FOLDER = "journal_invalid_folder"
    INVALID_GRAPH = "journal_invalid_graph"
    UNKNOWN_MIGRATION = "journal_unknown_migration"
    MIGRATION_EDITED = "journal_migration_edited"
    LEDGER_AHEAD = "journal_ledger_ahead"
    OUT_OF_ORDER = "journal_out_of_order"
    PLAN_DIFFERS = "journal_plan_differs"
    INVALID_STEP_PLAN = "journal_invalid_step_plan"
    EXPLICIT_RECOVERY = "journal_explicit_recovery"
    NOTHING_IN_DOUBT = "journal_nothing_in_doubt"
    ATTESTATION_CONTRADICTED = "journal_attestation_contradicted"
    REVERSE_DIFFERS = "journal_reverse_differs"

    # The target database.
    STATEMENT_REFUSED = "journal_statement_refused"
    STATEMENT_FAILED = "journal_statement_failed"
    ASSERTION_FAILED = "journal_assertion_failed"
    VERIFY_FAILED = "journal_verify_failed"
    BACKFILL_KEY = "journal_backfill_key"
    BACKFILL_ROWS = "journal_backfill_rows"
    REFERENCES_BROKEN = "journal_references_broken"
    UNEXPECTED_RESULT = "journal_unexpected_result"
    COMMIT_FAILED = "journal_commit_failed"
    TARGET_BUSY = "journal_target_busy"
    TARGET_UNAVAILABLE = "journal_target_unavailable"
    TARGET_FENCED = "journal_target_fenced"
    FOREIGN_TARGET = "journal_foreign_target"
    TARGET_OLDER = "journal_target_older"
    MISSING_TARGET = "journal_missing_target"


class JournalError(Exception):
    """Base of everything this package raises on purpose.

    `code` is stable and documented in `Code`; `message` is for people; `details` are the values that the message
    speaks of (never a secret), for `--json` and logs.
    """

    def __init__(self, code: Code, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class InvalidContractError(JournalError):
    """The caller asked for something that is never allowed: fix the call."""


class IntegrityError(JournalError):
    """Evidence contradicts evidence: stop and look."""


class FencedError(IntegrityError):
    """A newer fence exists, or this lease is over: stop at once, never retry under this lease."""


class UnknownEventError(IntegrityError):
    """The log holds an admissible event that this version cannot read: upgrade before reading on."""


class HistoryLostError(IntegrityError):
    """Events that were in the log are gone."""


class ForgedError(IntegrityError):
    """Authentication failed, or the key that it needs is missing."""


class LeaseContendedError(JournalError):
    """Someone else holds the lease. `holder` says who, `expires_at` (UTC, seconds since 1970) until when."""

    def __init__(self, message: str, *, holder: str, expires_at: float, **details: Any) -> None:
        super().__init__(Code.LEASE_CONTENDED, message, holder=holder, expires_at=expires_at, **details)
        self.holder = holder
        self.expires_at = expires_at


class ResourceLimitError(JournalError):
    """A deadline, a size or a count was reached."""


class OperationCancelledError(JournalError):
    """Cancelled at a safe boundary: nothing of the next effect was begun."""


class UnavailableError(JournalError):
    """A service did not answer and nothing was written. The only branch that may simply be retried."""


class LeaseLostError(UnavailableError):
    """The lease could not be renewed in time. Nobody is known to have taken it: acquire again."""


class OutcomeUnknownError(JournalError):
    """Sent, not confirmed. The event may or may not count; `receipt` learns its verdict once a fresh fence settles it."""

    def __init__(self, message: str, *, receipt: Any = None, **details: Any) -> None:
        super().__init__(Code.OUTCOME_UNKNOWN, message, **details)
        self.receipt = receipt


class TargetError(JournalError):
    """The target database refused a statement, or what it shows is not what was planned; nothing of it stays.

    `details["statement"]` counts the statements of a step from 1, where one is to blame; `__cause__` is the driver's error.
    """


class CommitFailedError(TargetError):
    """The commit was answered with an error. `aborted`: the database itself proves that nothing was committed."""

    def __init__(self, message: str, *, aborted: bool = False, **details: Any) -> None:
        super().__init__(Code.COMMIT_FAILED, message, aborted=aborted, **details)
        self.aborted = aborted


_FENCED = frozenset(
    {Code.STALE_PARENT, Code.FENCE_NOT_MONOTONIC, Code.STALE_FENCE, Code.SCOPE_MOVED, Code.TARGET_FENCED}
)
_INVALID_CONTRACT = frozenset(
    {
        Code.PLAN_ALREADY_OPEN,
        Code.NO_OPEN_PLAN,
        Code.EMPTY_PLAN,
        Code.EMPTY_IMPORT,
        Code.INVALID_FORMAL_ADVANCE,
        Code.UNEXPECTED_OBSERVATION,
        Code.BACKFILL_FORMAL_ADVANCE,
        Code.UNEXPECTED_BACKFILL_COMPLETION,
        Code.BACKFILL_ZERO_TRANSACTION_GROUPS,
        Code.BACKFILL_COUNT_MISMATCH,
        Code.INVALID_HOLDER,
        Code.ZERO_FENCE,
        Code.ZERO_SEQUENCE,
        Code.INVALID_SCOPE,
        Code.INVALID_MIGRATION_ID,
        Code.INVALID_DIGEST,
        Code.INVALID_TEXT,
        Code.INVALID_MANIFEST,
        Code.IRREVERSIBLE,
        Code.INVALID_SETTINGS,
        Code.INVALID_KEY,
        Code.UNKNOWN_SCOPE,
        Code.NOT_YET_CREATED,
        Code.FOREIGN_LEASE,
        Code.CLOSED,
        Code.FOREIGN_LOOP,
        Code.FORKED,
        Code.MISSING_FILE,
        Code.READ_ONLY,
        Code.SCOPE_AWAITED,
        Code.NOT_MOVED,
        Code.NOT_PERMITTED,
        Code.INVALID_FOLDER,
        Code.INVALID_GRAPH,
        Code.UNKNOWN_MIGRATION,
        Code.OUT_OF_ORDER,
        Code.PLAN_DIFFERS,
        Code.REVERSE_DIFFERS,
        Code.NOTHING_IN_DOUBT,
        Code.INVALID_STEP_PLAN,
        Code.ATTESTATION_CONTRADICTED,
        Code.STATEMENT_REFUSED,
        Code.BACKFILL_KEY,
        Code.MISSING_TARGET,
    }
)
_RESOURCE_LIMIT = frozenset(
    {
        Code.FENCE_EXHAUSTED,
        Code.SEQUENCE_EXHAUSTED,
        Code.POSITION_LIMIT,
        Code.DEADLINE_EXCEEDED,
        Code.LIMIT_EXCEEDED,
        Code.EVENT_TOO_LARGE,
    }
)
_UNAVAILABLE = frozenset(
    {
        Code.NOT_WRITTEN,
        Code.LEASE_IN_DOUBT,
        Code.LEASES_UNAVAILABLE,
        Code.STORAGE_FULL,
        Code.STORAGE_BUSY,
        Code.STORAGE_FAILED,
        Code.TARGET_BUSY,
        Code.TARGET_UNAVAILABLE,
    }
)
_TARGET = frozenset(
    {
        Code.STATEMENT_FAILED,
        Code.ASSERTION_FAILED,
        Code.VERIFY_FAILED,
        Code.BACKFILL_ROWS,
        Code.REFERENCES_BROKEN,
        Code.UNEXPECTED_RESULT,
    }
)
_FORGED = frozenset({Code.FORGED, Code.KEY_REQUIRED, Code.KEY_UNEXPECTED})


def failure(code: Code, message: str, **details: Any) -> JournalError:
    """Build the error of the class that `code` belongs to; codes without a class of their own are integrity errors."""
    if code in _FENCED:
        return FencedError(code, message, **details)
    if code in _INVALID_CONTRACT:
        return InvalidContractError(code, message, **details)
    if code in _RESOURCE_LIMIT:
        return ResourceLimitError(code, message, **details)
    if code in _UNAVAILABLE:
        return UnavailableError(code, message, **details)
    if code in _FORGED:
        return ForgedError(code, message, **details)
    if code in _TARGET:
        return TargetError(code, message, **details)
    if code is Code.COMMIT_FAILED:
        return CommitFailedError(message, **details)
    if code is Code.LEASE_LOST:
        return LeaseLostError(code, message, **details)
    if code is Code.LEASE_CONTENDED:
        return LeaseContendedError(message, **details)
    if code is Code.OUTCOME_UNKNOWN:
        return OutcomeUnknownError(message, **details)
    if code is Code.CANCELLED:
        return OperationCancelledError(code, message, **details)
    if code is Code.HISTORY_LOST:
        return HistoryLostError(code, message, **details)
    if code in (Code.UNKNOWN_EVENT, Code.FORMAT_TOO_NEW):
        return UnknownEventError(code, message, **details)
    return IntegrityError(code, message, **details)
