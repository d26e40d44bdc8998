"""Orders the matmuls on sliced weights in batches, and says of each operation in them which columns a device has.

Matmuls that need nothing of each other form a *batch*, which stands together, so that its input crosses once and all
devices work at the same time. An elementwise operation on results of the batch is done on the parts where it needs
nothing else; a result is gathered, by a reshard, when somebody needs the whole of it, and that ends the batch. A matmul
of the same block that reads what the batch reads joins it, however late the model wrote it.

No other operation is added or dropped, and nothing changes but the rounding of a matmul with fewer columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Node

from ...compiler.ir.aliasing import Alias, alias_class, writes
from ...compiler.ir.eligibility import bias_of
from ...compiler.ir.ops import LINEAR, RESHARD
from ...compiler.ir.pointwise import is_elementwise, is_number
from ...compiler.ir.program import HERE, Program, place_node, tensors_of, weight_name
from ...compiler.ir.slices import Bounds
from ...compiler.ir.state import Split


def split_matmuls(program: Program, bounds: Mapping[str, Bounds]) -> int:
    """Splits every matmul on a weight that has bounds, and returns how many values are gathered.

    Afterwards the program has the bounds of all weights that are multiplied by in slices, or added to what is.
    """
    marks = {node: bounds[name] for node in program.weight_nodes() if (name := node.meta["weight"]) in bounds}
    work = _Work(program, marks)
    for node in [*program.ops(), program.output]:
        work.take(node)
    program.bounds = {node.meta["weight"]: one for node, one in work.slices.items()}
    return work.gathers


@dataclass
class _Work:
    """The batch that is open, and what was made so far."""

    program: Program
    marks: Mapping[Node, Bounds]
    batch: dict[Node, Bounds] = field(default_factory=dict)
    slices: dict[Node, Bounds] = field(default_factory=dict)
    gathers: int = 0

    def __post_init__(self) -> None:
        self.written = {storage for node in self.program.ops() for storage in writes(node)}
        self.blocks = self.program.block_of()
        self.done: set[Node] = set()
        self.storages = self.program.fresh_storages()

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
        """The bounds that all operands of a node have in common, and the sizes of its result, numbers apart."""
        whole = [one for one in node.all_input_nodes if one not in self.batch]
        found = {(self.batch[one], tensors_of(one)[0].shape) for one in node.all_input_nodes if one in self.batch}
        if len(found) != 1 or not all(map(is_number, whole)):
            return None
        bounds, shape = found.pop()
        return bounds if shape == tensors_of(node)[0].shape else None

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
                found = {self.batch.get(one) for one in others if tensors_of(one)[0].shape == tensors_of(node)[0].shape}
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
        """Puts the batch in front of a node, and says how it is split."""
        batch, self.batch = self.batch, {}
        late = _trim(batch)
        self.done.update(batch)
        for node, bounds in batch.items():
            before.prepend(node)
            (result,) = tensors_of(node)
            place_node(node, group=self.program.devices, states=((Split(len(result.shape) - 1, (bounds,)),),))
            self._slice(node, bounds)
        for node in late:
            before.prepend(node)
        for node in batch:
            self._gather(node, [user for user in node.users if user not in batch])

    def _gather(self, node: Node, readers: Sequence[Node]) -> None:
        """Has readers take the whole of a split result, which keeps its memory: the parts lie apart."""
        if not readers:
            return
        (result,) = tensors_of(node)
        with self.program.graph.inserting_after(node):
            whole = self.program.graph.create_node("call_function", RESHARD, (node,), {}, f"{node.name}_whole")
        whole.kwargs = {"device": HERE}
        whole.meta["value"], node.meta["value"] = result, replace(result, storage=next(self.storages))
        for reader in readers:
            reader.replace_input_with(node, whole)
        self.gathers += 1

    def _slice(self, node: Node, bounds: Bounds) -> None:
        """Notes how the weights of a matmul are sliced: its matrix, and its bias along with it."""
        if node.target in LINEAR:
            held = [node.args[1], bias_of(node)]
            self.slices.update((one, bounds) for one in held if isinstance(one, Node))


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
