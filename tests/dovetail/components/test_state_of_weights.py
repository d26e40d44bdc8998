"""Which weights require gradients, and which is where, are part of what a program answers for."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import dovetail
from dovetail.compiler.devices.device import Device
from dovetail.components.weights.module_view import ModuleView
from dovetail.components.weights.weight_stamp import WeightStamp
from dovetail.runtime import sim

from .small_pipeline import WIDTH, Block, Model, Numpy, Pipeline


def _frozen(model: Any) -> None:
    model.requires_grad_(False)


def _one_frozen(model: Any) -> None:
    model.blocks[2].up.weight.requires_grad_(False)


def _swapped(model: Any) -> None:
    one, other = model.blocks[0].up, model.blocks[3].up
    one.weight, other.weight = other.weight, one.weight


def _swapped_within_a_block(model: Any) -> None:
    one, other = model.first, model.last
    one.weight, other.weight = other.weight, one.weight


def _transposed(model: Any) -> None:
    model.first.weight.data = model.first.weight.data.t()


def _one_number_for_all(model: Any) -> None:
    model.blocks[1].scale.data = model.blocks[1].scale.data[:1].expand(WIDTH)


def _moved_on(model: Any) -> None:
    """Other numbers of the same storage."""
    scale = model.blocks[1].scale
    scale.data = torch.cat([scale.data, -scale.data])[:WIDTH]
    scale.data = torch.as_strided(scale.data, (WIDTH,), (1,), WIDTH)


def _swapped_and_back(model: Any) -> None:
    _swapped(model)
    _swapped(model)


READ_OTHERWISE = (_transposed, _one_number_for_all, _moved_on)
CHANGES = (_frozen, _one_frozen, _swapped, _swapped_within_a_block, _swapped_and_back, *READ_OTHERWISE)
WAYS: tuple[tuple[dict[str, Any], Any], ...] = (
    ({"params_backend": "cpu"}, Block),
    ({"split_mode": "row"}, Block),
    ({}, Numpy),
)


@pytest.mark.few(quick=10)
@pytest.mark.parametrize(
    ("change", "options", "kind"),
    [
        *((one, {}, Block) for one in CHANGES),
        *((one, *way) for one in (_frozen, _swapped, *READ_OTHERWISE) for way in WAYS),
    ],
)
def test_what_is_changed_on_weights_changes_the_next_call_as_it_changes_eager(
    change: Callable[[Any], None], options: dict[str, Any], kind: type[Block]
) -> None:
    torch.manual_seed(0)
    model = Model(kind).eval()
    pipe, x = Pipeline(copy.deepcopy(model)), torch.randn(2, 5, WIDTH)
    dovetail.compile_pipeline(pipe, "sim0&sim1", **options)
    pipe(x)
    change(pipe.unet)
    change(model)
    with torch.no_grad():
        want = model(x)
    assert torch.equal(pipe(x), want)
    pipe.dovetail.undo()
    assert torch.equal(pipe(x), want)


def test_a_program_takes_over_which_weights_require_gradients_and_none_is_compiled_for_that() -> None:
    torch.manual_seed(0)
    pipe, x = Pipeline(Model().eval()), torch.randn(2, 5, WIDTH)
    dovetail.compile_pipeline(pipe, "sim0&sim1")
    for wanted in (True, False, True, False):
        pipe.unet.requires_grad_(wanted)
        pipe(x)
        (program,) = pipe.dovetail.programs["unet"]
        assert {one.requires_grad for one in program._executor._held.values()} == {wanted}


def test_a_weight_that_was_replaced_is_new_also_where_its_data_lies_where_the_old_data_was() -> None:
    model, memory = Model().eval(), numpy.ones(WIDTH, numpy.float32)
    model.shift.data = torch.from_numpy(memory)
    stamp, modules = WeightStamp(ModuleView(model).store), list(model.modules())
    assert not stamp.is_changed(model, modules)
    for _ in range(2):
        model.shift.data = torch.zeros(WIDTH)
        model.shift.data = torch.from_numpy(memory)
        assert stamp.is_changed(model, modules)
        assert not stamp.is_changed(model, modules)


def test_an_error_while_weights_are_put_in_place_for_others_leaves_all_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Model().eval()
    sim.enable()
    view = ModuleView(model)
    for one in view.weights()[:4]:
        view.store.place(one, Device("sim", 0))
    before = [one.tensor for one in view.weights()]
    original, calls = view.store.bring, 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise MemoryError("in between")
        return original(*args)

    monkeypatch.setattr(view.store, "bring", failing)
    with pytest.raises(MemoryError, match="in between"), view.on_file_terms():
        raise AssertionError("it is not reached")
    assert all(map(operator.is_, [one.tensor for one in view.weights()], before))
    assert all(map(operator.is_, before, model.state_dict(keep_vars=True).values()))
