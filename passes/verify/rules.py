"""The rules that an annotated program keeps, a function each.

Every function yields what breaks its rule; none of them changes anything, and each walks the graph at most once.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.aliasing import Alias
from ...compiler.ir.program import HERE, origin_of, placement_of, tensors_of, weight_name
from ...compiler.ir.split import is_shared
from ...compiler.ir.structure import count_leaves
from ...compiler.ir.targets import argument_names, name_of, yields_number
from ...compiler.ir.value import TensorType
from ...compiler.states.parts import members
from .snapshot import UNKNOWN, Snapshot, Violation

aten = torch.ops.aten
_CASTS = frozenset((aten.to.dtype, aten._to_copy.default, aten.detach.default, aten.contiguous.default))


def targets(snapshot: Snapshot) -> Iterator[Violation]:
    """Every op is one that a program may have, over arguments of the kinds that it takes, and numbers are numbers."""
    for node in snapshot.ops:
        if not name_of(node.target):
            yield Violation(
                "targets", f"%{node.name} = {node.target!r:.120} is no operation that a program may have", node
            )
        elif yields_number(node.target) != (node.meta.get("value") is None):
            yield Violation("targets", f"%{node.name} = {node.target} does not yield what its type says", node)
        elif not _takes(node):
            yield Violation("targets", f"%{node.name} = {name_of(node.target)} does not take such arguments", node)
        elif any(isinstance(one, torch.device) and one != HERE for one in (*node.args, *node.kwargs.values())):
            yield Violation("targets", f"%{node.name} = {node.target} makes a tensor on a device of its own", node)
        elif node.target is aten._weight_norm.default and not _norms_fit(node):
            yield Violation("targets", f"%{node.name} has no norm for each row of its weight", node)


def _norms_fit(node: Node) -> bool:
    """Whether the norms of a weight are as many as its rows; the kernel reads past them without a check.

    What is compared are the shapes of inputs and weights, which are checked where they come in, or of their casts.
    """
    dim: tuple[Any, ...] = (*node.args, *node.kwargs.values())[2:]
    if len(node.args) < 2 or node.kwargs.keys() - {"dim"} or any(type(one) is not int for one in dim):
        return False
    weight, norms = map(_given_type, node.args[:2])
    if not isinstance(weight, TensorType) or not isinstance(norms, TensorType):
        return False
    at = next(iter(dim), 0)
    if at == -1:
        return all(size == 1 for size in norms.shape)
    wanted = tuple(size if one == at else 1 for one, size in enumerate(weight.shape))
    return 0 <= at < len(wanted) and norms.shape == wanted


def _given_type(node: object) -> object:
    """The type of the input or weight that a node is or casts; None for any other."""
    while isinstance(node, Node) and node.target in _CASTS and node.args:
        node = node.args[0]
    return node.meta.get("value") if isinstance(node, Node) and node.op == "placeholder" else None


def _takes(node: Node) -> bool:
    """Whether a Python function has numbers, or several results and an index, and an op arguments that it has."""
    operands = list(node.args)
    if isinstance(node.target, OpOverload):
        known = argument_names(node.target)
        return len(operands) <= len(known) and node.kwargs.keys() <= known
    if node.kwargs:
        return False
    if node.target is operator.getitem:
        several = len(operands) == 2 and isinstance(operands[0], Node) and operands[0].meta.get("value")
        return isinstance(several, tuple) and type(operands[1]) is int and -len(several) <= operands[1] < len(several)
    if node.target is getattr(torch, "sym_sum", None) and len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    return bool(operands) and all(map(_is_number, operands))


def _is_number(operand: object) -> bool:
    if isinstance(operand, Node):
        return operand.meta.get("value", operand) is None
    return isinstance(operand, (bool, int, float))


def order(snapshot: Snapshot) -> Iterator[Violation]:
    """Every node is an input, a weight, an op or the output, says what it yields, and reads what stands before it."""
    seen: set[Node] = set()
    for node in snapshot.nodes:
        if node.op not in ("placeholder", "call_function", "output") or "value" not in node.meta:
            yield Violation("order", f"%{node.name} is a {node.op} that does not say what it yields", node)
        for operand in snapshot.operands[node]:
            if operand not in seen:
                yield Violation("order", f"%{node.name} reads %{operand.name}, which does not stand before it", node)
        seen.add(node)


def weights(snapshot: Snapshot) -> Iterator[Violation]:
    """Every weight that the program describes stands in the graph once, and no other does."""
    known = snapshot.program.weights
    names = {node: name for node in snapshot.nodes if (name := weight_name(node))}
    count = Counter(names.values())
    for node, name in names.items():
        if name not in known or count[name] > 1:
            what = "stands in the graph twice" if count[name] > 1 else "is not among the program's weights"
            yield Violation("weights", f"weight {name} {what}", node)
    for name in known.keys() - count.keys():
        yield Violation("weights", f"weight {name} has no node in the graph")


def signature(snapshot: Snapshot) -> Iterator[Violation]:
    """There are as many inputs and results as the calling convention says."""
    program = snapshot.program
    inputs, expected = sum(1 for _ in program.inputs()), len(program.signature.tensors)
    if inputs != expected:
        yield Violation("signature", f"the graph has {inputs} inputs, a call has {expected} tensors")
    found, wanted = len(program.output.args[0]), count_leaves(program.signature.out_spec)  # type: ignore[arg-type]
    if found != wanted:
        yield Violation("signature", f"the graph has {found} results, the module {wanted}", program.output)


def alias(snapshot: Snapshot) -> Iterator[Violation]:
    """An op that views or writes an operand by its schema yields the memory of that one, and so do its items."""
    for node in snapshot.ops:
        shared = _shared_storages(snapshot, node)
        if len(shared) > 1:
            yield Violation("alias", f"%{node.name} = {node.target} lies in the memory of {len(shared)} operands", node)
        if snapshot.kinds[node] not in (Alias.VIEW, Alias.WRITE) or node in snapshot.bases:
            continue
        if snapshot.storages[node]:
            yield Violation("alias", f"%{node.name} = {node.target} lies in other memory than what it views", node)


def _shared_storages(snapshot: Snapshot, node: Node) -> set[int]:
    """The memory of operands that several results of an op lie in; an item lies where the op that makes it does."""
    if len(snapshot.storages[node]) < 2 or node.target is operator.getitem:
        return set()
    given = (snapshot.storages.get(operand, ()) for operand in snapshot.operands[node])
    return set(snapshot.storages[node]).intersection(chain.from_iterable(given))


def outside(snapshot: Snapshot) -> Iterator[Violation]:
    """Nothing writes into an input or a weight."""
    if not any(snapshot.writes.values()):
        return
    given = {storage: n for n in snapshot.nodes if n.op == "placeholder" for storage in snapshot.storages.get(n, ())}
    for node, written in snapshot.writes.items():
        for storage in written & given.keys():
            yield Violation("outside", f"%{node.name} writes into %{given[storage].name}", node)


def home(snapshot: Snapshot) -> Iterator[Violation]:
    """Every weight has a home among the program's devices."""
    devices, homes = set(snapshot.program.devices), snapshot.program.home
    for node, weight in snapshot.weights.items():
        if homes.get(weight.name) not in devices:
            there = homes.get(weight.name, "nowhere")
            yield Violation("home", f"weight {weight.name} is at home {there}, not on a device of the program", node)


def device(snapshot: Snapshot) -> Iterator[Violation]:
    """Every node is on a device of the program, inputs and results on the main device."""
    for node in snapshot.nodes:
        place = snapshot.device[node]
        if place == UNKNOWN:
            yield Violation("device", f"%{node.name} is on no device of the program", node)
        elif place and node.op != "call_function" and node not in snapshot.weights:
            here, there = snapshot.name(place), snapshot.name(0)
            yield Violation("device", f"%{node.name} is on {here}, it belongs on {there}", node)


def dtypes(snapshot: Snapshot) -> Iterator[Violation]:
    """A device holds only values of dtypes that it has."""
    lacking = {device: names for device in snapshot.program.devices if (names := device.lacks)}
    for node in snapshot.nodes if lacking else ():
        for device in _devices(snapshot, node):
            missing = lacking.get(device, frozenset())
            found = [name for t in tensors_of(node) if (name := str(t.dtype).removeprefix("torch.")) in missing]
            if found and node.op != "output":
                where = origin_of(node).source
                at = f", from {where}" if where else ""
                yield Violation("dtypes", f"%{node.name} is {found[0]}{at}, which {device} does not have", node)


def _devices(snapshot: Snapshot, node: Node) -> Iterator[Device]:
    """The devices on which something of a value lies; those of a weight that is sliced have rows of it."""
    program, weight = snapshot.program, snapshot.weights.get(node)
    if weight is None:
        yield from placement_of(node).group
        return
    bounds = program.bounds.get(weight.name, ())
    yield from (device for device, (start, stop) in zip(program.devices, bounds, strict=False) if start < stop)
    if not bounds and weight.name in program.home:
        yield program.home[weight.name]


def view(snapshot: Snapshot) -> Iterator[Violation]:
    """A view, and whatever writes into memory that exists, is on the device of its base, or views a group's weight."""
    for node, base in snapshot.bases.items():
        has_own = base in snapshot.weights and is_shared(node)  # each device has what it reads of a weight
        if snapshot.device[base] != snapshot.device[node] and not has_own:
            here, there = snapshot.name(snapshot.device[node]), snapshot.name(snapshot.device[base])
            yield Violation("view", f"%{node.name} is on {here}, its base %{base.name} on {there}", node)


def storage(snapshot: Snapshot) -> Iterator[Violation]:
    """Memory that is written lies on one device, with all its views and all who write it."""
    written: set[int] = set().union(*snapshot.writes.values())
    if not written:
        return
    places: dict[int, Node] = {}
    for node in snapshot.nodes:
        for one in written.intersection(snapshot.storages.get(node, ())) | snapshot.writes.get(node, set()):
            first = places.setdefault(one, node)
            if len(placement_of(node).group) > 1:
                what = f"its memory ~{one}, which is written, on several devices"
                yield Violation("storage", f"%{node.name} has {what}", node)
            if snapshot.device[first] != snapshot.device[node]:
                here, there = snapshot.name(snapshot.device[node]), snapshot.name(snapshot.device[first])
                both = f"they share the memory ~{one}, which is written"
                yield Violation("storage", f"%{node.name} is on {here}, %{first.name} on {there}: {both}", node)


def segments(snapshot: Snapshot) -> Iterator[Violation]:
    """Segments hold all ops in order, each a maximal run on one device or group, and every op knows its segment."""
    found = snapshot.program.segments
    held = [node for segment in found for node in segment.nodes]
    for one, other in zip(held, snapshot.ops, strict=False):
        if one is not other:
            yield Violation("segments", f"%{other.name} stands where segments have %{one.name}", other)
            break
    if len(held) != len(snapshot.ops):
        yield Violation("segments", f"the segments hold {len(held)} ops, the graph {len(snapshot.ops)}")
    for index, segment in enumerate(found):
        place = snapshot.place(segment.device)
        if segment.index != index or not segment.nodes:
            yield Violation("segments", f"segment {segment.index} is empty, or not the {index}th")
        for node in segment.nodes:
            if (
                snapshot.device.get(node) != place
                or placement_of(node).segment != index
                or members(snapshot.program, node) != segment.group
            ):
                problem = f"%{node.name} is in segment {index} on {segment.device}, its placement says otherwise"
                yield Violation("segments", problem, node)
    for first, second in pairwise(found):
        alike = (first.device, first.group, first.part) == (second.device, second.group, second.part)
        if alike:
            problem = f"segments {first.index} and {second.index} are both on {first.device}: one cut too many"
            yield Violation("segments", problem, second.nodes[0])
