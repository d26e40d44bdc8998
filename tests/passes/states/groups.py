"""Groups of devices and small models for tests of states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.exchanges import Group
from testbed.sharing import slow_group


def group(*shares: int, latency: float = 1e-7) -> Group:
    """Slow devices with fast links, for which it pays to split tiny operations."""
    return slow_group(shares, latency=latency)


def traced(module: nn.Module, *inputs: torch.Tensor, **call: Any) -> Program:
    """A program without what a trace leaves behind."""
    program = trace(module, inputs, call)
    Simplify().run(program)
    return program


class Attention(nn.Module):
    """Attention with keys that several queries share, all of which come packed from one matmul."""

    def __init__(self, heads: int, keys: int, size: int) -> None:
        super().__init__()
        self.counts, self.size = (heads, keys, keys), size
        self.packed = nn.Linear(heads * size, (heads + 2 * keys) * size)
        self.out = nn.Linear(heads * size, heads * size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention among tokens, added to them."""
        parts = self.packed(x).split([count * self.size for count in self.counts], -1)
        q, k, v = (part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """A feed-forward layer whose gate and value come from one matmul."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(size), nn.Linear(size, 8 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What is gated, added to what came."""
        value, gate = self.into(self.norm(x)).chunk(2, -1)
        return x + self.out(value * functional.gelu(gate))


class Layers(nn.Module):
    """A chain of equal layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer after another."""
        for layer in self.layers:
            x = layer(x)
        return x
