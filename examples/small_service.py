"""A service with one migration of its own: it executes, and publishes what it does through the journal.

The journal is told what the migration is, not what is in it: an id, a digest of the content, fingerprints of the schema
before and after. It says whether the service may execute, and remembers. `orders_service.py` has more: several
migrations, both directions, and it can be stopped anywhere.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Final

from journal.bootstrap import open_journal
from journal.identities import Fingerprint, HolderId, MigrationId, Scope, digest, fingerprint
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import ManagedState, SchemaStep, VerifiedManifest, verify_manifest
from journal.migrations.plan import verify_plan
from journal.records import AppliedRecord, GroupEventRecord, PlanRecord
from journal.recovery import RecoveryDecision, decide_group_recovery
from journal.settings import load_settings
from journal.vocabulary import GroupEventKind

SCOPE: Final = Scope("items")
SQL: Final = "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT NOT NULL)"
PROFILE: Final = fingerprint("items profile", b"1")


def state(database: sqlite3.Connection, declared: bytes) -> ManagedState:
    """What was written, and what the live schema means."""
    schema = repr(database.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()).encode()
    return ManagedState(SCOPE, fingerprint("items declared", declared), fingerprint("items schema", schema))


def verified() -> VerifiedManifest:
    """Identities and digests of the migration; its states are found on a database in memory."""
    shadow = sqlite3.connect(":memory:")
    source, _, target = state(shadow, b""), shadow.execute(SQL), state(shadow, SQL.encode())
    shadow.close()
    step = SchemaStep(digest("items migration", SQL.encode()), source, target, statements=1)
    return verify_manifest(
        id=MigrationId("items", "0001_items"),
        source=source,
        target=target,
        steps=[step],
        semantic_profile=PROFILE,
        lowering_profile=PROFILE,
    )


async def migrate(journal: Journal, lease: Lease, database: sqlite3.Connection, manifest: VerifiedManifest) -> None:
    """Apply the migration, or finish it for a run that died."""
    plan = await journal.load_open_plan(lease)
    if plan is None:
        ready = verify_plan(applied=[], planned=[manifest])
        await journal.begin_plan(lease, PlanRecord.from_verified_plan(lease, ready, [], state(database, b"")))
    last = plan.events[-1].record.kind if plan is not None and plan.events else None

    async def record(kind: GroupEventKind, observed: Fingerprint | None = None) -> None:
        event = GroupEventRecord.new(lease, manifest, manifest.groups[0], kind, observed)
        await journal.record_group_event(lease, event)

    database.execute("BEGIN IMMEDIATE")  # look, execute and commit under one lock of the target
    decision = decide_group_recovery(
        last, state(database, b"").semantics, source=manifest.source.semantics, target=manifest.target.semantics
    )
    if decision is RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY:
        raise SystemExit("the table is neither as before nor as after: a person has to look")
    if decision is RecoveryDecision.EXECUTE_NORMALLY:
        database.execute(SQL)
        lease.check()
        await record(GroupEventKind.BEFORE_COMMIT)
        last = GroupEventKind.BEFORE_COMMIT
    database.execute("COMMIT")
    if last is not GroupEventKind.COMMITTED:
        await record(GroupEventKind.COMMITTED, state(database, b"").semantics)
    await journal.record_applied(lease, AppliedRecord.from_verified_manifest(lease, manifest))


async def main() -> None:
    """Migrate, then say what is applied."""
    database = sqlite3.connect("items.db", isolation_level=None)
    async with open_journal(load_settings(), create=True) as journal:
        await journal.create(SCOPE)
        async with journal.lease(SCOPE, HolderId("pod-1")) as lease:  # waits for its turn, renews itself
            if not await journal.load_applied(lease):
                await migrate(journal, lease, database, verified())
            print([f"{entry.sequence} {entry.record.migration_id}" for entry in await journal.load_applied(lease)])
    database.close()


asyncio.run(main())
