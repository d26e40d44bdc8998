"""The kernels of norms by parts: statistics of what a device has, those of all together, and group norm by these.

Deviations are taken from the mean of a part, and means are combined as they differ from the first, so that no digits
are lost where the mean is large. Statistics are taken in float32 at least, and copies in it are made of one group at a
time. What comes channels last is so yielded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from ..compiler.ir.ops import LIBRARY, statistics_dtype


def _of_rows(x: Tensor, parts: int) -> Tensor:
    """The statistics of each row, as those of the first part; of the others there is nothing."""
    found = _of_nothing(x, parts)
    if x.numel():
        found[0, ..., 2], found[0, ..., 1] = torch.var_mean(x.to(found.dtype), -1, correction=0)
        found[0, ..., 2].mul_(x.shape[-1])
    return found


def _of_groups(x: Tensor, groups: int, parts: int) -> Tensor:
    flat = x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    found = _of_nothing(flat, parts)
    is_short = flat.dtype != found.dtype
    for at in range(groups if is_short else 1) if flat.numel() else ():
        some = at if is_short else slice(None)  # one by one, so that no copy of all elements in another dtype is made
        found[0, :, some, 2], found[0, :, some, 1] = torch.var_mean(flat[:, some].to(found.dtype), -1, correction=0)
    found[0, ..., 2].mul_(flat.shape[-1])
    return found


def _of_nothing(flat: Tensor, parts: int) -> Tensor:
    """Statistics in which but the number of elements is said, of the first part."""
    found = flat.new_zeros((parts, *flat.shape[:-1], 3), dtype=statistics_dtype(flat.dtype))
    found[0, ..., 0].fill_(flat.shape[-1])
    return found


def _combined(parts: Tensor) -> Tensor:
    """Mean and variance of what parts have together (Chan, Golub and LeVeque), one part after another."""
    found = parts.new_zeros((2, *parts.shape[1:-1], 1))
    mean, squares = found
    first, start, own = parts[0].split(1, -1)
    squares.copy_(own)
    count = first.clone()
    for one in parts[1:]:
        count = _added(count, mean, squares, one, start)
    mean.add_(start)
    squares.div_(count)
    return found


def _added(count: Tensor, mean: Tensor, squares: Tensor, one: Tensor, start: Tensor) -> Tensor:
    """Adds the statistics of a part in place, the mean as it differs from another; returns how many there are then."""
    more, its_mean, its_squares = one.split(1, -1)
    together: Tensor = count + more
    share, apart = more / together, its_mean - start
    apart.sub_(mean)
    mean.addcmul_(apart, share)
    squares.add_(its_squares).add_(share.mul_(apart).mul_(apart).mul_(count))
    return together


def _norm(x: Tensor, statistics: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float) -> Tensor:
    """A channel of a picture has a mean, a variance, a factor and a summand, as those of a batch norm that is done."""
    if not x.numel():  # PyTorch's batch norm takes one channel at least
        return torch.empty_like(x)
    pictures, channels = x.shape[:2]
    known = torch.empty((4, pictures, channels), dtype=statistics.dtype, device=x.device)
    known[:2].view(2, pictures, groups, channels // groups).copy_(statistics)
    for at, given, usual in ((2, weight, 1), (3, bias, 0)):
        known[at].fill_(usual) if given is None else known[at].copy_(given)
    last = suggest_memory_format(x)
    if x.is_contiguous() or not x.is_contiguous(memory_format=last):
        flat = x.reshape(1, pictures * channels, math.prod(x.shape[2:]))
        return _done(flat, known.flatten(1), eps).view(x.shape).contiguous(memory_format=last)
    if pictures == 1:
        return _done(x, known[:, 0], eps)
    found = torch.empty_like(x)
    for at in range(
        pictures
    ):  # one by one, for pictures whose channels lie last cannot be seen as one of more channels
        found[at : at + 1] = _done(x[at : at + 1], known[:, at], eps)
    return found


def _done(x: Tensor, known: Tensor, eps: float) -> Tensor:
    """A batch norm that is done, of one picture, by the four numbers of each of its channels."""
    mean, variance, factor, summand = known.unbind()
    return torch.nn.functional.batch_norm(x, mean, variance, factor, summand, False, 0.0, eps)


LIBRARY.impl("row_statistics", _of_rows, "CompositeExplicitAutograd")
LIBRARY.impl("group_statistics", _of_groups, "CompositeExplicitAutograd")
LIBRARY.impl("combined_statistics", _combined, "CompositeExplicitAutograd")
LIBRARY.impl("group_norm_by", _norm, "CompositeExplicitAutograd")
