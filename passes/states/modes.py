"""What a mode allows: constraints on ways and on the bytes of weights of each device, nothing else.

``batch``: only states that the batch of the inputs gives; ``sequence``: weights whole, and not by the batch; both keep
bits where it is known how, see `exactness`;
``tensor``: no device has more of what can be split of the weights than its share, in units, and a little; ``spatial``:
weights whole, and only states that follow where the pictures of the inputs are split along one axis; ``free``: all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from torch.fx import Node

from ...compiler.ir.program import Program, tensors_of
from ...compiler.ir.state import PARTIAL, Split
from ...compiler.states.strategy import Strategy
from ..placement.blocks import FindBlocks
from .candidates import wanted, ways
from .exactness import KEEPING, keeps_bits
from .exchanges import Group
from .folding import Folded, folded
from .problem import Account, Problem, parts_weights
from .shares import cut_in_units
from .solution import of_like

MODES = ("free", "tensor", "sequence", "batch", "spatial")

Limits: TypeAlias = tuple[int | None, ...]
"""The most bytes of something on each device; None for as many as there are."""

LITTLE = 0.06
"""The part of all weights that a device may have beside its share of them under ``tensor``."""


@dataclass(frozen=True)
class Posed:
    """A problem, the most bytes of weights of each device, and the ways by the batch alone.

    ``most`` has None for a device that may have all weights; so has ``room``, the bytes of weights and values together.
    ``in_space`` says that pictures are to be split in space.
    """

    problem: Problem
    most: Limits
    room: Limits
    by_batch: Mapping[Node, frozenset[int]]
    batch: int
    in_space: bool = False

    def within(self, room: Limits) -> Posed:
        """The same where devices have other room for weights and values together."""
        return replace(self, room=room or (None,) * len(self.problem.group))

    def over(self, group: Group) -> Posed:
        """The same over devices of other speeds, whose shares are these."""
        return replace(self, problem=Problem(self.problem.folded, group, self.problem.ways))

    def is_kept(self, account: Account) -> bool:
        """Whether each device has no more than it may have."""
        together = [held + alive for held, alive in zip(account.weights, account.alive, strict=True)]
        pairs = [*zip(account.weights, self.most, strict=True), *zip(together, self.room, strict=True)]
        return all(limit is None or nbytes <= limit for nbytes, limit in pairs)


def posed(program: Program, group: Group, mode: str, most: Limits = (), room: Limits = ()) -> Posed:
    """The problem of a program under a mode; see `Posed` for the limits, which are those of the mode if left out."""
    if not program.blocks:
        program = replace(program)
        FindBlocks().run(program)
    if mode == "spatial":
        return _in_space(program, group, most, room)
    whole, (size, given) = folded(program), _batch(program, group)
    of_inputs = mode == "batch"  # scaled latents, too, are of so many pictures
    every = ways(whole, group.shares, given, wanted(whole, group.shares), of_inputs)
    alone = {node: set(map(_facts, some)) for node, some in ways(whole, group.shares, given, {}, of_inputs).items()}
    kept = {
        node: tuple(way for at, way in enumerate(some) if not at or _is_allowed(whole, mode, node, way, alone[node]))
        for node, some in every.items()
    }
    numbers = {node: [at for at, way in enumerate(some) if _facts(way) in alone[node]] for node, some in kept.items()}
    problem, free = Problem(whole, group, kept), (None,) * len(group)
    least = most or (_most(problem) if mode == "tensor" else free)
    return Posed(problem, least, room or free, {node: frozenset(some) for node, some in numbers.items()}, size)


def why_not(program: Program, group: Group, mode: str) -> str:
    """Why nothing of a program can be split under a mode, by its inputs alone; nothing if something may be."""
    if mode == "batch" and picture_count(program) < 2:
        return "the inputs are of one picture"
    if mode == "spatial" and not pictures(program, group):
        return "none of the inputs is a picture that can be split"
    return ""


def _in_space(program: Program, group: Group, most: Limits, room: Limits) -> Posed:
    """The problem of a program whose pictures are split along one axis, with all that follows from that."""
    whole, free = folded(program), (None,) * len(group)
    kept = {
        node: tuple(way for at, way in enumerate(some) if not at or not parts_weights(whole, node, way))
        for node, some in ways(whole, group.shares, pictures(program, group), {}, from_inputs=True).items()
    }
    nothing = {node: frozenset({0}) for node in kept}
    return Posed(Problem(whole, group, kept), most or free, room or free, nothing, 1, in_space=True)


def pictures(program: Program, group: Group) -> dict[Node, list[Split]]:
    """The states in which inputs that are pictures or films are split: the longer of height and width.

    Frames are split where neither has an element for each device. It is one axis for all inputs of so many axes.
    """
    kinds = {node: tensors_of(node)[0] for node in program.inputs() if tensors_of(node)}
    shown = {node: kind.sizes for node, kind in kinds.items() if len(kind.shape) in (4, 5) and kind.shape == kind.sizes}
    sizes = list(shown.values())
    if not sizes:
        return {}
    largest = max(sizes, key=prod)
    rank = len(largest)
    height, width = largest[-2:]
    axis = rank - 2 if height >= width else rank - 1
    if largest[axis] < len(group) and rank == 5:
        axis = max((2, axis), key=lambda one: largest[one])
    same = [node for node, shape in shown.items() if len(shape) == rank and shape[axis] == largest[axis] > 1]
    return {node: [Split(axis, (cut_in_units(largest[axis], group.shares),))] for node in same}


def _is_allowed(whole: Folded, mode: str, node: Node, way: Strategy, by_batch: Container[object]) -> bool:
    """Whether a mode has a way of an operation, given what identifies those that the batch alone gives."""
    is_of_batch = _facts(way) in by_batch
    alike = whole.likes[node] if mode in KEEPING else ()  # which may lie otherwise in memory
    if not all(keeps_bits(one, of_like(way, node, one)) for one in alike):
        return False
    if mode == "batch":
        return is_of_batch and PARTIAL not in way.results
    return mode != "sequence" or not (is_of_batch or parts_weights(whole, node, way))


def _most(problem: Problem) -> Limits:
    """The share of each device in weights that can be split, all of the others, and a little.

    Of a weight of few units, such as heads, it is what the least way has the device hold, if that is more.
    """
    total, shares = sum(nbytes for _, nbytes in problem.weights), problem.group.shares
    least = [0.0] * len(shares)
    for readings, nbytes in problem.weights:
        parts = [state for reading in readings for state in _parted(problem, *reading)]
        for member, share in enumerate(shares):
            held = min((state.share(member) for state in parts), default=1.0)
            least[member] += nbytes * max(share / sum(shares), held)
    return tuple(round(min(total, nbytes + total * LITTLE)) for nbytes in least)


def _parted(problem: Problem, node: Node, operand: Node) -> Iterator[Split]:
    """The states in which an operation may read a part of a weight."""
    for way in problem.ways.get(node, ()):
        state = way.takes(operand)
        if isinstance(state, Split):
            yield state


def _facts(way: Strategy) -> object:
    return way.results, frozenset(way.operands.items())


def picture_count(program: Program) -> int:
    """How many pictures the inputs of a program are of; 1 where that is not known."""
    shapes = [tensors_of(node)[0].shape for node in program.inputs() if tensors_of(node)]
    firsts = Counter(shape[0] for shape in shapes if len(shape) > 1)
    ((size, _),) = firsts.most_common(1) or [(1, 0)]
    return size if isinstance(size, int) else 1


def _batch(program: Program, group: Group) -> tuple[int, dict[Node, list[Split]]]:
    """How many pictures the inputs are of, and the states in which they are split by these."""
    size = picture_count(program)
    if size < 2:
        return 1, {}
    sizes = {node: tensors_of(node)[0].shape for node in program.inputs() if tensors_of(node)}
    state = Split(0, (cut_in_units(size, group.shares),))
    return size, {node: [state] for node, shape in sizes.items() if shape and shape[0] == size}
