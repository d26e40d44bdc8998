"""A transformer of any number of blocks without data, split over four devices that are not there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from dovetail.runtime.executor import Executor

DEVICES = Rig.of(**{f"cuda{index}": 2**40 for index in range(4)})
WIDTH = 256  # the least that is split by rows


class Block(nn.Module):
    """Attention and a feed-forward after modulated norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.modulation, self.norm = nn.Linear(width, 3 * width), nn.LayerNorm(width)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The next hidden state, out of one of shape (batch, tokens, width) and an embedding (batch, width)."""
        scale, shift, gate = self.modulation(F.silu(t))[:, None].chunk(3, -1)
        y = self.norm(x) * (1 + scale) + shift
        q, k, v = (layer(y).unflatten(-1, (4, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + gate * self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """A chain of such blocks behind one embedding."""

    def __init__(self, blocks: int, width: int = WIDTH) -> None:
        super().__init__()
        self.embedding = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The last hidden state."""
        t = self.embedding(t)
        for block in self.blocks:
            x = block(x, t)
        return x


def traced(blocks: int) -> Program:
    """The program of a transformer without data, before any pass."""
    with torch.device("meta"):
        module = Transformer(blocks).eval()
        return trace(module, (torch.ones(1, 8, WIDTH), torch.ones(1, WIDTH)))


def split(program: Program, mode: str) -> Program:
    """A copy of it after all passes, in equal parts over four devices."""
    program = program.copy()
    program.rig = DEVICES
    return PassManager(default_passes((1.0, 1.0, 1.0, 1.0), split_mode=mode)).run(program)


def make_executor(program: Program) -> Executor:
    """The executor of a lowered program."""
    assert program.schedule is not None
    return Executor(program, program.schedule)


def told_of_unknown(subjects: Sequence[str], names: Collection[str]) -> str:
    """What to say where something is neither a number of blocks nor one of the names; empty where all are."""
    unknown = [one for one in subjects if one not in names and not (one.isdecimal() and int(one))]
    if not unknown:
        return ""
    return f"there is no {unknown[0]!r}: give a number of blocks, or one of {', '.join(names)}"
