"""A forward that draws by generators of its own, of Python or numpy, or sets a seed, does what it does in eager."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from random import uniform

import numpy as np
import pytest
import torch
from torch import Tensor, manual_seed, nn

import dovetail
from dovetail.compiler.errors import SideEffectError
from dovetail.compiler.frontend.trace import trace

from .small_pipeline import Block, compiled_pair

pytestmark = pytest.mark.usefixtures("clean_sims")

LOT, GENERATOR, OF_TORCH = random.Random(3), np.random.default_rng(3), torch.Generator()


def _seed_all() -> None:
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    OF_TORCH.manual_seed(3)
    LOT.seed(3)
    Scaled.lot.seed(4)
    GENERATOR.bit_generator.state = np.random.default_rng(3).bit_generator.state


class Scaled(nn.Module):
    """A layer whose result is scaled by a number that is drawn."""

    lot = random.Random(4)

    def __init__(self, draw: Callable[[Scaled], float | Tensor]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(4, 4), draw
        self.own, self.array, self.state = random.Random(3), np.random.default_rng(3), np.random.RandomState(3)
        self.of_torch = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        """A draw a call."""
        drawn = self.draw(self)
        return torch.as_tensor(self.layer(x) * (drawn.to(x.device) if isinstance(drawn, Tensor) else drawn))


class Drops(nn.Module):
    """Leaves a layer out at random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """A draw a call."""
        x = self.first(x)
        return torch.as_tensor(self.second(x) if random.random() < 0.7 else x)


WAYS: dict[str, Callable[[Scaled], float | Tensor]] = {
    "the module random": lambda _: random.random(),
    "a function of the module random": lambda _: uniform(0, 1),
    "numpy.random": lambda _: np.random.rand(),
    "a Random of its own": lambda one: one.own.random(),
    "a Generator of its own": lambda one: float(one.array.random()),
    "a RandomState of its own": lambda one: one.state.rand(),
    "a Random of its class": lambda one: one.lot.gauss(0, 1),
    "a Random as a global": lambda _: LOT.random(),
    "a Generator as a global": lambda _: float(GENERATOR.random()),
    "a generator of PyTorch of its own": lambda one: torch.rand(4, generator=one.of_torch),
    "a generator of PyTorch as a global": lambda _: torch.rand(4, generator=OF_TORCH),
    "PyTorch's own": lambda _: torch.rand(4),
    "a seed": lambda _: torch.rand(4, generator=torch.manual_seed(5)) + torch.rand(4),
    "a seed by another name": lambda _: _after(manual_seed(5), torch.rand(4)),
    "a seed for a while": lambda _: _forked() + torch.rand(4),
}


def _after(_: object, value: Tensor) -> Tensor:
    return value


def _forked() -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return torch.rand(4)


@pytest.mark.fifth
@pytest.mark.few(12)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_each_call_draws_what_eagers_draws(way: str, backend: str) -> None:
    _check(lambda: nn.Sequential(nn.Linear(4, 4), Scaled(WAYS[way]), nn.Linear(4, 4)), backend)


def test_a_layer_that_is_left_out_at_random_is_left_out_when_it_is_in_eager() -> None:
    _check(Drops, "sim0&sim1")


@pytest.mark.parametrize("counts", [False, True])
def test_what_other_threads_draw_meanwhile_they_do_not_draw_again(counts: bool) -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.count = nn.Linear(4, 4), nn.Linear(4, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.count += counts
            return torch.as_tensor(self.second(self.first(x)))

    drawn, is_over = list[float](), threading.Event()

    def draw() -> None:
        while not is_over.is_set():
            drawn.append(random.random())
            is_over.wait(0.0002)

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        trace(Plain().eval(), (torch.randn(2, 4),))
        is_refused = False
    except SideEffectError:
        is_refused = True
    finally:
        is_over.set()
        thread.join()
    assert is_refused is counts
    assert len(set(drawn)) == len(drawn) > 1


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "way", ["the module random", "a generator of PyTorch of its own", "a seed", "a seed for a while"]
)
def test_pictures_too(way: str) -> None:
    class Drawn(Block):
        def __init__(self) -> None:
            super().__init__()
            self.scaled = Scaled(WAYS[way])

        def between(self, x: Tensor) -> Tensor:
            return x * self.scaled(x[..., :4]).sum()

    model, pipe, x = compiled_pair(Drawn)
    with torch.no_grad():
        _seed_all()
        expected = [*(model(x) for _ in range(3)), torch.rand(1)]
        _seed_all()
        pipe.dovetail.plan(x)
        assert all(torch.equal(pipe(x).cpu(), one) for one in expected[:3])
    assert torch.equal(torch.rand(1), expected[3])


def _check(make: Callable[[], nn.Module], backend: str) -> None:
    torch.manual_seed(0)
    eager = make().eval()
    torch.manual_seed(0)
    model, x = make().eval(), torch.randn(2, 4)
    with torch.no_grad():
        _seed_all()
        expected, after = [eager(x) for _ in range(6)], torch.rand(1)
        _seed_all()
        compiled = dovetail.compile(model, (x,), backend=backend)
        assert all(torch.equal(compiled(x), one) for one in expected)
    assert torch.equal(torch.rand(1), after)
