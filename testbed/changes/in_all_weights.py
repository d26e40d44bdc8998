"""Writes into all weights of a component, and by several steps: averages, optimizers, what was kept over a picture."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from diffusers.training_utils import EMAModel
from torch import nn

from .change import add, change, nothing
from .in_weights import drawn, layer, replace_a_parameter, weight, written
from .models import FLUX

EVERY, KEPT = "all", "kept over a picture"


def _parameters(pipe: Any) -> Iterable[Any]:
    return pipe.transformer.parameters()  # type: ignore[no-any-return]


@change(EVERY, FLUX)
def scale_all_data(pipe: Any) -> None:
    for one in _parameters(pipe):
        one.data.mul_(0.6)


@change(EVERY, FLUX)
def scale_all(pipe: Any) -> None:
    with torch.no_grad():
        for one in _parameters(pipe):
            one.mul_(0.6)


@change(EVERY, FLUX)
def scale_all_at_once(pipe: Any) -> None:
    torch._foreach_mul_([one.data for one in _parameters(pipe)], 0.6)


@change(EVERY, FLUX)
def scale_by_the_norm(pipe: Any) -> None:
    with torch.no_grad():
        for one in _parameters(pipe):
            one.div_(one.norm() + 1.0)


@change(EVERY, FLUX)
def step_of_an_optimizer(pipe: Any) -> None:
    optimizer = torch.optim.AdamW(_parameters(pipe), lr=0.05)
    for one in _parameters(pipe):
        one.grad = drawn(one)
    optimizer.step()
    optimizer.zero_grad()


@change(EVERY, FLUX)
def step_of_an_optimizer_at_once(pipe: Any) -> None:
    optimizer = torch.optim.SGD(_parameters(pipe), lr=0.2, momentum=0.9, foreach=True)
    for one in _parameters(pipe):
        one.grad = drawn(one)
    optimizer.step()
    optimizer.zero_grad()


def _average(pipe: Any, **options: Any) -> EMAModel:
    """An average of weights that is far from them."""
    average = EMAModel(_parameters(pipe), **options)
    average.shadow_params = [one * 0.5 for one in average.shadow_params]
    return average


@change(EVERY, FLUX)
def copy_an_average(pipe: Any) -> None:
    _average(pipe).copy_to(_parameters(pipe))


@change(EVERY, FLUX)
def copy_an_average_at_once(pipe: Any) -> None:
    _average(pipe, foreach=True).copy_to(_parameters(pipe))


@change(EVERY, FLUX)
def step_an_average(pipe: Any) -> None:
    average = EMAModel(_parameters(pipe), decay=0.5, min_decay=0.5)
    for _ in range(3):
        average.step(_parameters(pipe))
        scale_all_data(pipe)
    average.copy_to(_parameters(pipe))


@change(EVERY, FLUX, is_seen=False)
def restore_after_an_average(pipe: Any) -> None:
    average = _average(pipe)
    average.store(_parameters(pipe))
    average.copy_to(_parameters(pipe))
    average.restore(_parameters(pipe))


@change(EVERY, FLUX)
def vector_to_parameters(pipe: Any) -> None:
    vector = nn.utils.parameters_to_vector(_parameters(pipe))
    nn.utils.vector_to_parameters(vector.detach() * 0.6, _parameters(pipe))


@change(EVERY, FLUX)
def weight_norm(pipe: Any) -> None:
    normed = nn.utils.parametrizations.weight_norm(layer(pipe))
    with torch.no_grad():
        normed.parametrizations.weight.original0.mul_(-3)


@change(EVERY, FLUX)
def prune(pipe: Any) -> None:
    from torch.nn.utils import prune

    prune.l1_unstructured(layer(pipe), "weight", amount=0.9)
    prune.remove(layer(pipe), "weight")


add("write_and_write_back", EVERY, FLUX, written(lambda w: w.data.mul_(-3)), written(lambda w: w.data.div_(-3)))
add("write_twice", EVERY, FLUX, written(lambda w: w.data.mul_(-3)), written(lambda w: w.data.add_(0.4)))
add("replace_and_write", EVERY, FLUX, replace_a_parameter, written(lambda w: w.data.add_(0.4)))
add("nothing", EVERY, FLUX, nothing, nothing, is_seen=False)


# What was taken out of a module before a picture, and is written after it

_kept: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
ALIASES: dict[str, Callable[[Any], Any]] = {
    "parameter": weight,
    "data": lambda pipe: weight(pipe).data,
    "detached": lambda pipe: weight(pipe).detach(),
    "rows": lambda pipe: weight(pipe).data[:99],
    "state": lambda pipe: pipe.transformer.state_dict()["transformer_blocks.0.attn.to_q.weight"],
    "state_of_a_part": lambda pipe: layer(pipe).state_dict()["weight"],
}


def _keep(alias: Callable[[Any], Any]) -> Callable[[Any], None]:
    def keep(pipe: Any) -> None:
        _kept[pipe] = alias(pipe)

    return keep


def _write_kept(pipe: Any) -> None:
    with torch.no_grad():
        _kept[pipe].mul_(-3)


for _name, _alias in ALIASES.items():
    add(f"keep_{_name}", KEPT, FLUX, _keep(_alias), _write_kept, is_seen=False)


def _step_kept(pipe: Any) -> None:
    """One step with the gradients of the optimizer's own parameters, which a picture may take out of the modules."""
    for one in _kept[pipe].param_groups[0]["params"]:
        one.grad = drawn(one)
    _kept[pipe].step()
    _kept[pipe].zero_grad()


_optimizer = _keep(lambda pipe: torch.optim.SGD(_parameters(pipe), lr=0.2))
add("keep_an_optimizer", KEPT, FLUX, _optimizer, _step_kept, _step_kept, is_seen=False)
add("keep_a_list_for_an_average", KEPT, FLUX, _keep(lambda pipe: list(_parameters(pipe))),
    lambda pipe: _average(pipe).copy_to(_kept[pipe]), is_seen=False)  # fmt: skip
