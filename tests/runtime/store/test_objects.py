"""The object of a weight is the weight's wherever its numbers are: for optimizers, averages, and what was detached."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dovetail.compiler.errors import UsageError
from dovetail.compiler.spec.residency import Residency
from dovetail.runtime.store.origin import HOST
from dovetail.runtime.store.origins import origins_of
from dovetail.runtime.store.stand_in import StandIn
from dovetail.runtime.store.store import Store
from dovetail.weights.files import open_weights

from .small_net import in_a_file

ONES = torch.ones(4, 4)


@pytest.fixture
def held(real: nn.Sequential, tmp_path: Path) -> tuple[nn.Sequential, Store]:
    """The same net with its weights in a file, where they rest, and what holds them."""
    return in_a_file(real, tmp_path / "net.safetensors", Residency.DISK)


def _steps(net: nn.Module, optimizer: torch.optim.Optimizer, between: Callable[[], None] = lambda: None) -> None:
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.linspace(-1, 1, 8).reshape(2, 4)).pow(2).sum().backward()
        optimizer.step()
        between()


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False),
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.1, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_was_made_over_weights_without_data_trains_them(
    name: str, real: nn.Sequential, held: tuple[nn.Sequential, Store]
) -> None:
    net, store = held
    before = list(net.parameters())
    _steps(real, OPTIMIZERS[name](real.parameters()))
    _steps(net, OPTIMIZERS[name](before), store.survey)
    assert all(one is other for one, other in zip(before, net.parameters(), strict=True))
    assert all(torch.equal(one, net.state_dict()[key]) for key, one in real.state_dict().items())


def test_a_weight_that_is_brought_and_let_go_of_is_the_same_object_with_its_gradient(
    held: tuple[nn.Sequential, Store],
) -> None:
    net, store = held
    weight = net[0].weight
    weight.sum().backward()
    store.bring(store.of(weight), HOST)
    assert (net[0].weight is weight, type(weight)) == (True, nn.Parameter)
    assert torch.equal(weight.grad, ONES)
    store.rest(store.of(weight), HOST)
    assert (net[0].weight is weight, type(weight)) == (True, StandIn)
    assert torch.equal(weight.grad, ONES)


def _average_and_back(net: Any) -> torch.Tensor:
    kept = {name: one.data for name, one in net.named_parameters()}
    for one in net.parameters():
        one.data = torch.full_like(one, 2)
    found: torch.Tensor = net[0](torch.ones(1, 4)).detach()
    for name, one in net.named_parameters():
        one.data = kept[name]
    return found


def _exchanged(net: Any) -> torch.Tensor:
    one, other = net[0].weight.data, net[1].weight.data
    net[0].weight.data, net[1].weight.data = other, one
    return torch.cat([net[0].weight.detach(), net[1].weight.detach()])


def _after_another(net: Any) -> torch.Tensor:
    detached, row = net[0].weight.data, net[0].weight.data[1]
    net[0].weight.data = torch.ones(4, 4)
    row.fill_(7)
    return detached.clone()


def _after_rounding(net: Any) -> torch.Tensor:
    detached = net[0].weight.data
    net.half()
    detached.fill_(7)
    return detached.clone()


def _of_storage(net: Any) -> torch.Tensor:
    detached: torch.Tensor = net[0].weight.data
    return detached.set_(ONES.clone().untyped_storage(), 0, (2, 8), (8, 1)).clone()


def _resized(net: Any) -> torch.Tensor:
    detached: torch.Tensor = net[0].weight.data
    return detached.resize_(2, 3).clone()


def _resized_by_out(net: Any) -> torch.Tensor:
    detached = net[0].weight.data
    torch.add(torch.ones(2, 2), 1, out=detached)
    return detached.clone()


def _of_a_norm(net: Any) -> torch.Tensor:
    found: torch.Tensor = net.double().train()(torch.linspace(-1, 1, 8, dtype=torch.double).reshape(2, 4)).detach()
    return found


def _in_inference(net: Any) -> torch.Tensor:
    with torch.inference_mode():
        net[0].weight.t()[1].mul_(2)
        return net[0].weight.t()[1:].clone()


def _with_a_history(net: Any) -> torch.Tensor:
    turned = net[0].weight.t()
    net[0].weight.data.mul_(2)
    turned.sum().backward()
    found: torch.Tensor = net[0].weight.grad
    return found


WAYS = [
    _average_and_back, _exchanged, _after_another, _after_rounding, _of_storage, _resized, _resized_by_out, _of_a_norm,
    _in_inference, _with_a_history,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_what_was_detached_is_the_memory_that_it_is_in_eager(
    way: Callable[[Any], torch.Tensor], real: nn.Sequential, held: tuple[nn.Sequential, Store]
) -> None:
    net, store = held
    assert torch.equal(way(net), way(real))
    store.survey()
    wanted, got = real.state_dict(), net.state_dict()
    assert all(torch.equal(got[key], one) and got[key].dtype == one.dtype for key, one in wanted.items())


def test_another_tensor_does_not_take_a_stand_in_for_data(held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    other = nn.Parameter(torch.zeros(4, 4))
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        other.data = net[0].weight.data
    assert not other.any()
    other.data = net[0].weight.detach().clone()
    assert torch.equal(other, net[0].weight)
    assert (net[0].weight.device, net[0].weight.is_meta, net[0].weight.is_cpu) == (HOST, False, True)


def test_data_on_meta_is_refused_as_pytorch_refuses_it(real: nn.Sequential, held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        net[0].weight.data = torch.ones(4, 4, device="meta")
    assert torch.equal(net[0].weight, real[0].weight)


def test_no_weight_is_written_through_its_conjugate(tmp_path: Path) -> None:
    start = torch.view_as_complex(torch.arange(8.0).reshape(4, 2))
    save_file({"weight": start}, tmp_path / "one.safetensors")
    holder = nn.Module()
    holder.register_parameter("weight", nn.Parameter(torch.empty(4, dtype=start.dtype, device="meta")))
    Store().add(holder, origins_of(open_weights(tmp_path / "one.safetensors")))
    with pytest.raises(UsageError, match="through its conjugate"):
        holder.weight.data.conj().mul_(2j)
    assert torch.equal(holder.weight, start)


@pytest.mark.fifth
def test_a_function_that_torch_compile_traces_reads_and_writes_a_weight(real: nn.Sequential, held: Any) -> None:
    net, _ = held

    @torch.compile(backend="eager")
    def double(weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight.mul_(2)
        return weight.sum()

    assert torch.equal(double(net[0].weight), (real[0].weight * 2).sum())
    assert torch.equal(net[0].weight, real[0].weight * 2)


def _of_a_converted_one(net: Any) -> torch.Tensor:
    kept = net[0].weight.data.double().float()
    net[0].weight.data = kept
    kept.add_(0.05)
    net[0].weight.data.mul_(2)
    found: torch.Tensor = kept.clone()
    return found


def _of_a_part_of_a_converted_one(net: Any) -> torch.Tensor:
    row = net[0].weight.data.half().float()
    net[0].weight.data = row
    row[1:].t().zero_()
    return row.clone()


def _converted_twice(net: Any) -> torch.Tensor:
    kept = net[0].weight.data.double().float()
    net[0].weight.data = kept
    net[0].weight.data = kept.double().float()
    kept.fill_(3)
    return kept.clone()


def _in_two_places(net: Any) -> torch.Tensor:
    kept = net[0].weight.data.double().float()
    net[0].weight.data = kept
    net[1].weight.data = kept
    kept.mul_(3)
    net[1].weight.data.add_(1)
    return kept.clone()


def _as_a_parameter(net: Any) -> torch.Tensor:
    kept = net[0].weight.data.double().float()
    net[0].weight = nn.Parameter(kept)
    kept.mul_(3)
    return kept.clone()


CONVERTED = [
    _of_a_converted_one, _of_a_part_of_a_converted_one, _converted_twice, _in_two_places, _as_a_parameter,
]  # fmt: skip


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("way", CONVERTED)
def test_a_weight_that_was_given_a_converted_one_shares_its_numbers(
    way: Callable[[Any], torch.Tensor], is_moved: bool, real: nn.Sequential, held: tuple[nn.Sequential, Store]
) -> None:
    net, store = held
    if is_moved:
        store.bring(store.of(net[0].weight), HOST)
    assert torch.equal(way(net), way(real))
    store.survey()
    wanted, got = real.state_dict(), net.state_dict()
    assert all(torch.equal(got[key], one) and got[key].dtype == one.dtype for key, one in wanted.items())


TOUCHED: dict[str, Callable[[Any, Store], None]] = {
    "written": lambda w, _: w.data.mul_(2),
    "assigned": lambda w, _: setattr(w, "data", torch.ones(4, 4)),
    "converted": lambda w, _: setattr(w, "data", w.data.half().float()),
    "brought": lambda w, store: store.bring(store.of(w), HOST),
    "let go of": lambda w, store: (store.bring(store.of(w), HOST), store.rest(store.of(w), HOST)),
}


@pytest.mark.parametrize("name", TOUCHED)
def test_what_somebody_hung_on_a_weight_stays_on_it(name: str, held: tuple[nn.Sequential, Store]) -> None:
    net, store = held
    weight, called = net[0].weight, []
    weight.tag, weight.register = 3, called.append
    handle = weight.register_hook(lambda grad: called.append("hook") or grad * 2)
    weight.register_post_accumulate_grad_hook(lambda one: called.append(one is weight))
    TOUCHED[name](weight, store)
    store.survey()
    assert net[0].weight is weight
    assert (weight.tag, weight.register, copy.copy(weight).tag) == (3, called.append, 3)
    weight.sum().backward()
    assert called == ["hook", True]
    assert torch.equal(weight.grad, ONES * 2)
    handle.remove()
    weight.sum().backward()
    assert torch.equal(weight.grad, ONES * 3)


def test_a_weight_is_pickled_with_what_hangs_on_it(held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    net[0].weight.tag = 3
    assert pickle.loads(pickle.dumps(net[0].weight)).tag == 3
    assert type(net[0].weight) is StandIn


def _held_by_others(device: torch.device) -> tuple[nn.Linear, Store]:
    """A module with a weight of its own that was brought to a device."""
    net, store = nn.Linear(4, 4), Store()
    net.weight.tag, net.weight.grad = 3, ONES.clone()
    store.add(net)
    return net, store


def _bring(store: Store, net: nn.Linear) -> None:
    store.bring(store.of(net.weight), torch.device("sim:0"))


def _back(store: Store, net: nn.Linear) -> None:
    one = store.of(net.weight)
    store.bring(one, HOST)
    store.give_back(one)


@pytest.mark.usefixtures("sim_devices")
@pytest.mark.parametrize("changes", [False, True])
def test_a_module_has_its_own_objects_again_with_the_numbers_of_now(changes: bool) -> None:
    net, store = _held_by_others(HOST)
    former, looked = net.weight, net.weight.detach()
    wanted = former.detach().clone() * (3 if changes else 1)
    _bring(store, net)
    assert (net.weight is former, net.weight.tag) == (False, 3)
    net.weight.tag, net.weight.other = 4, 5
    net.weight.requires_grad_(not changes)
    if changes:
        net.weight.data.mul_(3)
    _back(store, net)
    assert net.weight is former
    assert (former.tag, former.other, former.requires_grad) == (4, 5, not changes)
    assert torch.equal(former, wanted)
    assert torch.equal(former.grad, ONES)
    assert changes or former.data_ptr() == looked.data_ptr()
    assert store.of(former).tensor is former


@pytest.mark.usefixtures("sim_devices")
def test_a_module_whose_objects_nobody_has_any_more_keeps_what_hung_on_them() -> None:
    net, store = _held_by_others(HOST)
    former = weakref.ref(net.weight)
    _bring(store, net)
    assert former() is None
    _back(store, net)
    assert net.weight.tag == 3
    assert torch.equal(net.weight.grad, ONES)


@pytest.mark.usefixtures("sim_devices")
def test_tied_weights_are_one_object_again_and_what_was_put_in_meanwhile_stays() -> None:
    nets = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    nets[1].weight = nets[0].weight
    former, other, store = nets[0].weight, nets[2].weight, Store()
    store.add(nets)
    for one in list(store.of_module(nets).values()):
        store.bring(one, torch.device("sim:0"))
    nets[2].weight = put = nn.Parameter(ONES)
    for one in list(dict.fromkeys(store.of_module(nets).values())):
        store.bring(one, HOST)
        store.give_back(one)
    assert nets[0].weight is nets[1].weight is former
    assert nets[2].weight is put is not other


@pytest.mark.usefixtures("sim_devices")
def test_an_object_that_was_made_in_inference_mode_is_held_again() -> None:
    with torch.inference_mode():
        net = nn.Linear(4, 4).requires_grad_(False)
    store, former = Store(), net.weight
    store.add(net)
    _bring(store, net)
    net.weight.data.fill_(2)
    _back(store, net)
    assert net.weight is former
    assert (float(former.sum()), former.is_inference()) == (32, True)
