from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.aliasing import overwrites
from dovetail.compiler.ir.program import Program, device_of, place_node, tensors_of
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.passes.verify.verifier import violations
from dovetail.runtime.store.program_weights import ProgramWeights

from .sample import DEVICES, RIG, program_of

STILL = "simplify,blocks,place{shares=1:1:1},pin,hoist,cut,schedule,verify"
SUNK = STILL.replace("hoist,", "hoist,sink,")
ROWS = SUNK.replace("place{shares=1:1:1}", "rows{shares=1:1:1}")


class Widened(nn.Module):
    """Blocks that each cast the same condition to float32 before they read a weight, as video models do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16, dtype=torch.bfloat16)
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.embed(t)
        for block in self.blocks:
            x = block(x, emb)
        return x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(16))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        shift, scale = (self.table[None] + emb.float()).chunk(2, dim=-1)
        return self.linear(x * (1 + scale) + shift)


def call() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 8), torch.randn(2, 8, dtype=torch.bfloat16)


def crossing(program: Program) -> int:
    return sum(tensor.nbytes for one in program.transfers() for tensor in tensors_of(one))


def of(forward: Callable[..., Tensor], passes: str = SUNK, width: int = 8) -> Program:
    """Three linear layers on three devices, called as a function does."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return forward(x, *self.blocks)

    return program_of(Module(), (torch.randn(2, width),), passes)


def devices_of(program: Program, name: str) -> list[str]:
    return [device_of(node).name for node in program.ops() if str(node.target).startswith(f"aten.{name}.")]


def test_a_cast_before_the_first_weight_of_a_block_runs_where_the_block_is() -> None:
    module = Widened()
    still, sunk = (program_of(module, call(), passes) for passes in (STILL, SUNK))
    narrow, wide, x = 2 * 16 * 2, 2 * 16 * 4, 2 * 8 * 4
    assert crossing(still) == 2 * (narrow + wide + x) + x
    assert crossing(sunk) == 2 * (narrow + x) + x
    assert len(sunk.segments) == 3 < len(still.segments)


def test_sinking_changes_no_bit() -> None:
    module, args = Widened(), call()
    program = program_of(module, args, SUNK)
    compiled = CompiledModule(program, RIG, ProgramWeights.of_module(module, program))
    with torch.no_grad():
        assert torch.equal(compiled(*args), module(*args))


def test_a_chain_sinks_with_its_views() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        wide = x.tanh().double().unsqueeze(0).repeat(2, 1, 1)
        return c(b(a(x)) + wide.sum(0).float())

    program = of(forward)
    assert devices_of(program, "tanh") == ["sim0"], "its result is no larger than what it reads"
    assert devices_of(program, "unsqueeze") == devices_of(program, "repeat") == ["sim1"]


def test_what_crosses_anyway_costs_nothing() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        x = a(x)
        return c(b(torch.layer_norm(x, [8])) + x)

    assert devices_of(of(forward), "layer_norm") == ["sim1"]


def test_a_node_stays_where_its_readers_are_on_several_devices_or_outside() -> None:
    def several(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        wide = a(x).double()
        return c(b(x) + wide.float()) + wide.float()

    def outside(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        wide = torch.cat([a(x), a(x)], -1)
        return c(b(wide[:, 4:12])), wide  # type: ignore[return-value]

    assert "sim0" in devices_of(of(several), "to")
    assert devices_of(of(outside), "cat") == ["sim0"]


def test_a_node_that_would_read_more_from_a_third_device_stays() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        first = a(x)
        second = b(first)
        return c(torch.cat([first, second], -1)[:, 4:12])

    assert devices_of(of(forward), "cat") == ["sim1"], "both crossed instead of a part of them"


def test_random_numbers_are_drawn_where_and_when_they_were() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        return c(b(a(x)) + torch.rand(8) + torch.zeros(8))

    program = of(forward, SUNK.replace("schedule,", "").replace("cut,", ""))
    assert devices_of(program, "rand") == ["sim1"]
    assert not [problem for problem in violations(program) if problem.rule == "pin"]


def test_nothing_moves_over_a_write_into_what_it_reads() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        notes = torch.zeros(2, 8)
        wide = torch.cat([notes, notes], -1).tanh()
        notes.add_(a(x))
        return c(b(notes) * wide[:, :8])

    program = of(forward)
    assert devices_of(program, "cat") == devices_of(program, "tanh") == ["sim0"]


def test_what_is_written_stays() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        y, notes = a(x), torch.zeros(2, 8)
        notes[:, 1] = 1.0
        return c(b(y) * notes)

    assert devices_of(of(forward), "zeros") == ["sim0"]


def test_a_program_that_is_split_by_rows_stays_as_it_is() -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        return c(b(a(x).tanh()).tanh())

    still, sunk = (of(forward, passes, 256) for passes in (ROWS.replace("sink,", ""), ROWS))
    texts = [print_program(program).split("\n", 2)[2] for program in (still, sunk)]
    assert texts[0] == texts[1]


def test_no_value_goes_to_a_device_that_has_no_such_dtype() -> None:
    class Compared(nn.Module):
        """Compares its float64 values with one another; the comparison is larger than they are."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            wide = self.blocks[0](x).double().flatten()
            return self.blocks[1]((wide[:, None] > wide[None]).float().reshape(-1, 8))

    program = trace(Compared(), (torch.randn(4, 8),))
    program.rig = Rig.of(cpu=2**20, mps=2**20)
    PassManager(parse_passes("simplify,blocks,place{shares=1:1},pin,hoist,sink,cut,schedule,verify")).run(program)
    assert devices_of(program, "gt") == ["cpu"]
    assert devices_of(program, "to") == ["cpu", "mps"]


@pytest.mark.parametrize("name", ["linear", "layer_norm"])
def test_the_verifier_sees_a_node_that_is_neither_with_its_weight_nor_with_its_readers(name: str) -> None:
    def forward(x: Tensor, a: nn.Module, b: nn.Module, c: nn.Module) -> Tensor:
        x = a(x)
        return c(b(torch.layer_norm(x, [8])) + x)

    program = of(forward, SUNK.partition(",cut")[0])
    assert not list(violations(program))
    node = next(node for node in program.ops() if str(node.target).startswith(f"aten.{name}."))
    place_node(node, group=(DEVICES[2],))
    assert any(problem.rule == "pin" and problem.node is node for problem in violations(program))


class Doubled(nn.Module):
    """A value that is wide where a weight is multiplied over its memory, and narrow where it comes from."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.scale = nn.Linear(4, 8), nn.Parameter(torch.randn(16))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        narrow = self.narrow(x)
        wide = torch.cat([narrow, narrow], 1) * self.scale
        return wide, self.last(wide)


def test_what_is_computed_over_a_moved_value_is_no_view_of_it() -> None:
    program = trace(Doubled(), (torch.randn(2, 4),))
    program.rig = RIG
    program.home = {name: DEVICES[name.startswith("narrow")] for name in program.weights}
    PassManager(default_passes()).run(program)
    wide, product = (node for node in program.ops() if node.name in ("cat", "mul"))
    assert device_of(wide) == DEVICES[0]
    assert overwrites(product)
