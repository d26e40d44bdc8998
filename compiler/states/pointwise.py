"""Elementwise operations, casts and copies: each device computes the numbers that it has."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..ir.program import tensors_of
from ..ir.state import PARTIAL, Split, State
from .strategy import Offers, Rule, Strategy, name_of, shape_of, splits, strategy

SAME = frozenset({
    "contiguous", "clone", "alias", "detach", "lift_fresh_copy", "dropout", "to", "_to_copy", "type_as", "copy_",
    "fill_", "where",
})  # fmt: skip
"""Operations that yield the numbers that they are given, or write them."""
_SUMS = frozenset({"add", "sub", "add_", "sub_"})
_SCALES = frozenset({"mul", "div", "mul_", "div_"})
_EXACT = frozenset({"neg", "contiguous", "clone", "alias", "detach"})


def strategies(node: Node, offers: Offers) -> Iterator[Strategy]:
    """A split axis of the result is split in each operand that has it; those that are broadcast along it are whole."""
    operands = [one for one in dict.fromkeys(node.all_input_nodes) if tensors_of(one)]
    found: dict[Split, None] = dict.fromkeys(splits(offers, node))
    for one in operands:
        more = len(shape_of(node)) - len(shape_of(one))
        for state in splits(offers, one):
            if shape_of(one)[state.axis] == shape_of(node)[state.axis + more]:
                found[Split(state.axis + more, state.segments)] = None
    for state in found:
        taken = {one: _of_operand(node, one, state) for one in operands}
        if not _is_written_apart(node, taken):
            yield strategy(state, taken)
    yield from _of_sums(node, operands, offers)


def _of_operand(node: Node, operand: Node, state: Split) -> State | None:
    axis = state.axis - (len(shape_of(node)) - len(shape_of(operand)))
    is_there = axis >= 0 and shape_of(operand)[axis] == shape_of(node)[state.axis]
    return Split(axis, state.segments) if is_there else None


def _is_written_apart(node: Node, taken: dict[Node, State | None]) -> bool:
    """Whether a result is split that lies in the memory of an operand which is not."""
    memory = {one.storage for one in tensors_of(node)}
    whole = [one for one, state in taken.items() if state is None]
    return any(tensor.storage in memory for one in whole for tensor in tensors_of(one))


def _of_sums(node: Node, operands: list[Node], offers: Offers) -> Iterator[Strategy]:
    """Terms of sums: what is linear in an operand is computed of each term."""
    name = name_of(node)
    terms = [one for one in operands if PARTIAL in offers(one)]
    if name in _EXACT and terms:
        yield strategy(PARTIAL, {terms[0]: PARTIAL})
    if name in _SUMS and len(terms) == len(operands) == 2 and all(isinstance(one, Node) for one in node.args[:2]):
        yield strategy(PARTIAL, dict.fromkeys(terms, PARTIAL))
    if name in _SCALES and terms and "rounding_mode" not in node.kwargs:
        first = node.args[0]
        for one in terms:
            if one is first and node.args[1] is not first:
                yield strategy(PARTIAL, {one: PARTIAL})


RULE = Rule(strategies)
