"""What a row split of a wide entry does: how far it is from exact, what lies where, what crosses."""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.eligibility import marked_weights
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.split import assembles, source_of
from dovetail.compiler.states.parts import pieces
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights

from .tiny import Call, Draw
from .wide import WIDE

RIG = Rig.parse("sim0=512MiB,sim1=512MiB,sim2=512MiB,sim3=512MiB")
SHARES = (16, 10, 6, 4)


CALLS = 6
"""One call alone says little: in fp32 a single rounding early on may tip the error of all that follows either way."""


@dataclass
class Subject:
    """A module with calls of it, what they should yield, how far eager is from that, and its program before a split."""

    name: str
    module: nn.Module
    calls: list[Call]
    exact: list[torch.Tensor]
    eager: float
    program: Program

    @classmethod
    def make(cls, name: str, dtype: torch.dtype) -> Subject:
        module, first = WIDE[name].make(dtype)
        calls = [first, *(WIDE[name].call(Draw(dtype, seed)) for seed in range(2, CALLS + 1))]
        double = copy.deepcopy(module).double()
        exact = [flat(run(double, pytree.tree_map(_doubled, call))) for call in calls]
        eager = error([flat(run(module, call)) for call in calls], exact)
        return cls(name, module, calls, exact, eager, trace(module, (), first))

    def split(self, count: int, mode: str = "row") -> CompiledModule:
        """It, compiled for some devices in unequal shares."""
        sim.enable({device.index: RIG[device].total for device in RIG})
        rig = RIG.only(RIG.devices[:count])
        program = self.program.copy()
        program.rig = rig
        PassManager(default_passes(SHARES[:count], split_mode=mode)).run(program)
        return CompiledModule(program, rig, ProgramWeights.of_module(self.module, program))

    def error_of(self, compiled: CompiledModule) -> float:
        """How far the compiled module is from exact."""
        return error([flat(compiled(**call)) for call in self.calls], self.exact)


def run(module: nn.Module, call: Call) -> Any:
    with torch.no_grad():
        return module(**call)


def flat(result: Any) -> torch.Tensor:
    """All numbers of a result, in float64."""
    return torch.cat([leaf.double().flatten() for leaf in pytree.tree_leaves(result)])


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The root of the mean square of what differs, relative to what is exact, over all calls."""
    return math.sqrt(
        sum(float((one - other).norm() / other.norm()) ** 2 for one, other in zip(found, exact, strict=True))
    )


def _doubled(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def sliced_bytes(program: Program) -> dict[Device, int]:
    """Bytes of slices of matrices on each device."""
    held: Counter[Device] = Counter()
    for weight, device in pieces(program).values():
        if weight.which and len(weight.shape) == 2:
            held[device] += weight.nbytes
    return held


def gathered(program: Program) -> list[Node]:
    """The values that are gathered in one call: they cross to their own device."""
    return [source_of(one) for one in program.transfers() if assembles(one)]


def marks(module: nn.Module, traced: Program) -> tuple[set[str], set[str]]:
    """The weights of a fresh program that a row split marks, and those that its modules say are eligible."""
    program = PassManager(parse_passes("simplify,blocks")).run(traced.copy())
    found = {weight.name for weight in marked_weights(program).values()}
    return found, eligible(module, program)


def eligible(module: nn.Module, program: Program) -> set[str]:
    """The weights that law 5 names, by the modules that hold them instead of by the graph.

    They are those of linear layers, with 256 rows and columns or more, that lie in a block and that no other kind of
    module holds.
    """
    inside = {name for block in program.blocks for name in block.weights}
    linear = {f"{path}.weight": one.weight for path, one in module.named_modules() if isinstance(one, nn.Linear)}
    others = (one for one in module.modules() if not isinstance(one, nn.Linear))
    elsewhere = {id(parameter) for one in others for parameter in one._parameters.values()}
    large = {name: weight for name, weight in linear.items() if min(weight.shape) >= 256 and weight.is_contiguous()}
    return {name for name, weight in large.items() if name in inside and id(weight) not in elsewhere}
