"""The operations that programs have beyond ATen's: their schemas, and what they yield. Kernels are in runtime/.

``quant`` is a type of ``quantization.QUANT_TYPES``; ``packed`` are uint8 rows in it.
"""

from __future__ import annotations

import torch

from ..checkpoints.quantized_types import block_of

LIBRARY = torch.library.Library("dovetail", "FRAGMENT")
LIBRARY.define("quantized_linear(Tensor x, Tensor packed, Tensor? bias, str quant) -> Tensor")
LIBRARY.define("quantized_embedding(Tensor packed, Tensor indices, str quant, ScalarType dtype) -> Tensor")
LIBRARY.define("dequantize(Tensor packed, str quant, ScalarType dtype) -> Tensor")


def columns_of(packed: torch.Tensor, quant: str) -> int:
    """How many numbers a packed row holds."""
    elements, nbytes = block_of(quant)
    return packed.shape[-1] // nbytes * elements


@torch.library.register_fake("dovetail::quantized_linear", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, quant: str) -> torch.Tensor:
    """The last dimension of x against the rows, as ``linear`` has it, in the dtype of x."""
    if x.shape[-1] != columns_of(packed, quant):
        raise RuntimeError(f"x has {x.shape[-1]} columns, the {quant} weight {columns_of(packed, quant)}")
    return x.new_empty((*x.shape[:-1], packed.shape[0]))


@torch.library.register_fake("dovetail::quantized_embedding", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _embedding(packed: torch.Tensor, indices: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((*indices.shape, columns_of(packed, quant)), dtype=dtype)


@torch.library.register_fake("dovetail::dequantize", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _dequantize(packed: torch.Tensor, quant: str, dtype: torch.dtype) -> torch.Tensor:
    return packed.new_empty((*packed.shape[:-1], columns_of(packed, quant)), dtype=dtype)


LIBRARY.define("landing(Tensor like, int columns, ScalarType dtype) -> Tensor")
LIBRARY.define("gather(Tensor(a!) out, Tensor[] parts) -> Tensor(a!)")


@torch.library.register_fake("dovetail::landing", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _landing(like: torch.Tensor, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a value of the leading sizes of ``like``, on its device."""
    return like.new_empty((*like.shape[:-1], columns), dtype=dtype)


@torch.library.register_fake("dovetail::gather", lib=LIBRARY)  # type: ignore[untyped-decorator]
def _gather(out: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    """The parts side by side in the last dimension of ``out``; a part that lies in its place is not copied."""
    columns = sum(part.shape[-1] for part in parts)
    if columns != out.shape[-1] or any(part.device != out.device or part.dtype != out.dtype for part in parts):
        raise RuntimeError(f"parts of {columns} columns in all, or of another device, do not fill {out.shape[-1]}")
    return out


LANDING, GATHER = torch.ops.dovetail.landing.default, torch.ops.dovetail.gather.default


def joins_parts(target: object) -> bool:
    """Whether an op makes a whole of what was split by rows: the program goes on from there on the main device."""
    return target in (LANDING, GATHER)
