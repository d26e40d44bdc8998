"""What a trace of dynamic shapes took for granted: relations between sizes, as text.

While ``torch.export`` traces, each comparison of sizes that the model makes has one outcome, and only the branch for
that outcome is recorded. The comparison is kept as a guard, such as ``s77 > s17`` or ``s77 % 2 == 0``, and a call where
it does not hold is refused. One that cannot be written in the language of ``ir/sizes.py`` refuses the trace.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.utils._sympy import functions

from ..errors import TraceError
from ..ir.sizes import holds

_SIGNS: dict[type, str] = {
    sympy.Eq: "==",
    sympy.Ne: "!=",
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
}
_CALLS: dict[type, str] = {functions.Max: "Max", functions.Min: "Min", sympy.Max: "Max", sympy.Min: "Min"}


def read_guards(exported: ExportedProgram, name: str, ranges: Mapping[str, tuple[int, int]]) -> tuple[str, ...]:
    """The guards of an exported program, without those that the ranges of its symbols imply.

    Raises TraceError, with the name of the module, for one that cannot be written down.
    """
    shapes = _shape_env(exported)
    if shapes is None:
        return ()
    found: dict[str, None] = {}
    deferred = [one.expr for several in shapes.deferred_runtime_asserts.values() for one in several]
    for expression in [*(guard.expr for guard in shapes.guards), *deferred]:
        relation = shapes.replace(expression)
        if relation in (True, sympy.true):
            continue
        names = {str(symbol) for symbol in relation.free_symbols}
        text = expression_text(relation)
        if not text or not names <= ranges.keys():
            raise TraceError(
                f"{name} branches on {relation}, which cannot be checked when it is called: trace it without "
                "dynamic_shapes, or leave the dimensions that this speaks of static"
            )
        if not _implied(text, names, ranges):
            found[text] = None
    return tuple(found)


def _shape_env(exported: ExportedProgram) -> Any:
    """Where the trace has noted what it knows of sizes; None for a static one."""
    for node in exported.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt):
                return size.node.shape_env
    return None


def _implied(relation: str, names: set[str], ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a comparison of one bare symbol with a number holds wherever the symbol is in its range."""
    match = re.fullmatch(r"(\w+) (?:<|<=|>|>=) -?\d+", relation)
    if not match or {match[1]} != names:
        return False
    return all(holds(relation, {match[1]: end}) for end in ranges[match[1]])


def expression_text(expression: Any) -> str:
    """An expression of sizes, or a relation, in the language of ``ir/sizes.py``; empty where it has none."""
    try:
        return _text(expression)
    except _HasNoText:
        return ""


class _HasNoText(Exception):
    """An expression is not of integers alone."""


def _text(expression: Any) -> str:
    sign = next((sign for kind, sign in _SIGNS.items() if isinstance(expression, kind)), "")
    if sign:
        return f"{_text(expression.lhs)} {sign} {_text(expression.rhs)}"
    if isinstance(expression, (sympy.And, sympy.Or)):
        word = " and " if isinstance(expression, sympy.And) else " or "
        return f"({word.join(sorted(map(_text, expression.args)))})"
    if isinstance(expression, sympy.Not):
        return f"not ({_text(expression.args[0])})"
    return _size_text(expression)


def _size_text(size: Any) -> str:
    match size:
        case sympy.Integer() | sympy.Symbol():
            return str(size)
        case sympy.Add():
            return f"({' + '.join(sorted(map(_size_text, size.args), reverse=True))})"
        case sympy.Mul():
            return "*".join(_factor(factor) for factor in size.args)
        case sympy.Pow(exp=sympy.Integer() as power) if power >= 0:
            return f"{_factor(size.base)}**{power}"
        case functions.FloorDiv():  # CleanDiv is one
            return f"({_factor(size.args[0])}//{_factor(size.args[1])})"
        case functions.Mod() | functions.PythonMod() | sympy.Mod():
            return f"{_factor(size.args[0])} % {_factor(size.args[1])}"
    if type(size) in _CALLS:
        return f"{_CALLS[type(size)]}({', '.join(map(_size_text, size.args))})"
    return _rounded(size)


def _factor(size: Any) -> str:
    """A size as it may stand beside a sign."""
    text = _size_text(size)
    return text if text.isalnum() or _is_enclosed(text) else f"({text})"


def _is_enclosed(text: str) -> bool:
    """Whether one pair of parentheses is around all of a text, as around `(a + b)` and not `(a)*(b)`."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    depths = itertools.accumulate((one == "(") - (one == ")") for one in text)
    return all(depth > 0 for depth in itertools.islice(depths, len(text) - 1))


def _rounded(size: Any) -> str:
    """A quotient that is rounded: `ceil(a / b)` is exact in integers as long as both are below 2**53."""
    inner = size.args[0] if len(size.args) == 1 else None
    if isinstance(inner, functions.IntTrueDiv):
        above, below = map(_factor, inner.args)
        if isinstance(size, functions.CeilToInt):
            return f"(-(-{above}//{below}))"
        if isinstance(size, functions.FloorToInt):
            return f"({above}//{below})"
    raise _HasNoText
