"""The order of nodes within a segment: the peak falls, no bit changes, and what must keep its place does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from dovetail.components.compiled import CompiledModule
from dovetail.passes.pipeline import default_passes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.verify.verifier import verify
from tests.measured import measured, predicted

TRACED = ",".join(str(step) for step in default_passes() if step.name != "reorder")


class Parallel(nn.Module):
    """Widens first, then attends, which takes much, then joins both."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 96), nn.Linear(128, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = F.gelu(self.wide(x))
        q, k, v = ((part.double().sin() + part).float() for part in self.qkv(x).chunk(3, -1))
        return x + self.out(torch.cat([F.scaled_dot_product_attention(q, k, v), wide], -1))


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Parallel() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


X = torch.linspace(-1, 1, 1 * 1 * 512 * 32).reshape(1, 1, 512, 32)


def compiled(module: nn.Module, *call: torch.Tensor, passes: str | None = None, **options: str) -> CompiledModule:
    torch.manual_seed(0)
    return dovetail.compile(module.eval(), call, passes=passes, **{"backend": "sim0", **options})


def values(module: CompiledModule) -> dict[str, int]:
    return {str(device): usage.values + usage.scratch for device, usage in simulate(module.program).items()}


def names(module: CompiledModule) -> list[str]:
    return [node.name for node in module.program.ops()]


@pytest.mark.fifth
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_what_is_wide_is_computed_right_before_it_is_needed(backend: str) -> None:
    module = Tower()
    before, after = (compiled(module, X, passes=passes, backend=backend) for passes in (TRACED, None))
    assert names(before).index("gelu") < names(before).index("scaled_dot_product_attention")
    assert names(after).index("gelu") > names(after).index("scaled_dot_product_attention")
    assert all(values(after)[name] < values(before)[name] for name in values(before))
    expected = predicted(after.program)
    assert measured(after, (X,), {}) == expected
    with torch.no_grad():
        assert torch.equal(after(X), module(X))


@pytest.mark.fifth
def test_weights_that_come_for_blocks_still_come_in_their_turn() -> None:
    before, after = (compiled(Tower(), X, passes=passes, params_backend="cpu") for passes in (TRACED, None))
    loads = [[str(one) for one in module.schedule if str(one).startswith("load")] for module in (before, after)]
    assert loads[0] == loads[1]
    assert measured(after, (X,), {}) == predicted(after.program)


def order_of(body: Callable[[torch.Tensor], object], *kept: str) -> None:
    """The named operations of a function have the order in which it calls them."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> object:
            return body(self.layer(x))

    before, after = (compiled(Module(), X, passes=passes) for passes in (TRACED, None))
    assert [name for name in names(before) if name.startswith(kept)] == [
        name for name in names(after) if name.startswith(kept)
    ]
    verify(after.program)


def test_random_numbers_are_drawn_in_their_order() -> None:
    def body(x: torch.Tensor) -> object:
        wide = torch.rand_like(torch.cat([x] * 8, -1))
        small = torch.rand_like(x[..., :1]) + (x.sin() + x.cos()).mean(-1, keepdim=True)
        return wide.mean(-1, keepdim=True) + small

    order_of(body, "rand_like")


def test_what_touches_memory_that_is_written_keeps_its_order() -> None:
    def body(x: torch.Tensor) -> object:
        wide = torch.cat([x] * 8, -1)
        wide[..., :32].mul_(2.0)
        small = (x.sin() + x.cos()).mean(-1, keepdim=True)
        wide.add_(1.0)
        return wide.mean(-1, keepdim=True) + small + wide[..., :1]

    order_of(body, "slice", "mul_", "add_", "mean")


def test_where_nothing_is_gained_the_traced_order_stays() -> None:
    chain = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)))
    assert names(compiled(chain, X)) == names(compiled(chain, X, passes=TRACED))
