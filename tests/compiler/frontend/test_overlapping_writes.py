"""A write that kernels refuse for how its operands lie in memory: a model that catches it goes on as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import TraceError
from dovetail.compiler.frontend.trace import trace

X = torch.linspace(-1, 1, 24).view(4, 6)
REFUSED: dict[str, Callable[[Tensor], object]] = {
    "added to an expanded row": lambda h: h[:1].expand(3, 6).add_(1),
    "copied into an expanded number": lambda h: h[0, 0].expand(6).copy_(h[1]),
    "multiplied into an expanded row": lambda h: h[:1].expand(4, 6)[1:].mul_(h[1:]),
    "added from a part of itself": lambda h: h[:2].add_(h[1:3]),
    "copied from a part of itself": lambda h: h.view(-1)[:6].copy_(h.view(-1)[3:9]),
}
TAKEN: dict[str, Callable[[Tensor], object]] = {
    "filled though it is expanded": lambda h: h[:1].expand(3, 6).fill_(2.0),
    "zeroed though it is expanded": lambda h: h[:1].expand(3, 6).zero_(),
    "added to itself": lambda h: h.add_(h),
    "added from another part": lambda h: h[:2].add_(h[2:]),
    "columns from columns": lambda h: h[:, :3].mul_(h[:, 3:]),
    "expanded by one": lambda h: h[:1].expand(1, 6).add_(1),
}


class Catching(nn.Module):
    """Writes, and computes otherwise where that is refused."""

    def __init__(self, write: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layer(x)
        try:
            self.write(h)
        except RuntimeError:
            return h * 3
        return h + 1


@pytest.mark.parametrize("way", REFUSED)
def test_a_model_that_catches_what_a_kernel_refuses_runs_as_it_is(way: str) -> None:
    module = Catching(REFUSED[way]).eval()
    with pytest.raises(TraceError, match=r"refuses that when it runs: clone it first"):
        trace(module, (X,))
    compiled = dovetail.compile(module, (X,), backend="cpu")
    with torch.no_grad():
        assert torch.equal(module(X), module.layer(X) * 3)
        assert torch.equal(compiled(X), module(X))


@pytest.mark.parametrize("way", TAKEN)
def test_a_write_that_kernels_carry_out_is_traced(way: str) -> None:
    module = Catching(TAKEN[way]).eval()
    program = dovetail.compile(module, (X,), backend="cpu")
    assert any(str(node.target).split(".")[1].endswith("_") for node in program.program.ops())
    with torch.no_grad():
        assert torch.equal(program(X), module(X))
