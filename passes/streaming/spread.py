"""Which weights that rest elsewhere stay on a device for a phase, and how many slots the others come through.

A device gets slots for the stages whose weights come and go: one at least, and more, so that the next stage's weights
come while one runs. With phases, as many weights as fit beside two slots stay; they are spread evenly over the stages,
the first among them, so that each load has the computing of others to hide behind; those on disk before those in the
host's memory, which come back quicker.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...compiler.ir.staging import offsets
from ...compiler.ir.weight import Weight

DEEPEST = 3
"""Slots of a device: one is read, one filled, and one evens out stages of different lengths; more hide nothing more."""


@dataclass(frozen=True)
class Streaming:
    """What stays on a device, by name, and how many slots it has for the rest."""

    kept: frozenset[str] = frozenset()
    slots: int = 1


StageWeights = Sequence[Mapping[str, Weight]]
"""The weights that come for each stage of a device, in the order of the stages, by name."""


def stream(stages: StageWeights, room: int, keeps: bool, slow: Collection[str] = ()) -> Streaming:
    """What stays and how many slots there are in ``room`` bytes; with one slot where even that exceeds it.

    Args:
        stages: the weights of each stage.
        room: bytes for all of them on the device.
        keeps: whether weights may stay after their stage, until a phase ends.
        slow: the names of weights that are better kept than others.
    """
    if keeps and _bytes(stages) <= room:
        return Streaming(frozenset(name for stage in stages for name in stage))
    for slots in range(min(2, len(stages)), 0, -1):
        if slots * slot_of(stages) <= room:
            kept = _spread(stages, room, slots, slow) if keeps else frozenset()
            return Streaming(kept, _deepest(_without(stages, kept), room - _kept_bytes(stages, kept)))
    return Streaming()


def _spread(stages: StageWeights, room: int, slots: int, slow: Collection[str]) -> frozenset[str]:
    """The weights of as large a part of all stages as fits beside the slots for the others, found by bisection."""
    fitting: frozenset[str] = frozenset()
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        kept = frozenset(_best(stages, middle, slow))
        rest = _without(stages, kept)
        if _kept_bytes(stages, kept) + min(slots, len(rest)) * slot_of(rest) <= room:
            low, fitting = middle, kept
        else:
            high = middle
    return fitting


def _best(stages: StageWeights, part: float, slow: Collection[str]) -> Iterator[str]:
    """The weights of such a part of the stages by bytes: of the slow ones, and of the others when all of these stay."""
    first = [{name: weight for name, weight in stage.items() if name in slow} for stage in stages]
    others = [{name: weight for name, weight in stage.items() if name not in slow} for stage in stages]
    share = _bytes(first) / max(1, _bytes(stages))
    if share:
        yield from _evenly([stage for stage in first if stage], min(1.0, part / share))
    if part > share or not share:
        yield from _evenly([stage for stage in others if stage], (part - share) / (1 - share) if share < 1 else 1.0)


def _evenly(stages: StageWeights, part: float) -> Iterator[str]:
    """The weights of such a part of the stages by bytes, evenly spread, beginning with the first stage."""
    due = 0.0
    for stage in stages:
        nbytes = _bytes([stage])
        due += part * nbytes
        if due > nbytes * (1 - part) / 2:
            due -= nbytes
            yield from stage


def _without(stages: StageWeights, kept: frozenset[str]) -> list[Mapping[str, Weight]]:
    """What is left to come for each stage, without those that have nothing left."""
    left = ({name: weight for name, weight in stage.items() if name not in kept} for stage in stages)
    return [stage for stage in left if stage]


def _deepest(stages: StageWeights, room: int) -> int:
    """How many slots for these stages fit."""
    slot = slot_of(stages)
    return max(1, min(DEEPEST, len(stages), room // slot if slot else 1))


def slot_of(stages: StageWeights) -> int:
    """The bytes of a slot that takes any of these stages."""
    return max((offsets(list(stage.values()))[1] for stage in stages), default=0)


def _bytes(stages: StageWeights) -> int:
    """The bytes of all weights of some stages, each once."""
    return sum(weight.device_bytes for weight in {name: w for stage in stages for name, w in stage.items()}.values())


def _kept_bytes(stages: StageWeights, kept: frozenset[str]) -> int:
    """The bytes of what is kept of them."""
    return _bytes(stages) - _bytes(_without(stages, kept))
