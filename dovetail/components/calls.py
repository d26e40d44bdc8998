"""The calls of a component, and what is done around one: arguments are moved, results made ordinary tensors."""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..compiler.errors import CallError, TraceError
from ..compiler.ir.program import Program
from ..conventions import libraries
from ..conventions.replacements import Replacement, copy_as_is
from ..runtime.devices.transfers import handed
from .arguments.lengths import Lengths
from .compiled import CompiledModule

if TYPE_CHECKING:
    from .component import Component


class OfComponent:
    """Something of a component, which keeps this alive, and not the other way round."""

    def __init__(self, component: Component) -> None:
        self._owner = weakref.ref(component)

    @property
    def component(self) -> Component:
        """The component."""
        component = self._owner()
        assert component is not None
        return component


class ByParts(Enum):
    """Answers a call in place of a program: the module's own Python runs, and its parts answer for themselves."""

    BY_PARTS = "by its parts"


BY_PARTS = ByParts.BY_PARTS

Answering: TypeAlias = CompiledModule | ByParts
"""What answers a call of a component."""


class Call:
    """One way in which a component or a part of it is called, and the programs compiled for it so far.

    ``traced`` has what was traced for it and has no program yet, by the keys that the programs will have; ``asked`` is
    what its traces are known to ask of their inputs.

    It keeps no module alive: ``programs`` hold weights, and a module that held its own programs would be freed by the
    garbage collector alone.
    """

    def __init__(self, path: str, method: str, module: nn.Module) -> None:
        there = _placed(module, method)
        known: Call | None = there.call if isinstance(there, Answer) else None  # another component has this part too
        self.path = path
        self.method = method
        self._module = weakref.ref(module)
        self._own: Callable[..., Any] | None = known._own if known else _own_function(module, method)
        self.whole: Answering | None = None
        self.failures = 0
        self.programs: OrderedDict[Any, Answering] = OrderedDict()
        self.traced: OrderedDict[Any, Program] = OrderedDict()
        self.asked: frozenset[str] = frozenset()
        self.lengths = Lengths()
        self.traces = 0
        self.is_over = False

    def __str__(self) -> str:
        return (
            ".".join(part for part in (self.path, self.method if self.method != "forward" else "") if part) or "forward"
        )

    def keep(self, key: Any, program: Answering, most: int) -> None:
        """Keeps a program; of more than so many, the one that was used longest ago is forgotten, with its weights."""
        self.programs[key] = program
        self.traced.pop(key, None)
        while len(self.programs) > most:
            _, oldest = self.programs.popitem(last=False)
            if isinstance(oldest, CompiledModule) and oldest not in self.programs.values():
                oldest.unload()

    def keep_trace(self, key: Any, traced: Program, most: int) -> None:
        """Keeps a trace of which no program is made yet; of more than so many, the oldest is forgotten."""
        self.traced[key] = traced
        while len(self.traced) > most:
            self.traced.popitem(last=False)

    def unload(self) -> None:
        """Has the programs fetch their weights again at their next calls."""
        unload(self.programs.values())

    @property
    def held(self) -> nn.Module | None:
        """The module that is called, or None when nobody has it any more."""
        return self._module()

    @property
    def module(self) -> nn.Module:
        """The module that is called; raises ReferenceError when nobody has it any more."""
        module = self._module()
        if module is None:
            raise ReferenceError(f"the module of {self} is gone")
        return module

    @property
    def original(self) -> Callable[..., Any]:
        """What the module itself does."""
        function: Callable[..., Any] = getattr(type(self.module), self.method)
        return self._own or MethodType(function, self.module)

    @property
    def is_patched(self) -> bool:
        """Whether the module had a function of its own in place of its class's."""
        return self._own is not None

    def swap_in(self, owner: Callable[[], Any]) -> None:
        """Puts the compiled call in place; ``owner`` gives the component, or None when that is gone."""
        _place(self.module, self.method, Answer(owner, self))

    @property
    def is_displaced(self) -> bool:
        """Whether the module's own function stands where the compiled call was put.

        Whoever wrapped a function may put it back after the compiled call took the wrapper's place.
        """
        module = self._module()
        placed = _placed(module, self.method) if module is not None else None
        if module is None or isinstance(placed, Answer):
            return placed is not None and has_ended(placed.call)
        return _own_function(module, self.method) is None

    def forget_refusals(self) -> None:
        """Has each signature that runs by its parts traced again when it is next called."""
        self.failures = 0
        self.whole = None if self.whole is BY_PARTS else self.whole
        for key in [key for key, answering in self.programs.items() if answering is BY_PARTS]:
            del self.programs[key]

    def end(self) -> None:
        """Forgets the programs and gives the module its own call back.

        Where something else has wrapped the compiled call meanwhile it stays, and leads to the module's own.
        """
        self.is_over = True
        self.programs.clear()
        self.traced.clear()
        self.whole = None
        module = self._module()
        if module is not None:
            copy_as_is(module)
        placed = _placed(module, self.method) if module is not None else None
        if module is not None and isinstance(placed, Answer) and placed.call is self:
            _place(module, self.method, self._own)


def unload(programs: Iterable[Answering]) -> None:
    """Has programs fetch their weights again at their next calls."""
    for program in list(programs):
        if isinstance(program, CompiledModule):
            program.unload()


def has_ended(call: Call) -> bool:
    """Whether a call is over now; other threads end calls, so it is asked again where that matters."""
    return call.is_over


def answer_late(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Answers a call that another thread has ended meanwhile: as the module does now, compiled anew or undone."""
    placed = vars(call.module).get(call.method)
    if isinstance(placed, Answer) and placed.call is not call:
        return placed(*args, **kwargs)
    return call.original(*args, **kwargs)


class Answer(Replacement):
    """What stands in a module in place of its own call: has the component answer it."""

    __slots__ = ("__name__", "_owner", "call")
    call: Call

    def __init__(self, owner: Callable[[], Any], call: Call) -> None:
        self.__name__ = call.method
        self._owner = owner
        self.call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answers a call; as the module itself would, when the component is gone or was undone."""
        return _undisturbed()(self, args, kwargs)

    def answer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Does that."""
        component = None if self.call.is_over else self._owner()
        return self.call.original(*args, **kwargs) if component is None else component.run(self.call, args, kwargs)

    @property
    def replaced(self) -> Any:
        """The function that the module had in place of its class's, or None."""
        return self.call._own

    @property
    def __signature__(self) -> inspect.Signature:
        """The parameters of the module's own call; libraries look at them."""
        return inspect.signature(self.call.original)


def is_compiled(module: nn.Module) -> bool:
    """Whether a component answers the calls of a module."""
    return answering(module) is not None


def component_of(module: nn.Module) -> Component | None:
    """The component that a module was made; None for a part of one, and where none answers its calls."""
    component = answering(module)
    return component if component is not None and component.module is module else None


def answering(module: nn.Module) -> Component | None:
    """The component that answers the calls of a module, which is its own or a part of it; or None."""
    placed = _placed(module, "forward")
    if not isinstance(placed, Answer) or placed.call.is_over:
        return None
    found: Component | None = placed._owner()
    return found


def call_of(module: nn.Module) -> Call | None:
    """The call of a module's own function that a component answers, or None."""
    placed = _placed(module, "forward")
    return placed.call if isinstance(placed, Answer) and not placed.call.is_over else None


@functools.cache
def _undisturbed() -> Callable[..., Any]:
    """What answers calls, in a form that torch.compile does not look into, if a component is compiled by that too."""
    answer: Callable[..., Any] = torch.compiler.disable(Answer.answer)
    return answer


def _placed(module: nn.Module, method: str) -> Any:
    """What a module has in place of its class's method, inside of what libraries wrap around that; or None."""
    wrapped = _wrapped(module, method)
    return getattr(*wrapped) if wrapped else vars(module).get(method)


def _place(module: nn.Module, method: str, function: Callable[..., Any] | None) -> None:
    """Puts a function there; None stands for the class's."""
    wrapped = _wrapped(module, method)
    if wrapped:
        setattr(*wrapped, function or MethodType(getattr(type(module), method), module))
    elif function is None:
        vars(module).pop(method, None)
    else:
        vars(module)[method] = function


def _wrapped(module: nn.Module, method: str) -> tuple[Any, str] | None:
    return libraries.wrapped_forward(module) if method == "forward" else None


def _own_function(module: nn.Module, method: str) -> Callable[..., Any] | None:
    """The function that a module has in place of its class's, or None."""
    found: Callable[..., Any] | None = _placed(module, method)
    if isinstance(found, MethodType) and found.__self__ is module and found.__func__ is getattr(type(module), method):
        return None
    return found


def without_caches(copied: nn.Module) -> bool:
    """Has the copy of a language model, which only encodes a text, not keep what it computed for the next token.

    Says whether a call would return that by default.
    """
    configs: dict[int, Any] = {}
    changed: list[nn.Module] = []
    for child in copied.modules():
        config = vars(child).get("config")
        if getattr(config, "__dict__", {}).get("use_cache") is True:
            vars(child)["config"] = configs.setdefault(id(config), copy.copy(config))
            changed.append(child)
    for config in configs.values():
        config.use_cache = False
    return any(map(libraries.returns_caches, changed))


def moved(value: Any, device: torch.device) -> Any:
    """An argument or result on a device; a container whose tensors are there stays the object it is."""
    leaves = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
    if all(leaf.device == device for leaf in leaves):
        return value
    return pytree.tree_map(lambda leaf: handed(leaf, device) if isinstance(leaf, torch.Tensor) else leaf, value)


def refuse_what_is_no_function(
    call: Call, component: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """A part that is handed a list or dict may write into it, which a program would not."""
    written = (value for value in (*args, *kwargs.values()) if isinstance(value, (list, dict)) and value)
    if call.module is not component and next(written, None) is not None:
        raise TraceError(f"{call} is handed a list or dict, in which it may keep what later calls read")


def refuse_gradients(title: str, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises CallError where a gradient is asked for: programs compute none."""
    if not torch.is_grad_enabled():
        return
    given = (leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    wanted = "an input requires one" if any(leaf.requires_grad for leaf in given) else ""
    if module.training and any(parameter.requires_grad for parameter in module.parameters()):
        wanted = wanted or "the module is in training mode"
    if wanted:
        raise CallError(
            f"{title} computes no gradients, and {wanted}: call it under torch.no_grad(), or undo() the compiled "
            "pipeline for training and for guidance by gradients"
        )
