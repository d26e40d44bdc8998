"""Writes weights one after the other into a file whose header has told of them all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..compiler.checkpoints.quantized_types import FLOAT8
from ..compiler.checkpoints.safetensors_header import DTYPES
from ..compiler.errors import WeightError
from .types import Converted

Put: TypeAlias = Callable[[NDArray[Any]], object]
Writer: TypeAlias = Callable[[Path, Sequence[Converted], Mapping[str, Any]], AbstractContextManager[Put]]
ARCHITECTURE = "general.architecture"
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
_MOST_DIMENSIONS = 4


@contextmanager
def gguf_file(path: Path, weights: Sequence[Converted], metadata: Mapping[str, Any]) -> Iterator[Put]:
    """A GGUF file with metadata; what it yields takes the bytes of each weight in order.

    A weight of five dimensions is stored with four, and its shape is noted as ComfyUI-GGUF does it. The bytes of 8-bit
    floats are stored as integers of 8 bits, for GGUF has no type for them.
    Raises WeightError for a weight of a dtype that GGUF does not have.
    """
    from gguf import GGUFWriter

    writer = GGUFWriter(path, metadata[ARCHITECTURE])
    try:
        shapes = {ORIGINAL_SHAPE + w.name: w.shape for w in weights if len(w.shape) > _MOST_DIMENSIONS}
        for key, value in {**metadata, **shapes}.items():
            _add(writer, key, value)
        for weight in weights:
            numbers = np.dtype(np.void)  # the type says what they are
            writer.add_tensor_info(weight.name, _four(weight.shape), numbers, weight.nbytes, _ggml_type(weight))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        yield writer.write_tensor_data
    finally:
        writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    from gguf import GGUFValueType

    if key == ARCHITECTURE:
        return  # the writer has it already
    kind = GGUFValueType.get_type(list(value) if isinstance(value, tuple) else value)
    if kind == GGUFValueType.INT32:
        kind = GGUFValueType.UINT32 if 0 <= value < 2**32 else GGUFValueType.INT64
    writer.add_key_value(key, value, kind)


def _four(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape if len(shape) <= _MOST_DIMENSIONS else (math.prod(shape[:-3]), *shape[-3:])


def _ggml_type(weight: Converted) -> Any:
    from gguf import GGMLQuantizationType

    integers = {torch.int8: "I8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64"}
    name = "I8" if weight.quant == FLOAT8 else weight.quant or integers.get(weight.dtype)
    if name is None:
        raise WeightError(f"{weight.name} is {weight.type_name}, which GGUF has no type for: write a safetensors file")
    return GGMLQuantizationType[name]


@contextmanager
def safetensors_file(path: Path, weights: Sequence[Converted], metadata: Mapping[str, Any]) -> Iterator[Put]:
    """A safetensors file; what it yields takes the bytes of each weight in order.

    The safetensors package writes a file only from all of its weights at once.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    names = {dtype: name for name, dtype in DTYPES.items()}
    end = 0
    for weight in weights:
        start, end = end, end + weight.nbytes
        header[weight.name] = {"dtype": names[weight.dtype], "shape": weight.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that weights are aligned
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        yield lambda data: file.write(data.data)


WRITERS: Mapping[str, Writer] = {".gguf": gguf_file, ".safetensors": safetensors_file}
"""By the suffix of a file: what writes it."""
