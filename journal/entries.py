"""What a store loads: open plans with their events, and the active ledger, checked as seed 000 checks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from journal.errors import Code, failure
from journal.identities import Digest, MigrationId, Sequence as SequenceNumber
from journal.records import (
    AppliedRecord,
    BackfillEventRecord,
    GroupEventRecord,
    JournalEntry,
    PlanRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
)


@dataclass(frozen=True, slots=True)
class OpenPlanRecord:
    """The open apply plan and the ordered events of its units; backfills are the forward ones."""

    plan: JournalEntry[PlanRecord]
    events: tuple[JournalEntry[GroupEventRecord], ...]
    backfill_events: tuple[JournalEntry[BackfillEventRecord], ...] = ()

    def __post_init__(self) -> None:
        record = self.plan.record
        _check_open_plan(self.plan, record.migration_ids, [*self.events, *self.backfill_events])


@dataclass(frozen=True, slots=True)
class OpenRollbackPlanRecord:
    """The open rollback plan and the ordered events of its units; backfills are the reverse ones."""

    plan: JournalEntry[RollbackPlanRecord]
    events: tuple[JournalEntry[RollbackStepEventRecord], ...]
    backfill_events: tuple[JournalEntry[BackfillEventRecord], ...] = ()

    def __post_init__(self) -> None:
        record = self.plan.record
        _check_open_plan(self.plan, record.rollback_ids, [*self.events, *self.backfill_events])


_UnitEntry: TypeAlias = JournalEntry[GroupEventRecord | BackfillEventRecord | RollbackStepEventRecord]


def _check_open_plan(
    plan: JournalEntry[PlanRecord] | JournalEntry[RollbackPlanRecord],
    ids: Sequence[MigrationId],
    events: Sequence[_UnitEntry],
) -> None:
    """Sequences grow, fences never fall, scope and manifest are the plan's (seed 000's check of what a store loads)."""
    digests = dict(zip(plan.record.manifest_digests, ids, strict=True))
    sequence, fence = plan.sequence, plan.record.fence
    for entry in sorted(events, key=lambda entry: entry.sequence):
        event = entry.record
        ordered = entry.sequence > sequence and event.fence >= fence
        if not ordered or event.scope != plan.record.scope or digests.get(event.manifest_digest) != event.migration_id:
            raise failure(
                Code.INVALID_OPEN_PLAN, f"event {entry.sequence} is not ordered after and bound to its open plan"
            )
        sequence, fence = entry.sequence, event.fence


def active_applied_entries(
    applied: Sequence[JournalEntry[AppliedRecord]], rolled_back: Sequence[JournalEntry[RolledBackRecord]]
) -> list[JournalEntry[AppliedRecord]]:
    """The active ledger: each retirement consumes the latest unconsumed applied record before it with its identity.

    `admission` keeps the same rule one event at a time; this is the rule over whole lists, for stores and checks.

    Raises:
        IntegrityError: `migration_execution_unmatched_retirement`.
    """
    latest: dict[tuple[MigrationId, Digest], list[SequenceNumber]] = {}
    retired: set[tuple[SequenceNumber, MigrationId]] = set()  # one import brings several under one sequence
    changes: list[JournalEntry[AppliedRecord | RolledBackRecord]] = [*applied, *rolled_back]
    for entry in sorted(changes, key=lambda entry: entry.sequence):
        stack = latest.setdefault((entry.record.migration_id, entry.record.manifest_digest), [])
        if isinstance(entry.record, AppliedRecord):
            stack.append(entry.sequence)
        elif stack:
            retired.add((stack.pop(), entry.record.migration_id))
        else:
            raise failure(
                Code.UNMATCHED_RETIREMENT,
                f"retirement {entry.sequence} of {entry.record.migration_id} matches no active applied record before it",
            )
    return [entry for entry in applied if (entry.sequence, entry.record.migration_id) not in retired]
