"""What stands in a module for a weight whose numbers lie in a file: reading leaves it, writing makes data."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dovetail.compiler.errors import DoesNotFitError
from dovetail.runtime.store.stand_in import StandIn
from dovetail.runtime.store.store import Store
from dovetail.runtime.store.stored_weight import StoredWeight

from .small_net import in_a_file, small_net

ONES = torch.ones(4, 4)
REFUSED = 3


@pytest.fixture
def held(real: nn.Sequential, tmp_path: Path) -> tuple[nn.Sequential, Store]:
    """The same net with its weights in a file, and what holds them."""
    return in_a_file(real, tmp_path / "net.safetensors")


def _kinds(net: nn.Module) -> set[type]:
    return {type(one) for one in (*net.parameters(), *net.buffers())}


def _stored(tensor: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


READS: dict[str, Callable[[Any], Any]] = {
    "op": lambda w: w @ ONES + w.t(),
    "norm of all": lambda w: torch._foreach_norm([w, w.detach()])[1],
    "item": lambda w: torch.tensor(w[1, 2].item()),
    "tolist": lambda w: torch.tensor(w.tolist()),
    "bool": lambda w: torch.tensor(bool(w[0, 0] > 0)),
    "repr": lambda w: torch.tensor(list(repr(w).encode())),
    "views": lambda w: w.data[1:, ::2].t().reshape(-1),
    "unbind": lambda w: torch.stack([row.sum() for row in w]),
    "contiguous": lambda w: w.contiguous().cpu().clone(),
    "dtype": lambda w: w.double().half() * 3,
    "alike": lambda w: torch.ones_like(w) + w.new_zeros(4, 4),
    "deepcopy": copy.deepcopy,
    "pickle": lambda w: pickle.loads(pickle.dumps(w)),
    "torch.save": _stored,
    "new": lambda w: w.new_tensor([1, 2]) + w.new([3, 4]),
    "equal": lambda w: torch.tensor([torch.equal(w, w), torch.allclose(w, w + 1)]),
    "out": lambda w: torch.add(w.detach(), 1, out=torch.empty(4, 4)),
    "gradient": lambda w: torch.autograd.grad((w * w).sum(), w)[0],
}


@pytest.mark.parametrize("name", READS)
def test_a_stand_in_reads_as_the_weight_does_and_stays_a_stand_in(
    name: str, real: nn.Sequential, held: tuple[nn.Sequential, Store]
) -> None:
    net, _ = held
    got, wanted = READS[name](net[0].weight), READS[name](real[0].weight)
    assert torch.equal(got, wanted)
    assert (got.dtype, got.stride(), got.requires_grad) == (wanted.dtype, wanted.stride(), wanted.requires_grad)
    assert type(got) is type(wanted)
    assert _kinds(net) == {StandIn}


def test_detaching_data_and_a_state_dict_read_nothing(held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    weight = net[0].weight
    found = [weight.detach(), weight.data, net.state_dict()["0.weight"], copy.copy(weight), nn.Parameter(weight)]
    assert {type(one) for one in found} == {StandIn}
    assert isinstance(found[-1], nn.Parameter)
    assert not isinstance(found[0], nn.Parameter)


def _load_part(net: Any, assign: bool = False) -> None:
    net[0].load_state_dict({"weight": ONES * 2, "bias": torch.ones(4)}, assign=assign)


def _write_new(net: Any) -> None:
    net[0].weight.data = ONES * 3


def _add_to_data(net: Any) -> None:
    net[0].weight.data += 1


def _set_item(net: Any) -> None:
    net[0].weight.data[0, 0] = 5


def _set(net: Any) -> None:
    with torch.no_grad():
        net[0].weight.set_(ONES * 2)


def _detached_set(net: Any) -> None:
    net[0].weight.data.set_(ONES * 2)


def _half_one(net: Any) -> None:
    net[0].weight.data = net[0].weight.data.half()


def _replace(net: Any) -> None:
    net[0].weight = nn.Parameter(net[0].weight * 2)


def _part_as_parameter(net: Any) -> None:
    net[0].weight = nn.Parameter(net[0].weight[:2])


def _averaged(net: Any) -> None:
    for one in net.parameters():
        one.data.copy_(torch.full(one.shape, 0.5))


def _held_elsewhere(net: Any) -> None:
    parameters = list(net.parameters())
    parameters[0].data.add_(1)
    with torch.no_grad():
        parameters[0].mul_(2)
    parameters[0].data = parameters[0].data * 2


WRITES: dict[str, Callable[[Any], Any]] = {
    "data add": _add_to_data,
    "data item": _set_item,
    "data new": _write_new,
    "data half": _half_one,
    "set_": _set,
    "set_ of what was detached": _detached_set,
    "zero_": lambda net: net[0].weight.data.zero_(),
    "init": lambda net: nn.init.constant_(net[0].weight, 3.0),
    "orthogonal": lambda net: (torch.manual_seed(1), nn.init.orthogonal_(net[0].weight)),
    "detach copy_": lambda net: net[0].weight.detach().copy_(ONES),
    "addcmul_": lambda net: net[0].weight.data.addcmul_(ONES, ONES),
    "foreach": lambda net: torch._foreach_mul_([one.data for one in net.parameters()], 2.0),
    "out": lambda net: torch.add(ONES, 1, out=net[0].weight.data),
    "view": lambda net: net[0].weight.data.t()[1:].fill_(3),
    "state dict": lambda net: net.state_dict()["0.weight"].fill_(2),
    "buffer": lambda net: net[2].running_mean.add_(1),
    "counter": lambda net: net[2].num_batches_tracked.add_(1),
    "part's load": _load_part,
    "part's load, assigned": lambda net: _load_part(net, assign=True),
    "load": lambda net: net.load_state_dict(small_net().state_dict()) if torch.manual_seed(3) else None,
    "averaged": _averaged,
    "another weight": lambda net: net[0].weight.data.sub_(net[1].weight.data.sum()),
    "held elsewhere": _held_elsewhere,
    "replaced": _replace,
    "a part as a parameter": _part_as_parameter,
    "vector": lambda net: nn.utils.vector_to_parameters(torch.ones(41), net.parameters()),
    "numpy": lambda net: net[0].weight.detach().numpy().fill(4),
    "storage": lambda net: net[0].weight.data.untyped_storage().fill_(0),
    "dlpack": lambda net: torch.from_dlpack(net[0].weight.detach()).fill_(3),
    "shared": lambda net: net.share_memory(),
    "half": lambda net: net.half(),
    "rounded": lambda net: net.bfloat16().float(),
    "part's double": lambda net: net[0].double(),
    "type": lambda net: net.type(torch.float16),
    "weight norm": lambda net: nn.utils.parametrizations.weight_norm(net[0]),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_a_stand_in_is_a_write_to_the_weight(
    name: str, real: nn.Sequential, held: tuple[nn.Sequential, Store]
) -> None:
    net, store = held
    WRITES[name](real)
    WRITES[name](net)
    store.survey()
    wanted, got = real.state_dict(), net.state_dict()
    assert list(got) == list(wanted)
    assert all(torch.equal(got[key], value) and got[key].dtype == value.dtype for key, value in wanted.items())


@pytest.mark.parametrize(
    "convert", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda net: net.to(torch.half)]
)
def test_converting_a_module_makes_no_data(convert: Callable[[Any], Any], held: tuple[nn.Sequential, Store]) -> None:
    net, store = held
    convert(net)
    convert(net[0].float())
    store.survey()
    assert _kinds(net) == {StandIn}
    assert all(one.origin is not None and not one.is_here for one in map(store.of, net.parameters()))


def test_tied_weights_are_written_together(held: tuple[nn.Sequential, Store]) -> None:
    net, store = held
    net[1].weight = net[0].weight
    store.survey()
    net[0].weight.data.fill_(2)
    assert net[1].weight is net[0].weight
    assert net[1].weight[0, 0] == 2


def test_what_was_detached_before_a_write_sees_it(held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    before, row = net[0].weight.data, net[0].weight.data[1]
    net[0].weight.data.fill_(7)
    assert before[0, 0] == 7
    row.zero_()
    assert net[0].weight[1].tolist() == [0, 0, 0, 0]


def test_what_is_no_writing_of_a_leaf_in_pytorch_is_none_here(held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    with pytest.raises(RuntimeError, match="leaf Variable"):
        net[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="requires grad"):
        net[0].weight.numpy()
    assert _kinds(net) == {StandIn}


def test_a_class_of_stand_ins_called_as_libraries_do_makes_a_plain_parameter(held: tuple[nn.Sequential, Store]) -> None:
    net, _ = held
    made = type(net[0].weight)(ONES, requires_grad=False)
    assert type(made) is nn.Parameter


def test_a_write_that_finds_no_room_changes_nothing(real: nn.Sequential, held: tuple[nn.Sequential, Store]) -> None:
    net, store = held

    def refuse(weights: list[StoredWeight]) -> None:
        raise DoesNotFitError(f"no room for {len(weights)}")

    store.room_for = refuse
    with pytest.raises(DoesNotFitError, match="no room for 6"):
        torch._foreach_mul_([one.data for one in net.parameters()], 2.0)
    assert _kinds(net) == {StandIn}
    assert all(torch.equal(got, one) for got, one in zip(net.parameters(), real.parameters(), strict=True))


def test_a_state_dict_of_stand_ins_is_saved_as_safetensors(
    real: nn.Sequential, held: tuple[nn.Sequential, Store], tmp_path: Path
) -> None:
    net, _ = held
    save_file(net.state_dict(), tmp_path / "other.safetensors")
    found = load_file(tmp_path / "other.safetensors")
    assert all(torch.equal(found[key], value) for key, value in real.state_dict().items())


def test_a_stand_in_outlives_the_module_and_keeps_it_no_longer(real: nn.Sequential, tmp_path: Path) -> None:
    net, store = in_a_file(real, tmp_path / "net.safetensors")
    gone = weakref.ref(net), weakref.ref(store)
    written, other = net[0].weight, net[1].weight
    written.data.mul_(2)
    del net, store
    assert [one() for one in gone] == [None, None]
    assert torch.equal(written, real[0].weight * 2)
    other.data.zero_()
    assert not other.any()


def _by_address(net: Any) -> bool:
    ctypes.c_float.from_address(net[0].weight.data_ptr()).value = 100.0
    return bool(net[0].weight[0, 0] == 100)


def _written(net: Any, how: Callable[[Any], Any]) -> bool:
    how(net[0].weight.detach())
    return bool(net[0].weight.sum() == 16)


MEMORY: dict[str, Callable[[Any], bool]] = {
    "address": _by_address,
    "storage": lambda net: _written(net, lambda w: [w.storage().__setitem__(at, 1.0) for at in range(16)]),
    "untyped storage": lambda net: _written(net, lambda w: w.untyped_storage().copy_(ONES.untyped_storage())),
    "numpy": lambda net: _written(net, lambda w: w.numpy().fill(1)),
    "array": lambda net: _written(net, lambda w: numpy.asarray(w).fill(1)),
    "dlpack": lambda net: _written(net, lambda w: torch.from_dlpack(w).fill_(1)),
    "dlpack of numpy": lambda net: bool(
        numpy.from_dlpack(net[0].weight.detach()).sum() == net[0].weight.detach().sum()
    ),
    "capsule": lambda net: bool(torch.from_dlpack(torch.utils.dlpack.to_dlpack(net[0].weight.detach())).any()),
    "shared": lambda net: net.share_memory()[0].weight.is_shared() and bool(net[0].weight.any()),
    "pinned": lambda net: not net[0].weight.is_pinned(),
    "bytes": lambda net: len(bytes(net[0].weight.untyped_storage())) == 64,
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("name", MEMORY)
def test_no_way_to_the_memory_of_a_stand_in_ends_the_process(name: str, held: tuple[nn.Sequential, Store]) -> None:
    child = os.fork()
    if not child:
        try:
            os._exit(0 if MEMORY[name](held[0]) else 1)
        except RuntimeError:
            os._exit(REFUSED)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == (REFUSED if name == "capsule" else 0)


def _part(net: Any) -> None:
    kept = net[0].weight
    net[1].weight = nn.Parameter(kept.detach()[:3])
    _ = kept.data.mul_(1.3)


def _turned(net: Any) -> None:
    net[0].weight = nn.Parameter(net[0].weight.detach().t())


def _put_elsewhere(net: Any) -> None:
    kept = net[0].weight
    net[0].weight = nn.Parameter(torch.ones(4, 4))
    net[1].weight = nn.Parameter(kept.detach()[1:])
    kept.data.mul_(2)


def _written_when_gone(net: Any) -> None:
    kept = net[0].weight
    net[0].weight = nn.Parameter(torch.ones(4, 4))
    kept.data.mul_(2)


def _buffer_of_a_part(net: Any) -> None:
    net[2].running_mean = net[0].weight.detach()[0, 1:]
    net[0].weight.data.add_(1)


@pytest.mark.parametrize("change", [_part, _turned, _put_elsewhere, _written_when_gone, _buffer_of_a_part])
@pytest.mark.parametrize("looks", [False, True])
def test_a_look_at_a_weight_that_became_a_weight_of_its_own_is_written_with_it(
    change: Callable[[Any], None], looks: bool, real: nn.Sequential, held: tuple[nn.Sequential, Store]
) -> None:
    """Whether the host has room is asked of all weights that the modules hold then."""
    net, store = held
    store.room_for = lambda _: store.of_module(net) and None
    change(real)
    change(net)
    if looks:
        store.survey()
    wanted, got = real.state_dict(), net.state_dict()
    assert all(torch.equal(got[key], one) for key, one in wanted.items())
    store.survey()
    got = net.state_dict()
    assert all(torch.equal(got[key], one) for key, one in wanted.items())
