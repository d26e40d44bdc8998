"""The operations of a program as columns for the page: texts once in a table, all else as numbers into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Node

from ...compiler.devices.speeds import Speeds
from ...compiler.ir.eligibility import marks_by_name
from ...compiler.ir.program import Program, origin_of, placement_of, tensors_of, weight_name
from ...compiler.ir.split import first_reader, original, share_of, split_of
from ...compiler.ir.value import TensorType
from ...compiler.states.parts import sent
from ...passes.simulate.cost import cost_of
from ..outline.grouping import Group, by_block, by_segment, place_of, unit_finder
from ..outline.outline import modules_of


class Texts(dict[str, int]):
    """Texts by the order in which they were first met."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self)
        return self[text]


def graph_of(program: Program, speeds: Speeds) -> dict[str, Any]:
    """The segments, blocks, operations and crossings of a cut program.

    A segment or block is a range of operations: [title, place, first, last + 1, bytes of weights, microseconds]. What
    crosses is [operation, or -1 for an input, first reader, or -1 for a result, from, to, bytes].
    """
    texts = Texts()
    nodes = [node for segment in program.segments for node in segment.nodes]
    numbers = {node: number for number, node in enumerate(nodes)}
    seconds = [_seconds(program, node, speeds) for node in nodes]
    ranges = {
        "segments": [] if program.is_grouped else _ranges(program, by_segment(program), numbers, seconds, texts),
        "blocks": _ranges(program, by_block(program), numbers, seconds, texts),
    }
    columns = _columns(program, nodes, numbers, texts)
    return {
        **ranges,
        **columns,
        "seconds": [round(one * 1e6, 2) for one in seconds],
        "crossings": list(_crossings(program, numbers)),
        "inputs": [node.name for node in program.inputs()],
        "texts": list(texts),
    }


def _ranges(
    program: Program, groups: Sequence[Group], numbers: Mapping[Node, int], seconds: Sequence[float], texts: Texts
) -> list[list[Any]]:
    find = unit_finder(program.blocks)
    found = []
    for group in groups:
        start, stop = numbers[group.nodes[0]], numbers[group.nodes[-1]] + 1
        modules, weights = modules_of(group.nodes, find)
        title = group.unit or ", ".join(modules) or "no module of its own"
        took = round(sum(seconds[start:stop]) * 1e6, 2)
        found.append([texts[title], texts[group.where], start, stop, program.nbytes_of(weights), took])
    return found


def _columns(
    program: Program, nodes: Sequence[Node], numbers: Mapping[Node, int], texts: Texts
) -> dict[str, list[Any]]:
    groups = {node: segment.group for segment in program.segments for node in segment.nodes}
    origins = [origin_of(node) for node in nodes]
    shown = {name: _weight(program, name, reason) for name, reason in marks_by_name(program).items()}
    return {
        "name": [node.name for node in nodes],
        "op": [texts[_op(node)] for node in nodes],
        "type": [texts[_type(node)] for node in nodes],
        "place": [texts[place_of(program, groups[node])] for node in nodes],
        "split": [texts[_split(node)] for node in nodes],
        "weights": [[texts[shown[name]] for name in _weights(node)] for node in nodes],
        "module": [texts[f"{one.module} : {one.cls}" if one.cls else one.module] for one in origins],
        "source": [texts[one.source] for one in origins],
        "reads": [[numbers[one] for one in map(original, node.all_input_nodes) if one in numbers] for node in nodes],
    }


def _weights(node: Node) -> dict[str, None]:
    """The names of the weights among what a node reads."""
    return dict.fromkeys(name for one in node.all_input_nodes if (name := weight_name(one)))


def _weight(program: Program, name: str, reason: str) -> str:
    weight = program.weights[name]
    rests = program.residency.get(weight.whole)
    where = f", kept in {rests.value}" if rests is not None else ""
    mark = f", not eligible for a row split ({reason})" if reason else ", eligible for a row split"
    return f"{name} {_shape(weight.shape)} {weight.quant or str(weight.dtype).removeprefix('torch.')}{where}{mark}"


def _op(node: Node) -> str:
    return str(node.target) if node.op == "call_function" else node.op


def _type(node: Node) -> str:
    return ", ".join(map(_tensor, tensors_of(node))) or "number"


def _tensor(tensor: TensorType) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{_shape(tensor.shape)}"


def _shape(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _split(node: Node) -> str:
    """Which columns each device has of a split value; empty where one device has all."""
    split = split_of(node)
    shares = zip(placement_of(node).group, split.segments[0], strict=True) if split else ()
    return ", ".join(f"{device}: {start}–{stop}" for device, (start, stop) in shares if start < stop)


def _seconds(program: Program, node: Node, speeds: Speeds) -> float:
    """The predicted seconds of an operation, on the slowest of the devices that share it."""
    cost, group = cost_of(node), placement_of(node).group
    return max((cost.part(share_of(node, one)).seconds(speeds[one]) for one in group), default=0.0)


def _crossings(program: Program, numbers: Mapping[Node, int]) -> Any:
    for transfer in program.transfers():
        ends = numbers.get(original(transfer), -1), numbers.get(first_reader(transfer), -1)
        for source, target, nbytes in sent(program, transfer):
            yield [*ends, source.name, target.name, nbytes]
