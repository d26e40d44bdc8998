"""Models whose drawings are looked at."""

import torch
from torch import nn

import dovetail
from dovetail.components.compiled import CompiledModule

SIZE = 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Blocks that are alike between two layers that are not."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, SIZE), nn.Linear(SIZE, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def stack(count: int = 6, **options: str) -> CompiledModule:
    """A stack over two simulated devices."""
    given = {"backend": "sim0&sim1", "rig": "sim0=1GiB,sim1=1GiB", **options}
    return dovetail.compile(Stack(count).eval(), (torch.ones(4, 8),), **given)
