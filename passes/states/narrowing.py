"""Has elementwise operations compute only the slice that is read of their result: it is taken of their operands.

The last block of a model computes rows of which nobody reads the sums. Where a slice is taken of what is added to a
residual, the terms of a sum are brought together for all rows; where it is taken of the terms, for those that are read.
Each number is computed as before, from the same numbers.
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Node

from ...compiler.ir.aliasing import Alias, alias_class, argument_of
from ...compiler.ir.program import Program, origin_of, tensors_of, weight_name
from ...compiler.ir.value import filled_stride
from ...compiler.states import pointwise
from ...compiler.states.strategy import name_of, shape_of
from ...compiler.states.table import rule_of


def narrow(program: Program) -> int:
    """Takes slices before elementwise operations of which nothing else is read; returns before how many."""
    todo = [node for node in program.ops() if name_of(node) == "slice"]
    count = 0
    while todo:
        node = todo.pop()
        source = node.args[0]
        if isinstance(source, Node) and _can_be_narrow(program, node, source):
            todo += _take_before(program, node, source)
            count += 1
    return count


def _can_be_narrow(program: Program, node: Node, source: Node) -> bool:
    """Whether a slice is all that is read of fresh numbers, and lies in memory as numbers of its own would."""
    if rule_of(source) is not pointwise.RULE or alias_class(source.target) is not Alias.COMPUTE:
        return False
    (kind,) = tensors_of(node)
    if kind.hint or len(source.users) > 1 or any(alias_class(user.target) is not Alias.COMPUTE for user in node.users):
        return False
    axes = zip(kind.shape, kind.stride, filled_stride(kind), strict=True)
    if any(size != 1 and step != filled for size, step, filled in axes):
        return False
    return not any(weight_name(one) for one in _along(node, source))


def _axis(node: Node) -> int:
    return int(argument_of(node, "dim")) % len(shape_of(node))


def _along(node: Node, source: Node) -> dict[Node, int]:
    """The operands of an operation that have the axis of a slice, each with its number there."""
    axis, shape = _axis(node), shape_of(source)
    axes = {one: axis - (len(shape) - len(shape_of(one))) for one in source.all_input_nodes if tensors_of(one)}
    return {one: at for one, at in axes.items() if at >= 0 and shape_of(one)[at] == shape[axis]}


def _take_before(program: Program, node: Node, source: Node) -> list[Node]:
    """Takes a slice of what an operation reads instead of what it makes; returns those that it takes."""
    (kind,), (made,), found = tensors_of(node), tensors_of(source), []
    axis = _axis(node)
    for operand, at in _along(node, source).items():
        (whole,) = tensors_of(operand)
        with program.graph.inserting_before(source):
            part = program.graph.call_function(node.target, (operand, at, *node.args[2:]))  # type: ignore[arg-type]
        shape = (*whole.shape[:at], kind.shape[axis], *whole.shape[at + 1 :])
        part.meta = {"value": replace(whole, shape=shape), "origin": origin_of(source)}
        source.replace_input_with(operand, part)
        found.append(part)
    narrowed = replace(made, shape=kind.shape)
    source.meta["value"] = replace(narrowed, stride=filled_stride(narrowed))
    node.replace_all_uses_with(source)
    program.graph.erase_node(node)
    return found
