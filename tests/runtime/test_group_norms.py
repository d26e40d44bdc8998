"""Group norms of which devices have parts: statistics that add up, in whatever dtype and order of memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dovetail.runtime import group_norms  # noqa: F401  (which has the kernels)

OPS = torch.ops.dovetail


def by_parts(x: Tensor, groups: int, at: int) -> Tensor:
    """The norm of pictures whose rows are cut in two."""
    count = x[0].numel() // groups if x.shape[0] else 1
    parts = x[:, :, :at], x[:, :, at:]
    means = sum(OPS.group_means(one, groups, count) for one in parts)
    variances = sum(OPS.group_variances(one, means, groups, count) for one in parts)
    return torch.cat([OPS.group_norm_by(one, means, variances, None, None, groups, 1e-5) for one in parts], 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("mean", "deviation"), [(0, 1), (1000, 1), (1003, 0), (-77.5, 0), (10, 0.1)])
def test_the_norm_by_parts_is_as_near_as_that_of_the_whole(dtype: torch.dtype, mean: float, deviation: float) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, 8, 6, 5) * deviation + mean).to(dtype)
    exact = torch.nn.functional.group_norm(x.double(), 2)
    eager = torch.nn.functional.group_norm(x, 2)
    found = by_parts(x, 2, 4)
    last_place = torch.finfo(torch.float32).eps * abs(mean) / (deviation or 1)  # of a mean, beside the deviation
    least = torch.finfo(dtype).eps * max(1.0, exact.abs().max().item()) + last_place
    assert (found - exact).abs().max() <= 1.5 * (eager - exact).abs().max() + least


def test_what_comes_channels_last_is_yielded_so_and_no_pictures_are_none() -> None:
    x = torch.randn(2, 8, 6, 5).to(memory_format=torch.channels_last)
    found = OPS.group_norm_by(x, torch.zeros(2, 2), torch.ones(2, 2), None, None, 2, 0.0)
    assert found.stride() == x.stride()
    assert torch.equal(found, x)
    assert by_parts(torch.empty(0, 8, 6, 5), 2, 4).shape == (0, 8, 6, 5)
