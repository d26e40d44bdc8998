"""Results of calls that are not done yet: tensors that wait when more than their form is asked.

Shape, dtype and device are known when a call is launched. Whatever else is asked, by an operation, a print, a write or
a pickle, waits until the call is done, and is answered by the tensor that it gave; an error of the call is raised then.
A view or a cast is put off: it is made of the result when that is there, before anybody may write to it.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

_T = torch.Tensor
_META = torch.device("meta")

_FORM = frozenset(
    (_T.size, _T.dim, _T.ndimension, _T.numel, _T.nelement, _T.element_size, _T.is_floating_point, _T.is_complex,
     _T.__len__,
     *(getattr(_T, name).__get__ for name in (
         "shape", "dtype", "ndim", "layout", "is_sparse", "is_quantized", "itemsize", "nbytes",
     ))),
)  # fmt: skip
"""What is answered at once."""

_TYPES = {getattr(_T, f"is_{kind}").__get__: kind for kind in ("cpu", "cuda", "xpu", "mps", "meta")}
"""What asks whether it lies on a device of some type."""

_WHERE = {_T.device.__get__, _T.get_device, *_TYPES}
"""What is answered at once of the device: not by PyTorch, for which it lies elsewhere."""

_PUT_OFF = frozenset(
    (_T.__getitem__, _T.to, _T.type, _T.float, _T.double, _T.half, _T.bfloat16, _T.view, _T.reshape, _T.flatten,
     _T.unflatten, _T.unsqueeze, _T.squeeze, _T.permute, _T.transpose, _T.movedim, _T.narrow, _T.expand, _T.detach),
)  # fmt: skip
"""Views and casts, which are put off where they take no other tensor, and name no device."""

_PLAIN = (int, bool, slice, type(None), type(...), torch.dtype, torch.Size)


class Awaited:
    """A tensor that comes: ``get`` waits for it, or raises what came instead, each time it is asked.

    What is put off on it is made as soon as it is there.
    """

    def __init__(self, get: Callable[[], torch.Tensor]) -> None:
        self._get: Callable[[], torch.Tensor] | None = get
        self._value: torch.Tensor | None = None
        self._later: list[weakref.ref[Awaited]] = []
        self._lock = threading.RLock()

    @property
    def is_there(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._value is not None

    def __call__(self) -> torch.Tensor:
        """The tensor."""
        if self._value is not None:
            return self._value
        with self._lock:
            if self._value is None:
                assert self._get is not None
                self._value = self._get()
                self._get = None
            later, self._later = self._later, []
        for one in filter(None, (reference() for reference in later)):
            _make(one)
        return self._value

    def then(self, make: Callable[[torch.Tensor], torch.Tensor]) -> Awaited:
        """What is made of it when it is there."""
        made = Awaited(lambda: make(self()))
        with self._lock:
            if self._value is None:
                self._later.append(weakref.ref(made))
                return made
        _make(made)  # another thread has waited for it meanwhile, and who writes to it next is not to be seen
        return made


def _make(one: Awaited) -> None:
    """Makes what was put off; what goes wrong is raised where that is read."""
    with contextlib.suppress(Exception):
        one()


class Unfinished(torch.Tensor):
    """A result that is not there yet, of a form that is known."""

    _awaited: Awaited
    _there: torch.device

    @staticmethod
    def of(awaited: Awaited, like: torch.Tensor, device: torch.device) -> Unfinished:
        """One that looks like a tensor, which may be on meta, and lies on a device.

        To PyTorch it is on meta, and only says that it lies there: so no other tensor takes it for its ``data``, which
        would have no memory then, and would say so nowhere.
        """
        made: Unfinished = torch.Tensor._make_wrapper_subclass(
            Unfinished, like.shape, strides=like.stride(), dtype=like.dtype, device=_META, dispatch_device=True
        )
        torch._C._set_throw_on_mutable_data_ptr(made)  # for C code that looks past both functions below
        made._awaited, made._there = awaited, device
        _known.add(made)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Answers what is known of the form, puts off views, and waits for all else."""
        kwargs = kwargs or {}
        one = args[0] if args else None
        if isinstance(one, Unfinished) and not one._awaited.is_there:
            if func in _WHERE:
                return _place(func, one._there)
            if func in _FORM:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if func in _PUT_OFF and _is_plain((args[1:], kwargs)):
                return _put_off(one, func, args[1:], kwargs)
        args, kwargs = finished((args, kwargs))
        return _own(func, args)(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of what the call gave."""
        return copy.deepcopy(self._awaited(), memo)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Waits, for those who go past ``__torch_function__``; says where it lies."""
        if func is torch.ops.prim.device.default:
            return args[0]._there
        args, kwargs = finished((args, kwargs or {}))
        return func(*args, **kwargs)


def _own(func: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """A method of tensors as the class of the first argument has it, which may have one of its own."""
    name = getattr(func, "__name__", "")
    is_method = bool(args) and isinstance(args[0], _T) and getattr(_T, name, None) is func
    return getattr(type(args[0]), name) if is_method else func


def _place(asked: Callable[..., Any], there: torch.device) -> Any:
    """What a question of the device is answered where a tensor lies there."""
    if asked in _TYPES:
        return there.type == _TYPES[asked]
    if asked is _T.get_device:
        return -1 if there.type == "cpu" else there.index or 0
    return there


_known: weakref.WeakSet[Unfinished] = weakref.WeakSet()


def finished(value: Any) -> Any:
    """The value with the tensors that calls gave in the place of unfinished ones, for which it waits."""
    if not _known:
        return value
    return pytree.tree_map(lambda leaf: leaf._awaited() if isinstance(leaf, Unfinished) else leaf, value)


def has_unfinished(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is handed an unfinished tensor, or one that was."""
    if not _known:
        return False
    return any(isinstance(leaf, Unfinished) for leaf in pytree.tree_leaves((args, kwargs)))


def _is_plain(value: Any) -> bool:
    return all(isinstance(leaf, _PLAIN) for leaf in pytree.tree_leaves(value))


def _put_off(one: Unfinished, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a view or a cast gives, unfinished too; an error of the form is raised at once, as it would be else."""
    with torch._C.DisableTorchFunctionSubclass():
        form = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
    like = func(form, *args, **kwargs)
    if like is form:
        return one
    if not isinstance(like, torch.Tensor):
        return func(one._awaited(), *args, **kwargs)
    return Unfinished.of(one._awaited.then(lambda there: func(there, *args, **kwargs)), like, one.device)
