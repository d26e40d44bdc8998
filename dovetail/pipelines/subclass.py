"""What a compiled pipeline does otherwise than its class: a subclass takes the place of the class until it is undone.

So nothing in the pipeline leads back to it, and an error or interrupt anywhere in a call is seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..compiler.errors import UsageError
from ..components.calls import is_compiled
from ..components.merging import merged_together
from ..conventions import libraries
from ..lora.stand_ins import on_stand_ins
from .pipeline_state import refuse_hooks

if TYPE_CHECKING:
    from .pipeline import CompiledPipeline

MARK = "_dovetail"
_MOVES = ("to", "enable_model_cpu_offload", "enable_sequential_cpu_offload", "enable_group_offload")
_LOADS = ("load_lora_weights",)
_APART = "_dovetail_apart"


_told: list[Callable[[Any], object]] = []


def when_made(tell: Callable[[Any], object]) -> None:
    """Has a function be told of each diffusers pipeline that gets its components, once there was a compiled one."""
    _told.append(tell)


def handle_of(pipe: Any) -> CompiledPipeline | None:
    """What a compiled pipeline has at ``pipe.dovetail``, or None."""
    found: CompiledPipeline | None = getattr(pipe, "__dict__", {}).get(MARK)
    return found


def become_compiled(pipe: Any, handle: CompiledPipeline) -> None:
    """Gives a pipeline the class of a compiled one; what it has at ``pipe.dovetail`` must not keep it alive."""
    pipe.__dict__[MARK] = handle
    base: Any = getattr(type(pipe), _APART, type(pipe))
    libraries.tell_of_missing("dovetail", _why_not_compiled)
    libraries.when_hooked(refuse_hooks)
    libraries.when_registered(lambda made: [one(made) for one in _told])
    pipe.__class__ = _compiled(base)


def _why_not_compiled(pipe: Any) -> str:
    """Why a pipeline has nothing at ``pipe.dovetail``."""
    name = type(pipe).__name__
    placed = [key for key, part in pipe.components.items() if isinstance(part, nn.Module) and is_compiled(part)]
    if placed:
        return (
            f"this {name} was not compiled itself: its {', '.join(placed)} are those of a compiled pipeline, whose "
            ".dovetail says where they are: dovetail.compile_pipeline(pipe) places the rest beside them"
        )
    return f"this {name} is not compiled, and neither is a copy of one that is: dovetail.compile_pipeline(pipe) does so"


def become_as_before(pipe: Any) -> None:
    """Gives a pipeline its own class back."""
    for name in (libraries.DEVICE_MAP, MARK):
        pipe.__dict__.pop(name, None)
    if hasattr(type(pipe), "_dovetail_base"):
        pipe.__class__ = type(pipe)._dovetail_base
    set_apart(pipe)


def set_apart(pipe: Any) -> None:
    """Has a pipeline that is not compiled, but uses components of one that is, compute where its own modules are.

    Those components take what lies there and give back their results there.
    """
    placed = [is_compiled(part) for part in pipe.components.values() if isinstance(part, nn.Module)]
    is_placeable = hasattr(type(pipe), libraries.EXECUTION_DEVICE) and not hasattr(type(pipe), _APART)
    if is_placeable and any(placed) and not all(placed):
        base: Any = type(pipe)
        pipe.__class__ = _apart(base)


@functools.cache
def _apart(base: type[Any]) -> type[Any]:
    same = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    where = property(functools.partial(_own_device, getattr(base, libraries.EXECUTION_DEVICE)))
    return type(base.__name__, (base,), {**same, libraries.EXECUTION_DEVICE: where, _APART: base})


def _own_device(general: property, pipe: Any) -> Any:
    """Where the weights of a pipeline's modules lie that are not placed; as in general where there are none."""
    own = (part for part in pipe.components.values() if isinstance(part, nn.Module) and not is_compiled(part))
    found = next((weight.device for part in own for weight in part.parameters()), None)
    return general.__get__(pipe) if found is None else found


@functools.cache
def _compiled(base: type[Any]) -> type[Any]:
    own: dict[str, Callable[..., Any]] = {
        "__call__": _call,
        "__setattr__": _set,
        "__delattr__": _delete,
        "__reduce_ex__": _reduce,
    }
    own |= dict.fromkeys(_MOVES, _refuse) | dict.fromkeys(_LOADS, _load) | dict.fromkeys(libraries.FUSES, _fuse)
    own |= {libraries.END_OF_CALL: _end, libraries.RESET_DEVICE_MAP: _reset, libraries.REMOVE_HOOKS: _nothing}
    there: dict[str, Any] = {name: _around(base, name, around) for name, around in own.items() if hasattr(base, name)}
    same = {name: getattr(base, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(base.__name__, (base,), {**same, **there, "dovetail": property(_own_handle), "_dovetail_base": base})


def _own_handle(pipe: Any) -> CompiledPipeline:
    """What dovetail has of this pipeline: its plan, components and programs, and what is done with them."""
    handle = handle_of(pipe)
    assert handle is not None
    return handle


def _around(base: type[Any], name: str, around: Callable[..., Any]) -> Callable[..., Any]:
    """A method that calls ``around`` with what is at ``pipe.dovetail`` and the pipeline's own method."""
    original = getattr(base, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = functools.partial(original, self)
        handle = handle_of(self)
        return own(*args, **kwargs) if handle is None else around(handle, name, own, *args, **kwargs)

    return method


def _call(handle: CompiledPipeline, _: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Plans the call, calls the pipeline, and lets go of what was staged for it, whatever happens.

    Another thread may have undone the pipeline, or compiled it anew, while this one waited for its turn.
    """
    (pipe,) = own.args  # type: ignore[attr-defined]
    with handle.turn, handle.turn:
        if handle_of(pipe) is handle:
            with handle.running():
                handle.plan_ahead(args, kwargs)
                return own(*args, **kwargs)
    now = handle_of(pipe)
    return own(*args, **kwargs) if now is None else _call(now, _, own, *args, **kwargs)


def _set(handle: CompiledPipeline, _: str, own: Callable[..., Any], name: str, value: Any) -> None:
    """Sets an attribute; what takes the place of a component is compiled in its turn."""
    handle.exchange(name, value, functools.partial(own, name, value))


def _delete(handle: CompiledPipeline, _: str, own: Callable[..., Any], name: str) -> None:
    """Deletes an attribute; a component that is one is given back."""
    handle.exchange(name, None, functools.partial(own, name))


def _refuse(handle: CompiledPipeline, name: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuses to move a pipeline that is placed, unless to where it is: ``pipe.to("cuda")`` stands in every script."""
    if name == "to" and _is_there(handle, args, kwargs):
        return handle.pipe
    if name == "to" and not _names_a_device(args, kwargs):
        dtype = next((one for one in (*args, *kwargs.values()) if isinstance(one, torch.dtype)), None)
        return handle.pipe if dtype is None else _convert(handle, dtype)
    raise UsageError(
        f"pipe.{name}() cannot move this pipeline: dovetail placed its components (pipe.hf_device_map says where): "
        "name other devices in backend, or call pipe.dovetail.undo() first"
    )


def _convert(handle: CompiledPipeline, dtype: torch.dtype) -> Any:
    """Has each component take a dtype where it is: diffusers' own way asks first whether it could move all of them."""
    with handle.turn, handle.turn:
        for part in handle.pipe.components.values():
            if isinstance(part, nn.Module):
                part.to(dtype)
    return handle.pipe


def _is_there(handle: CompiledPipeline, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the pipeline computes on a device already, in the dtype if there is one; a bare kind means any of it."""
    given = [*args, *(value for name, value in kwargs.items() if name != "silence_dtype_warnings")]
    dtypes = {one for one in given if isinstance(one, torch.dtype)}
    try:
        devices = {torch.device(one) for one in given if isinstance(one, (str, int, torch.device))}
    except (RuntimeError, TypeError):  # there is no such device
        return False
    held = {one.module.dtype for one in handle.components.values() if hasattr(one.module, "dtype")}
    return bool(devices) and all(map(handle.computes_on, devices)) and (not dtypes or dtypes == held)


def _names_a_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    given = [*args, *(value for name, value in kwargs.items() if name != "silence_dtype_warnings")]
    return not given or any(not isinstance(value, torch.dtype) for value in given if value is not None)


def _load(handle: CompiledPipeline, _: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Loads adapters while stand-ins are in the place of weights."""
    return on_stand_ins(tuple(handle.components.values()), own, *args, **kwargs)


def _fuse(handle: CompiledPipeline, _: str, own: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Merges adapters or takes them out: in all components, or in none where one fails."""
    pipe = handle.pipe
    before = set(getattr(pipe, libraries.FUSED, ()))
    try:
        return merged_together(tuple(handle.components.values()), own, *args, **kwargs)
    except BaseException:
        setattr(pipe, libraries.FUSED, before)
        raise


def _end(handle: CompiledPipeline, _: str, own: Callable[..., Any]) -> Any:
    """Lets go of what was staged at the end of a call, also of another pipeline's that calls this one's methods."""
    handle.release()
    return own()


def _nothing(*_: Any) -> None:
    """Takes no hooks off components: accelerate has none on what is placed."""


def _reset(handle: CompiledPipeline, *_: Any) -> None:
    """Undoes: the components are where they were then."""
    handle.undo()


def _reduce(handle: CompiledPipeline, _: str, __: Callable[..., Any], *___: Any) -> Any:
    """A copy of the pipeline as it is without dovetail."""
    pipe = handle.pipe
    state = {name: value for name, value in vars(pipe).items() if name not in (MARK, libraries.DEVICE_MAP)}
    return _bare, (type(pipe)._dovetail_base,), state


def _bare(base: type[Any]) -> Any:
    """An object of a class, before its state is put in; pickle takes no such function of an object of another class."""
    return object.__new__(base)
