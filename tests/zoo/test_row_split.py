"""Row split of real classes: as exact as eager, in proportion to the shares."""

from __future__ import annotations

from itertools import groupby

import pytest
import torch

from dovetail.passes.verify_deep import verify_deep

from .row_split import SHARES, Subject, gathers, sliced_bytes
from .wide import WIDE

QUICK = ("FluxTransformer2DModel", "SanaTransformer2DModel", "T5EncoderModel")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in WIDE]
MARGIN = 1.05


def test_twenty_classes_are_split() -> None:
    assert len(WIDE) >= 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
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
        held = sliced_bytes(compiled.program)
        pieces = [w for w in compiled.program.weights.values() if w.rows and len(w.shape) == 2]
        row = sum(next(group).nbytes // shape[0] for shape, group in _wholes(pieces))
        for device, share in zip(compiled.program.devices, SHARES[:count], strict=True):
            assert abs(held[device] - share / sum(SHARES[:count]) * sum(held.values())) <= row
        assert 0 < gathers(compiled.program) < len({w.whole for w in pieces})
