from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights
from testbed.zoo.everything import CLASSES, FIRST, NAMES
from testbed.zoo.tiny import TINY
from tests.cases import drawn

DTYPES = (torch.float32, torch.bfloat16)
RIG = Rig.parse("sim0=512MiB,sim1=1GiB,sim2=256MiB,sim3=768MiB,sim4=384MiB")


@pytest.fixture(autouse=True)
def _devices() -> Iterator[None]:
    gc.collect()
    sim.enable({device.index: RIG[device].total for device in RIG})
    yield
    for device in RIG:
        sim.synchronize(device.index)


def test_the_zoo_has_at_least_forty_classes() -> None:
    assert len(CLASSES) >= 40


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn(NAMES, 4))
def test_in_fp32_two_and_three_devices_compute_the_bits_of_eager(name: str) -> None:
    check(name, torch.float32, (2, 3))


@pytest.mark.fifth
@pytest.mark.parametrize("name", drawn(FIRST, 2))
def test_in_bf16_two_devices_compute_the_bits_of_eager(name: str) -> None:
    check(name, torch.bfloat16, (2,))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), drawn(itertools.product(NAMES, DTYPES), len(NAMES)))
def test_any_number_of_devices_computes_the_bits_of_eager(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, (1, 2, 3, 5))


def check(name: str, dtype: torch.dtype, counts: Sequence[int]) -> None:
    """Traces once, then compiles for each number of devices and compares every leaf of the result."""
    module, call = TINY[name].make(dtype)
    with torch.no_grad():
        expected = module(**call)
    assert_meaningful(expected)
    program = trace(module, (), call)
    for count in counts:
        compiled = compile_for(program, module, count)
        used = {segment.device for segment in compiled.program.segments}
        assert len(used) >= (count if count <= len(compiled.program.blocks) else 2)
        assert_same(compiled(**call), expected)


def compile_for(program: Program, module: nn.Module, count: int) -> CompiledModule:
    rig = RIG.only(RIG.devices[:count])
    copy = program.copy()
    copy.rig = rig
    PassManager(default_passes()).run(copy)
    return CompiledModule(copy, rig, ProgramWeights.of_module(module, copy))


def assert_meaningful(result: Any) -> None:
    """Numbers that are not finite, or all alike, would make any comparison say little."""
    for leaf in pytree.tree_leaves(result):
        assert isinstance(leaf, torch.Tensor)
        assert leaf.isfinite().all()
        assert leaf.float().std() > 1e-4


def assert_same(result: Any, expected: Any) -> None:
    assert type(result) is type(expected)
    found, wanted = pytree.tree_leaves(result), pytree.tree_leaves(expected)
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)
