"""The kernels of group norm by parts: statistics of what a device has, and the norm by those of all.

Squares are taken about a mean that is known, so that none of their digits are lost where the mean is large. Statistics
are taken in float32 at least, and copies in it are made of one group at a time. What comes channels last is so yielded.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from ..compiler.ir.ops import LIBRARY, statistics_dtype


def _flat(x: Tensor, groups: int) -> Tensor:
    """The elements of each group of channels of each picture in a row."""
    return x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)


def _means(x: Tensor, groups: int, count: int) -> Tensor:
    return _flat(x, groups).sum(-1, dtype=statistics_dtype(x.dtype)).div_(count)


def _variances(x: Tensor, means: Tensor, groups: int, count: int) -> Tensor:
    """The variance about the elements' own mean, and the square of how far that is from the mean of all."""
    flat = _flat(x, groups)
    if not flat.numel():
        return torch.zeros_like(means)
    own = flat.shape[-1]
    found, mean = torch.empty_like(means), torch.empty_like(means)
    for at in range(groups):  # one by one, so that no copy of all elements in another dtype is made
        found[:, at], mean[:, at] = torch.var_mean(flat[:, at].to(means.dtype), -1, correction=0)
    return found.add_(mean.sub_(means).square_()).mul_(own / count)


def _norm(
    x: Tensor, means: Tensor, variances: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Tensor:
    """A channel of a picture has a mean, a variance, a factor and a summand, as those of a batch norm that is done."""
    if not x.numel():  # PyTorch's batch norm takes one channel at least
        return torch.empty_like(x)
    pictures, channels = x.shape[:2]
    known = torch.empty((4, pictures, channels), dtype=means.dtype, device=x.device)
    for at, one in enumerate((means, variances)):
        known[at].view(pictures, groups, channels // groups).copy_(one.unsqueeze(-1))
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


LIBRARY.impl("group_means", _means, "CompositeExplicitAutograd")
LIBRARY.impl("group_variances", _variances, "CompositeExplicitAutograd")
LIBRARY.impl("group_norm_by", _norm, "CompositeExplicitAutograd")
