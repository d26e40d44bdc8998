"""Fake tensors have the strides that eager's kernels give, sizes of 1 included; those of PyTorch's own fakes differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from dovetail.compiler.ir.fake_strides import EagerStrides, eager_strides

OPS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add a number": lambda x, _: x + 1,
    "divide by a number": lambda x, _: x / 2.0,
    "from a number": lambda x, _: 1 - x,
    "number to the power": lambda x, _: 2.0**x,
    "compare with a number": lambda x, _: x >= 1,
    "power of a number": lambda x, _: x**3,
    "remainder": lambda x, _: x % 3,
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "maximum": lambda x, y: torch.maximum(x, y),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "addcmul": lambda x, y: torch.addcmul(x, y, y),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, 0.0),
    "exp": lambda x, _: x.exp(),
    "silu": lambda x, _: functional.silu(x),
    "gelu": lambda x, _: functional.gelu(x, approximate="tanh"),
    "hardswish": lambda x, _: functional.hardswish(x),
    "relu6": lambda x, _: functional.relu6(x),
    "hardtanh": lambda x, _: functional.hardtanh(x),
    "xlogy": lambda x, _: torch.xlogy(x, 2.0),
    "clamp": lambda x, _: x.clamp(-1, 1),
    "nan_to_num": lambda x, _: torch.nan_to_num(x),
    "empty_like": lambda x, _: torch.empty_like(x),
    "zeros_like": lambda x, _: torch.zeros_like(x),
    "clone": lambda x, _: x.clone(),
    "contiguous": lambda x, _: x.contiguous(),
    "channels last": lambda x, _: x.clone(memory_format=torch.channels_last) if x.dim() == 4 else x,
    "to": lambda x, _: x.to(torch.float64),
    "of two dtypes": lambda x, _: (x.half() + 1).float(),
}
SIZES = st.lists(st.sampled_from([1, 1, 2, 3, 4, 8]), min_size=2, max_size=5)


@st.composite
def tensors(draw: st.DrawFn, sizes: Sequence[int]) -> Tensor:
    """A tensor whose axes lie in memory in any order, and whose sizes of 1 have any stride."""
    order = draw(st.permutations(range(len(sizes))))
    laid = torch.empty([sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(len(sizes))])
    steps = st.sampled_from([1, 2, *laid.stride(), 3 * max(laid.stride())])
    return laid.as_strided(laid.shape, [draw(steps) if size == 1 else one for size, one in _steps(laid)])


def _steps(tensor: Tensor) -> list[tuple[int, int]]:
    return list(zip(tensor.shape, tensor.stride(), strict=True))


def faked(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride())


@given(st.data(), SIZES, st.sampled_from([*OPS]))
def test_what_is_computed_element_by_element_has_the_strides_of_eager(data: Any, sizes: list[int], name: str) -> None:
    x = data.draw(tensors(sizes))
    is_repeated = data.draw(st.booleans())
    y = data.draw(tensors([data.draw(st.sampled_from([1, size])) if is_repeated else size for size in sizes]))
    mode = EagerStrides()
    with mode:
        found = OPS[name](faked(x, mode), faked(y, mode))
    # a power of a number is contiguous in eager, whatever the strides; the mode looks only where a size is 1
    if name != "number to the power" or 1 in sizes:
        assert found.stride() == OPS[name](x, y).stride()


@pytest.mark.fifth
@given(st.data(), SIZES)
def test_views_have_the_strides_of_eager(data: Any, sizes: list[int]) -> None:
    x, left, wanted = data.draw(tensors(sizes)), torch.Size(sizes).numel(), []
    while left > 1:
        wanted.append(data.draw(st.sampled_from([size for size in range(1, left + 1) if left % size == 0])))
        left //= wanted[-1]
    wanted += [1] * data.draw(st.integers(0, 2))
    mode = EagerStrides()
    with mode:
        found = faked(x, mode).reshape(wanted)
    assert found.stride() == x.reshape(wanted).stride()


def test_a_view_stays_one() -> None:
    mode = EagerStrides()
    with mode:
        x = torch.empty_strided((1, 16, 1024), (16384, 1, 16))
        assert x.view(1, 16, 32, 32).untyped_storage()._cdata == x.untyped_storage()._cdata


def test_what_gives_its_operand_goes_on_doing_so() -> None:
    mode = EagerStrides()
    with torch.inference_mode(), mode:
        x = torch.empty_strided((1, 2, 4), (16, 8, 1))
        assert torch.positive(x).untyped_storage()._cdata == x.untyped_storage()._cdata


def test_other_threads_have_the_fakes_of_pytorch_meanwhile() -> None:
    def views() -> list[tuple[int, ...]]:
        with FakeTensorMode():
            return [torch.empty_strided((1, 16, 1024), (16384, 1, 16)).view(1, 16, 32, 32).stride()]

    own = FakeTensorMode.dispatch
    with eager_strides(), ThreadPoolExecutor(1) as pool:
        assert views() == [(16, 1, 512, 16)] != pool.submit(views).result()
    assert FakeTensorMode.dispatch is own
