"""Weights that tensors in memory hold."""

from __future__ import annotations

import pytest
import torch

from dovetail.compiler.errors import WeightError
from dovetail.compiler.ir.weight import Weight
from dovetail.runtime import sim
from dovetail.runtime.store.origin import TensorOrigin

CPU = torch.device("cpu")
WHOLE = torch.arange(24.0).reshape(6, 4)
WEIGHT = Weight("a.weight", "parameter", (6, 4), torch.float32)


def test_a_slice_of_a_weight_is_a_copy_of_its_rows_alone() -> None:
    rows = TensorOrigin(WHOLE).read(WEIGHT.part(0, [(2, 5)]), CPU)
    assert torch.equal(rows, WHOLE[2:5])
    assert rows.untyped_storage().nbytes() == rows.nbytes


def test_only_the_rows_of_a_slice_go_to_a_device() -> None:
    sim.enable({0: 2**30})
    before = sim.stats(0).bytes_in
    rows = TensorOrigin(WHOLE).read(WEIGHT.part(0, [(0, 2)]), torch.device("sim", 0))
    assert torch.equal(rows.cpu(), WHOLE[:2])
    assert sim.stats(0).bytes_in - before == 2 * 4 * 4


def test_a_whole_weight_that_is_there_already_is_not_copied() -> None:
    assert TensorOrigin(WHOLE).read(WEIGHT, CPU).data_ptr() == WHOLE.data_ptr()


@pytest.mark.parametrize(
    ("weight", "tensor"),
    [
        (WEIGHT.part(0, [(2, 5)]), torch.zeros(4, 4)),
        (WEIGHT.part(0, [(2, 5)]), torch.zeros(6, 5)),
        (WEIGHT, torch.zeros(7, 4)),
        (WEIGHT, torch.zeros(6, 4, dtype=torch.float16)),
        (Weight("b", "parameter", (2, 32), torch.float32, quant="Q8_0"), torch.zeros(2, 32)),
    ],
)
def test_a_tensor_that_cannot_hold_a_weight_is_refused(weight: Weight, tensor: torch.Tensor) -> None:
    with pytest.raises(WeightError, match="compile again"):
        TensorOrigin(tensor).check(weight)


def test_packed_bytes_hold_a_packed_weight() -> None:
    weight = Weight("b", "parameter", (2, 32), torch.float32, quant="Q8_0")
    TensorOrigin(torch.zeros(2, 34, dtype=torch.uint8)).check(weight)
    TensorOrigin(torch.zeros(2, 34, dtype=torch.uint8)).check(weight.part(0, [(1, 2)]))
