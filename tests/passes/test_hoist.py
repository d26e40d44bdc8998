from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.ir.aliasing import base_of
from dovetail.compiler.ir.program import device_of
from dovetail.compiler.ir.split import source_of
from dovetail.components.compiled import CompiledModule
from dovetail.passes.placement.hoist import Hoist
from dovetail.runtime.store.program_weights import ProgramWeights

from .sample import RIG, program_of

UP_TO_PIN = "simplify,blocks,place{shares=1:1:1},pin"
FULL = f"{UP_TO_PIN},hoist,cut,schedule,verify"


class Modulated(nn.Module):
    """Blocks that each reshape the same vector late, on other devices than the one it was made on."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.embed(t)
        for block in self.blocks:
            x = block(x) * emb.unsqueeze(1) + emb[:, None, :1]
        return x


def call() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 8), torch.randn(2, 8)


class Narrow(Modulated):
    """Blocks that each read a little of it, so that it does not cross whole."""

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.embed(t)
        for block in self.blocks:
            x = block(x) + emb[:, None, :1]
        return x


def test_late_views_cut_nothing_any_more() -> None:
    assert len(program_of(Narrow(), call(), f"{UP_TO_PIN},cut").segments) > 5
    program = program_of(Narrow(), call(), f"{UP_TO_PIN},hoist,cut")
    assert [segment.device.name for segment in program.segments] == ["sim0", "sim1", "sim2"]


def test_equal_views_become_one_value_whose_base_crosses_once() -> None:
    program = program_of(Modulated(), call(), f"{UP_TO_PIN},hoist,cut")
    sent = [(source_of(one), device_of(one)) for one in program.transfers()]
    base = next(program.ops())
    assert {device.name for value, device in sent if value is base} == {"sim1", "sim2"}
    assert len(sent) == len(set(sent)) == 2 + 3, "what each block makes goes on, and the result back"
    assert not [value for value, _ in sent if base_of(value)]
    views = Counter(device_of(node).name for node in program.ops() if base_of(node))
    assert views["sim1"] == views["sim2"] > 0


def test_a_hoisted_view_stands_behind_what_it_reads_and_stays_on_its_device() -> None:
    program = program_of(Modulated(), call(), f"{UP_TO_PIN},hoist")
    seen = set()
    for node in program.graph.nodes:
        assert set(node.all_input_nodes) <= seen
        seen.add(node)
        if base_of(node):
            assert device_of(node) == device_of(node.args[0])  # type: ignore[arg-type]


def test_hoisting_changes_no_bit() -> None:
    module, args = Modulated(), call()
    program = program_of(module, args, FULL)
    compiled = CompiledModule(program, RIG, ProgramWeights.of_module(module, program))
    with torch.no_grad():
        assert torch.equal(compiled(*args), module(*args))


class Written(nn.Module):
    """Views of memory that is written between them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        notes = torch.zeros(2, 8)
        for block in self.blocks:
            x = block(x) + notes[0]
            notes[0].add_(1.0)
        return x + notes[1:].sum()


def test_views_of_memory_that_is_written_may_move_for_they_only_name_it() -> None:
    module, args = Written(), (torch.randn(1, 8),)
    program = program_of(module, args, FULL)
    compiled = CompiledModule(program, RIG, ProgramWeights.of_module(module, program))
    with torch.no_grad():
        assert torch.equal(compiled(*args), module(*args))


def test_on_one_device_nothing_moves() -> None:
    program = program_of(Modulated(), call(), UP_TO_PIN.replace("1:1:1", "1"), devices=1)
    assert not Hoist().run(program)


def test_a_view_just_before_the_run_on_its_own_device_begins_that_run() -> None:
    class Tabled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x + block.bias[None].expand(2, 8))
            return x

    compiled = dovetail.compile(Tabled().eval(), (torch.ones(2, 8),), backend="sim0&sim1&sim2")
    order = [segment.device.name for segment in compiled.program.segments]
    assert order == ["sim0", "sim1", "sim2"]


class Pictured(nn.Module):
    """Blocks that convolve a picture of tokens; with one picture, the kernel's strides are not those of the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"conv": nn.Conv2d(32, 32, 1), "linear": nn.Linear(32, 32)}) for _ in range(2)
        )

    def picture(self, x: Tensor) -> Tensor:
        return self.blocks[0]["conv"](x.transpose(1, 2).reshape(x.shape[0], x.shape[2], 8, 8))  # type: ignore[index]


class WritesPicture(Pictured):
    def forward(self, x: Tensor) -> Tensor:
        y = self.picture(x)
        y[:, :16].add_(1)
        tokens = torch.relu(self.blocks[1]["linear"](x))  # type: ignore[index]
        return tokens.flatten(1) + y.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


class KeepsPicture(Pictured):
    """Takes the picture before the write and after it: equal views by the trace, two copies by the kernel."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.picture(x)
        before = y.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
        y[:, :16].add_(1)
        tokens = torch.relu(self.blocks[1]["linear"](x))  # type: ignore[index]
        return tokens.flatten(1) * before + y.permute(0, 2, 3, 1).reshape(x.shape[0], -1)


@pytest.mark.parametrize("kind", [WritesPicture, KeepsPicture])
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_what_may_be_a_copy_never_moves_over_a_write(kind: type[Pictured], backend: str) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(1, 64, 32)
    compiled = dovetail.compile(module, (x,), backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


def test_what_may_be_a_copy_moves_where_nothing_writes() -> None:
    class Reshaped(Modulated):
        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            emb = self.embed(t)
            for block in self.blocks:
                x = block(x) * emb.reshape(2, 1, 8)
            return x

    program = program_of(Reshaped(), call(), f"{UP_TO_PIN},hoist,cut")
    assert [segment.device.name for segment in program.segments] == ["sim0", "sim1", "sim2"]
