from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from dovetail.compiler.ir.program import Program, Weight
from dovetail.runtime import sim
from dovetail.runtime.store.resting import RestingWeights
from dovetail.runtime.store.source import WeightSource

COUNT = 1500


class Ones(WeightSource):
    """Has one number for every weight."""

    def missing(self, program: Program) -> list[str]:
        return []

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        return torch.ones(1)


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_a_thread_may_say_what_comes_next_while_another_fetches() -> None:
    sim.enable()
    source, device = RestingWeights(Ones()), torch.device("sim", 0)
    weights = [Weight(f"w{index}", "parameter", (1,), torch.float32) for index in range(COUNT)]
    over, problems = threading.Event(), []

    def tell() -> None:
        try:
            while not over.is_set():
                source.advise(weights[:1])
        except RuntimeError as error:
            problems.append(error)

    teller = threading.Thread(target=tell)
    teller.start()
    for weight in weights:
        source(weight, device)
    over.set()
    teller.join()
    assert not problems
