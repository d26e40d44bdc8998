"""Where the blocks of a program lie among the steps of a run, and inside which of them nothing else happens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter

from torch.fx import Node

from .aliasing import writers_of
from .program import Program, origin_of, tensors_of, weight_name
from .schedule import Run, Schedule, Step, ValueRef

COMPILED = "blocks compiled"
"""The fact of a program that its repeated blocks are to be compiled by a kernel compiler."""


def block_spans(program: Program, run: Run) -> list[range]:
    """The steps of each block in a run, in order; no two overlap. There are none where devices share the nodes.

    A block spans the nodes that its module made, but those that were moved away from most of them. Where a trace knows
    no modules, it goes from the first reader of its weights to that of the next block's.
    """
    nodes = run.nodes
    if len(run.segment.group) > 1:
        return []
    if any(origin_of(node).module for node in nodes):
        return [range(first, last + 1) for first, last in _places(_by_module(program, nodes))]
    starts = [first for first, _ in _places(_by_weights(program, nodes))]
    between = [range(*pair) for pair in pairwise(starts)]
    return between + [range(starts[-1], min(starts[-1] + len(one), len(nodes))) for one in between[-1:]]


def with_blocks_whole(program: Program, schedule: Schedule) -> Schedule:
    """The schedule with nothing inside blocks, as far as that can be."""
    written = writers_of(program).keys()

    def whole(run: Run) -> Run:
        steps = list(run.steps)
        for span in block_spans(program, run):
            steps[span.start : span.stop] = at_border(program, steps[span.start : span.stop], written)
        return replace(run, steps=tuple(steps))

    return Schedule(tuple(whole(one) if isinstance(one, Run) else one for one in schedule))


def is_closed(program: Program, steps: Sequence[Step], written: Collection[int]) -> bool:
    """Whether steps can run as one: what they await comes before them, what they send and free of others after them.

    What one of them makes and frees is its own. Memory that is ``written`` at some time lies inside or outside, never
    in both.
    """
    inner = internal(steps)
    return (
        not any(step.awaits for step in steps[1:])
        and not any(step.sends for step in steps[:-1])
        and all(free.value in inner for step in steps[:-1] for free in step.frees)
        and not _is_written_across(program, [step.node for step in steps], written)
    )


def at_border(program: Program, steps: Sequence[Step], written: Collection[int]) -> list[Step]:
    """The same steps, with all that is awaited before the first, and sent and freed of others after the last.

    They stay as they are where a step waits for what another one sends, or memory is written across the border.
    """
    sends = tuple(copy for step in steps for copy in step.sends)
    awaits = tuple(one for step in steps for one in step.awaits)
    if any(one.started in sends for one in awaits) or _is_written_across(program, [s.node for s in steps], written):
        return list(steps)
    inner = internal(steps)
    moved = [replace(s, awaits=(), sends=(), frees=tuple(f for f in s.frees if f.value in inner)) for s in steps]
    others = tuple(free for step in steps for free in step.frees if free.value not in inner)
    moved[-1] = replace(moved[-1], sends=sends, frees=(*moved[-1].frees, *others))
    moved[0] = replace(moved[0], awaits=awaits)
    return moved


def internal(steps: Sequence[Step]) -> set[ValueRef]:
    """The values that steps make and free, and that no copy reads."""
    sent = {copy.sent for step in steps for copy in step.sends}
    made = {ValueRef(step.node) for step in steps} - sent
    return made & {free.value for step in steps for free in step.frees}


def _is_written_across(program: Program, nodes: Sequence[Node], written: Collection[int]) -> bool:
    every = {one for node in nodes for one in (node, *node.all_input_nodes)}
    storages = {tensor.storage for node in every for tensor in tensors_of(node)}.intersection(written)
    if not storages:
        return False
    touching = (node for node in program.graph.nodes if any(tensor.storage in storages for tensor in tensors_of(node)))
    return any(not {one, *one.users} <= set(nodes) for one in touching)


def _places(found: Iterator[tuple[int, str]]) -> list[tuple[int, int]]:
    """The first and last step of each block where most of its steps follow each other, in order."""
    most: dict[str, list[int]] = {}
    for block, group in groupby(found, itemgetter(1)):
        steps = [index for index, _ in group]
        most[block] = max(most.get(block, []), steps, key=len)
    return sorted((steps[0], steps[-1]) for steps in most.values())


def _by_module(program: Program, nodes: Sequence[Node]) -> Iterator[tuple[int, str]]:
    names = {block.name for block in program.blocks}
    for index, node in enumerate(nodes):
        parts = origin_of(node).module.split(".")
        around = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
        block = next((name for name in around if name in names), None)
        if block is not None:
            yield index, block


def _by_weights(program: Program, nodes: Sequence[Node]) -> Iterator[tuple[int, str]]:
    block_of = program.block_of()
    for index, node in enumerate(nodes):
        for name in filter(None, map(weight_name, node.all_input_nodes)):
            if name in block_of:
                yield index, block_of[name]
