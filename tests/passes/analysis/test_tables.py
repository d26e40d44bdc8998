"""Which weights are read wherever an operation is, and what that saves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.ir.program import device_of
from dovetail.compiler.ir.schedule import Load
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.analysis.replicated import SMALL, replicated_weights
from dovetail.passes.placement.assignment import assigned, needs_under
from dovetail.passes.verify.verifier import verify


class Shared(nn.Module):
    """Blocks between which the same parameter is read; ``columns`` of it."""

    def __init__(self, columns: int = 64) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(64, 64))
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))
        self.scale = nn.Parameter(torch.randn(64, columns))
        self.head = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.embed
        for block in self.blocks:
            x = block(x) + (x @ self.scale).mean(-1, keepdim=True)
        return self.head(x)


def compiled(module: nn.Module, **options: Any) -> CompiledModule:
    options = {"backend": "sim0&sim1&sim2", "tensor_split": "1,1,1", **options}
    return dovetail.compile(module.eval(), (torch.randn(2, 64),), **options)


def test_a_small_parameter_that_every_block_reads_cuts_nothing() -> None:
    program = compiled(Shared()).program
    assert [segment.device.name for segment in program.segments] == ["sim0", "sim1", "sim2", "sim0"]
    assert replicated_weights(program, program.home) == {"scale"}
    assert program.home["scale"] == program.main


def test_it_is_loaded_on_each_device_that_reads_it_and_counted_there() -> None:
    found, program = compiled(Shared()), compiled(Shared(), passes="simplify,blocks,place{shares=1:1:1}").program
    loads = {one.device: one.weights for one in found.schedule if isinstance(one, Load)}
    assert all("scale" in names for names in loads.values())
    needs = needs_under(program, assigned(program, program.home))
    assert {device: need.weights for device, need in needs.items()} == {
        device: sum(program.weights[name].nbytes for name in names) for device, names in loads.items()
    }


@pytest.mark.parametrize("rests", [None, "cpu"])
def test_no_bit_changes(rests: str | None) -> None:
    module, x = Shared(), torch.randn(2, 64)
    with torch.no_grad():
        assert torch.equal(compiled(module, params_backend=rests)(x), module(x))


def test_a_large_parameter_draws_its_readers_to_its_home() -> None:
    program = compiled(Shared(SMALL // 64 // 4 + 1)).program
    assert replicated_weights(program, program.home) == set()
    assert len(program.segments) > 6


def test_parameters_before_and_behind_the_blocks_draw_their_readers() -> None:
    program = compiled(Shared()).program
    last = [node for node in program.ops() if "linear" in str(node.target)][-1]
    assert device_of(last) == program.main


def test_a_parameter_that_a_map_puts_elsewhere_draws_its_readers() -> None:
    found = compiled(Shared(), device_map={"": "sim0", "scale": "sim1"}, backend=None, tensor_split=None)
    assert {segment.device.name for segment in found.program.segments} == {"sim0", "sim1"}
    assert not replicated_weights(found.program, found.program.home)


def test_a_program_read_again_has_the_same_tables() -> None:
    program = compiled(Shared()).program
    again = parse_program(print_program(program))
    verify(again)
    assert replicated_weights(again, again.home) == {"scale"}


def test_a_large_buffer_in_no_block_is_a_table_as_ever() -> None:
    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
            self.register_buffer("angles", torch.randn(64, 8192))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x) + (x @ self.angles).mean(-1, keepdim=True)
            return x

    program = compiled(Buffered()).program
    assert replicated_weights(program, program.home) == {"angles"}
    assert len(program.segments) == 3
