"""The strides of a trace are guesses about kernels: under others a program computes what the module computes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import dovetail
from dovetail.compiler.errors import CallError


class Pictures(nn.Module):
    """Tokens become a picture, which is convolved and becomes tokens again; traced with one picture."""

    def __init__(self, width: int = 320) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(width, width, 3, padding=1), nn.Linear(width, width)

    def picture(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        side = int(tokens**0.5)
        return self.conv(x.transpose(1, 2).reshape(batch, width, side, side)).permute(0, 2, 3, 1)


class ClonedToFormat(Pictures):
    def forward(self, x: Tensor) -> Tensor:
        return self.picture(x).clone(memory_format=torch.contiguous_format).view(x.shape[0], -1) * 2


class MadeContiguous(Pictures):
    def forward(self, x: Tensor) -> Tensor:
        return self.picture(x).contiguous().view(x.shape[0], -1) * 2


class Multiplied(Pictures):
    """The strides decide which kernel multiplies, and so how the result is rounded."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.picture(x).contiguous().view(x.shape))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().view(x.shape))


@pytest.mark.parametrize("kind", [ClonedToFormat, MadeContiguous, Multiplied])
@pytest.mark.parametrize("batch", [1, 2])
def test_what_makes_memory_contiguous_stays_though_the_trace_needs_none(kind: type[Pictures], batch: int) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(batch, 1024, 320)
    with torch.no_grad():
        assert torch.equal(dovetail.compile(module, (x,), backend="cpu")(x), module(x))


def test_attention_may_be_computed_by_another_kernel_than_the_trace_took() -> None:
    module, x = Attention().eval(), torch.randn(2, 5, 32)
    compiled = dovetail.compile(module, (x,), backend="cpu")
    for kernel in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with torch.no_grad(), sdpa_kernel(kernel):
            assert torch.equal(compiled(x), module(x))


class WrittenCopies(nn.Module):
    """Writes what `contiguous` gives: a copy, or under other strides the value itself, which the next block reads."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            y = block(x)
            z = y.transpose(0, 1).contiguous()
            x = y + z.mul_(2.0).transpose(0, 1)
            x = x + y
        return x


def test_where_strides_decide_what_is_written_a_call_with_others_is_refused() -> None:
    torch.manual_seed(0)
    module, x = WrittenCopies().eval(), torch.randn(2, 3, 64)
    other = torch.randn(3, 2, 64).transpose(0, 1)
    split = dovetail.compile(module, (x,), backend="sim0&sim1", tensor_split="1,1")
    alone = dovetail.compile(module, (x,), backend="sim0")
    with torch.no_grad():
        assert torch.equal(split(x), module(x))
        assert torch.equal(split(other.contiguous()), module(other.contiguous()))
        assert torch.equal(alone(other), module(other))
    with pytest.raises(
        CallError, match=r"argument x has the strides \(64, 128, 1\) and was traced with \(192, 64, 1\)"
    ):
        split(other)
    with torch.no_grad():
        assert torch.equal(
            dovetail.compile(module, (other,), backend="sim0&sim1", tensor_split="1,1")(other), module(other)
        )
