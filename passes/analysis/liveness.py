"""How long each piece of memory lives when nodes run in graph order and nothing is held longer than needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.fx import Node

from ...compiler.ir.program import Program, tensors_of


def peak_bytes(program: Program) -> int:
    """The largest sum of bytes of inputs and intermediate values alive at once, weights apart."""
    return max((live for _, live in live_bytes(program)), default=0)


def live_bytes(program: Program) -> Iterator[tuple[Node, int]]:
    """The bytes of inputs and intermediate values alive while each node runs, weights apart, as if on one device.

    One pass over the nodes: a storage lives from its first node to the last node that reads any view of it.
    """
    ends = _last_reads(program)
    live = 0
    sizes: dict[int, int] = {}
    of_weights = _touched(program.weight_nodes())
    for node in program.graph.nodes:
        for tensor in tensors_of(node):
            if tensor.storage not in sizes and tensor.storage not in of_weights:
                sizes[tensor.storage] = tensor.nbytes
                live += tensor.nbytes
        yield node, live
        live -= sum(sizes.pop(storage, 0) for storage in ends.get(node, ()))


def _last_reads(program: Program) -> dict[Node, list[int]]:
    """For each node the storages that nothing touches after it."""
    last: dict[int, Node] = {}
    for node in program.graph.nodes:
        for storage in _touched((node, *node.all_input_nodes)):
            last[storage] = node
    ends: dict[Node, list[int]] = {}
    for storage, node in last.items():
        ends.setdefault(node, []).append(storage)
    return ends


def _touched(nodes: Iterable[Node]) -> set[int]:
    return {tensor.storage for node in nodes for tensor in tensors_of(node)}
