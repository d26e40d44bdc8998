"""The words of the text form: short names of dtypes, and how types and arguments are written."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node
from torch.utils._dtype_abbrs import dtype_abbrs

from ..errors import TextError
from ..ir.program import HERE
from ..ir.targets import name_of
from ..ir.value import TensorType, Value, dense_stride

DTYPES: dict[str, torch.dtype] = {short: dtype for dtype, short in dtype_abbrs.items()}
_SINGLETONS: dict[Any, str] = {
    None: "none",
    HERE: "here",
    torch.strided: "strided",
    torch.contiguous_format: "contiguous",
    torch.preserve_format: "preserve",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}
SINGLETONS: dict[str, Any] = {word: value for value, word in _SINGLETONS.items()} | {"true": True, "false": False}


def implied_stride(shape: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The strides of a tensor whose text names none: contiguous ones; none where a size is dynamic."""
    return () if any(isinstance(size, str) for size in shape) else dense_stride(shape)


def show_value(value: Value) -> str:
    """A type: ``f32[1, 16]~7``, strides in parentheses where they are not contiguous, ``number`` for no tensor."""
    if value is None:
        return "number"
    if not isinstance(value, TensorType):
        return f"({', '.join(map(show_value, value))})"
    stride = "" if value.stride == implied_stride(value.shape) else f"({', '.join(map(str, value.stride))})"
    return f"{dtype_abbrs[value.dtype]}[{', '.join(map(str, value.shape))}]{stride}~{value.storage}"


def show_argument(value: Any) -> str:
    """An argument of a node: ``%node``, a number, a word such as ``f32`` or ``none``, text in quotes, or a list."""
    match value:
        case Node():
            return f"%{value.name}"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else f"float {value}"
        case complex():
            return f"complex {value.real!r} {value.imag!r}"
        case str():
            return json.dumps(value)
        case torch.dtype():
            return dtype_abbrs[value]
        case list() | tuple():
            return f"[{', '.join(map(show_argument, value))}]"
        case slice():
            return f"slice [{', '.join(map(show_argument, (value.start, value.stop, value.step)))}]"
        case torch.device() if value != HERE:
            return f"device {json.dumps(str(value))}"
        case _:
            return _SINGLETONS.get(value) or f"opaque {json.dumps(repr(value))}"


def show_constant(value: Any) -> str:
    """A plain value with its tuples: ``(1, [2, none])``; what it is made of is written as arguments are."""
    if isinstance(value, tuple):
        return f"({', '.join(map(show_constant, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(show_constant, value))}]"
    return show_argument(value)


def show_name(name: str) -> str:
    """The name of an argument: a word as it is, with a star where it has one; anything else in quotes."""
    return name if re.fullmatch(r"\*?[A-Za-z0-9_]+", name) else json.dumps(name)


def show_plain(text: str, last: bool = False) -> str:
    """Text after ``//``: on one line, no control characters, and no colon in what is not the last part."""
    shown = json.dumps(text, ensure_ascii=not text.isprintable())[1:-1]
    return shown if last else shown.replace(":", "\\u003a")


@lru_cache(4096)
def read_plain(shown: str) -> str:
    """The text that ``show_plain`` wrote; raises TextError for any other."""
    try:
        return str(json.loads(f'"{shown}"'))
    except ValueError as error:
        raise TextError(f"{shown[:40]!r} is no text that can be read back") from error


def show_target(target: Any) -> str:
    """An operation: ``aten.add.Tensor``, ``operator.getitem`` or ``torch.sym_max``; another one as Python shows it."""
    return name_of(target) or str(target)
