"""Runs a schedule on tensors without data and compares every node with its annotation.

Torch's own shape functions decide what each op yields, so this checks shapes, dtypes and devices at full size in a
second or two, without weights and without the devices. Operands are taken from where the schedule has put them; that a
value lies on the right device is asked at every node, since an op with one operand would hide a missing copy. How
results lie in memory is compared apart (`verify_layout`), for that was traced on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...compiler.devices.device import Device
from ...compiler.errors import DovetailError, PassError, VerificationError
from ...compiler.ir.boxes import Landing
from ...compiler.ir.fake_strides import EagerStrides
from ...compiler.ir.program import HERE, Program, device_of, value_of, weight_name
from ...compiler.ir.schedule import (
    Allocate,
    Await,
    Copy,
    Free,
    Lifetime,
    Load,
    Release,
    Run,
    Step,
    ValueRef,
    read_on,
    resting_place,
)
from ...compiler.ir.sizes import evaluate
from ...compiler.ir.split import is_shared, type_on
from ...compiler.ir.targets import bounded
from ...compiler.ir.value import TensorType, Value, dense_stride
from ...compiler.states.parts import call_on, members, pieces, weight_on
from .layout import misplaced
from .snapshot import Violation
from .verifier import explain

LAW = "Run without data, every node yields the shape, strides, dtype, device and memory that its annotation says."


def verify_deep(program: Program, stand_ins: Mapping[Device, torch.device] | None = None) -> int:
    """Checks every node of a scheduled program against torch's shape functions; returns how many nodes it checked.

    Args:
        program: a program with its schedule.
        stand_ins: for each device of the program the torch device that stands for it. Simulated devices are right for
            any rig: a device of their own kind each, so that mixing two raises. Left out, the devices themselves.

    Raises:
        VerificationError: a node yields something else than its annotation says, or mixes devices.
        PassError: the program has no schedule.
    """
    if program.schedule is None:
        raise PassError(f"{program.name} has no schedule: run the passes up to schedule first")
    places = stand_ins or {device: device.torch for device in program.devices}
    with torch.no_grad(), EagerStrides(allow_non_fake_inputs=True, allow_fallback_kernels=False):
        try:
            count = _FakeRun(program, places).run()
            for node, problem in misplaced(program, _call):
                raise VerificationError(explain(program, Violation("deep", f"%{node.name} {problem}", node), LAW))
            return count
        except DovetailError:
            raise
        except Exception as error:  # outside the ops, which say what they are: a schedule that does not fit the graph
            raise VerificationError(f"{program.name} cannot be run: {type(error).__name__}: {error}") from error


class _FakeRun:
    """The tensors without data that lie on each device."""

    def __init__(self, program: Program, places: Mapping[Device, torch.device]) -> None:
        self.program = program
        self.places = places
        self.nodes = {node.meta["weight"]: node for node in program.weight_nodes()}
        self.pieces = pieces(program)
        self.weights: dict[tuple[str, Device], Any] = {}
        self.held = {
            (ValueRef(node), program.main): self.make(value_of(node), program.main) for node in program.inputs()
        }

    def run(self) -> int:
        """Carries out every instruction; returns how many nodes ran."""
        count, device = 0, self.program.main
        for one in self.program.schedule.flat() if self.program.schedule else ():
            match one:
                case Load(lifetime=Lifetime.PROGRAM | Lifetime.PHASE) as load:
                    self.bring(load)
                case Await(Load(lifetime=Lifetime.STAGE) as load):  # others of its weights may be there until then
                    self.bring(load)
                case Allocate(value, device):
                    self.held[value, device] = self.make(type_on(value.node, device), device)
                case Copy(value, source, target, landings) as copy:
                    sent = self.held[copy.sent, source]
                    if landings:
                        self.land(sent, self.held[value, target], landings)
                    else:
                        self.held[value, target] = self.send(copy, sent)
                case Run():
                    device = one.device
                case Step(node) if is_shared(node):
                    self.held[ValueRef(node), device] = self.node(node, device)
                    count += device == members(self.program, node)[0]
                case Step(node):
                    self.held[ValueRef(node), device_of(node)] = self.node(node, device)
                    count += 1
                case Free(value, device):
                    del self.held[value, device]
                case Release(load) if load.lifetime is Lifetime.STAGE:
                    for name in load.weights:
                        del self.weights[name, load.device]
        return count

    def bring(self, load: Load) -> None:
        """The weights of a load are on their device."""
        for name in load.weights:
            self.weights[name, load.device] = self.make(self.stored(name), load.device)

    def stored(self, name: str) -> Value:
        """What holds a weight, or a part of one: that of its placeholder, with fewer elements along an axis."""
        weight, _ = self.pieces[name]
        value = value_of(self.nodes[weight.whole])
        part = weight.stored_part
        if part is None or not isinstance(value, TensorType):
            return value
        shape = part.shape(value.sizes)
        stride = dense_stride(shape) if value.stride == dense_stride(value.shape) else value.stride
        return replace(value, shape=shape, stride=stride)

    def land(self, value: Any, memory: Any, landings: Sequence[Landing]) -> None:
        """Puts boxes of a value into their places; raises where one does not fit there."""
        for one in landings:
            part, place = one.taken.of(value), one.into.of(memory)
            if place.shape != part.shape or place.dtype != part.dtype:
                raise ValueError(f"{list(part.shape)} does not fit into {one.into} of {list(memory.shape)}")

    def node(self, node: Node, device: Device) -> Any:
        def operand(value: Node) -> Any:
            if weight_name(value):
                return self.weights[weight_on(self.program, node, value, device).name, device]
            read = read_on(value, device)
            return self.held[read, resting_place(read, device)]

        target, args, kwargs = call_on(node, device)
        args, kwargs = map_arg(args, operand), map_arg(kwargs, operand)
        args, kwargs = pytree.tree_map(lambda one: self.places[device] if one == HERE else one, (args, kwargs))
        try:
            found = _call(target, args, kwargs)
        except (DynamicOutputShapeException, DataDependentOutputException, UnsupportedOperatorException):
            return self.make(type_on(node, device), device)  # only the data knows, or only a kernel
        except Exception as error:
            raise self.broken(node, f"{type(error).__name__}: {error}") from error
        place = self.places[device if is_shared(node) else device_of(node)]
        for problem in self.differences(type_on(node, device), found, place):
            raise self.broken(node, problem)
        return found

    def differences(self, value: Value, found: Any, place: torch.device) -> Iterator[str]:
        if isinstance(value, TensorType):
            if not isinstance(found, torch.Tensor):
                yield f"yields a {type(found).__name__}, its annotation says a tensor"
                return
            expected = (self.sizes(value.shape), value.dtype, place)
            actual = (tuple(found.shape), found.dtype, found.device)
            if actual != expected:
                yield f"yields {_show(actual)}, its annotation says {_show(expected)}"
        elif value is None and not isinstance(found, int | float | complex | None):
            yield f"yields a {type(found).__name__}, its annotation says a number"
        elif value is not None:
            if not isinstance(found, (tuple, list)) or len(found) != len(value):
                yield f"does not yield {len(value)} results, as its annotation says"
                return
            for inner, item in zip(value, found, strict=False):
                yield from self.differences(inner, item, place)

    def make(self, value: Value, device: Device) -> Any:
        if isinstance(value, TensorType):
            sizes, strides = self.sizes(value.shape), self.sizes(value.stride)
            return torch.empty_strided(sizes, strides, dtype=value.dtype, device=self.places[device])
        return 1 if value is None else tuple(self.make(item, device) for item in value)

    def send(self, copy: Copy, tensor: torch.Tensor) -> torch.Tensor:
        place, node = self.places[copy.target], copy.value.node
        # Not by the op: torch makes an operand with a conj or neg bit dense first, which a copy does not.
        found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=place)
        for problem in self.differences(value_of(node), found, place):
            raise self.broken(node, problem)
        return found

    def sizes(self, sizes: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(evaluate(size, self.program.symbols) for size in sizes)

    def broken(self, node: Node, problem: str) -> VerificationError:
        return VerificationError(explain(self.program, Violation("deep", f"%{node.name} {problem}", node), LAW))


def _call(target: Any, args: Any, kwargs: Any) -> Any:
    function = target if isinstance(target, OpOverload) else bounded(target)
    return function(*args, **kwargs)


def _show(kind: tuple[tuple[int, ...], torch.dtype, torch.device]) -> str:
    shape, dtype, device = kind
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"
