"""The Triton kernels in Triton's interpreter, on the CPU: the bits of plain torch. It is no run on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import dovetail.runtime.quantized as quantized
from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of, packed_shape
from dovetail.runtime.devices.accelerator import accelerator_of
from dovetail.runtime.packing import pack
from dovetail.runtime.quantized import dequantize_rows, fused, only_torch

PACKED = tuple(quant for quant in QUANT_TYPES if quant not in ("F32", "F16", "BF16"))
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
ODD = np.array([0, -0.0, 1, -1, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan], np.float16)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of what is infinite


@pytest.fixture(scope="module")
def interpreted() -> Iterator[ModuleType]:
    """The kernels as Triton interprets them; the module that a GPU uses is another one."""
    path = Path(quantized.__file__).with_name("triton_kernels.py")
    spec = spec_from_file_location("interpreted_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(autouse=True)
def _on_the_cpu(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused, "_kernels", lambda: interpreted)
    monkeypatch.setattr(accelerator_of(torch.device("cpu")), "runs_triton", True)
    fused._agrees.cache_clear()
    yield
    fused._agrees.cache_clear()


def by_torch(packed: Tensor, quant: str, dtype: torch.dtype) -> Tensor:
    out = torch.empty(len(packed), packed.shape[1] // block_of(quant)[1] * block_of(quant)[0], dtype=dtype)
    with only_torch():
        dequantize_rows(packed, quant, out)
    return out


@pytest.mark.few(quick=16)
@DTYPES
@pytest.mark.parametrize("quant", PACKED)
def test_any_bytes_unpack_to_the_bits_of_plain_torch(quant: str, dtype: torch.dtype) -> None:
    shape = packed_shape(quant, (9, 1280))
    packed = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    expected = by_torch(packed, quant, dtype)
    found = torch.full_like(expected, 7)
    assert fused.unpacked_at_once(packed, quant, found)
    assert fused._same_bits(found, expected)


@pytest.mark.fifth
@pytest.mark.few(quick=6)
@pytest.mark.parametrize("quant", PACKED)
def test_odd_scales_unpack_to_the_bits_of_plain_torch(quant: str) -> None:
    nbytes = block_of(quant)[1]
    packed = np.random.default_rng(1).integers(0, 256, (len(ODD) ** 2, nbytes), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}.get(quant, (0, 2) if quant[-1] in "1K" else (0,))
    for at, numbers in zip(halves, (np.repeat(ODD, len(ODD)), np.tile(ODD, len(ODD))), strict=False):
        packed[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    for dtype in (torch.float32, torch.bfloat16):
        expected = by_torch(torch.from_numpy(packed), quant, dtype)
        found = torch.empty_like(expected)
        assert fused.unpacked_at_once(torch.from_numpy(packed), quant, found)
        assert fused._same_bits(found, expected)


@pytest.mark.parametrize("quant", ["Q5_1", "Q6_K", "IQ4_XS"])
def test_a_product_is_the_same_with_it(quant: str) -> None:
    torch.manual_seed(0)
    packed, x = torch.from_numpy(pack(torch.randn(130, 256).numpy(), quant)), torch.randn(3, 256).to(torch.bfloat16)
    with torch.inference_mode():
        found = torch.ops.dovetail.quantized_linear(x, packed, None, quant)
        with only_torch():
            assert torch.equal(found, torch.ops.dovetail.quantized_linear(x, packed, None, quant))


@pytest.mark.parametrize("broken", ["raises", "differs"])
def test_kernels_that_fail_or_differ_are_not_used_and_one_warning_says_so(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def launch(packed: Tensor, quant: str, out: Tensor, *rest: object) -> None:
        if broken == "raises":
            raise RuntimeError("no compiler")
        out.zero_()

    monkeypatch.setattr(fused, "_kernels", lambda: SimpleNamespace(launch=launch))
    packed = torch.from_numpy(pack(torch.randn(4, 256).numpy(), "Q4_K"))
    found = torch.empty(4, 256)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            dequantize_rows(packed, "Q4_K", found)
    assert torch.equal(found, by_torch(packed, "Q4_K", torch.float32))
    assert len(caplog.records) == 1
    assert "Triton does not unpack Q4_K on cpu" in caplog.text


def test_other_dtypes_and_devices_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = torch.from_numpy(pack(torch.randn(4, 256).numpy(), "Q4_K"))
    assert not fused.unpacked_at_once(packed, "Q4_K", torch.empty(4, 256, dtype=torch.float64))
    monkeypatch.setattr(accelerator_of(torch.device("cpu")), "runs_triton", False)
    assert not fused.unpacked_at_once(packed, "Q4_K", torch.empty(4, 256))
