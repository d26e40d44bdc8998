"""Generated segments and the steps between them."""

from __future__ import annotations

import gc
import linecache
import math
import threading
from typing import Any

import pytest
import torch
from torch import nn

import dovetail
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor


class Layers(nn.Module):
    def __init__(self, depth: int = 4, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x
        for layer in self.layers:
            x = torch.tanh(layer(x)) + first
        return x


X = torch.linspace(-1, 1, 128).reshape(8, 16)


def compiled_layers(backend: str = "sim0&sim1") -> tuple[nn.Module, dovetail.CompiledModule]:
    torch.manual_seed(0)
    module = Layers().eval()
    return module, dovetail.compile(module, (X,), backend=backend)


def in_use() -> list[int]:
    gc.collect()
    return [sim.stats(index).in_use for index in range(2)]


def test_nothing_but_weights_is_left_after_a_call() -> None:
    _, compiled = compiled_layers()
    compiled.load()
    before = in_use()
    compiled(X)
    assert in_use() == before


@pytest.mark.fifth
def test_nothing_is_left_after_a_call_that_failed() -> None:
    class Lookup(Layers):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[index]

    index = torch.tensor([1, 2])
    compiled = dovetail.compile(Lookup().eval(), (X, index), backend="sim0&sim1")
    compiled.load()
    before = in_use()
    for _ in range(3):
        with pytest.raises(dovetail.compiler.errors.ExecutionError, match=r"%index"):
            compiled(X, index + 100)
    assert in_use() == before


def test_each_value_is_dropped_at_its_last_use() -> None:
    module = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).eval()
    x = torch.ones(64, 256)
    compiled = dovetail.compile(module, (x,), backend="sim0")
    compiled.load()
    there = x.to("sim:0")
    sim.reset_peak(0)
    before = sim.stats(0).in_use
    compiled(there)
    assert sim.stats(0).peak - before == 2 * x.nbytes


def test_one_compiled_module_answers_several_threads_at_once() -> None:
    module, compiled = compiled_layers("cpu")
    compiled.load()
    inputs = [X * scale for scale in range(8)]
    found: dict[int, torch.Tensor] = {}

    def run(index: int) -> None:
        for _ in range(20):
            found[index] = compiled(inputs[index])

    threads = [threading.Thread(target=run, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        assert all(torch.equal(found[index], module(inputs[index])) for index in range(8))


@pytest.mark.parametrize("rests", [None, "cpu"])
def test_a_first_call_returns_its_result_where_another_thread_unloads_meanwhile(
    rests: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithWeight(Layers):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), self.layers[0].weight

    module, settle = WithWeight().eval(), Executor._settle
    compiled = dovetail.compile(module, (X,), backend="sim0", params_backend=rests)

    def settled(executor: Executor, *found: Any) -> None:
        thread = threading.Thread(target=compiled.unload)
        thread.start()
        thread.join()
        settle(executor, *found)

    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_settle", settled)
        results = [compiled(X)]
    assert not compiled._is_bound
    results += [compiled(X), compiled(X)]
    for found in results:
        assert all(torch.equal(one, other) for one, other in zip(found, module(X), strict=True))


def test_names_of_a_model_do_not_collide_with_those_of_the_listing() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.run = nn.Linear(4, 4)

        def forward(
            self, slots: torch.Tensor, device: torch.Tensor, bind: torch.Tensor, aten_linear: torch.Tensor
        ) -> torch.Tensor:
            return self.run(slots) + torch.arange(4, device=slots.device) * device - bind / aten_linear

    module = Named().eval()
    args = tuple(torch.rand(2, 4) for _ in range(4))
    compiled = dovetail.compile(module, args, backend="sim0&sim1")
    with torch.no_grad():
        assert torch.equal(compiled(*args), module(*args))


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1e-300, -0.0, 3, True])
def test_numbers_keep_their_value_in_the_listing(number: Any) -> None:
    class Scale(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(x > 0, x, number)

    compiled = dovetail.compile(Scale(), (X,), backend="cpu")
    assert torch.equal(compiled(X), Scale()(X))


def test_results_may_be_inputs_weights_and_constants() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> Any:
            return x, self.layer.bias, self.layer(x), None, 3, [self.layer(x).sum()], "words"

    module = Mixed().eval()
    for backend in ("cpu", "sim0", "sim0&sim1"):
        found = dovetail.compile(module, (X,), backend=backend)(X)
        with torch.no_grad():
            expected = module(X)
        assert torch.equal(found[0], X)
        assert torch.equal(found[1], module.layer.bias)
        assert torch.equal(found[2], expected[2])
        assert found[3:5] == (None, 3)
        assert torch.equal(found[5][0], expected[5][0])
        assert found[6] == "words"


def test_a_module_without_weights_runs_on_the_main_device() -> None:
    class Bare(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 2).sum(-1)

    compiled = dovetail.compile(Bare(), (X,), backend="sim1&sim0")
    assert torch.equal(compiled(X), Bare()(X))
    assert [segment.device.name for segment in compiled.program.segments] == ["sim1"]


def test_random_numbers_are_those_of_the_eager_run() -> None:
    class Noisy(Layers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.randn(8, 16))

    module = Noisy().eval()
    compiled = dovetail.compile(module, (X,), backend="sim0&sim1")
    torch.manual_seed(1)
    found = compiled(X)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(found, module(X))


@pytest.mark.fifth
def test_each_program_has_its_own_lines_in_tracebacks_and_takes_them_along_when_it_goes() -> None:
    def names() -> set[str]:
        return {name for name in linecache.cache if name.startswith("<dovetail Layers ")}

    gc.collect()
    before = names()
    programs = [dovetail.compile(Layers(2, 8).eval(), (torch.ones(1, 8),), backend="sim0") for _ in range(2)]
    for compiled in programs:
        compiled(torch.ones(1, 8))
    sources = [source for compiled in programs for source in compiled._executor._listings.values()]
    assert names() - before == {source.listing.filename for source in sources}
    assert len(names() - before) == 4  # the listing that looks, and the one that has looked
    del programs, compiled, sources
    gc.collect()
    assert not names() - before
