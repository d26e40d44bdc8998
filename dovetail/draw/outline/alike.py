"""What operations do, as text in names of its own: groups of one text do the same with other weights and inputs."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node
from torch.fx.node import map_arg

from ...compiler.ir.program import tensors_of, weight_name
from ...compiler.ir.split import original


def text_of(nodes: Sequence[Node]) -> str:
    """The operations in order, with what each reads by its number among them, or among what comes from outside."""
    names: dict[Node, str] = {}
    lines: list[str] = []
    for number, node in enumerate(nodes):
        for operand in map(original, node.all_input_nodes):
            if operand not in names:
                names[operand] = f"%in{len(names) - number}"
                kind = "weight" if weight_name(operand) else "value"
                lines.append(f"{names[operand]} = {kind}: {_types(operand)}")
        args, kwargs = map_arg((node.args, node.kwargs), lambda one: names[original(one)])
        names[node] = f"%{number}"
        lines.append(f"%{number} = {node.target}{args}{kwargs}: {_types(node)}")
    return "\n".join(lines)


def _types(node: Node) -> str:
    return ", ".join(f"{tensor.dtype}{tensor.shape}{tensor.stride}" for tensor in tensors_of(node)) or "number"
