"""Which weights a row split slices, and why not the others, in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ...compiler.ir.eligibility import marks_by_name
from ...compiler.ir.program import Program
from ...compiler.units import format_bytes


def lines_of_marks(programs: Mapping[str, Program]) -> Iterator[str]:
    """A line for each program that has weights, unless its devices compute it together."""
    said = ((name, marks_in_words(one)) for name, one in programs.items() if one.weights)
    return (f"{name}: {words}." for name, words in said if words)


def marks_in_words(program: Program) -> str:
    """How many weights are eligible for a row split, their bytes, and how many others there are of each kind.

    It is nothing where devices compute a program together otherwise, which asks for no such weights.
    """
    if program.is_grouped and not program.is_sliced:
        return ""
    marks = marks_by_name(program)
    eligible = [name for name, reason in marks.items() if not reason]
    kinds = Counter(reason.partition(":")[0] for reason in marks.values() if reason)
    others = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    nbytes = f", {format_bytes(program.nbytes_of(eligible))}" if eligible else ""
    weights = "weight is" if len(marks) == 1 else "weights are"
    what = f"{len(eligible)} of {len(marks)} {weights} eligible for a row split{nbytes}"
    return f"{what}; not eligible: {others}" if others else what
