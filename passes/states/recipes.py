"""Known ways to spread a model, built by walking once through it: what a solution must not be worse than.

Each recipe narrows the ways of some operations; then each operation, in order, is computed in the way that takes least
with what its operands have by then. They are what people write by hand: batches apart; tokens apart, with all keys and
values gathered; tokens apart, with heads apart in attention; columns of a weight, then rows of the next one; pictures
apart in space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch.fx import Node

from ...compiler.ir.program import tensors_of, weight_name
from ...compiler.ir.state import PARTIAL, WHOLE, Split, State
from ...compiler.states import pointwise
from ...compiler.states.strategy import Strategy, name_of, shape_of
from ...compiler.states.table import rule_of
from .exchanges import can_change
from .folding import Tensor
from .modes import Posed
from .problem import Account, Choice, Problem, parts_weights

TRIFLE = 1000
"""A weight of a smaller part of all is whole: it gains nothing to split what embeds patches, and features with it."""

Allowed = Callable[[Node, int], bool]
"""Whether a recipe has a way of an operation, by its number."""


@dataclass(frozen=True)
class Recipe:
    """A choice that was built, with its name and what it takes."""

    name: str
    choice: Choice
    account: Account


def recipes(posed: Posed) -> Iterator[Recipe]:
    """The recipes that a mode allows, whatever devices have room for."""
    problem = posed.problem

    def keeps(node: Node, at: int) -> bool:
        return _keeps_weights(problem, node, at)

    apart: dict[str, Allowed] = {"space apart": lambda node, at: at > 0 or not _is_parted(problem, node)}
    kinds: dict[str, Allowed] = {
        "batch apart": lambda node, at: at in posed.by_batch[node],
        "keys and values gathered": lambda node, at: keeps(node, at) and not _is_heads(problem, node, at),
        "heads apart in attention": lambda node, at: keeps(node, at) and not _is_rows(problem, node, at),
        "columns and rows": lambda node, at: _is_narrow(problem, node, at),
        "whole": lambda node, at: at == 0,
    }
    for name, allowed in (apart if posed.in_space else kinds).items():
        choice = walked(problem, allowed, falls_back=posed.in_space)
        if choice is not None and problem.is_possible(choice):
            yield Recipe(name, choice, problem.account(choice))


def best_recipe(posed: Posed, built: Iterable[Recipe] | None = None) -> Recipe | None:
    """The recipe of least seconds whose bytes devices have room for, of all or of those that were built already."""
    kept = (one for one in (recipes(posed) if built is None else built) if posed.is_kept(one.account))
    return min(kept, key=lambda one: one.account.seconds, default=None)


def walked(problem: Problem, allowed: Allowed, falls_back: bool = False) -> Choice | None:
    """The choice of a walk in which each operation takes least with what is there; None where one has no way.

    With ``falls_back`` an operation of which no allowed way can be is computed whole.
    """
    had: dict[Tensor, set[State]] = defaultdict(set)
    found: dict[Node, int] = {}
    for node, ways in problem.ways.items():
        costs = [
            (cost, at)
            for at in range(len(ways))
            if allowed(node, at) and (cost := _cost(problem, had, node, at)) is not None
        ]
        if not costs and falls_back and (cost := _cost(problem, had, node, 0)) is not None:
            costs = [(cost, 0)]
        if not costs:
            return None
        _, found[node] = min(costs)
        chosen = ways[found[node]]
        for at, state in enumerate(chosen.results):
            had[node, at].add(state)
        for tensor, _, need in _readings(problem, node, chosen):
            had[tensor].add(need)
    return found


def _cost(problem: Problem, had: Mapping[Tensor, set[State]], node: Node, at: int) -> float | None:
    """The seconds of a way, with what brings operands into its states; None where that cannot be.

    Terms of a sum are to be added some time, which is half of bringing all of it to all devices; where an operation
    widens terms, that takes longer. Features are split where weights are, and nothing elementwise begins it: norms
    would need them together.
    """
    way = problem.ways[node][at]
    if _begins_features(problem, had, node, way):
        return None
    total = problem.times[node][at]
    if PARTIAL in way.results:
        terms = [tensor for tensor, _, need in _readings(problem, node, way) if need == PARTIAL]
        before = max((problem.change(one, PARTIAL, WHOLE)[1] for one in terms), default=0.0)
        total += max(0.0, problem.change((node, 0), PARTIAL, WHOLE)[1] - before) * problem.folded.count(node) / 2
    for tensor, operand, need in _readings(problem, node, way):
        states = had.get(tensor)
        if states is None:  # what an equal block makes behind this one
            if need == PARTIAL or (problem.is_bound((node, operand)) and need != WHOLE):
                return None
            continue
        is_bound = problem.is_bound((node, operand))
        ways = [one for one in states if can_change(one, need) and (one == need or not is_bound)]
        if not ways:
            return None
        total += min(problem.change(tensor, one, need)[1] for one in ways) * problem.folded.count(node)
    return total


def _begins_features(problem: Problem, had: Mapping[Tensor, set[State]], node: Node, way: Strategy) -> bool:
    """Whether an elementwise operation has its last axis split, and none of its operands of as many rows is so."""
    result = way.results[0] if way.results else WHOLE
    if not isinstance(result, Split) or result.axis != len(shape_of(node)) - 1 or rule_of(node) is not pointwise.RULE:
        return False
    return not any(
        need in had.get(tensor, ())
        for tensor, operand, need in _readings(problem, node, way)
        if isinstance(need, Split) and shape_of(operand) == shape_of(node)
    )


def _readings(problem: Problem, node: Node, way: Strategy) -> Iterator[tuple[Tensor, Node, State]]:
    """The tensors that a node reads which other operations make, and the states in which it does."""
    for operand in dict.fromkeys(node.all_input_nodes):
        for tensor in problem.folded.sources.get((node, operand), ()):
            if tensor[0] in problem.ways:
                yield tensor, operand, way.takes(operand)


def _is_parted(problem: Problem, node: Node) -> bool:
    """Whether some way of an operation yields parts of values, so that no device needs memory for all of them."""
    return any(isinstance(state, Split) for way in problem.ways[node] for state in way.results)


def _keeps_weights(problem: Problem, node: Node, at: int) -> bool:
    return not parts_weights(problem.folded, node, problem.ways[node][at])


def _is_heads(problem: Problem, node: Node, at: int) -> bool:
    return _axis_of_attention(problem, node, at) in (-4, -3)


def _is_rows(problem: Problem, node: Node, at: int) -> bool:
    return _axis_of_attention(problem, node, at) == -2


def _axis_of_attention(problem: Problem, node: Node, at: int) -> int | None:
    state = problem.ways[node][at].results[0] if problem.ways[node][at].results else WHOLE
    is_split = name_of(node) == "scaled_dot_product_attention" and isinstance(state, Split)
    return state.axis - len(shape_of(node)) if is_split and isinstance(state, Split) else None


def _is_narrow(problem: Problem, node: Node, at: int) -> bool:
    """Whether a way has a weight in parts, where the operation has such ways, and all of one that is but a trifle."""
    nbytes = sum(one.nbytes for operand in node.all_input_nodes if weight_name(operand) for one in tensors_of(operand))
    total = sum(nbytes for _, nbytes in problem.weights)
    is_whole = _keeps_weights(problem, node, at)
    if nbytes * problem.folded.count(node) * TRIFLE < total:
        return is_whole
    return not is_whole or all(_keeps_weights(problem, node, one) for one in range(len(problem.ways[node])))
