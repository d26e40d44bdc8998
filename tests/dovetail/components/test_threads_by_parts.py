"""Several threads over one component that runs by its parts, whose weights lie in the module meanwhile."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from tests.cases import slow_but

from .small_pipeline import WIDTH, Model, Numpy, Pipeline


class Slow(Numpy):
    """A block that takes long enough for threads to meet in it."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.003)
        return super().between(x)


def _in_threads(work: Callable[[], Any], also: Callable[[], None]) -> list[Any]:
    """What three threads get, each of six calls, while the main one does something else."""
    found: list[Any] = []

    def several() -> None:
        for _ in range(6):
            try:
                found.append(work())
            except Exception as error:
                found.append(error)

    threads = [threading.Thread(target=several, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    also()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


@pytest.mark.fifth
@pytest.mark.few(quick=1)
@pytest.mark.parametrize("rests", slow_but(["cpu"], [None, "cpu"]))
@pytest.mark.parametrize("meanwhile", slow_but(["refresh", "release"], ["nothing", "undo", "refresh", "release"]))
def test_threads_get_the_bits_of_eager_whatever_another_one_does(rests: str | None, meanwhile: str) -> None:
    torch.manual_seed(0)
    model = Model(Slow).eval()
    x, twin = torch.randn(2, WIDTH), copy.deepcopy(model)
    with torch.no_grad():
        want = twin(x)
    pipe = Pipeline(model)
    dovetail.compile_pipeline(pipe, "diffusion=sim0&sim1", params_backend=rests)
    pipe(x)

    def also() -> None:
        for _ in range(10 if meanwhile == "release" else 1):
            time.sleep(0.02)
            if meanwhile != "nothing":
                getattr(pipe.dovetail, meanwhile)()

    found = _in_threads(lambda: pipe(x), also)
    assert len(found) == 18
    assert [one for one in found if not isinstance(one, torch.Tensor) or not torch.equal(one, want)] == []
    assert torch.equal(pipe(x), want)
