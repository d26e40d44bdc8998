"""Boxes of a value are sent together where they lie together, and else packed and sent one by one, as is planned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.ir.schedule import Copy
from dovetail.compiler.ir.split import is_packed
from dovetail.passes.simulate.memory import simulate
from dovetail.runtime import sim, transport


class Joined(nn.Module):
    """Attention to what is joined of two, whose keys and values lie in two stretches on each device."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture, self.out = nn.Linear(32, 384), nn.Linear(32, 384), nn.Linear(128, 32)

    def forward(self, text: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        q, k, v = torch.cat([self.text(text), self.picture(picture)], 1).unflatten(-1, (3, 2, 64)).unbind(2)
        found = nn.functional.scaled_dot_product_attention(*(one.transpose(1, 2) for one in (q, k, v)))
        return self.out(found.transpose(1, 2).flatten(2))


LAST = torch.channels_last


class Convolved(nn.Module):
    """A convolution that reads what was made to lie with its channels innermost."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.contiguous(memory_format=LAST)))


def test_parts_lie_in_the_memory_format_that_is_asked_for(clean_sims: None) -> None:
    torch.manual_seed(0)
    module, x = Convolved().eval(), torch.randn(1, 16, 64, 64)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", split_mode="spatial")
    assert "memory_format=channels_last" in compiled.source()
    for index in (0, 1):
        sim.reset_peak(index)
    found = compiled(x)
    assert [sim.stats(index).peak for index in (0, 1)] == [one.total for one in simulate(compiled.program).values()]
    assert torch.allclose(found, module(x), atol=1e-5)


def test_what_a_caller_strides_otherwise_than_in_the_trace_takes_what_was_planned(clean_sims: None) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 32, 3, padding=1)).eval()
    module.to(memory_format=LAST)  # type: ignore[call-overload]
    x = torch.randn(1, 32, 64, 64)
    compiled = dovetail.compile(module, (x.contiguous(memory_format=LAST),), backend="sim0&sim1", split_mode="spatial")
    planned = [one.total for one in simulate(compiled.program).values()]
    for given in (x, x.contiguous(memory_format=LAST)):
        for index in (0, 1):
            sim.reset_peak(index)
        found = compiled(given)
        assert torch.allclose(found, module(given), atol=1e-5)
        assert [sim.stats(index).peak for index in (0, 1)] == planned


@pytest.mark.parametrize("pictures", [1, 2])
def test_one_packed_box_is_there_at_a_time(pictures: int, clean_sims: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = Joined().eval()
    args = torch.randn(pictures, 64, 32), torch.randn(pictures, 256, 32)
    compiled = dovetail.compile(module, args, backend="sim0&sim1", split_mode="sequence")
    crossing = [one for one in compiled.schedule.flat() if isinstance(one, Copy) and one.source != one.target]
    several = [one for one in crossing if len(one.landings) > 1]
    assert several
    packed = [
        one for one in several if any(is_packed(one.value.node, one.source, one.target, box) for box in one.landings)
    ]
    sent: list[int] = []
    start_copies = transport.start_copies

    def start(boxes: Sequence[torch.Tensor], *more: object) -> object:
        sent.append(len(boxes))
        return start_copies(boxes, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(transport, "start_copies", start)
    for index in (0, 1):
        sim.reset_peak(index)
    found = compiled(*args)
    assert [sim.stats(index).peak for index in (0, 1)] == [one.total for one in simulate(compiled.program).values()]
    assert torch.allclose(found, module(*args), atol=1e-5)
    assert (max(sent) > 1) == (len(packed) < len(several))
    assert len(sent) == sum(len(one.landings) if one in packed else 1 for one in crossing if one.landings)
