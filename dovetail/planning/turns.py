"""Denoisers of which one has done its work before the next one begins: these work in phases of their own.

What is brought for a phase leaves with it, so that two experts of which each denoises a part of the steps, or a base
and its refiner, use the memory of their devices one after the other. That one comes after the other is seen from the
calls that a pipeline makes, in their order; where calls of two take turns, step by step, both are needed together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SAMPLING = "sampling"


def turns_of(calls: Sequence[str], phases: Mapping[str, str]) -> dict[str, str]:
    """The phases of components of sampling that come after others of it, by name; the first keep theirs.

    Args:
        calls: the component of each call of a pipeline, in their order.
        phases: the phase of each component by its role.

    >>> turns_of(["a", "a", "b", "c", "b"], {"a": "sampling", "b": "sampling", "c": "sampling"})
    {'b': 'sampling 2', 'c': 'sampling 2'}
    """
    ours = [name for name in calls if phases.get(name) == SAMPLING]
    last = {name: index for index, name in enumerate(ours)}
    found: dict[str, str] = {}
    turn, end = 1, len(ours)
    for index, name in enumerate(ours):
        if name in found:
            continue
        if index > end:
            turn, end = turn + 1, index
        found[name] = SAMPLING if turn == 1 else f"{SAMPLING} {turn}"
        end = last[name] if end == len(ours) else max(end, last[name])
    return {name: phase for name, phase in found.items() if phase != SAMPLING}
