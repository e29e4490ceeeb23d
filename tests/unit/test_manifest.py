"""Manifests as verified evidence: what is refused, what the digest covers, where groups lie, how a reverse is derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from journal.errors import Code, IntegrityError, InvalidContractError, JournalError
from journal.identities import Fingerprint, MigrationId, Scope
from journal.migrations.manifest import (
    AssertionStep,
    BackfillStep,
    RollbackOperation,
    RollbackOperationKind,
    SchemaStep,
    Step,
    TransactionGroup,
    VerifiedManifest,
    verify_manifest,
    verify_rollback,
)
from tests.factories import LOWERING, PROFILE, SCOPE, digest_of, manifest_of, print_of, state_of

ID = MigrationId("example", "0001_step")
OTHER = MigrationId("example", "0000_base")
SCHEMA, BACKFILL = RollbackOperationKind.SCHEMA, RollbackOperationKind.BACKFILL


def check(number: int) -> AssertionStep:
    return AssertionStep(digest_of(f"assertion {number}"))


def delta(number: int, *, scope: Scope = SCOPE, reverse: int | None = 1) -> SchemaStep:
    """The delta from state `number` to the next."""
    source, target = state_of(str(number), scope), state_of(str(number + 1), scope)
    return SchemaStep(digest_of(f"delta {number}"), source, target, statements=1, reverse_statements=reverse)


def fill(number: int, *, reversible: bool = True) -> BackfillStep:
    return BackfillStep(print_of(f"backfill {number}"), reversible=reversible)


def verified(*steps: Step, **changes: Any) -> VerifiedManifest:
    """A manifest of these steps whose ends are those of its deltas, unless told otherwise."""
    deltas = [step for step in steps if isinstance(step, SchemaStep)]
    arguments: dict[str, Any] = {
        "id": ID,
        "source": deltas[0].source if deltas else state_of("1"),
        "target": deltas[-1].target if deltas else state_of("1"),
        "semantic_profile": PROFILE,
        "lowering_profile": LOWERING,
    }
    return verify_manifest(steps=steps, **(arguments | changes))


def refusal(*steps: Step, **changes: Any) -> JournalError:
    with pytest.raises(JournalError) as caught:
        verified(*steps, **changes)
    return caught.value


# --- what is refused ----------------------------------------------------------------------------------------------------


def test_verified_evidence_keeps_what_it_was_given():
    steps = (check(1), delta(1), fill(1))
    manifest = verified(*steps, dependencies=[OTHER])
    assert (manifest.id, manifest.dependencies, manifest.steps) == (ID, (OTHER,), steps)
    assert (manifest.source, manifest.target, manifest.scope) == (state_of("1"), state_of("2"), SCOPE)
    assert (manifest.semantic_profile, manifest.lowering_profile) == (PROFILE, LOWERING)


def test_evidence_may_be_given_by_iterators():
    manifest = verify_manifest(
        id=ID,
        source=state_of("1"),
        target=state_of("2"),
        steps=iter([delta(1)]),
        dependencies=iter([OTHER]),
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
    )
    assert manifest == verified(delta(1), dependencies=[OTHER])


def test_a_manifest_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        verified(delta(1)).digest = digest_of("else")  # type: ignore[misc]


@pytest.mark.parametrize("dependencies", [[ID], [OTHER, OTHER], [OTHER, ID]])
def test_a_migration_depends_neither_on_itself_nor_on_another_twice(dependencies):
    error = refusal(delta(1), dependencies=dependencies)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_MANIFEST)
    assert error.details == {"migration": str(ID)}


@pytest.mark.parametrize(
    "steps",
    [
        [check(1)],
        [delta(1), check(1)],
        [check(1), fill(1), delta(1)],
        [check(1), check(2), fill(1)],
        [check(1), delta(1), check(2), fill(1), delta(2)],
    ],
)
def test_an_assertion_belongs_to_the_schema_step_that_follows_it(steps):
    error = refusal(*steps)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_MANIFEST)
    assert "assertion" in str(error)


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        ([delta(1), delta(3)], {}),
        ([delta(2), delta(1)], {}),
        ([delta(1), fill(1), delta(1)], {}),
        ([delta(1)], {"source": state_of("0")}),
        ([delta(1)], {"target": state_of("3")}),
        ([], {"target": state_of("2")}),
        ([fill(1)], {"target": state_of("2")}),
    ],
)
def test_the_states_of_a_manifest_form_one_chain(steps, changes):
    error = refusal(*steps, **changes)
    assert (type(error), error.code) == (InvalidContractError, Code.INVALID_MANIFEST)
    assert "chain" in str(error)


@pytest.mark.parametrize("half", ["declared", "semantics"])
def test_states_join_only_when_both_their_identities_agree(half):
    spelled_otherwise = replace(state_of("1"), **{half: print_of("else")})
    assert refusal(delta(1), source=spelled_otherwise).code is Code.INVALID_MANIFEST


@pytest.mark.parametrize(
    ("steps", "changes"),
    [
        ([delta(1)], {"source": state_of("1", Scope("elsewhere"))}),
        ([delta(1)], {"target": state_of("2", Scope("elsewhere"))}),
        ([delta(1), delta(2, scope=Scope("elsewhere")), delta(3)], {}),
        ([], {"target": state_of("1", Scope("elsewhere"))}),
    ],
)
def test_all_states_of_a_manifest_are_of_one_scope(steps, changes):
    error = refusal(*steps, **changes)
    assert (type(error), error.code) == (IntegrityError, Code.SCOPE_MISMATCH)


@pytest.mark.parametrize("steps", [[], [fill(1)], [fill(1), fill(2)]])
def test_a_manifest_without_schema_steps_stays_in_its_state(steps):
    manifest = verified(*steps)
    assert manifest.source == manifest.target
    assert manifest.groups == ()


# --- groups and backfills -----------------------------------------------------------------------------------------------


def test_groups_are_assertions_and_the_schema_step_behind_them():
    manifest = verified(delta(1), fill(1), check(1), check(2), delta(2), delta(3), fill(2))
    assert manifest.groups == (
        TransactionGroup(0, 0, 0, 1),
        TransactionGroup(1, 2, 4, 5),
        TransactionGroup(2, 5, 5, 6),
    )
    assert [group.assertion_count for group in manifest.groups] == [0, 2, 0]


SHAPES = st.lists(st.sampled_from(["schema", "backfill", "checked schema"]), max_size=8)


def steps_of(shape: Sequence[str]) -> list[Step]:
    steps: list[Step] = []
    for number, word in enumerate(shape, start=1):
        schemas = sum(isinstance(step, SchemaStep) for step in steps)
        if word == "backfill":
            steps.append(fill(number))
            continue
        if word == "checked schema":
            steps.extend([check(number), check(-number)])
        steps.append(delta(schemas + 1))
    return steps


@given(SHAPES)
def test_groups_and_backfills_cover_every_step_once(shape):
    steps = steps_of(shape)
    manifest = verified(*steps)
    covered = [index for group in manifest.groups for index in range(group.first_step_index, group.end_step_index)]
    backfills = [index for index in range(len(steps)) if manifest.backfill_at(index) is not None]
    assert sorted([*covered, *backfills]) == list(range(len(steps)))
    assert [group.ordinal for group in manifest.groups] == list(range(len(manifest.groups)))
    for group in manifest.groups:
        assert group.end_step_index == group.schema_delta_step_index + 1
        assert isinstance(steps[group.schema_delta_step_index], SchemaStep)
        assert all(
            isinstance(step, AssertionStep) for step in steps[group.first_step_index : group.schema_delta_step_index]
        )


def test_a_backfill_is_found_at_its_step_and_nowhere_else():
    manifest = verified(check(1), delta(1), fill(1))
    assert manifest.backfill_at(2) == fill(1)
    assert [manifest.backfill_at(index) for index in (-1, 0, 1, 3, 2**40)] == [None] * 5


# --- the digest ---------------------------------------------------------------------------------------------------------


def test_digests_stay_what_they_were_published_as():
    """The literals are the format: when one changes, every ledger in use disagrees with its files."""
    manifest = verified(check(1), delta(1), fill(1), fill(2, reversible=False), dependencies=[OTHER])
    assert str(manifest.digest) == "684396cedadc00c2a056a5f55acad66e7bda55c779f50fb39072e54badf6f32a"
    assert str(manifest.plan_fingerprint) == "e66acb9e1d66ccc142606229f47de3d0b84caf735d2b7f718b052f508089a9e3"
    assert str(verified().digest) == "d34890d54c84d358c30e8bba7f3c4af9bd8ea2805991c5c89fd3a4058472234f"
    assert str(verified().plan_fingerprint) == "a2c4a76e5fdfc275f4c7d1a4bd9e77974589cea980233aedc989d88b82d92922"


def test_one_migration_has_one_digest_in_every_scope():
    here, there = (manifest_of(1, assertions=1, backfill=True, scope=Scope(name)) for name in ("here", "there"))
    assert here.scope != there.scope
    assert here.digest == there.digest
    assert here.plan_fingerprint == there.plan_fingerprint


def test_the_digest_does_not_depend_on_states_and_profiles():
    plain = verified(delta(1))
    assert verified(delta(1), semantic_profile=print_of("x"), lowering_profile=print_of("y")).digest == plain.digest
    moved = replace(delta(1), source=state_of("8"), target=state_of("9"), statements=7)
    assert verified(moved).digest == plain.digest


@pytest.mark.parametrize(
    "other",
    [
        verified(delta(1), id=MigrationId("example", "0001_other")),
        verified(delta(1), id=MigrationId("another", "0001_step")),
        verified(delta(1), dependencies=[OTHER]),
        verified(check(1), delta(1)),
        verified(delta(1), fill(1)),
        verified(delta(2)),
        verified(),
    ],
)
def test_the_digest_covers_id_dependencies_and_steps(other):
    assert other.digest != verified(delta(1)).digest


def test_the_plan_fingerprint_covers_the_steps_alone():
    renamed = verified(delta(1), id=MigrationId("another", "0009_name"), dependencies=[OTHER])
    assert renamed.plan_fingerprint == verified(delta(1)).plan_fingerprint
    assert verified(check(1), delta(1)).plan_fingerprint != verified(delta(1)).plan_fingerprint
    assert bytes(verified().plan_fingerprint) != bytes(verified().digest)


def test_a_kind_of_step_is_part_of_its_content():
    content = digest_of("the same 32 bytes")
    schema, backfill = replace(delta(1), digest=content), BackfillStep(Fingerprint(content))
    kinds = [verified(schema), verified(backfill), verified(replace(backfill, reversible=True))]
    assert len({manifest.digest for manifest in kinds}) == 3
    assert len({manifest.plan_fingerprint for manifest in kinds}) == 3
    asserted = verified(AssertionStep(content), schema)
    assert asserted.plan_fingerprint != verified(schema, replace(delta(2), digest=content)).plan_fingerprint


def test_a_dependency_is_not_taken_for_a_step_nor_two_for_one():
    digests = {
        verified(delta(1), dependencies=dependencies).digest
        for dependencies in ([], [OTHER], [OTHER, MigrationId("example", "0002_x")], [MigrationId("example", "0002_x")])
    }
    assert len(digests) == 4


@given(SHAPES, SHAPES)
def test_two_manifests_have_one_digest_only_when_their_steps_are_equal(left, right):
    first, second = verified(*steps_of(left)), verified(*steps_of(right))
    assert (first.digest == second.digest) == (first.steps == second.steps)
    assert (first.plan_fingerprint == second.plan_fingerprint) == (first.steps == second.steps)


# --- the reverse --------------------------------------------------------------------------------------------------------


def test_a_rollback_undoes_steps_last_to_first_and_counts_each_kind_by_itself():
    manifest = verified(delta(1), fill(1), check(1), delta(2), fill(2))
    rollback = verify_rollback(manifest)
    assert rollback.operations == (
        RollbackOperation(BACKFILL, 4, 0),
        RollbackOperation(SCHEMA, 3, 0),
        RollbackOperation(BACKFILL, 1, 1),
        RollbackOperation(SCHEMA, 0, 1),
    )
    assert rollback.digest == manifest.digest


def test_reverse_schema_steps_are_counted_from_the_last_delta():
    rollback = verify_rollback(verified(delta(1), fill(1), delta(2)))
    assert rollback.schema_step(0) == delta(2)
    assert rollback.schema_step(1) == delta(1)
    assert [rollback.schema_step(ordinal) for ordinal in (-1, 2, 2**40)] == [None] * 3


@given(SHAPES)
def test_a_rollback_undoes_every_step_but_assertions_exactly_once(shape):
    manifest = verified(*steps_of(shape))
    rollback = verify_rollback(manifest)
    undone = [operation.step_index for operation in rollback.operations]
    effects = [index for index, step in enumerate(manifest.steps) if not isinstance(step, AssertionStep)]
    assert undone == effects[::-1]
    for kind in RollbackOperationKind:
        ordinals = [operation.ordinal for operation in rollback.operations if operation.kind is kind]
        assert ordinals == list(range(len(ordinals)))


@pytest.mark.parametrize(
    ("steps", "culprit"),
    [
        ([delta(1, reverse=None)], 0),
        ([delta(1), delta(2, reverse=None), delta(3)], 1),
        ([fill(1, reversible=False)], 0),
        ([check(1), delta(1), fill(1, reversible=False), delta(2)], 2),
        ([delta(1, reverse=None), fill(1, reversible=False)], 1),  # the first to be undone is the one that is named
    ],
)
def test_a_migration_with_a_step_that_has_no_reverse_is_not_rolled_back(steps, culprit):
    with pytest.raises(InvalidContractError) as caught:
        verify_rollback(verified(*steps))
    assert caught.value.code is Code.IRREVERSIBLE
    assert caught.value.details == {"step": culprit}


def test_an_empty_reverse_is_a_reverse():
    assert len(verify_rollback(verified(delta(1, reverse=0))).operations) == 1


def test_a_migration_of_nothing_is_undone_by_nothing():
    assert verify_rollback(verified()).operations == ()
