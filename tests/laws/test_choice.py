"""What `auto` takes is, by the search, no slower than any mode that is asked for, than none, or than one device."""

from __future__ import annotations

import pytest
import torch

from dovetail.compiler.devices import speeds
from dovetail.compiler.frontend.trace import trace
from dovetail.conventions.request import Request
from dovetail.fitting.by_layers import searched
from dovetail.fitting.decide import Member, TracedCall, budgets_of, loads_of, machine_of
from dovetail.passes.fit.search import SLACK, search
from dovetail.passes.fit.solution import fits
from dovetail.passes.fit.trial import ALONE
from testbed.sharing import slowed
from testbed.zoo.everything import TINY
from tests.cases import drawn

RIGS = {
    "equal": "cuda0=1GiB@RTX 3090,cuda1=1GiB@RTX 3090,cpu=8GiB",
    "well linked": "cuda0=1GiB@L20,cuda1=1GiB@L20,cuda2=1GiB@L20,cpu=8GiB;cuda0-cuda1=20GB/s;cuda1-cuda2=20GB/s",
    "unequal": "cuda0=1GiB@RTX 4090,cuda1=1GiB@RTX 3060,cpu=8GiB",
    "small": "cuda0=0.6@RTX 3090,cuda1=0.6@RTX 3090,cpu=8GiB",
}
"""A size below one is a part of the weights."""

MODES = ("layer", "tensor", "sequence", "batch", "spatial")


@pytest.mark.slow
@pytest.mark.parametrize("name", drawn(TINY, 2))
def test_the_choice_is_the_quickest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, host = speeds.of_card, slowed(speeds.HOST_SPEED, 1e-8, 1e-5)
    monkeypatch.setattr(speeds, "of_card", lambda card: slowed(real(card), 1e-6, 1e-3))
    monkeypatch.setattr(speeds, "HOST_SPEED", host)
    module, call = TINY[name].make(torch.float32)
    program = trace(module, (), call)
    nbytes = sum(weight.nbytes for weight in program.weights.values())
    for rig in RIGS.values():
        text = rig.replace("0.6@", f"{int(0.6 * nbytes)}B@")
        found, alone = {}, None
        for mode in ("auto", *MODES):
            request = Request.parse(rig=text, split_mode=mode, components={"part": "diffusion"})
            loads = loads_of({"part": Member("diffusion", "sampling", nbytes)}, [TracedCall("part", program)], request)
            machine, (budgets, _) = machine_of(request), budgets_of(request)
            _, solution = searched(loads, machine, budgets)
            assert solution is not None
            assert fits(solution, budgets)
            found[mode] = solution.seconds
            if mode == "auto":
                alone = search(loads, machine, budgets, {"part": ALONE})
        assert alone is None or found["auto"] <= alone.seconds * SLACK
        assert found["auto"] <= 1.02 * min(found.values()), found
