"""The tensor of a simulated device: a wrapper around a CPU tensor, and what happens when an ATen op meets one.

The wrapper has the CPU tensor's size, strides and offset, and every op runs with the CPU's kernel on the tensors
inside, so that results are bit-equal to the CPU's. The ledger entry is found by the storage that the result really
has, and not by what the op's schema promises: `reshape`, `contiguous` or `dropout` may or may not return an alias.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.overrides import handle_torch_function
from torch.utils import _pytree as pytree

from ...compiler.frontend.fakes import STANDS_IN
from .generators import require_generator_of
from .holds import Hold
from .ledger import Buffer, SimDevice, device_of
from .operands import takes_host_scalars
from .streams import HOST, Stream, _chosen

aten = torch.ops.aten
CPU = torch.device("cpu")


class SimTensor(torch.Tensor):
    """A tensor on a simulated device, whose data lies in CPU memory."""

    _inner: torch.Tensor
    _buffer: Buffer
    _hold: Hold

    HELD = ("_inner", "_buffer", "_hold")

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs one ATen op, unless another class knows better what it is to do."""
        if len(types) > 1 and any(hasattr(kind, STANDS_IN) for kind in types):
            return NotImplemented
        return dispatch(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], torch.device]:
        """Names the tensor inside; `Module.to` would keep the old one without it."""
        return ["_inner"], self.device

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], device: torch.device, size: Any, stride: Any) -> SimTensor:
        """Builds the wrapper around the tensor that `__tensor_flatten__` named."""
        return wrap(inner["_inner"], device_of(device))

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        """Says no, but while deterministic algorithms are asked for.

        `torch.nn.functional.interpolate` asks only then, and takes a slow decomposition for devices whose kernels are
        not deterministic. The CPU's are, and round otherwise.
        """
        return torch.are_deterministic_algorithms_enabled()

    def __reduce_ex__(self, protocol: object) -> Any:
        """Describes the tensor for a file: its values, and the device that `map_location` may change."""
        if hasattr(self, "_is_param"):
            return torch._utils._rebuild_parameter, (self.detach(), self.requires_grad, OrderedDict())
        what = (self.detach().cpu(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, what

    def data_ptr(self) -> int:
        """The address of its first number; libraries tell tensors apart by it."""
        return self._inner.data_ptr()

    @property
    def memory(self) -> tuple[Buffer, int | torch.SymInt]:
        """The ledger entry of its storage, which tells it from any other, and where in it the tensor begins."""
        return self._buffer, self.storage_offset()

    @property
    def data(self) -> torch.Tensor:
        """The same memory without a history; assigning gives the tensor the memory of another on its device.

        A wrapper that was made in inference mode is another kind of tensor, though its memory is the same.
        """
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if torch._C._is_torch_function_mode_enabled():  # modes are asked first, as for any tensor
            handle_torch_function(SimTensor.data.__set__, (self,), self, other)  # type: ignore[attr-defined]
            return
        if isinstance(other, SimTensor) and other.is_inference() != self.is_inference():
            with torch.inference_mode(self.is_inference()):
                other = rewrap(other, other._inner)
        torch.Tensor.data.__set__(self, other)  # type: ignore[attr-defined]
        if isinstance(other, SimTensor):
            self._inner, self._buffer, self._hold = other._inner, other._buffer, other._hold

    def copy_(self, other: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """Takes another tensor's values.

        `torch.Tensor.copy_` asks the device guard of a backend in Python, which looks at the frame of its caller; an
        interrupt (Ctrl-C) that comes then leaves that frame, and all tensors in it, alive for ever. The op itself does
        not ask it.
        """
        if torch._C._is_torch_function_mode_enabled():
            return torch.Tensor.copy_(self, other, non_blocking)
        copied: torch.Tensor = aten.copy_.default(self, other, non_blocking)
        return copied

    def record_stream(self, stream: Stream) -> None:  # type: ignore[override]
        """Lets the memory be used again only when a stream is done with it."""
        self._buffer.keep(stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            copied = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if hasattr(self, "_is_param") else copied
        made: torch.Tensor = memo[id(self)]
        return made

    def numpy(self, *, force: bool = False) -> Any:
        """Copies the tensor to the host and returns an array, if `force` allows the copy."""
        if not force:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy: copy it with Tensor.cpu() first")
        return self.detach().cpu().numpy(force=True)

    def tolist(self) -> Any:
        """Returns the values as a number or as nested lists."""
        return self.cpu().tolist()

    def __format__(self, spec: str) -> str:
        return object.__format__(self, spec) if self.dim() else format(self.item(), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if self._buffer.coming:
            self._buffer.settle()
        return f"{self._inner!r}, device='{self.device}'"


Operands = list[torch.Tensor]
Handler = Callable[[OpOverload, Any, dict[str, Any]], Any]
HANDLERS: dict[OpOverload, Handler] = {}
"""The ops that are not simply run by the CPU's kernel: copies between devices, and what decides about them."""


def dispatch(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs one ATen op on tensors of one simulated device, or the handler that the op has."""
    handler = HANDLERS.get(func)
    if handler is not None:
        return handler(func, args, kwargs)
    return compute(func, args, kwargs)


def compute(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
    """Runs one ATen op with the CPU's kernel.

    Raises:
        RuntimeError: the operands are on different devices.
        RaceError: an operand was written on a stream that this one has not waited for.
        torch.OutOfMemoryError: the result does not fit on the device.
    """
    traits = _TRAITS.get(func) or _learn(func)
    operands: Operands = []
    inner_args = [_strip(one, operands) for one in args]
    inner_kwargs = {name: _strip(one, operands) for name, one in kwargs.items()} if kwargs else kwargs
    where, target = _place(func, operands, traits, args, kwargs)
    stream = _chosen.streams.get(where.index) or where.default
    stream.launch()
    where.count_op()
    if traits.writes:
        _note_reads(func, operands, stream)
        _note_writes(func, traits, args, kwargs, stream)
    given = len(operands)
    if kwargs and kwargs.get("generator") is not None:
        require_generator_of(where.device, kwargs["generator"])
    run: Callable[..., Any] = func
    is_special, is_coming = traits.turns, False
    for one in operands:
        if type(one) is SimTensor:
            is_special = is_special or _is_special(one._inner)
            is_coming = is_coming or bool(one._buffer.coming)
    if is_special:
        run = functools.partial(_from_the_top, func)
    if is_coming:
        run = functools.partial(_after_arrivals, run, operands, traits.may_view)
    result = run(*inner_args, **inner_kwargs)
    if traits.reshapes:
        _follow_metadata(func, operands)
    wrapped = _wrap_all(result, operands, target, stream)
    if len(operands) > given or wrapped is result:
        _note_reads(func, operands[:given], stream)  # not for a view, which looks at no element
    if traits.is_answer:
        HOST.join(stream.everything())
    return wrapped


_SKIPPED = tuple(
    getattr(torch._C.DispatchKey, name)
    for name in ("AutogradCPU", "AutogradFunctionality", "ADInplaceOrView", "Conjugate", "Negative")
)


def _is_special(inner: torch.Tensor) -> bool:
    """Whether PyTorch treats a tensor on a level that calls from here skip: its gradient, or a lazy conjugate.

    Of a complex tensor the op itself may make one.
    """
    return inner.requires_grad or inner.is_neg() or inner.is_complex()


def _after_arrivals(run: Callable[..., Any], operands: Operands, may_view: bool, *args: Any, **kwargs: Any) -> Any:
    """Runs an op when the copies to its operands have arrived, which a view does not wait for: it reads no element."""
    if may_view:
        result = run(*args, **kwargs)
        mine = {one.untyped_storage()._cdata for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)}
        if mine <= {one._buffer.storage for one in operands if type(one) is SimTensor}:
            return result
    for one in operands:
        if type(one) is SimTensor and one._buffer.coming:
            one._buffer.settle()
    return run(*args, **kwargs)


def _from_the_top(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Runs an op on all levels that the CPU's tensors go through, and records no gradient.

    A view of a tensor that requires one does too, and a product with it takes another kernel, which rounds differently;
    a lazy conjugate is made one only there.
    """
    hidden = torch._C._dispatch_tls_local_exclude_set()
    for key in _SKIPPED:
        hidden = hidden.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), hidden), torch.no_grad():
        return func(*args, **kwargs)


def wrap(inner: torch.Tensor, device: SimDevice, base: SimTensor | None = None) -> SimTensor:
    """Puts a CPU tensor on a simulated device; without a base, whose ledger entry it shares, it gets its own."""
    storage = inner.untyped_storage()
    made: SimTensor = torch.Tensor._make_wrapper_subclass(
        SimTensor,
        inner.shape,
        strides=inner.stride(),
        storage_offset=inner.storage_offset(),
        dtype=inner.dtype,
        device=device.device,
        storage_size=storage.nbytes(),
    )
    made._inner = inner
    if base is None:
        made._buffer = Buffer(device, storage, _chosen.streams.get(device.index) or device.default)
        made._hold = made._buffer.hold(storage.nbytes())
    else:
        made._buffer, made._hold = base._buffer, base._hold
    return made


def rewrap(tensor: SimTensor, inner: torch.Tensor) -> SimTensor:
    """Wraps another CPU tensor over the memory of one that is on a simulated device; they share the ledger entry."""
    return wrap(inner, device_of(tensor.device), tensor)


class _Traits:
    """What the schema of an op says that matters here."""

    __slots__ = ("device_at", "is_answer", "may_view", "reshapes", "takes_host_scalars", "turns", "writes")

    def __init__(self, func: OpOverload) -> None:
        arguments = func._schema.arguments
        self.writes = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info and a.alias_info.is_write]
        self.device_at = next(((i, a.name) for i, a in enumerate(arguments) if "Device" in str(a.real_type)), None)
        self.is_answer = func._schema.name in _ANSWERS
        self.may_view = not self.writes and any(one.alias_info for one in func._schema.returns)
        self.takes_host_scalars = takes_host_scalars(func)
        self.turns = func._schema.name.startswith(_TURNING)
        self.reshapes = bool(self.writes) and (
            func._schema.name in _RESHAPES or any(a.is_out for a in arguments if a.alias_info)
        )


# The host waits for these: their result is a number, or a tensor whose size depends on the data.
_ANSWERS = frozenset(
    f"aten::{name}" for name in ("_local_scalar_dense", "_unique2", "equal", "masked_select", "nonzero", "unique_dim")
)
# Inside, these may make a lazy conjugate of a real operand's transform.
_TURNING = tuple(f"aten::{name}" for name in ("fft_", "_fft_", "istft", "stft"))
_RESHAPES = frozenset(
    f"aten::{name}"
    for name in (
        "as_strided_", "resize_", "resize_as_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_",
        "set_",
    )
)  # fmt: skip
_TRAITS: dict[OpOverload, _Traits] = {}
_ATOMS = frozenset((int, float, bool, type(None), str, torch.dtype, torch.layout, torch.memory_format, complex))


def _learn(func: OpOverload) -> _Traits:
    return _TRAITS.setdefault(func, _Traits(func))


def _strip(value: Any, operands: Operands) -> Any:
    """Returns an argument as the CPU's kernel takes it, and collects the tensors in it."""
    kind = type(value)
    if kind is SimTensor:
        operands.append(value)
        inner = value._inner
        if value.requires_grad and not inner.is_inference():
            inner.requires_grad_()
        return inner
    if kind in _ATOMS:
        return value
    if kind is list or kind is tuple:
        return [_strip(one, operands) for one in value]
    if kind is torch.device:
        return CPU if value.type == "sim" else value
    if isinstance(value, torch.Tensor):
        operands.append(value)
    return value


def _place(
    func: OpOverload, operands: Operands, traits: _Traits, args: Any, kwargs: dict[str, Any]
) -> tuple[SimDevice, SimDevice | None]:
    """Returns the device that an op runs on and the one that its results go to; None is the CPU."""
    where: SimDevice | None = None
    for one in operands:
        if type(one) is SimTensor:
            device = one._buffer.device
            if where is None:
                where = device
            elif where is not device:
                raise _mixed(func, operands, traits)
        elif one.dim() or not traits.takes_host_scalars:
            raise _mixed(func, operands, traits)
    asked: torch.device | None = _argument(traits.device_at, args, kwargs) if traits.device_at else None
    if asked is None:
        assert where is not None, f"{func} has nothing on a sim device"
        return where, where
    target = device_of(asked) if asked.type == "sim" else None
    return where or device_of(asked), target


def _argument(at: tuple[int, str], args: Any, kwargs: dict[str, Any]) -> Any:
    position, name = at
    return args[position] if position < len(args) else kwargs.get(name)


def _mixed(func: OpOverload, operands: Operands, traits: _Traits) -> RuntimeError:
    scalars = traits.takes_host_scalars
    places = " and ".join(
        dict.fromkeys(f"{one.device}" for one in operands if one.device.type == "sim" or one.dim() or not scalars)
    )
    but = "all must be on one device" + " (a CPU tensor without dimensions is accepted)" * scalars
    return RuntimeError(f"{func} got tensors on {places}: {but}: copy them to one device first")


def _note_reads(func: OpOverload, operands: Operands, stream: Stream) -> None:
    for one in operands:
        if type(one) is SimTensor:
            one._buffer.read(stream, func)


def _note_writes(func: OpOverload, traits: _Traits, args: Any, kwargs: dict[str, Any], stream: Stream) -> None:
    for at in traits.writes:
        written = _argument(at, args, kwargs)
        for one in written if isinstance(written, (list, tuple)) else (written,):
            if type(one) is SimTensor:
                one._buffer.write(stream, func)
            elif isinstance(one, torch.Tensor):
                raise RuntimeError(f"{func} cannot write a tensor on {one.device} from {stream.device}")


def _wrap_all(result: Any, operands: Operands, target: SimDevice | None, stream: Stream) -> Any:
    if isinstance(result, torch.Tensor):
        return _wrap_result(result, operands, target, stream)
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap_all(one, operands, target, stream) for one in result)
    return result


def _wrap_result(result: torch.Tensor, operands: Operands, target: SimDevice | None, stream: Stream) -> torch.Tensor:
    """Wraps a result, on the ledger entry of the operand whose storage it has."""
    if target is None:
        return result
    storage = result.untyped_storage()._cdata
    for one in operands:
        if type(one) is SimTensor:
            if one._inner is result:
                return one
            if one._buffer.storage == storage:
                return _wrap_view(result, target, one)
    made = wrap(result, target)
    operands.append(made)
    return made


def _wrap_view(result: torch.Tensor, target: SimDevice, base: SimTensor) -> SimTensor:
    if base.is_inference() or not torch.is_inference_mode_enabled():
        return wrap(result, target, base)
    # A view shares its base's version counter, which a tensor made in inference mode cannot have.
    with torch.inference_mode(False):
        return wrap(result, target, base)


_BELOW_PYTHON = DispatchKeySet(DispatchKey.Python)


def _follow_metadata(func: OpOverload, operands: Operands) -> None:
    """Gives wrappers the new memory and size of a tensor that was given them in place."""
    ours = [one for one in operands if type(one) is SimTensor]
    for one in ours:
        memory = one._inner.untyped_storage()._cdata
        if memory != one._buffer.storage:
            source = next((other for other in ours if other._buffer.storage == memory), one)
            torch.Tensor.data.__set__(one, source)  # type: ignore[attr-defined]
            one._buffer, one._hold = source._buffer, source._hold
        if one.shape == one._inner.shape and one.stride() == one._inner.stride():
            continue
        inner = one._inner
        if inner.untyped_storage().nbytes() > one._buffer.size:
            raise RuntimeError(f"{func} would make a tensor on {one.device} larger in place: make it as large at once")
        with torch._C._ExcludeDispatchKeyGuard(_BELOW_PYTHON):
            aten.as_strided_.default(one, inner.shape, inner.stride(), inner.storage_offset())
