"""Real classes with all their matrices in another type than they compute in."""

from __future__ import annotations

import pytest
import torch

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.runtime.store.source import tensors_of_module
from dovetail.weights.files import set_types
from testbed.zoo.everything import FIRST
from testbed.zoo.tiny import TINY

from .test_bit_equality import assert_same

RIG = Rig.parse("sim0=512MiB,sim1=1GiB")


@pytest.mark.fifth
@pytest.mark.parametrize("name", ["FluxTransformer2DModel", "T5EncoderModel"])
def test_matrices_in_a_file_of_halves_compute_the_bits_of_the_numbers_they_stand_for(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST)
def test_so_they_do_in_every_class_when_weights_are_frozen(name: str) -> None:
    check(name, frozen=True)


def check(name: str, frozen: bool = False) -> None:
    """Rounds the matrices to halves, and compares with the module that keeps the rounded numbers in float32."""
    sim.enable({device.index: RIG[device].total for device in RIG})
    module, call = TINY[name].make(torch.float32)
    module.requires_grad_(not frozen)
    with torch.no_grad():
        module(**call)  # some keep what their first call computes
        program = trace(module, (), call)
        matrices = [weight for weight in program.weights.values() if len(weight.shape) == 2 and
                    weight.kind == "parameter"]  # fmt: skip
        tensors = {**tensors_of_module(module), **program.constants}
        for weight in matrices:
            packed = tensors[weight.name].half()
            tensors[weight.name].copy_(packed)
            tensors |= dict.fromkeys(weight.names, packed.view(torch.uint8))
        expected = module(**call)
    set_types(program, {weight.name: "F16" for weight in matrices})
    program.rig = RIG
    PassManager(default_passes()).run(program)
    assert_same(CompiledModule(program, RIG, ProgramWeights.of_tensors(tensors, program))(**call), expected)
