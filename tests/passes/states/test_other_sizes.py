"""What was solved for one size is applied to another: the same splits, with the right result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.state import Split
from dovetail.compiler.states.strategy import name_of
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.other_sizes import solution_at
from dovetail.passes.states.solution import NotPossible, Solution
from dovetail.passes.states.solve import solve
from testbed.zoo.everything import TINY
from tests.cases import drawn, slow_but
from tests.laws.members import run_by_members
from tests.laws.test_solved_states import expect_same, expect_sound

from .groups import Gated, group, traced

HEAVY = ("linear", "conv2d", "scaled_dot_product_attention")


def _wider(call: dict[str, Any], name: str, scale: int) -> dict[str, Any]:
    """A call with pictures, or tokens of these, that are so many times as wide."""
    one = call[name]
    axis = 1 if one.dim() == 3 else 3
    wide = {name: torch.cat([one, *(torch.randn_like(one) for _ in range(scale - 1))], axis)}
    if "img_ids" in call:
        more = [call["img_ids"] + torch.tensor([0, 0, 4 * at]).to(call["img_ids"]) for at in range(scale)]
        wide["img_ids"] = torch.cat(more)
    return {**call, **wide}


def _twice(call: dict[str, Any], name: str) -> dict[str, Any]:
    """A call for twice as many pictures."""
    count = call[name].shape[0]

    def again(value: Any) -> Any:
        is_of_each = isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == count
        return torch.cat([value, value.flip(0)]) if is_of_each else value

    return {
        key: value if key in ("img_ids", "txt_ids") else pytree.tree_map(again, value) for key, value in call.items()
    }


CLASSES = {
    "FluxTransformer2DModel": "hidden_states",
    "SD3Transformer2DModel": "hidden_states",
    "UNet2DConditionModel-xl": "sample",
}
OTHERS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "size": lambda call, name: _wider(call, name, 3),
    "batch": _twice,
    "both": lambda call, name: _wider(_twice(call, name), name, 2),
}


def _program(module: torch.nn.Module, call: dict[str, Any]) -> Program:
    program = trace(module, (), call)
    Simplify().run(program)
    return program


def _kinds(found: Solution) -> Counter[tuple[str, object]]:
    """How many matmuls, convolutions and attentions are split along each axis, or yield terms of a sum."""
    heavy = ((name_of(node), way.results[0]) for node, way in found.strategies.items() if name_of(node) in HEAVY)
    return Counter((name, state.axis if isinstance(state, Split) else str(state)) for name, state in heavy)


QUICK = [
    ("FluxTransformer2DModel", "size", (1, 1), "tensor"),
    ("FluxTransformer2DModel", "both", (5, 3, 2), "sequence"),
    ("SD3Transformer2DModel", "batch", (1, 1), "batch"),
]
WAYS = [((1, 1), "tensor"), ((5, 3, 2), "sequence"), ((1, 1), "batch")]
CELLS = [
    cell for cell in ((name, other, *way) for name in CLASSES for other in OTHERS for way in WAYS) if cell not in QUICK
]


@pytest.mark.parametrize(("name", "other", "shares", "mode"), slow_but(QUICK, [*QUICK, *drawn(CELLS, 8)]))
def test_states_of_one_size_are_applied_to_another(name: str, other: str, shares: tuple[int, ...], mode: str) -> None:
    module, call = TINY[name].make(torch.float64)
    second = OTHERS[other](call, CLASSES[name])
    before, after = _program(module, call), _program(module, second)
    solved = solve(before, group(*shares), mode, node_limit=5)
    if isinstance(solved, NotPossible):
        assert mode == "batch"
        return
    found = solution_at(solved, before, after, group(*shares))
    assert isinstance(found, Solution), str(found)
    expect_sound(after, found, mode)
    assert _kinds(found) == _kinds(solved)
    expect_same(name, run_by_members(after, module, second, found.strategies, len(shares)), module, second)


def test_states_are_the_same_at_the_same_size() -> None:
    module, call = TINY["FluxTransformer2DModel"].make(torch.float64)
    before, after = _program(module, call), _program(module, call)
    solved = solve(before, group(5, 3), "tensor", node_limit=5)
    assert isinstance(solved, Solution)
    found = solution_at(solved, before, after, group(5, 3))
    assert isinstance(found, Solution)
    assert [str(one) for one in found.strategies.values()] == [str(one) for one in solved.strategies.values()]
    assert found.account.sent == solved.account.sent


def test_another_program_is_refused_by_the_first_operation_that_differs() -> None:
    module, call = TINY["FluxTransformer2DModel"].make(torch.float64)
    before, after = _program(module, call), traced(Gated(16), torch.randn(1, 8, 16))
    solved = solve(before, group(1, 1), "sequence")
    assert isinstance(solved, Solution)
    found = solution_at(solved, before, after, group(1, 1))
    assert isinstance(found, NotPossible)
    assert "which is not there at the first" in found.reason
