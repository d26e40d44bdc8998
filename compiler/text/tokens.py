"""Takes a line of the text form apart: words, types, and the arguments of operations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch.fx import Node

from ..checkpoints.entries import can_be_shape
from ..errors import TextError
from ..ir.sizes import evaluate
from ..ir.value import TensorType, Value
from .spelling import DTYPES, SINGLETONS, implied_stride

_TOKEN = re.compile(
    r'\s*(%[A-Za-z_]\w*|"(?:[^"\\]|\\.)*"|-?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|[A-Za-z_][\w.]*|//|[^\s\w])',
    re.ASCII,
)
_TENSOR = re.compile(r"\s*([a-z]\w*\[[0-9, ]*\](?:\([0-9, ]*\))?)~([0-9]{1,18})(?![\w.])", re.ASCII)
_NUMBER = re.compile(r"-?(?:[0-9]+\.?[0-9]*(?:e[-+]?[0-9]+)?|\.[0-9]+)")
_DEEPEST = 32
_MOST_SIZES = 64  # as in PyTorch
_LARGEST = 2**64
_K = TypeVar("_K")
_T = TypeVar("_T")


@dataclass
class Line:
    """The tokens of one line, taken from the left."""

    text: str
    position: int = 0
    depth: int = 0

    def peek(self) -> str:
        """The next token, or nothing at the end."""
        match = _TOKEN.match(self.text, self.position)
        return match[1] if match else ""

    def take(self, expected: str | None = None) -> str:
        """The next token; raises TextError when it is not the one expected."""
        match = _TOKEN.match(self.text, self.position)
        token = match[1] if match else ""
        if not match or (expected is not None and token != expected):
            raise TextError(f"expected {expected or 'more'} at column {self.position + 1}, found {token or 'the end'}")
        self.position = match.end()
        return token

    def accept(self, token: str) -> bool:
        """Takes the next token if it is the one given, and says whether it was."""
        match = _TOKEN.match(self.text, self.position)
        if not match or match[1] != token:
            return False
        self.position = match.end()
        return True

    def rest(self) -> str:
        """What is left of the line."""
        return self.text[self.position :].strip()

    def items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Items between commas up to a closing bracket; raises TextError where brackets are nested too deeply."""
        if self.depth == _DEEPEST:
            raise TextError(f"brackets are nested more than {_DEEPEST} deep")
        self.depth += 1
        found = []
        while not self.accept(close):
            found.append(item())
            if not self.accept(",") and self.peek() != close:
                self.take(",")
        self.depth -= 1
        return found

    def text_in_quotes(self) -> str:
        """The next token, which is text in quotes."""
        token = self.take()
        if not token.startswith('"'):
            raise TextError(f"expected text in quotes, found {token}")
        return unquoted(token)

    def device_name(self) -> str:
        """The name of a device, which may be of another process: two tokens more, as in ``1/cuda0``."""
        name = self.take()
        return f"{name}/{self.take()}" if name.isdecimal() and self.accept("/") else name

    def count(self) -> int:
        """The next token, which is a whole number of at most 64 bits and not negative."""
        token = self.take()
        if not re.fullmatch(r"[0-9]{1,19}", token) or int(token) >= _LARGEST // 2:
            raise TextError(f"expected a whole number, found {token[:40]}")
        return int(token)

    def keyword(self, nodes: Mapping[str, Node]) -> tuple[str, Any]:
        """An argument with its name, which is empty for one given by position."""
        word = self.take()
        if word.isidentifier() and self.accept("="):
            return word, self.argument(nodes)
        return "", self._argument(word, nodes)

    def argument(self, nodes: Mapping[str, Node]) -> Any:
        """An argument as ``show_argument`` writes it."""
        return self._argument(self.take(), nodes)

    def _argument(self, token: str, nodes: Mapping[str, Node]) -> Any:
        """An argument that begins with a token."""
        if token.startswith("%") and token[1:] in nodes:
            return nodes[token[1:]]
        if token == "[":
            return self.items("]", lambda: self.argument(nodes))
        if token == "(":
            return tuple(self.items(")", lambda: self.argument(nodes)))
        if token.startswith("%"):
            return known(nodes, token[1:], f"{token} stands on no line before")
        if token.startswith('"'):
            return unquoted(token)
        if token in ("float", "complex", "slice", "device", "opaque"):
            return self._special(token, nodes)
        if token in SINGLETONS:
            return SINGLETONS[token]
        if token in DTYPES:
            return DTYPES[token]
        return _number(token)

    def _special(self, word: str, nodes: Mapping[str, Node]) -> Any:
        if word == "float":
            sign = -1 if self.accept("-") else 1
            word = self.take()
            return sign * known({"inf": math.inf, "nan": math.nan}, word, f"expected inf or nan, found {word}")
        if word == "complex":
            return complex(self._part(), self._part())
        if word == "slice":
            bounds = self.argument(nodes)
            if not isinstance(bounds, list) or len(bounds) != 3:
                raise TextError("a slice is a list of start, stop and step")
            return slice(*bounds)
        if word == "device":
            return _device(self.text_in_quotes())
        raise TextError(f"{self.take()} was printed from an object that has no text form")

    def _part(self) -> float:
        """One part of a complex number."""
        sign = -1.0 if self.accept("-") else 1.0
        return sign * float(_number(self.take()))

    def value(self, symbols: Mapping[str, int]) -> Value:
        """A type as ``show_value`` writes it."""
        match = _TENSOR.match(self.text, self.position)
        if match:  # as most are; of equal blocks they are equal but for the memory
            self.position, kind = match.end(), _kind_of(match[1])
            return TensorType(kind.shape, kind.dtype, kind.stride, int(match[2]))
        if self.accept("number"):
            return None
        if self.accept("("):
            return tuple(self.items(")", lambda: self.value(symbols)))
        return self._tensor(symbols)

    def _tensor(self, symbols: Mapping[str, int]) -> TensorType:
        shape, dtype = self.numbers()
        stride = self._sizes(")") if self.accept("(") else implied_stride(shape)
        self.take("~")
        dynamic = any(isinstance(size, str) for size in shape)
        sizes = tuple(evaluate(size, symbols) for size in shape)
        steps = tuple(evaluate(step, symbols) for step in stride)
        if not can_be_shape(sizes) or (stride and len(steps) != len(sizes)) or not _can_be_strides(sizes, steps):
            raise TextError("a tensor cannot have these sizes and strides")
        return TensorType(shape, dtype, stride, self.count(), sizes if dynamic else ())

    def numbers(self) -> tuple[tuple[int | str, ...], torch.dtype]:
        """A dtype and a shape, such as ``bf16[1, 16]``."""
        word = self.take()
        dtype = known(DTYPES, word, f"{word} is no dtype, such as f32 or bf16")
        self.take("[")
        return self._sizes("]"), dtype

    def _sizes(self, close: str) -> tuple[int | str, ...]:
        """Sizes between commas up to a closing bracket; commas in parentheses belong to an expression."""
        start, depth = self.position, 0
        texts: list[str] = []
        for end in range(start, len(self.text)):
            letter = self.text[end]
            if len(texts) > _MOST_SIZES:
                raise TextError(f"a tensor has at most {_MOST_SIZES} dimensions")
            if not depth and letter in (",", close):
                texts.append(self.text[start:end].strip())
                start = end + 1
            if not depth and letter == close:
                self.position = start
                return tuple(_size(text) for text in texts if text or len(texts) > 1)
            depth += (letter == "(") - (letter == ")")
        raise TextError(f"expected {close}, found the end")


@lru_cache(1024)
def _kind_of(text: str) -> TensorType:
    """The type of a tensor of fixed sizes by its text, in any memory."""
    return Line(f"{text}~0")._tensor({})


def known(table: Mapping[_K, _T], word: _K, problem: str) -> _T:
    """What a table has for a word; raises TextError, which says the problem, where it has nothing."""
    if word not in table:
        raise TextError(problem)
    return table[word]


def unquoted(token: str) -> str:
    """The text of a token in quotes."""
    try:
        return str(json.loads(token))
    except ValueError as error:
        raise TextError(f"{token[:40]} is no text that JSON has") from error


def _number(token: str) -> int | float:
    if not _NUMBER.fullmatch(token):
        raise TextError(f"expected a value, found {token[:40]}")
    return float(token) if any(mark in token for mark in ".e") else _integer(token)


def _size(text: str) -> int | str:
    return _integer(text) if re.fullmatch(r"-?[0-9]+", text) else text


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 21 else _LARGEST
    if not -_LARGEST < value < _LARGEST:
        raise TextError(f"{text[:40]} has more than 64 bits")
    return value


def _device(name: str) -> torch.device:
    if not re.fullmatch(r"[a-z]{1,20}(:[0-9]{1,3})?", name):
        raise TextError(f"{name[:40]!r} is no device")
    return torch.device(name)


def _can_be_strides(sizes: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    """Whether the furthest element can be counted, in bytes too."""
    furthest = sum((size - 1) * step for size, step in zip(sizes, steps, strict=False) if size)
    return all(step >= 0 for step in steps) and furthest < 2**59
