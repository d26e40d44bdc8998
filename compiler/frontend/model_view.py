"""What a model sees of PyTorch while it is traced: the kind of device that it is compiled for, apart from the host.

A trace runs on fake CPU tensors, whatever the program is for. Models ask where a tensor lies, and compute otherwise on
one kind of device than on another. While they are traced for another kind of device than the host:

* a fake tensor answers with that kind, and where the model passes such a device on, the trace goes on with the CPU;
* what a model makes on the host (a factory without a device, or with the host's) is computed there and then, with its
  values, for no input can be in it; it enters the graph as a constant where it meets what lies on the device;
* autocast of that kind acts on the fake tensors as it will on the device.

For any kind, ``tensor.data`` is an op of the graph: torch's own tracer does not record it, and loses what is written.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from ..devices.device import HOST, KINDS
from ..errors import TraceError
from .diagnostics import is_of_model
from .questions import Questions
from .replaced_functions import is_replaced

logger = logging.getLogger(__name__)

_Function = Callable[..., Any]

_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_DEVICE = torch.Tensor.device.__get__
_OF_GRADIENTS = frozenset(getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "is_leaf", "grad_fn"))
_HOST = torch.device(HOST)
_LOOKS = {look.__get__: kind for kind in KINDS if (look := getattr(torch.Tensor, f"is_{kind}", None))}
_DRAWS = frozenset(
    getattr(torch, name)
    for name in (
        "rand",
        "randn",
        "randint",
        "randperm",
        "normal",
        "bernoulli",
        "multinomial",
        "rand_like",
        "randn_like",
    )
)
_WITHOUT_INPUT = frozenset(
    getattr(torch, name)
    for name in (
        "arange", "range", "linspace", "logspace", "zeros", "ones", "empty", "full", "eye", "tensor", "as_tensor",
        "scalar_tensor", "tril_indices", "triu_indices", "hann_window", "hamming_window", "kaiser_window", "asarray",
    )
)  # fmt: skip
_PASSING = ("torch.overrides", "torch.functional", "torch._tensor", "torch.utils._device", "torch.nn.")
"""Torch's own Python through which a model's call goes before it reaches a function mode."""

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
_GROUPED = torch._grouped_mm
_shown = threading.local()
"""``device`` is what fake tensors answer to a model that this thread traces."""


def _is_untraceable_group(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether groups of rows are multiplied in a dtype of which PyTorch has kernels, but says no shapes."""
    plain = len(args) == 2 and kwargs.get("bias") is None and kwargs.get("out_dtype") in (None, args[0].dtype)
    dims = plain and (args[0].dim(), args[1].dim()) == (2, 3) and kwargs.get("offs") is not None
    return bool(dims) and args[0].dtype != torch.bfloat16


def _attention_kernels() -> tuple[bool, ...]:
    """Which kinds of kernels attention may take: ``sdpa_kernel`` switches them on and off."""
    chosen = torch.backends.cuda
    return (
        chosen.flash_sdp_enabled(),
        chosen.mem_efficient_sdp_enabled(),
        chosen.math_sdp_enabled(),
        chosen.cudnn_sdp_enabled(),
    )


class ModelView(TorchFunctionMode):
    """Stands between a model and PyTorch during a trace.

    ``kind`` is that of the program's main device, ``questions`` note what is asked of tensors. ``is_replaced`` tells
    whether a function of PyTorch was called that somebody has replaced, which each mode applies again.
    """

    def __init__(self, name: str, kind: str, questions: Questions | None = None) -> None:
        super().__init__()
        self._name = name
        self._questions = questions or Questions()
        self._device = None if kind == _HOST.type else torch.device(kind, 0)
        self._mover = getattr(torch.Tensor, kind, None)  # such as tensor.cuda()
        self._made: dict[int, torch.Tensor] = {}
        self._constants: dict[int, tuple[torch.Tensor, int]] = {}
        self._warned: set[str] = set()
        self._kernels = _attention_kernels()
        self.is_replaced = False

    def __enter__(self) -> ModelView:
        if self._device is not None:
            _install()
        self._before = getattr(_shown, "device", None)
        _shown.device = self._device
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _shown.device = self._before

    def __torch_function__(
        self, func: _Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not torch.compiler.is_dynamo_compiling():  # which traces this method too, within flex attention
            self.is_replaced = self.is_replaced or is_replaced(func)
        self._questions.note(func, args)
        if func in _OF_GRADIENTS and is_of_model(_caller()):
            self._questions.note_of_gradients(args[0])
        if func == _DATA:
            return args[0].detach()
        if func is _ATTENTION and _attention_kernels() != self._kernels:
            raise TraceError(
                f"{self._name} chooses the kernels of scaled_dot_product_attention (sdpa_kernel), which no program "
                "keeps: choose them around the call of the model"
            )
        if func is _GROUPED and _is_untraceable_group(args, kwargs or {}):
            return torch.ops.dovetail.grouped_mm(args[0], args[1], (kwargs or {})["offs"])
        if self._device is None:
            return func(*args, **(kwargs or {}))
        if func is torch.histc and not args[0].dtype.is_floating_point:
            counts = torch.histc(args[0].double(), *args[1:], **(kwargs or {}))
            return counts.to(args[0].dtype)  # the host, where the fakes lie, counts no integers
        if func == _DEVICE or func in _LOOKS:
            return self._look(func, args[0])
        return self._call(func, args, kwargs or {})

    def keep(self, tensor: torch.Tensor) -> None:
        """Notes that a tensor with values may be a constant of the graph, which nothing may write from now on."""
        with torch._C.DisableTorchFunction():
            if tensor.is_meta:  # inside a fake tensor: torch's own code reads it meanwhile, and writes it
                return
            self._constants.setdefault(id(tensor), (tensor, tensor._version))
        self._made.pop(_memory(tensor), None)

    def check(self) -> None:
        """Raises TraceError where a constant was written: the graph has the write, its value too."""
        for tensor, version in self._constants.values():
            if tensor._version != version:
                raise TraceError(
                    f"{self._name} writes into a tensor {tuple(tensor.shape)} that it keeps, or that it made on the "
                    "host, after it was read: clone it first"
                )

    def _look(self, func: _Function, tensor: torch.Tensor) -> Any:
        """Where a tensor lies, for the model; torch itself must know that a fake lies on the host."""
        if not isinstance(tensor, FakeTensor) or not is_of_model(_caller()):
            return func(tensor)
        return self._device if func == _DEVICE else self._kind == _LOOKS[func]

    @property
    def _kind(self) -> str:
        return self._device.type if self._device else _HOST.type

    def _call(self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        there = self._names_device(func, args, kwargs)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not there and self._is_of_host(func, args, kwargs, tensors):
            return self._on_host(func, args, kwargs, tensors)
        for tensor in tensors:
            if not isinstance(tensor, FakeTensor):
                self.keep(tensor)
        if not there and self._leaves_device(func, args, kwargs, tensors):
            self._warn()
        args, kwargs = self._on_cpu(func, args, kwargs)
        return (torch.Tensor.to if func == self._mover else func)(*args, **kwargs)

    def _names_device(self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call asks for the device that the model is compiled for."""
        if func == self._mover:
            return True
        return any(_kind_of(value) == self._kind for value in _devices_in(func, args, kwargs))

    def _is_of_host(
        self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> bool:
        """Whether a call computes on the host from nothing but what is known there."""
        if func in _DRAWS or any(isinstance(leaf, torch.SymInt) for leaf in pytree.tree_leaves((args, kwargs))):
            return False
        if any(isinstance(tensor, FakeTensor) for tensor in tensors):
            return False
        if not is_of_model(_caller()):
            return False
        if not tensors:
            return func in _WITHOUT_INPUT
        return not _writes(func, kwargs) or all(_memory(tensor) in self._made for tensor in tensors[:1])

    def _on_host(
        self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
        known = {_memory(tensor) for tensor in tensors}.difference(self._made)
        for made in pytree.tree_leaves(result):
            if isinstance(made, torch.Tensor) and _memory(made) not in known:
                self._made[_memory(made)] = made
        return result

    def _leaves_device(
        self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> bool:
        """Whether a model computes on the host what depends on its inputs or draws numbers."""
        if not tensors and func not in _WITHOUT_INPUT | _DRAWS:
            return False
        on_host = _goes_to_host(func, args, kwargs) or (func in _DRAWS and not tensors)
        return on_host and is_of_model(_caller())

    def _on_cpu(self, func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The arguments of a call with the CPU, where the fakes lie, in place of the model's device."""
        if func == self._mover:
            return (args[0], _HOST), {}
        named = {id(value) for value in _devices_in(func, args, kwargs) if _kind_of(value) == self._kind}
        if not named:
            return args, kwargs
        mapped = {key: _HOST if id(value) in named else value for key, value in kwargs.items()}
        return tuple(_HOST if id(value) in named else value for value in args), mapped

    def _warn(self) -> None:
        frame = _model_frame()
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "a place unknown"
        if where not in self._warned:
            self._warned.add(where)
            logger.warning(
                "%s computes on the host at %s what is no constant: the compiled program computes it on %s, where its "
                "last bits, or the numbers it draws, may be others", self._name, where, self._kind,
            )  # fmt: skip


def _devices_in(func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call that name devices; a string does so by position only where a tensor is moved."""
    found: list[Any] = [value for value in args if isinstance(value, torch.device)]
    if func is torch.Tensor.to:
        found += [value for value in args[1:2] if isinstance(value, (str, int)) and not isinstance(value, bool)]
    if kwargs.get("device") is not None:
        found.append(kwargs["device"])
    return found


def _kind_of(device: Any) -> str:
    """The kind that a device, its text or its number names; a number is that of an accelerator."""
    if isinstance(device, int):
        return getattr(_shown.device, "type", "")
    return str(device).partition(":")[0]


def _goes_to_host(func: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return func is torch.Tensor.cpu or any(_kind_of(value) == _HOST.type for value in _devices_in(func, args, kwargs))


def _writes(func: _Function, kwargs: dict[str, Any]) -> bool:
    name = getattr(func, "__name__", "")
    dunder = name.startswith("__")
    return kwargs.get("out") is not None or (name.endswith("_") and not dunder) or name in _WRITING


_WRITING = frozenset(
    f"__{name}__"
    for name in (
        "setitem", "set", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod", "iand", "ior", "ixor",
    )
)  # fmt: skip


def _memory(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return int(tensor.untyped_storage()._cdata)


def _caller() -> FrameType | None:
    """The frame that called PyTorch: the innermost outside of function modes and of this file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _passes_on(frame):
        frame = frame.f_back
    return frame


def _passes_on(frame: FrameType) -> bool:
    own = frame.f_globals is globals() or frame.f_code.co_name == "__torch_function__"
    return own or frame.f_globals.get("__name__", "").startswith(_PASSING)


def _model_frame() -> FrameType | None:
    frame = _caller()
    while frame is not None and not is_of_model(frame):
        frame = frame.f_back
    return frame


def _install() -> None:
    """Lets fake tensors and autocast ask what this thread shows to a model; both are as ever where it shows nothing.

    A fake tensor answers for its device in Python, past all function modes, so the answer itself is replaced.
    """
    own: Any = vars(FakeTensor)["device"]
    if own.fget.__module__ == __name__:
        return

    def device(self: FakeTensor) -> torch.device:
        shown: torch.device | None = getattr(_shown, "device", None)
        if shown is None or not is_of_model(sys._getframe(1)):
            return own.fget(self)  # type: ignore[no-any-return]
        return shown

    FakeTensor.device = property(device, own.fset)  # type: ignore[assignment, method-assign]
    _install_autocast()


def _install_autocast() -> None:
    own = torch.autocast.__init__

    @functools.wraps(own)
    def __init__(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, *more: Any, **named: Any
    ) -> None:
        shown: torch.device | None = getattr(_shown, "device", None)
        if shown is not None and device_type == shown.type:
            device_type, dtype = _HOST.type, dtype or torch.get_autocast_dtype(device_type)
        elif shown is not None and device_type == _HOST.type:  # acts on nothing that lies on the device
            dtype, enabled = torch.get_autocast_dtype(device_type), torch.is_autocast_enabled(device_type)
        own(self, device_type, dtype, enabled, *more, **named)

    torch.autocast.__init__ = __init__  # type: ignore[method-assign]
