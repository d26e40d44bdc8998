"""Sizes that depend on symbols: the text of an integer expression, and its value.

A dynamic dimension is kept as text such as ``s0`` or ``2*s0 + 8``, so that a plan file stays data; it is evaluated by
walking its syntax tree, never by running it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache

_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


@lru_cache(maxsize=4096)
def _parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def evaluate(size: int | str, symbols: Mapping[str, int]) -> int:
    """The value of a size for given symbols.

    Raises ValueError for text that is not an integer expression, and KeyError for an unknown symbol.
    """
    if isinstance(size, int):
        return size
    try:
        return _value(_parse(size), symbols)
    except SyntaxError as error:
        raise ValueError(f"{size!r} is not an integer expression") from error


def _value(tree: ast.expr, symbols: Mapping[str, int]) -> int:
    match tree:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, symbols)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.Call(func=ast.Name(id="Max" | "Min" as name), args=args):
            return (max if name == "Max" else min)(_value(arg, symbols) for arg in args)
        case ast.Call(func=ast.Name(id="FloorDiv"), args=[left, right]):
            return _value(left, symbols) // _value(right, symbols)
        case ast.Call(func=ast.Name(id="Mod" | "PythonMod"), args=[left, right]):
            return _value(left, symbols) % _value(right, symbols)
    raise ValueError(f"{ast.unparse(tree)!r} is not an integer expression")
