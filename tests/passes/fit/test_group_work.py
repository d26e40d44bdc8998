"""What groups take is kept by all that it depends on, whatever was asked of the same trace before."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.ir.program import Program
from dovetail.fitting.chains import prepared
from dovetail.passes.fit.group_work import GroupWork, Work
from dovetail.passes.states.solution import NotPossible
from tests.passes.states.groups import traced

CARD = "@RTX 3090"


class Chain(nn.Module):
    """Blocks that rows and states can split."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


BASE = traced(Chain().half(), torch.ones(1, 4096, 256).half())


def over(base: Program, rig: str, mode: str, *numbers: int) -> Work | NotPossible:
    """What some devices of a rig take by these numbers, as far as it is not known of this trace."""
    found = Rig.parse(rig)
    work = GroupWork([(base, 1.0)], partial(prepared, chunks=1), found, mode)
    return work.over([found.devices[number] for number in numbers or range(2)])


@pytest.mark.parametrize(
    ("mode", "rigs"),
    [
        ("row", [f"cuda0=24GiB{CARD},cuda1={size}GiB{CARD}" for size in (24, 6)]),
        ("sequence", [f"0/cuda0=24GiB{CARD},1/cuda0=24GiB{CARD};r0-r1={rate}" for rate in ("100Gbit", "1Mbit")]),
        ("sequence", [f"0/cuda0=24GiB{one},1/cuda0=24GiB{one}" for one in (CARD, "@RTX 2060")]),
        ("sequence", [f"cuda0=24GiB{CARD},cuda1=24GiB{CARD};cuda0-cuda1={way}" for way in ("NVLink", "0.01GB/s")]),
    ],
)
def test_what_was_found_on_other_devices_is_not_taken_for_these(mode: str, rigs: list[str]) -> None:
    anew = [over(BASE.copy(), rig, mode) for rig in rigs]
    assert anew[0] != anew[1]
    for order in (rigs, rigs[::-1]):
        base = BASE.copy()
        assert {rig: over(base, rig, mode) for rig in order} == dict(zip(rigs, anew, strict=True))


def test_terms_that_cross_in_fewer_bytes_take_less_time() -> None:
    rig, base = Rig.parse(f"cuda0=24GiB{CARD},cuda1=24GiB{CARD}"), traced(Chain(), torch.ones(1, 4096, 256))
    seconds = []
    for is_short in (True, False, True):
        work = GroupWork([(base, 1.0)], partial(prepared, chunks=1), rig, "tensor", has_short_terms=is_short)
        found = work.over(rig.devices[:2])
        assert isinstance(found, Work)
        seconds.append(found.seconds)
    assert seconds[0] == seconds[2] < seconds[1]


def test_pairs_of_one_rig_that_differ_in_memory_have_rows_of_their_own() -> None:
    rig, base = f"cuda0=24GiB{CARD},cuda1=24GiB{CARD},cuda2=6GiB{CARD}", BASE.copy()
    assert over(base, rig, "row", 0, 1) != over(base, rig, "row", 0, 2)
