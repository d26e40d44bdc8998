"""Who touches a piece of memory or a value last, and how many bytes are alive meanwhile, in graph order.

`last_touches` is the one analysis behind this: what is freed after a node, overwritten by it, or counted until it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from torch.fx import Node

from ...compiler.ir.program import Program, tensors_of

K = TypeVar("K")
S = TypeVar("S", bound=Hashable)


def last_touches(sites: Iterable[S], touched: Callable[[S], Iterable[K]]) -> dict[K, S]:
    """For each key the last of the sites, in their order, that touches it; ``touched`` gives the keys of one site."""
    last: dict[K, S] = {}
    for site in sites:
        last.update(dict.fromkeys(touched(site), site))
    return last


def ending_at(last: dict[K, S]) -> dict[S, list[K]]:
    """The keys whose last touch each site is."""
    ends: dict[S, list[K]] = defaultdict(list)
    for key, site in last.items():
        ends[site].append(key)
    return ends


def peak_bytes(program: Program) -> int:
    """The largest sum of bytes of inputs and intermediate values alive at once, weights apart."""
    return max((live for _, live in live_bytes(program)), default=0)


def live_bytes(program: Program) -> Iterator[tuple[Node, int]]:
    """The bytes of inputs and intermediate values alive while each node runs, weights apart, as if on one device.

    One pass over the nodes: a storage lives from its first node to the last node that reads any view of it.
    """
    ends = ending_at(last_touches(program.graph.nodes, lambda node: _storages((node, *node.all_input_nodes))))
    live = 0
    sizes: dict[int, int] = {}
    of_weights = set(_storages(program.weight_nodes()))
    for node in program.graph.nodes:
        for tensor in tensors_of(node):
            if tensor.storage not in sizes and tensor.storage not in of_weights:
                sizes[tensor.storage] = tensor.nbytes
                live += tensor.nbytes
        yield node, live
        live -= sum(sizes.pop(storage, 0) for storage in ends.get(node, ()))


def _storages(nodes: Iterable[Node]) -> list[int]:
    return [tensor.storage for node in nodes for tensor in tensors_of(node)]
