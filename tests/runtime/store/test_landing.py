"""Weights of a load land in a slot with the bits and strides of now, and in one copy where they lie side by side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dovetail.compiler.errors import WeightError
from dovetail.compiler.ir.staging import offsets
from dovetail.compiler.ir.weight import Weight
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime import sim
from dovetail.runtime.devices.transfers import land
from dovetail.runtime.store import landing as landing_module
from dovetail.runtime.store.landing import Landing, Places
from dovetail.runtime.store.store import Store
from dovetail.runtime.store.stored_weight import StoredWeight

sim.enable()
SIM0 = torch.device("sim", 0)
SHAPES = [(8, 16), (64,), (3,), (0, 4), (2, 3, 4, 5), (128, 2), (1, 64), ()]
DTYPES = [torch.float32, torch.bfloat16, torch.uint8]


class Case:
    """A module's tensors in a store, or somebody's, that land in a slot again and again."""

    def __init__(self, tensors: list[torch.Tensor], borrowed: list[bool]) -> None:
        self.store, self.module = Store(), nn.Module()
        for index, tensor in enumerate(tensors):
            parameter = nn.Parameter(tensor, requires_grad=tensor.is_floating_point() and index % 2 == 0)
            self.module.register_parameter(f"w{index}", parameter)
        self.store.add(self.module, residency=Residency.HOST)
        self.weights = [
            Weight(name, "parameter", tuple(one.shape), one.dtype) for name, one in self.module.named_parameters()
        ]
        self.others = [
            StoredWeight(name, one, borrowed=True) if lent else None
            for lent, (name, one) in zip(borrowed, self.module.named_parameters(), strict=True)
        ]
        self.landing, self.places = Landing(self.store, self.weights), Places()
        self.memory = torch.empty(offsets(self.weights)[1] + 256, dtype=torch.uint8, device=SIM0)

    def found(self) -> list[tuple[StoredWeight, Weight]]:
        known = self.store.of_module(self.module)
        owned = [known[weight.name] for weight in self.weights]
        return [(other or one, weight) for other, one, weight in zip(self.others, owned, self.weights, strict=True)]

    def land(self) -> list[torch.Tensor]:
        with torch.no_grad():
            return self.landing.fill(self.found(), self.memory, self.places, self.refuse)

    def refuse(self, *_: Any) -> torch.Tensor:
        raise AssertionError("a weight in host memory is brought in another way")

    def is_right(self) -> bool:
        landed = self.land()
        held = [one for one, _ in self.found()]
        return all(
            torch.equal(one.cpu().reshape(-1).view(torch.uint8), other.tensor.detach().reshape(-1).view(torch.uint8))
            and one.stride() == other.tensor.stride()
            for one, other in zip(landed, held, strict=True)
        )


def made(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> torch.Tensor:
    found = torch.randint(0, 200, shape).to(dtype)
    return found.contiguous(memory_format=torch.channels_last) if last and len(shape) == 4 else found


tensors = st.builds(made, st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.booleans())


@given(st.lists(st.tuples(tensors, st.booleans()), min_size=1, max_size=8), st.data())
def test_weights_land_as_they_are_at_each_call(drawn: list[tuple[torch.Tensor, bool]], data: st.DataObject) -> None:
    case = Case([one for one, _ in drawn], [lent for _, lent in drawn])
    assert case.is_right()
    assert case.is_right()
    one, weight = data.draw(st.sampled_from(case.found()))
    match data.draw(st.sampled_from(["written", "replaced", "other strides"])):
        case "written":
            with torch.no_grad():
                one.tensor.add_(1)
        case "replaced":
            one.tensor.data = one.tensor.detach() + 1
        case "other strides":
            other = made(weight.shape, weight.dtype, True)
            one.tensor.data = other.mT.contiguous().mT if other.dim() > 1 else other
    assert case.is_right()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each copy from now on."""
    copies: list[int] = []

    def noted(source: torch.Tensor, place: torch.Tensor) -> None:
        copies.append(source.nbytes)
        land(source, place)

    monkeypatch.setattr(landing_module, "land", noted)
    return copies


def test_what_lies_side_by_side_goes_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case([torch.randn(64) for _ in range(12)], [False] * 12)
    case.land()  # they come to lie side by side
    copies = counted(monkeypatch)
    before = sim.stats(0)
    assert case.is_right()
    assert copies == [12 * 256]
    assert sim.stats(0).bytes_in - before.bytes_in == sum(weight.nbytes for weight in case.weights)


def test_what_was_replaced_goes_by_itself_and_its_neighbours_together(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case([torch.randn(64) for _ in range(9)], [False] * 9)
    case.land()
    case.module.w4 = nn.Parameter(torch.randn(64))
    case.store.survey()
    copies = counted(monkeypatch)
    assert case.is_right()
    assert copies == [4 * 256, 256, 4 * 256]


def test_a_weight_of_another_form_is_refused() -> None:
    case = Case([torch.randn(64) for _ in range(3)], [False] * 3)
    case.land()
    case.found()[1][0].tensor.data = torch.randn(65)
    with pytest.raises(WeightError, match="compile again"):
        case.land()
