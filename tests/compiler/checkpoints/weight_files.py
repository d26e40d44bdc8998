"""Files of weights for tests: drawn by hypothesis, and written by the packages that define the formats."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import strategies as st
from safetensors.torch import save_file

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES, block_of, packed_shape

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32,
    torch.uint64, torch.bool,
)  # fmt: skip


@st.composite
def dense_weights(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors of any dtype and shape, of random bytes."""
    tensors = {}
    for name in draw(st.sets(NAMES, min_size=1, max_size=5)):
        shape, dtype = draw(st.lists(st.integers(0, 5), max_size=3)), draw(st.sampled_from(DTYPES))
        count = int(np.prod(shape)) * dtype.itemsize
        data = bytearray(draw(st.binary(min_size=count, max_size=count)) or b"\0")
        most = 1 if dtype == torch.bool else 255
        flat = torch.frombuffer(data, dtype=torch.uint8)[:count].bitwise_and(most)
        tensors[name] = flat.view(dtype).reshape(shape)
    return tensors


Packed = tuple[str, tuple[int, ...], np.ndarray]
"""A GGUF type, the shape of the numbers, and the packed bytes."""


@st.composite
def packed_weights(draw: st.DrawFn) -> dict[str, Packed]:
    """Weights of GGUF types, of random bytes."""
    weights = {}
    for name in draw(st.sets(NAMES, min_size=1, max_size=5)):
        quant = draw(st.sampled_from(QUANT_TYPES))
        columns = block_of(quant)[0] * draw(st.integers(1, 3))
        shape = (*draw(st.lists(st.integers(1, 6), max_size=2)), columns)
        seed = draw(st.integers(0, 2**16))
        weights[name] = packed(quant, shape, seed)
    return weights


def packed(quant: str, shape: tuple[int, ...], seed: int = 0) -> Packed:
    """A weight of a GGUF type, of random bytes."""
    rng = np.random.default_rng(seed)
    return quant, shape, rng.integers(0, 256, packed_shape(quant, shape), dtype=np.uint8)


def write_gguf(path: Path, weights: dict[str, Packed], architecture: str = "test", alignment: int = 32) -> None:
    """Writes a file with the gguf package."""
    writer = GGUFWriter(path, architecture)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    writer.add_array("test.words", ["one", "two", ""])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_float32("test.half", 0.5)
    for name, (quant, _, data) in weights.items():
        writer.add_tensor(name, data, raw_dtype=GGMLQuantizationType[quant])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a file with the safetensors package."""
    save_file(tensors, path, {"format": "pt"})


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """The content of a safetensors file of a header."""
    return struct.pack("<Q", len(header)) + header + data
