"""A part that lies together as its place does is one stretch of memory that is copied to another."""

from __future__ import annotations

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.compiler.ir.value import is_dense, lies_together

AXES = st.permutations(range(3))


def narrowed(sizes: list[int], order: list[int], cut: tuple[int, int]) -> torch.Tensor:
    """A part along an axis of a tensor that fills its memory with its axes in an order, outermost first."""
    whole = torch.empty([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(3)])
    axis, length = cut[0], 1 + cut[1] % sizes[cut[0]]
    return whole.narrow(axis, sizes[axis] - length, length)


def stretch(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from the first number of a tensor on, as many as it has."""
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())


@given(st.lists(st.integers(1, 4), min_size=3, max_size=3), AXES, AXES, st.tuples(st.integers(0, 2), st.integers(0, 3)))
@example([1, 4, 3], [0, 2, 1], [0, 2, 1], (2, 1))
@example([2, 4, 3], [0, 2, 1], [0, 2, 1], (2, 1))
def test_what_lies_as_its_place_does_is_copied_as_it_lies(
    sizes: list[int], order: list[int], placed: list[int], cut: tuple[int, int]
) -> None:
    part, place = narrowed(sizes, order, cut), narrowed(sizes, placed, cut)
    found = lies_together(part.shape, part.stride(), place.stride())
    if part.is_contiguous():
        assert found
        return
    both = is_dense(part.shape, part.stride()) and is_dense(place.shape, place.stride())
    if both:
        stretch(part).copy_(torch.arange(1.0, 1 + part.numel()))
        stretch(place).copy_(stretch(part))
    assert found == (both and torch.equal(place, part))
