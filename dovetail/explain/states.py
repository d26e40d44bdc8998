"""What is said of a program that devices compute together: how operations are split, and what devices exchange."""

from __future__ import annotations

from collections.abc import Iterator

from ..compiler.ir.program import Program
from ..compiler.units import counted, format_bytes
from ..planning.shared_work import WAYS, classes_of, exchanges_of


def states_in_words(program: Program) -> Iterator[str]:
    """A sentence for each class of blocks of a placed program, and one for each kind of exchange.

    A class of blocks are those whose names differ by a number alone. An operation is split where each device has a part
    of some result of it, and whole where each computes all of it, or the main device does.
    """
    for one in classes_of(program):
        parts = [f"{one.ways[way]} {'is' if one.ways[way] == 1 else 'are'} {way}" for way in WAYS if one.ways[way]]
        yield f"Of the {counted(sum(one.ways.values()), 'operation')} of {one} {', '.join(parts)}."
    for each in exchanges_of(program):
        yield f"Devices exchange {format_bytes(each.nbytes)} a call in {each}."
