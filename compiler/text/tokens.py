"""Takes a line of the text form apart: words, types, and the arguments of operations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..checkpoints.entries import can_be_shape
from ..ir.sizes import evaluate
from ..ir.value import TensorType, Value
from .spelling import DTYPES, SINGLETONS, implied_stride

_TOKEN = re.compile(
    r'\s*(%[A-Za-z_]\w*|"(?:[^"\\]|\\.)*"|-?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|[A-Za-z_][\w.]*|//|[^\s\w])',
    re.ASCII,
)
_DEEPEST = 32
_MOST_SIZES = 64  # as in PyTorch
_LARGEST = 2**64


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
        """The next token; raises ValueError when it is not the one expected."""
        match = _TOKEN.match(self.text, self.position)
        token = match[1] if match else ""
        if not match or (expected is not None and token != expected):
            raise ValueError(f"expected {expected or 'more'} at column {self.position + 1}, found {token or 'the end'}")
        self.position = match.end()
        return token

    def accept(self, token: str) -> bool:
        """Takes the next token if it is the one given, and says whether it was."""
        if self.peek() != token:
            return False
        self.take()
        return True

    def rest(self) -> str:
        """What is left of the line."""
        return self.text[self.position :].strip()

    def items(self, close: str, item: Callable[[], Any]) -> list[Any]:
        """Items between commas up to a closing bracket; raises ValueError where brackets are nested too deeply."""
        if self.depth == _DEEPEST:
            raise ValueError(f"brackets are nested more than {_DEEPEST} deep")
        self.depth += 1
        found = []
        while not self.accept(close):
            found.append(item())
            if self.peek() != close:
                self.take(",")
        self.depth -= 1
        return found

    def text_in_quotes(self) -> str:
        """The next token, which is text in quotes."""
        token = self.take()
        if not token.startswith('"'):
            raise ValueError(f"expected text in quotes, found {token}")
        return str(json.loads(token))

    def count(self) -> int:
        """The next token, which is a whole number of at most 64 bits and not negative."""
        token = self.take()
        if not re.fullmatch(r"[0-9]{1,19}", token) or int(token) >= _LARGEST // 2:
            raise ValueError(f"expected a whole number, found {token[:40]}")
        return int(token)

    def keyword(self, nodes: Mapping[str, Node]) -> tuple[str, Any]:
        """An argument with its name, which is empty for one given by position."""
        start = self.position
        word = self.take()
        if word.isidentifier() and self.accept("="):
            return word, self.argument(nodes)
        self.position = start
        return "", self.argument(nodes)

    def argument(self, nodes: Mapping[str, Node]) -> Any:
        """An argument as ``show_argument`` writes it."""
        token = self.take()
        if token == "[":
            return self.items("]", lambda: self.argument(nodes))
        if token == "(":
            return tuple(self.items(")", lambda: self.argument(nodes)))
        if token.startswith("%"):
            return nodes[token[1:]]
        if token.startswith('"'):
            return json.loads(token)
        if token in ("float", "complex", "slice", "device", "opaque"):
            return self._special(token, nodes)
        if token in SINGLETONS:
            return SINGLETONS[token]
        if token in DTYPES:
            return DTYPES[token]
        return float(token) if any(mark in token for mark in ".e") else _integer(token)

    def _special(self, word: str, nodes: Mapping[str, Node]) -> Any:
        if word == "float":
            sign = -1 if self.accept("-") else 1
            return sign * {"inf": math.inf, "nan": math.nan}[self.take()]
        if word == "complex":
            return complex(self._part(), self._part())
        if word == "slice":
            start, stop, step = self.argument(nodes)
            return slice(start, stop, step)
        if word == "device":
            return _device(self.text_in_quotes())
        raise ValueError(f"{self.take()} was printed from an object that has no text form")

    def _part(self) -> float:
        """One part of a complex number."""
        sign = -1.0 if self.accept("-") else 1.0
        return sign * float(self.take())

    def value(self, symbols: Mapping[str, int]) -> Value:
        """A type as ``show_value`` writes it."""
        if self.accept("number"):
            return None
        if self.accept("("):
            return tuple(self.items(")", lambda: self.value(symbols)))
        shape, dtype = self.numbers()
        stride = self._sizes(")") if self.accept("(") else implied_stride(shape)
        self.take("~")
        dynamic = any(isinstance(size, str) for size in shape)
        sizes = tuple(evaluate(size, symbols) for size in shape)
        steps = tuple(evaluate(step, symbols) for step in stride)
        if not can_be_shape(sizes) or (stride and len(steps) != len(sizes)) or not _can_be_strides(sizes, steps):
            raise ValueError("a tensor cannot have these sizes and strides")
        return TensorType(shape, dtype, stride, self.count(), sizes if dynamic else ())

    def numbers(self) -> tuple[tuple[int | str, ...], torch.dtype]:
        """A dtype and a shape, such as ``bf16[1, 16]``."""
        dtype = DTYPES[self.take()]
        self.take("[")
        return self._sizes("]"), dtype

    def _sizes(self, close: str) -> tuple[int | str, ...]:
        """Sizes between commas up to a closing bracket; commas in parentheses belong to an expression."""
        start, depth = self.position, 0
        texts: list[str] = []
        for end in range(start, len(self.text)):
            letter = self.text[end]
            if len(texts) > _MOST_SIZES:
                raise ValueError(f"a tensor has at most {_MOST_SIZES} dimensions")
            if not depth and letter in (",", close):
                texts.append(self.text[start:end].strip())
                start = end + 1
            if not depth and letter == close:
                self.position = start
                return tuple(_size(text) for text in texts if text or len(texts) > 1)
            depth += (letter == "(") - (letter == ")")
        raise ValueError(f"expected {close}, found the end")


def _size(text: str) -> int | str:
    return _integer(text) if re.fullmatch(r"-?[0-9]+", text) else text


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 21 else _LARGEST
    if not -_LARGEST < value < _LARGEST:
        raise ValueError(f"{text[:40]} has more than 64 bits")
    return value


def _device(name: str) -> torch.device:
    if not re.fullmatch(r"[a-z]{1,20}(:[0-9]{1,3})?", name):
        raise ValueError(f"{name[:40]!r} is no device")
    return torch.device(name)


def _can_be_strides(sizes: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    """Whether the furthest element can be counted, in bytes too."""
    furthest = sum((size - 1) * step for size, step in zip(sizes, steps, strict=False) if size)
    return all(step >= 0 for step in steps) and furthest < 2**59
