from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import MpsAccelerator, StreamAccelerator, accelerator_of

pytestmark = pytest.mark.usefixtures("sim_devices")
sim.enable()
SIM = torch.device("sim", 1)
CPU = torch.device("cpu")


def test_each_device_has_one_accelerator():
    assert accelerator_of(SIM) is accelerator_of(torch.device("sim:1"))
    assert accelerator_of(SIM) is not accelerator_of(torch.device("sim:0"))


def test_on_the_cpu_everything_is_a_no_op():
    cpu, value = accelerator_of(CPU), torch.ones(3)
    stream = cpu.side_stream()
    event = cpu.record(stream)
    with cpu.use(stream):
        cpu.wait(cpu.current_stream(), event)
    cpu.keep(value, stream)
    cpu.synchronize()
    cpu.reset_peak()
    cpu.empty_cache()
    assert (stream, event, cpu.has_streams, cpu.memory()) == (None, None, False, (0, 0))
    assert cpu.pin(value) is value


def test_the_side_stream_is_made_once_and_is_not_the_current_one():
    there = accelerator_of(SIM)
    assert there.has_streams
    assert there.side_stream() is there.side_stream()
    assert there.side_stream() is not there.current_stream()


def test_work_goes_to_the_stream_in_use():
    there = accelerator_of(SIM)
    before = there.current_stream()
    with there.use(there.side_stream()):
        assert there.current_stream() is there.side_stream()
    assert there.current_stream() is before


def test_a_stream_waits_for_what_an_event_recorded():
    there = accelerator_of(SIM)
    with there.use(there.side_stream()):
        value = torch.ones(3, device=SIM)
    with pytest.raises(sim.RaceError):
        value + 1
    there.wait(there.current_stream(), there.record(there.side_stream()))
    assert (value + 1).tolist() == [2, 2, 2]


def test_the_host_waits_for_the_event_of_a_device():
    there, cpu = accelerator_of(SIM), accelerator_of(CPU)
    value = torch.ones(3, device=SIM).to("cpu", non_blocking=True)
    assert value.isnan().all()
    cpu.wait(None, there.record(there.current_stream()))
    assert value.tolist() == [1, 1, 1]


def test_a_kept_tensor_may_die_while_another_stream_reads_it():
    there = accelerator_of(SIM)
    side = there.side_stream()

    def read_on_the_side(keep: bool) -> None:
        value = torch.ones(3, device=SIM)
        there.wait(side, there.record(there.current_stream()))
        with there.use(side):
            value + 1
        if keep:
            there.keep(value, side)

    read_on_the_side(keep=True)
    torch.ones(1, device=SIM)
    read_on_the_side(keep=False)
    with pytest.raises(sim.RaceError, match="freed while stream"):
        torch.ones(1, device=SIM)


@pytest.mark.parametrize("device", [CPU, SIM], ids=str)
def test_an_ordinary_tensor_shares_memory_and_may_be_written_outside_inference_mode(device):
    with torch.inference_mode():
        held = torch.ones(2, 3, device=device).t()
    with pytest.raises(RuntimeError, match="inference"):
        held.add_(0)
    in_use = sim.stats(1).in_use
    value = accelerator_of(device).ordinary(held)
    value.add_(1)
    assert held.tolist() == value.tolist() == [[2, 2]] * 3
    assert value.stride() == held.stride()
    assert sim.stats(1).in_use == in_use


def test_memory_is_what_the_device_counts():
    there = accelerator_of(SIM)
    kept = torch.ones(100, device=SIM)
    torch.ones(50, device=SIM)
    assert there.memory() == (kept.nbytes, kept.nbytes + 200)
    there.reset_peak()
    there.empty_cache()
    there.synchronize()
    assert there.memory() == (kept.nbytes, kept.nbytes)


def test_uncounted_work_leaves_no_trace():
    there = accelerator_of(SIM)
    before = sim.stats(1)
    with there.uncounted():
        torch.ones(100, device=SIM).to("sim:0")
    assert sim.stats(1) == before


def test_what_other_threads_do_beside_uncounted_work_counts():
    before = sim.stats(1)
    kept = []
    with accelerator_of(SIM).uncounted():
        other = threading.Thread(target=lambda: kept.append(torch.ones(100).to(SIM)))
        other.start()
        other.join()
    after = sim.stats(1)
    assert after.bytes_in - before.bytes_in == after.in_use - before.in_use == 400


class _Module:
    """Stands for `torch.cuda`, and writes down what was asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str):
        def call(*args, **kwargs):
            self.calls.append(name)
            return 7

        return call


def test_a_device_module_is_asked_by_the_names_of_torch_cuda(monkeypatch):
    module = _Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    there = StreamAccelerator(torch.device("cuda", 0))
    there.synchronize()
    there.reset_peak()
    there.empty_cache()
    assert there.memory() == (7, 7)
    assert there.side_stream() == there.current_stream() == 7
    assert module.calls == [
        "synchronize", "reset_peak_memory_stats", "empty_cache", "memory_allocated", "max_memory_allocated", "Stream",
        "current_stream",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_the_modules_of_real_devices_have_the_functions_that_are_asked_for(kind):
    module = getattr(torch, kind)
    for name in (
        "Event", "Stream", "current_stream", "empty_cache", "max_memory_allocated", "memory_allocated",
        "reset_peak_memory_stats", "stream", "synchronize",
    ):  # fmt: skip
        assert callable(getattr(module, name)), name


def test_mps_has_no_streams_and_no_peak(monkeypatch):
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 5)
    there = MpsAccelerator(torch.device("mps", 0))
    assert (there.has_streams, there.side_stream(), there.memory()) == (False, None, (5, 5))


@pytest.mark.parametrize("current", [0, 1])
def test_a_device_is_made_the_current_one_where_it_is_not_that(current: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(current_device=lambda: current, device=lambda device: ["made", device])
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    there = StreamAccelerator(torch.device("cuda", 1))
    assert (there.as_current() == ["made", there.device]) is (current == 0)
