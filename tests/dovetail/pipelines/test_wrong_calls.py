"""What is said of a call of a pipeline that PyTorch refuses deep inside a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dovetail.compiler.errors import UsageError
from dovetail.pipelines.wrong_calls import wrong_calls_told


def _fail(error: Exception, **given: object) -> None:
    with wrong_calls_told("SomePipeline", given, ()):
        raise error


@pytest.mark.parametrize("size", [(8, 8), (1024, 8), (63, 1024)])
def test_an_operation_refused_in_a_picture_of_few_pixels_is_told_with_its_size(size: tuple[int, int]) -> None:
    error = RuntimeError("Kernel size can't be greater than actual input size\nand more")
    with pytest.raises(UsageError) as told:
        _fail(error, width=size[0], height=size[1])
    assert str(told.value) == (
        f"this SomePipeline cannot be called so: {size[0]} x {size[1]} may be too small for its models, ask for a "
        "larger size; PyTorch says: Kernel size can't be greater than actual input size"
    )
    assert told.value.__cause__ is error


@pytest.mark.parametrize(
    "fails",
    [
        lambda: torch.conv2d(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 3, 3)),
        lambda: torch.nn.functional.pad(torch.ones(1, 1, 1, 1), (1, 1, 1, 1), "reflect"),
        lambda: torch.nn.functional.avg_pool2d(torch.ones(1, 1, 1, 1), 2),
        lambda: torch.nn.functional.interpolate(torch.ones(1, 1, 1, 1), scale_factor=0.5),
        lambda: torch.ones(1, 2, 3, 3) + torch.ones(1, 2, 4, 4),
        lambda: torch.cat([torch.ones(1, 2, 3, 3), torch.ones(1, 2, 4, 4)], 1),
        lambda: torch.ones(0, 4).view(-1, 0),
        lambda: torch.conv2d(torch.ones(1, 1, 0, 4), torch.ones(1, 1, 1, 1)),
    ],
)
def test_what_pytorch_says_where_nothing_is_left_of_a_picture_is_known(fails: Callable[[], object]) -> None:
    with pytest.raises(UsageError, match="8 x 8 may be too small"), wrong_calls_told("A", {"width": 8, "height": 8}):
        fails()


@pytest.mark.parametrize(
    ("error", "given"),
    [
        (RuntimeError("Kernel size"), {"width": 64, "height": 64}),
        (RuntimeError("Kernel size"), {}),
        (RuntimeError("Kernel size"), {"width": 8}),
        (RuntimeError("element 0 of tensors does not require grad"), {"width": 32, "height": 32}),
        (RuntimeError("the LoRA's shape differs"), {"width": 32, "height": 32}),
        (RuntimeError("CUDA error: an illegal memory access"), {"width": 8, "height": 8}),
        (torch.OutOfMemoryError("x"), {"width": 8, "height": 8}),
        (RuntimeError("MPS backend out of memory"), {"width": 8, "height": 8}),
        (NotImplementedError("x"), {"width": 8, "height": 8}),
        (OSError("x"), {"width": 8, "height": 8}),
    ],
)
def test_other_errors_stay_what_they_are(error: Exception, given: dict[str, object]) -> None:
    with pytest.raises(type(error)) as raised:
        _fail(error, **given)
    assert raised.value is error
