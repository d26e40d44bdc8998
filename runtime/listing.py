"""Generated Python functions: their code, what people are shown of it, and the nodes that its lines compute."""

from __future__ import annotations

import itertools
import linecache
import textwrap
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from ..compiler.ir.program import origin_of
from ..compiler.ir.schedule import Run


@dataclass(eq=False)
class Listing:
    """A generated function, compiled when it is first bound.

    ``code`` defines ``bind(...)``, whose parameters are objects and weights by name; what it returns takes the list of
    slots, and finds there the weights that only come for it. ``text`` is the same with comments, for people: what they
    say comes from the program, which may be a stranger's, so they are never compiled. ``lines`` maps line numbers of
    both to nodes.
    """

    name: str
    code: str
    text: str
    lines: dict[int, Node]
    number: int = field(default_factory=itertools.count(1).__next__)

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The compiled function; tracebacks show its text as long as this object lives."""
        namespace: dict[str, Any] = {}
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.filename] = (len(self.text), None, lines, self.filename)
        weakref.finalize(self, linecache.cache.pop, self.filename, None)
        exec(compile(self.code, self.filename, "exec"), namespace)
        return namespace["bind"]  # type: ignore[no-any-return]

    @property
    def filename(self) -> str:
        """The name under which tracebacks show this source; no other source has it, as long as the process lives."""
        return f"<dovetail {self.name} #{self.number}>"


@dataclass(frozen=True)
class RunSource:
    """The code of one run: a listing, which runs of a group on several devices share, and the names in it.

    ``bound`` are objects by name, ``weights`` the names of weights by the name that each has in the listing.
    """

    listing: Listing
    bound: dict[str, Any]
    weights: dict[str, str]

    def bind(self, weights: Mapping[str, torch.Tensor]) -> Callable[[list[Any]], None]:
        """The function over its weights; binding other weights compiles nothing."""
        return self.listing.function(**self.bound, **weights)  # type: ignore[no-any-return]


def assemble(
    name: str, run: Run, lines: Sequence[tuple[str, Node | None]], bound: dict[str, Any], weights: dict[str, str]
) -> RunSource:
    """The source of a run from its lines, each with the node that it computes if any, and from the names in them."""
    where = ", ".join(map(str, run.segment.group))
    parameters = ", ".join([*bound, *weights])
    head = [
        "def bind(",
        *textwrap.wrap(parameters, 120, initial_indent="    ", subsequent_indent="    "),
        "):",
        "    def run(slots):",
        f'        """Segment {run.segment.index} on {where}."""',
    ]
    tail = ["    return run", ""]
    code = "\n".join([*head, *(text for text, _ in lines), *tail])
    span = f'        """Segment {run.segment.index} on {where}: {_quotable(_span(run.nodes))}."""'
    body = [text + (f"  # {_comment(node)}" if node else "") for text, node in lines]
    shown = "\n".join([*head[:-1], span, *body, *tail])
    nodes = {len(head) + index: node for index, (_, node) in enumerate(lines, 1) if node}
    return RunSource(Listing(name, code, shown, nodes), bound, weights)


def _span(nodes: Sequence[Node]) -> str:
    modules = [origin_of(node).module for node in nodes if origin_of(node).module]
    return f"{modules[0]} … {modules[-1]}" if modules else f"{len(nodes)} nodes"


def _comment(node: Node) -> str:
    origin = origin_of(node)
    return _printable(" · ".join(part for part in (origin.module, origin.source) if part))


def _quotable(text: str) -> str:
    """Text that ends no string that it stands in."""
    return _printable(text).replace("\\", "/").replace('"', "'")


def _printable(text: str) -> str:
    """Text on one line, without characters that are not seen."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)
