"""Generates modules of blocks in which matrices are used in every way, and says which of them a row split slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

WIDTH, TOKENS = 256, 3


def matrix(rows: int = WIDTH, columns: int = WIDTH) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) / columns**0.5)


class Piece(nn.Module):
    """A part of a block; ``sliced`` names the matrices that a row split slices."""

    sliced: ClassVar[tuple[str, ...]] = ()


class Mlp(Piece):
    """Two layers and an activation between them, which stays apart; a side of 255 is too short."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Short(Mlp):
    def __init__(self) -> None:
        super().__init__(255)


class Long(Mlp):
    sliced = ("up.weight", "down.weight")

    def __init__(self) -> None:
        super().__init__(300)


class Gated(Piece):
    sliced = ("gate.weight", "up.weight", "down.weight")

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, 384, bias=False), nn.Linear(WIDTH, 384)
        self.down = nn.Linear(384, WIDTH)
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).double().sigmoid().to(x.dtype) * 2
        return self.down(gate * self.up(x)) * self.factor


class Attention(Piece):
    sliced = ("q.weight", "k.weight", "v.weight", "out.weight")

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (4, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Twice(Piece):
    """One layer that is called twice, and whose results are read apart and as a whole."""

    sliced = ("layer.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.layer(y.tanh() + y) + y


class Biased(Piece):
    """A bias that others read too."""

    sliced = ("layer.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.layer.bias)


class Written(Piece):
    """Memory that is written between two matmuls that read it, and a result that is written."""

    sliced = ("one.weight", "other.weight")

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        held = x * 1.0
        one = self.one(held)
        held.add_(1.0)
        return self.other(held).mul_(0.5) + one[..., :1] + one


class Peeked(Piece):
    """A matrix that is not only multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.layer.weight.mean()


class Bare(Piece):
    """A matrix on the other side: its columns are those of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = matrix()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Turned(Piece):
    """A matrix whose rows are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(matrix().data.t())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Cast(Piece):
    """A matrix that is cast before it is multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = matrix()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.double(), self.weight.double()).to(x.dtype)


class Table(Piece):
    """A matrix of which rows are picked, and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.norm = nn.Embedding(300, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x) * self.rows(torch.arange(x.shape[1], device=x.device))


PIECES = (Long, Gated, Attention, Twice, Biased, Written, Short, Peeked, Bare, Turned, Cast, Table)


class Block(nn.ModuleList):
    def forward(self, x: Tensor) -> Tensor:
        for piece in self:
            x = x + F.layer_norm(piece(x), (WIDTH,))
        return x


class Stack(nn.Module):
    """Blocks between two layers that lie in none."""

    def __init__(self, kinds: tuple[type[Piece], ...], depth: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(kind() for kind in kinds) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    @property
    def sliced(self) -> set[str]:
        """The names of the matrices that a row split slices."""
        pieces = [(path, piece) for path, piece in self.named_modules() if isinstance(piece, Piece)]
        return {f"{path}.{name}" for path, piece in pieces for name in piece.sliced}


@dataclass
class WideCase:
    """A module, a call of it, the devices and their shares."""

    module: Stack
    x: Tensor
    rig: str
    backend: str
    shares: tuple[int, ...]

    @property
    def is_split(self) -> bool:
        """Whether anybody but the main device gets a row of anything."""
        return bool(self.module.sliced) and any(self.shares[1:])


@st.composite
def wide_cases(draw: Any) -> WideCase:
    """A stack of some pieces on one to four devices of any kinds, in any shares."""
    torch.manual_seed(draw(st.integers(0, 3)))
    kinds = tuple(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    module = Stack(kinds, draw(st.integers(2, 3))).to(dtype).eval()
    names = draw(st.permutations(["sim0", "sim1", "sim2", "cpu"]))[: draw(st.integers(1, 4))]
    shares = draw(st.lists(st.integers(0, 5), min_size=len(names), max_size=len(names)).filter(any))
    rig = ",".join(f"{name}=256MiB" for name in names)
    return WideCase(module, torch.randn(2, TOKENS, WIDTH).to(dtype), rig, "&".join(names), tuple(shares))
