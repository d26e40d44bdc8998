"""What is accepted and what is refused: decided, checked, and only then written to the program."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, device_of
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.states.parts import pieces
from dovetail.compiler.text.printer import print_program
from dovetail.compiler.units import GIB, KIB, MIB, format_bytes
from dovetail.passes.analysis.memory_needs import needs_of
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import parse_passes
from dovetail.passes.placement.assignment import assigned, needs_under

LAYER = 4 * (256 * 256 + 256)  # bytes of one linear layer of width 256


def layers(count: int = 4) -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(count))).eval()


def rig(*sizes: int) -> Rig:
    return Rig.of(**{f"sim{index}": size for index, size in enumerate(sizes)})


def found_blocks(devices: Rig, rows: int = 4, module: nn.Module | None = None) -> Program:
    program = trace(module or layers(), (torch.ones(rows, 256),))
    program.rig = devices
    return PassManager(parse_passes("simplify,blocks")).run(program)


@pytest.mark.parametrize("step", ["place", "rows{shares=1:1}"])
def test_a_refused_program_is_as_it_was_and_can_be_tried_again_with_other_numbers(step: str) -> None:
    program = found_blocks(rig(300 * KIB, 300 * KIB))
    before, weights = print_program(program), dict(program.weights)
    for _ in range(2):
        with pytest.raises(DoesNotFitError):
            PassManager(parse_passes(step)).run(program)
        assert print_program(program) == before
        assert program.weights == weights
        assert not program.home
        assert not program.bounds
    program.rig = rig(MIB, MIB)
    PassManager(parse_passes(step)).run(program)
    assert {device for _, device in pieces(program).values()} == set(program.devices)


def test_a_program_whose_weights_all_have_homes_is_checked_too() -> None:
    program = found_blocks(rig(5 * LAYER), rows=4096)
    program.home = dict.fromkeys(program.weights, program.main)
    with pytest.raises(DoesNotFitError, match=r"of headroom on sim0.* smaller size or batch"):
        PassManager(parse_passes("place")).run(program)


def test_what_others_take_at_other_times_is_told_apart_from_what_a_program_needs_itself() -> None:
    program = found_blocks(rig(GIB))
    (device,) = program.devices
    program.rig = Rig({device: Memory(GIB, GIB, beside=GIB)})
    with pytest.raises(DoesNotFitError) as caught:
        PassManager(parse_passes("place")).run(program)
    nbytes = sum(weight.nbytes for weight in program.weights.values())
    said = (
        f"{format_bytes(nbytes)} of weights that stay there, beside which other components take 1.0 GiB at other times"
    )
    assert said in str(caught.value)
    assert "headroom" not in str(caught.value)
    assert caught.value.over == {device: nbytes}


@pytest.mark.parametrize("memory", [{"rig": "sim0=1KiB"}, {"rig": "sim0=1GiB", "max_memory": {0: "1KiB"}}])
def test_a_device_map_is_checked_against_memory_and_budget(memory: dict[str, object]) -> None:
    with pytest.raises(DoesNotFitError, match=r"on sim0, which has 1\.0 KiB free"):
        dovetail.compile(layers(), (torch.ones(1, 256),), device_map={"": "sim0"}, **memory)  # type: ignore[arg-type]


def test_a_device_without_room_for_a_block_gets_none_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    program = found_blocks(rig(GIB, 12 * KIB))
    with caplog.at_level(logging.WARNING):
        PassManager(parse_passes("place")).run(program)
    assert set(program.home.values()) == {program.main}
    assert "split over sim0 & sim1, but lies whole on sim0" in caplog.text
    assert "a block needs 265.0 KiB at least" in caplog.text, "257 KiB of weights with what is alive meanwhile"
    assert "sim1 has 12.0 KiB free" in caplog.text


def test_a_small_helper_multiplies_rows_although_all_that_is_alive_would_not_fit_on_it() -> None:
    program = found_blocks(rig(256 * MIB, 12 * MIB), rows=8192)
    PassManager(parse_passes("rows")).run(program)
    assert {device for _, device in pieces(program).values()} == set(program.devices)


class Skip(nn.Module):
    """Much is alive in the first two layers, and little in the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](self.layers[0](x)).mean(0, keepdim=True)
        return self.layers[3](self.layers[2](x))  # type: ignore[no-any-return]


def test_headroom_is_what_a_device_holds_alive_and_not_what_is_alive_elsewhere() -> None:
    program = found_blocks(rig(64 * MIB, 3 * LAYER), rows=8192, module=Skip())
    PassManager(parse_passes("place")).run(program)
    assert {device for _, device in pieces(program).values()} == set(program.devices)


class Table(nn.Module):
    """A table that every block reads: it lies on each device."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))
        self.register_buffer("table", torch.ones(1024, 256))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) + self.table.sum(0)
        return x


def test_a_table_counts_on_every_device_that_reads_it() -> None:
    sizes = (2 * LAYER + 2 * MIB, 2 * LAYER + MIB // 2)
    with pytest.raises(DoesNotFitError, match="on sim1"):
        PassManager(parse_passes("place{shares=1:1}")).run(found_blocks(rig(*sizes), module=Table()))
    roomy = found_blocks(rig(sizes[0], sizes[0]), module=Table())
    PassManager(parse_passes("place{shares=1:1}")).run(roomy)
    assert set(roomy.home.values()) == set(roomy.devices)


def test_weights_that_come_and_go_count_as_far_as_they_are_there_together() -> None:
    module, x = layers(), torch.ones(4, 256)
    homes = {"0": "sim0", "1": "sim1", "2": "sim0", "3": "sim1"}
    most = f"sim0={LAYER + 8 * KIB}B,sim1={LAYER + 12 * KIB}B"
    compiled = dovetail.compile(module, (x,), device_map=homes, params_backend="cpu", rig=most)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
    with pytest.raises(DoesNotFitError):
        dovetail.compile(module, (x,), device_map=homes, rig=most)
    with pytest.raises(DoesNotFitError, match="of weights that are there together"):
        less = f"sim0={LAYER // 2}B,sim1={LAYER}B"
        dovetail.compile(module, (x,), device_map={"": "sim0"}, params_backend="cpu", rig=less)


def test_one_device_runs_what_it_cannot_hold_a_block_at_a_time() -> None:
    module, x = layers(), torch.ones(4, 256)
    compiled = dovetail.compile(module, (x,), backend="sim0", params_backend="cpu", rig=f"sim0={LAYER + 12 * KIB}B")
    assert sum(weight.nbytes for weight in compiled.program.weights.values()) == 4 * LAYER
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


class Widening(nn.Module):
    """Widens its input before it reads the first weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256, dtype=torch.float64) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x.double()
        for block in self.blocks:
            x = block(x)
        return x.float()


def test_what_moves_to_the_only_device_with_weights_is_counted_there() -> None:
    program = found_blocks(rig(MIB, 8 * MIB), module=Widening())
    program.home = dict.fromkeys(program.weights, program.devices[1])
    accepted = needs_under(program, assigned(program, program.home))
    PassManager(parse_passes("place,pin,hoist,sink,cut,reuse,reorder")).run(program)
    assert "aten.to.dtype" in {str(node.target) for node in program.ops() if device_of(node) != program.main}
    assert accepted == needs_of(program, program.places())


class Telling(nn.Module):
    """Returns a weight that it reads on the way, before another device has its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 256)])
        self.between = nn.Linear(256, 2048, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second, third = self.blocks
        x = self.between(second(first(x)))[:, :256]
        return third(x), second.weight  # type: ignore[return-value]


def test_a_weight_that_is_returned_counts_as_one_that_stays_on_each_device_that_reads_it() -> None:
    program = found_blocks(rig(8 * MIB, 8 * MIB), module=Telling())
    program.keep(Residency.HOST)
    PassManager(parse_passes("place{shares=1:2},pin,hoist,sink")).run(program)
    needs = needs_of(program, program.places())
    assert needs[program.devices[1]].weights == 2 * LAYER - 4 * 256, "but for the bias of the one that is returned"
