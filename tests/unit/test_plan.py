"""Plans as verified evidence: which orders are accepted, where they start and end, what frontiers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from journal.errors import Code, IntegrityError
from journal.identities import MigrationId, Scope
from journal.migrations.manifest import BackfillStep, VerifiedManifest, verify_manifest, verify_rollback
from journal.migrations.plan import VerifiedPlan, VerifiedRollbackPlan, frontier, verify_plan, verify_rollback_plan
from tests.factories import LOWERING, PROFILE, SCOPE, chain_of, digest_of, manifest_of, print_of, state_of


def node(name: str, *dependencies: VerifiedManifest, app: str = "example") -> VerifiedManifest:
    """A migration that leaves the state as it is, so that nodes of any graph join in any order."""
    return verify_manifest(
        id=MigrationId(app, name),
        source=state_of("still"),
        target=state_of("still"),
        steps=[BackfillStep(print_of(name), reversible=True)],
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
        dependencies=[manifest.id for manifest in dependencies],
    )


def names(ids: Sequence[MigrationId]) -> list[str]:
    return [id.name for id in ids]


def apply(*planned: VerifiedManifest, on: Sequence[VerifiedManifest] = ()) -> VerifiedPlan:
    return verify_plan(applied=on, planned=planned)


def roll_back(*retired: VerifiedManifest, of: Sequence[VerifiedManifest]) -> VerifiedRollbackPlan:
    return verify_rollback_plan(applied=of, rollbacks=[verify_rollback(manifest) for manifest in retired])


A = node("a")
B = node("b", A)
C = node("c", A)
D = node("d", B, C)
DIAMOND = [A, B, C, D]


# --- applying -----------------------------------------------------------------------------------------------------------


def test_a_plan_starts_where_its_first_migration_does_and_ends_with_its_last():
    first, second, third = chain_of(3)
    plan = apply(second, third, on=[first])
    assert (plan.source, plan.target) == (second.source, third.target)
    assert plan.manifests == (second, third)
    assert plan.applied == (first.id,)
    assert (plan.applied_frontier, plan.target_frontier) == ((first.id,), (third.id,))


def test_an_empty_plan_has_no_ends_and_moves_no_frontier():
    plan = apply(on=[A, B])
    assert (plan.source, plan.target, plan.manifests) == (None, None, ())
    assert plan.applied_frontier == plan.target_frontier == (B.id,)


@pytest.mark.parametrize("order", [[A, B, C, D], [A, C, B, D]])
def test_every_order_that_respects_dependencies_is_accepted(order):
    assert [manifest.id for manifest in apply(*order).manifests] == [manifest.id for manifest in order]


@pytest.mark.parametrize("order", [[B, A, C, D], [A, B, D, C], [D, C, B, A], [A, D, B, C], [B], [D]])
def test_a_migration_before_its_dependency_or_without_it_is_refused(order):
    with pytest.raises(IntegrityError) as caught:
        apply(*order)
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


def test_what_is_applied_already_counts_as_dependency():
    assert apply(D, on=[C, A, B]).target_frontier == (D.id,)


def test_a_migration_whose_dependency_is_neither_applied_nor_planned_is_refused():
    with pytest.raises(IntegrityError, match=r"d depends on example/c"):
        apply(D, on=[A, B])


@pytest.mark.parametrize(("planned", "applied"), [([A, A], []), ([A], [A]), ([], [A, A]), ([B], [A, B])])
def test_no_migration_occurs_twice(planned, applied):
    with pytest.raises(IntegrityError, match=r"occurs twice") as caught:
        apply(*planned, on=applied)
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


def test_two_migrations_of_one_id_are_refused_even_when_their_content_differs():
    other = replace(A, digest=digest_of("other"))
    with pytest.raises(IntegrityError, match=r"occurs twice"):
        apply(other, on=[A])


def test_an_applied_set_with_a_hole_is_refused():
    with pytest.raises(IntegrityError, match=r"is applied, but example/a") as caught:
        apply(C, on=[B])
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


def test_states_must_join_where_one_migration_ends_and_the_next_begins():
    first, _, third = chain_of(3)
    third = replace(third, dependencies=(first.id,))
    with pytest.raises(IntegrityError, match=r"does not start from the state") as caught:
        apply(first, third)
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


def test_states_of_two_scopes_do_not_join():
    first, second = manifest_of(1), manifest_of(2, scope=Scope("elsewhere"))
    with pytest.raises(IntegrityError, match=r"does not start from the state"):
        apply(first, second)


def test_the_plan_is_not_joined_to_the_applied_set_because_the_live_state_decides():
    first, second = manifest_of(1), manifest_of(5)
    assert apply(second, on=[first]).source == second.source


def test_the_applied_set_is_listed_in_canonical_order_whatever_order_it_came_in():
    ids = [node("b"), node("a"), node("a", app="b"), node("0", app="a-b"), node("z", app="a")]
    expected = ["a/z", "a-b/0", "b/a", "example/a", "example/b"]
    assert [str(id) for id in apply(on=ids).applied] == expected
    assert [str(id) for id in apply(on=ids[::-1]).applied] == expected


def test_evidence_may_be_given_by_iterators():
    first, second = chain_of(2)
    assert verify_plan(applied=iter([first]), planned=iter([second])) == apply(second, on=[first])
    rollbacks = iter([verify_rollback(second)])
    assert verify_rollback_plan(applied=iter([first, second]), rollbacks=rollbacks) == roll_back(
        second, of=[first, second]
    )


# --- frontiers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manifests", "expected"), [([], []), ([A], ["a"]), ([A, B], ["b"]), ([A, C, B], ["b", "c"]), (DIAMOND, ["d"])]
)
def test_a_frontier_is_what_no_other_depends_on_in_canonical_order(manifests, expected):
    assert names(frontier(manifests)) == expected


def test_migrations_without_relation_are_all_frontier():
    assert names(frontier([node("y"), node("x"), node("z")])) == ["x", "y", "z"]


def test_a_plan_names_the_frontier_before_and_after():
    plan = apply(C, D, on=[A, B])
    assert (names(plan.applied_frontier), names(plan.target_frontier)) == (["b"], ["d"])


# --- rolling back -------------------------------------------------------------------------------------------------------


def test_a_rollback_starts_from_the_target_of_its_first_and_restores_the_source_of_its_last():
    first, second, third = chain_of(3)
    plan = roll_back(third, second, of=[first, second, third])
    assert (plan.source, plan.target) == (third.target, second.source)
    assert plan.applied == (first.id, second.id, third.id)
    assert plan.remaining == (first.id,)
    assert [rollback.manifest for rollback in plan.rollbacks] == [third, second]


def test_an_empty_rollback_has_no_ends_and_everything_remains():
    plan = roll_back(of=[B, A])
    assert (plan.source, plan.target, plan.rollbacks) == (None, None, ())
    assert names(plan.remaining) == names(plan.applied) == ["a", "b"]


@pytest.mark.parametrize("order", [[D, C, B, A], [D, B, C, A], [D], [D, B]])
def test_every_order_with_dependents_first_is_accepted(order):
    plan = roll_back(*order, of=DIAMOND)
    assert names(plan.remaining) == sorted({"a", "b", "c", "d"} - set(names([m.id for m in order])))


@pytest.mark.parametrize("order", [[A], [B], [D, A], [D, B, A], [A, B, C, D], [B, D]])
def test_a_migration_that_another_still_needs_is_not_rolled_back(order):
    with pytest.raises(IntegrityError, match=r"depends on it stays applied") as caught:
        roll_back(*order, of=DIAMOND)
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


@pytest.mark.parametrize(
    ("retired", "applied"),
    [([B], [A]), ([B, B], [A, B]), ([replace(B, digest=digest_of("edited since"))], [A, B]), ([A], [])],
)
def test_only_what_is_applied_with_this_digest_is_rolled_back_and_only_once(retired, applied):
    with pytest.raises(IntegrityError, match=r"not applied with this digest, or is rolled back twice") as caught:
        roll_back(*retired, of=applied)
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


@pytest.mark.parametrize("applied", [[A, A], [B], [A, D]])
def test_a_rollback_checks_its_applied_set_as_a_plan_does(applied):
    with pytest.raises(IntegrityError) as caught:
        roll_back(of=applied)
    assert caught.value.code is Code.PLAN_BINDING_MISMATCH


def test_rolled_back_states_must_join():
    first, second, third = manifest_of(1), manifest_of(2), manifest_of(3)
    assert roll_back(third, second, of=[first, second, third]).target == second.source
    with pytest.raises(IntegrityError, match=r"does not start from the state"):
        roll_back(third, first, of=[first, second, third])


def test_one_migration_in_two_scopes_is_recognised_by_its_digest():
    here = manifest_of(1)
    assert roll_back(here, of=[here]).source == state_of("2", SCOPE)


# --- any graph ----------------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> list[VerifiedManifest]:
    """Up to seven migrations, each depending on some of those before it."""
    manifests: list[VerifiedManifest] = []
    for number in range(draw(st.integers(0, 7))):
        needed = draw(st.lists(st.sampled_from(manifests), unique_by=lambda m: m.id)) if manifests else []
        manifests.append(node(f"{draw(st.integers(0, 9))}_{number}", *needed))
    return manifests


def ready(manifests: Sequence[VerifiedManifest], applied: set[MigrationId]) -> list[VerifiedManifest]:
    return [m for m in manifests if m.id not in applied and applied.issuperset(m.dependencies)]


@given(graphs(), st.data())
def test_an_order_is_accepted_exactly_when_every_step_of_it_is_ready(manifests, data):
    cut = data.draw(st.integers(0, len(manifests)))
    applied, planned = manifests[:cut], data.draw(st.permutations(manifests[cut:]))
    done = {manifest.id for manifest in applied}
    sound = True
    for manifest in planned:
        sound = sound and manifest in ready(planned, done)
        done.add(manifest.id)
    if sound:
        plan = verify_plan(applied=applied, planned=planned)
        assert set(plan.target_frontier) == {m.id for m in manifests} - {d for m in manifests for d in m.dependencies}
    else:
        with pytest.raises(IntegrityError):
            verify_plan(applied=applied, planned=planned)


@given(graphs())
def test_what_was_applied_in_order_is_rolled_back_in_the_reverse_of_it(manifests):
    plan = roll_back(*manifests[::-1], of=manifests)
    assert plan.remaining == ()
    for count in range(len(manifests)):
        assert len(roll_back(*manifests[::-1][:count], of=manifests).remaining) == len(manifests) - count


def test_a_long_chain_is_verified_whole():
    manifests = chain_of(2_000)
    assert len(apply(*manifests).manifests) == 2_000
    assert roll_back(*manifests[::-1], of=manifests).remaining == ()
