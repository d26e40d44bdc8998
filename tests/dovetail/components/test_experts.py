"""Mixtures of experts are traced whole for any device; a refusal's way out is not lost behind later errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace
from dovetail.runtime import sim
from testbed.zoo.of_transformers import CASES
from tests.cases import IS_2_11

LIBRARY = torch.library.Library("a_library", "FRAGMENT")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")


class Experts(nn.Module):
    """Sorts rows by their expert and counts them as libraries do: in integers on what is no CPU."""

    def __init__(self, is_transposed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.Parameter(torch.randn(4, 8, 16) if is_transposed else torch.randn(4, 16, 8))
        self.is_transposed = is_transposed

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        experts, order = experts.sort()
        counted = experts.float() if x.device.type == "cpu" else experts.int()
        ends = torch.histc(counted, bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
        weights = self.weights.transpose(1, 2) if self.is_transposed else self.weights
        return F.grouped_mm(x[order], weights, offs=ends)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_rows_by_groups_compute_the_bits_of_eager(is_transposed: bool) -> None:
    module, x, experts = Experts(is_transposed).eval(), torch.randn(10, 16), torch.randint(0, 4, (10,))
    with torch.no_grad():
        compiled = dovetail.compile(module, (x, experts), backend="sim0")
        assert not isinstance(compiled, CompiledByParts)
        for _ in range(2):
            assert torch.equal(compiled(x, experts), module(x, experts))
            experts = torch.randint(0, 4, (10,))


def test_a_simulated_device_counts_integers_as_accelerators_do() -> None:
    sim.enable()
    numbers = torch.tensor([0, 3, 3, 1, 0, 0], dtype=torch.int32)
    found = torch.histc(numbers.to("sim:0"), bins=4, min=0, max=3)
    assert found.dtype == torch.int32
    assert found.tolist() == [3, 1, 0, 2]


def test_a_number_on_a_simulated_device_is_written_as_a_number() -> None:
    sim.enable()
    assert f"expert_{torch.tensor(3).to('sim:0')}" == "expert_3"


@pytest.mark.fifth
def test_a_mixture_of_experts_is_traced_whole_for_cards_and_for_simulated_devices() -> None:
    case = CASES["MixtralForCausalLM"]
    module, call = case.build(), {**case.call(1, 0), "use_cache": False}
    with torch.no_grad():
        assert "dovetail.grouped_mm" in str(dovetail.compile(module, (), call, rig="cuda0=1GiB,cuda1=1GiB"))
        compiled = dovetail.compile(module, (), call, backend="sim0&sim1")
        assert not isinstance(compiled, CompiledByParts)
        assert torch.equal(compiled(**call).logits, module(**call).logits)


class Foreign(nn.Module):
    """Calls what no program may have, and fails on what is no CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(torch.ops.a_library.twice(x))
        if x.device.type != "cpu" and not torch.compiler.is_compiling():
            raise NotImplementedError("no kernel for this device")
        return x


@pytest.mark.fifth
def test_a_refusal_by_parts_still_says_what_would_have_let_it_be_traced() -> None:
    with pytest.raises(TraceError, match=r"no kernel for this device.*trust\('a_library'\)"):
        dovetail.compile(Foreign().eval(), (torch.ones(2, 4),), backend="sim0&sim1")


@pytest.mark.skipif(IS_2_11, reason="it is traced into a function of Python, which no program may have")
def test_a_check_of_a_tensors_truth_belongs_to_a_program() -> None:
    class Checked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch._check_tensor_all(x > 0)
            return x * 2

    assert "_is_all_true" in str(trace(Checked(), (torch.ones(3),)).graph)
