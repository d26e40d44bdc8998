"""What is said of a program that devices compute together: how operations are split, and what devices exchange."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from torch.fx import Node

from ..compiler.ir.ops import RESHARD
from ..compiler.ir.program import Program, placement_of, state_of, states_of
from ..compiler.ir.split import source_of
from ..compiler.ir.state import PARTIAL, WHOLE, Split
from ..compiler.states.parts import sent
from ..compiler.units import counted, format_bytes
from ..passes.states.exchanges import kind_of

_SEVERAL = {"copy": "copies", "copy to all": "copies to all"}
_WAYS = ("split", "terms of sums", "whole")


def states_in_words(program: Program) -> Iterator[str]:
    """A sentence for each class of blocks of a placed program, and one for each kind of exchange.

    A class of blocks are those whose names differ by a number alone. An operation is split where each device has a part
    of some result of it, and whole where each computes all of it, or the main device does.
    """
    for name, (blocks, ways) in _by_class(program).items():
        what = f"{name} ({counted(blocks, 'block')})" if blocks else name
        parts = [f"{ways[way]} {'is' if ways[way] == 1 else 'are'} {way}" for way in _WAYS if ways[way]]
        yield f"Of the {counted(sum(ways.values()), 'operation')} of {what} {', '.join(parts)}."
    counts, nbytes = Counter[str](), Counter[str]()
    for one in program.transfers():
        kind, size = _kind(one), sum(size for _, _, size in sent(program, one))
        counts[kind] += 1 if size else 0
        nbytes[kind] += size
    for kind, count in (+counts).most_common():
        often = counted(count, kind, _SEVERAL.get(kind, ""))
        yield f"Devices exchange {format_bytes(nbytes[kind])} a call in {often}."


def _by_class(program: Program) -> Mapping[str, tuple[int, Counter[str]]]:
    """For each class of blocks, and for what lies in none, how many blocks there are and operations of each way."""
    block_of, blocks = program.block_of(), defaultdict[str, set[str]](set)
    found: dict[str, Counter[str]] = {}
    last = ""
    for node in program.ops():
        names = [block_of[name] for name in placement_of(node).weights if name in block_of]
        last = names[-1] if names else last if not placement_of(node).weights else ""
        name = re.sub(r"\.?\d+", "", last) if last else "all else"
        blocks[name] |= {last} if last else set()
        found.setdefault(name, Counter())[_way(node)] += 1
    return {name: (len(blocks[name]), ways) for name, ways in found.items()}


def _way(node: Node) -> str:
    states = states_of(node)
    if any(isinstance(one, Split) for one in states):
        return _WAYS[0]
    return _WAYS[1] if PARTIAL in states else _WAYS[2]


def _kind(moving: Node) -> str:
    """The name of what brings a value to devices."""
    if moving.target is not RESHARD:
        return "copy"
    source, target = state_of(source_of(moving)), state_of(moving)
    if source == WHOLE and target != WHOLE:
        return "scatter"
    return "copy to all" if source == target else kind_of(source, target)
