"""A program that is read from text, of which operations are read when somebody first asks for them.

Whoever plans a call as it was planned before takes what passes made of a trace from disk, and asks the trace itself but
for its weights, its inputs, and what it returns. These are read at once, in a small part of the time of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Any

from ..errors import TextError
from ..ir.program import Program
from ..ir.targets import find_target
from ..ir.value import TensorType, flat
from .parser import Reader, parse_program, reader_of, refusing
from .tokens import Line

_HELD = re.compile(r"%\w+: [^=]*= (?:input|parameter|buffer|constant|adapter)\b", re.ASCII)
_NAME = re.compile(r'"(?:[^"\\]|\\.)*"|  // .*|%(\w+)', re.ASCII)
"""A node by its name; text in quotes, and what stands behind the arguments of an operation, are passed over."""

_TARGET = re.compile(r"%\w+: [^=]*= ([\w.]+)\(", re.ASCII)
"""A line of an operation, by whose name it is."""


class LateProgram(Program):
    """A traced program whose graph is read from its text when somebody first asks for it.

    Raises ProgramTextError then where the text is none of a program.
    """

    _text: str
    _results: tuple[Any, ...]
    _read: set[str]

    def __getattr__(self, name: str) -> Any:
        """The graph, which is all that is not there from the beginning."""
        if name != "graph" or "_text" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        text = self._text
        found = vars(self).setdefault("graph", parse_program(text).graph if text else None)
        self._text = ""  # another thread that is here too finds the graph that was there first
        return found

    @property
    def is_read(self) -> bool:
        """Whether its graph is there."""
        return "graph" in vars(self)

    def weights_read(self) -> set[str]:
        """The names of the weights that some operation reads, or that are returned."""
        return super().weights_read() if self.is_read else self._read

    def results(self) -> tuple[Any, ...]:
        """What it returns, in order: the tensors of each value, flat in a tuple, or a constant as it is."""
        return super().results() if self.is_read else self._results


def parse_late(text: str) -> Program:
    """The trace that a text form describes, whose operations are read later; at once those of what passes changed.

    Raises ProgramTextError, which names the line, for text that is not a program as far as it is read, and for
    operations that no program may have.
    """
    lines = text.split("\n")
    first = list(takewhile(lambda line: not line.startswith("%") or _HELD.match(line), lines))
    reader = reader_of(first)
    if reader.ended or reader.facts or not reader.name:
        return parse_program(text)
    with refusing(lambda: "the text is no program"):
        for name in sorted({match[1] for line in lines[len(first) :] if (match := _TARGET.match(line))}):
            find_target(name)
        results = _results(reader, lines[len(first) :])
        outline = reader.program()
    program = LateProgram(**{one.name: getattr(outline, one.name) for one in fields(outline)})
    del program.graph
    named = {name for line in lines[len(first) :] for name in _NAME.findall(line)}
    read = {node.meta["weight"] for node in outline.weight_nodes() if node.name in named}
    program._text, program._results, program._read = text, results, read
    return program


def _results(reader: Reader, lines: Sequence[str]) -> tuple[Any, ...]:
    """What the line that returns says, the last of those that follow what a reader has read."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    line = Line(last)
    line.take("return")
    tensors = dict(_tensors(reader, lines, set(filter(None, _NAME.findall(last)))))
    found = line.argument(tensors)  # type: ignore[arg-type]  # in the place of each node are its tensors
    if not isinstance(found, list) or line.rest():
        raise TextError("expected a list of results")
    return tuple(found)


def _tensors(reader: Reader, lines: Sequence[str], names: set[str]) -> Iterator[tuple[str, tuple[TensorType, ...]]]:
    """The tensors of nodes by their names, of a reader or of lines behind what it has read."""
    for name in sorted(names & reader.nodes.keys()):
        yield name, tuple(flat(reader.nodes[name].meta["value"]))
        names.discard(name)
    for text in reversed(lines):
        name = text[1 : text.find(":")]
        if text.startswith("%") and name in names:
            yield name, tuple(flat(Line(text, len(name) + 2).value(reader.symbols)))
            names.discard(name)
        if not names:
            return
