"""What was solved for one size, applied to a call of another: the same splits, with bounds of their own.

States have numbers in them: where the axis of a value is cut. A second picture size, or a second batch, is another
trace of the same module, whose operations are the same but for these numbers. Each of them is computed in the way that
is like that of the first size: results and operands are split along the same axes in as many segments, or are terms of
a sum, and among several such ways what is read as it is made stays so, and cuts are where they were in proportion.
Bounds are found for the second size as they were for the first: units of heads, 32 queries and few rows are kept. An
operation that has no such way at the second size is computed whole.

It takes a walk, not a search: a pipeline that is called at several sizes solves once.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

from torch.fx import Node

from ...compiler.ir.program import Program, origin_of, tensors_of, weight_name
from ...compiler.ir.state import Split, State
from ...compiler.states.strategy import Strategy, name_of
from .exchanges import Group, can_change
from .folding import Reading, Tensor, operands_of
from .modes import Posed, posed
from .solution import NotPossible, Solution, solution_of


def solution_at(solution: Solution, program: Program, other: Program, group: Group) -> Solution | NotPossible:
    """The states of a program at other sizes that are like those that were solved.

    Args:
        solution: the states of ``program``.
        program: it is traced, and not placed.
        other: the same module, traced with inputs of other sizes.
        group: the devices of both.
    """
    firsts = _firsts(program, other)
    alone = [node for node in other.ops() if node not in firsts and any(map(weight_name, node.all_input_nodes))]
    if alone:
        reason = f"at the other sizes there is %{alone[0].name} of {name_of(alone[0])}, which is not there at the first"
        return NotPossible(solution.mode, reason)
    question = posed(other, group, solution.mode)
    choice = _choice(question, solution, firsts)
    if not question.problem.is_possible(choice):
        return NotPossible(solution.mode, "memory that is written at the other sizes cannot be had as it is read")
    account = question.problem.account(choice)
    if not question.is_kept(account):
        return NotPossible(solution.mode, "devices would have more bytes of weights than they may at the other sizes")
    return solution_of(question.problem, choice, account, solution.mode, f"as {solution.how} for another size", None)


def _firsts(program: Program, other: Program) -> dict[Node, Node]:
    """For each operation at other sizes that which does the same at the first, as far as there is one.

    A slice that takes all of an axis is there at one size only.
    """
    one, two = list(program.ops()), list(other.ops())
    same = SequenceMatcher(None, list(map(_facts, one)), list(map(_facts, two)), autojunk=False)
    blocks = same.get_matching_blocks()
    return {two[at + more]: one[first + more] for first, at, size in blocks for more in range(size)}


def _facts(node: Node) -> tuple[str, ...]:
    """What an operation does, wherever: its name, its module, its weights, and the axes of its results."""
    ranks = [str(len(tensor.shape)) for tensor in tensors_of(node)]
    weights = [name for name in map(weight_name, node.all_input_nodes) if name]
    return (str(node.target), origin_of(node).module, *ranks, *weights)


def _choice(question: Posed, solution: Solution, firsts: Mapping[Node, Node]) -> dict[Node, int]:
    """For each operation the way that is like that which was solved for, in order."""
    problem, found = question.problem, dict[Node, int]()
    for node, ways in problem.ways.items():
        first = firsts.get(node)
        solved = solution.strategies.get(first) if first is not None else None
        fitting = [
            (_moved(question, found, node, way, solution, firsts), _distance(node, way, first, solved), at)
            for at, way in enumerate(ways)
            if _is_alike(node, way, first, solved) and _is_had(question, found, node, way)
        ]
        found[node] = min(fitting)[-1] if fitting else 0
    return found


def _states(node: Node, way: Strategy) -> list[State]:
    """The states of results, and those of operands in order."""
    return [*way.results, *(way.takes(operand) for operand in node.all_input_nodes)]


def _is_alike(node: Node, way: Strategy, first: Node | None, solved: Strategy | None) -> bool:
    """Whether a way splits what the one that was solved splits; any does of an operation that was not there."""
    if first is None or solved is None:
        return True
    return list(map(_kind, _states(node, way))) == list(map(_kind, _states(first, solved)))


def _kind(state: State) -> object:
    return (state.axis, len(state.segments)) if isinstance(state, Split) else state


def _is_had(question: Posed, found: Mapping[Node, int], node: Node, way: Strategy) -> bool:
    """Whether operands that were looked at can be read so."""
    problem = question.problem
    for operand in operands_of(node):
        need, is_bound = way.takes(operand), problem.is_bound((node, operand))
        for tensor in problem.folded.sources.get((node, operand), ()):
            if tensor[0] not in problem.ways:
                continue
            made = problem.state(found, tensor) if tensor[0] in found else None
            if made is not None and (not can_change(made, need) or (is_bound and made != need)):
                return False
    return True


def _moved(
    question: Posed,
    found: Mapping[Node, int],
    node: Node,
    way: Strategy,
    solution: Solution,
    firsts: Mapping[Node, Node],
) -> int:
    """How many operands would be brought into another state that were read as they were made, or were not there."""
    problem, count = question.problem, 0
    for operand in operands_of(node):
        for tensor in problem.folded.sources.get((node, operand), ()):
            if tensor[0] not in found:
                continue
            count += problem.state(found, tensor) != way.takes(operand) and _was_same(
                solution, firsts, tensor, (node, operand)
            )
    return count


def _was_same(solution: Solution, firsts: Mapping[Node, Node], tensor: Tensor, reading: Reading) -> bool:
    """Whether an operand was read as it was made at the first size, or one of them was not there."""
    (node, operand), (maker, at) = reading, tensor
    if node not in firsts or maker not in firsts:
        return True
    way, number = solution.strategies[firsts[node]], node.all_input_nodes.index(operand)
    return solution.strategies[firsts[maker]].results[at] == way.takes(firsts[node].all_input_nodes[number])


def _distance(node: Node, way: Strategy, first: Node | None, solved: Strategy | None) -> float:
    """How far cuts are from where they were, as parts of their axes."""
    if first is None or solved is None:
        return 0.0
    pairs = zip(_states(node, way), _states(first, solved), strict=True)
    return sum(abs(a - b) for one, two in pairs for a, b in zip(_ends(one), _ends(two), strict=True))


def _ends(state: State) -> list[float]:
    if not isinstance(state, Split):
        return []
    return [stop / max(1, state.size) for segment in state.segments for _, stop in segment]
