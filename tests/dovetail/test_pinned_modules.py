"""A module in memory whose parameters rest there: they are pinned, and it is the module that it was."""

from __future__ import annotations

import copy
import gc
import logging
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.sim.copies import is_pinned
from dovetail.runtime.sim.streams import HOST
from tests.threads import beside

pytestmark = pytest.mark.usefixtures("known_threads")
WIDTH = 16
X = torch.linspace(-1, 1, 4 * WIDTH).reshape(4, WIDTH)


class Tower(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.register_buffer("shift", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).tanh() + self.shift
        return x


def tower() -> Tower:
    torch.manual_seed(0)
    return Tower().eval().requires_grad_(False)


def compiled_of(module: nn.Module, **options: Any) -> dovetail.CompiledModule:
    return dovetail.compile(module, (X,), backend="sim0", params_backend="cpu", **options)


def all_pinned(module: nn.Module) -> bool:
    return all(map(is_pinned, module.parameters()))


def test_parameters_are_pinned_after_the_first_call_and_nothing_else_is_changed() -> None:
    module = tower()
    held = dict(module.named_parameters())
    expected = module(X)
    compiled = compiled_of(module)
    assert torch.equal(module(X), expected)
    assert torch.equal(compiled(X), expected)
    assert all_pinned(module)
    assert not is_pinned(module.shift)
    assert all(one is held[name] for name, one in module.named_parameters())
    for _ in range(2):
        assert torch.equal(module(X), expected)
        assert torch.equal(compiled(X), expected)


def test_a_first_call_in_inference_mode_leaves_parameters_that_are_trained() -> None:
    module = tower().requires_grad_()
    compiled = compiled_of(module)
    with torch.inference_mode(), torch.device("cpu"):
        compiled(X)
    assert all_pinned(module)
    assert not any(one.is_inference() for one in module.parameters())
    module(X).sum().backward()
    with torch.no_grad():
        module.blocks[0].weight.mul_(2)
        assert torch.equal(compiled(X), module(X))


def test_weights_are_looked_at_once_though_they_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compiled_of(tower())
    compiled(X)
    monkeypatch.setattr(type(compiled), "load", lambda _: pytest.fail("weights are brought again"))
    compiled(X)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("way", ["copy", "optimizer", "replaced", "data", "data written"])
def test_what_is_written_or_replaced_is_read_by_the_next_call(way: str, when: str) -> None:
    module = tower().requires_grad_()
    weight = module.blocks[1].weight
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    compiled = compiled_of(module)
    for _ in range(2 if when == "after" else 0):
        compiled(X)
    if way == "copy":
        with torch.no_grad():
            weight.copy_(weight * 2)
    elif way == "optimizer":
        module(X).sum().backward()
        optimizer.step()
    elif way == "replaced":
        module.blocks[1].weight = nn.Parameter(weight.detach() * 2)
    elif way == "data":
        weight.data = weight.detach() * 2
    else:
        weight.data.mul_(2)
    with torch.no_grad():
        expected = module(X)
        for _ in range(2):
            assert torch.equal(compiled(X), expected)
            assert torch.equal(module(X), expected)


def test_tied_weights_stay_tied() -> None:
    module = tower()
    module.blocks[2].weight = module.blocks[0].weight
    compiled = compiled_of(module)
    compiled(X)
    assert module.blocks[2].weight is module.blocks[0].weight
    assert all_pinned(module)
    module.blocks[0].weight.mul_(2)
    assert torch.equal(compiled(X), module(X))


@pytest.mark.parametrize("kind", ["state_dict", "numpy", "view"])
def test_who_holds_the_memory_of_a_weight_goes_on_seeing_it(kind: str) -> None:
    module = tower()
    weight = module.blocks[0].weight
    kept: Any = {
        "state_dict": lambda: module.state_dict()["blocks.0.weight"],
        "numpy": lambda: weight.detach().numpy(),
        "view": lambda: weight[2:],
    }[kind]()
    compiled = compiled_of(module)
    compiled(X)
    kept[...] = 0.5
    assert torch.equal(module(X), compiled(X))
    assert bool((weight[2:] == 0.5).all())


def test_what_cannot_be_pinned_is_said_once_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    module = nn.Sequential(nn.Linear(1024, 512), nn.Linear(512, 1024)).eval()
    kept = module.state_dict()
    x = torch.ones(1, 1024)
    compiled = dovetail.compile(module, (x,), backend="sim0", params_backend="cpu")
    with caplog.at_level(logging.WARNING):
        compiled(x)
        compiled.unload()
        compiled(x)
    (said,) = [one.getMessage() for one in caplog.records if "not pinned" in one.getMessage()]
    assert "4 weights" in said
    del kept
    compiled.unload()
    compiled(x)
    assert all_pinned(module)


def test_beside_another_thread_nothing_moves_which_is_said_once_with_the_ways_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, x = nn.Linear(1024, 512).eval().requires_grad_(False), torch.ones(1, 1024)
    expected = module(x)
    compiled = dovetail.compile(module, (x,), backend="sim0", params_backend="cpu")
    with beside(threading.Event.wait, "mine\nnot"), caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert torch.equal(compiled(x), expected)
            compiled.unload()
    assert not all_pinned(module)
    (said,) = [one.getMessage() for one in caplog.records if "not pinned" in one.getMessage()]
    assert "mine\\nnot" in said
    assert all(way in said for way in ("compiled.load()", "pin_memory()", "weights=…"))
    compiled(x)
    assert all_pinned(module)


def test_nothing_reads_the_memory_of_a_module_when_a_call_returns() -> None:
    module = tower()
    expected = module(X)
    compiled = compiled_of(module)
    copies = accelerator_of(torch.device("sim", 0)).side_stream("weights")
    there = X.to("sim:0")
    for _ in range(2):
        found = compiled(there)
        assert all(HOST.clock.get(number, 0) >= time for number, time in copies.everything().items())
        for weight in module.parameters():
            weight.fill_(7)
        assert torch.equal(found.cpu(), expected)
        module.load_state_dict(tower().state_dict())


def test_two_programs_of_one_module_share_what_is_pinned() -> None:
    module = tower()
    programs = [compiled_of(module) for _ in range(2)]
    expected = module(X)
    assert [torch.equal(one(X), expected) for one in (*programs, *programs)] == [True] * 4
    addresses = [one.data_ptr() for one in module.parameters()]
    programs[0].unload()
    assert [torch.equal(one(X), expected) for one in programs] == [True] * 2
    assert [one.data_ptr() for one in module.parameters()] == addresses


def test_a_copy_is_a_module_of_its_own_and_all_of_it_goes() -> None:
    module = tower()
    compiled = compiled_of(module)
    expected = compiled(X)
    twin = copy.deepcopy(module)
    twin.blocks[0].weight.zero_()
    assert torch.equal(compiled(X), expected)
    reference = weakref.ref(module.blocks[0].weight)
    del module, compiled
    gc.collect()
    assert reference() is None


def test_a_saved_program_pins_the_module_that_it_is_given(tmp_path: Path) -> None:
    module = tower()
    expected = module(X)
    compiled_of(module).save(tmp_path / "plan.json")
    other = tower()
    loaded = dovetail.load(tmp_path / "plan.json", weights=other)
    assert torch.equal(loaded(X), expected)
    assert all_pinned(other)
    assert not any(map(is_pinned, module.parameters()))


def test_weights_that_stay_on_their_device_are_not_pinned() -> None:
    module = tower()
    resident = dovetail.compile(module, (X,), backend="sim0")
    assert torch.equal(resident(X), module(X))
    assert not any(map(is_pinned, module.parameters()))


def test_a_module_on_a_device_stays_there() -> None:
    module = tower().to("sim:0")
    compiled = compiled_of(module)
    assert torch.equal(compiled(X), tower()(X))
    assert all(one.device.type == "sim" for one in module.parameters())


def test_looking_at_the_graph_pins_nothing() -> None:
    module = tower()
    compiled = compiled_of(module)
    compiled.graph_module()
    assert not any(map(is_pinned, module.parameters()))


def test_a_thread_that_runs_the_module_by_itself_meanwhile_gets_its_bits() -> None:
    module = Tower(40).eval().requires_grad_(False)
    expected = module(X)
    compiled = compiled_of(module)
    wrong: list[int] = []

    def run(over: threading.Event) -> None:
        while not over.is_set():
            if not torch.equal(module(X), expected):
                wrong.append(1)

    with beside(run):
        for _ in range(3):
            assert torch.equal(compiled(X), expected)
            compiled.unload()
    assert not wrong
