"""Packed weights are split by rows anywhere, and by columns between blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import dovetail.runtime.quantized.kernels  # noqa: F401  which gives packed weights their operations
from dovetail.compiler.checkpoints.quantized_types import block_of
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.ir.state import PARTIAL, Split
from dovetail.compiler.states.strategy import name_of
from dovetail.compiler.states.table import strategies
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import parse_passes
from dovetail.passes.states.solution import Solution
from dovetail.passes.states.solve import solve
from dovetail.runtime.packing import pack
from dovetail.weights.files import set_types
from tests.laws.members import run_with_weights

from .groups import group

WIDE, HEADS = 512, 8


class Attending(nn.Module):
    """Attention of heads of 64, and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDE, WIDE) for _ in range(4))
        self.into, self.back = nn.Linear(WIDE, 3 * WIDE), nn.Linear(3 * WIDE, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.back(functional.gelu(self.into(x)))


def packed(quant: str, module: nn.Module | None = None) -> tuple[Program, dict[str, Tensor]]:
    """A program whose matrices rest in a type, with these and its other weights."""
    module = module or Attending()
    program = trace(module, (torch.randn(1, 16, WIDE),), {})
    set_types(program, {weight.name: quant for weight in program.weights.values() if len(weight.shape) == 2})
    weights: dict[str, Tensor] = {name: one.detach() for name, one in module.named_parameters()}
    for weight in program.weights.values():
        if weight.quant:
            weights[weight.name] = torch.from_numpy(pack(weights[weight.name].numpy(), quant))
    return PassManager(parse_passes("simplify,quantize")).run(program), weights


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("shares", [(1, 1), (5, 3, 2)])
def test_members_with_parts_of_packed_weights_yield_what_one_device_yields(quant: str, shares: tuple[int, ...]) -> None:
    program, weights = packed(quant)
    x = torch.randn(1, 16, WIDE)
    total = sum(one.nbytes for one in weights.values())
    found = solve(program, group(*shares), "tensor", tuple(int(total * (s / sum(shares) + 0.15)) for s in shares))
    assert isinstance(found, Solution)
    _expect_whole_blocks(found, quant)
    whole = {node: next(strategies(node, lambda _: ())) for node in program.ops()}
    (expected,) = run_with_weights(program, weights, [x], whole, 1)
    (result,) = run_with_weights(program, weights, [x], found.strategies, len(shares))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def _expect_whole_blocks(found: Solution, quant: str) -> None:
    """Some weights are split by columns, and no block is torn."""
    elements, columns = block_of(quant)[0], 0
    for node, chosen in found.strategies.items():
        state = chosen.takes(node.args[0]) if name_of(node) == "quantized_linear" else None  # type: ignore[arg-type]
        if chosen.results == (PARTIAL,) and isinstance(state, Split):
            columns += 1
            assert all(end % elements == 0 for segment in state.segments for bounds in segment for end in bounds)
    assert columns
