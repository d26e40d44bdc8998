"""The forms of a program in which states are solved for under a mode: norms apart, slices early, no writes.

What devices cannot share out as one operation they can as several. A form computes what the program does, but for the
order in which numbers of a norm are added; so it is for programs that devices compute together, and for no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...compiler.ir.program import Program
from .functionalize import functionalize
from .group_statistics import take_group_norms_apart
from .interleaving import stack_turns
from .narrowing import narrow
from .statistics import take_norms_apart


def put_in_form(program: Program) -> None:
    """Takes slices early, and has what is written yield new values, which changes no bit."""
    narrow(program)
    stack_turns(program)
    functionalize(program)


def narrowed(program: Program) -> Program:
    """A copy of a program put in form, as all forms are."""
    form = program.copy()
    put_in_form(form)
    return form


def forms_of(program: Program, mode: str, shares: Sequence[int]) -> Iterator[Program]:
    """Copies of a program, each in a form that a mode may have; of several the states say which takes least."""
    form = narrowed(program)
    if mode == "spatial":
        take_group_norms_apart(form, len(shares))
    yield form
    if mode == "tensor":
        apart = form.copy()
        if take_norms_apart(apart, shares):
            yield apart
