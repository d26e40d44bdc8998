"""What an ATen op does with stand-ins of weights: it looks at them, reads their numbers, or writes them.

Which of these it is stands in the schema of the op: what it writes, and which results share memory with an argument.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from ...compiler.errors import UsageError
from ..devices.transfers import moved
from .origin import HOST, RoundedOrigin
from .stored_weight import ORDINARY, Numbers, stands_in

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from .stand_in import StandIn

aten = torch.ops.aten
_KEEPING = ("set_", "detach_", "resize_")
"""What PyTorch counts among the ops that change the form of a tensor in place, and gives a weight memory or none."""
_NORMS = (
    aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default
)  # fmt: skip
_STATISTICS = ("running_mean", "running_var")
"""What a norm writes while it is trained."""


@dataclass(frozen=True)
class _Rule:
    """What an op does: the names of the arguments that it writes, and whether it only looks, or makes a new tensor."""

    names: tuple[str, ...]
    written: frozenset[str]
    looks: bool
    makes_alike: bool


@functools.cache
def _rule_of(func: OpOverload) -> _Rule:
    schema = func._schema
    written = frozenset(one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write)
    looks = not written and any(one.alias_info is not None for one in schema.returns)
    names = tuple(one.name for one in schema.arguments)
    name = schema.name.partition("::")[2]
    makes_alike = "device" in names and (name.startswith("new_") or name.endswith("_like"))
    return _Rule(names, written, looks, makes_alike)


def dispatch(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs one ATen op on stand-ins and other tensors."""
    if func is torch.ops.prim.device.default:
        return HOST
    rule = _rule_of(func)
    if rule.makes_alike:
        return _made_alike(func, args, kwargs)
    if func is aten._to_copy.default and (made := _rounded(args[0], kwargs)) is not None:
        return made
    if func is aten.set_.source_Tensor:
        assign(args[0], args[1])
        return args[0]
    if rule.looks:
        return _looked(func, args, kwargs)
    _check_form(func, args)
    return _run(func, rule, args, kwargs)


def _check_form(func: OpOverload, args: Sequence[Any]) -> None:
    """Raises UsageError where an op would give a weight another form, through what was only detached from it."""
    name = func._schema.name.partition("::")[2]
    if torch.Tag.inplace_view in func.tags and name not in _KEEPING and _is_one(args[0]):
        raise UsageError(
            f"{name} cannot give another form to a weight that has no data, nor to what was detached from one: use "
            f"{name.removesuffix('_')}, or clone it first"
        )


def _made_alike(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A new tensor of the form of a stand-in, of which nothing is read."""
    device = kwargs.get("device") or next(one.device for one in args if isinstance(one, torch.Tensor))
    bare = pytree.tree_map(lambda one: one.like if _is_one(one) else one, tuple(args))
    return func(*bare, **{**kwargs, "device": device})


def _looked(func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Stand-ins of what an op looks at of one."""
    one: Any = args[0]
    if not _is_one(one):
        return _run(func, _rule_of(func), args, kwargs)

    if func in (aten.detach.default, aten.alias.default):
        return one.detach()
    # what others are beside their form plays no part: `view_as`, whose other may be a stand-in, or lie elsewhere
    others, options = pytree.tree_map_only(torch.Tensor, form_of, (tuple(args[1:]), kwargs))

    def step(data: torch.Tensor) -> Any:
        return func(data, *others, **options)

    like = step(one.like)
    if isinstance(like, torch.Tensor):
        return one.looking(step, like)
    return [one.looking(partial(_one_of, step, index), form) for index, form in enumerate(like)]


def form_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on meta of the shape, strides and dtype of another."""
    if _is_one(tensor):
        return tensor.like
    # in a twentieth of the time: `empty_like` on meta is Python
    if type(tensor) in ORDINARY and tensor.is_contiguous():
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
    return torch.empty_like(tensor, device="meta")


def _one_of(step: Any, index: int, data: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = step(data)[index]
    return made


def _run(func: OpOverload, rule: _Rule, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Runs an op on the numbers of stand-ins; those that it writes have data then."""
    given = dict(zip(rule.names, args, strict=False)) | kwargs
    written = [one for name in _written(func, rule, given) for one in _leaves(given.get(name)) if _is_one(one)]
    ours = {id(one) for one in _leaves((args, kwargs)) if _is_one(one)}
    beside = _device_beside([*args, *kwargs.values()])
    for one in _make_room(written):
        if _is_one(one):  # which may have got data with another, while it was looked for room
            one.numbers.write()
    numbers = {id(one): _data_of(one) for one in written}
    _check_plain(numbers.values())
    there = beside or next((data.device for data in numbers.values()), HOST)
    forms = {key: _form_of(data) for key, data in numbers.items()}
    back = [(numbers[id(one)], one) for one in written if numbers[id(one)].device != there]
    numbers.update({id(one): moved(data, there).clone() for data, one in back})

    def numbers_of(one: Any) -> Any:
        if id(one) in numbers:
            return numbers[id(one)]
        if id(one) not in ours:
            return one
        return one.read(there) if _is_one(one) else moved(one.detach(), there)

    taken_args, taken = pytree.tree_map(numbers_of, tuple(args)), pytree.tree_map(numbers_of, kwargs)
    result = func(*taken_args, **taken)
    for data, one in back:
        data.copy_(numbers[id(one)])
    for one in written:
        if _is_one(one) and forms[id(one)] != _form_of(numbers[id(one)]):
            one.become(numbers[id(one)])
    own = {id(data): one for one in written for data in (numbers[id(one)],)}
    read = {
        leaf.untyped_storage()._cdata
        for leaf, before in zip(_leaves((taken_args, taken)), _leaves((tuple(args), kwargs)), strict=True)
        if id(before) in ours and id(before) not in numbers
    }
    return pytree.tree_map(lambda leaf: _result(leaf, own, read), result)


def _result(leaf: Any, own: dict[int, StandIn], read: set[int]) -> Any:
    """What an op returns for a result: the stand-in that it wrote, and never the memory in which it read one."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if id(leaf) in own:
        return own[id(leaf)]
    return leaf.clone() if leaf.untyped_storage()._cdata in read else leaf


def _make_room(written: list[StandIn]) -> Iterator[StandIn]:
    """The stand-ins that need data, each weight once; raises DoesNotFitError where not all of them find room."""
    lacking = {id(one.numbers): one for one in written if one.numbers.data is None}
    weights = [weight for one in lacking.values() if (weight := one.numbers.stored) is not None]
    for keeper in {weight.keeper for weight in weights if weight.keeper is not None}:
        store = keeper()
        if store is not None:
            store.room_for([weight for weight in weights if weight.keeper == keeper])
    return iter(lacking.values())


def _written(func: OpOverload, rule: _Rule, given: Mapping[str, Any]) -> Collection[str]:
    """The names of the arguments that an op writes; of some ops their schema says nothing of it."""
    return _STATISTICS if func in _NORMS and given.get("training") else rule.written


def _data_of(one: StandIn) -> torch.Tensor:
    """The data that an op writes of a stand-in, which may have become an ordinary tensor; another object elsewhere."""
    return one.write().detach() if _is_one(one) else one


def _check_plain(written: Iterable[torch.Tensor]) -> None:
    """Raises UsageError for what is written through a conjugate, which kernels read as if it were none."""
    if any(one.is_conj() or one.is_neg() for one in written):
        raise UsageError(
            "a weight that has no data cannot be written through its conjugate: write the weight, or a clone of that"
        )


def _form_of(data: torch.Tensor) -> Any:
    """What changes where an op gives a tensor another form or memory."""
    return data.size(), data.stride(), data.storage_offset(), data.untyped_storage()._cdata


def _device_beside(values: Sequence[Any]) -> torch.device | None:
    """Where the first tensor beside stand-ins is, if there is one."""
    plain = (one for one in _leaves(values) if isinstance(one, torch.Tensor) and not _is_one(one))
    return next((one.device for one in plain if one.ndim or one.device != HOST), None)


def assign(stand_in: StandIn, other: torch.Tensor) -> None:
    """Has a weight's place hold other data, or its own in another dtype, of which nothing is read then.

    What was detached from a weight, or is a part of it, has other data alone, and the weight stays as it is.
    """
    numbers = stand_in.numbers
    if _is_one(other) and not other.steps and other.numbers is numbers:
        return
    stored, store = numbers.stored, numbers.store
    if other.is_meta:
        torch.empty(0).data = other  # which raises
    if store is not None and stored is not None and stored.tensor is stand_in:
        with store.lock, torch.no_grad():
            store.exchange(stored, other)
        return
    data = other.write() if _is_one(other) else other
    if not stands_in(stand_in):  # what was written is a part of the same weight
        stand_in.data = data
        return
    stand_in.become(data.detach())


def _rounded(one: Any, kwargs: dict[str, Any]) -> StandIn | None:
    """A stand-in with the numbers of another in another dtype, or None where that takes more than a dtype."""
    dtype = kwargs.get("dtype")
    others = {name for name, value in kwargs.items() if value is not None and name not in ("dtype", "non_blocking")}
    if kwargs.get("device") == one.device:
        others -= {"device"}
    origin = one.numbers.origin
    if dtype is None or others - {"memory_format"} or one.steps or origin is None:
        return None
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    like = torch.empty_like(one.like, dtype=dtype)
    numbers = Numbers(origin=RoundedOrigin.of(origin, one.dtype, dtype), like=like)
    made: StandIn = type(one).of(numbers, like)
    numbers.given[id(made)] = made
    return made


def _leaves(values: Any) -> list[Any]:
    return pytree.tree_leaves(values)


def _is_one(value: Any) -> TypeIs[StandIn]:
    return isinstance(value, torch.Tensor) and stands_in(value)
