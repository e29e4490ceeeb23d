"""A service that owns its migrations and publishes what happens to them through the journal.

The service keeps its migrations in a format of its own, a Python list of SQL statements, and runs them on its SQLite
database itself. The journal gives it three things: one holder at a time, a history that can be trusted, and, after a
crash, a decision that rests on evidence. Run it, kill it wherever you like, run it again:

    python examples/orders_service.py migrate --holder pod-1
    python examples/orders_service.py migrate --holder pod-2
    python examples/orders_service.py rollback 1 --holder pod-2
    journal status

`--database` is the service's own database, `orders.db` by default. Where the journal is comes from the journal's own
settings (JOURNAL_LOG, journal.toml), by default `journal.db` in this folder.

For demonstrations and tests, ORDERS_STOP_AFTER makes it stop for good at one of these points, as a paused machine would:
plan (opened), before_commit (recorded, transaction still open), commit (done, not recorded), committed (recorded),
applied (the first migration entered or left the ledger).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from journal.bootstrap import open_journal
from journal.entries import OpenPlanRecord, OpenRollbackPlanRecord
from journal.errors import Code, JournalError, LeaseContendedError, failure
from journal.identities import Digest, Fingerprint, HolderId, MigrationId, Scope, digest, fingerprint
from journal.journal import Journal
from journal.lease import Lease
from journal.migrations.manifest import (
    ManagedState,
    SchemaStep,
    VerifiedManifest,
    VerifiedRollback,
    verify_manifest,
    verify_rollback,
)
from journal.migrations.plan import verify_plan, verify_rollback_plan
from journal.records import (
    AppliedRecord,
    GroupEventRecord,
    PlanRecord,
    RollbackPlanRecord,
    RollbackStepEventRecord,
    RolledBackRecord,
)
from journal.recovery import RecoveryDecision, decide_group_recovery
from journal.settings import load_settings
from journal.vocabulary import GroupEventKind

SCOPE = Scope("orders")


# --- the service's own migrations -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Migration:
    """What this service calls a migration: statements that go up, and statements that go down again."""

    name: str
    up: Sequence[str]
    down: Sequence[str]


MIGRATIONS = (
    Migration(
        "0001_orders",
        up=["CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total REAL NOT NULL)"],
        down=["DROP TABLE orders"],
    ),
    Migration(
        "0002_total_in_cents",
        up=[
            "ALTER TABLE orders ADD COLUMN total_cents INTEGER",
            "UPDATE orders SET total_cents = round(total * 100)",
        ],
        down=["ALTER TABLE orders DROP COLUMN total_cents"],
    ),
    Migration(
        "0003_customer_index",
        up=["CREATE INDEX orders_by_customer ON orders (customer)"],
        down=["DROP INDEX orders_by_customer"],
    ),
)


# --- verified evidence from identities and digests --------------------------------------------------------------------
#
# The journal never sees a statement. It wants to know what a migration is (a digest of its content), and between which
# two states of the schema it leads (a fingerprint of what the schema means). Both are this service's to define.

SEMANTIC_PROFILE = fingerprint("orders-service semantics", b"name and SQL of every object in sqlite_master")
LOWERING_PROFILE = fingerprint("orders-service lowering", b"statements are executed as they are written")


def semantics(connection: sqlite3.Connection) -> Fingerprint:
    """What the live schema means: every object with its SQL, white space aside, in a fixed order."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    return fingerprint("orders-service schema", *(f"{name}: {' '.join(sql.split())}".encode() for name, sql in rows))


def build_manifests() -> list[VerifiedManifest]:
    """The evidence of every migration; the states between them are found by running all on a database in memory."""
    shadow = sqlite3.connect(":memory:")
    manifests: list[VerifiedManifest] = []
    source = ManagedState(SCOPE, fingerprint("orders-service declared"), semantics(shadow))
    for migration in MIGRATIONS:
        for statement in migration.up:
            shadow.execute(statement)
        content = digest(
            "orders-service migration", *(text.encode() for text in (*migration.up, "down", *migration.down))
        )
        declared = fingerprint("orders-service declared", source.declared, content)
        target = ManagedState(SCOPE, declared, semantics(shadow))
        step = SchemaStep(content, source, target, len(migration.up), reverse_statements=len(migration.down))
        manifests.append(
            verify_manifest(
                id=MigrationId("orders", migration.name),
                source=source,
                target=target,
                steps=[step],
                semantic_profile=SEMANTIC_PROFILE,
                lowering_profile=LOWERING_PROFILE,
                dependencies=[manifest.id for manifest in manifests[-1:]],
            )
        )
        source = target
    shadow.close()
    return manifests


# --- one unit: a transaction on the database between two records --------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """One transaction on the database, whichever direction it leads; `record` publishes what became of it."""

    name: str
    statements: Sequence[str]
    source: Fingerprint
    target: Fingerprint
    record: Callable[[GroupEventKind, Fingerprint | None], Awaitable[object]]


async def run_unit(database: sqlite3.Connection, unit: Unit, last: GroupEventKind | None) -> None:
    """Bring one unit to its end, from wherever its last event left it.

    Everything from the observation to the commit happens under the database's write lock. So an older holder that is
    paused in the middle of its transaction is waited for, and cannot commit once its successor has looked: to begin
    anew it would have to record `before_commit`, which the journal refuses to a stale fence.
    """
    await asyncio.to_thread(database.execute, "BEGIN IMMEDIATE")
    try:
        observed = semantics(database)
        decision = decide_group_recovery(last, observed, source=unit.source, target=unit.target)
        if last is not None:
            print(f"{unit.name}: its last event is {last.value}; from what the database shows: {decision.value}")
        if decision is RecoveryDecision.EXECUTE_NORMALLY:
            for statement in unit.statements:
                database.execute(statement)
            await unit.record(GroupEventKind.BEFORE_COMMIT, None)
            stop_after("before_commit")
            await commit(database, unit)
            stop_after("commit")
            observed = semantics(database)
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")
    if decision is RecoveryDecision.REQUIRES_EXPLICIT_RECOVERY:
        raise failure(Code.UNIT_IN_DOUBT, f"{unit.name}: the database is in neither of the states that it may be in")
    if decision is RecoveryDecision.EXECUTE_NORMALLY or last is not GroupEventKind.COMMITTED:
        await unit.record(GroupEventKind.COMMITTED, observed)
    stop_after("committed")
    print(f"{unit.name}: {'executed' if decision is RecoveryDecision.EXECUTE_NORMALLY else 'repaired'}")


async def commit(database: sqlite3.Connection, unit: Unit) -> None:
    """Commit, and say what a failure proves: while SQLite still has the transaction open, nothing was committed."""
    try:
        database.execute("COMMIT")
    except sqlite3.Error:
        aborted = database.in_transaction
        if aborted:
            database.execute("ROLLBACK")
        kind = GroupEventKind.DEFINITELY_ABORTED if aborted else GroupEventKind.COMMIT_OUTCOME_UNKNOWN
        await unit.record(kind, None)
        raise


# --- both directions ----------------------------------------------------------------------------------------------------

OpenPlan: TypeAlias = OpenPlanRecord | OpenRollbackPlanRecord


class Service:
    """The service's migration runner, with a lease in hand."""

    def __init__(self, journal: Journal, lease: Lease, database: sqlite3.Connection) -> None:
        self.journal = journal
        self.lease = lease
        self.database = database
        self.manifests = build_manifests()

    async def migrate(self) -> None:
        """Finish what a dead process left open, then apply whatever is missing."""
        await self.finish_open_plan()
        ledger = await self.applied()
        missing = self.manifests[len(ledger) :]
        if not missing:
            print("nothing left to do")
            return
        plan = verify_plan(applied=ledger, planned=missing)
        record = PlanRecord.from_verified_plan(self.lease, plan, ids_of(ledger), self.live_state(ledger))
        await self.journal.begin_plan(self.lease, record)
        stop_after("plan")
        await self.finish_open_plan()

    async def rollback(self, count: int) -> None:
        """Finish what a dead process left open, then take off the last `count` migrations."""
        await self.finish_open_plan()
        ledger = await self.applied()
        retired = [verify_rollback(manifest) for manifest in reversed(ledger[len(ledger) - min(count, len(ledger)) :])]
        if not retired:
            print("nothing left to do")
            return
        plan = verify_rollback_plan(applied=ledger, rollbacks=retired)
        record = RollbackPlanRecord.from_verified_rollback_plan(
            self.lease, plan, ids_of(ledger), self.live_state(ledger)
        )
        await self.journal.begin_rollback_plan(self.lease, record)
        stop_after("plan")
        await self.finish_open_plan()

    async def finish_open_plan(self) -> None:
        """Bring every migration of the open plan, if there is one, to its end."""
        plan = await self.journal.load_open_plan(self.lease)
        if plan is not None:
            for manifest in self.planned(plan, plan.plan.record.migration_ids):
                await self.apply(manifest, last_kind(plan, manifest.digest))
        rollback = await self.journal.load_open_rollback_plan(self.lease)
        if rollback is not None:
            for manifest in self.planned(rollback, rollback.plan.record.rollback_ids):
                await self.roll_back(verify_rollback(manifest), last_kind(rollback, manifest.digest))

    async def apply(self, manifest: VerifiedManifest, last: GroupEventKind | None) -> None:
        """Apply one migration of the open plan, unless it is in the ledger already."""
        if manifest in await self.applied():
            return
        (group,) = manifest.groups

        async def record(kind: GroupEventKind, observed: Fingerprint | None) -> None:
            self.lease.check()
            event = GroupEventRecord.new(self.lease, manifest, group, kind, observed)
            await self.journal.record_group_event(self.lease, event)

        ends = manifest.source.semantics, manifest.target.semantics
        await run_unit(self.database, Unit(f"apply {manifest.id}", self.own(manifest).up, *ends, record), last)
        await self.journal.record_applied(self.lease, AppliedRecord.from_verified_manifest(self.lease, manifest))
        stop_after("applied")

    async def roll_back(self, rollback: VerifiedRollback, last: GroupEventKind | None) -> None:
        """Roll back one migration of the open plan, unless it has left the ledger already."""
        manifest = rollback.manifest
        if manifest not in await self.applied():
            return

        async def record(kind: GroupEventKind, observed: Fingerprint | None) -> None:
            self.lease.check()
            event = RollbackStepEventRecord.new(self.lease, rollback, 0, kind, observed)
            await self.journal.record_rollback_step_event(self.lease, event)

        ends = manifest.target.semantics, manifest.source.semantics
        await run_unit(self.database, Unit(f"roll back {manifest.id}", self.own(manifest).down, *ends, record), last)
        await self.journal.record_rolled_back(self.lease, RolledBackRecord.from_verified_rollback(self.lease, rollback))
        stop_after("applied")

    async def applied(self) -> list[VerifiedManifest]:
        """The active ledger, as this version of the service knows it."""
        entries = await self.journal.load_applied(self.lease)
        known = self.manifests[: len(entries)]
        if {entry.record.manifest_digest for entry in entries} != {manifest.digest for manifest in known}:
            raise failure(Code.STALE_APPLIED_SET, "the ledger holds migrations that this version does not know")
        return known

    def planned(self, plan: OpenPlan, ids: Sequence[MigrationId]) -> list[VerifiedManifest]:
        """The manifests of an open plan. It may be another version's: only the same content may be carried on."""
        known = {manifest.digest: manifest for manifest in self.manifests}
        digests = plan.plan.record.manifest_digests
        unknown = [id for id, digest in zip(ids, digests, strict=True) if digest not in known]
        if unknown:
            raise failure(
                Code.FOREIGN_PLAN, f"the open plan has {unknown[0]} in a form that this version does not know"
            )
        return [known[digest] for digest in digests]

    def live_state(self, ledger: Sequence[VerifiedManifest]) -> ManagedState:
        """The state that the ledger declares, with the semantics that the database really has."""
        expected = ledger[-1].target if ledger else self.manifests[0].source
        return ManagedState(SCOPE, expected.declared, semantics(self.database))

    @staticmethod
    def own(manifest: VerifiedManifest) -> Migration:
        """The service's own form of a migration."""
        return next(migration for migration in MIGRATIONS if migration.name == manifest.id.name)


def ids_of(manifests: Sequence[VerifiedManifest]) -> list[MigrationId]:
    return sorted(manifest.id for manifest in manifests)


def last_kind(plan: OpenPlan, manifest_digest: Digest) -> GroupEventKind | None:
    """The last event of a migration's only unit."""
    kinds = [entry.record.kind for entry in plan.events if entry.record.manifest_digest == manifest_digest]
    return kinds[-1] if kinds else None


# --- the program --------------------------------------------------------------------------------------------------------


def stop_after(point: str) -> None:
    """Stop for good if this is where ORDERS_STOP_AFTER says."""
    if os.environ.get("ORDERS_STOP_AFTER") == point:
        print(f"stopped after {point}", flush=True)
        while True:
            signal.pause()


def tell_waiting(error: LeaseContendedError) -> None:
    print(f"waiting: {error.message}", flush=True)


async def run(arguments: argparse.Namespace) -> None:
    database = sqlite3.connect(arguments.database, isolation_level=None, timeout=5, check_same_thread=False)
    try:
        async with open_journal(load_settings(), create=True) as journal:
            await journal.create(SCOPE)
            ttl = timedelta(seconds=arguments.ttl)
            lease = await journal.acquire(SCOPE, HolderId(arguments.holder), ttl=ttl, on_wait=tell_waiting)
            print(f"{lease.holder} has the lease, fence {lease.fence}")
            service = Service(journal, lease, database)
            await (service.migrate() if arguments.command == "migrate" else service.rollback(arguments.count))
    finally:
        database.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the order service's migrations.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--holder", required=True, help="who asks for the lease")
    common.add_argument("--database", type=Path, default=Path("orders.db"))
    common.add_argument("--ttl", type=float, default=30.0, help="seconds that the lease lasts without renewal")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("migrate", parents=[common], help="apply what is missing")
    commands.add_parser("rollback", parents=[common], help="take off the last migrations").add_argument(
        "count", type=int
    )
    try:
        asyncio.run(run(parser.parse_args()))
    except (JournalError, sqlite3.Error) as error:
        print(f"orders_service: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
