"""What the trace records that torch.export leaves out, and what each result of an op with several views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import dovetail
from dovetail.compiler.frontend.trace import trace


class Contiguous(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = (x * 2).contiguous()
        return torch.Tensor.contiguous(y, memory_format=torch.contiguous_format) + 1


def test_every_call_of_contiguous_is_recorded_though_the_trace_needs_none() -> None:
    names = [node.target.overloadpacket.__name__ for node in trace(Contiguous(), (torch.ones(2, 3),)).ops()]  # type: ignore[union-attr]
    assert names == ["mul", "contiguous", "contiguous", "add"]


class Dropped(nn.Module):
    """Writes into what dropout gave, which is its input where it drops nothing, and returns both."""

    def __init__(self, dropout: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dropout = dropout
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.blocks[1](self.blocks[0](x))[:, :4]
        second = self.dropout(first)
        lower = first.tril()
        return first, lower, second.relu_() + 1


@pytest.mark.parametrize(
    "dropout",
    [
        lambda x: nn.functional.dropout(x, 0.5, False),
        lambda x: nn.functional.dropout(input=x, p=0.0),
        lambda x: torch.dropout(x, 0.5, train=False),
        nn.Dropout(0.3).eval(),
        nn.Dropout1d(0.3).eval(),
        nn.AlphaDropout(0.3).eval(),
    ],
)
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_dropout_that_drops_nothing_gives_its_input_itself(dropout: Callable[[Tensor], Tensor], backend: str) -> None:
    module, x = Dropped(dropout).eval(), torch.randn(4, 8)
    with torch.no_grad():
        compiled = dovetail.compile(module, (x,), backend=backend, params_backend="cpu")
        for ours, eager in zip(compiled(x), module(x), strict=True):
            assert torch.equal(ours, eager)


@pytest.mark.parametrize(
    "dropout",
    [
        lambda x: torch.native_dropout(x, 0.5, False)[0],
        lambda x: torch.native_dropout(input=x, p=0.5, train=False)[0] + torch.native_dropout(x, 0.5, False)[1],
        lambda x: torch.native_dropout(x, 0.0, True)[0],
        lambda x: torch.native_dropout(x, 1.0, None)[0],
    ],
)
def test_dropout_with_a_mask_never_gives_its_input(dropout: Callable[[Tensor], Tensor]) -> None:
    module, x = Dropped(dropout).eval(), torch.randn(4, 8)
    with torch.no_grad():
        compiled = dovetail.compile(module, (x,), backend="sim0")
        for ours, eager in zip(compiled(x), module(x), strict=True):
            assert torch.equal(ours, eager)


class Broadcast(nn.Module):
    """The items of one op lie in memory on two devices; the second is written."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        a = self.blocks[0](x)
        b = self.blocks[1](a)
        p, q = torch.broadcast_tensors(a, b)
        q.add_(1)
        return p + b


class Widened(Broadcast):
    def forward(self, x: Tensor) -> Tensor:
        a = self.blocks[0](x)
        b = self.blocks[1](a)
        p, q, r = torch.broadcast_tensors(a[:, None], b, torch.ones(1))
        return p * q + r


class Meshed(Broadcast):
    indexing = "ij"

    def forward(self, x: Tensor) -> Tensor:
        a = self.blocks[0](x)[0]
        b = self.blocks[1](a)
        p, q = torch.meshgrid(a[:1], b, indexing=self.indexing)
        q.add_(1)
        return p * q + b + a


class MeshedAcross(Meshed):
    indexing = "xy"


class MeshedThrice(Broadcast):
    def forward(self, x: Tensor) -> Tensor:
        a = self.blocks[0](x)[0]
        b = self.blocks[1](a)
        p, q, r = torch.meshgrid(a[:2], b, torch.ones(3), indexing="xy")
        return p * q + r


class Raised(Broadcast):
    """The item that is written lies in the memory of the second block's result, which is read again."""

    def forward(self, x: Tensor) -> Tensor:
        a = self.blocks[0](x)
        b = self.blocks[1](a)
        p, q = torch.atleast_3d([a, b])
        q.add_(1)
        return p + b[..., None]


@pytest.mark.parametrize("kind", [Broadcast, Widened, Meshed, MeshedAcross, MeshedThrice, Raised])
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1", "sim0&sim1&sim2"])
def test_each_of_several_views_is_one_of_its_own_operand_on_its_own_device(kind: type[Broadcast], backend: str) -> None:
    module, x = kind().eval(), torch.randn(2, 8)
    with torch.no_grad():
        assert torch.equal(dovetail.compile(module, (x,), backend=backend)(x), module(x))


class MeshedRows(Broadcast):
    def forward(self, x: Tensor) -> Tensor:
        a = self.blocks[0](x)
        b = self.blocks[1](a)
        p, q = torch.meshgrid(a[:, 0], b[0], indexing="xy")
        return p * q


@pytest.mark.parametrize("kind", [Widened, MeshedRows])
def test_views_of_dynamic_sizes_are_taken_one_by_one(kind: type[Broadcast]) -> None:
    module, x = kind().eval(), torch.randn(4, 8)
    compiled = dovetail.compile(module, (x,), backend="sim0&sim1", dynamic_shapes={"x": {0: Dim("b", min=2, max=64)}})
    for size in (4, 7):
        x = torch.randn(size, 8)
        with torch.no_grad():
            assert torch.equal(compiled(x), module(x))
