"""Checks that every op yields the shape and dtype that its annotation says, given operands as theirs say.

A trace is right by how it is made, what a file says is not: one number of a plan may make an op as large as memory. As
each op is asked by itself, over tensors without data of its operands' types, ops of equal operands are asked once:
a model of many like blocks takes a small part of the time that running it whole takes (``deep.py``).
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ...compiler.errors import VerificationError
from ...compiler.ir.program import HERE, Program, value_of
from ...compiler.ir.sizes import evaluate
from ...compiler.ir.targets import bounded
from ...compiler.ir.value import TensorType, Value
from .snapshot import Violation
from .verifier import explain

LAW = "Every node yields what its annotation says: so many results, of this shape and dtype."
_HOST = torch.device("cpu")
_STEPS = 100_000
"""Of so many operations and results the ops of a program may be made, for loops over elements have no other end."""
_FAR = 2**40
_SPLITS = frozenset(("split", "split_copy", "unsafe_split", "unbind", "unbind_copy"))
_COUNTED = frozenset(("chunk", "unsafe_chunk", "tensor_split", "hsplit", "vsplit", "dsplit"))


def verify_types(program: Program) -> None:
    """Compares the annotation of every op of a program with torch's shape functions; allocates and computes nothing.

    A program of dynamic sizes is checked for those of its example. What only a kernel knows is left as it is said.
    Raises VerificationError, which names the first op that yields something else.
    """
    with torch.no_grad(), _quiet(), _Bounded() as mode:
        checked = _Checked(program, mode)
        for node in program.ops():
            problem = checked.problem(node)
            if problem:
                raise VerificationError(explain(program, Violation("types", f"%{node.name} {problem}", node), LAW))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Has PyTorch write no traceback of an op that cannot be run: that is told as any other problem."""
    logger = logging.getLogger(FakeTensorMode.__module__)

    def is_of_others(_: logging.LogRecord, here: int = threading.get_ident()) -> bool:
        return threading.get_ident() != here

    logger.addFilter(is_of_others)
    try:
        yield
    finally:
        logger.removeFilter(is_of_others)


class _Checked:
    """What ops yield, by their operands' types and their other arguments."""

    def __init__(self, program: Program, mode: _Bounded) -> None:
        self._symbols, self._mode = program.symbols, mode
        self._numbers: dict[Node, Any] = {}
        self._yielded: dict[Hashable, tuple[Any, str]] = {}

    def problem(self, node: Node) -> str:
        """What is wrong with the annotation of an op; empty where nothing is."""
        key = node.target, self._key(node.args), self._key(node.kwargs)
        if key not in self._yielded:
            self._yielded[key] = self._yield(node)
        found, problem = self._yielded[key]
        value = value_of(node)
        if problem or found is NotImplemented:  # only the data knows, or only a kernel
            return problem
        if value is None and isinstance(found, (int, float, complex, type(None))):
            self._numbers[node] = found
            return ""
        said = self._said(value)
        return "" if found == said else f"yields {_show(found)}, its annotation says {_show(said)}"

    def _yield(self, node: Node) -> tuple[Any, str]:
        """What an op yields, or what is wrong with it."""
        is_far = "as_strided" in str(node.target)  # it may reach beyond its operand, in memory that this is a part of
        try:
            args, kwargs = map_arg((node.args, node.kwargs), lambda one: self._made(value_of(one), one, is_far))
            args, kwargs = pytree.tree_map(lambda one: _HOST if one == HERE else one, (args, kwargs))
            self._mode.count(node.target, args, kwargs)
            function = node.target if isinstance(node.target, OpOverload) else bounded(node.target)
            return self._found(function(*args, **kwargs)), ""
        except (DataDependentOutputException, UnsupportedOperatorException):
            return NotImplemented, ""
        except DynamicOutputShapeException:
            return None, "has a size that only data decides, which no trace lets in"
        except Exception as error:  # whatever a file says
            return None, f"cannot be run on what it reads: {str(error).strip() or type(error).__name__}"

    def _made(self, value: Value, node: Node, is_far: bool) -> Any:
        """A tensor without data of an operand's type, or the number that it is."""
        if isinstance(value, TensorType):
            sizes, strides = self._sizes(value.shape), self._sizes(value.stride)
            if is_far:
                return torch.empty(_FAR, dtype=value.dtype).as_strided(sizes, strides)
            return torch.empty_strided(sizes, strides, dtype=value.dtype)
        return self._numbers.get(node, 1) if value is None else tuple(self._made(item, node, is_far) for item in value)

    def _key(self, argument: Any) -> Hashable:
        if isinstance(argument, Node):
            value = value_of(argument)
            return _key_of(value) if value is not None else self._key(self._numbers.get(argument, 1))
        if isinstance(argument, (list, tuple)):
            return type(argument).__name__, *map(self._key, argument)
        if isinstance(argument, dict):
            return tuple((name, self._key(item)) for name, item in argument.items())
        if isinstance(argument, slice):
            return self._key((argument.start, argument.stop, argument.step))
        return type(argument), repr(argument) if isinstance(argument, (float, complex)) else argument

    def _found(self, yielded: Any) -> Any:
        if isinstance(yielded, torch.Tensor):
            return tuple(yielded.shape), yielded.dtype
        return [self._found(item) for item in yielded] if isinstance(yielded, (list, tuple)) else yielded

    def _said(self, value: Value) -> Any:
        if isinstance(value, TensorType):
            return self._sizes(value.shape), value.dtype
        return None if value is None else [self._said(item) for item in value]

    def _sizes(self, sizes: tuple[int | str, ...]) -> tuple[int, ...]:
        return tuple(evaluate(size, self._symbols) for size in sizes)


class _Bounded(FakeTensorMode):
    """Tensors without data, and so many operations on them."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self._steps = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def count(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Notes an operation; raises OverflowError for one too many."""
        self._steps += 1 + _results(func, args, kwargs)
        if self._steps > _STEPS:
            raise OverflowError(f"it, and what stands before it, is made of more than {_STEPS} operations")


def _results(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How many results an operation has that yields as many as sizes and numbers say; 0 for others."""
    name = func.overloadpacket.__name__ if isinstance(func, OpOverload) else ""
    if name not in _SPLITS | _COUNTED:
        return 0
    given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    given |= kwargs
    if name in _COUNTED:
        return next((given[one] for one in ("chunks", "sections") if isinstance(given.get(one), int)), 0)
    size: int = given["self"].shape[given.get("dim", 0)]
    step = given.get("split_size", 1)
    return -(-size // max(step, 1)) if isinstance(step, int) else 0


def _key_of(value: Value) -> Hashable:
    """A type, wherever it lies."""
    if isinstance(value, TensorType):
        return value.shape, value.dtype, value.stride
    return None if value is None else tuple(map(_key_of, value))


def _show(kind: Any) -> str:
    match kind:
        case (tuple() as shape, torch.dtype() as dtype):
            return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
        case list():
            return f"({', '.join(map(_show, kind))})"
    return "a number" if kind is None else repr(kind)
