"""What somebody hangs on a weight, and the forward reads of it, counts as it does in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.cache.key import Key, key_of

from .small_pipeline import WIDTH, Block, Model, Numpy, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

X = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)


def _factor(block: Block) -> Any:
    return getattr(block.up.weight, "factor", 1.0) * getattr(block.scale, "factor", 1.0)


class Scaled(Block):
    """Multiplies by what hangs on its weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * _factor(self)


class ScaledInNumpy(Numpy):
    """The same, which no trace follows from end to end."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * _factor(self)


def _model(kind: type[Block]) -> Any:
    torch.manual_seed(0)
    model = Model(kind).eval()
    model.blocks = model.blocks[:3]
    return model


def _hang(model: Any, value: Any = 3.0) -> None:
    model.blocks[1].up.weight.factor = value


def _hang_another(model: Any) -> None:
    model.blocks[2].scale.factor = 0.5


def _remove(model: Any) -> None:
    del model.blocks[1].up.weight.factor


def _hang_more(model: Any) -> None:
    _hang(model, 5.0)


def _hang_tensor(model: Any) -> None:
    _hang(model, torch.tensor(2.0))


def _write(model: Any) -> None:
    model.blocks[1].up.weight.factor.mul_(2)


STEPS: tuple[Callable[[Any], None], ...] = (_hang_another, _hang_more, _remove, _hang_tensor, _write)


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "options"), [(Scaled, {"params_backend": "cpu"}), (ScaledInNumpy, {})])
def test_attributes_that_are_put_on_weights_changed_and_removed_count_in_the_next_call(
    kind: type[Block], options: dict[str, str]
) -> None:
    eager = _model(kind)
    eager.blocks[0].up.weight.factor = 2.0
    pipe = Pipeline(copy.deepcopy(eager))
    pipe.unet.blocks[0].up.weight.factor = 2.0  # a deep copy has no attributes of weights
    dovetail.compile_pipeline(pipe, "sim0&sim1", **options)
    with torch.no_grad():
        assert torch.equal(pipe(X), eager(X))
        for step in STEPS:
            for model in (pipe.unet, eager):
                step(model)
            assert torch.equal(pipe(X), eager(X)), step.__name__


@pytest.mark.fifth
def test_an_attribute_that_comes_back_needs_no_other_program() -> None:
    model = _model(Scaled)
    pipe = dovetail.compile_pipeline(Pipeline(model), "sim0")
    with torch.no_grad():
        first = pipe(X)
        _hang(model)
        pipe(X)
        _remove(model)
        assert torch.equal(pipe(X), first)
    assert len(pipe.dovetail.programs["unet"]) == 2


def _key(change: Callable[[Any], None]) -> Key | None:
    model = _model(Scaled)
    change(model)
    return key_of(model, (X,), {}, None, "cpu")


def _mark(model: Any) -> None:
    for weight in model.parameters():
        weight._is_hf_initialized = True


def test_the_key_of_a_trace_has_what_hangs_on_weights_but_no_marks_of_libraries() -> None:
    plain, hung, more = _key(lambda model: None), _key(_hang), _key(_hang_more)
    assert plain is not None
    assert len({plain, hung, more}) == 3
    assert (_key(_mark), _key(_hang)) == (plain, hung)
