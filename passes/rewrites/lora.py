"""Adds the low-rank branches of adapters to the graph: ``y + up(down(x)) * scale`` beside each matmul they belong to.

So an adapter needs no copy of a weight, and works on one that is packed, sliced or elsewhere at rest. A branch does
what peft does, in its order and dtypes, so that no bit differs. Its weights are named by the module and a slot, not by
the adapter, and its scale is a weight too, a Python number: another scale, or another adapter of the same form, is
bound in their place and compiles nothing. They lie on the device of the weight they belong to, and come and go with it
where that rests elsewhere. Must run while weights have no place yet, or the branches would be left out when devices are
filled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.fx import Node

from ...compiler.errors import PassError
from ...compiler.ir import ops as _ops  # noqa: F401  (registers the operation named below)
from ...compiler.ir.program import Program, origin_of, value_of, weight_name
from ...compiler.ir.value import TensorType, dense_in_order
from ...compiler.ir.weight import Adapter, Weight
from ...compiler.spec.residency import Residency
from ..infra.base import Change, Pass

aten = torch.ops.aten

_CONVOLUTIONS = frozenset({aten.conv1d.default, aten.conv2d.default, aten.conv3d.default})
_MATMULS = frozenset({aten.linear.default, torch.ops.dovetail.quantized_linear.default}) | _CONVOLUTIONS


@dataclass(frozen=True)
class Lora(Pass):
    """Adds the branches of the program's adapters to the matmuls and convolutions of their modules."""

    name: ClassVar[str] = "lora"
    requires: ClassVar[frozenset[str]] = frozenset({"blocks found"})
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})

    def run(self, program: Program) -> Change:
        """Walks the graph once; an adapter of a module that the program does not call leaves no trace.

        Raises PassError where a module computes otherwise than by one matmul with its weight.
        """
        wanted: dict[str, list[Adapter]] = defaultdict(list)
        for adapter in program.adapters:
            wanted[adapter.target].append(adapter)
        program.adapters = ()
        writer = _Writer(program)
        called: dict[str, bool] = {}
        for node in list(program.ops()) if wanted else ():
            module, name = origin_of(node).module, _matrix(node)
            if module in wanted:
                found = name is not None and f"{module}.weight" in program.weights[name].names
                called[module] = called.get(module, False) or found
                if name and found:
                    writer.add(node, name, wanted[module])
        for module, found in called.items():
            if not found:
                raise PassError(f"{program.name} has an adapter for {module}: {module} does not multiply by its weight")
        writer.settle()
        return Change(writer.added, "branches of adapters added")


def _matrix(node: Node) -> str | None:
    """The name of the weight that a node multiplies by, which may be unpacked for it."""
    operand = node.args[1] if node.target in _MATMULS else None
    if isinstance(operand, Node) and operand.target is torch.ops.dovetail.dequantize.default:
        operand = operand.args[0]
    return weight_name(operand) if isinstance(operand, Node) else None


class _Writer:
    """Writes branches into the graph of a program, and tells where their weights belong."""

    def __init__(self, program: Program) -> None:
        self.added = 0
        self._program = program
        self._nodes: dict[str, Node] = {}
        self._beside: dict[str, dict[str, None]] = defaultdict(dict)
        self._storages = program.fresh_storages()
        self._point = program.output

    def add(self, base: Node, weight: str, adapters: Sequence[Adapter]) -> None:
        """Adds branches to the result of a node, one after another.

        The sum takes over the number of the result's memory, for the views of it are views of the sum now.
        """
        readers, was = list(base.users), _tensor(base)
        base.meta["value"] = replace(was, storage=next(self._storages))
        self._point = base
        x, total = base.args[0], base
        for adapter in adapters:
            x, total = self._add_one(base, x, total, adapter, weight)
        if _tensor(total).dtype != was.dtype:
            total = self._call(base, aten.to.dtype, (total, was.dtype), was)
        total.meta["value"] = was
        for reader in readers:
            reader.replace_input_with(base, total)

    def _add_one(self, base: Node, x: Any, total: Node, adapter: Adapter, weight: str) -> tuple[Node, Node]:
        """One branch; returns its input, which later branches read as this one cast it, and the sum."""
        held = {part: self._weight(one, weight) for part, one in adapter.weights.items()}
        target = base.target if base.target in _CONVOLUTIONS else aten.linear.default
        result, dtype = _tensor(total), adapter.dtype
        if _tensor(x).dtype != dtype:
            x = self._call(base, aten.to.dtype, (x, dtype), replace(_tensor(x), dtype=dtype))
        axis = 1 if target in _CONVOLUTIONS else len(result.shape) - 1
        narrow, wide = _dense(result, axis, adapter.down[0], dtype), _dense(result, axis, adapter.up[0], dtype)
        down = self._call(base, target, (x, held["down"], *_steps_down(base)), narrow)
        up = self._call(base, target, (down, held["up"], *_steps_up(base, held.get("bias"))), wide)
        scaled = self._call(base, aten.mul.Tensor, (up, held["scale"]), wide)
        both = replace(result, dtype=torch.promote_types(result.dtype, dtype))
        self.added += 1
        return x, self._call(base, aten.add.Tensor, (total, scaled), both)

    def _call(self, base: Node, target: Any, args: tuple[Any, ...], value: TensorType) -> Node:
        """A node behind the last one, of the same origin as the base."""
        with self._program.graph.inserting_after(self._point):
            self._point = self._program.graph.call_function(target, args)
        self._point.meta = {"value": replace(value, storage=next(self._storages)), "origin": origin_of(base)}
        return self._point

    def _weight(self, weight: Weight, base: str) -> Node:
        """The placeholder of a branch's weight, made once: a module may be called several times."""
        if weight.name not in self._nodes:
            first = next(iter(self._program.graph.nodes))
            with self._program.graph.inserting_before(first):
                node = self._program.graph.placeholder(weight.name.replace(".", "_"))
            tensor = TensorType.dense(weight.shape, weight.dtype, next(self._storages))
            node.meta = {"value": None if weight.is_number else tensor, "weight": weight.name}
            self._nodes[weight.name] = node
            self._program.weights[weight.name] = weight
            self._beside[base][weight.name] = None
        return self._nodes[weight.name]

    def settle(self) -> None:
        """Puts the weights of the branches into the block, and to the home, of the weights they belong to.

        Those of a weight that comes and goes come and go with it, from host memory, where adapters lie.
        """
        program = self._program
        for name, weights in self._beside.items():
            if name in program.home:
                program.home.update(dict.fromkeys(weights, program.home[name]))
            if program.residency.get(name, Residency.DEVICE) is not Residency.DEVICE:
                matrices = (one for one in weights if not program.weights[one].is_number)
                program.residency.update(dict.fromkeys(matrices, Residency.HOST))
        program.blocks = tuple(
            replace(block, weights=tuple(one for name in block.weights for one in (name, *self._beside.get(name, ()))))
            for block in program.blocks
        )


def _tensor(node: Node) -> TensorType:
    value = value_of(node)
    assert isinstance(value, TensorType)
    return value


def _steps_down(base: Node) -> tuple[Any, ...]:
    """How a branch's first convolution moves: as the one it stands beside."""
    return (None, *base.args[3:5]) if base.target in _CONVOLUTIONS else ()


def _steps_up(base: Node, bias: Node | None) -> tuple[Any, ...]:
    """A branch's last matmul adds its bias; a convolution keeps the groups of the one it stands beside."""
    if base.target not in _CONVOLUTIONS or len(base.args) < 7:
        return (bias,) if bias else ()
    axes = len(_tensor(base).shape) - 2
    return bias, [1] * axes, [0] * axes, [1] * axes, base.args[6]


def _dense(like: TensorType, axis: int, size: int, dtype: torch.dtype) -> TensorType:
    """A tensor of another size on one axis, its axes in the same order in memory."""
    shape = (*like.shape[:axis], size, *like.shape[axis + 1 :])
    order = list(range(len(shape)))
    if all(isinstance(step, int) for step in like.stride):
        order.sort(key=lambda at: -like.stride[at])  # type: ignore[operator]
    hint = (*like.hint[:axis], size, *like.hint[axis + 1 :]) if like.hint else ()
    return TensorType(shape, dtype, dense_in_order(shape, order), like.storage, hint)
