"""The kernels of group norm by parts: statistics of what a device has, and the norm by those of all.

Squares are taken about a mean that is known, so that none of their digits are lost where the mean is large. Statistics
are taken in float32 at least, without a copy of the elements in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..compiler.ir.ops import LIBRARY, statistics_dtype


def _means(x: Tensor, groups: int, count: int) -> Tensor:
    return x.reshape(x.shape[0], groups, -1).sum(-1, dtype=statistics_dtype(x.dtype)).div_(count)


def _variances(x: Tensor, means: Tensor, groups: int, count: int) -> Tensor:
    """The variance about the elements' own mean, and the square of how far that is from the mean of all."""
    flat = x.reshape(x.shape[0], groups, -1)
    own = flat.shape[-1]
    if flat.dtype == means.dtype:
        found, mean = torch.var_mean(flat, -1, correction=0)
    else:
        mean = flat.sum(-1, dtype=means.dtype).div_(own)
        found = torch.linalg.vector_norm(flat, 2, -1, dtype=means.dtype).square_().div_(own)
        found.addcmul_(mean, mean, value=-1)
    return found.add_(mean.sub_(means).square_()).mul_(own / count)


def _norm(
    x: Tensor, means: Tensor, variances: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> Tensor:
    """A channel of a picture has a mean, a variance, a factor and a summand, as those of a batch norm that is done."""
    pictures, channels = x.shape[:2]
    known = torch.empty((4, pictures, channels), dtype=means.dtype, device=x.device)
    for at, one in enumerate((means, variances)):
        known[at].view(pictures, groups, -1).copy_(one.unsqueeze(-1))
    for at, given, usual in ((2, weight, 1), (3, bias, 0)):
        known[at].fill_(usual) if given is None else known[at].copy_(given)
    mean, variance, factor, summand = known.flatten(1).unbind()
    flat = x.reshape(1, pictures * channels, -1)
    return torch.nn.functional.batch_norm(flat, mean, variance, factor, summand, False, 0.0, eps).view(x.shape)


LIBRARY.impl("group_means", _means, "CompositeExplicitAutograd")
LIBRARY.impl("group_variances", _variances, "CompositeExplicitAutograd")
LIBRARY.impl("group_norm_by", _norm, "CompositeExplicitAutograd")
