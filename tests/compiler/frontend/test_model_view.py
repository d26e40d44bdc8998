from __future__ import annotations

import logging
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import dovetail
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import TraceError, VerificationError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights

KINDS = ("cuda", "xpu", "mps")
said: SimpleQueue[Any] = SimpleQueue()
"""What a model says of its devices; what it puts into a list would have it run as it is."""


def run(program: Program, module: nn.Module, *args: Tensor) -> Any:
    """Runs a program that was traced for any kind of device on simulated ones, which compute as the host does."""
    rig = Rig.parse("sim0=1MiB,sim1=1MiB")
    sim.enable({device.index: rig[device].total for device in rig})
    program.rig = rig
    PassManager(default_passes()).run(program)
    return CompiledModule(program, rig, ProgramWeights.of_module(module, program))(*args)


def dtypes(program: Program) -> set[torch.dtype]:
    return {tensor.dtype for node in program.ops() for tensor in tensors_of(node)}


class Asks(nn.Module):
    """Chooses its dtype by the device it runs on, as diffusers' rotary embeddings do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        types = [t.device.type for t in (x, y, self.table, self.layer.weight, torch.ones(1, device=x.device))]
        said.put([*types, x.is_cuda, x.is_cpu, x.device == y.device, x.device == torch.device("cpu")])
        wide = torch.float32 if y.device.type == "mps" else torch.float64
        steps = torch.arange(4, dtype=wide, device=x.device)
        return (y.to(x.device) * steps.to(y.device, wide)).to(x.dtype) + self.table.to(device=x.device)


@pytest.mark.parametrize("kind", ["cpu", *KINDS])
def test_a_model_sees_the_kind_of_device_that_it_is_compiled_for(kind: str) -> None:
    while not said.empty():
        said.get()
    program = trace(Asks(), (torch.ones(2, 4),), kind=kind)
    assert said.get() == [*[kind] * 5, kind == "cuda", kind == "cpu", True, kind == "cpu"]
    assert (torch.float64 in dtypes(program)) == (kind != "mps")


def test_no_fake_tensor_lies_about_its_device_after_a_trace() -> None:
    trace(Asks(), (torch.ones(2, 4),), kind="mps")
    with torch._subclasses.FakeTensorMode():
        fake = torch.ones(2)
    assert isinstance(fake, FakeTensor)
    assert fake.device == torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_for_another_kind_computes_what_its_model_does(kind: str) -> None:
    module, x = Asks().eval(), torch.randn(2, 4)
    if kind != "mps":
        with torch.no_grad():
            assert torch.equal(run(trace(module, (x,), kind=kind), module, x), module(x))


class OnHost(nn.Module):
    """Makes its table on the host, whatever it runs on: without a device, in a context, and by name."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.linspace(0, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(4, dtype=torch.float64) / 3
        with torch.device("cpu"):
            table = torch.stack([angles.cos(), angles.sin()])
        table[:, 0] = torch.tensor([2.0, 3.0], dtype=torch.float64, device="cpu")
        table += self.own
        assert angles.device.type == "cpu"
        assert float(table[0, 0]) == 2.0
        return x * table.float().to(x.device)[0] + torch.einsum("i,j->ij", table[0], table[1]).float().to(x.device)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_makes_on_the_host_keeps_the_values_of_the_host(kind: str) -> None:
    module, x = OnHost(), torch.randn(2, 4)
    program = trace(module, (x,), kind=kind)
    assert torch.float64 not in dtypes(program)
    assert torch.equal(run(program, module, x), module(x))
    assert torch.equal(module.own, torch.linspace(0, 1, 4))


class ToHost(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.cpu().sin().to(x.device)


def test_what_depends_on_inputs_and_goes_to_the_host_is_told_once_with_its_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "dovetail"):
        trace(ToHost(), (torch.ones(2),))
        assert not caplog.records
        trace(ToHost(), (torch.ones(2),), kind="cuda")
    (record,) = caplog.records
    assert "ToHost computes on the host at " in record.getMessage()
    assert "test_model_view.py:" in record.getMessage()


class Keeps(nn.Module):
    """Counts its calls in a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls.to(x.device)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_tensor_that_a_model_keeps_is_not_written_by_a_trace(kind: str) -> None:
    module = Keeps()
    with pytest.raises(TraceError, match="writes into its weight"):
        trace(module, (torch.ones(1),), kind=kind)
    assert torch.equal(module.calls, torch.zeros(1))


class KeepsView(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        calls = self.calls.to(x.device)
        calls += 1
        return x + calls


def test_a_view_of_a_tensor_that_a_model_keeps_is_not_written_either() -> None:
    with pytest.raises(TraceError, match="clone it first"):
        trace(KeepsView(), (torch.ones(1),))


class Rewrites(nn.Module):
    """Changes a table of the host after it was read on the device."""

    def forward(self, x: Tensor) -> Tensor:
        table = torch.ones(2)
        first = x + table.to(x.device)
        table += 1
        return first * table.to(x.device)


def test_a_constant_of_the_graph_is_not_written_any_more() -> None:
    with pytest.raises(TraceError, match="after it was read: clone it first"):
        trace(Rewrites(), (torch.ones(2),), kind="cuda")


class Tabled(nn.Module):
    """Makes tables of plain numbers on the device of its input, reads them, writes some, and keeps one."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        sizes = torch.tensor((1, 2, 3, 4), device=x.device)
        scale = torch.as_tensor([0.5, 2.0], dtype=x.dtype, device=x.device)
        if self.kept is None:
            self.kept = torch.tensor([3.0, 5.0, 7.0, 9.0], device=x.device)
        first = x * sizes.view(1, -1) + x.new_tensor([1.0, 0.0, 1.0, 0.0]) * self.kept
        sizes.mul_(2)
        first[:, 0] = (first[:, 0] - sizes[3]).clamp(min=0) * scale[1]
        return first + sizes


@pytest.mark.parametrize("kind", ["cpu", *KINDS])
def test_a_tensor_that_a_call_makes_of_numbers_on_its_device_may_be_read_and_written(kind: str) -> None:
    module, x = Tabled(), torch.randn(2, 4)
    program = trace(module, (x,), kind=kind)
    assert torch.equal(run(program, module, x), Tabled()(x))


class Data(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x.new_zeros(3, 2)
        y.data[1:].copy_(self.layer(x))
        return y + self.layer.weight.data.sum()


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_is_written_through_data_is_in_the_graph(kind: str) -> None:
    module, x = Data().eval(), torch.randn(2, 2)
    with torch.no_grad():
        assert torch.equal(run(trace(module, (x,), kind=kind), module, x), module(x))


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).double().sum().float()


def test_a_device_gets_no_program_with_dtypes_that_it_lacks() -> None:
    with pytest.raises(
        VerificationError, match=r"(?s)rule dtypes: .*float64, from .*test_model_view\.py:\d+, which mps"
    ):
        dovetail.compile(Wide(), (torch.ones(1, 4),), backend="mps", rig="mps=8GiB")


def test_a_plan_for_a_device_that_is_not_here_asks_as_if_it_were() -> None:
    module, x = Asks(), torch.ones(2, 4)
    assert torch.float64 not in dtypes(dovetail.compile(module, (x,), backend="mps", rig="mps=8GiB").program)
    for backend, rig in (("cuda0&cuda1", "cuda0=1GiB,cuda1=1GiB"), ("sim0", None), ("cpu", None)):
        assert torch.float64 in dtypes(dovetail.compile(module, (x,), backend=backend, rig=rig).program)


class ChoosesKernels(nn.Module):
    """Attention with a kernel of the model's own choice, between two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        with sdpa_kernel(SDPBackend.MATH):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
        return self.after(x)


@pytest.mark.parametrize("backend", ["cpu", "sim0&sim1"])
def test_the_kernels_that_a_model_chooses_for_attention_are_those_that_run(backend: str) -> None:
    torch.manual_seed(0)
    model, x = ChoosesKernels().eval(), torch.randn(2, 4, 64, 32)
    with torch.no_grad():
        with pytest.raises(TraceError, match="chooses the kernels of scaled_dot_product_attention"):
            trace(model, (x,))
        assert torch.equal(dovetail.compile(model, (x,), backend=backend)(x), model(x))
