"""Law 7: the peak that is predicted from a schedule is the peak that is measured, and no budget is exceeded."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import dovetail
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.ir.schedule import Lifetime, Load
from tests.cases import examples
from tests.measured import budget, least, measured, predicted

from .graphs import same_bits
from .modules import ModuleCase, module_cases

few = examples(3, 4)


def amounts(text: str) -> dict[str, int]:
    pairs = (item.split("=") for item in text.split(","))
    return {name: int(size.removesuffix("B")) for name, size in pairs}


@few
@given(module_cases(), st.sampled_from([0.0, 0.3, 0.6, 1.0]), st.sampled_from([None, "cpu"]))
def test_the_predicted_peak_is_the_measured_one_and_no_budget_is_exceeded(
    case: ModuleCase, part: float, rests: str | None
) -> None:
    gc.collect()
    needs: dict[str, int] = {}
    options = {"backend": case.backend, "rig": case.rig, "tensor_split": case.shares, "params_backend": rests}
    roomy = dovetail.compile(case.module, case.args, case.kwargs, callbacks=[least(needs)], **options)
    granted = budget(needs, predicted(roomy.program), part)
    if not granted:
        return
    module = dovetail.compile(case.module, case.args, case.kwargs, max_vram=granted, **options)
    expected = predicted(module.program)
    peaks = measured(module, case.args, case.kwargs)
    assert peaks == expected
    assert all(peaks[name] <= amount for name, amount in amounts(granted).items())
    with torch.no_grad():
        found = tree_leaves(module(*case.args, **case.kwargs))
    assert all(map(same_bits, found, tree_leaves(case.expected())))
    module.unload()


VIEWS = {
    "every third column": lambda big: big[:, ::3],
    "the first columns": lambda big: big[:, :64],
    "every other row": lambda big: big[::2, :64],
    "transposed": lambda big: big[:64, :64].t(),
    "one row for all": lambda big: big[:1, :64].expand(32, 64),
    "no row": lambda big: big[:0, :64],
    "one number": lambda big: big[:1, 1:65],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_an_input_takes_its_extent_with_the_gaps_of_a_view_and_without_what_repeats(view: Callable[..., Any]) -> None:
    x = view(torch.randn(64, 192))
    module = dovetail.compile(torch.nn.Linear(64, 8).eval(), (x,), backend="sim0", rig="sim0=1GiB")
    assert measured(module, (x,), {}) == predicted(module.program)


def test_within_a_budget_as_many_weights_stay_as_fit_and_the_others_come_through_slots_ahead() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12))).eval()
    x, layer = torch.ones(4, 256), 4 * (256 * 256 + 256)
    granted = f"sim0={6 * layer + 16 * 1024}B"
    module = dovetail.compile(layers, (x,), backend="sim0", params_backend="cpu", max_vram=granted)
    loads = [one for one in module.schedule if isinstance(one, Load)]
    stay = [name for load in loads if load.lifetime is Lifetime.PROGRAM for name in load.weights]
    slots = {load.slot for load in loads if load.lifetime is Lifetime.STAGE}
    assert len(stay) == 2 * 4
    assert len(slots) == 2
    first = next(index for index, one in enumerate(module.schedule) if type(one).__name__ == "Run")
    ahead = [one for one in list(module.schedule)[:first] if isinstance(one, Load) and one.slot >= 0]
    assert len(ahead) == 2, "both slots are being filled before anything runs"
    assert measured(module, (x,), {}) == predicted(module.program)


def test_what_stays_is_spread_evenly_and_begins_with_the_first_block() -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(12))).eval()
    layer = 4 * (256 * 256 + 256)
    granted = f"sim0={8 * layer + 16 * 1024}B"
    module = dovetail.compile(layers, (torch.ones(4, 256),), backend="sim0", params_backend="cpu", max_vram=granted)
    (held,) = [one for one in module.schedule if isinstance(one, Load) and one.lifetime is Lifetime.PROGRAM]
    stays = sorted({int(name.partition(".")[0]) for name in held.weights})
    assert stays[0] == 0
    assert max(later - earlier for earlier, later in pairwise(stays)) <= 2


@pytest.mark.fifth
@pytest.mark.parametrize("rests", [None, "cpu"])
def test_a_byte_less_than_the_least_is_refused_before_anything_is_loaded(rests: str | None) -> None:
    layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).eval()
    needs: dict[str, int] = {}
    options = {"backend": "sim0", "params_backend": rests, "rig": "sim0=1GiB"}
    dovetail.compile(layers, (torch.ones(4, 256),), callbacks=[least(needs)], **options)
    just = dovetail.compile(layers, (torch.ones(4, 256),), max_vram=f"sim0={needs['sim0']}B", **options)
    assert measured(just, (torch.ones(4, 256),), {}) == {"sim0": needs["sim0"]}
    with pytest.raises(DoesNotFitError):
        dovetail.compile(layers, (torch.ones(4, 256),), max_vram=f"sim0={needs['sim0'] - 1}B", **options)
