"""What allocators hold is bounded by the budgets of the pipelines that are called, and said beside what is in use."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

import dovetail
from dovetail.cli.output.figures import document_of, line_of
from dovetail.compiler.devices import probe
from dovetail.compiler.devices.device import Device
from dovetail.pipelines.bounded import bounded
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import SimAccelerator, StreamAccelerator, accelerator_of
from testbed.pipelines import tiny_pipelines
from testbed.pipelines.tiny_pipelines import paint

MIB = 2**20


class Cuda:
    """What torch.cuda answers of a card of 16 MiB, as far as it is asked here."""

    def __init__(self, is_initialized: bool = False) -> None:
        self.fractions: list[float] = []
        self._initialized = is_initialized

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self._initialized

    def device_count(self) -> int:
        return 0

    def get_device_properties(self, _: torch.device) -> object:
        return SimpleNamespace(total_memory=16 * MIB)

    def set_per_process_memory_fraction(self, fraction: float, _: torch.device) -> None:
        self.fractions.append(fraction)

    def max_memory_allocated(self, _: torch.device) -> int:
        return 5 * MIB

    def max_memory_reserved(self, _: torch.device) -> int:
        return 7 * MIB


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(torch, "get_device_module", lambda _: made)
    for name in probe._ALLOCATORS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(is_available=lambda: False))
    return made


def test_a_bound_is_a_fraction_of_the_card_and_is_taken_back(cuda: Cuda) -> None:
    card = StreamAccelerator(torch.device("cuda", 0))
    for nbytes in (4 * MIB, 64 * MIB, None):
        card.bound(nbytes)
    assert cuda.fractions == [0.25, 1.0, 1.0]
    assert card.reserved_peak() == 7 * MIB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the driver has no such segments elsewhere")
def test_segments_are_expandable_where_the_user_set_nothing(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")  # which the fixture restores
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    probe.probe_accelerators(())
    assert probe.os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("name", probe._ALLOCATORS)
def test_what_the_user_set_of_the_allocator_stays(cuda: Cuda, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "max_split_size_mb:64")
    before = dict(probe.os.environ)
    probe.probe_accelerators(())
    assert dict(probe.os.environ) == before


def test_nothing_is_set_when_cuda_is_in_use_already(cuda: Cuda) -> None:
    cuda._initialized = True
    before = dict(probe.os.environ)
    probe.probe_accelerators(())
    assert dict(probe.os.environ) == before


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch, clean_sims: None) -> list[tuple[str, int | None]]:
    """The bounds that simulated devices are given, in turn."""
    found: list[tuple[str, int | None]] = []

    def bound(self: SimAccelerator, nbytes: int | None) -> None:
        found.append((f"sim{self.device.index}", nbytes))

    monkeypatch.setattr(SimAccelerator, "bound", bound)
    return found


@pytest.mark.fifth
def test_a_call_bounds_what_the_process_holds_by_the_budgets_of_all_pipelines(
    bounds: list[tuple[str, int | None]],
) -> None:
    pipe, call = tiny_pipelines.flux()
    dovetail.compile_pipeline(pipe, backend="sim0", max_vram="sim0=6MiB")
    paint(pipe, call)
    assert bounds == [("sim0", 6 * MIB), ("sim0", None)]
    bounds.clear()
    mine = torch.ones(MIB // 4).to("sim:0")
    other, _ = tiny_pipelines.flux()
    dovetail.compile_pipeline(other, backend="sim0", max_vram="sim0=4MiB")
    paint(pipe, call)
    (begun, most), ended = bounds
    assert (begun, ended) == ("sim0", ("sim0", None))
    assert most is not None
    assert 0 <= most - 10 * MIB - mine.nbytes < MIB // 8, "and what the scheduler keeps of its last run"
    bounds.clear()
    third, _ = tiny_pipelines.flux()
    dovetail.compile_pipeline(third, backend="sim0&sim1", max_vram="sim1=4MiB")
    paint(pipe, call)
    assert bounds == [], "a pipeline without a budget may use all that is free"
    for one in (pipe, other, third):
        one.dovetail.undo()


def test_on_simulated_devices_what_is_reserved_is_what_is_in_use(clean_sims: None) -> None:
    there = accelerator_of(torch.device("sim", 0))
    kept = torch.ones(1000).to("sim:0")
    assert torch.get_device_module("sim").memory_reserved(0) == sim.stats(0).in_use >= kept.nbytes
    assert there.reserved_peak() == there.memory()[1]


def test_what_is_reserved_is_said_beside_what_is_in_use() -> None:
    phases = SimpleNamespace(seconds={"sampling": 1.0}, read_during=Counter(), bytes_read=0)
    peaks, reserved = {"cuda0": 5 * MIB, "sim0": MIB}, {"cuda0": 7 * MIB, "sim0": MIB}
    assert line_of(phases, peaks, reserved).endswith("peak: cuda0 5.0 MiB (7.0 MiB reserved), sim0 1.0 MiB")  # type: ignore[arg-type]
    assert document_of(phases, peaks, reserved)["reserved"] == reserved  # type: ignore[arg-type]


def test_what_the_user_lets_the_process_have_is_never_exceeded_and_set_back(cuda: Cuda) -> None:
    cuda.get_per_process_memory_fraction = lambda _: 0.5  # type: ignore[attr-defined]
    card = StreamAccelerator(torch.device("cuda", 0))
    for nbytes in (4 * MIB, 12 * MIB, None, None):
        card.bound(nbytes)
    assert cuda.fractions == [0.25, 0.5, 0.5]


def test_an_interrupt_while_devices_are_bounded_leaves_none_bounded(
    clean_sims: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[int, int | None]] = []

    def bound(self: SimAccelerator, nbytes: int | None) -> None:
        found.append((self.device.index, nbytes))
        if (self.device.index, nbytes) == (1, 2):
            raise KeyboardInterrupt

    monkeypatch.setattr(SimAccelerator, "bound", bound)
    with pytest.raises(KeyboardInterrupt), bounded({Device("sim", 0): 1, Device("sim", 1): 2}):
        pass
    assert {one for one in found if one[1] is None} == {(0, None), (1, None)}
    found.clear()
    with bounded({Device("sim", 0): 3}):
        pass
    assert found == [(0, 3), (0, None)]
