"""Wide parts in chunks whose weights are packed, or have low-rank branches of adapters beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.schedule import Run
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.passes.rewrites.chunk import chunks_of
from dovetail.passes.verify.deep import verify_deep
from dovetail.runtime import sim
from dovetail.runtime.packing import pack
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.weights.files import set_types
from tests.cases import slow_but
from tests.measured import measured, predicted

from ..test_lora import Branch, branch, eager
from .test_chunk import Gated, Halves, Joined, Parts, Plain

TOKENS, WIDTH, WIDE = 512, 256, 2048
RIG = Rig.of(sim0=256 * 2**20, sim1=256 * 2**20)
KINDS = [Plain, Gated, Halves, Joined]
WIDE_ONES, NARROW_ONES = ("up", "gate"), ("down", "narrow", "both")
PLACES = [WIDE_ONES, NARROW_ONES, (*WIDE_ONES, *NARROW_ONES)]


def compiled(traced: Program, held: dict[str, Tensor], parts: int, devices: int = 1) -> CompiledModule:
    program = traced.copy()
    program.rig = RIG.only(RIG.devices[:devices])
    sim.enable({device.index: RIG[device].total for device in RIG})
    PassManager(default_passes(chunk=parts)).run(program)
    verify_deep(program)
    return CompiledModule(program, program.rig, ProgramWeights.of_tensors(held, program))


def without_scratch(program: Program) -> Program:
    """The program as simulated devices measure it, which do not see what a kernel takes while it runs."""
    schedule = [
        replace(one, steps=tuple(replace(step, scratch=0) for step in one.steps)) if isinstance(one, Run) else one
        for one in program.schedule or ()
    ]
    return replace(program, schedule=schedule)


def check(traced: Program, held: dict[str, Tensor], x: Tensor, expected: Tensor) -> None:
    """One device and two, whole and in parts: as planned to the byte, and the same up to rounding."""
    whole, parts, split = (compiled(traced, held, *each) for each in ((1, 1), (4, 1), (4, 2)))
    assert [chunks_of(one.program) for one in (whole, parts, split)] == [1, 4, 4]
    for one in (whole, parts, split):
        assert measured(one, (x,), {}) == predicted(without_scratch(one.program))
        torch.testing.assert_close(one(x), expected, rtol=1e-4, atol=1e-5)
        one.unload()
    assert predicted(parts.program)["sim0"] < predicted(whole.program)["sim0"]


def made(kind: Callable[..., Parts]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*(kind(WIDE, WIDTH) for _ in range(2))).eval(), torch.randn(1, TOKENS, WIDTH)


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("kind", "quant"), slow_but([(Halves, "Q4_K")], [(kind, quant) for kind in KINDS for quant in QUANT_TYPES])
)
def test_packed_weights_multiply_chunks_of_rows(kind: Callable[..., Parts], quant: str) -> None:
    module, x = made(kind)
    traced = trace(module, (x,))
    matrices = {name: quant for name, weight in traced.weights.items() if len(weight.shape) == 2}
    set_types(traced, matrices)
    held = dict(module.state_dict())
    with torch.no_grad():
        for name in matrices:
            parameter = module.get_parameter(name)
            held[name] = torch.from_numpy(pack(parameter.numpy(), quant))
            parameter.copy_(torch.ops.dovetail.dequantize(held[name], quant, parameter.dtype))
        check(traced, held, x, module(x))


def branches_of(module: nn.Module, names: Sequence[str]) -> list[Branch]:
    layers = {name: one for name, one in module.named_modules() if name.rpartition(".")[2] in names}
    return [branch(name, one.in_features, one.out_features, scale=0.1) for name, one in layers.items()]  # type: ignore[arg-type]


@pytest.mark.fifth
@pytest.mark.parametrize(
    ("kind", "names"),
    slow_but([(Plain, PLACES[1]), (Halves, PLACES[2])], [(kind, names) for kind in KINDS for names in PLACES]),
)
def test_branches_of_adapters_are_taken_apart_with_what_they_are_beside(
    kind: Callable[..., Parts], names: tuple[str, ...]
) -> None:
    module, x = made(kind)
    traced, held = trace(module, (x,)), dict(module.state_dict())
    branches = branches_of(module, names)
    branches += [branch(one.target, one.down.shape[1], one.up.shape[0], 2, slot=1, scale=0.2) for one in branches[:1]]
    held |= {name: tensor for one in branches for name, tensor in one.held.items()}
    traced.adapters = tuple(one.form for one in branches)
    check(traced, held, x, eager(module, x, branches))
