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
