"""Unpacking every type, and the operations on packed weights, against gguf-py and against dense weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of, packed_shape
from dovetail.compiler.checkpoints.unpacking import DEVICE, HOST, Sizes, scratch_bytes, sizes_on
from dovetail.runtime import sim
from dovetail.runtime.packing import pack
from dovetail.runtime.quantized import dequantize_rows, kernels, only_torch
from dovetail.runtime.quantized.native import native_unpack
from testbed.memory import peak_bytes

ops = torch.ops.dovetail
PACKED = tuple(quant for quant in QUANT_TYPES if quant not in ("F32", "F16", "BF16"))
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2),
          "Q5_K": (0, 2)}  # fmt: skip
"""Where a block has numbers in half precision; elsewhere it has one at its start."""

ODD = np.array([0, -0.0, 1, -1, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan], np.float16)


@contextmanager
def with_libgguf() -> Iterator[None]:
    """As libgguf is asked: while there is one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert native_unpack(torch.empty(0), "Q4_K")
        yield
    finally:
        torch.set_num_threads(before)


INSTALLED = pytest.mark.skipif(find_spec("libgguf") is None, reason="libgguf is not installed")
WAYS = pytest.mark.parametrize(
    "way", [pytest.param(only_torch, id="torch"), pytest.param(with_libgguf, id="with libgguf", marks=INSTALLED)]
)
Way = Callable[[], AbstractContextManager[None]]


def random_bytes(quant: str, rows: int, columns: int, seed: int = 0) -> NDArray[np.uint8]:
    shape = packed_shape(quant, (rows, columns))
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def by_gguf(packed: NDArray[np.uint8], quant: str) -> Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[quant]).copy())


def by_us(packed: NDArray[np.uint8], quant: str, dtype: torch.dtype = torch.float32) -> Tensor:
    elements, nbytes = block_of(quant)
    out = torch.full((packed.shape[0], packed.shape[1] // nbytes * elements), 7, dtype=dtype)
    dequantize_rows(torch.from_numpy(packed), quant, out)
    return out


def assert_bits(found: Tensor, expected: Tensor) -> None:
    """The same bits, zeros' signs included; a number that is none is one in both."""
    assert torch.equal(found.isnan(), expected.isnan())
    whole = found.nan_to_num(nan=1, posinf=torch.inf, neginf=-torch.inf).view(torch.int32)
    assert torch.equal(whole, expected.nan_to_num(nan=1, posinf=torch.inf, neginf=-torch.inf).view(torch.int32))


@WAYS
@pytest.mark.parametrize("quant", QUANT_TYPES)
@given(rows=st.integers(1, 9), blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6, deadline=None)
def test_any_bytes_unpack_to_the_bits_of_gguf(quant: str, way: Way, rows: int, blocks: int, seed: int) -> None:
    packed = random_bytes(quant, rows, blocks * max(block_of(quant)[0], 32), seed)
    with way():
        assert_bits(by_us(packed, quant), by_gguf(packed, quant))


@WAYS
@pytest.mark.parametrize("quant", PACKED)
def test_odd_scales_unpack_to_the_bits_of_gguf(quant: str, way: Way) -> None:
    packed = random_bytes(quant, len(ODD) ** 2, block_of(quant)[0])
    for at, numbers in zip(HALVES.get(quant, (0,)), (np.repeat(ODD, len(ODD)), np.tile(ODD, len(ODD))), strict=False):
        packed[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    with way():
        assert_bits(by_us(packed, quant), by_gguf(packed, quant))


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_other_dtypes_are_the_rounded_numbers(quant: str) -> None:
    packed = random_bytes(quant, 40, 12288) if quant == "Q4_K" else random_bytes(quant, 5, 768)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert torch.equal(by_us(packed, quant, dtype).nan_to_num(1), by_gguf(packed, quant).to(dtype).nan_to_num(1))


@given(st.integers(1, 3000), st.integers(0, 1000))
def test_chunks_cover_all_rows_in_order_and_none_is_small(count: int, step: int) -> None:
    spans = list(kernels._spans(count, step))
    assert [row for start, stop in spans for row in range(start, stop)] == list(range(count))
    assert all(stop - start >= min(64, count) for start, stop in spans)
    assert all(stop - start < max(step, 64) + 64 for start, stop in spans)


def weights(quant: str, rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Packed rows, the same unpacked, and a bias."""
    torch.manual_seed(rows + columns)
    packed = pack(torch.randn(rows, columns).div(columns**0.5).numpy(), quant)
    return torch.from_numpy(packed), by_gguf(packed, quant).to(dtype).requires_grad_(), torch.randn(rows).to(dtype)


def ways_to_lie(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """An input as it is, transposed, and cut out of a wider one."""
    x = torch.randn(shape).to(dtype)
    turned = x.transpose(0, -2).contiguous().transpose(0, -2) if x.dim() > 1 else x
    return [x, turned, torch.randn(*shape[:-1], 2 * shape[-1]).to(dtype)[..., : shape[-1]]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_a_product_has_the_bits_of_linear_with_the_unpacked_weight(quant: str, dtype: torch.dtype) -> None:
    for rows, columns, first in (
        (33, 512, (256,)),
        (1001, 256, (2, 77)),
        (1, 256, (5,)),
        (64, 768, ()),
        (70, 256, (0,)),
    ):
        packed, dense, bias = weights(quant, rows, columns, dtype)
        for x in ways_to_lie((*first, columns), dtype):
            with torch.inference_mode():
                assert torch.equal(ops.quantized_linear(x, packed, bias, quant), functional.linear(x, dense, bias))
                assert torch.equal(ops.quantized_linear(x, packed, None, quant), functional.linear(x, dense))


@pytest.mark.parametrize("rows", [1, 2, 77, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_a_product_in_many_chunks_has_the_bits_of_one(
    dtype: torch.dtype, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "sizes_for", lambda device: Sizes(2**19, 64 * 4096))
    check_chunks("Q8_0", (64 * 5 + 1, 4096), dtype, rows, 2**19)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 256, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [(3072, 12288), (12288, 3072), (9217, 3072)], ids=str)
def test_a_product_at_full_size_has_the_bits_of_linear(shape: tuple[int, int], dtype: torch.dtype, rows: int) -> None:
    check_chunks("Q4_K", shape, dtype, rows, kernels.sizes_for(torch.device("cpu")).chunk)


def check_chunks(quant: str, shape: tuple[int, int], dtype: torch.dtype, rows: int, nbytes: int) -> None:
    """A packed product has the bits of one product a chunk, and of one for all but where the host rounds by its size.

    So some hosts do that multiply tiles (AMX): a part of a product then has other bits in PyTorch's own kernel too.
    """
    packed, dense, bias = weights(quant, *shape, dtype)
    x, dense = torch.randn(rows, shape[1]).to(dtype), dense.detach()
    chunks = list(kernels._spans(len(packed), nbytes // (shape[1] * x.dtype.itemsize) - kernels._GRAIN))
    with torch.inference_mode():
        one = functional.linear(x, dense, bias)
        parts = [torch.addmm(bias[start:stop], x, dense[start:stop].t()) for start, stop in chunks]
        found = ops.quantized_linear(x, packed, bias, quant)
        assert len(chunks) > 1
        assert torch.equal(found, torch.cat(parts, -1))
        by_size = any(
            not torch.equal(part, one[:, start:stop]) for part, (start, stop) in zip(parts, chunks, strict=True)
        )
        assert torch.equal(found, one) or (by_size and torch.allclose(found, one, atol=2e-1, rtol=2e-2))


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_lookups_and_whole_weights_are_the_unpacked_numbers(quant: str) -> None:
    packed, dense, _ = weights(quant, 21, 256, torch.bfloat16)
    ids = torch.tensor([[20, 0, 3], [3, 3, 19]])
    assert torch.equal(ops.quantized_embedding(packed, ids, quant, torch.bfloat16), functional.embedding(ids, dense))
    assert torch.equal(ops.quantized_embedding(packed, ids[:0], quant, torch.float32), torch.empty(0, 3, 256))
    assert torch.equal(ops.dequantize(packed, quant, torch.bfloat16), dense)
    assert torch.equal(ops.dequantize(packed.view(3, 7, -1)[1:], quant, torch.bfloat16), dense.view(3, 7, -1)[1:])
    assert torch.equal(ops.dequantize(packed[4], quant, torch.bfloat16), dense[4])


def test_a_lookup_past_the_end_is_an_error() -> None:
    packed, _, _ = weights("Q8_0", 21, 256, torch.float32)
    with pytest.raises(IndexError, match="index out of range"):
        ops.quantized_embedding(packed, torch.tensor([21]), "Q8_0", torch.float32)


@pytest.mark.parametrize("quant", ["Q4_K", "F16"])
def test_what_is_known_of_an_operation_without_data_agrees_with_it(quant: str) -> None:
    packed, _, bias = weights(quant, 5, 256, torch.float32)
    x, ids = torch.randn(2, 3, 256), torch.tensor([[4, 0]])
    samples = {
        ops.quantized_linear.default: (x, packed, bias, quant),
        ops.quantized_embedding.default: (packed, ids, quant, torch.bfloat16),
        ops.dequantize.default: (packed, quant, torch.float16),
    }
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for op, args in samples.items():
        assert set(torch.library.opcheck(op, args, test_utils=checks).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("quant", QUANT_TYPES)
@WAYS
def test_a_product_takes_less_than_twenty_megabytes_beside_its_result(quant: str, dtype: torch.dtype, way: Way) -> None:
    packed = torch.zeros(packed_shape(quant, (1536, 12288)), dtype=torch.uint8)
    x = torch.zeros(3, 12288, dtype=dtype)
    with way(), torch.inference_mode():
        peak = peak_bytes(lambda: ops.quantized_linear(x, packed, None, quant))
    assert x.element_size() * 3 * 1536 <= peak < 20e6


class Count(TorchDispatchMode):
    """How many operations are called; each costs a device at most one launch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def calls_of_a_product(quant: str, shape: tuple[int, int]) -> int:
    packed = torch.zeros(packed_shape(quant, shape), dtype=torch.uint8)
    x = torch.zeros(4, shape[1], dtype=torch.bfloat16)
    with torch.inference_mode(), only_torch(), Count() as count:
        kernels._linear(x, packed, None, quant)
    return count.calls


@pytest.mark.fifth
@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_a_product_of_a_large_transformer_takes_a_device_few_launches(
    quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "sizes_for", lambda device: DEVICE)
    assert calls_of_a_product(quant, (3072, 12288)) < 350
    assert calls_of_a_product(quant, (3072, 3072)) < 150


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_the_bits_of_a_product_do_not_depend_on_the_sizes(quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, _, bias = weights(quant, 640, 1024, torch.bfloat16)
    x = torch.randn(5, 1024).to(torch.bfloat16)
    found = []
    for sizes in (HOST, DEVICE, Sizes(1000, 70 * 2048)):
        monkeypatch.setattr(kernels, "sizes_for", lambda device, sizes=sizes: sizes)
        with torch.inference_mode(), only_torch():
            found.append(ops.quantized_linear(x, packed, bias, quant))
    assert all(torch.equal(one, found[0]) for one in found)


def test_sizes_are_those_of_the_device_and_shrink_with_its_free_memory() -> None:
    assert sizes_on(host=True, room=0) == HOST
    assert sizes_on(host=False) == sizes_on(host=False, room=2**30) == DEVICE
    shrunk = [sizes_on(host=False, room=room) for room in (2**30, 2**28, 2**26, 0)]
    assert shrunk == sorted(shrunk, key=lambda sizes: sizes.chunk, reverse=True)
    assert shrunk[-1] == Sizes(HOST.piece, DEVICE.chunk // 16)


@pytest.mark.parametrize("quant", QUANT_TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("piece", [2**19, 2**16])
def test_what_a_product_takes_meanwhile_is_within_what_is_stated(
    quant: str, dtype: torch.dtype, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = Sizes(piece, 400_000)
    monkeypatch.setattr(kernels, "sizes_for", lambda device: sizes)
    packed, x = torch.zeros(packed_shape(quant, (512, 1024)), dtype=torch.uint8), torch.zeros(3, 1024, dtype=dtype)
    with only_torch(), torch.inference_mode():
        peak = peak_bytes(lambda: ops.quantized_linear(x, packed, None, quant)) - 3 * 512 * dtype.itemsize
    assert peak <= scratch_bytes(quant, 512, 1024, dtype.itemsize, sizes)


def test_a_product_finds_room_on_a_device_that_is_nearly_full() -> None:
    shape = (4096, 1024)
    packed = torch.zeros(packed_shape("Q4_K", shape), dtype=torch.uint8)
    sim.enable({0: packed.nbytes + 2**24})
    try:
        there, x = packed.to("sim:0"), torch.zeros(1, 1024).to("sim:0")
        assert not ops.quantized_linear(x, there, None, "Q4_K").cpu().any()
        del there, x
    finally:
        sim.enable({0: 2**30})


@pytest.mark.parametrize("shape", [(34 * 5,), (5, 33), (2, 5, 34)])
def test_bytes_that_are_no_rows_of_blocks_are_refused_on_every_device(shape: tuple[int, ...]) -> None:
    packed = torch.zeros(shape, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="do not fill"):
        dequantize_rows(packed, "Q8_0", torch.empty(5, 32))
