"""Notices whatever may change what a module computes, apart from the numbers in its weights.

Its parts, their classes, attributes, hooks and functions of their own, and what attention processors and other objects
in attributes are set to, and what their code reaches beside them (``reached.py``) are compared by identity with how
they were; for a model of 1500 modules that takes about a millisecond. Only where something differs is it described
anew, by value where it is plain, and by identity elsewhere. Equal descriptions are one state, for which the programs
compiled before hold again.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections import ChainMap, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import torch
from numpy import ndarray
from torch import nn

from ..cache.code import is_own, module_of
from ..cache.patched import members, patched, replaced_method
from ..compiler.frontend.fakes import attributes_of
from ..compiler.frontend.outside import slots_of
from ..compiler.frontend.refusals import foreign_library
from ..conventions import libraries
from ..conventions.hooks import is_of_libraries
from ..conventions.replacements import Replacement, has_own_forward
from ..runtime.store.stored_weight import version_of
from .calls import Answer
from .identity import serial
from .reached import DEPTH, PARTIALS, Reached

_KEPT = 32
"""So many states of a module are remembered."""
_SMALL = 1 << 16
"""Bytes of an array of numpy whose content is compared."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_FRAME = frozenset(vars(nn.Module())) - {"training"}
_NOTED_ELSEWHERE = libraries.BOOKKEEPING
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, Enum)
_CODE = (type, FunctionType, BuiltinFunctionType, ModuleType)
_SEQUENCES = (list, tuple, set, frozenset, deque)
_OF_CLASSES = (*_PLAIN, *_CODE, *_SEQUENCES, dict, property)
_END = object()
_LIBRARIES = ("torch", "diffusers", "transformers", "peft", "collections")


@dataclass(frozen=True, eq=False)
class State:
    """How a module is: ``number`` is that of all equal states; ``live`` parts must run as they are, and why each.

    All of it must where a method of tensors is ``replaced``.
    """

    number: int
    live: Mapping[nn.Module, str]
    replaced: str = ""


@dataclass(frozen=True)
class _Seen:
    """What was there when the module was described last, to be compared by identity."""

    modules: list[nn.Module]
    beside: list[nn.Module]
    classes: list[type]
    dicts: list[Mapping[Any, Any]]
    keyed: list[Mapping[Any, Any]]
    sequences: list[Any]
    hooks: list[dict[int, Any]]
    counts: list[int]
    written: list[Any]
    marks: list[Any]
    weights: list[Mapping[str, Any]]
    hung: list[int]
    reached: Reached
    values: list[Any]


class Stamp:
    """The state of a module and its parts, which is looked at before each call.

    Args:
        module: the module, which is not kept alive.
        instead: gives for modules that only add adapters what they wrap.
    """

    def __init__(self, module: nn.Module, instead: Callable[[], Mapping[nn.Module, nn.Module]]) -> None:
        self._module = weakref.ref(module)
        self._instead = instead
        self._seen: _Seen | None = None
        self._reached = Reached(())
        self._is_due = False
        self._state = State(0, {})
        self._known: OrderedDict[Hashable, State] = OrderedDict()
        self._count = 0

    @property
    def modules(self) -> list[nn.Module]:
        """The parts that were there at the last look; another list after they were looked for anew."""
        return self._seen.modules if self._seen is not None else []

    def look(self) -> State:
        """The state now: the same object until something changes."""
        module = self._module()
        assert module is not None
        if self._is_due or self._seen is None or not _is_as_seen(module, self._seen):
            self._state = self._describe(module)
        return self._state

    def forget(self) -> None:
        """Has the next look describe the module anew, for other tensors are in the places of its weights."""
        self._is_due = True

    def _describe(self, root: nn.Module) -> State:
        self._is_due = False
        instead = self._instead()
        modules = list(_modules(root, instead))
        walk = _Walk()
        parts = tuple(walk.module(one, one is root, instead) for one in modules)
        roots = dict.fromkeys((*map(type, modules), *walk.code))
        told = tuple(walk.members(one) for one in _of_classes(map(type, modules)))
        self._reached, reached = self._reached.renewed(roots, _Walk)
        every = tuple((kind, name, serial(value)) for kind, name, value in patched())
        described = parts, told, self._reached.described, every
        dicts: list[Mapping[Any, Any]] = [
            *(vars(one) for one in modules[1:]),
            *(one._modules for one in modules),
            *walk.dicts,
            *reached.dicts,
        ]
        beside = [one for wrapper in instead for one in (wrapper, *libraries.lora_modules(wrapper))]
        dicts += _of_wrappers(instead)
        dicts += _of_classes(map(type, (*modules, *beside)))
        hooks = [vars(one)[name] for one in (*modules[1:], *beside) for name in _HOOKS]
        classes, counts = list(map(type, (*modules, *beside))), list(map(len, hooks))
        written = [*walk.written, *reached.written]
        marks, sequences = list(map(_mark, written)), [*walk.sequences, *reached.sequences]
        keyed = [*(one._modules for one in modules if isinstance(one, nn.ModuleDict)), *walk.keyed, *reached.keyed]
        weights: list[Mapping[str, Any]] = [held for one in modules for held in (one._parameters, one._buffers) if held]
        hung = _hung_on(weights)
        seen = _Seen(
            modules[1:], beside, classes[1:], dicts, keyed, sequences, hooks, counts, written, marks, weights, hung,
            self._reached, [],
        )  # fmt: skip
        seen.values.extend(_values(root, seen))
        self._seen = seen
        if described not in self._known:
            self._count += 1
            self._known[described] = State(self._count, walk.live, replaced_method())
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(described)
        return self._known[described]


def _is_as_seen(root: nn.Module, seen: _Seen) -> bool:
    if list(map(len, seen.hooks)) != seen.counts or list(map(type, (*seen.modules, *seen.beside))) != seen.classes:
        return False
    try:
        if _hung_on(seen.weights) != seen.hung or not all(map(operator.is_, _values(root, seen), seen.values)):
            return False
    except (RuntimeError, LookupError, ValueError):  # another thread puts something in, or a variable is gone
        return False
    return list(map(_mark, seen.written)) == seen.marks


def _hung_on(weights: list[Mapping[str, Any]]) -> list[int]:
    """How many attributes each weight has."""
    return [len(vars(one)) for held in weights for one in held.values() if one is not None]


def _values(root: nn.Module, seen: _Seen) -> Iterator[Any]:
    """What is compared, with a mark behind it, so that one more or less is another value somewhere."""
    chain = itertools.chain.from_iterable
    own = (
        value
        for name, value in vars(root).items()
        if not isinstance(value, Replacement) and name not in _NOTED_ELSEWHERE
    )
    dicts, lists = (held.values() for held in seen.dicts), chain(seen.sequences)
    forwards = [vars(one).get("forward") for one in seen.beside]
    return itertools.chain(
        own, forwards, chain(dicts), chain(seen.keyed), lists, seen.reached.values(), members(), (_END,)
    )


def _of_wrappers(wrappers: Iterable[nn.Module]) -> Iterator[Mapping[str, Any]]:
    """What modules that add adapters hold, and what says whether their dropouts drop anything."""
    for one in wrappers:
        yield one._modules
        yield from (table._modules for table in libraries.lora_tables(one))
        yield from (vars(added) for added in libraries.lora_modules(one) if isinstance(added, nn.Dropout))


def _modules(root: nn.Module, instead: Mapping[nn.Module, nn.Module]) -> Iterator[nn.Module]:
    """A module and all that is in it, each once, without what only adds adapters."""
    known, waiting = {root}, [root]
    while waiting:
        one = waiting.pop()
        yield one
        for child in one._modules.values():
            child = child if child is None else instead.get(child, child)
            if child is not None and child not in known:
                known.add(child)
                waiting.append(child)


class _Walk:
    """Describes modules, and collects the containers whose contents were described."""

    def __init__(self) -> None:
        self.dicts: list[Mapping[Any, Any]] = []
        self.keyed: list[Mapping[Any, Any]] = []
        self.sequences: list[Any] = []
        self.written: list[Any] = []
        self.live: dict[nn.Module, str] = {}
        self.code: dict[Any, None] = {}
        self._met: dict[int, Any] = {}
        self._weights: dict[int, int] = {}

    def module(self, module: nn.Module, is_root: bool, instead: Mapping[nn.Module, nn.Module]) -> Hashable:
        """What a module is and what it is set to; one that must run as it is is described by that alone."""
        why = _why_live(module, is_root)
        if why:
            self.live[module] = why
        if why and not is_root:
            return serial(module), "as it is"
        own = vars(module)
        settings = ((name, value) for name, value in own.items() if _counts(name, value))
        children = (
            (name, None if child is None else serial(instead.get(child, child)))
            for name, child in own["_modules"].items()
        )
        hooks = (serial(hook) for name in _HOOKS for hook in (() if is_root else own[name].values()))
        tensors = (
            (name, value is None or (value.dtype, value.shape, self._which(value), self._hung_on(held, name, value)))
            for held in (own["_parameters"], own["_buffers"])
            for name, value in held.items()
        )
        values = tuple((name, self.value(value, DEPTH)) for name, value in settings)
        return serial(module), serial(type(module)), bool(why), values, tuple(children), tuple(hooks), tuple(tensors)

    def _which(self, weight: torch.Tensor) -> int:
        """Which of the weights that were met so far a weight is: of one that is tied a program knows one."""
        return self._weights.setdefault(id(weight), len(self._weights))

    def _hung_on(self, held: Mapping[str, Any], name: str, weight: torch.Tensor) -> Hashable:
        """What somebody hung on a weight, which a forward may read."""
        found = attributes_of(weight)
        if not found:
            return ()
        self.dicts.append(_Hung(held, name))
        return tuple((key, self.value(value, DEPTH)) for key, value in found.items())

    def value(self, value: Any, depth: int) -> Hashable:
        """A value of an attribute: what it says where that is plain, and which object it is elsewhere."""
        if isinstance(value, float):
            return type(value), value.hex()  # two zeros are not one
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, MethodType):
            return self.value(value.__self__, depth), self.value(value.__func__, depth)
        if isinstance(value, PARTIALS):
            return type(value), self.value((value.func, value.args, value.keywords), depth)
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (*_SEQUENCES, dict)):
            return value.__name__, self.value(value.__self__, depth)
        if isinstance(value, (torch.Tensor, ndarray, bytearray)):
            self.written.append(value)
            return serial(value), _mark(value)
        if isinstance(value, (nn.Module, *_CODE)):
            if isinstance(value, FunctionType):
                self.code[value] = None
            return serial(value)
        if id(value) in self._met:
            return "met", self._met[id(value)][1]
        self._met[id(value)] = value, len(self._met)
        if isinstance(value, _SEQUENCES):
            if not isinstance(value, tuple):
                self.sequences.append(value)
            told = tuple(self.value(item, depth) for item in value)
            held = getattr(value, "__dict__", None)  # of a class of somebody's own
            return (type(value), told) if held is None else (type(value), told, self.value(held, depth))
        if isinstance(value, (dict, MappingProxyType)):
            self.dicts.append(value)
            self.keyed.append(value)
            told = tuple((_key(key), self.value(item, depth)) for key, item in list(value.items()))
            held = getattr(value, "__dict__", None)  # of a class of somebody's own
            return serial(type(value)), told, () if held is None else self.value(held, depth)
        held = _attributes(value) if depth else None
        if depth and (callable(value) or is_own(module_of(type(value)))):
            self.code[type(value)] = None
        if held is None:
            return serial(value)
        self.dicts.append(held)
        items = tuple((name, self.value(item, depth - 1)) for name, item in list(held.items()))
        is_plain = type(value).__module__.partition(".")[0] in _LIBRARIES
        return serial(type(value) if is_plain else value), items

    def members(self, members: Mapping[str, Any]) -> Hashable:
        """What a class says: its functions, other members that are plain, or containers, and objects of the user's."""
        shown = ((name, value) for name, value in members.items() if not name.startswith("__") or name == "__call__")
        return tuple(
            (name, self.value(value, 0 if isinstance(value, _OF_CLASSES) else DEPTH))
            for name, value in shown
            if isinstance(value, (*_OF_CLASSES, *PARTIALS)) or is_own(module_of(type(value)))
        )


class _Hung(Mapping[str, Any]):
    """The attributes of the tensor that is in a place of a weight when they are asked for."""

    def __init__(self, held: Mapping[str, Any], name: str) -> None:
        self._held, self._name = held, name

    def __getitem__(self, name: str) -> Any:
        return attributes_of(self._held[self._name])[name]

    def __iter__(self) -> Iterator[str]:
        weight = self._held.get(self._name)
        return iter(() if weight is None else attributes_of(weight))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Slots(Mapping[str, Any]):
    """The attributes of an object that has a place for each in place of a dictionary, as they are when asked for."""

    def __init__(self, value: Any, names: Iterable[str]) -> None:
        self._value, self._names = value, tuple(names)

    def __getitem__(self, name: str) -> Any:
        return getattr(self._value, name)

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._names if hasattr(self._value, name))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _attributes(value: Any) -> Mapping[str, Any] | None:
    """The attributes of an object of a Python class, or None."""
    held = getattr(value, "__dict__", None)
    names = slots_of(value)
    if isinstance(held, dict):
        return ChainMap(held, _Slots(value, names)) if names else held  # type: ignore[arg-type]
    return _Slots(value, names) if names else None


def _of_classes(classes: Iterable[type]) -> list[Mapping[str, Any]]:
    """The members of classes and of what they inherit from, without those of every module."""
    every = set(nn.Module.__mro__)
    return [
        vars(one)
        for one in dict.fromkeys(base for kind in dict.fromkeys(classes) for base in kind.__mro__)
        if one not in every
    ]


def _mark(value: Any) -> Hashable:
    """What tells whether a tensor or an array was written to."""
    if isinstance(value, torch.Tensor):
        return version_of(value)
    if isinstance(value, bytearray):
        return bytes(value) if len(value) <= _SMALL else ()
    return value.tobytes() if value.nbytes <= _SMALL else ()


def _counts(name: str, value: Any) -> bool:
    return name not in _FRAME and name not in _NOTED_ELSEWHERE and not isinstance(value, Replacement)


def _why_live(module: nn.Module, is_root: bool) -> str:
    """Why a module must run as it is, or nothing; the hooks of the one that is called run around its program."""
    own = vars(module)
    if has_own_forward(module) and not (is_root and not isinstance(own["forward"], Answer)):
        return "its forward() was replaced, for example by a cache"
    quantized = (one for one in own["_parameters"].values() if one is not None)
    if library := next(filter(None, map(foreign_library, quantized)), ""):
        return f"weights that {library} quantized"
    if is_root:
        return ""
    foreign = any(not is_of_libraries(hook) for name in _HOOKS for hook in own[name].values())
    return "hooks" if foreign else ""


def _key(key: Any) -> Hashable:
    return key if isinstance(key, _PLAIN) else serial(key)
