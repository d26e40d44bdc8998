"""Law 1 where strides matter: modules of ops that change layout, with dimensions of size 1, called in any strides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import CallError
from tests.cases import examples

from .graphs import Draw

CHANNELS = 8
Step = Callable[["Pictures", Tensor, int], Tensor]


def write(module: Pictures, x: Tensor, index: int) -> Tensor:
    y = x * 1
    y[:, : 1 + index % 4].add_(1)
    return y


def flatten_and_back(module: Pictures, x: Tensor, index: int) -> Tensor:
    return (x.permute(0, 2, 3, 1).reshape(x.shape[0], -1) * 2).view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)


def attend(module: Pictures, x: Tensor, index: int) -> Tensor:
    q = x.flatten(2).transpose(1, 2).unflatten(-1, (2, -1)).transpose(1, 2)
    mixed = nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2)
    return mixed.flatten(2).transpose(1, 2).reshape(x.shape)


STEPS: tuple[Step, ...] = (
    lambda module, x, index: module.convs[index % len(module.convs)](x),
    lambda module, x, index: module.convs[index % len(module.convs)](x).sigmoid() + x,
    lambda module, x, index: module.mix(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    lambda module, x, index: nn.functional.silu(x.contiguous()) * x,
    lambda module, x, index: x.to(memory_format=torch.channels_last),
    lambda module, x, index: x.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2),
    lambda module, x, index: x.clone().exp().clamp(max=2),
    lambda module, x, index: x + module.scale,
    write,
    flatten_and_back,
    attend,
)


class Pictures(nn.Module):
    """Steps over a picture; the convolutions are blocks, so that a split cuts between them."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, size, padding=size // 2) for size in (3, 1, 3))
        self.mix = nn.Linear(CHANNELS, CHANNELS)
        self.scale = nn.Parameter(torch.randn(CHANNELS, 1, 1))
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        for index, step in enumerate(self.steps):
            x = step(self, x, index)
        return self.convs[-1](x)  # type: ignore[no-any-return]


def turned(x: Tensor) -> list[Tensor]:
    """The same numbers in other strides, and one picture for all."""
    last, rows = x.clone(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)
    return [x, last, rows, x[:1].expand(x.shape), x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)]


@st.composite
def cases(draw: Draw) -> tuple[Pictures, Tensor, str, Any]:
    torch.manual_seed(draw(st.integers(0, 3)))
    module = Pictures(tuple(draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=6)))).eval()
    shape = (draw(st.sampled_from([1, 2])), CHANNELS, draw(st.sampled_from([1, 4])), draw(st.sampled_from([1, 6])))
    example = draw(st.sampled_from([0, 1, 2]))
    backend = draw(st.sampled_from(["sim0", "sim0&sim1", "sim0&sim1&sim2"]))
    return module, torch.randn(shape), backend, example


def strides_of(x: Tensor) -> list[int]:
    """The strides that say where an element lies: not those of dimensions of one element."""
    return [step for size, step in zip(x.shape, x.stride(), strict=True) if size != 1]


@pytest.mark.fifth
@examples(6, 25)
@given(cases())
def test_law_1_holds_in_any_strides(case: tuple[Pictures, Tensor, str, int]) -> None:
    module, x, backend, example = case
    calls = turned(x)
    compiled = dovetail.compile(module, (calls[example],), backend=backend)
    for given_x in (*calls, *calls[:2]):
        with torch.no_grad():
            expected = module(given_x)
        if compiled.needs_strides and strides_of(given_x) != strides_of(calls[example]):
            with pytest.raises(CallError, match="pass a tensor of the same strides"):
                compiled(given_x)
            continue
        assert torch.equal(compiled(given_x), expected), str(compiled)
