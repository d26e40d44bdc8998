"""Pinned memory for weights: in slabs that are not rounded up one by one, within a budget, given back when unused."""

from __future__ import annotations

import logging

import pytest
import torch

from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import StreamAccelerator, accelerator_of
from dovetail.runtime.devices.pinned import SLAB, PinnedMemory

MIB = 2**20


def plain(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8)


def endless(_: int) -> int:
    return 2**60


def test_many_weights_take_little_more_than_their_bytes() -> None:
    memory = PinnedMemory(plain, endless)
    sizes = [3 * MIB + 5, 700 * 1024, 17, 9 * MIB] * 8
    kept = [memory.bytes(size) for size in sizes]
    assert [one.numel() for one in kept if one is not None] == sizes
    assert memory.nbytes <= 2 * sum(sizes)
    places = sorted((one.data_ptr(), one.data_ptr() + one.numel()) for one in kept if one is not None)
    assert all(before[1] <= after[0] for before, after in zip(places, places[1:], strict=False))  # noqa: RUF007
    assert all(one.data_ptr() % 16 == 0 for one in kept if one is not None)


def test_a_slab_is_a_power_of_two_and_no_larger_than_usual_unless_one_weight_is() -> None:
    asked: list[int] = []
    memory = PinnedMemory(lambda count: asked.append(count) or torch.empty(count, dtype=torch.uint8), endless)  # type: ignore[func-returns-value]
    kept = [memory.bytes(SLAB // 2 + 1), memory.bytes(SLAB // 2 - MIB), memory.bytes(SLAB + 1), memory.bytes(SLAB // 2)]
    assert asked == [SLAB, 2 * SLAB]
    assert len(kept) == 4


def test_memory_goes_with_the_last_tensor_in_it() -> None:
    memory = PinnedMemory(plain, endless)
    first, second = memory.bytes(100), memory.bytes(200)
    view = second[:10] if second is not None else None
    assert memory.nbytes == MIB
    del first, second
    assert memory.nbytes == MIB
    del view
    assert memory.nbytes == 0
    assert memory.bytes(10) is not None


def test_each_weight_has_a_storage_of_its_own_which_is_copied_from_as_pytorch_pinned_it() -> None:
    memory = PinnedMemory(plain, endless)
    first, second = memory.bytes(100), memory.bytes(200)
    assert first is not None
    assert second is not None
    second.fill_(7)
    first.untyped_storage().fill_(9)
    assert first.untyped_storage().nbytes() == 100
    assert bool((second == 7).all())
    view = second.view(torch.int16)[3:9:2]
    same = memory.as_pinned(view)
    assert (same.data_ptr(), same.stride(), same.untyped_storage().nbytes()) == (view.data_ptr(), (2,), MIB)
    assert torch.equal(same, view)
    outside = torch.ones(3)
    assert memory.as_pinned(outside) is outside


@pytest.mark.parametrize("way", ["no room", "refused"])
def test_past_the_budget_memory_is_pageable_which_is_said_once(way: str, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(count: int) -> torch.Tensor:
        raise NotImplementedError("no allocator is registered")

    memory = PinnedMemory(plain, lambda _: 10) if way == "no room" else PinnedMemory(refuse, endless)
    with caplog.at_level(logging.WARNING):
        assert memory.bytes(1000) is memory.bytes(2000) is None
    assert len(caplog.records) == 1
    assert "not pinned" in caplog.text
    assert "params_backend" in caplog.text


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (2, 3, 4, 5)])
def test_what_is_pinned_keeps_its_numbers_and_strides_and_is_pinned_once(shape: tuple[int, ...]) -> None:
    sim.enable()
    there = accelerator_of(torch.device("sim", 0))
    value = torch.randn(shape)
    if value.dim() == 4:
        value = value.contiguous(memory_format=torch.channels_last)
    pinned = there.pin(value)
    assert torch.equal(pinned, value)
    assert pinned.stride() == value.stride()
    assert torch.sim.is_pinned(pinned)  # type: ignore[attr-defined]
    assert there.pin(pinned) is pinned


def test_a_device_goes_on_without_pinned_memory_where_another_stands_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a registered private-use backend that has no pinned memory, which PyTorch asks first."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: None)

    def refuse(*_: object, **__: object) -> torch.Tensor:
        raise NotImplementedError("You should register PrivateUse1HooksInterface")

    there = StreamAccelerator(torch.device("cuda", 0))
    monkeypatch.setattr(StreamAccelerator, "_empty_pinned", refuse)
    assert there.empty_on_host((3,), (1,), torch.float32).shape == (3,)
    value = torch.ones(3)
    assert there.pin(value) is value
