"""What a module is given back of the object that it had for a weight: nothing that was written is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import nn

from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime import sim
from dovetail.runtime.store.origin import HOST
from dovetail.runtime.store.store import Store

pytestmark = pytest.mark.usefixtures("sim_devices")

Change = Callable[[nn.Linear], object]
"""What somebody does to a module's weight."""


class Brought:
    """A module whose weight was brought to a device, another that holds the same object still, and both in eager."""

    def __init__(self, weight: torch.Tensor | None = None, grad: bool = False) -> None:
        self.nets, self.eager = _tied(weight, grad), _tied(weight, grad)
        self.store = Store()
        self.store.add(self.nets[0])
        self.bring(torch.device("sim:0"))

    def bring(self, device: torch.device) -> None:
        self.store.bring(self.store.of(self.nets[0].weight), device)

    def change(self, index: int, change: Change) -> None:
        with torch.no_grad():
            change(self.nets[index])
            change(self.eager[index])

    def undo(self) -> None:
        self.store.survey()
        one = self.store.of(self.nets[0].weight)
        self.store.bring(one, HOST)
        self.store.give_back(one)

    def is_as_eager(self) -> bool:
        pairs = [(net.weight, other.weight) for net, other in zip(self.nets, self.eager, strict=True)]
        return self.nets[0].weight is self.nets[1].weight and all(_is_like(*pair) for pair in pairs)


def _tied(weight: torch.Tensor | None, grad: bool) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    if weight is not None:
        one.weight = nn.Parameter(weight)
    one.weight.tag = 1  # type: ignore[assignment]
    if grad:
        one.weight.grad = torch.full((4, 4), 0.5)
    other.weight = one.weight
    return one, other


def _is_like(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or not torch.equal(one, other) or vars(one) != vars(other):
        return False
    if one.grad is None or other.grad is None:
        return one.grad is other.grad
    return one.grad.dtype == other.grad.dtype and torch.equal(one.grad, other.grad)


def _assign_data(net: nn.Linear) -> None:
    net.weight.data = torch.full_like(net.weight, 0.25)


def _accumulate(net: nn.Linear) -> None:
    with torch.enable_grad():
        net.weight.sum().backward()


CHANGES: dict[str, Change] = {
    "nothing": lambda net: None,
    "in place": lambda net: net.weight.mul_(2),
    "of its .data": lambda net: net.weight.data.mul_(2),
    "other data": _assign_data,
    "another dtype": lambda net: net.bfloat16(),
    "no gradients": lambda net: net.zero_grad(),
    "gradients of zero": lambda net: net.zero_grad(set_to_none=False),
    "more gradients": _accumulate,
    "frozen": lambda net: net.weight.requires_grad_(False),
    "attribute": lambda net: setattr(net.weight, "tag", 2),
    "attribute more": lambda net: setattr(net.weight, "other", 2),
    "attribute deleted": lambda net: delattr(net.weight, "tag"),
}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("moves", [False, True])
def test_what_was_changed_on_either_of_two_objects_is_what_the_one_of_both_is_in_the_end(
    moves: bool, grad: bool, name: str, index: int
) -> None:
    brought = Brought(grad=grad)
    brought.change(index, CHANGES[name])
    if moves:
        brought.bring(torch.device("sim:1"))
    brought.undo()
    assert brought.is_as_eager()


@pytest.mark.parametrize("first", [0, 1])
def test_different_things_that_were_changed_on_both_are_all_kept(first: int) -> None:
    brought = Brought(grad=True)
    for index, names in ((first, ["in place", "attribute more"]), (1 - first, ["attribute deleted", "no gradients"])):
        for name in names:
            brought.change(index, CHANGES[name])
    brought.undo()
    assert brought.is_as_eager()


def test_an_object_and_a_module_that_were_both_written_keep_what_was_written(caplog: pytest.LogCaptureFixture) -> None:
    brought = Brought()
    then = brought.nets[1].weight.detach().clone()
    brought.change(0, lambda net: net.weight.mul_(2))
    brought.change(1, lambda net: net.weight.add_(1))
    with caplog.at_level(logging.WARNING, "dovetail"):
        brought.undo()
    assert torch.equal(brought.nets[0].weight, then * 2)
    assert torch.equal(brought.nets[1].weight, then + 1)
    assert "weight weight of Linear was written in the module, and by whoever holds" in caplog.text


def test_an_object_and_a_module_that_were_written_alike_are_one_again(caplog: pytest.LogCaptureFixture) -> None:
    brought = Brought()
    for net in brought.nets:
        nn.init.ones_(net.weight)
    nn.init.ones_(brought.eager[0].weight)
    brought.undo()
    assert brought.is_as_eager()
    assert not caplog.text


@pytest.mark.parametrize("view", ["conj", "_neg_view", "t"])
@pytest.mark.parametrize("change", ["nothing", "in place"])
def test_a_weight_that_looks_at_memory_otherwise_is_given_back(view: str, change: str) -> None:
    weight = getattr(torch.arange(16.0).reshape(4, 4) * 1j, view)()
    brought = Brought(weight)
    brought.change(0, CHANGES[change])
    brought.undo()
    assert brought.is_as_eager()


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_a_weight_of_few_numbers_is_given_back(shape: tuple[int, ...]) -> None:
    brought = Brought(torch.ones(shape))
    brought.change(1, lambda net: net.weight.data.mul_(2))
    brought.undo()
    assert brought.is_as_eager()


def test_gradients_are_with_the_weight_wherever_it_is() -> None:
    brought = Brought(grad=True)
    assert brought.nets[0].weight.grad is not None
    assert brought.nets[0].weight.grad.device == torch.device("sim:0")
    assert brought.nets[1].weight.grad is not None


@pytest.mark.parametrize("is_held", [False, True])
def test_a_sparse_gradient_is_there_after_undo(is_held: bool) -> None:
    net, store = nn.Embedding(4, 4, sparse=True), Store()
    net(torch.tensor([1, 2])).sum().backward()
    want, held = net.weight.grad, net.weight if is_held else None
    store.add(net)
    store.bring(store.of(net.weight), torch.device("sim:0"))
    one = store.of(net.weight)
    store.bring(one, HOST)
    store.give_back(one)
    assert want is not None
    assert net.weight.grad is not None
    assert torch.equal(net.weight.grad.to_dense(), want.to_dense())
    assert held is None or net.weight is held


def test_a_weight_whose_gradient_has_no_room_names_it_and_nothing_has_changed() -> None:
    net, store = nn.Linear(512, 512, bias=False), Store()
    weight, net.weight.grad = net.weight, torch.ones(512, 512)
    store.add(net)
    sim.enable({0: weight.nbytes * 3 // 2})
    try:
        with pytest.raises(DoesNotFitError, match="its gradient goes with it"):
            store.bring(store.of(weight), torch.device("sim:0"))
    finally:
        sim.enable({0: 1024**3})
    assert net.weight is weight
    assert weight.grad is not None
    assert sim.stats(0).in_use == 0
