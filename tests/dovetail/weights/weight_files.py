"""Files of weights for tests: GGUF in any type that gguf-py can quantize, and what a model computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize

State = Mapping[str, torch.Tensor]


def save_gguf(state: State, path: Path, kind: str, architecture: str = "test") -> dict[str, torch.Tensor]:
    """Writes a GGUF file, matrices in a type and the rest in F32; returns the numbers that the file then holds."""
    writer = gguf.GGUFWriter(path, architecture)
    held = {}
    for name, tensor in state.items():
        numbers = tensor.detach().to(torch.float32).numpy()
        of = gguf.GGMLQuantizationType[_type_for(numbers, kind)]
        if of is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, numbers)
            held[name] = torch.from_numpy(numbers.copy())
            continue
        packed = quantize(numbers, of)
        writer.add_tensor(name, packed, raw_dtype=of)
        held[name] = torch.from_numpy(np.ascontiguousarray(dequantize(packed, of))).reshape(tensor.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def _type_for(numbers: np.ndarray, kind: str) -> str:
    elements, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if numbers.ndim < 2:
        return "F32"
    return kind if numbers.shape[-1] % elements == 0 else "F16"
