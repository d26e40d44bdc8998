"""What changes on a module that is small and plain: no library is needed to see it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import dovetail

WIDTH = 8


@dataclass(slots=True)
class Settings:
    scale: float = 1.0


class Net(nn.Module):
    """Blocks between two layers that share their weight, and a result that all kinds of attributes scale."""

    factors: tuple[float, ...] = (1.0, 2.0)
    table: dict[str, float] = {"gain": 1.0}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last.weight = self.first.weight
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("gate", torch.ones(WIDTH))
        self.register_buffer("shift", self.gate)
        self.settings, self.queue = Settings(), deque([1.0])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = torch.tanh(block(x))
        x = self.last(x) * self.gate + self.shift
        return x * self.settings.scale * self.queue[0] * self.factors[1] * self.table["gain"]


class Pipe:
    """What a pipeline has to have."""

    def __init__(self, module: nn.Module) -> None:
        self.transformer = module
        self.components = {"transformer": module}

    @property
    def _execution_device(self) -> torch.device:
        return torch.device("cpu")


def _untied(net: Net) -> None:
    net.last.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


def _untied_buffer(net: Net) -> None:
    net.shift = torch.full((WIDTH,), 5.0)


def _slots(net: Net) -> None:
    net.settings.scale = 3.0


def _queue(net: Net) -> None:
    net.queue[0] = 3.0


def _class_tuple(net: Net) -> None:
    type(net).factors = (1.0, 7.0)


def _class_dict(net: Net) -> None:
    net.table["gain"] = 4.0


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with torch.no_grad():
        yield
    Net.factors = (1.0, 2.0)
    Net.table["gain"] = 1.0


@pytest.mark.parametrize("change", [_untied, _untied_buffer, _slots, _queue, _class_tuple, _class_dict])
def test_what_is_changed_after_a_call_changes_the_next_as_it_changes_eager(change: Callable[[Net], None]) -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, WIDTH)
    component = dovetail.compile_pipeline(Pipe(net), "sim0&sim1").dovetail.components["transformer"]
    before = net(x)
    change(net)
    after = net(x)
    again = net(x)
    programs = len(component.programs)
    component.restore()
    assert torch.equal(after, net(x))
    assert torch.equal(again, after)
    assert not torch.equal(after, before)
    assert programs == 2
