"""Prints a program as text: a header, the weights and inputs, one line a node, and what is returned.

``parser.py`` reads it back to the same program. docs/text-form.md has the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import Node
from torch.utils._dtype_abbrs import dtype_abbrs

from ..ir.aliasing import overwrites
from ..ir.eligibility import reasons_against
from ..ir.program import Program, origin_of, placement_of, value_of, weight_name
from ..ir.signature import ConstantLeaf, Signature
from ..ir.slices import Bounds
from ..ir.structure import count_leaves, is_leaf, show_structure
from ..ir.weight import Weight
from ..spec.residency import Residency
from .spelling import show_argument, show_constant, show_name, show_plain, show_target, show_value

_READ_OFF = frozenset({"schedule", "scheduled", "verify", "verified"})  # written anew from the program when it is read


@dataclass(frozen=True)
class _AboutWeights:
    """The block of each weight by its name, where most parameters rest, and why weights are not eligible."""

    block_of: Mapping[str, str]
    kept: Residency
    reasons: Mapping[Node, str]


def print_program(program: Program) -> str:
    """The text form of a program, at any stage between trace and schedule."""
    return "\n".join(lines_of(program)) + "\n"


def lines_of(program: Program) -> Iterator[str]:
    """The lines of the text form."""
    yield f"program {json.dumps(program.name)}"
    yield from _header(program)
    yield from _signature_lines(program.signature)
    for block in program.blocks:
        nbytes = program.nbytes_of(block.weights)
        yield f"block {json.dumps(block.name)}  // {len(block.weights)} weights, {nbytes} bytes"
    about = _AboutWeights(program.block_of(), program.kept, reasons_against(program) if program.blocks else {})
    for node in program.graph.nodes:
        yield _node_line(program, node, about)


def _header(program: Program) -> Iterator[str]:
    history = [step for step in program.history if step not in _READ_OFF]
    if history:
        yield f"passes {', '.join(history)}"
        yield f"facts {', '.join(sorted(program.facts - _READ_OFF))}"
    if program.devices:
        yield f"devices {program.rig}"
    if program.autocast:
        yield f"autocast {str(program.autocast).removeprefix('torch.')}"
    if program.kept is not Residency.DEVICE:
        yield f"rests {program.kept.value}"
    for symbol, size in program.symbols.items():
        low, high = program.signature.ranges.get(symbol, (0, 0))
        yield f"symbol {symbol} = {size} in {low}..{high}"
    for guard in program.signature.guards:
        yield f"guard {guard}"
    if program.signature.asked:
        yield f"asks {', '.join(sorted(program.signature.asked))}"


def _signature_lines(signature: Signature) -> Iterator[str]:
    defaults = ", ".join(f"{json.dumps(name)}: {show_constant(value)}" for name, value in signature.defaults.items())
    yield f"takes {json.dumps(signature.positional)} defaults {{{defaults}}}"
    leaves = iter(signature.leaves)
    for name, spec in zip(signature.names, signature.specs, strict=True):
        shown = [_leaf(next(leaves)) for _ in range(count_leaves(spec))]
        structure = "" if is_leaf(spec) else f" as {show_structure(spec)}"
        yield f"argument {show_name(name)}: {', '.join(shown)}{structure}"
    yield f"returns {show_structure(signature.out_spec)}"


def _leaf(leaf: Any) -> str:
    """An input's type is that of its node; a constant is written out."""
    return f"= {show_argument(leaf.value)}" if isinstance(leaf, ConstantLeaf) else "tensor"


def _node_line(program: Program, node: Node, about: _AboutWeights) -> str:
    if node.op == "output":
        return f"return {show_argument(node.args[0])}"
    head = f"%{node.name}: {show_value(value_of(node))} = "
    if weight_name(node):
        return head + _weight_text(program, node, about)
    if node.op == "placeholder":
        return f"{head}input{_place(node)}"
    arguments = [show_argument(argument) for argument in node.args]
    arguments += [f"{key}={show_argument(value)}" for key, value in node.kwargs.items()]
    call = f"{show_target(node.target)}({', '.join(arguments)})"
    states = "; ".join(" ".join(map(str, one)) for one in placement_of(node).states)
    states = f" {states}" if states else ""
    return f"{head}{call}{_place(node)}{states}{_uses(node)}{_over(node)}{_origin(node)}"


def _weight_text(program: Program, node: Node, about: _AboutWeights) -> str:
    weight = program.weight(node)
    aliases = "".join(f" alias {json.dumps(alias)}" for alias in weight.aliases)
    rows = f" rows {_columns(program.bounds[weight.name])}" if weight.name in program.bounds else ""
    packed = f" packed {weight.quant} {_numbers(weight)}" if weight.quant else ""
    kept = ("" if weight.persistent else " transient") + (" frozen" if weight.frozen else "")
    reason = about.reasons.get(node)
    mark = " eligible" if reason == "" else ""
    block = f" in {json.dumps(about.block_of[weight.name])}" if weight.name in about.block_of else ""
    usual = about.kept if weight.kind == "parameter" else Residency.DEVICE
    rests = program.residency.get(weight.name, Residency.DEVICE)
    place = f" rests {rests.value}" if rests is not usual else ""
    home = f" @{program.home[weight.name]}" if weight.name in program.home else ""
    why_not = f"  // not eligible: {reason}" if reason else ""
    return f"{weight.kind} {json.dumps(weight.name)}{aliases}{rows}{packed}{kept}{mark}{block}{place}{home}{why_not}"


def _columns(bounds: Bounds) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in bounds)


def _numbers(weight: Weight) -> str:
    return f"{dtype_abbrs[weight.dtype]}[{', '.join(map(str, weight.shape))}]"


def _place(node: Node) -> str:
    placement = placement_of(node)
    device = f" @{'+'.join(map(str, placement.group))}" if placement.group else ""
    part = f" part {placement.part}" if placement.part is not None else ""
    return device + (f" #{placement.segment}" if placement.segment is not None else "") + part


def _uses(node: Node) -> str:
    """The weights a node consumes, where they are not simply the weights among its operands."""
    weights = placement_of(node).weights
    direct = tuple(name for operand in node.all_input_nodes if (name := weight_name(operand)))
    if weights == direct or placement_of(node).device is None:
        return ""
    return f" uses {json.dumps(weights)}"


def _over(node: Node) -> str:
    """The operand in whose memory a node is computed, where strides allow."""
    return f" over %{node.args[0]}" if overwrites(node) else ""


def _origin(node: Node) -> str:
    origin = origin_of(node)
    if not origin.cls and not origin.source:
        return ""
    return f"  // {show_plain(origin.module)} : {show_plain(origin.cls)} : {show_plain(origin.source, last=True)}"
