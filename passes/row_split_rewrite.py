"""Rewrites the matmuls on sliced weights: a partial one on each device that has rows, and a gather on the main device.

Matmuls that need nothing of each other form a *batch*: all that one device does in it stands together, so that its
input crosses once and all devices work at the same time. An elementwise operation on results of the batch is done on
the parts where it needs nothing else; a result is gathered when somebody needs the whole of it, and that ends the
batch. A matmul of the same block that reads what the batch reads joins it, however late the model wrote it.

Where the graph goes on, nothing has changed but the rounding of a matmul with fewer columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Node
from torch.fx.node import map_arg

from ..compiler.ir.aliasing import Alias, alias_class, writes
from ..compiler.ir.ops import GATHER, LANDING
from ..compiler.ir.program import Program, TensorType, Weight, origin_of, tensors_of, value_of, weight_name
from ..compiler.ir.slices import Bounds
from ..compiler.spec.devices import Device
from .analysis.eligibility import LINEAR, bias_of
from .analysis.pointwise import is_elementwise, is_number


def split_matmuls(program: Program, bounds: Mapping[str, Bounds]) -> int:
    """Rewrites every matmul on a weight that has bounds, and returns how many values are gathered.

    Afterwards the program has slices in place of these weights, at home on the devices that multiply by them.
    """
    marks = {node: bounds[name] for node in program.weight_nodes() if (name := node.meta["weight"]) in bounds}
    work = _Work(program, marks)
    for node in [*program.ops(), program.output]:
        work.take(node)
    _put_slices_in_place(program, work)
    return work.gathers


@dataclass
class _Work:
    """The batch that is open, and what was made so far."""

    program: Program
    marks: Mapping[Node, Bounds]
    batch: dict[Node, Bounds] = field(default_factory=dict)
    slices: dict[Node, list[Node | None]] = field(default_factory=dict)
    pieces: dict[str, tuple[Weight, Device]] = field(default_factory=dict)
    gathers: int = 0

    def __post_init__(self) -> None:
        self.storages = self.program.fresh_storages()
        self.written = {storage for node in self.program.ops() for storage in writes(node)}
        self.blocks = {name: block.name for block in self.program.blocks for name in block.weights}
        self.order = sorted(range(len(self.program.devices)), key=self._turn)
        self.done: set[Node] = set()

    def _turn(self, index: int) -> tuple[bool, bool]:
        """The main device after the others, which it keeps busy meanwhile; the host, which launches them all, last."""
        return self.program.devices[index].is_host, index == 0

    def take(self, node: Node) -> None:
        """Adds the next node to the batch, or ends the batch where the node needs a whole."""
        if node in self.done:
            return
        bounds = self._bounds(node)
        if bounds and not (self._is_linear(node) and self._is_open(node.args[0])):
            self.batch[node] = bounds
        elif any(map(self._is_open, node.all_input_nodes)) or _writes(node):
            self._join_readers()
            self._close(before=node)
            if bounds:
                self.batch[node] = bounds

    def _is_open(self, value: Any) -> bool:
        return value in self.batch

    def _is_linear(self, node: Node) -> bool:
        return node.target in LINEAR and node.args[1] in self.marks

    def _bounds(self, node: Node) -> Bounds | None:
        """The rows of each device if a node is done apart."""
        if self._is_linear(node):
            return self.marks[node.args[1]]  # type: ignore[index]
        return self._followed(node) or (self._common(node) if is_elementwise(node) else None)

    def _common(self, node: Node) -> Bounds | None:
        """The bounds that all operands of a node have in common, numbers apart."""
        whole = [one for one in node.all_input_nodes if one not in self.batch]
        found = {self.batch[one] for one in node.all_input_nodes if one in self.batch}
        return found.pop() if len(found) == 1 and all(map(is_number, whole)) else None

    def _followed(self, node: Node) -> Bounds | None:
        """The bounds of the open result to which that of a node is added, if it is the last matmul of an adapter."""
        if node.target not in LINEAR or node.args[0] in self.batch:
            return None
        name, bias = weight_name(node.args[1]), bias_of(node)  # type: ignore[arg-type]
        if name is None or self.program.weights[name].kind != "adapter" or (bias and not weight_name(bias)):
            return None
        rows, reader = self.program.weights[name].shape[0], node
        while len(reader.users) == 1:
            operand, reader = reader, next(iter(reader.users))
            others = [one for one in reader.all_input_nodes if one is not operand and not is_number(one)]
            if not is_elementwise(reader):
                return None
            if others:
                found = {self.batch.get(one) for one in others}
                bounds = found.pop() if len(found) == 1 else None
                return bounds if bounds and bounds[-1][1] == rows else None
        return None

    def _join_readers(self) -> None:
        """Takes in the matmuls of the same block that read what the batch reads already."""
        for node in [node for node in self.batch if self._is_linear(node)]:
            x, block = node.args[0], self._block(node)
            if not isinstance(x, Node) or self.written.intersection(t.storage for t in tensors_of(x)):
                continue
            for user in sorted(x.users):
                known = user in self.done or user in self.batch
                if not known and self._is_linear(user) and self._block(user) == block and user.args[0] is x:
                    self.batch[user] = self._bounds(user)  # type: ignore[assignment]

    def _block(self, node: Node) -> str | None:
        return self.blocks.get(node.args[1].meta["weight"])  # type: ignore[union-attr]

    def _close(self, before: Node) -> None:
        """Writes the batch into the graph: a place for each result, the parts device by device, the gathers."""
        batch, self.batch = self.batch, {}
        late = _trim(batch)
        self.done.update(batch)
        wholes = [node for node in batch if any(user not in batch for user in node.users)]
        with self.program.graph.inserting_before(before):
            landings = {node: self._landing(node, batch) for node in wholes}
            parts = {index: self._parts(batch, index) for index in self.order}
            for node in wholes:
                held = [parts[index][node] for index in range(len(self.order)) if node in parts[index]]
                whole = self._make(f"{node.name}_whole", GATHER, (landings[node], held), node, value_of(node))
                node.replace_all_uses_with(whole, delete_user_cb=lambda user: user not in batch)
            for node in late:
                before.prepend(node)
        self.gathers += len(wholes)
        for node in reversed(batch):
            self.program.graph.erase_node(node)

    def _landing(self, node: Node, batch: Mapping[Node, Bounds]) -> Node:
        """Memory for a whole result: it has the leading sizes of what the first matmul behind it reads."""
        source, value = node, value_of(node)
        while source.target not in LINEAR:
            source = next(one for one in source.all_input_nodes if one in batch)
        assert isinstance(value, TensorType)
        args = (source.args[0], batch[node][-1][1], value.dtype)
        return self._make(f"{node.name}_landing", LANDING, args, node, value)

    def _parts(self, batch: Mapping[Node, Bounds], index: int) -> dict[Node, Node]:
        """What one device computes of a batch."""
        parts: dict[Node, Node] = {}
        for node, bounds in batch.items():
            start, stop = bounds[index]
            if start == stop:
                continue

            def operand(one: Node, parts: dict[Node, Node] = parts, bounds: Bounds = bounds) -> Node:
                return parts.get(one) or self._slice(one, index, bounds) or one

            args, kwargs = map_arg((node.args, node.kwargs), operand)
            name = f"{node.name}_{self.program.devices[index]}"
            parts[node] = self._make(name, node.target, args, node, self._part(value_of(node), stop - start), kwargs)
        return parts

    def _slice(self, node: Node, index: int, bounds: Bounds) -> Node | None:
        """The slice of a weight on a device, and of a bias along with it."""
        name = weight_name(node)
        weight = self.program.weights[name] if name else None
        if weight is None or not weight.shape:
            return None
        if node not in self.slices:
            self.slices[node] = [self._placeholder(node, weight, place, *bounds[place]) for place in range(len(bounds))]
        return self.slices[node][index]

    def _placeholder(self, node: Node, weight: Weight, index: int, start: int, stop: int) -> Node | None:
        if start == stop:
            return None
        piece = weight.slice(start, stop)
        with self.program.graph.inserting_before(node):
            made = self.program.graph.placeholder(f"{node.name}_{self.program.devices[index]}")
        made.meta = {"value": TensorType.dense(*piece.stored, next(self.storages)), "weight": piece.name}
        self.pieces[piece.name] = piece, self.program.devices[index]
        return made

    def _part(self, value: Any, columns: int) -> TensorType:
        shape = (*value.shape[:-1], columns)
        hint = (*value.hint[:-1], columns) if value.hint else ()
        return TensorType.dense(shape, value.dtype, next(self.storages), hint)

    def _make(self, name: str, target: Any, args: Any, source: Node, value: Any, kwargs: Any = None) -> Node:
        made = self.program.graph.create_node("call_function", target, args, kwargs or {}, name=name)
        made.meta = {"value": value, "origin": origin_of(source)}
        return made


def _trim(batch: dict[Node, Bounds]) -> list[Node]:
    """Takes elementwise operations out of a batch that would let more bytes cross than what stands before them."""
    least: dict[Node, int] = {}  # bytes that must cross for a whole of a node, besides those that cross anyway
    for node in batch:
        sources = sum(least[one] for one in node.all_input_nodes if one in batch)
        own = _nbytes(node) if node.target in LINEAR else min(_nbytes(node), sources)
        least[node] = 0 if any(user not in batch for user in node.users) else own
    late = []
    for node in reversed(list(batch)):
        if node.target in LINEAR or any(user in batch for user in node.users):
            continue
        if sum(least[one] for one in node.all_input_nodes if one in batch) < _nbytes(node):
            del batch[node]
            late.append(node)
    return late[::-1]


def _nbytes(node: Node) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(node))


def _writes(node: Node) -> bool:
    return node.op == "call_function" and alias_class(node.target) is Alias.WRITE


def _put_slices_in_place(program: Program, work: _Work) -> None:
    """Lets the program know the slices in place of the weights; a bias that others read whole stays beside them."""
    stand_ins: dict[str, list[str]] = {}
    for node, held in work.slices.items():
        whole = node.meta["weight"]
        stand_ins[whole] = [one.meta["weight"] for one in held if one]
        if node.users:
            stand_ins[whole].append(whole)
        else:
            program.graph.erase_node(node)
            program.home.pop(whole, None)
    known = program.weights | {name: piece for name, (piece, _) in work.pieces.items()}
    program.weights = {one: known[one] for name in program.weights for one in stand_ins.get(name, [name])}
    program.home |= {name: device for name, (_, device) in work.pieces.items()}
    kept = {name: rests for name, (one, _) in work.pieces.items() if (rests := program.residency.get(one.whole))}
    program.residency = {name: rests for name, rests in program.residency.items() if name in program.weights} | kept
    program.blocks = tuple(
        replace(block, weights=tuple(one for name in block.weights for one in stand_ins.get(name, [name])))
        for block in program.blocks
    )
