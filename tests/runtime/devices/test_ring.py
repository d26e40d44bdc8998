"""The ring: what is sent is what was filled in, on devices that copy late, and an error leaves no lock taken."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from dovetail.compiler.ir.weight import Weight
from dovetail.runtime import sim
from dovetail.runtime.devices.accelerator import MpsAccelerator, SimAccelerator, accelerator_of
from dovetail.runtime.devices.ring import Ring
from dovetail.runtime.devices.transfers import moved
from dovetail.runtime.store.origin import TensorOrigin

sim.enable()
pytestmark = pytest.mark.usefixtures("sim_devices")
SIM0 = torch.device("sim", 0)
PIECES, WIDTH = 8, 8
WEIGHT = Weight("w", "parameter", (4,), torch.float32)


class LateTarget:
    """Stands for a tensor of a device that encodes a non-blocking copy now and carries it out later, as MPS does."""

    dtype = torch.float32

    def __init__(self, data: torch.Tensor, pending: list[Callable[[], object]]) -> None:
        self.data = data
        self._pending = pending

    def __getitem__(self, part: slice) -> LateTarget:
        return LateTarget(self.data[part], self._pending)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> LateTarget:
        if non_blocking:
            self._pending.append(lambda: self.data.copy_(source))
        else:
            self.data.copy_(source)
        return self


def send_in_pieces(ring: Ring, source: torch.Tensor, target: torch.Tensor | LateTarget) -> None:
    with ring:
        for start in range(0, PIECES * WIDTH, WIDTH):
            raw = ring.next(4 * WIDTH)
            raw.copy_(source[start : start + WIDTH].view(torch.uint8))
            ring.send(raw.view(torch.float32), target[start : start + WIDTH])  # type: ignore[arg-type]


def test_a_device_without_events_gets_its_bytes_before_they_are_overwritten() -> None:
    pending: list[Callable[[], object]] = []
    source, target = torch.randn(PIECES * WIDTH), LateTarget(torch.zeros(PIECES * WIDTH), pending)
    send_in_pieces(Ring(MpsAccelerator(torch.device("mps", 0))), source, target)
    for copy in pending:
        copy()
    assert torch.equal(target.data, source)


def test_a_weight_waits_for_a_device_without_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its source may die at once."""
    monkeypatch.setattr(SimAccelerator, "has_streams", False)
    source = accelerator_of(SIM0).empty_on_host((4,), (1,), torch.float32).fill_(1)
    arrived, also = TensorOrigin(source).read(WEIGHT, SIM0), moved(source, SIM0)
    source.zero_()
    assert arrived.tolist() == also.tolist() == [1] * 4


def test_a_weight_in_pinned_memory_does_not_block_the_host() -> None:
    source = accelerator_of(SIM0).empty_on_host((4,), (1,), torch.float32).fill_(1)
    arrived = TensorOrigin(source).read(WEIGHT, SIM0)
    source.fill_(2)  # which is too early, and so shows that the copy was still to come
    assert arrived.tolist() == [2] * 4


def test_what_goes_through_the_ring_arrives_whole() -> None:
    source, target = torch.randn(PIECES * WIDTH), torch.empty(PIECES * WIDTH, device=SIM0)
    send_in_pieces(Ring(accelerator_of(SIM0)), source, target)
    assert torch.equal(target.cpu(), source)


def test_a_ring_that_does_not_wait_for_its_memory_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def hurry(self: Ring, count: int) -> torch.Tensor:
        self._slots.reverse()
        return self._slots[0].bytes("raw", count)

    monkeypatch.setattr(Ring, "next", hurry)
    source, target = torch.randn(PIECES * WIDTH), torch.empty(PIECES * WIDTH, device=SIM0)
    send_in_pieces(Ring(accelerator_of(SIM0)), source, target)
    assert not torch.equal(target.cpu(), source)


@pytest.mark.parametrize("method", ["side_stream", "record", "wait", "current_stream"])
def test_an_error_while_a_ring_is_entered_or_left_leaves_its_lock_free(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    ring, target = Ring(accelerator_of(SIM0)), torch.empty(PIECES * WIDTH, device=SIM0)

    def fail(*_: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    for entered in (False, True):
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="illegal"):
            if not entered:
                patched.setattr(SimAccelerator, method, fail)
            with ring:
                patched.setattr(SimAccelerator, method if method != "side_stream" else "record", fail)
        source = torch.randn(PIECES * WIDTH)
        thread = threading.Thread(target=send_in_pieces, args=(ring, source, target), daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        sim.synchronize(0)
        assert torch.equal(target.cpu(), source)
