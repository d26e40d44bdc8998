"""Takes a line of the text form apart: words, types, and the arguments of operations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from .program import TensorType, Value
from .sizes import evaluate
from .words import DTYPES, SINGLETONS, dense_stride

_TOKEN = re.compile(
    r'\s*(%[A-Za-z_]\w*|"(?:[^"\\]|\\.)*"|-?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|[A-Za-z_][\w.]*|//|[^\s\w])'
)


@dataclass
class Line:
    """The tokens of one line, taken from the left."""

    text: str
    position: int = 0

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
        """Items between commas up to a closing bracket."""
        found = []
        while not self.accept(close):
            found.append(item())
            if self.peek() != close:
                self.take(",")
        return found

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
        return float(token) if any(mark in token for mark in ".e") else int(token)

    def _special(self, word: str, nodes: Mapping[str, Node]) -> Any:
        if word == "float":
            sign = -1 if self.accept("-") else 1
            return sign * {"inf": math.inf, "nan": math.nan}[self.take()]
        if word == "complex":
            return complex(float(self.take()), float(self.take()))
        if word == "slice":
            return slice(*self.argument(nodes))
        if word == "device":
            return torch.device(json.loads(self.take()))
        raise ValueError(f"{self.take()} was printed from an object that has no text form")

    def value(self, symbols: Mapping[str, int]) -> Value:
        """A type as ``show_value`` writes it."""
        if self.accept("number"):
            return None
        if self.accept("("):
            return tuple(self.items(")", lambda: self.value(symbols)))
        shape, dtype = self.numbers()
        stride = self._sizes(")") if self.accept("(") else dense_stride(shape) or ()
        self.take("~")
        dynamic = any(isinstance(size, str) for size in shape)
        hint = tuple(evaluate(size, symbols) for size in shape) if dynamic else ()
        return TensorType(shape, dtype, stride, int(self.take()), hint)

    def numbers(self) -> tuple[tuple[int | str, ...], torch.dtype]:
        """A dtype and a shape, such as ``bf16[1, 16]``."""
        dtype = DTYPES[self.take()]
        self.take("[")
        return self._sizes("]"), dtype

    def _sizes(self, close: str) -> tuple[int | str, ...]:
        end, depth = self.position, 0
        while self.text[end] != close or depth:
            depth += (self.text[end] == "(") - (self.text[end] == ")")
            end += 1
        texts = _split(self.text[self.position : end])
        self.position = end + 1
        return tuple(int(text) if re.fullmatch(r"-?\d+", text) else text for text in texts)


def _split(text: str) -> Iterator[str]:
    """The parts between commas outside parentheses."""
    return (part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip())
