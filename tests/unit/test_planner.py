"""What files and ledger say together: every plan against its definition, every refusal alone and beside the others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from types import FrameType
from typing import Any, ClassVar

import pytest
from hypothesis import given, strategies as st

from journal.errors import Code, IntegrityError, InvalidContractError, JournalError
from journal.identities import Digest, MigrationId
from journal.migrations.planner import Known, check_files, check_ledger, plan_apply, plan_rollback, resolve_id
from journal.migrations.source import AssertionSource, BackfillSource, MigrationSource, SchemaSource, Statement
from tests.factories import digest_of
from tests.strategies import DETERMINISTIC


def m(name: str, app: str = "example") -> MigrationId:
    return MigrationId(app, name)


def one(text: str, line: int = 1) -> Statement:
    return Statement(text, line)


def schema(*, reverse: bool = True, line: int = 1) -> SchemaSource:
    return SchemaSource((one("CREATE TABLE t (id)"),), (one("DROP TABLE t"),) if reverse else None, True, line)


def backfill(*, reverse: bool = True, line: int = 1) -> BackfillSource:
    return BackfillSource(
        "t", ("id",), 10, one("UPDATE t SET a = 1"), None, one("UPDATE t SET a = 0") if reverse else None, line
    )


def assertion(line: int = 1) -> AssertionSource:
    return AssertionSource("there are rows", one("SELECT 1"), line)


def file(name: str, *needs: str, steps: Sequence[Any] = (schema(),), app: str = "example") -> MigrationSource:
    return MigrationSource(m(name, app), tuple(m(need, app) for need in needs), tuple(steps), f"migrations/{name}.sql")


def folder(*names: str) -> tuple[MigrationSource, ...]:
    """Files that say nothing of dependencies: each depends on the one before it."""
    ordered = sorted(names)
    return check_files([file(name, *ordered[max(place - 1, 0) : place]) for place, name in enumerate(ordered)])


def recorded(sources: Sequence[MigrationSource], names: str | None = None) -> list[Known]:
    """A ledger into which these files entered (those of `names`, in this order; all by default)."""
    files = {source.id.name: source for source in sources}
    chosen = list(files) if names is None else names.split()
    return [Known(files[name].id, files[name].digest) for name in chosen]


def names(sources: Sequence[MigrationSource]) -> str:
    return " ".join(source.id.name for source in sources)


def refused(call: Callable[[], object], code: Code) -> JournalError:
    with pytest.raises(JournalError) as caught:
        call()
    assert caught.value.code is code
    return caught.value


A, B, C, D = file("a"), file("b", "a"), file("c", "a"), file("d", "b", "c")
DIAMOND = check_files([D, C, B, A])


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_come_in_graph_order_whatever_order_they_are_read_in():
    for read in permutations([A, B, C, D]):
        assert check_files(read) == (A, B, C, D)


def test_one_id_in_two_files_is_refused_with_both():
    again = replace(B, path="migrations/b copy.sql")
    error = refused(lambda: check_files([A, B, again, C, again]), Code.INVALID_GRAPH)
    assert error.message == (
        "one id is one migration:"
        "\n  example/b is both in migrations/b.sql and in migrations/b copy.sql"
        "\n  example/b is both in migrations/b.sql and in migrations/b copy.sql"
    )


def test_files_without_an_order_are_refused():
    error = refused(lambda: check_files([file("a", "b"), file("b", "a"), file("c", "x")]), Code.INVALID_GRAPH)
    assert len(error.details["problems"]) == 2


# --- every small history ----------------------------------------------------------------------------------------------


def small_graphs(size: int) -> Iterator[tuple[MigrationSource, ...]]:
    """Every acyclic graph of so many files."""
    ids = "abcd"[:size]
    pairs = [(left, right) for left in ids for right in ids if left != right]
    for chosen in product([False, True], repeat=len(pairs)):
        needs = {
            id: [right for (left, right), there in zip(pairs, chosen, strict=True) if there and left == id]
            for id in ids
        }
        if any(ordered_by(needs, ids) for ids in permutations(ids)):
            yield check_files([file(id, *needs[id]) for id in ids])


def ordered_by(needs: dict[str, list[str]], ids: Sequence[str]) -> bool:
    return all(need in ids[:place] for place, id in enumerate(ids) for need in needs[id])


def histories(files: Sequence[MigrationSource]) -> Iterator[list[Known]]:
    """Every ledger that these files can have led to."""
    needs = {source.id.name: [need.name for need in source.dependencies] for source in files}
    for size in range(len(files) + 1):
        for chosen in permutations(needs, size):
            if ordered_by(needs, chosen):
                yield recorded(files, " ".join(chosen))


def needed(files: Sequence[MigrationSource], target: MigrationId | None) -> set[MigrationId]:
    if target is None:
        return {source.id for source in files}
    (source,) = (source for source in files if source.id == target)
    return {target}.union(*(needed(files, need) for need in source.dependencies))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_every_apply_plan_of_a_small_history_is_the_missing_part_of_what_the_target_needs(size):
    for files in small_graphs(size):
        places = {source.id: place for place, source in enumerate(files)}
        for ledger in histories(files):
            done = [known.id for known in ledger]
            for target in [None, *places]:
                missing = [id for id in places if id in needed(files, target) and id not in done]
                late = [id for id in missing if any(places[other] > places[id] for other in done)]
                plan = plan_apply(files, ledger, target, allow_out_of_order=True)
                assert [source.id for source in plan.applied] == done
                assert [source.id for source in plan.planned] == missing
                if late:
                    error = refused(partial(plan_apply, files, ledger, target), Code.OUT_OF_ORDER)
                    assert [entry["migration"] for entry in error.details["migrations"]] == [str(id) for id in late]
                else:
                    assert plan_apply(files, ledger, target) == plan


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_every_rollback_plan_of_a_small_history_is_an_end_of_the_ledger_last_first(size):
    for files in small_graphs(size):
        for ledger in histories(files):
            done = [known.id for known in ledger]
            for steps in range(1, len(done) + 1):
                plan = plan_rollback(files, ledger, steps=steps)
                assert [source.id for source in plan.applied] == done
                assert [source.id for source in plan.retired] == done[::-1][:steps]
                if steps < len(done):
                    assert plan_rollback(files, ledger, to=done[-steps - 1]) == plan
            if done:
                assert plan_rollback(files, ledger, to=done[-1]).retired == ()


@st.composite
def large_histories(draw: st.DrawFn) -> tuple[tuple[MigrationSource, ...], list[Known]]:
    """Up to 25 files, and a ledger that some run of them can have led to."""
    size = draw(st.integers(1, 25))
    ids = draw(st.permutations([f"{number:02}" for number in range(size)]))
    needs = [
        draw(st.lists(st.sampled_from(ids[:place]), unique=True, max_size=3)) if place else [] for place in range(size)
    ]
    files = check_files([file(id, *need) for id, need in zip(ids, needs, strict=True)])
    return files, recorded(files, " ".join(ids[: draw(st.integers(0, size))]))


@DETERMINISTIC
@given(large_histories(), st.data())
def test_after_an_apply_plan_nothing_of_its_target_is_left_to_do(history, data):
    files, ledger = history
    target = data.draw(st.sampled_from([None, *(source.id for source in files)]))
    plan = plan_apply(files, ledger, target, allow_out_of_order=True)
    after = [*ledger, *recorded(plan.planned)]
    assert plan_apply(files, after, target).planned == ()
    assert {known.id for known in after} == {known.id for known in ledger} | needed(files, target)
    for place, known in enumerate(after):
        (source,) = (source for source in files if source.id == known.id)
        assert {earlier.id for earlier in after[:place]}.issuperset(source.dependencies)


@DETERMINISTIC
@given(large_histories(), st.data())
def test_what_was_applied_can_be_rolled_back_again(history, data):
    files, ledger = history
    target = data.draw(st.sampled_from([source.id for source in files]))
    planned = plan_apply(files, ledger, target, allow_out_of_order=True).planned
    if planned:
        retired = plan_rollback(files, [*ledger, *recorded(planned)], steps=len(planned)).retired
        assert retired == planned[::-1]
    assert check_ledger(files, ledger, allow_out_of_order=True) == files


# --- the ledger against the files -------------------------------------------------------------------------------------

PLANS: list[Callable[[Sequence[MigrationSource], Sequence[Known]], object]] = [
    lambda files, ledger: check_ledger(files, ledger, allow_out_of_order=True),
    lambda files, ledger: plan_apply(files, ledger, None, allow_out_of_order=True),
    lambda files, ledger: plan_rollback(files, ledger, steps=1),
]
every_plan = pytest.mark.parametrize("plan", PLANS, ids=["check", "apply", "rollback"])


@every_plan
def test_a_ledger_ahead_of_the_files_names_all_that_they_lack(plan):
    error = refused(lambda: plan([A, C], recorded(DIAMOND)), Code.LEDGER_AHEAD)
    assert isinstance(error, IntegrityError)
    assert error.message == (
        "the ledger has migrations that the files lack: use the files of the version that applied them:"
        "\n  example/b\n  example/d"
    )
    assert error.details["migrations"] == ["example/b", "example/d"]


@every_plan
def test_edited_files_are_named_with_both_digests(plan):
    ledger = [Known(B.id, digest_of("b")) if known.id == B.id else known for known in recorded(DIAMOND)]
    ledger[3] = Known(D.id, digest_of("d"))
    error = refused(lambda: plan(DIAMOND, ledger), Code.MIGRATION_EDITED)
    assert isinstance(error, IntegrityError)
    assert error.message == (
        "applied migrations were edited: restore the files, and put the change into a new migration:"
        f"\n  example/b (migrations/b.sql): recorded {digest_of('b')}, the file has {B.digest}"
        f"\n  example/d (migrations/d.sql): recorded {digest_of('d')}, the file has {D.digest}"
    )
    assert error.details["migrations"][0] == {
        "migration": "example/b",
        "file": "migrations/b.sql",
        "recorded": str(digest_of("b")),
        "found": str(B.digest),
    }


@every_plan
@pytest.mark.parametrize(
    "edited",
    [
        replace(B, dependencies=()),
        replace(B, dependencies=(A.id, m("aa"))),
        replace(B, steps=(schema(reverse=False),)),
        replace(B, steps=(schema(), backfill())),
    ],
    ids=["a dependency less", "a dependency more", "no reverse", "a step more"],
)
def test_every_edit_of_an_applied_file_is_found(plan, edited):
    files = check_files([A, file("aa"), edited])
    error = refused(lambda: plan(files, recorded([A, B])), Code.MIGRATION_EDITED)
    assert [entry["migration"] for entry in error.details["migrations"]] == ["example/b"]


@every_plan
def test_a_move_of_the_files_is_no_edit(plan):
    plan([replace(source, path=f"elsewhere/{source.id.name}.sql") for source in DIAMOND], recorded(DIAMOND))


@every_plan
def test_an_applied_migration_whose_dependency_is_not_applied_is_a_hole(plan):
    error = refused(lambda: plan(DIAMOND, recorded(DIAMOND, "c d")), Code.PLAN_BINDING_MISMATCH)
    assert isinstance(error, IntegrityError)
    assert error.message == (
        "the ledger has holes: look into its history before anything is run:"
        "\n  example/c is applied, but example/a, on which it depends, is not"
        "\n  example/d is applied, but example/b, on which it depends, is not"
    )


@every_plan
def test_a_ledger_that_has_one_migration_twice_is_refused(plan):
    error = refused(lambda: plan(DIAMOND, recorded(DIAMOND, "a b a a")), Code.PLAN_BINDING_MISMATCH)
    assert error.message == "the ledger has migrations twice:\n  example/a"


@every_plan
def test_of_several_troubles_the_one_that_explains_the_others_is_told(plan):
    edited = [Known(C.id, digest_of("c")), Known(D.id, D.digest)]  # ahead (no b), edited (c), and with a hole (no a)
    files = [A, C, replace(D, dependencies=(C.id,))]
    assert refused(lambda: plan(files, [*edited, *recorded([B])]), Code.LEDGER_AHEAD).details["migrations"] == [
        "example/b"
    ]
    assert len(refused(lambda: plan(files, edited), Code.MIGRATION_EDITED).details["migrations"]) == 2
    refused(lambda: plan(files, recorded(files, "c d")), Code.PLAN_BINDING_MISMATCH)


def test_what_is_wrong_with_the_ledger_is_told_before_what_is_wrong_with_the_request():
    ledger = recorded(DIAMOND, "a b")
    refused(lambda: plan_apply([A, C], ledger, m("nothing")), Code.LEDGER_AHEAD)
    refused(lambda: plan_rollback([A, C], ledger, steps=99), Code.LEDGER_AHEAD)


# --- out of order -----------------------------------------------------------------------------------------------------


def test_a_missing_migration_before_applied_ones_is_refused_unless_allowed():
    files = check_files([file("a"), file("b"), file("c"), file("d"), file("e")])
    ledger = recorded(files, "d b")
    error = refused(lambda: plan_apply(files, ledger, None), Code.OUT_OF_ORDER)
    assert isinstance(error, InvalidContractError)
    assert error.message == (
        "migrations that come later are applied already: run with --allow-out-of-order if they do not depend on one "
        "another's order, or renumber:"
        "\n  example/a (migrations/a.sql) comes before example/b and 1 more"
        "\n  example/c (migrations/c.sql) comes before example/d"
    )
    assert error.details["migrations"] == [
        {"migration": "example/a", "file": "migrations/a.sql", "before": "example/b", "applied_after": 2},
        {"migration": "example/c", "file": "migrations/c.sql", "before": "example/d", "applied_after": 1},
    ]
    assert names(plan_apply(files, ledger, None, allow_out_of_order=True).planned) == "a c e"


def test_only_what_would_be_applied_can_be_out_of_order():
    files = check_files([file("a"), file("b"), file("c"), file("d", "b")])
    ledger = recorded(files, "b")
    assert names(plan_apply(files, ledger, m("d")).planned) == "d"
    refused(lambda: plan_apply(files, ledger, m("a")), Code.OUT_OF_ORDER)
    refused(lambda: check_ledger(files, ledger, allow_out_of_order=False), Code.OUT_OF_ORDER)


def test_nothing_is_out_of_order_for_a_rollback():
    files = check_files([file("a"), file("b")])
    assert names(plan_rollback(files, recorded(files, "b"), steps=1).retired) == "b"


# --- a file that slides in --------------------------------------------------------------------------------------------

THEN = folder("0001", "0003", "0005")
NOW = folder("0001", "0002", "0003", "0004", "0005", "0006")


def test_a_file_that_slides_in_is_out_of_order_and_the_one_behind_it_is_not_edited():
    error = refused(lambda: plan_apply(NOW, recorded(THEN), None), Code.OUT_OF_ORDER)
    assert [entry["migration"] for entry in error.details["migrations"]] == ["example/0002", "example/0004"]


def test_a_file_that_slides_in_can_be_applied_late():
    plan = plan_apply(NOW, recorded(THEN), None, allow_out_of_order=True)
    assert plan.applied == THEN  # as they were recorded: with their dependencies, and so with their digests
    assert names(plan.planned) == "0002 0004 0006"
    after = [*recorded(THEN), *recorded(plan.planned)]
    assert plan_apply(NOW, after, None).planned == ()
    assert plan_rollback(NOW, after, to=m("0005")).retired == plan.planned[::-1]
    assert plan_rollback(NOW, after, steps=6).retired == (*plan.planned[::-1], *THEN[::-1])


def test_a_file_that_slides_in_is_no_part_of_what_a_later_target_needs():
    assert names(plan_apply(NOW, recorded(THEN), m("0006")).planned) == "0006"
    assert names(plan_apply(NOW, recorded(THEN), m("0004"), allow_out_of_order=True).planned) == "0004"


def test_a_file_that_slides_in_before_the_first_is_out_of_order_too():
    files, ledger = folder("0000", "0001", "0002"), recorded(folder("0001", "0002"))
    error = refused(lambda: plan_apply(files, ledger, None), Code.OUT_OF_ORDER)
    assert [entry["before"] for entry in error.details["migrations"]] == ["example/0001"]
    assert names(plan_apply(files, ledger, None, allow_out_of_order=True).planned) == "0000"


def test_files_may_slide_in_again_and_again():
    numbers = ["0004", "0002", "0006", "0005", "0001", "0003"]
    ledger: list[Known] = []
    for count in range(1, len(numbers) + 1):
        plan = plan_apply(folder(*numbers[:count]), ledger, None, allow_out_of_order=True)
        assert names(plan.planned) == numbers[count - 1]
        assert [Known(source.id, source.digest) for source in plan.applied] == ledger
        ledger += recorded(plan.planned)
    for kept in range(len(numbers)):
        retired = plan_rollback(folder(*numbers), ledger, steps=len(numbers) - kept).retired
        assert names(retired[::-1]).split() == numbers[kept:]


@DETERMINISTIC
@given(st.lists(st.lists(st.integers(0, 99).map("{:04}".format), min_size=1, max_size=4), min_size=1, max_size=8))
def test_what_was_recorded_is_found_again_however_files_slid_in(arrivals):
    there: set[str] = set()
    ledger: list[Known] = []
    for arrived in arrivals:
        there.update(arrived)
        files = folder(*there)
        plan = plan_apply(files, ledger, None, allow_out_of_order=True)
        assert [Known(source.id, source.digest) for source in plan.applied] == ledger
        ledger += recorded(plan.planned)
        as_recorded = check_ledger(files, ledger, allow_out_of_order=False)
        assert {source.id: source.digest for source in as_recorded} == {known.id: known.digest for known in ledger}
        assert check_ledger(as_recorded, ledger, allow_out_of_order=False) == as_recorded


def test_a_file_that_was_edited_behind_one_that_slid_in_is_edited():
    files = tuple(replace(s, steps=(schema(), backfill())) if s.id.name == "0003" else s for s in NOW)
    error = refused(lambda: plan_apply(files, recorded(THEN), None, allow_out_of_order=True), Code.MIGRATION_EDITED)
    assert [entry["migration"] for entry in error.details["migrations"]] == ["example/0003"]


def test_a_dependency_that_an_author_wrote_is_never_taken_for_one_that_slid_in():
    files = check_files([file("0001"), file("0002"), file("0003", "0002"), file("0004", "0002")])
    ledger = recorded([file("0001"), file("0003", "0001"), file("0004", "0001")])
    error = refused(lambda: plan_apply(files, ledger, None, allow_out_of_order=True), Code.MIGRATION_EDITED)
    assert [entry["migration"] for entry in error.details["migrations"]] == ["example/0004"]


def test_files_of_another_app_are_never_before_one_another():
    files = check_files([file("0001", app="shop"), file("0002", app="bank"), file("0002", "0001", app="shop")])
    late = check_files([*files[:2], file("0003", "0002", app="shop"), file("0002", "0001", app="shop")])
    ledger = [*recorded(files[:2]), Known(m("0003", "shop"), file("0003", "0001", app="shop").digest)]
    plan = plan_apply(late, ledger, None, allow_out_of_order=True)
    assert [str(source.id) for source in plan.planned] == ["shop/0002"]


def test_a_file_that_slides_in_before_the_first_of_its_app_does_so_behind_another_app():
    bank = file("0001", app="bank")
    files = check_files([bank, file("0000", app="shop"), file("0001", "0000", app="shop")])
    ledger = [Known(bank.id, bank.digest), Known(m("0001", "shop"), file("0001", app="shop").digest)]
    plan = plan_apply(files, ledger, None, allow_out_of_order=True)
    assert [str(source.id) for source in plan.planned] == ["shop/0000"]


def test_a_written_dependency_on_the_file_before_it_in_graph_order_alone_did_not_slide_in():
    files = check_files([file("0001"), file("0002", "0003"), file("0003", "0001")])
    ledger = recorded([file("0003")])
    refused(lambda: plan_apply(files, ledger, None, allow_out_of_order=True), Code.MIGRATION_EDITED)


def test_files_slide_in_between_numbers_not_between_names():
    late = check_files([file("9998_a"), file("9999_b", "9998_a"), file("10000_c", "9999_b")])
    ledger = recorded([file("9998_a"), file("10000_c", "9998_a")])
    error = refused(lambda: plan_apply(late, ledger, None), Code.OUT_OF_ORDER)
    assert [entry["migration"] for entry in error.details["migrations"]] == ["example/9999_b"]
    assert names(plan_apply(late, ledger, None, allow_out_of_order=True).planned) == "9999_b"


def test_what_slid_in_stays_before_what_it_slid_in_before_whatever_it_depends_on_itself():
    files = check_files([file("0001"), file("0002", "0009"), file("0003", "0002"), file("0009", "0001")])
    ledger = recorded(folder("0001", "0003"))
    error = refused(lambda: plan_apply(files, ledger, None), Code.OUT_OF_ORDER)
    assert [entry["migration"] for entry in error.details["migrations"]] == ["example/0009", "example/0002"]
    as_recorded = check_ledger(files, ledger, allow_out_of_order=True)
    for again in (files, as_recorded):
        assert names(again) == "0001 0009 0002 0003"
        assert names(plan_apply(again, ledger, None, allow_out_of_order=True).planned) == "0009 0002"
        refused(partial(plan_apply, again, ledger, None), Code.OUT_OF_ORDER)


# --- targets ----------------------------------------------------------------------------------------------------------


def test_a_target_that_is_applied_leaves_nothing_to_do():
    assert plan_apply(DIAMOND, recorded(DIAMOND, "a b"), m("a")).planned == ()


def test_an_unknown_target_is_refused_with_the_nearest():
    files = folder("0001_initial", "0002_orders")
    error = refused(lambda: plan_apply(files, [], m("0002_order")), Code.UNKNOWN_MIGRATION)
    assert error.message == "there is no migration example/0002_order: did you mean example/0002_orders?"


IDS = [m("0001_initial"), m("0002_orders"), m("0003_left"), m("0003_right"), m("20240131_x"), m("0002_orders", "shop")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0002_orders", "example/0002_orders"),
        ("example/0002_orders", "example/0002_orders"),
        ("shop/0002_orders", "shop/0002_orders"),
        ("0002", "example/0002_orders"),
        ("2", "example/0002_orders"),
        ("shop/0002", "shop/0002_orders"),
        ("20240131", "example/20240131_x"),
    ],
)
def test_an_operator_names_a_migration_in_full_by_name_or_by_number(text, found):
    assert str(resolve_id(text, IDS, "example")) == found


def test_a_name_that_is_all_number_is_found_before_a_number():
    ids = [m("0003"), m("0003_more"), m("3")]
    assert [resolve_id(text, ids, "example") for text in ("0003", "3", "0003_more")] == [ids[0], ids[2], ids[1]]


@pytest.mark.parametrize(
    ("text", "message", "candidates"),
    [
        ("0003", "'0003' names 2 migrations: did you mean example/0003_left or example/0003_right?", 2),
        ("0003_lift", "there is no migration '0003_lift': did you mean example/0003_left?", 1),
        ("0001_Initial", "there is no migration '0001_Initial': did you mean example/0001_initial?", 1),
        ("0001_initial.sql", "there is no migration '0001_initial.sql': did you mean example/0001_initial?", 1),
        ("shop/0001_initial", "there is no migration 'shop/0001_initial': did you mean example/0001_initial?", 1),
        ("shop/0001", "there is no migration 'shop/0001': did you mean example/0001_initial?", 1),
        ("/0001_initial", "there is no migration '/0001_initial': did you mean example/0001_initial?", 1),
        ("0099", "there is no migration '0099'; the last of 6 is shop/0002_orders", 0),
        ("", "there is no migration ''; the last of 6 is shop/0002_orders", 0),
        ("\u00b2", "there is no migration '\u00b2'; the last of 6 is shop/0002_orders", 0),
        ("\n/\0", "there is no migration '\\n/\\x00'; the last of 6 is shop/0002_orders", 0),
    ],
)
def test_what_names_no_migration_or_several_is_refused_with_candidates(text, message, candidates):
    error = refused(lambda: resolve_id(text, IDS, "example"), Code.UNKNOWN_MIGRATION)
    assert error.message == message
    assert len(error.details["candidates"]) == candidates


def test_a_digit_that_is_no_number_here_is_not_taken_for_the_number_of_a_name_without_one():
    refused(lambda: resolve_id("\u00b2", [m("total")], "example"), Code.UNKNOWN_MIGRATION)


def test_where_there_are_no_migrations_none_is_found():
    error = refused(lambda: resolve_id("0001", [], "example"), Code.UNKNOWN_MIGRATION)
    assert error.message == "there is no migration '0001'; there are no migrations"


@DETERMINISTIC
@given(st.text() | st.integers(0, 10**400).map(str))
def test_any_text_names_a_migration_or_is_refused(text):
    try:
        found = resolve_id(text, IDS, "example")
    except InvalidContractError:
        return
    assert found in IDS


# --- rolling back -----------------------------------------------------------------------------------------------------


def test_a_rollback_target_that_is_not_applied_is_refused():
    files = folder("0001_a", "0002_b", "0003_c")
    ledger = recorded(files, "0001_a 0002_b")
    error = refused(lambda: plan_rollback(files, ledger, to=m("0003_c")), Code.UNKNOWN_MIGRATION)
    assert error.message == "example/0003_c is not applied"
    error = refused(lambda: plan_rollback(files, ledger, to=m("0002_bb")), Code.UNKNOWN_MIGRATION)
    assert error.message == "example/0002_bb is in no file: did you mean example/0002_b?"


@pytest.mark.parametrize("steps", [-1, 0, 3, 10**9])
def test_a_rollback_takes_one_step_to_as_many_as_are_applied(steps):
    error = refused(lambda: plan_rollback(DIAMOND, recorded(DIAMOND, "a b"), steps=steps), Code.UNKNOWN_MIGRATION)
    assert isinstance(error, InvalidContractError)
    assert error.message == f"{steps} migrations cannot be rolled back: 2 migrations are applied"


@pytest.mark.parametrize(("applied", "count"), [("", "0 migrations are applied"), ("a", "1 migration is applied")])
def test_a_rollback_of_too_much_says_how_much_there_is(applied, count):
    error = refused(lambda: plan_rollback(DIAMOND, recorded(DIAMOND, applied), steps=2), Code.UNKNOWN_MIGRATION)
    assert error.message.endswith(count)


@pytest.mark.parametrize("request_", [{}, {"to": m("a"), "steps": 1}])
def test_a_rollback_says_exactly_one_of_where_to_and_how_many(request_):
    refused(lambda: plan_rollback(DIAMOND, recorded(DIAMOND), **request_), Code.UNKNOWN_MIGRATION)


def test_every_step_without_a_reverse_is_named_with_its_line_before_anything_is_done():
    files = check_files(
        [
            file("a", steps=[schema(reverse=False, line=3)]),  # stays
            file("b", "a", steps=[assertion(1), schema(reverse=False, line=5), backfill(reverse=False, line=9)]),
            file("c", "b", steps=[assertion(1), schema(line=2), backfill(line=4)]),
            file("d", "c", steps=[backfill(reverse=False, line=7)]),
        ]
    )
    error = refused(lambda: plan_rollback(files, recorded(files), steps=3), Code.IRREVERSIBLE)
    assert error.message == (
        "nothing was rolled back: restore a backup, or undo it in a new migration:"
        "\n  example/d, step 0 (migrations/d.sql:7) has no reverse"
        "\n  example/b, step 1 (migrations/b.sql:5) has no reverse"
        "\n  example/b, step 2 (migrations/b.sql:9) has no reverse"
    )
    assert error.details["steps"][0] == {"migration": "example/d", "file": "migrations/d.sql", "line": 7, "step": 0}
    assert names(plan_rollback(check_files([*files[:3]]), recorded(files[:3]), steps=1).retired) == "c"


def test_a_reverse_without_statements_is_a_reverse():
    empty = file("a", steps=[SchemaSource((one("SELECT 1"),), (), True, 1)])
    assert plan_rollback([empty], recorded([empty]), steps=1).retired == (empty,)


def test_what_a_staying_migration_depends_on_is_never_rolled_back():
    ledger = recorded(DIAMOND, "b d c a")  # nothing that this package writes: an import of a foreign history can be
    error = refused(lambda: plan_rollback(DIAMOND, ledger, steps=2), Code.PLAN_BINDING_MISMATCH)
    assert error.message == (
        "migrations that others depend on cannot be rolled back: roll back further:"
        "\n  example/b stays, but depends on example/a"
        "\n  example/d stays, but depends on example/c"
    )
    assert names(plan_rollback(DIAMOND, ledger, steps=4).retired) == "a c d b"


# --- cost -------------------------------------------------------------------------------------------------------------


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python a call executes, those of generated methods (equality, hashes, order) included."""
    count = 0

    def watch(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def slid(size: int) -> tuple[tuple[MigrationSource, ...], list[Known]]:
    """A folder in which every second file slid in."""
    return folder(*(f"{n:05}" for n in range(size))), recorded(folder(*(f"{n:05}" for n in range(1, size, 2))))


def half(size: int) -> tuple[tuple[MigrationSource, ...], list[Known]]:
    """A folder of which the first half is applied."""
    files = folder(*(f"{n:05}" for n in range(size)))
    return files, recorded(files[: size // 2])


@pytest.mark.parametrize("history", [half, slid])
@pytest.mark.parametrize(
    "plan",
    [
        lambda files, ledger: check_ledger(files, ledger, allow_out_of_order=True),
        lambda files, ledger: plan_apply(files, ledger, None, allow_out_of_order=True),
        lambda files, ledger: plan_apply(files, ledger, files[-1].id, allow_out_of_order=True),
        lambda files, ledger: plan_rollback(files, ledger, steps=len(ledger)),
        lambda files, ledger: refused(lambda: plan_apply(files[len(files) // 4 :], ledger, None), Code.LEDGER_AHEAD),
    ],
    ids=["check", "apply", "target", "rollback", "ahead"],
)
def test_twice_the_migrations_cost_twice_the_work(history, plan):
    small, large = (lines_run(partial(plan, *history(size))) for size in (200, 400))
    assert small < large <= 2.2 * small


class Hashed(MigrationSource):
    """A migration that tells when its digest is asked for."""

    hashed: ClassVar[list[MigrationId]] = []

    @property
    def digest(self) -> Digest:
        self.hashed.append(self.id)
        return MigrationSource.digest.func(self)


def test_each_applied_file_is_hashed_once_and_no_other():
    files, ledger = half(10)
    watched = [Hashed(source.id, source.dependencies, source.steps, source.path) for source in files]
    plan_apply(watched, ledger, None)
    assert Hashed.hashed == [known.id for known in ledger]


def test_twenty_thousand_migrations_are_planned():
    files = folder(*(f"{number:05}" for number in range(20_000)))
    ledger = recorded(files[:10_000])
    assert plan_apply(files, ledger, None).planned == files[10_000:]
    assert plan_rollback(files, ledger, steps=10_000).retired == files[:10_000][::-1]
