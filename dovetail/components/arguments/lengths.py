"""Finds the lengths in which the calls of a component differ, so that one program takes prompts of any length.

The first length of a sequence is traced as it is: that is cheap, and most components see no other. At the second, the
dimensions in which the two calls differ are traced as dynamic ones. Where the model does not allow that, each length
gets a program of its own, as before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from ...compiler.ir.program import Program
from ...compiler.ir.signature import is_same, name_arguments, parameters_of

logger = logging.getLogger(__name__)

Varying: TypeAlias = frozenset[tuple[int, int]]
"""Dimensions of the tensors of a call: the position of the leaf, and the dimension."""

_AXES = 3
"""Sequences have a batch, a length and features; what has more axes is a picture, whose sizes are few."""
_KEPT = 8
"""So many forms of earlier calls are compared with a new one."""


@dataclass(frozen=True)
class Form:
    """A call without its data: its structure, and of each leaf the value, or a meta tensor."""

    names: tuple[str, ...]
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Form:
        """The form of a call of a function, by the names of its arguments."""
        named = name_arguments(parameters_of(function)[0], {}, args, kwargs)
        leaves, spec = pytree.tree_flatten(list(named.values()))
        return cls(tuple(named), spec, tuple(map(_without_data, leaves)))

    def arguments(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Arguments of this structure around other leaves."""
        return dict(zip(self.names, pytree.tree_unflatten(leaves, self.spec), strict=True))

    def varying(self, other: Form) -> Varying:
        """The dimensions in which two calls differ; none where they differ in anything else."""
        if self.names != other.names or self.spec != other.spec:
            return frozenset()
        found: set[tuple[int, int]] = set()
        for index, (mine, theirs) in enumerate(zip(self.leaves, other.leaves, strict=True)):
            dimensions = _differing(mine, theirs)
            if dimensions is None:
                return frozenset()
            found.update((index, dimension) for dimension in dimensions)
        return frozenset(found)

    def shapes(self, varying: Varying) -> dict[str, Any]:
        """Dynamic shapes as torch.export takes them."""
        marks: list[Any] = [None] * len(self.leaves)
        for index, dimension in varying:
            marks[index] = {**(marks[index] or {}), dimension: Dim.AUTO}
        return self.arguments(marks)

    def is_taken_by(self, program: Program) -> bool:
        """Whether a program takes calls of this form."""
        return program.signature.takes((), self.arguments(self.leaves))


@dataclass
class Lengths:
    """The forms of the calls for which a component was traced, and the dimensions that its model does not let vary."""

    seen: list[tuple[Any, Form]] = field(default_factory=list)
    fixed: set[Varying] = field(default_factory=set)

    def varying(self, state: Any, form: Form) -> Varying:
        """The dimensions in which a call differs from an earlier one of a module in the same state."""
        earlier = [known for before, known in self.seen if before == state]
        found = next(filter(None, (form.varying(known) for known in reversed(earlier))), Varying())
        self.seen = [*self.seen[1 - _KEPT :], (state, form)]
        return Varying() if found in self.fixed else found

    def is_of_use(self, varying: Varying, program: Program) -> bool:
        """Whether a program with these dimensions dynamic takes the last call; one that has none is as good as any."""
        if not program.symbols:
            self.fix(varying, f"{program.name} has them fixed")
        taken = self.seen[-1][1].is_taken_by(program)
        if not taken:
            self.fix(varying, f"{program.name} has them vary, and does not take this call")
        return taken

    def fix(self, varying: Varying, why: str) -> None:
        """Notes that dimensions do not vary in one program."""
        self.fixed.add(varying)
        logger.info("lengths are compiled one by one: %s", why)


def _without_data(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")


def _differing(mine: Any, theirs: Any) -> list[int] | None:
    """The dimensions in which two leaves differ; None where they differ otherwise, or cannot vary."""
    if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
        return [] if is_same(mine, theirs) else None
    if mine.dtype is not theirs.dtype or mine.dim() != theirs.dim():
        return None
    found = [index for index, sizes in enumerate(zip(mine.shape, theirs.shape, strict=True)) if len(set(sizes)) > 1]
    small = any(min(mine.shape[index], theirs.shape[index]) < 2 for index in found)  # export fixes sizes of 0 and 1
    return None if found and (small or mine.dim() > _AXES) else found
