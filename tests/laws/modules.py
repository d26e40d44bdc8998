"""Generates nn.Modules out of small blocks: a tower of repeated units with skips, shared weights and nested results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from .graphs import Draw

WIDTH, TOKENS = 8, 4


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Modulated(nn.Module):
    """Takes its shift, scale and gate from the condition, which so crosses to every device."""

    def __init__(self) -> None:
        super().__init__()
        self.to_three, self.inner = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        shift, scale, gate = self.to_three(F.silu(cond))[:, None].chunk(3, dim=-1)
        return x + gate.expand_as(x) * self.inner(x * (1 + scale) + shift)


class Conv(nn.Module):
    """Leaves the tokens for a picture in channels-last strides and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, WIDTH), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        picture = x.transpose(1, 2).unflatten(-1, (2, -1))
        return x + self.conv(F.silu(self.norm(picture))).flatten(2).transpose(1, 2)


class Writer(nn.Module):
    """Fills a fresh buffer part by part, and writes on what it has read."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        buffer = torch.zeros_like(x)
        buffer[:, ::2] = self.even(x[:, ::2])
        buffer[:, 1::2].add_(self.odd(buffer[:, ::2]))
        buffer[..., 0] *= 2
        return x + buffer


class Rope(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("angle", torch.arange(WIDTH / 2), persistent=False)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        position = torch.arange(x.shape[1], device=x.device)[:, None] * self.angle
        one, two = self.proj(x).unflatten(-1, (-1, 2)).unbind(-1)
        turned = (one * position.cos() - two * position.sin(), one * position.sin() + two * position.cos())
        return x + torch.stack(turned, dim=-1).flatten(-2)


class Shared(nn.Module):
    """Uses a layer that all its likes use too."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.own = layer, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        return x + self.own(torch.tanh(self.layer(x)))


KINDS = (Mlp, Attention, Modulated, Conv, Writer, Rope, Shared)


class Unit(nn.ModuleList):
    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        for block in self:
            x = block(x, cond)
        return x


class Tower(nn.Module):
    """Units one after another; ``skips`` says which earlier result is added before which unit.

    ``toned`` ones multiply what each unit yields by the same parameter, which is in no unit.
    """

    def __init__(
        self, kinds: tuple[type[nn.Module], ...], depth: int, skips: dict[int, int], notes: bool, toned: bool = False
    ) -> None:
        super().__init__()
        shared = nn.Linear(WIDTH, WIDTH)
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            Unit(kind(shared) if kind is Shared else kind() for kind in kinds) for _ in range(depth)
        )
        self.head = nn.Linear(2 * WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.tone = nn.Parameter(torch.randn(WIDTH)) if toned else None
        self.skips, self.notes = skips, notes

    def forward(self, x: Tensor, cond: Tensor, pair: tuple[Tensor, Any] | None = None, factor: float = 1.0) -> Any:
        x = self.embed(x) + self.table
        notebook = x.new_zeros(len(self.blocks) + 1, *x.shape) if self.notes else None
        seen = [x]
        for index, block in enumerate(self.blocks):
            if index in self.skips:
                x = x + seen[self.skips[index]] * factor
            if notebook is not None:
                x = x + notebook[0]
                notebook[index + 1] = x
                notebook[0].mul_(0.5).add_(x)
            x = block(x, cond)
            x = x if self.tone is None else x * self.tone
            seen.append(x)
        x = self.head(torch.cat([x, seen[len(seen) // 2]], dim=-1))
        extra = None if pair is None else pair[0] * x
        others = {"extra": (extra, 3), "given": cond, "notes": notebook}
        return {"x": x, "mean": x.mean(1), "all": [*seen[1:2], None], **others}


@dataclass
class ModuleCase:
    """A module, a call of it, the devices and their shares."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rig: str
    backend: str
    shares: str
    rests: str | None = None

    def expected(self) -> Any:
        with torch.no_grad():
            return self.module(*self.args, **self.kwargs)


@st.composite
def module_cases(draw: Draw) -> ModuleCase:
    """A tower, an example call, and one to five devices of unequal memory and any shares."""
    torch.manual_seed(draw(st.integers(0, 3)))
    depth = draw(st.integers(2, 6))
    kinds = tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)))
    skips = draw(st.dictionaries(st.integers(1, depth - 1), st.integers(0, 1), max_size=2))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    module = Tower(kinds, depth, skips, draw(st.booleans()), draw(st.booleans())).to(dtype).eval()
    x, cond = torch.randn(2, TOKENS, WIDTH, dtype=dtype), torch.randn(2, WIDTH, dtype=dtype)
    kwargs: dict[str, Any] = {"factor": 0.5} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        kwargs["pair"] = (torch.randn(2, 1, WIDTH, dtype=dtype), "label")
    count = draw(st.sampled_from([2, 3, 1, 5, 4]))
    sizes = draw(st.permutations([8, 16, 24, 40, 64]))[:count]
    shares = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count).filter(any))
    names = [f"sim{index}" for index in range(count)]
    rig = ",".join(f"{name}={size}MiB" for name, size in zip(names, sizes, strict=True))
    rests = draw(st.sampled_from([None, "cpu"]))
    return ModuleCase(module, (x, cond), kwargs, rig, "&".join(names), ",".join(map(str, shares)), rests)
