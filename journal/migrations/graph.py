"""Which migration needs which, and the one order that follows from it.

A graph maps each migration to the migrations that it depends on. The order is Kahn's, with the smallest (app, name)
among those that are ready first, so that the same files give the same order everywhere. Everything takes time linear in
migrations and dependencies, sorting aside, and nothing recurses.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

from journal.errors import Code, failure
from journal.identities import MAX_COMPONENT_BYTES, MigrationId

Graph: TypeAlias = Mapping[MigrationId, Sequence[MigrationId]]

MAX_LINES: Final = 20
_MAX_CYCLE: Final = 12
_NEAR: Final = 0.7
_NUMBER = re.compile(r"0*([0-9]+)", re.ASCII)


def order(nodes: Graph) -> list[MigrationId]:
    """Every migration after all that it depends on, the smallest id first where there is a choice.

    Raises:
        InvalidContractError: `journal_invalid_graph`, with every problem and not the first alone: dependencies on
            themselves, on what is not there, on one migration twice, and cycles.
    """
    ids = sorted(nodes, key=_by_name)
    ranks = {id: rank for rank, id in enumerate(ids)}
    needs = [sorted({ranks[need] for need in nodes[id] if need in ranks} - {ranks[id]}) for id in ids]
    ordered = _kahn(needs)
    problems = list(_dependency_problems(ids, nodes))
    if len(ordered) < len(ids):
        left = sorted(set(range(len(ids))).difference(ordered))
        problems.extend(_shown_cycle([ids[rank] for rank in cycle]) for cycle in _cycles(needs, left))
    if problems:
        raise failure(Code.INVALID_GRAPH, f"the migrations cannot be ordered:{lines_of(problems)}", problems=problems)
    return [ids[rank] for rank in ordered]


def ancestors(nodes: Graph, ids: Iterable[MigrationId]) -> set[MigrationId]:
    """These migrations and all that they need, directly or not. Raises `journal_unknown_migration`."""
    return _closure(nodes, ids)


def dependents(nodes: Graph, ids: Iterable[MigrationId]) -> set[MigrationId]:
    """These migrations and all that need them, directly or not. Raises `journal_unknown_migration`."""
    needed_by: dict[MigrationId, list[MigrationId]] = {id: [] for id in nodes}
    for id, needs in nodes.items():
        for need in needs:
            needed_by.setdefault(need, []).append(id)
    return _closure(needed_by, ids)


def number_of(name: str) -> str | None:
    """The digits that a name starts with, without leading zeros; None when it starts with none."""
    match = _NUMBER.match(name)
    return match and match[1]


def nearest(name: str, ids: Collection[MigrationId]) -> MigrationId | None:
    """The migration that was probably meant: a name much like this one, or else the only one of its number."""
    name = name[:MAX_COMPONENT_BYTES].lower()
    by_name = {id.name: id for id in ids}
    if near := difflib.get_close_matches(name, by_name, n=1, cutoff=_NEAR):
        return by_name[near[0]]
    number = number_of(name)
    numbered = [id for id in ids if number is not None and number_of(id.name) == number]
    return numbered[0] if len(numbered) == 1 else None


def hint(name: str, ids: Collection[MigrationId]) -> str:
    """`nearest` as the end of a message, empty when nothing is near."""
    near = nearest(name, ids)
    return f": did you mean {near}?" if near else ""


def lines_of(problems: Sequence[str]) -> str:
    """One indented line a problem, the first twenty of them."""
    shown = list(problems[:MAX_LINES])
    if len(problems) > MAX_LINES:
        shown.append(f"and {len(problems) - MAX_LINES} more")
    return "".join(f"\n  {line}" for line in shown)


def _by_name(id: MigrationId) -> tuple[str, str]:
    return id.app, id.name


def _closure(nodes: Graph, ids: Iterable[MigrationId]) -> set[MigrationId]:
    found: set[MigrationId] = set()
    unseen = list(ids)
    while unseen:
        id = unseen.pop()
        if id in found:
            continue
        if id not in nodes:
            raise failure(
                Code.UNKNOWN_MIGRATION, f"there is no migration {id}{hint(id.name, nodes)}", migration=str(id)
            )
        found.add(id)
        unseen.extend(nodes[id])
    return found


def _kahn(needs: Sequence[Sequence[int]]) -> list[int]:
    """Order ranks so that each comes after what it needs; those on or behind a cycle are left out."""
    needed_by: list[list[int]] = [[] for _ in needs]
    for rank, needed in enumerate(needs):
        for need in needed:
            needed_by[need].append(rank)
    waiting = [len(needed) for needed in needs]
    ready = [rank for rank, count in enumerate(waiting) if count == 0]  # ascending, so a heap already
    ordered: list[int] = []
    while ready:
        rank = heappop(ready)
        ordered.append(rank)
        for dependent in needed_by[rank]:
            waiting[dependent] -= 1
            if waiting[dependent] == 0:
                heappush(ready, dependent)
    return ordered


def _dependency_problems(ids: Iterable[MigrationId], nodes: Graph) -> Iterator[str]:
    hints = MAX_LINES  # each costs a pass over all names, so only those that are shown get one
    for id in ids:
        for need, count in Counter(nodes[id]).items():
            if need == id:
                yield f"{id} depends on itself"
            elif need not in nodes:
                near = hint(need.name, [other for other in nodes if other != id]) if hints > 0 else ""
                hints -= 1
                yield f"{id} depends on {need}, which is not there{near}"
            if count > 1:
                yield f"{id} names its dependency {need} {count} times"


def _shown_cycle(cycle: Sequence[MigrationId]) -> str:
    shown = [str(id) for id in cycle[:_MAX_CYCLE]]
    if len(cycle) > _MAX_CYCLE:
        shown.append(f"... {len(cycle) - _MAX_CYCLE} more ...")
    return f"each depends on the next in a cycle: {' -> '.join([*shown, str(cycle[0])])}"


def _cycles(needs: Sequence[Sequence[int]], left: Sequence[int]) -> list[list[int]]:
    """A shortest cycle through the smallest member of each component, by that member."""
    components = [members for members in _components(needs, left) if len(members) > 1]
    return [_shortest_cycle(needs, set(members)) for members in sorted(components, key=min)]


def _components(needs: Sequence[Sequence[int]], left: Sequence[int]) -> list[list[int]]:
    """Strongly connected components of what is `left` (Tarjan's algorithm with a stack of its own)."""
    found: list[list[int]] = []
    seen: dict[int, int] = {}
    lowest: dict[int, int] = {}
    pending: list[int] = []  # seen, and of a component that is not complete
    settled: set[int] = set(range(len(needs))).difference(left)
    for start in left:
        walk = [] if start in seen else [(start, iter(needs[start]))]
        while walk:
            rank, needed = walk[-1]
            if rank not in seen:
                seen[rank] = lowest[rank] = len(seen)
                pending.append(rank)
            for need in needed:
                if need in settled:
                    continue
                if need not in seen:
                    walk.append((need, iter(needs[need])))
                    break
                lowest[rank] = min(lowest[rank], seen[need])
            else:
                walk.pop()
                if walk:
                    above = walk[-1][0]
                    lowest[above] = min(lowest[above], lowest[rank])
                if lowest[rank] == seen[rank]:
                    members = [pending.pop()]
                    while members[-1] != rank:
                        members.append(pending.pop())
                    settled.update(members)
                    found.append(members)
    return found


def _shortest_cycle(needs: Sequence[Sequence[int]], members: set[int]) -> list[int]:
    start = min(members)
    came_from: dict[int, int] = {}
    level = [start]
    while start not in came_from:
        reached: list[int] = []
        for rank in level:
            for need in needs[rank]:
                # No way out of the component leads back: leaving it would only cost time.
                if need in members and need not in came_from:
                    came_from[need] = rank
                    reached.append(need)
        level = reached
    cycle = [start]
    while (rank := came_from[cycle[-1]]) != start:
        cycle.append(rank)
    return [start, *reversed(cycle[1:])]
