from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.errors import DoesNotFitError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.units import KIB, MIB
from dovetail.passes.analysis.liveness import peak_bytes
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.placement.place import Place, split_blocks
from dovetail.passes.rewrites.simplify import Simplify

BLOCK = 4 * (64 * 64 + 64)  # bytes of one linear layer of width 64


class Chain(nn.Module):
    def __init__(self, length: int = 12) -> None:
        super().__init__()
        self.inward = nn.Linear(8, 64)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(length))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inward(x)
        for block in self.blocks:
            x = block(x)
        return x


def placed(devices: Rig, step: Place | None = None, length: int = 12, rows: int = 1) -> Program:
    program = trace(Chain(length), (torch.ones(rows, 8),))
    program.rig = devices
    return PassManager([Simplify(), FindBlocks(), step or Place()]).run(program)


def counts(program: Program) -> list[int]:
    homes = [program.home[block.weights[0]] for block in program.blocks]
    return [homes.count(device) for device in program.devices]


def rig(*sizes: int) -> Rig:
    return Rig.of(**{f"cuda{index}": size for index, size in enumerate(sizes)})


def test_blocks_are_divided_in_proportion_to_free_memory() -> None:
    assert counts(placed(rig(2 * MIB, MIB))) == [8, 4]
    assert counts(placed(rig(MIB, 2 * MIB, MIB))) == [3, 6, 3]


def test_what_is_not_free_does_not_count() -> None:
    assert counts(placed(Rig.of(cuda0=(MIB, 8 * MIB), cuda1=MIB))) == [6, 6]


def test_shares_override_free_memory() -> None:
    assert counts(placed(rig(MIB, MIB), Place(shares=(3, 1)))) == [9, 3]
    assert counts(placed(rig(MIB, MIB, MIB), Place(shares=(1, 0, 1)))) == [6, 0, 6]


def test_devices_without_a_share_get_nothing() -> None:
    assert counts(placed(rig(MIB, MIB, MIB), Place(shares=(1, 2)))) == [4, 8, 0]


def test_each_device_gets_at_least_one_block() -> None:
    assert counts(placed(rig(64 * MIB, MIB, MIB))) == [10, 1, 1]
    assert counts(placed(rig(MIB, 2**40, 2**40), length=3)) == [1, 1, 1]


def test_with_fewer_blocks_than_devices_every_block_has_a_place() -> None:
    assert sum(counts(placed(rig(MIB, MIB, MIB, MIB), length=2))) == 2


def test_ranges_of_blocks_follow_the_order_of_the_devices() -> None:
    program = placed(rig(MIB, 2 * MIB, MIB))
    order = [program.devices.index(program.home[block.weights[0]]) for block in program.blocks]
    assert order == sorted(order)


def test_weights_outside_blocks_lie_on_the_main_device() -> None:
    program = placed(rig(MIB, 8 * MIB))
    assert {program.home[name] for name in program.weights if name.startswith("inward")} == {program.main}


def test_headroom_is_the_largest_live_set_of_the_program() -> None:
    small, large = (placed(rig(16 * MIB, 8 * MIB), rows=rows) for rows in (1, 10_000))
    assert peak_bytes(large) >= 10_000 * 2 * 64 * 4
    assert counts(small) == [8, 4]
    assert counts(large) == [10, 2]  # about 11 to 3 MiB beside the live set


def test_a_device_with_less_than_the_headroom_gets_no_block() -> None:
    assert counts(placed(rig(MIB, 64 * KIB), Place(headroom=64 * KIB))) == [12, 0]


def test_what_does_not_fit_is_refused_with_both_numbers_and_a_way_out() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        placed(rig(4 * BLOCK, 4 * BLOCK))
    message = str(caught.value)
    for part in (
        "Chain needs",
        "of weights and",
        "of headroom on cuda",
        "65.0 KiB free of 65.0 KiB",
        "list more devices",
    ):
        assert part in message
    assert caught.value.exit_code == 3


def test_shares_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DoesNotFitError, match=r"on cuda1, which has .* a smaller share"):
        placed(rig(MIB, 4 * BLOCK), Place(shares=(1, 3)))


def test_a_weight_that_has_a_home_keeps_it() -> None:
    program = trace(Chain(), (torch.ones(1, 8),))
    program.rig = rig(MIB, MIB)
    program.home = {"blocks.0.weight": program.devices[1]}
    PassManager([Simplify(), FindBlocks(), Place()]).run(program)
    assert program.home["blocks.0.weight"] == program.devices[1]
    assert program.home["blocks.0.bias"] == program.devices[0]


def test_what_lies_on_the_main_device_besides_counts_as_its_load() -> None:
    assert split_blocks([10] * 6, [1.0, 1.0]) == [3, 3]
    assert split_blocks([10] * 6, [1.0, 1.0], rest=20) == [2, 4]
    assert split_blocks([10] * 6, [1.0, 1.0], rest=1000) == [1, 5]


def test_uneven_blocks_are_split_where_the_fullest_device_is_emptiest() -> None:
    assert split_blocks([30, 10, 10, 10], [1.0, 1.0]) == [1, 3]
    assert split_blocks([10, 10, 10, 30], [1.0, 1.0]) == [3, 1]
    assert split_blocks([10, 10], [0.0, 0.0]) == [2, 0]
