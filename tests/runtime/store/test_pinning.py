"""Weights of somebody else's module in pinned memory: only where nobody else sees their memory, and at once."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
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

from .test_resting import eager_threads as eager_threads

sim.enable()
SIM0 = torch.device("sim", 0)


def pinned(*tensors: torch.Tensor) -> bool:
    """Has tensors pinned; says whether all of them are."""
    left, _ = pin_in_place(tensors, accelerator_of(SIM0))
    assert all(is_pinned(one) for one in tensors if not any(one is other for other in left))
    return not left


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape or (8, 8)))


@given(
    st.sampled_from([(), (0,), (1,), (3, 5), (2, 3, 4, 5)]),
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
    left, _ = pin_in_place(weights, accelerator_of(SIM0))
    thread.join()
    assert all(torch.equal(one, was + 1) for one, was in zip(weights, before, strict=True))
    assert len(left) < len(weights)


@pytest.mark.usefixtures("eager_threads")
def test_another_thread_computes_with_it_meanwhile_and_sees_one_number() -> None:
    weights = [parameter(32, 32) for _ in range(40)]
    x = torch.randn(4, 32)
    expected = [nn.functional.linear(x, one.detach().clone()) for one in weights]
    over, wrong = threading.Event(), []

    def compute() -> None:
        with torch.no_grad():
            while not over.is_set():
                for one, answer in zip(weights, expected, strict=True):
                    if not torch.equal(nn.functional.linear(x, one), answer):
                        wrong.append(one)

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        for _ in range(3):
            left, _ = pin_in_place(weights, accelerator_of(SIM0))
    finally:
        over.set()
        thread.join()
    assert not wrong
    assert pinned(*weights)
    assert len(left) < len(weights)
