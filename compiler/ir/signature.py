"""How a compiled module is called: its arguments, what they must look like, and the structure of its results.

A call is flattened to a list of leaves, which are compared with those of the trace. A static program is right for the
shapes, dtypes and constants it was traced with and no others, so whatever differs raises and nothing runs.
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import CallError
from .asked import TRACED, difference, other_mode
from .sizes import evaluate, holds, symbol_names, symbols_of, with_numbers
from .structure import read_structure

_MOST_HELD = 4096
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor argument: its path in the call, and the shape, dtype and strides it was traced with."""

    path: str
    shape: tuple[int | str, ...]
    dtype: torch.dtype
    stride: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class ConstantLeaf:
    """An argument whose value the trace took in: a call must give an equal one."""

    path: str
    value: Any


@dataclass(frozen=True)
class Signature:
    """The calling convention of a traced module.

    ``positional`` names the parameters of ``forward`` that may be given by position, ``defaults`` has those that may
    be left out; ``names`` and ``specs`` are the arguments of the traced call, defaults included; a structure read from
    a file is text until it is used, for its classes may not be imported yet; ``ranges`` bounds the symbols of dynamic
    dimensions, and ``guards`` are the relations between them that the trace took for granted;
    ``asked`` is what the model asks of its inputs beside their elements.
    """

    positional: tuple[str, ...]
    defaults: Mapping[str, Any]
    names: tuple[str, ...]
    specs: tuple[pytree.TreeSpec | str, ...]
    leaves: tuple[TensorLeaf | ConstantLeaf, ...]
    out_spec: pytree.TreeSpec | str
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    asked: frozenset[str] = frozenset()

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, in the order of the program's inputs.

        Raises CallError where the call differs from the traced one in structure, shape, dtype or a constant.
        """
        leaves: list[Any] = []
        for name, spec, value in zip(self.names, self.trees, self._arguments(args, kwargs), strict=True):
            if spec.is_leaf():
                leaves.append(value)
                continue
            flat, found = pytree.tree_flatten(value)
            if found != spec:
                raise CallError(f"argument {name} has another structure: traced with {spec}, called with {found}")
            leaves.extend(flat)
        return self._check(leaves)

    def takes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call is as the traced one in all that matters."""
        try:
            self.flatten(args, kwargs)
        except CallError:
            return False
        return True

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The module's own result structure around its leaves."""
        return pytree.tree_unflatten(leaves, self._out_tree)

    @cached_property
    def trees(self) -> tuple[pytree.TreeSpec, ...]:
        """The structure of each argument."""
        return tuple(map(read_structure, self.specs))

    @cached_property
    def _out_tree(self) -> pytree.TreeSpec:
        return read_structure(self.out_spec)

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        given = name_arguments(self.positional, self.defaults, args, kwargs)
        if given.keys() != self._known:
            missing = [name for name in self.names if name not in given]
            extra = [name for name in given if name not in self.names]
            raise CallError(
                f"called with other arguments than traced: missing {missing or 'none'}, "
                f"not in the trace {extra or 'none'}: compile for this call"
            )
        return [given[name] for name in self.names]

    def _check(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        tensors = []
        symbols: dict[str, int] = {}
        depending: list[tuple[torch.Tensor, TensorLeaf]] = []
        for leaf, expected in zip(leaves, self.leaves, strict=True):
            if isinstance(expected, ConstantLeaf):
                if not is_same(leaf, expected.value):
                    raise CallError(_constant_message(leaf, expected))
                continue
            if not isinstance(leaf, torch.Tensor):
                raise CallError(f"argument {expected.path} must be a tensor, as in the trace; got {leaf!r:.80}")
            if leaf.dtype != expected.dtype or (
                leaf.shape != expected.shape and not _binds(leaf.shape, expected.shape, symbols, self.ranges)
            ):
                raise CallError(_tensor_message(leaf, expected, self.ranges))
            if leaf.shape != expected.shape:
                depending.append((leaf, expected))
            tensors.append(leaf)
        for leaf, expected in depending:
            if not _fits(leaf.shape, expected.shape, symbols):
                raise CallError(_tensor_message(leaf, expected, self.ranges))
        if self.guards:
            self._check_guards(symbols)
        if self.asked - {TRACED}:
            self._check_asked(tensors, symbols)
        return tensors

    def symbols_of(self, tensors: Sequence[torch.Tensor]) -> dict[str, int]:
        """The sizes that symbols have in a call of these tensors, which were checked."""
        symbols: dict[str, int] = {}
        for leaf, expected in zip(tensors, self.tensors, strict=True):
            _binds(leaf.shape, expected.shape, symbols, self.ranges)
        return symbols

    def _check_asked(self, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> None:
        """Raises CallError where the model would have another answer to something that it asks of its inputs."""
        if problem := other_mode(self.asked):
            raise CallError(f"{problem}, or compile it for such a call")
        for tensor, leaf in zip(tensors, self.tensors, strict=True):
            problem = difference(tensor, [evaluate(step, symbols) for step in leaf.stride], self.asked)
            if problem:
                raise CallError(f"argument {leaf.path} {problem}, or compile it for such a call")

    def check_strides(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raises CallError where a tensor, of those that `flatten` gives, has other strides than it was traced with.

        Strides that no element is reached by do not count. Where they depend on symbols, a tensor must be contiguous.
        """
        for tensor, leaf in zip(tensors, self.tensors, strict=True):
            fixed = all(isinstance(step, int) for step in leaf.stride)
            steps = zip(tensor.stride(), leaf.stride, tensor.shape, strict=True)
            if any(one != other for one, other, size in steps if size > 1) if fixed else not tensor.is_contiguous():
                raise CallError(
                    f"argument {leaf.path} has the strides {tuple(tensor.stride())} and was traced with {leaf.stride}; "
                    "the model writes memory that other values share under some strides alone: pass a tensor of the "
                    "same strides, such as one made by .contiguous(), or compile it for these"
                )

    def _check_guards(self, symbols: Mapping[str, int]) -> None:
        """Raises CallError where a relation that the trace took for granted does not hold."""
        sizes = tuple(symbols.values())
        if sizes in self._held:
            return
        for guard in self.guards:
            if not holds(guard, symbols):
                where = ", ".join(symbol_names(((leaf.path, leaf.shape) for leaf in self.tensors), symbols_of(guard)))
                raise CallError(
                    f"the trace holds where {with_numbers(guard, symbols)}, which is false for this call; {where}: "
                    "compile for this shape"
                )
        if len(self._held) < _MOST_HELD:
            self._held.add(sizes)

    @cached_property
    def _held(self) -> set[tuple[int, ...]]:
        """The sizes for which all guards were found to hold."""
        return set()

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def tensors(self) -> tuple[TensorLeaf, ...]:
        """The tensor leaves alone, in the order of the program's inputs."""
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, TensorLeaf))


def constant_key(value: Any) -> Hashable:
    """The type and value of a constant: two zeros are two, what is not a number is alike, and True is not 1."""
    kind = type(value)
    if isinstance(value, float):
        return kind, value.hex()
    if isinstance(value, numbers.Number) and not isinstance(value, int):
        return kind, repr(value)  # such as a complex number, which has two signs
    return kind, value


def is_same(one: Any, other: Any) -> bool:
    """Whether two constants are of one type and equal, bit by bit where they are numbers."""
    try:
        return bool(constant_key(one) == constant_key(other))
    except (TypeError, ValueError, RuntimeError):  # arrays, and what else compares element by element
        return False


def leaf_path(name: str, index: int, count: int) -> str:
    """How messages call one leaf of an argument."""
    return name if count == 1 else f"{name}[{index}]"


def name_arguments(
    positional: Sequence[str], defaults: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """All arguments of a call by name, defaults filled in; with surplus positional ones the others stand before them.

    Surplus ones are named ``*0``, ``*1`` and so on. Raises CallError when an argument is given twice.
    """
    named = dict(zip(positional, args, strict=False))
    named.update((f"*{index}", value) for index, value in enumerate(args[len(positional) :]))
    twice = named.keys() & kwargs.keys()
    if twice:
        raise CallError(f"argument {sorted(twice)[0]} was given twice, by position and by name")
    if len(args) > len(positional):
        return {**named, **{name: value for name, value in defaults.items() if name not in named}, **kwargs}
    return {**defaults, **named, **kwargs}


def parameters_of(function: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of a function's positional parameters, and its defaults that are plain data."""
    parameters = inspect.signature(function).parameters.values()
    positional = tuple(
        p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"
    )
    return positional, {p.name: p.default for p in parameters if _is_plain(p.default)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _binds(
    shape: Sequence[int],
    expected: Sequence[int | str],
    symbols: dict[str, int],
    ranges: Mapping[str, tuple[int, int]],
) -> bool:
    """Whether a shape agrees in all but expressions; the sizes of bare symbols are noted for those."""
    if len(shape) != len(expected):
        return False
    for size, wanted in zip(shape, expected, strict=True):
        if isinstance(wanted, int):
            if size != wanted:
                return False
        elif wanted in ranges:
            low, high = ranges[wanted]
            if symbols.setdefault(wanted, size) != size or not low <= size <= high:
                return False
    return True


def _fits(shape: Sequence[int], expected: Sequence[int | str], symbols: Mapping[str, int]) -> bool:
    """Whether a shape agrees in its expressions too, all symbols being known."""
    try:
        return all(evaluate(wanted, symbols) == size for size, wanted in zip(shape, expected, strict=True))
    except ValueError:
        return False


def _constant_message(leaf: Any, expected: ConstantLeaf) -> str:
    got = f"a tensor of shape {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)
    return f"argument {expected.path} was {expected.value!r} when traced, got {got}: compile for this value"


def _tensor_message(leaf: torch.Tensor, expected: TensorLeaf, ranges: Mapping[str, tuple[int, int]]) -> str:
    named = (size for size in dict.fromkeys(expected.shape) if isinstance(size, str))
    bounds = [_bounds(size, *ranges[size]) for size in named if size in ranges]
    way = f"compile for this shape{'' if bounds else ', or trace with dynamic_shapes'}"
    if leaf.dtype != expected.dtype and _binds(leaf.shape, expected.shape, {}, ranges):
        way = "compile for this dtype, or cast the argument"
    return (
        f"argument {expected.path} was traced as {_show(expected.dtype, expected.shape)}"
        f"{' for ' * bool(bounds)}{', '.join(bounds)}, got {_show(leaf.dtype, tuple(leaf.shape))}: {way}"
    )


def _bounds(symbol: int | str, low: int, high: int) -> str:
    """The range of a symbol, for messages: ``2 ≤ s0 ≤ 64``, or ``s0 ≥ 2`` where nothing limits it."""
    return f"{symbol} ≥ {low}" if high >= _NO_LIMIT else f"{low} ≤ {symbol} ≤ {high}"


def _show(dtype: torch.dtype, shape: Sequence[int | str]) -> str:
    return f"{str(dtype).removeprefix('torch.')}[{', '.join(map(str, shape))}]"
