"""Sizes that depend on symbols, and relations between them: the text of an expression, and its value.

A dynamic dimension is kept as text such as ``s0`` or ``2*s0 + 8``, a guard as ``s0 > s1``, so that a plan file stays
data. It is evaluated by walking its syntax tree, never by running it. A text is short, its tree is shallow, and every
number on the way has at most 64 bits, so that a value costs little whatever the text is.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from ..errors import TextError

_LONGEST, _DEEPEST, _LARGEST = 1000, 60, 2**63
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@lru_cache(maxsize=512)
def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise TextError(f"an expression of {len(text)} characters is too long")
    try:
        with warnings.catch_warnings():  # of literals that a damaged text has
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise TextError(f"{text[:120]!r} is not an expression of integers") from error


def evaluate(size: int | str, symbols: Mapping[str, int]) -> int:
    """The value of a size for given symbols.

    Raises TextError for text that is not an integer expression, or whose value has more than 64 bits, and for an
    unknown symbol.
    """
    return size if isinstance(size, int) else _value(_parse(size), symbols, 0)


def holds(relation: str, symbols: Mapping[str, int]) -> bool:
    """Whether a relation between sizes, such as ``s0 > s1`` or ``s0 % 2 == 0 and s0 < 9``, holds for given symbols.

    Raises TextError for text that is not a relation, and for an unknown symbol.
    """
    return _truth(_parse(relation), symbols, 0)


def with_numbers(relation: str, symbols: Mapping[str, int]) -> str:
    """A relation with the numbers on both sides, for messages: ``s0 > s1 (3 > 5)``.

    >>> with_numbers("s0 % 2 == s1", {"s0": 7, "s1": 0})
    's0 % 2 == s1 (1 == 0)'
    """
    match _parse(relation):
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            sign = ast.unparse(ast.Compare(ast.Name("a"), [op], [ast.Name("b")])).removeprefix("a ").removesuffix(" b")
            return f"{relation} ({_value(left, symbols, 0)} {sign} {_value(right, symbols, 0)})"
    names = sorted(symbols_of(relation) & symbols.keys())
    return f"{relation} ({', '.join(f'{name} = {symbols[name]}' for name in names)})"


def symbols_of(text: str) -> set[str]:
    """The symbols in an expression or relation; raises TextError for text that is neither."""
    tree = _parse(text)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called}


def symbol_names(paths: Iterable[tuple[str, tuple[int | str, ...]]], names: Iterable[str]) -> Iterator[str]:
    """Which dimension each symbol is, for messages: ``s77 is x.shape[0]``."""
    wanted = set(names)
    for path, shape in paths:
        for index, size in enumerate(shape):
            if size in wanted:
                wanted.discard(str(size))
                yield f"{size} is {path}.shape[{index}]"


def _value(tree: ast.expr, symbols: Mapping[str, int], depth: int) -> int:
    value = _compute(tree, symbols, depth + 1)
    if not -_LARGEST < value < _LARGEST:
        raise TextError("a size has more than 64 bits")
    return value


def _compute(tree: ast.expr, symbols: Mapping[str, int], depth: int) -> int:
    if depth > _DEEPEST:
        raise TextError(f"an expression is nested more than {_DEEPEST} deep")
    match tree:
        case ast.Constant(value=value) if type(value) is int:
            return value
        case ast.Name(id=name):
            if name not in symbols:
                raise TextError(f"{name[:40]} is no symbol that a line before names")
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, symbols, depth)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, symbols, depth), _value(right, symbols, depth))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _apply(_OPERATIONS[type(op)], _value(left, symbols, depth), _value(right, symbols, depth))
        case ast.Call(func=ast.Name(id="Max" | "Min" as name), args=[_, *_] as args, keywords=[]):
            return (max if name == "Max" else min)(_value(arg, symbols, depth) for arg in args)
        case ast.Call(func=ast.Name(id="FloorDiv" | "CleanDiv"), args=[left, right], keywords=[]):
            return _apply(operator.floordiv, _value(left, symbols, depth), _value(right, symbols, depth))
        case ast.Call(func=ast.Name(id="Mod" | "PythonMod"), args=[left, right], keywords=[]):
            return _apply(operator.mod, _value(left, symbols, depth), _value(right, symbols, depth))
    raise TextError(f"{ast.unparse(tree)[:120]!r} is not an integer expression")


def _apply(operation: Callable[[int, int], int], left: int, right: int) -> int:
    if not right and operation in (operator.floordiv, operator.mod):
        raise TextError("a size is divided by zero")
    return operation(left, right)


def _power(base: int, exponent: int) -> int:
    if exponent < 0 or base.bit_length() * exponent > 64:
        raise TextError("a power has more than 64 bits, or a negative exponent")
    return int(base**exponent)


def _truth(tree: ast.expr, symbols: Mapping[str, int], depth: int) -> bool:
    if depth > _DEEPEST:
        raise TextError(f"a relation is nested more than {_DEEPEST} deep")
    match tree:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            return _COMPARISONS[type(op)](_value(left, symbols, depth), _value(right, symbols, depth))
        case ast.BoolOp(op=op, values=values):
            found = [_truth(value, symbols, depth + 1) for value in values]
            return all(found) if isinstance(op, ast.And) else any(found)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(operand, symbols, depth + 1)
    raise TextError(f"{ast.unparse(tree)[:120]!r} is not a relation between sizes")
