"""Solved states are run: the members of a group in turn, and what they yield together is what one device yields."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping

import pytest
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.state import PARTIAL, Split
from dovetail.compiler.states.strategy import Strategy, name_of
from dovetail.compiler.states.table import strategies
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.modes import MODES, Posed, posed
from dovetail.passes.states.problem import Choice
from dovetail.passes.states.recipes import best_recipe, recipes, walked
from dovetail.passes.states.solution import NotPossible, Solution, solution_of
from dovetail.passes.states.solve import solve
from testbed.sharing import slow_group
from testbed.zoo.everything import TINY
from tests.cases import drawn

from .members import run_by_members

SHARES = [(1, 1), (5, 3, 2), (1, 0), (1, 1, 1, 1), (0, 1, 1)]
OWN_PYTHON = {"CosmosTransformer3DModel"}
"""What no trace takes in float64."""
SEED = int(os.environ["DOVETAIL_TEST_SEED"]) % 1000
NAMES = [one for one in TINY if one not in OWN_PYTHON]
LEARNED = ("linear", "matmul", "conv", "norm", "embedding")
NEAR = 1e-5
"""How far results may be off, as a part of the largest: some models compute in float32 inside."""


def traced(name: str) -> tuple[Program, torch.nn.Module, Mapping[str, object]]:
    module, call = TINY[name].make(torch.float64)
    program = trace(module, (), call)
    Simplify().run(program)
    return program, module, call


def expect_same(name: str, found: list[torch.Tensor], module: torch.nn.Module, call: Mapping[str, object]) -> None:
    with torch.no_grad():
        eager = [one for one in pytree.tree_leaves(module(**call)) if isinstance(one, torch.Tensor)]
    assert len(found) == len(eager)
    for part, whole in zip(found, eager, strict=True):
        largest = whole.abs().nan_to_num(0, 0, 0).max().item() if whole.numel() else 0.0
        error = NEAR * max(largest, 1e-9)
        assert torch.allclose(part, whole.to(part.dtype), rtol=NEAR, atol=error, equal_nan=True), name


def of_random(question: Posed, choice: random.Random) -> Choice:
    """A way for each operation: one that is drawn, or that of wholes, but for memory that is written."""
    problem = question.problem
    picks = {node: choice.randrange(len(ways)) for node, ways in problem.ways.items()}
    bound = {node for node, operand in problem.folded.sources if problem.is_bound((node, operand))}
    found = walked(problem, lambda node, at: node in bound or at in (0, picks[node]))
    assert found is not None
    return found


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn(NAMES, 2))
@pytest.mark.parametrize("seed", [SEED])
def test_members_with_random_states_yield_what_one_device_yields(name: str, seed: int) -> None:
    program, module, call = traced(name)
    choice = random.Random(f"{name} {seed}")
    for shares in choice.sample(SHARES, 2):
        question = posed(program, slow_group(shares), "free")
        picks = of_random(question, choice)
        if not question.problem.is_possible(picks):
            continue
        account = question.problem.account(picks)
        states = solution_of(question.problem, picks, account, "free", "drawn", None).strategies
        expect_same(name, run_by_members(program, module, call, states, len(shares)), module, call)


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn(NAMES, 2))
@pytest.mark.parametrize("seed", [SEED])
def test_members_by_each_recipe_yield_what_one_device_yields(name: str, seed: int) -> None:
    program, module, call = traced(name)
    shares = random.Random(f"{name} {seed}").choice(SHARES)
    question = posed(program, slow_group(shares), "free")
    found = list(recipes(question))
    assert "whole" in [one.name for one in found]
    for one in found:
        states = solution_of(question.problem, one.choice, one.account, "free", one.name, None).strategies
        expect_same(name, run_by_members(program, module, call, states, len(shares)), module, call)


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn(NAMES, 2))
@pytest.mark.parametrize("seed", [SEED])
def test_members_with_solved_states_yield_what_one_device_yields(name: str, seed: int) -> None:
    program, module, call = traced(name)
    shares = random.Random(f"{name} {seed}").choice(SHARES)
    free = solve(program, slow_group(shares))
    assert isinstance(free, Solution)
    little = tuple(
        round(0.8 * (held + live)) for held, live in zip(free.account.weights, free.account.alive, strict=True)
    )
    for mode, room in [("free", ()), ("free", little), *((one, ()) for one in MODES[1:])]:
        found = solve(program, slow_group(shares), mode, room=room, node_limit=50)
        if isinstance(found, NotPossible):
            assert room or mode in ("batch", "tensor", "spatial")
            continue
        together = [held + live for held, live in zip(found.account.weights, found.account.alive, strict=True)]
        assert not room or all(nbytes <= limit for nbytes, limit in zip(together, room, strict=True))
        expect_sound(program, found, mode)
        recipe = best_recipe(posed(program, slow_group(shares), mode, (), room))
        assert recipe is None or found.account.seconds <= recipe.account.seconds
        expect_same(name, run_by_members(program, module, call, found.strategies, len(shares)), module, call)


def expect_sound(program: Program, found: Solution, mode: str) -> None:
    """What is decided is what the rules say, keeps units, and is what a mode allows."""
    for node, chosen in found.strategies.items():
        assert _is_of_rules(node, chosen), f"%{node.name} {chosen}"
        for state in chosen.results:
            assert state == PARTIAL or not isinstance(state, Split) or state.covers(len(found.shares), state.size)
        if name_of(node) == "scaled_dot_product_attention":
            _expect_whole_groups(node, chosen)
    if mode in ("sequence", "batch", "spatial"):
        weights = {node for node in program.weight_nodes() if program.weight(node).kind == "parameter"}
        for node, chosen in found.strategies.items():
            assert weights.isdisjoint(chosen.operands) or not any(kind in name_of(node) for kind in LEARNED)
    if mode == "tensor":
        limits = posed(program, slow_group(found.shares), mode).most
        assert all(
            held <= limit for held, limit in zip(found.account.weights, limits, strict=True) if limit is not None
        )


def _is_of_rules(node: Node, chosen: Strategy) -> bool:
    def offers(one: Node) -> list[object]:
        return list(chosen.results) if one is node else [chosen.takes(one)]

    return any(one.results == chosen.results and one.operands == chosen.operands for one in strategies(node, offers))  # type: ignore[arg-type]


def _expect_whole_groups(node: Node, chosen: Strategy) -> None:
    """Queries that read the same keys are on one device."""
    state = chosen.results[0]
    q, k = (one.meta["value"].sizes for one in node.args[:2])
    if isinstance(state, Split) and state.axis < len(q) - 2:
        each = q[state.axis] // k[state.axis]
        assert all(end % each == 0 for segment in state.segments for bounds in segment for end in bounds)
