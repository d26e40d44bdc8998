"""What a compiled pipeline does otherwise than its class: a subclass takes the place of the class until it is undone.

So nothing in the pipeline leads back to it, and an error or interrupt anywhere in a call is seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from ..compiler.errors import UsageError
from ..components.calls import is_compiled
from ..conventions import libraries
from ..lora.stand_ins import on_stand_ins

if TYPE_CHECKING:
    from .pipeline import CompiledPipeline

MARK = "_dovetail"
_MOVES = ("to", "enable_model_cpu_offload", "enable_sequential_cpu_offload", "enable_group_offload")
_LOADS = ("load_lora_weights",)


def handle_of(pipe: Any) -> CompiledPipeline | None:
    """What a compiled pipeline has at ``pipe.dovetail``, or None."""
    found: CompiledPipeline | None = getattr(pipe, "__dict__", {}).get(MARK)
    return found


def become_compiled(pipe: Any, handle: CompiledPipeline) -> None:
    """Gives a pipeline the class of a compiled one; what it has at ``pipe.dovetail`` must not keep it alive."""
    pipe.__dict__[MARK] = handle
    base: Any = type(pipe)
    libraries.tell_of_missing("dovetail", _why_not_compiled)
    pipe.__class__ = _compiled(base)


def _why_not_compiled(pipe: Any) -> str:
    """Why a pipeline has nothing at ``pipe.dovetail``."""
    name = type(pipe).__name__
    placed = [key for key, part in pipe.components.items() if isinstance(part, nn.Module) and is_compiled(part)]
    if placed:
        return (
            f"this {name} was not compiled itself: its {', '.join(placed)} are those of a compiled pipeline, whose "
            ".dovetail says where they are"
        )
    return f"this {name} is not compiled, and neither is a copy of one that is: dovetail.compile_pipeline(pipe) does so"


def become_as_before(pipe: Any) -> None:
    """Gives a pipeline its own class back."""
    for name in (libraries.DEVICE_MAP, MARK):
        pipe.__dict__.pop(name, None)
    if hasattr(type(pipe), "_dovetail_base"):
        pipe.__class__ = type(pipe)._dovetail_base


@functools.cache
def _compiled(base: type[Any]) -> type[Any]:
    own: dict[str, Callable[..., Any]] = {
        "__call__": _call,
        "__setattr__": _set,
        "__delattr__": _delete,
        "__reduce_ex__": _reduce,
    }
    own |= dict.fromkeys(_MOVES, _refuse) | dict.fromkeys(_LOADS, _load)
    own |= {libraries.END_OF_CALL: _end, libraries.RESET_DEVICE_MAP: _reset}
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
    """Plans the call, calls the pipeline, and lets go of what was staged for it, whatever happens."""
    with handle.running():
        handle.plan_ahead(args, kwargs)
        return own(*args, **kwargs)


def _set(handle: CompiledPipeline, _: str, own: Callable[..., Any], name: str, value: Any) -> None:
    """Sets an attribute; what takes the place of a component is compiled in its turn."""
    handle.exchange(name, value, functools.partial(own, name, value))


def _delete(handle: CompiledPipeline, _: str, own: Callable[..., Any], name: str) -> None:
    """Deletes an attribute; a component that is one is given back."""
    handle.exchange(name, None, functools.partial(own, name))


def _refuse(handle: CompiledPipeline, name: str, _: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuses to move a pipeline that is placed, unless to where it is: ``pipe.to("cuda")`` stands in every script."""
    if name == "to" and _is_there(handle, args, kwargs):
        return handle.pipe
    if name == "to" and not _names_a_device(args, kwargs):
        raise UsageError(
            "pipe.to(dtype) cannot convert this pipeline, which is compiled: load it in that dtype (dtype=…), or call "
            "pipe.dovetail.undo() first"
        )
    raise UsageError(
        f"pipe.{name}() cannot move this pipeline: dovetail placed its components (pipe.hf_device_map says where): "
        "name other devices in backend, or call pipe.dovetail.undo() first"
    )


def _is_there(handle: CompiledPipeline, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the pipeline computes on a device already, in the dtype if there is one; a bare kind means any of it."""
    import torch

    given = [*args, *(value for name, value in kwargs.items() if name != "silence_dtype_warnings")]
    dtypes = {one for one in given if isinstance(one, torch.dtype)}
    try:
        devices = {torch.device(one) for one in given if isinstance(one, (str, int, torch.device))}
    except (RuntimeError, TypeError):  # there is no such device
        return False
    held = {one.module.dtype for one in handle.components.values() if hasattr(one.module, "dtype")}
    return bool(devices) and all(map(handle.computes_on, devices)) and (not dtypes or dtypes == held)


def _names_a_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    import torch

    given = [*args, *(value for name, value in kwargs.items() if name != "silence_dtype_warnings")]
    return not given or any(not isinstance(value, torch.dtype) for value in given if value is not None)


def _load(handle: CompiledPipeline, _: str, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Loads adapters while stand-ins are in the place of weights."""
    return on_stand_ins(tuple(handle.components.values()), own, *args, **kwargs)


def _end(handle: CompiledPipeline, _: str, own: Callable[..., Any]) -> Any:
    """Lets go of what was staged at the end of a call, also of another pipeline's that calls this one's methods."""
    handle.release()
    return own()


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
