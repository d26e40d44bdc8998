"""Weights that come for the segment that reads them, and go after it."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import DoesNotFitError, ExecutionError, WeightError
from dovetail.compiler.ir.schedule import Load
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.states.parts import slot_bytes
from dovetail.components.compiled import CompiledModule
from dovetail.runtime import sim

from .test_executor import Layers

WIDE = 64
X = torch.linspace(-1, 1, 4 * WIDE).reshape(4, WIDE)


def staged(backend: str, **options: object) -> tuple[nn.Module, dovetail.CompiledModule]:
    torch.manual_seed(0)
    module = Layers(6, WIDE).eval()
    return module, dovetail.compile(module, (X,), backend=backend, params_backend="cpu", **options)  # type: ignore[arg-type]


def in_use(devices: int = 3) -> list[int]:
    gc.collect()
    return [sim.stats(index).in_use for index in range(devices)]


@pytest.mark.fifth
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1", "sim0&sim1&sim2", "cpu&sim1", "sim0&cpu"])
def test_staging_changes_no_bit_and_leaves_nothing(backend: str) -> None:
    module, compiled = staged(backend)
    compiled(X)
    before = in_use()
    with torch.no_grad():
        assert torch.equal(compiled(X), module(X))
    assert in_use() == before


@pytest.mark.fifth
def test_a_device_holds_no_more_than_the_slots_for_weights_of_a_stage_each(sim_devices: None) -> None:
    _, compiled = staged("sim0&sim1&sim2")
    compiled.load()
    slots = {device.index: sum(sizes) for device, sizes in slot_bytes(compiled.program).items()}
    assert in_use() == [slots[index] for index in range(3)]
    there = X.to("sim:0")
    sim.reset_peak(0)
    compiled(there)
    for index in range(3):
        assert slots[index] < sim.stats(index).peak <= slots[index] + 4 * X.nbytes
    compiled.unload()
    del there
    assert in_use() == [0, 0, 0]


def test_only_what_a_segment_reads_is_sent_again_at_each_call(sim_devices: None) -> None:
    module, compiled = staged("sim0&sim1")
    there = X.to("sim:0")
    compiled(there)
    first = sim.stats(1).bytes_in
    compiled(there)
    loads = (load for load in compiled.schedule if isinstance(load, Load) and load.device.index == 1)
    staged_bytes = sum(compiled.program.weights[name].nbytes for load in loads for name in load.weights)
    assert sim.stats(1).bytes_in - first - staged_bytes == 2 * X.nbytes
    assert staged_bytes < sum(parameter.nbytes for parameter in module.parameters())


class Lookup(Layers):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(x)[index])


@pytest.mark.fifth
def test_an_error_in_the_middle_of_a_segment_leaves_nothing() -> None:
    index = torch.tensor([1, 2])
    module = Lookup(4, WIDE).eval()
    compiled = dovetail.compile(module, (X, index), backend="sim0&sim1", params_backend="cpu")
    compiled.load()
    before = in_use()
    with pytest.raises(ExecutionError, match=r"%index") as caught:
        compiled(X, index + 100)
    assert in_use() == before
    assert caught.value is not None
    with torch.no_grad():
        assert torch.equal(compiled(X, index), module(X, index))


@pytest.mark.fifth
def test_a_weight_that_cannot_be_fetched_any_more_is_named() -> None:
    module, compiled = staged("sim0&sim1")
    compiled(X)
    before = in_use()
    with torch.no_grad():
        module.layers[4].weight.data = torch.zeros(3, 3)  # type: ignore[index, union-attr]
    with pytest.raises(WeightError, match=r"weight layers\.4\.weight is .*\[3, 3\]"):
        compiled(X)
    assert in_use() == before


def test_weights_changed_in_place_are_read_anew() -> None:
    module, compiled = staged("sim0&sim1")
    first = compiled(X)
    with torch.no_grad():
        module.layers[0].weight.mul_(2)  # type: ignore[index, operator, union-attr]
        assert torch.equal(compiled(X), module(X))
    assert not torch.equal(compiled(X), first)


def test_slots_that_find_no_room_say_how_much_they_need() -> None:
    sim.enable({5: 100_000})
    _, compiled = staged("sim5", rig="sim5=100000B", passes="simplify,blocks,place{headroom=0B,shares=1},pin,hoist,cut,"
                         "schedule")  # fmt: skip
    taken = torch.empty(90_000, dtype=torch.uint8, device="sim:5")
    with pytest.raises(DoesNotFitError, match=r"slots for the weights that come and go need .* KiB on sim5"):
        compiled(X)
    assert sim.stats(5).in_use == taken.nbytes
    del taken


def test_two_layers_of_one_weight_fetch_it_once_for_a_stage() -> None:
    module = nn.Sequential(*(nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE)) for _ in range(2))).eval()
    module[1][1].weight = module[1][0].weight
    compiled = dovetail.compile(module, (X,), backend="sim0", params_backend="cpu")
    loads = [one for one in compiled.schedule if isinstance(one, Load)]
    assert [len(load.weights) for load in loads] == [4, 3]
    with torch.no_grad():
        assert torch.equal(compiled(X), module(X))


def test_each_thread_stages_for_itself() -> None:
    module, compiled = staged("sim0&sim1")
    compiled.load()
    with torch.no_grad():
        expected = {scale: module(X * scale) for scale in range(4)}
    wrong: list[int] = []

    def run(scale: int) -> None:
        wrong.extend(scale for _ in range(10) if not torch.equal(compiled(X * scale), expected[scale]))

    threads = [threading.Thread(target=run, args=(scale,)) for scale in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_plan_keeps_where_weights_rest(tmp_path: Path) -> None:
    module, compiled = staged("sim0&sim1")
    compiled.save(tmp_path / "plan.json")
    again = dovetail.load(tmp_path / "plan.json", module)
    assert again.program.kept is Residency.HOST
    assert str(again.schedule) == str(compiled.schedule)
    with torch.no_grad():
        assert torch.equal(again(X), module(X))


def test_weights_that_were_loaded_on_one_stream_are_there_for_another() -> None:
    module, x = Layers(2, WIDE).eval(), X.to("sim:0")
    compiled = dovetail.compile(module, (x,), backend="sim0")
    with sim.stream(sim.Stream(0)):
        compiled.load()
    with torch.no_grad():
        assert torch.equal(compiled(x).cpu(), module(X))


def test_two_threads_that_call_first_load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Layers(2, WIDE).eval()
    compiled = dovetail.compile(module, (X,), backend="sim0")
    loads, load, ready = [], CompiledModule.load, threading.Barrier(4)

    def counted(self: CompiledModule) -> None:
        loads.append(1)
        load(self)

    def call() -> None:
        ready.wait()
        compiled(X)

    monkeypatch.setattr(CompiledModule, "load", counted)
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
