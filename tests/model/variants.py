"""Admission with one rule left out: the checker must find out.

A variant is made from the source of `journal.admission`, so production code needs no switches for tests. Each rule is
found by what it says and not by where it is; when it is not found exactly once, making the variant fails.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

from journal import admission


def without(rule: str) -> ModuleType:
    """A copy of `journal.admission` that lacks the rule of this name, a key of `RULES` or of `CARRYING`."""
    transformer = {**RULES, **CARRYING}[rule]()
    tree = transformer.visit(ast.parse(inspect.getsource(admission)))
    assert transformer.left_out == 1, f"the rule {rule!r} was found {transformer.left_out} times, not once"
    module = ModuleType(admission.__name__)  # dataclasses look their module up by this name
    source = f"{admission.__file__} without {rule}"
    exec(compile(ast.fix_missing_locations(tree), source, "exec"), module.__dict__)
    return module


class _Refusal(ast.NodeTransformer):
    """Leaves out the branch that does nothing but return `Code.<name>`."""

    def __init__(self, name: str) -> None:
        self.branch = f"return Code.{name}"
        self.left_out = 0

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if [ast.unparse(statement) for statement in node.body] == [self.branch]:
            self.left_out += 1
            return node.orelse or ast.Pass()
        node.orelse = [] if [type(statement) for statement in node.orelse] == [ast.Pass] else node.orelse
        return node


class _Condition(ast.NodeTransformer):
    """Replaces one expression by another; both are compared and given as source."""

    def __init__(self, old: str, new: str) -> None:
        self.old = ast.unparse(ast.parse(old, mode="eval"))
        self.new = new
        self.left_out = 0

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        if ast.unparse(node) != self.old:
            return node
        self.left_out += 1
        return ast.parse(self.new, mode="eval").body


RULES: Final[Mapping[str, Callable[[], _Refusal | _Condition]]] = {
    # An event counts only on the head that it names.
    "parent": lambda: _Refusal("STALE_PARENT"),
    # The fence of a lease exceeds every fence before.
    "lease fence": lambda: _Refusal("FENCE_NOT_MONOTONIC"),
    # What is written counts only under the newest lease.
    "fence": lambda: _Refusal("STALE_FENCE"),
    # A writer that took a fence twice writes under the newer lease only, and not under one that it gave back.
    "lease id": lambda: _Condition(
        "event.lease_id != state.lease_id or event.fence != state.fence", "event.fence != state.fence"
    ),
    # A copy that is void by its parent says nothing of later copies.
    "settling: a stale parent is not final": lambda: _Condition(
        "verdict is not None and verdict.reason is not Code.STALE_PARENT", "verdict is not None"
    ),
    # A parent that was not the head yet may become it.
    "settling: the parent may come": lambda: _Condition(
        "parent_was_head and state.head != pending.parent", "state.head != pending.parent"
    ),
    # A copy behind the one that counts says nothing.
    "settling: the first copy that counts": lambda: _Condition(
        "self.verdict is None or self.verdict == _VOID[Code.STALE_PARENT]", "True"
    ),
}
# Of `tests.model.carrying`.
CARRYING: Final[Mapping[str, Callable[[], _Refusal]]] = {
    # Behind a move nothing counts but the arrival.
    "behind a move": lambda: _Refusal("SCOPE_MOVED"),
}
