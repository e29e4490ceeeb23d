"""Plans as verified evidence: which migrations would run, from which ledger and state, to which.

`verify_plan` and `verify_rollback_plan` check a proposed order; finding one in a directory of files is the planner's
work. Both are linear in the number of migrations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from journal.errors import Code, failure
from journal.identities import MigrationId
from journal.migrations.manifest import ManagedState, VerifiedManifest, VerifiedRollback


@dataclass(frozen=True, slots=True)
class VerifiedPlan:
    """Manifests to apply, in order, on top of an applied set. Build it with `verify_plan`.

    `applied` and both frontiers are in canonical order (app, then name); a frontier is the set of migrations that no
    other of the set depends on.
    """

    applied: tuple[MigrationId, ...]
    applied_frontier: tuple[MigrationId, ...]
    target_frontier: tuple[MigrationId, ...]
    manifests: tuple[VerifiedManifest, ...]

    @property
    def source(self) -> ManagedState | None:
        """State that the plan starts from; None for an empty plan."""
        return self.manifests[0].source if self.manifests else None

    @property
    def target(self) -> ManagedState | None:
        """State that the plan ends in; None for an empty plan."""
        return self.manifests[-1].target if self.manifests else None


@dataclass(frozen=True, slots=True)
class VerifiedRollbackPlan:
    """Manifests to roll back, dependents first. Build it with `verify_rollback_plan`."""

    applied: tuple[MigrationId, ...]
    remaining: tuple[MigrationId, ...]
    rollbacks: tuple[VerifiedRollback, ...]

    @property
    def source(self) -> ManagedState | None:
        """State that the rollback starts from; None for an empty plan."""
        return self.rollbacks[0].manifest.target if self.rollbacks else None

    @property
    def target(self) -> ManagedState | None:
        """State that the rollback restores; None for an empty plan."""
        return self.rollbacks[-1].manifest.source if self.rollbacks else None


def verify_plan(*, applied: Iterable[VerifiedManifest], planned: Iterable[VerifiedManifest]) -> VerifiedPlan:
    """Check that `planned`, in this order, can be applied on top of `applied`.

    Raises:
        IntegrityError: `migration_execution_plan_binding_mismatch`: one id twice, a dependency that is neither applied
            nor planned before, an applied set with a hole, or states that do not join.
    """
    applied, planned = tuple(applied), tuple(planned)
    _check_unique([*applied, *planned])
    _check_closed(applied)
    done = {manifest.id for manifest in applied}
    for manifest in planned:
        missing = [dependency for dependency in manifest.dependencies if dependency not in done]
        if missing:
            raise _mismatch(f"{manifest.id} depends on {missing[0]}, which is not applied or planned before it")
        done.add(manifest.id)
    _check_joined([(manifest.source, manifest.target, manifest.id) for manifest in planned])
    return VerifiedPlan(
        applied=_canonical(manifest.id for manifest in applied),
        applied_frontier=frontier(applied),
        target_frontier=frontier([*applied, *planned]),
        manifests=planned,
    )


def verify_rollback_plan(
    *, applied: Iterable[VerifiedManifest], rollbacks: Iterable[VerifiedRollback]
) -> VerifiedRollbackPlan:
    """Check that `rollbacks`, in this order, can be taken off `applied`.

    Raises:
        IntegrityError: `migration_execution_plan_binding_mismatch`: a migration that is not applied or has another
            digest, one that a remaining or later one depends on, one id twice, or states that do not join.
    """
    applied, rollbacks = tuple(applied), tuple(rollbacks)
    _check_unique(applied)
    _check_closed(applied)
    remaining = {manifest.id: manifest for manifest in applied}
    dependents: dict[MigrationId, int] = {}
    for manifest in applied:
        for dependency in manifest.dependencies:
            dependents[dependency] = dependents.get(dependency, 0) + 1
    for rollback in rollbacks:
        id = rollback.manifest.id
        if id not in remaining or remaining[id].digest != rollback.digest:
            raise _mismatch(f"{id} is not applied with this digest, or is rolled back twice")
        if dependents.get(id):
            raise _mismatch(f"{id} cannot be rolled back while a migration that depends on it stays applied")
        del remaining[id]
        for dependency in rollback.manifest.dependencies:
            dependents[dependency] -= 1
    _check_joined([(r.manifest.target, r.manifest.source, r.manifest.id) for r in rollbacks])
    return VerifiedRollbackPlan(
        applied=_canonical(manifest.id for manifest in applied),
        remaining=_canonical(remaining),
        rollbacks=rollbacks,
    )


def frontier(manifests: Sequence[VerifiedManifest]) -> tuple[MigrationId, ...]:
    """The migrations that no other of them depends on, in canonical order."""
    needed = {dependency for manifest in manifests for dependency in manifest.dependencies}
    return _canonical(manifest.id for manifest in manifests if manifest.id not in needed)


def _canonical(ids: Iterable[MigrationId]) -> tuple[MigrationId, ...]:
    return tuple(sorted(ids))


def _mismatch(problem: str) -> Exception:
    return failure(Code.PLAN_BINDING_MISMATCH, problem)


def _check_unique(manifests: Sequence[VerifiedManifest]) -> None:
    seen: set[MigrationId] = set()
    for manifest in manifests:
        if manifest.id in seen:
            raise _mismatch(f"{manifest.id} occurs twice")
        seen.add(manifest.id)


def _check_closed(applied: Sequence[VerifiedManifest]) -> None:
    ids = {manifest.id for manifest in applied}
    for manifest in applied:
        for dependency in manifest.dependencies:
            if dependency not in ids:
                raise _mismatch(f"{manifest.id} is applied, but {dependency}, on which it depends, is not")


def _check_joined(ends: Sequence[tuple[ManagedState, ManagedState, MigrationId]]) -> None:
    for (_, before, left), (after, _, right) in pairwise(ends):
        if before != after:
            raise _mismatch(f"{right} does not start from the state in which {left} ends")
