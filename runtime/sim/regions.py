"""Parts of a storage: whether two tensors over one storage share an element, as far as that is told easily."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

Region = tuple[int, tuple[int, ...], tuple[int, ...]]
"""The offset, the size and the strides of a tensor."""


def region_of(tensor: torch.Tensor) -> Region:
    """The part of its storage that a tensor covers."""
    offset: int = tensor.storage_offset()  # type: ignore[assignment]
    return offset, tuple(tensor.size()), tuple(tensor.stride())


def are_apart(one: Region, other: Region) -> bool:
    """Whether two parts surely share no element: ranges one behind the other, or boxes of one tensor that are apart."""
    if 0 in (*one[1], *other[1]) or _end(one) <= other[0] or _end(other) <= one[0]:
        return True
    axes = [(count, step) for region in (one, other) for count, step in zip(*region[1:], strict=True) if count > 1]
    steps = sorted({step for _, step in axes}, reverse=True)
    if one[2] != other[2] or any(not step or outer % step for outer, step in pairwise([*steps[:1], *steps])):
        return False
    boxes = [found for found in (_box(region, steps) for region in (one, other)) if found is not None]
    return len(boxes) == 2 and any(
        start + count <= start_2 or start_2 + count_2 <= start
        for (start, count), (start_2, count_2) in zip(*boxes, strict=True)
    )


def _box(region: Region, steps: Sequence[int]) -> list[tuple[int, int]] | None:
    """The first index and the count along each axis of a tensor with such steps; None where it reaches beyond one."""
    counts: dict[int, int] = {}
    for count, step in zip(*region[1:], strict=True):
        if count > 1:
            counts[step] = counts.get(step, 1) * count
    offset, found, around = region[0], list[tuple[int, int]](), 0
    for step in steps:
        start, offset = divmod(offset, step)
        count = counts.get(step, 1)
        if around and (start + count) * step > around:
            return None
        found.append((start, count))
        around = step
    return [*found, (offset, 1)]


def _end(region: Region) -> int:
    start, size, stride = region
    if 0 in size:
        return start
    return start + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
