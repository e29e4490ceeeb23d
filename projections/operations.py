"""What operators say, with their name and a reason: attest the outcome of a unit, abandon a plan, adopt a database.

Each is done under a lease and is one event; nothing here executes a migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from journal.control import Control
from journal.errors import Code, failure
from journal.identities import Fingerprint, MigrationId
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import ManagedState
from journal.migrations.planner import check_files, plan_apply
from journal.migrations.source import MigrationSource
from journal.ports import Database
from journal.records import (
    JournalEntry,
    LedgerImportedRecord,
    PlanAbandonedRecord,
    PlanRecord,
    RecoveryAttestedRecord,
    RollbackPlanRecord,
)
from journal.state import journal_entry
from journal.vocabulary import GroupEventKind
from projections.doubts import Doubt
from projections.ledger import ledger_of
from projections.open_plan import guard_of
from projections.rehearsal import Rehearsal, stale


@dataclass(frozen=True, slots=True)
class Attestation:
    """Who says something, and why."""

    operator: str
    reason: str


async def attest(
    journal: Journal, lease: Lease, doubt: Doubt, outcome: GroupEventKind, attestation: Attestation
) -> JournalEntry[RecoveryAttestedRecord]:
    """Record an operator's statement about a unit in doubt.

    Raises:
        InvalidContractError: `journal_attestation_contradicted`: the evidence says otherwise.
    """
    against = doubt.contradicts(outcome)
    if against is not None:
        raise failure(
            Code.ATTESTATION_CONTRADICTED,
            f"{doubt.name} cannot be attested as {outcome.value}: {against}",
            unit=doubt.name,
            outcome=outcome.value,
        )
    record = RecoveryAttestedRecord.new(
        lease,
        doubt.event,
        outcome,
        observed=doubt.live,
        operator=attestation.operator,
        reason=attestation.reason,
    )
    return await journal.attest_recovery(lease, record)


async def abandon(journal: Journal, lease: Lease, attestation: Attestation) -> JournalEntry[PlanAbandonedRecord]:
    """Give up the open plan.

    Raises:
        InvalidContractError: `migration_execution_no_open_plan`.
        IntegrityError: `migration_execution_unit_in_doubt`.
    """
    state = await journal.state(lease.scope)
    if state.plan is None:
        raise failure(Code.NO_OPEN_PLAN, f"no plan is open in scope {lease.scope}: there is nothing to abandon")
    entry: JournalEntry[PlanRecord] | JournalEntry[RollbackPlanRecord] = journal_entry(state.plan.entry)
    record = PlanAbandonedRecord.new(lease, entry, operator=attestation.operator, reason=attestation.reason)
    return await journal.abandon_plan(lease, record)


async def adopt(
    journal: Journal,
    lease: Lease,
    database: Database,
    rehearsal: Rehearsal,
    sources: Sequence[MigrationSource],
    target: MigrationId | None,
    attestation: Attestation,
    control: Control,
) -> JournalEntry[LedgerImportedRecord] | None:
    """Take migrations into the ledger that the target has already; nothing is executed. None when all are there.

    Raises:
        IntegrityError: `migration_execution_stale_source_state`: the live schema is not what they make; names what differs.
    """
    ordered = check_files(sources)
    state = await journal.state(lease.scope)
    if state.plan is not None:
        raise failure(Code.PLAN_ALREADY_OPEN, "a plan is open: finish it or give it up before you adopt anything")
    plan = plan_apply(ordered, ledger_of(state), target, allow_out_of_order=True)
    if not plan.planned:
        return None
    chain = [*plan.applied, *plan.planned]
    prepared = await rehearsal.prepare(chain)
    expected = rehearsal.state_after(prepared)
    # Once before the target is made this journal's own, so that a refusal leaves it as it is, and once under its fence.
    await _check_live(database, rehearsal, chain, expected)
    await database.raise_fence(guard_of(state, lease), control, adopt=True)
    live = await _check_live(database, rehearsal, chain, expected)
    record = LedgerImportedRecord.from_verified_manifests(
        lease,
        [item.manifest for item in prepared[len(plan.applied) :]],
        ManagedState(lease.scope, expected.declared, live),
        operator=attestation.operator,
        reason=attestation.reason,
    )
    lease.check()
    control.check()
    return await journal.import_ledger(lease, record)


async def _check_live(
    database: Database, rehearsal: Rehearsal, chain: Sequence[MigrationSource], expected: ManagedState
) -> Fingerprint:
    live = await database.observe()
    if live != expected.semantics:
        advice = "adopt another number of them with --to, or bring the schema there first"
        raise await stale(database, rehearsal, chain, advice)
    return live
