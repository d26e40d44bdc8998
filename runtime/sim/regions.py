"""Parts of a storage: whether two tensors over one storage share an element, as far as that is told easily."""

from __future__ import annotations

import torch

Region = tuple[int, tuple[int, ...], tuple[int, ...]]
"""The offset, the size and the strides of a tensor."""


def region_of(tensor: torch.Tensor) -> Region:
    """The part of its storage that a tensor covers."""
    offset: int = tensor.storage_offset()  # type: ignore[assignment]
    return offset, tuple(tensor.size()), tuple(tensor.stride())


def are_apart(one: Region, other: Region) -> bool:
    """Whether two parts surely share no element: ranges one behind the other, or other columns of the same rows."""
    if 0 in (*one[1], *other[1]) or _end(one) <= other[0] or _end(other) <= one[0]:
        return True
    (start, size, stride), (start_2, size_2, stride_2) = one, other
    if stride != stride_2 or size[:-1] != size_2[:-1] or stride[-1:] != (1,):
        return False
    steps = [step for step, count in zip(stride[:-1], size, strict=False) if count > 1]
    pitch = min(steps, default=0)
    if not pitch or any(step % pitch for step in steps):
        return False
    first, second = sorted(((start % pitch, size[-1]), (start_2 % pitch, size_2[-1])))
    return first[0] + first[1] <= second[0] and second[0] + second[1] <= pitch


def _end(region: Region) -> int:
    start, size, stride = region
    if 0 in size:
        return start
    return start + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
