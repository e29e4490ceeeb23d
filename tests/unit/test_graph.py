"""The order of a graph, its closures, and everything that is wrong with one: checked against definitions by force."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Final, TypeAlias

import pytest
from hypothesis import assume, given, strategies as st

from journal.errors import Code, InvalidContractError
from journal.identities import MigrationId
from journal.migrations.graph import ancestors, dependents, lines_of, nearest, number_of, order
from tests.strategies import DETERMINISTIC

Graph: TypeAlias = Mapping[MigrationId, Sequence[MigrationId]]
HEAD: Final = "the migrations cannot be ordered:"


def m(name: str, app: str = "example") -> MigrationId:
    return MigrationId(app, name)


def graph(**edges: str) -> dict[MigrationId, list[MigrationId]]:
    """`graph(b="a", a="")`: b needs a, which needs nothing."""
    return {m(name): [m(need) for need in needs.split()] for name, needs in edges.items()}


def names(ids: Sequence[MigrationId]) -> str:
    return " ".join(id.name for id in ids)


def refused(nodes: Graph) -> list[str]:
    """The problems of a graph without an order."""
    with pytest.raises(InvalidContractError) as caught:
        order(nodes)
    assert caught.value.code is Code.INVALID_GRAPH
    problems = caught.value.details["problems"]
    assert caught.value.message == HEAD + lines_of(problems)
    return problems


def digraphs(size: int, *, loops: bool = False) -> Iterator[dict[MigrationId, list[MigrationId]]]:
    """Every graph of so many migrations: each possible dependency there or not."""
    ids = [m("abcd"[index]) for index in range(size)]
    pairs = [(left, right) for left in ids for right in ids if loops or left != right]
    for chosen in product([False, True], repeat=len(pairs)):
        nodes: dict[MigrationId, list[MigrationId]] = {id: [] for id in reversed(ids)}
        for (left, right), there in zip(pairs, chosen, strict=True):
            if there:
                nodes[left].append(right)
        yield nodes


def reachable(nodes: Graph, start: MigrationId) -> set[MigrationId]:
    """What one migration needs, by definition: the least set with its dependencies and theirs."""
    found: set[MigrationId] = set(nodes[start])
    while (more := found.union(*(nodes[id] for id in found))) != found:
        found = more
    return found


def least_order(nodes: Graph) -> list[MigrationId] | None:
    """Of all orders that respect the dependencies the first in the dictionary, None when there is none."""
    for ids in permutations(sorted(nodes)):
        if all(need in ids[:place] for place, id in enumerate(ids) for need in nodes[id]):
            return list(ids)
    return None


def cycle_of(problem: str) -> list[MigrationId]:
    """The migrations of a reported cycle, in its order."""
    start, _, path = problem.partition(": ")
    assert start == "each depends on the next in a cycle"
    ids = [MigrationId.parse(text) for text in path.split(" -> ")]
    assert ids[0] == ids[-1]
    return ids[:-1]


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4])
def test_every_small_graph_has_its_least_order_or_is_refused_with_each_of_its_cycles(size):
    for nodes in digraphs(size):
        expected = least_order(nodes)
        if expected is not None:
            assert order(nodes) == expected
            continue
        needs = {id: reachable(nodes, id) for id in nodes}
        knots = {frozenset(other for other in needs[id] if id in needs[other]) for id in nodes if id in needs[id]}
        cycles = [cycle_of(problem) for problem in refused(nodes)]
        assert [cycle[0] for cycle in cycles] == sorted(min(knot) for knot in knots)
        for cycle in cycles:
            assert any(set(cycle) <= knot and cycle[0] == min(knot) for knot in knots)
            assert len(set(cycle)) == len(cycle)
            assert all(after in nodes[id] for id, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def test_every_small_graph_with_self_dependencies_names_each_of_them():
    for nodes in digraphs(3, loops=True):
        own = [id for id in sorted(nodes) if id in nodes[id]]
        rest = {id: [need for need in needs if need != id] for id, needs in nodes.items()}
        others = [] if least_order(rest) else refused(rest)
        if own:
            assert refused(nodes) == [f"{id} depends on itself" for id in own] + others


@st.composite
def acyclic(draw: st.DrawFn) -> dict[MigrationId, list[MigrationId]]:
    """Graphs of up to 30 migrations in several apps, whose names say nothing of their order."""
    size = draw(st.integers(0, 30))
    ids = draw(st.permutations([m(f"{index:02}", "abc"[index % 3]) for index in range(size)]))
    nodes = {
        id: draw(st.lists(st.sampled_from(ids[:place]), unique=True, max_size=4)) if place else []
        for place, id in enumerate(ids)
    }
    return {id: nodes[id] for id in draw(st.permutations(ids))}


@DETERMINISTIC
@given(acyclic())
def test_each_next_migration_is_the_smallest_of_those_that_are_ready(nodes):
    ordered = order(nodes)
    assert sorted(ordered) == sorted(nodes)
    for place, id in enumerate(ordered):
        done = set(ordered[:place])
        assert id == min(other for other in nodes if other not in done and done.issuperset(nodes[other]))


@DETERMINISTIC
@given(acyclic(), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_how_the_graph_is_written_down(nodes, shuffled):
    entries = list(nodes.items())
    shuffled.shuffle(entries)
    again = {id: shuffled.sample(needs, len(needs)) for id, needs in entries}
    assert order(again) == order(nodes)


@DETERMINISTIC
@given(acyclic(), st.data())
def test_a_cycle_laid_into_any_graph_is_found(nodes, data):
    chain = [id for id in nodes if nodes[id]]
    assume(chain)
    top = data.draw(st.sampled_from(chain))
    bottom = data.draw(st.sampled_from(sorted(reachable(nodes, top))))
    nodes[bottom] = [*nodes[bottom], top]
    (problem,) = refused(nodes)
    cycle = cycle_of(problem)
    assert all(after in nodes[id] for id, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    assert cycle[0] == min(id for id in nodes if id in reachable(nodes, id))


def test_an_app_comes_before_a_name():
    nodes = {m("a", "zoo"): [], m("b", "ant"): [], m("a", "ant"): [m("a", "zoo")]}
    assert [str(id) for id in order(nodes)] == ["ant/b", "zoo/a", "ant/a"]


# --- what is wrong ----------------------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once():
    nodes = graph(a="a", b="missing", c="a a", d="e", e="d", f="g", g="h", h="f", i="a")
    assert refused(nodes) == [
        "example/a depends on itself",
        "example/b depends on example/missing, which is not there",
        "example/c names its dependency example/a 2 times",
        "each depends on the next in a cycle: example/d -> example/e -> example/d",
        "each depends on the next in a cycle: example/f -> example/g -> example/h -> example/f",
    ]


def test_one_dependency_can_be_wrong_in_two_ways():
    assert refused(graph(a="a a b b b")) == [
        "example/a depends on itself",
        "example/a names its dependency example/a 2 times",
        "example/a depends on example/b, which is not there",
        "example/a names its dependency example/b 3 times",
    ]


def test_what_only_stands_behind_or_between_cycles_is_not_called_a_cycle():
    nodes = graph(a="b", b="a", between="b", c="d between", d="c", behind="d")
    assert refused(nodes) == [
        "each depends on the next in a cycle: example/a -> example/b -> example/a",
        "each depends on the next in a cycle: example/c -> example/d -> example/c",
    ]


def test_a_knot_is_shown_by_a_shortest_cycle_through_its_smallest_migration():
    assert refused(graph(a="b", b="c d", c="d", d="a")) == [
        "each depends on the next in a cycle: example/a -> example/b -> example/d -> example/a"
    ]


@pytest.mark.parametrize(
    ("missing", "near"),
    [
        ("0001_inital", "0001_initial"),
        ("0002_initial", "0001_initial"),
        ("0002_anything", "0002_orders"),
        ("0003_none_like_it", None),
        ("0004_x", None),
    ],
)
def test_an_unknown_dependency_names_the_migration_that_was_probably_meant(missing, near):
    ids = [m("0001_initial"), m("0002_orders"), m("0003_left"), m("0003_right"), m("0005_last")]
    (problem,) = refused({**dict.fromkeys(ids, ()), m("zz"): [m(missing)]})
    hint = f": did you mean example/{near}?" if near else ""
    assert problem == f"example/zz depends on example/{missing}, which is not there{hint}"


def test_nobody_is_told_to_depend_on_itself():
    assert refused({m("0002_orders"): [m("0002_order")]}) == [
        "example/0002_orders depends on example/0002_order, which is not there"
    ]


def test_a_dependency_of_the_wrong_app_is_found_in_the_right_one():
    (problem,) = refused({m("0001_initial", "shop"): [], m("0002_x", "shop"): [m("0001_initial", "shpo")]})
    assert problem.endswith("depends on shpo/0001_initial, which is not there: did you mean shop/0001_initial?")


def test_the_message_shows_twenty_problems_and_the_details_have_all():
    nodes = {m(f"{number:04}"): [m(f"{number:04}")] for number in range(50)}
    with pytest.raises(InvalidContractError) as caught:
        order(nodes)
    lines = caught.value.message.splitlines()
    assert lines[0] == HEAD
    assert lines[1] == "  example/0000 depends on itself"
    assert lines[20] == "  example/0019 depends on itself"
    assert lines[21:] == ["  and 30 more"]
    assert len(caught.value.details["problems"]) == 50


def test_only_problems_that_are_shown_pay_for_a_hint():
    ids = [m(f"{number:04}_x") for number in range(30)]
    problems = refused({id: [m(id.name + "x")] for id in ids} | {m("0100_y"): [], m("0200_xx"): []})
    hinted = ["did you mean" in problem for problem in problems]
    assert hinted == [True] * 20 + [False] * 10


def test_a_long_cycle_is_cut_short():
    size = 20_000  # far deeper than recursion could go
    nodes = {m(f"{number:06}"): [m(f"{(number + 1) % size:06}")] for number in range(size)}
    (problem,) = refused(nodes)
    shown = " -> ".join(f"example/{number:06}" for number in range(12))
    assert problem.endswith(f": {shown} -> ... 19988 more ... -> example/000000")


# --- closures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_closures_of_every_small_graph_are_what_can_be_reached(size):
    for nodes in digraphs(size):
        needs = {id: reachable(nodes, id) | {id} for id in nodes}
        for chosen in (subset for count in (0, 1, 2) for subset in combinations(nodes, count)):
            assert ancestors(nodes, chosen) == set().union(*(needs[id] for id in chosen))
            assert dependents(nodes, chosen) == {id for id in nodes if needs[id].intersection(chosen)}


@pytest.mark.parametrize("closure", [ancestors, dependents])
def test_the_closure_of_what_is_not_there_is_refused_with_a_hint(closure):
    with pytest.raises(InvalidContractError, match=r"no migration example/0001_inital: did you mean example/0001_in"):
        closure({m("0001_initial"): []}, [m("0001_inital")])


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "number"),
    [("0003_total", "3"), ("3", "3"), ("0000_x", "0"), ("000", "0"), ("20240131_x", "20240131"), ("total_3", None)],
)
def test_the_number_of_a_name_is_what_its_digits_say(name, number):
    assert number_of(name) == number


def test_the_nearest_name_ignores_case_and_is_found_for_any_text():
    ids = [m("0001_initial")]
    assert nearest("0001_Initial", ids) == ids[0]
    assert nearest("", ids) is None
    assert nearest("0001_initial" * 100_000, ids) == ids[0]  # by its number
    assert nearest("x", []) is None


# --- cost -------------------------------------------------------------------------------------------------------------


class Counted(MigrationId):
    """A migration id that counts how often it is hashed or compared."""

    __slots__ = ()
    uses = 0

    def __hash__(self) -> int:
        Counted.uses += 1
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        Counted.uses += 1
        return isinstance(other, MigrationId) and self.name == other.name


def uses_of(size: int, shape: str) -> int:
    chance = random.Random(size)
    ids = [Counted("example", f"{number:06}") for number in range(size)]
    needs = {
        "chain": lambda place: ids[place - 1 : place],
        "star": lambda place: ids[:1] if place else [],
        "random": lambda place: list(dict.fromkeys(chance.choices(ids[:place], k=3))) if place else [],
        "knots": lambda place: [ids[place ^ 1]],
    }[shape]
    nodes = {id: needs(place) for place, id in enumerate(ids)}
    Counted.uses = 0
    if shape == "knots":
        assert len(refused(nodes)) == size // 2
    else:
        assert len(order(nodes)) == size
        ancestors(nodes, ids[-1:])
        dependents(nodes, ids[:1])
    return Counted.uses


@pytest.mark.parametrize("shape", ["chain", "star", "random", "knots"])
def test_twice_the_migrations_cost_twice_the_look_ups(shape):
    small, large = uses_of(1000, shape), uses_of(2000, shape)
    assert small < large <= 2.2 * small


def test_twenty_thousand_migrations_that_all_wait_for_one_are_ordered():
    ids = [m(f"{number:05}") for number in range(20_000)]
    nodes = {id: [ids[-1]] if id != ids[-1] else [] for id in ids}
    assert order(nodes) == [ids[-1], *ids[:-1]]
