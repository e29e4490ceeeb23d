"""What each void reason means, in one sentence for people: errors, `journal history` and the documentation share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from journal.errors import Code

EXPLANATIONS: Final[Mapping[Code, str]] = {
    Code.UNDECODABLE: "the bytes have no readable event header",
    Code.FOREIGN_SCOPE: "the event belongs to another scope or incarnation, or is a second genesis",
    Code.FORGED: "the MAC is missing or wrong",
    Code.STALE_PARENT: "the event does not follow the last event that counts: another one came first",
    Code.FENCE_NOT_MONOTONIC: "the lease's fence is not above every fence before it",
    Code.STALE_FENCE: "the event was not written under the current lease",
    Code.SCOPE_MOVED: "the scope was moved to another log before: nothing counts here but its arrival",
    Code.NOT_MOVED: "the scope was not moved away, or not to this place",
    Code.INVALID_EVENT_TRANSITION: "the unit cannot go from its last state to this one under this fence",
    Code.PLAN_ALREADY_OPEN: "a plan is open already, of either direction",
    Code.NO_OPEN_PLAN: "no plan of this direction is open",
    Code.EMPTY_PLAN: "the plan names no migration",
    Code.STALE_APPLIED_SET: "the plan starts from another set of applied migrations than the active ledger",
    Code.PLAN_BINDING_MISMATCH: "the plan does not bind one digest and one fingerprint to each migration",
    Code.FOREIGN_EVENT: "the migration and digest are not in the open plan",
    Code.GROUP_POSITION_MISMATCH: "the group's step positions contradict each other",
    Code.COMMIT_EVIDENCE_MISMATCH: "a committed event needs the observed target semantics",
    Code.UNEXPECTED_OBSERVATION: "only a committed event carries observed semantics",
    Code.INVALID_FORMAL_ADVANCE: "a formal advance carries no observed semantics",
    Code.BACKFILL_COMPLETION_MISMATCH: "a committed backfill needs the completion of the same program and direction",
    Code.BACKFILL_FORMAL_ADVANCE: "a backfill cannot advance formally",
    Code.UNEXPECTED_BACKFILL_COMPLETION: "only a committed backfill carries a completion",
    Code.BACKFILL_ZERO_TRANSACTION_GROUPS: "the counts name no transaction group",
    Code.BACKFILL_COUNT_MISMATCH: "matched rows are not changed plus skipped rows",
    Code.CHECKPOINT_REGRESSION: "the checkpoint's counts are below those of the one before",
    Code.APPLIED_IDENTITY_CONFLICT: "the migration is in the active ledger with other evidence",
    Code.FOREIGN_APPLIED_RECORD: "the migration and digest are not in the open plan",
    Code.RETIREMENT_CONFLICT: "the migration is not active with this digest",
    Code.FOREIGN_PLAN: "the record names another plan than the open one",
    Code.UNIT_IN_DOUBT: "a unit of the plan is in doubt: resolve it first",
    Code.EMPTY_IMPORT: "the import names no migration",
    Code.POSITION_LIMIT: "a position is outside its range",
    Code.INVALID_MIGRATION_ID: "a migration id is not of the form app/name",
    Code.INVALID_HOLDER: "the holder's label is malformed or not that of the lease",
    Code.INVALID_TEXT: "operator, reason or destination is blank, too long or not one line of printable text",
}
