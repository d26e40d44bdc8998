"""Row split of real classes: as exact as eager, in proportion to the shares."""

from __future__ import annotations

import pytest
import torch

from dovetail.compiler.ir.program import Program
from dovetail.passes.verify.deep import verify_deep
from testbed.zoo.row_split import SHARES, Subject, gathered, sliced_bytes
from testbed.zoo.wide import WIDE
from tests.cases import slow_but

QUICK = ("T5EncoderModel",)
NAMES = slow_but(QUICK, WIDE)
MARGIN = 1.05


def test_twenty_classes_are_split() -> None:
    assert len(WIDE) >= 20


@pytest.mark.fifth
@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.float32, torch.bfloat16]), ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_on_two_three_and_four_devices_the_error_is_that_of_eager_and_bytes_follow_the_shares(
    name: str, dtype: torch.dtype
) -> None:
    subject = Subject.make(name, dtype)
    assert subject.eager > 0
    for count in (2, 3, 4):
        compiled = subject.split(count)
        assert subject.error_of(compiled) <= MARGIN * subject.eager
        verify_deep(compiled.program)
        assert gathered(compiled.program)
        held, rows = sliced_bytes(compiled.program), one_row_of_each(compiled.program)
        for device, share in zip(compiled.program.devices, SHARES[:count], strict=True):
            assert abs(held[device] - share / sum(SHARES[:count]) * sum(held.values())) <= rows


def one_row_of_each(program: Program) -> int:
    """Bytes of one row of every matrix that is sliced."""
    sliced = (weight for name in program.bounds if len((weight := program.weights[name]).shape) == 2)
    return sum(weight.nbytes // weight.shape[0] for weight in sliced)
