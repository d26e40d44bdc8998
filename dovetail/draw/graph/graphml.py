"""The annotated graphs of programs for networkx, and as GraphML, which networkx, Gephi, yEd and igraph read.

A node is an input, a weight, an operation or the results of a program, an arrow a value that is read. A node is called
as in the program, behind the name of its component: ``transformer/linear_3``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.fx import Node

from ...compiler.ir.eligibility import reasons_against
from ...compiler.ir.program import Program, device_of, origin_of, placement_of, tensors_of, value_of, weight_name
from ...compiler.ir.split import split_of
from ...compiler.ir.targets import name_of
from ...compiler.printable import printable
from ...compiler.spec.residency import Residency
from ...compiler.text.spelling import show_value

ELIGIBLE = "eligible"
"""The mark of a weight that a row split slices; that of another weight is why not."""


def graphml(programs: Mapping[str, Program]) -> str:
    """One GraphML document with the graphs of one component or several, by their names."""
    import networkx as nx

    return "\n".join(nx.generate_graphml(as_networkx(programs), named_key_ids=True))


def as_networkx(programs: Mapping[str, Program]) -> Any:
    """A ``networkx.DiGraph`` of the graphs of one component or several, by their names, in the order of their nodes.

    What is not known of a node, such as its segment before a program is cut, is no attribute of it.
    """
    import networkx as nx

    graph = nx.DiGraph()
    for name, program in programs.items():
        marks, blocks = reasons_against(program), program.block_of()
        for node in program.graph.nodes:
            graph.add_node(_id(name, node), **_attributes(program, node, marks, blocks), component=printable(name))
            graph.add_edges_from(_arrows(name, node))
    return graph


def _id(name: str, node: Node) -> str:
    return printable(f"{name}/{node.name}")


def _arrows(name: str, node: Node) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What a node reads: bytes, and whether it comes from another device; weights are at home or copied there."""
    here = placement_of(node).device
    for one in node.all_input_nodes:
        there = None if weight_name(one) else placement_of(one).device
        crosses = here is not None and there is not None and there != here
        yield _id(name, one), _id(name, node), {"bytes": _nbytes(one), "crosses": crosses}


def _attributes(program: Program, node: Node, marks: Mapping[Node, str], blocks: Mapping[str, str]) -> dict[str, Any]:
    """What is known of a node, as GraphML takes it: text, whole numbers and truth values."""
    known = _of_weight(program, node, marks, blocks) if weight_name(node) else _of_value(node)
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in known.items() if value is not None
    }


def _of_weight(program: Program, node: Node, marks: Mapping[Node, str], blocks: Mapping[str, str]) -> dict[str, Any]:
    weight = program.weight(node)
    home = program.home.get(weight.name)
    return {
        "kind": "weight",
        "op": weight.kind,
        "weight": weight.name,
        "type": show_value(value_of(node)).partition("~")[0],
        "packed": weight.quant or None,
        "bytes": weight.nbytes,
        "device": home.name if home else None,
        "rests": program.residency.get(weight.name, Residency.DEVICE).value,
        "rows": _ranges(program.bounds.get(weight.name, ())),
        "module": weight.name.rpartition(".")[0],
        "block": blocks.get(weight.name),
        "mark": marks[node] or ELIGIBLE,
    }


def _of_value(node: Node) -> dict[str, Any]:
    placement, origin = placement_of(node), origin_of(node)
    is_op, is_output, split = node.op == "call_function", node.op == "output", split_of(node)
    return {
        "kind": "operation" if is_op else "results" if is_output else "input",
        "op": (name_of(node.target) or str(node.target)) if is_op else None,
        "type": None if is_output else show_value(value_of(node)),
        "bytes": 0 if is_output else _nbytes(node),
        "device": device_of(node).name if placement.device else None,
        "segment": placement.segment,
        "columns": _ranges(split.segments[0] if split else ()),
        "module": origin.module if is_op else None,
        "class": origin.cls if is_op else None,
        "source": origin.source if is_op else None,
    }


def _nbytes(node: Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(node))


def _ranges(bounds: Any) -> str | None:
    return ", ".join(f"{start}:{stop}" for start, stop in bounds) or None
