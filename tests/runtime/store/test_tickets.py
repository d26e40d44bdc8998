"""Weights that are started and awaited: they come on a stream of their own, and whoever uses them waits for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dovetail
from dovetail.compiler.ir.weight import Weight
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import SimAccelerator, accelerator_of
from dovetail.runtime.store.source import WeightSource

pytestmark = pytest.mark.usefixtures("sim_devices")
sim.enable()
SIM0 = torch.device("sim", 0)
X = torch.linspace(-1, 1, 4 * 64).reshape(4, 64)


@pytest.fixture(params=["memory", "file"])
def source(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[WeightSource, list[Weight], nn.Module]:
    """What gives the weights of a module, out of its tensors in pinned memory or out of a file."""
    monkeypatch.setattr(SimAccelerator, "host_view", lambda *_: None)  # as no other device has one
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).eval().requires_grad_(False)
    save_file(module.state_dict(), tmp_path / "m.safetensors")
    for tensor in module.parameters():
        tensor.data = accelerator_of(SIM0).pin(tensor.data)
    files = tmp_path / "m.safetensors" if request.param == "file" else None
    compiled = dovetail.compile(module, (X,), backend="sim0", weights=files, params_backend="disk" if files else "cpu")
    assert compiled._weights is not None
    assert not compiled._weights.missing(compiled.program)
    return compiled._weights, list(compiled.program.weights.values()), module


def test_what_was_started_is_there_when_it_was_awaited(
    source: tuple[WeightSource, list[Weight], nn.Module],
) -> None:
    give, weights, module = source
    tensors = give.start(weights, SIM0).wait()
    assert all(torch.equal((one + 0).cpu(), module.get_parameter(weight.name))
               for weight, one in zip(weights, tensors, strict=True))  # fmt: skip


def test_what_was_not_awaited_must_not_be_used(source: tuple[WeightSource, list[Weight], nn.Module]) -> None:
    give, weights, _ = source
    ticket = give.start(weights, SIM0)
    with pytest.raises(sim.RaceError):
        ticket._tensors[-1] + 1


def test_what_was_started_waits_for_nothing_that_the_device_computes(
    source: tuple[WeightSource, list[Weight], nn.Module],
) -> None:
    give, weights, _ = source
    computing, bringing = sim.current_stream(0), accelerator_of(SIM0).side_stream("weights")
    computed = torch.ones(8, device=SIM0) + 1
    ticket = give.start(weights, SIM0)
    assert not bringing.has_waited(computing.number, computing.now)
    ticket.wait()
    assert computed.sum().item() == 16


def test_what_was_let_go_of_leaves_no_memory_taken(source: tuple[WeightSource, list[Weight], nn.Module]) -> None:
    give, weights, _ = source
    before = sim.stats(0).in_use
    ticket = give.start(weights, SIM0)
    ticket.wait()
    assert sim.stats(0).in_use - before == sum(weight.nbytes for weight in weights)
    del ticket
    assert sim.stats(0).in_use == before
