"""Weights of somebody else's module in pinned memory: only where nobody else sees their memory, and at once."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.sim.copies import is_pinned
from dovetail.runtime.store.pinning import pin_in_place
from tests.threads import beside

from .test_resting import eager_threads as eager_threads

sim.enable()
pytestmark = pytest.mark.usefixtures("known_threads")
SIM0 = torch.device("sim", 0)


def pinned(*tensors: torch.Tensor) -> bool:
    """Has tensors pinned; says whether all of them are."""
    left, _ = pin_in_place(tensors, accelerator_of(SIM0))
    assert all(is_pinned(one) for one in tensors if not any(one is other for other in left))
    return not left


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape or (8, 8)))


@given(
    st.sampled_from([(), (1,), (3, 5), (2, 3, 4, 5)]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    st.booleans(),
    st.booleans(),
)
def test_what_moves_is_the_same_object_with_the_same_bits_and_form(
    shape: tuple[int, ...], dtype: torch.dtype, wants: bool, last: bool
) -> None:
    data = torch.randn(shape).to(dtype)
    data = data.contiguous(memory_format=torch.channels_last) if last and len(shape) == 4 else data
    weight = nn.Parameter(data.clone(), requires_grad=wants)
    weight.note = "mine"  # type: ignore[attr-defined]
    before, strides, reference = weight.detach().clone(), weight.stride(), weakref.ref(weight)
    assert pinned(weight)
    assert torch.equal(weight, before)
    assert (weight.stride(), weight.requires_grad, weight.dtype) == (strides, wants, dtype)
    assert type(weight) is nn.Parameter
    assert weight.note == "mine"  # type: ignore[attr-defined]
    assert reference() is weight
    assert pinned(weight)


def numpy_view(weight: nn.Parameter) -> Any:
    return weight.detach().numpy()


def graph(weight: nn.Parameter) -> Any:
    return weight * 2


def hook(weight: nn.Parameter) -> Any:
    return weight.register_hook(lambda grad: grad)


def gradient(weight: nn.Parameter) -> Any:
    weight.grad = torch.ones_like(weight)


WAYS: dict[str, Callable[[nn.Parameter], Any]] = {
    "detach": lambda weight: weight.detach(),
    "data": lambda weight: weight.data,
    "view": lambda weight: weight.detach()[1:],
    "numpy": numpy_view,
    "storage": lambda weight: weight.untyped_storage(),
    "dlpack": lambda weight: torch.utils.dlpack.to_dlpack(weight.detach()),
    "graph": graph,
    "hook": hook,
    "gradient": gradient,
    "shared": lambda weight: nn.Module.share_memory(nn.ParameterList([weight])),
    "sent": lambda weight: ForkingPickler.dumps(weight.detach()),
}


@pytest.mark.parametrize("way", WAYS)
def test_memory_that_somebody_else_sees_stays(way: str) -> None:
    weight = parameter()
    kept = WAYS[way](weight)
    address = weight.data_ptr()
    assert not pinned(weight)
    assert weight.data_ptr() == address
    if way == "sent":
        resource_sharer.stop()  # a thread of its own
    if isinstance(kept, torch.Tensor) and way in ("detach", "data"):
        with torch.no_grad():
            weight.fill_(3)
        assert bool((kept == 3).all())


def test_what_is_over_memory_of_others_stays() -> None:
    import numpy as np

    array = np.zeros(8, dtype=np.float32)
    flat = torch.randn(16)
    one, other = nn.Parameter(flat[:8]), nn.Parameter(flat[8:])
    del flat
    with torch.inference_mode():
        unnoted = nn.Parameter(torch.ones(3))
    others = [nn.Parameter(torch.from_numpy(array)), one, other, unnoted, torch.ones(4, 4)[::2], torch.ones(3).to(SIM0)]
    assert [pinned(one) for one in others] == [False] * len(others)


def test_what_there_is_no_room_for_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    there = accelerator_of(SIM0)
    monkeypatch.setattr(type(there), "empty_pinned_like", lambda *_: None)
    weight = parameter()
    address = weight.data_ptr()
    assert not pinned(weight)
    assert weight.data_ptr() == address


def test_what_is_pinned_is_trained_copied_and_sent_as_ever() -> None:
    model = nn.Linear(4, 4)
    twin = nn.Linear(4, 4)
    twin.load_state_dict(model.state_dict())
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
    assert pinned(*model.parameters())
    for one, optimizer in zip((model, twin), optimizers, strict=True):
        one(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert torch.equal(model.weight, twin.weight)
    model.share_memory()
    assert torch.equal(model.weight, twin.weight)


@pytest.mark.usefixtures("eager_threads")
@pytest.mark.parametrize("way", ["add_", "data"])
def test_no_write_of_another_thread_is_lost(way: str) -> None:
    weights = [parameter(64, 64) for _ in range(150)]
    before = [one.detach().clone() for one in weights]

    def write() -> None:
        with torch.no_grad():
            for one in weights:
                (one if way == "add_" else one.data).add_(1)

    thread = threading.Thread(target=write)
    thread.start()
    pin_in_place(weights, accelerator_of(SIM0))
    thread.join()
    assert all(torch.equal(one, was + 1) for one, was in zip(weights, before, strict=True))
    assert pinned(*weights)


@pytest.mark.usefixtures("eager_threads")
def test_another_thread_computes_with_it_meanwhile_and_sees_one_number() -> None:
    weights = [parameter(32, 32) for _ in range(40)]
    x = torch.randn(4, 32)
    expected = [nn.functional.linear(x, one.detach().clone()) for one in weights]
    wrong = []

    def compute(over: threading.Event) -> None:
        with torch.no_grad():
            while not over.is_set():
                for one, answer in zip(weights, expected, strict=True):
                    if not torch.equal(nn.functional.linear(x, one), answer):
                        wrong.append(one)

    with beside(compute):
        for _ in range(3):
            left, _ = pin_in_place(weights, accelerator_of(SIM0))
            assert len(left) == len(weights)
    assert not wrong
    assert pinned(*weights)


def test_a_method_that_another_thread_runs_on_a_weight_keeps_its_memory() -> None:
    weight = nn.Parameter(torch.ones(1000, 1000), requires_grad=False)

    def work(over: threading.Event) -> None:
        while not over.is_set():
            weight.exp()

    with beside(work):
        for _ in range(20):
            assert not pinned(weight)


class Monitor(threading.Thread):
    """As tqdm's."""


@pytest.mark.parametrize(
    ("name", "moves"), [("dovetail-lane-cuda:0", True), ("dovetail painter 0", False), ("m", False)]
)
def test_nothing_moves_beside_threads_but_those_that_work_on_no_weight(name: str, moves: bool) -> None:
    weight = parameter()
    with beside(threading.Event.wait, name):
        assert pinned(weight) == moves
    assert pinned(weight)


def test_the_monitor_of_bars_is_told_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(TMonitor=Monitor))
    with beside(threading.Event.wait, kind=Monitor):
        assert pinned(parameter())


@pytest.mark.parametrize("collects", [True, False])
def test_no_callback_of_the_collector_comes_between(collects: bool) -> None:
    wrong, kept = [], []
    threshold = gc.get_threshold()

    def look(phase: str, _: Any) -> None:
        if phase == "start":
            kept.append(weight.detach())

    gc.callbacks.append(look)
    try:
        for _ in range(50):
            weight = parameter()
            kept.clear()
            gc.set_threshold(1)
            gc.enable() if collects else gc.disable()
            pin_in_place([weight], accelerator_of(SIM0))
            assert gc.isenabled() == collects
            gc.set_threshold(*threshold)
            wrong += [one for one in kept if one.data_ptr() != weight.data_ptr()]
    finally:
        gc.callbacks.remove(look)
        gc.set_threshold(*threshold)
        gc.enable()
    assert not wrong


def test_what_is_empty_is_left_alone_and_is_no_weight_that_is_slow() -> None:
    empty = nn.Parameter(torch.empty(0, 4))
    assert pin_in_place([parameter(), empty], accelerator_of(SIM0))[0] == []
    assert empty.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("wants", [True, False])
def test_a_tensor_that_is_no_parameter_is_trained_as_before(wants: bool) -> None:
    tensor = torch.ones(4, 4, requires_grad=wants)
    assert pinned(tensor)
    assert (tensor.requires_grad, tensor.is_leaf, type(tensor)) == (wants, True, torch.Tensor)
    if wants:
        (tensor * 2).sum().backward()
        assert bool((tensor.grad == 2).all())
