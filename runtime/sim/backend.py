"""Switching simulated devices on: the private-use backend is named `sim`, and its kernels are registered."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ...compiler.errors import NotHereError
from ...compiler.ir.ops import (
    CAUSAL_ATTENTION_OF_ROWS,
    COMBINED_STATISTICS,
    GROUP_NORM_BY,
    GROUP_STATISTICS,
    ROW_STATISTICS,
    SUM_TERMS,
)
from . import copies, device_module, flex, generators, indexing
from .ledger import device_of, set_capacities
from .tensor import HANDLERS, compute, dispatch

_libraries: list[torch.library.Library] = []
_lock = threading.Lock()


def enable(capacities: Mapping[int, int] | None = None) -> None:
    """Switches simulated devices on and sets their capacities.

    PyTorch has one private-use backend a process: from now on it is called `sim`, and
    `torch.accelerator.current_accelerator()` answers with it where there is no other accelerator. Calling it again
    changes capacities only.

    Args:
        capacities: bytes of memory by device index; one that is left out keeps its own, at first the host's memory.

    Raises:
        NotHereError: another package has taken the private-use backend.
    """
    with _lock:
        if not _libraries:
            _require_the_backend()
            _setup_privateuseone_for_python_backend("sim", backend_module=device_module)
            copies.install()
            indexing.install()
            generators.install()
            flex.install()
            HANDLERS.update(dict.fromkeys(_OF_SEVERAL, _one_by_one))
            _libraries.append(_register_kernels())
            HANDLERS[torch.ops.aten.to.dtype] = _cast  # which was to be taken apart, as all of `to`
    set_capacities(capacities or {})


_OF_SEVERAL = (
    SUM_TERMS,
    ROW_STATISTICS,
    GROUP_STATISTICS,
    COMBINED_STATISTICS,
    GROUP_NORM_BY,
    CAUSAL_ATTENTION_OF_ROWS,
)
"""The operations of our own that are kernels of several ATen operations, as on any other device."""


def _one_by_one(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs an operation of several as these, so that what it takes meanwhile is counted."""
    return func._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)


def is_enabled() -> bool:
    """Says whether simulated devices are switched on."""
    return bool(_libraries)


def _require_the_backend() -> None:
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone":
        raise NotHereError(
            f"simulated devices need PyTorch's private-use backend, and {taken!r} has it in this process: "
            f"start a process that does not import the package for {taken!r}, or use other devices"
        )


def _register_kernels() -> torch.library.Library:
    """Registers every op that must reach the dispatcher whole, and has the others taken apart.

    A composite op with a kernel of its own is not taken apart on its way to `SimTensor`: the CPU then decides how to
    run it, as it does for its own tensors. Ops that make tensors from nothing would not find `SimTensor` at all, and
    `torch.tensor` copies below it. What is taken apart asks about the tensor itself, or may change its device.
    """
    library = torch.library.Library("aten", "IMPL")
    composite = set(torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd"))
    for name in torch._C._dispatch_get_all_op_names():
        func = _find(name)
        if func is None:
            continue
        if _makes_tensors_from_nothing(func):
            HANDLERS[func] = _create
        elif name in composite and (not _returns_tensors(func) or func._schema.name in _ABOUT_THE_TENSOR):
            HANDLERS[func] = _take_apart
            continue
        elif name not in composite and name not in _BELOW:
            continue
        library.impl(name.removeprefix("aten::"), functools.partial(_kernel, func), "PrivateUse1")
    return library


_META = torch.device("meta")
_BELOW = frozenset(("aten::_copy_from", "aten::_copy_from_and_resize", "aten::_local_scalar_dense"))
_ABOUT_THE_TENSOR = frozenset(
    f"aten::{name}" for name in ("_to_cpu", "_unpack_dual", "data", "pin_memory", "requires_grad_", "to", "type_as")
)


def _kernel(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return dispatch(func, args, kwargs)


def _find(name: str) -> OpOverload | None:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found: OpOverload | None = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
    return found if namespace == "aten" else None


def _makes_tensors_from_nothing(func: OpOverload) -> bool:
    kinds = [str(one.real_type) for one in func._schema.arguments]
    return any("Device" in kind for kind in kinds) and not any("Tensor" in kind for kind in kinds)


def _returns_tensors(func: OpOverload) -> bool:
    return any("Tensor" in str(one.type) for one in func._schema.returns)


def _take_apart(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    return func.decompose(*args, **kwargs)


def _cast(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs `to` with a dtype; what it is made of is known where it says nothing else, as in most models' casts."""
    if len(args) != 2 or kwargs:
        return func.decompose(*args, **kwargs)
    tensor, dtype = args
    return tensor if tensor.dtype == dtype else dispatch(torch.ops.aten._to_copy.default, (tensor,), {"dtype": dtype})


def _create(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Makes a tensor from nothing; asks the ledger first, since the host may not survive a tensor that is too large."""
    if args and isinstance(args[0], (list, tuple)):
        device = device_of(kwargs["device"])
        itemsize = (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
        if device.in_use + math.prod(args[0]) * itemsize > device.capacity:  # strides of 0 may still make it fit
            planned = func(*args, **{**kwargs, "device": _META, **_no_generator(kwargs)})
            device.require(planned.untyped_storage().nbytes())
    return compute(func, args, kwargs)


def _no_generator(kwargs: dict[str, Any]) -> dict[str, None]:
    return {"generator": None} if "generator" in kwargs else {}
