from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dovetail.compiler.checkpoints.index import WeightIndex
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime import sim
from dovetail.runtime.store.program_weights import ProgramWeights

COUNT = 1500


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.fifth
@pytest.mark.usefixtures("eager_threads")
def test_a_thread_may_say_what_comes_next_while_another_fetches(tmp_path: Path) -> None:
    sim.enable()
    tensors = {f"w{index}": torch.ones(1) for index in range(COUNT)}
    save_file(tensors, tmp_path / "m.safetensors")
    device = torch.device("sim", 0)
    weights = [Weight(name, "parameter", (1,), torch.float32) for name in tensors]
    (home,) = Rig.parse("sim0=1GiB").devices
    program: Any = SimpleNamespace(
        name="net", weights={one.name: one for one in weights}, constants={}, devices=(home,), schedule=None,
        home=dict.fromkeys(tensors, home), residency=dict.fromkeys(tensors, Residency.HOST),
        stages=lambda *_: True, weight_nodes=lambda: iter(()),
    )  # fmt: skip
    source = ProgramWeights.of_files(WeightIndex.of_file(tmp_path / "m.safetensors"), program)
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
