"""What operations and blocks cost, counted on traced programs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.speeds import Speed
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.passes.fit.chain import Chain, chain_of
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import parse_passes
from dovetail.passes.simulate.cost import cost_of

SPEED = Speed({"float32": 1e9}, 1e9, 1e9, 0.0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.begin = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.ModuleList(Attention() for _ in range(depth))
        self.end = nn.ConvTranspose2d(32, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = x.shape[-2:]
        x = self.begin(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.end(torch.matmul(x, x.mT @ x).transpose(1, 2).unflatten(-1, sizes))


def traced(module: nn.Module, x: torch.Tensor) -> Program:
    return PassManager(parse_passes("simplify,blocks")).run(trace(module, (x,)))


def model_chain() -> Chain:
    return chain_of(traced(Model(), torch.ones(1, 3, 8, 8)))


@pytest.mark.parametrize("name", ["cpu", "sim0", "cuda0"])
def test_values_of_a_chain_count_with_what_kernels_of_its_device_take(name: str) -> None:
    """A convolution on a card copies what it reads and makes; on the host that would refuse what fits."""
    program = traced(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()), torch.ones(1, 4, 6, 6))
    made, copied = 4 * 8 * 36, 4 * (4 * 36 + 8 * 4 * 9 + 8 * 36)
    assert chain_of(program, Device.named(name)).live == made + 4 * 4 * 36 + (copied if name == "cuda0" else 0)


def test_flops_are_those_that_pytorch_counts() -> None:
    model, x = Model(), torch.ones(2, 3, 8, 8)
    with FlopCounterMode(display=False) as counter, nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        model(x)
    assert sum(cost_of(node).flops for node in traced(model, x).ops()) == counter.get_total_flops()


def test_views_cost_nothing_and_an_addition_its_traffic() -> None:
    program = traced(Model(), torch.ones(1, 3, 8, 8))
    costs = {str(node.target): cost_of(node) for node in program.ops()}
    assert costs["aten.transpose.int"].seconds(SPEED) == costs["aten.unflatten.int"].seconds(SPEED) == 0
    added = costs["aten.add.Tensor"]
    assert (added.flops, added.read, added.written) == (0, 2 * 64 * 32 * 4, 64 * 32 * 4)


def test_a_device_that_computes_some_columns_of_a_product_reads_the_whole_input() -> None:
    (cost,) = [cost_of(node) for node in traced(nn.Linear(64, 32), torch.ones(4, 64)).ops()]
    quarter, weights = cost.part(0.25), 4 * (64 * 32 + 32)
    assert (cost.read, quarter.read) == (4 * 64 * 4 + weights, 4 * 64 * 4 + weights // 4)
    assert (quarter.flops, quarter.written) == (cost.flops / 4, 4 * 32 * 4 // 4)


def test_a_lookup_reads_what_it_yields() -> None:
    program = traced(nn.Embedding(1000, 8), torch.tensor([3, 4]))
    (cost,) = [cost_of(node) for node in program.ops()]
    assert (cost.read, cost.written) == (64, 64)


def test_a_chain_has_the_weights_and_the_time_of_its_program() -> None:
    program = traced(Model(), torch.ones(1, 3, 8, 8))
    chain = chain_of(program)
    assert [part.name for part in chain.parts] == [f"blocks.{i}" for i in range(4)]
    assert chain.nbytes == sum(weight.nbytes for weight in program.weights.values())
    assert chain.seconds(SPEED) == pytest.approx(sum(cost_of(node).seconds(SPEED) for node in program.ops()))
    assert len({part.work for part in chain.parts[:3]}) == 1, "the last one has what comes behind it"


def test_between_equal_blocks_one_value_crosses() -> None:
    assert [part.boundary for part in model_chain().parts] == [64 * 32 * 4] * 4


def test_a_skip_crosses_every_boundary_that_it_spans() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first = self.blocks[0](x)
            return self.blocks[3](self.blocks[2](self.blocks[1](first)).relu() + first)

    chain = chain_of(traced(Skip(), torch.ones(2, 8)))
    one = 2 * 8 * 4
    assert [part.boundary for part in chain.parts] == [one, 2 * one, one, one], "the sum is made in the third"


def test_a_coarse_chain_has_the_same_weights_and_time() -> None:
    chain = model_chain()
    coarse = chain.coarsened(2)
    assert [part.name for part in coarse.parts] == ["blocks.0 … blocks.1", "blocks.2 … blocks.3"]
    assert (coarse.nbytes, coarse.live) == (chain.nbytes, chain.live)
    assert abs(coarse.seconds(SPEED) - chain.seconds(SPEED)) < 1e-12
    assert {part.largest for part in coarse.parts} == {chain.parts[0].nbytes}


def test_a_convolution_takes_what_convolutions_were_measured_to_take() -> None:
    program = trace(nn.Conv2d(4, 8, 3).half(), (torch.ones(1, 4, 256, 256).half(),))
    cost = cost_of(next(iter(program.ops())))
    assert cost.convolution
    known = Speed({"float32": 1e9}, 1e15, 1e9, 0.0, convolution={"float16": 5e8})
    assert cost.seconds(known) == 2 * cost.seconds(replace(known, convolution={})) > 0
