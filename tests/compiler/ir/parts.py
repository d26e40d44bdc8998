"""Parts of tensors as tests draw them: any axis, one range or several, also empty ones and those that meet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from dovetail.compiler.ir.state import Range


@dataclass(frozen=True)
class Case:
    """The shape of a whole, and ranges along an axis of it."""

    shape: tuple[int, ...]
    axis: int
    ranges: tuple[Range, ...]

    @property
    def indices(self) -> list[int]:
        """The elements along the axis that are in a range."""
        return [index for start, stop in self.ranges for index in range(start, stop)]

    def whole(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor of the shape, no two of whose numbers are alike."""
        return torch.arange(torch.Size(self.shape).numel(), dtype=dtype).reshape(self.shape)

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """What the part has, element by element."""
        return whole.index_select(self.axis, torch.tensor(self.indices, dtype=torch.long))


@st.composite
def ranges_in(draw: st.DrawFn, size: int, step: int = 1) -> tuple[Range, ...]:
    """One range or several of so many elements, in order, that begin and end at multiples of a step."""
    ends = st.lists(st.integers(0, size // step), min_size=2, max_size=8).filter(lambda found: len(found) % 2 == 0)
    found = [end * step for end in sorted(draw(ends))]
    return tuple(zip(found[::2], found[1::2], strict=True))


@st.composite
def cases(draw: st.DrawFn, least: int = 0) -> Case:
    """Parts of tensors of one to four dimensions, the sizes of which are ``least`` and more."""
    shape = draw(st.lists(st.integers(least, 6), min_size=1, max_size=4))
    axis = draw(st.integers(0, len(shape) - 1))
    return Case(tuple(shape), axis, draw(ranges_in(shape[axis])))
