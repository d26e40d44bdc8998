"""Wide parts computed some rows at a time: the peak falls, and the result is the same up to rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from dovetail.components.compiled import CompiledModule
from dovetail.passes.chunking.bands import bands
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.passes.simulate.memory import simulate
from dovetail.passes.verify.deep import verify_deep
from tests.measured import measured, predicted

from ..sample import program_of

WIDTH, TOKENS = 16, 64


class Parts(nn.Module):
    def __init__(self, inner: int = 8 * WIDTH, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, inner), nn.Linear(width, inner, bias=False)
        self.down, self.narrow = nn.Linear(inner, width), nn.Linear(inner // 2, width)
        self.both = nn.Linear(width + inner, width)
        self.shift = nn.Parameter(torch.randn(1, 1, inner))


class Plain(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x), approximate="tanh") + self.shift)


class Gated(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Halves(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.up(x).chunk(2, dim=-1)
        return x + self.narrow(value * F.gelu(gate))


class Joined(Parts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.both(torch.cat([x.sin(), F.gelu(self.up(x))], dim=-1))


class Scores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.cos().transpose(-1, -2)).softmax(-1) @ x.sin()


class Attention(nn.Module):
    """Of three dimensions, for which PyTorch's kernel holds all scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        return F.scaled_dot_product_attention(x, x.cos(), x.sin(), mask)


KINDS = [Plain, Gated, Halves, Joined, Scores, Attention]


def compiled(module: nn.Module, x: torch.Tensor, parts: int, backend: str = "sim0") -> CompiledModule:
    return dovetail.compile(module.eval(), (x,), backend=backend, passes=default_passes(chunk=parts))


@pytest.mark.few(quick=9)
@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_part_in_chunks_takes_less_memory(kind: Callable[[], nn.Module], batch: int) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(batch, TOKENS, WIDTH)
    backend = "cpu" if kind is Attention else "sim0"  # where it is known what a kernel of attention takes
    whole, parts = (compiled(module, x, count, backend) for count in (1, 4))
    verify_deep(parts.program)
    peaks = [sum(one.values + one.scratch for one in simulate(each.program).values()) for each in (whole, parts)]
    assert peaks[1] < peaks[0]
    assert measured(parts, (x,), {}) == predicted(parts.program)
    with torch.no_grad():
        torch.testing.assert_close(parts(x), module(x))


class Taken(Parts):
    """Takes apart what its wide part yields, as CogVideoX's blocks do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(F.gelu(self.up(x)))
        return torch.cat([x[:, :2] + y[:, 2:4], x[:, 2:] * y[:, :-2]], dim=1)


@pytest.mark.parametrize("batch", [1, 4])
def test_views_of_what_is_put_together_lie_in_its_memory(batch: int) -> None:
    torch.manual_seed(0)
    module, x = Taken(), torch.randn(batch, TOKENS, WIDTH)
    parts = compiled(module, x, 4)
    verify_deep(parts.program)
    assert measured(parts, (x,), {}) == predicted(parts.program)
    with torch.no_grad():
        torch.testing.assert_close(parts(x), module(x))


@pytest.mark.few(quick=2)
@pytest.mark.parametrize("kind", KINDS[:4])
def test_chunks_run_where_the_weights_are(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(*(kind() for _ in range(4))), torch.randn(1, TOKENS, WIDTH)
    split = compiled(module, x, 3, "sim0&sim1")
    assert len(split.program.segments) <= 3
    assert measured(split, (x,), {}) == predicted(split.program)
    assert torch.equal(split(x), compiled(module, x, 3)(x))


def found(body: Callable[[Parts, torch.Tensor], torch.Tensor], x: torch.Tensor, parts: int = 4) -> int:
    class Module(Parts):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return body(self, x)

    program = program_of(Module(), (x,), "simplify")
    return len(list(bands(program, parts)))


X = torch.randn(1, TOKENS, WIDTH)


def test_what_needs_other_rows_is_left_whole() -> None:
    assert found(lambda m, x: m.down(F.gelu(m.up(x))), X) == 1
    assert found(lambda m, x: m.down(m.up(x).softmax(1)), X) == 0
    assert found(lambda m, x: m.down((wide := m.up(x)) - wide.mean(1, keepdim=True)), X) == 0
    assert found(lambda m, x: m.down(m.up(x).flip(1)), X) == 0


def test_a_wide_value_that_is_read_elsewhere_is_left_whole() -> None:
    def body(m: Parts, x: torch.Tensor) -> torch.Tensor:
        wide = F.gelu(m.up(x))
        return m.down(wide) + wide.mean()

    assert found(body, X) == 0


def test_memory_that_is_written_is_left_whole() -> None:
    assert found(lambda m, x: m.down(m.up(x).mul_(2.0)), X) == 0


def test_fewer_rows_than_chunks_are_left_whole() -> None:
    assert found(lambda m, x: m.down(F.gelu(m.up(x))), X[:, :3]) == 0


def test_without_the_option_nothing_is_taken_apart() -> None:
    assert "chunk" not in {step.name for step in default_passes()}
    assert [str(step) for step in parse_passes("chunk{parts=4}")] == ["chunk{parts=4}"]
    program = program_of(Plain(), (X,), "simplify")
    nodes = len(program.graph.nodes)
    assert len(PassManager(parse_passes("chunk{parts=1}")).run(program).graph.nodes) == nodes
