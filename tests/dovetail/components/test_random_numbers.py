"""A forward that draws by generators of Python or numpy draws at each call what eager draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from random import uniform

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail

pytestmark = pytest.mark.usefixtures("clean_sims")

LOT, GENERATOR = random.Random(3), np.random.default_rng(3)


def _seed_all() -> None:
    random.seed(5)
    np.random.seed(5)
    LOT.seed(3)
    Scaled.lot.seed(4)
    GENERATOR.bit_generator.state = np.random.default_rng(3).bit_generator.state


class Scaled(nn.Module):
    """A layer whose result is scaled by a number that is drawn."""

    lot = random.Random(4)

    def __init__(self, draw: Callable[[Scaled], float]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 4), draw
        self.own, self.array, self.state = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)

    def forward(self, x: Tensor) -> Tensor:
        """A draw a call."""
        return torch.as_tensor(self.layer(x) * self.draw(self))


class Drops(nn.Module):
    """Leaves a layer out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """A draw a call."""
        x = self.first(x)
        return torch.as_tensor(self.second(x) if random.random() < 0.7 else x)


WAYS: dict[str, Callable[[Scaled], float]] = {
    "the module random": lambda _: random.random(),
    "a function of the module random": lambda _: uniform(0, 1),
    "numpy.random": lambda _: np.random.rand(),
    "a Random of its own": lambda one: one.own.random(),
    "a Generator of its own": lambda one: float(one.array.random()),
    "a RandomState of its own": lambda one: one.state.rand(),
    "a Random of its class": lambda one: one.lot.gauss(0, 1),
    "a Random as a global": lambda _: LOT.random(),
    "a Generator as a global": lambda _: float(GENERATOR.random()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_each_call_draws_what_eagers_draws(way: str, backend: str) -> None:
    _check(lambda: nn.Sequential(nn.Linear(4, 4), Scaled(WAYS[way]), nn.Linear(4, 4)), backend)


def test_a_layer_that_is_left_out_at_random_is_left_out_when_it_is_in_eager() -> None:
    _check(Drops, "sim0&sim1")


def test_numbers_that_others_draw_during_a_trace_are_not_drawn_again() -> None:
    drawn: list[float] = []

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not drawn:  # as another thread may at this moment
                drawn.append(random.random())
            return super().forward(x)

    random.seed(5)
    before, x = random.getstate(), torch.randn(2, 4)
    compiled = dovetail.compile(Watched(4, 4).eval(), (x,), backend="sim0")
    assert isinstance(compiled, dovetail.CompiledModule)
    assert random.getstate() != before


def _check(make: Callable[[], nn.Module], backend: str) -> None:
    torch.manual_seed(0)
    eager = make().eval()
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 4)
    with torch.no_grad():
        _seed_all()
        expected = [eager(x) for _ in range(6)]
        _seed_all()
        compiled = dovetail.compile(model, (x,), backend=backend)
        assert all(torch.equal(compiled(x), one) for one in expected)
    assert len({one.sum().item() for one in expected}) > 1
