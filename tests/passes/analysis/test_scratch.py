"""What operations take while they run, against what PyTorch's own profiler counts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from dovetail.compiler.devices.device import Device
from dovetail.compiler.frontend.trace import trace
from dovetail.passes.analysis.scratch import scratch_bytes
from dovetail.runtime import norm_statistics, sim, sum_terms  # noqa: F401  (which have the kernels)

SHAPES = [
    (1, 2, 100, 100, 64), (1, 4, 1024, 300, 64), (2, 4, 200, 77, 40), (1, 2, 800, 800, 16), (1, 3, 100, 601, 65),
    (1, 2, 63, 100, 64), (1, 2, 100, 63, 64),
]  # fmt: skip
"""Kernels go by blocks of other sizes, or pack keys and values first, from some lengths on."""


class Attention(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask)


def taken(module: nn.Module, args: Any) -> int:
    """The most bytes that a call has allocated at once beside its result."""
    with torch.no_grad():
        module(*args)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
            result = module(*args)
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]  # type: ignore[union-attr]
    held = most = 0
    for one in sorted(events, key=lambda event: event.start_ns()):
        held += one.nbytes()
        most = max(most, held)
    return most - result.nbytes


def planned(module: nn.Module, args: Any, device: str = "cpu") -> int:
    program = trace(module, args)
    return sum(scratch_bytes(program, node, Device(device)) for node in program.ops())


@pytest.mark.few(quick=40)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("masked", ["", "bool", "float"])
def test_attention_by_blocks_takes_what_is_planned(shape: tuple[int, ...], dtype: torch.dtype, masked: str) -> None:
    batch, heads, rows, columns, width = shape
    args = [torch.randn(batch, heads, size, width, dtype=dtype) for size in (rows, columns, columns)]
    if masked:
        args.append(torch.ones(batch, 1, 1, columns, dtype=torch.bool if masked == "bool" else dtype))
    assert taken(Attention(), tuple(args)) == planned(Attention(), tuple(args)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [8, 80])
def test_attention_over_a_matrix_of_scores_takes_no_more_than_is_planned(width: int, dtype: torch.dtype) -> None:
    args = tuple(torch.randn(2, 4, size, last, dtype=dtype) for size, last in ((300, 40), (77, 40), (77, width)))
    assert 0 < taken(Attention(), args) <= planned(Attention(), args)


def test_what_an_accelerator_takes_for_attention_is_not_known() -> None:
    args = tuple(torch.randn(1, 2, 16, 8) for _ in range(3))
    assert planned(Attention(), args, "sim") == 0


OURS: dict[str, Callable[..., Tensor]] = {
    "sum": lambda x, *_: torch.ops.dovetail.sum_terms(x),
    "sum in float32": lambda x, *_: torch.ops.dovetail.sum_terms(x, torch.float32),
    "rows": lambda x, *_: torch.ops.dovetail.row_statistics(x, 2),
    "groups": lambda x, *_: torch.ops.dovetail.group_statistics(x, 4, 2),
    "combined": lambda _, parts, __: torch.ops.dovetail.combined_statistics(parts),
    "norm": lambda x, parts, weight: torch.ops.dovetail.group_norm_by(x, parts[:2, ..., :1], weight, weight, 4, 1e-5),
}


class Ours(nn.Module):
    """A call of an operation of several."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: Tensor, parts: Tensor, weight: Tensor) -> Tensor:
        return self.call(x, parts, weight)


def operands(dtype: torch.dtype, layout: torch.memory_format | None, device: str = "cpu") -> tuple[Tensor, ...]:
    x = torch.randn(2, 8, 16, 12).to(dtype).to(device)
    exact = torch.promote_types(dtype, torch.float32)
    laid = x.to(memory_format=layout) if layout else x[:, :, 3:9]
    return laid, torch.ones(3, 2, 4, 3, dtype=exact).to(device), torch.ones(8, dtype=dtype).to(device)


@pytest.mark.few(quick=18)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last, None], ids=str)
def test_operations_of_several_take_what_is_planned(
    name: str, dtype: torch.dtype, layout: torch.memory_format | None
) -> None:
    """On simulated devices to the byte, on the host but for a few numbers."""
    sim.enable({0: 2**30})
    args, there, module = operands(dtype, layout), operands(dtype, layout, "sim"), Ours(OURS[name])
    gc.collect()
    before = sim.stats(0).in_use
    sim.reset_peak(0)
    with torch.inference_mode():
        result = module(*there)
    most = sim.stats(0).peak - before - result.nbytes
    assert most == planned(module, args, "sim")
    assert 0 <= taken(module, args) - planned(module, args) <= 128


@pytest.mark.parametrize("name", ["cuda0", "sim0", "cpu", "xpu0"])
def test_a_convolution_on_cuda_copies_its_operands_and_its_result(name: str) -> None:
    program = trace(nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 1)).half(), (torch.ones(1, 4, 6, 6).half(),))
    found = [scratch_bytes(program, node, Device.named(name)) for node in program.ops()]
    assert found == [2 * (4 * 36 + 8 * 4 * 9 + 8 * 16) if name == "cuda0" else 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_by_groups_in_double_precision_or_channels_last_copies_nothing(
    dtype: torch.dtype, groups: int, layout: torch.memory_format
) -> None:
    convolution = nn.Conv2d(8, 8, 3, groups=groups, dtype=dtype).to(memory_format=layout)
    (node,) = (program := trace(convolution, (torch.ones(1, 8, 6, 6, dtype=dtype),))).ops()
    is_copied = (dtype, groups, layout) == (torch.float32, 1, torch.contiguous_format)
    expected = 4 * (8 * 36 + 64 * 9 + 8 * 16) if is_copied else 0
    assert scratch_bytes(program, node, Device.named("cuda0")) == expected
