"""Computing with weights that rest in the types of GGUF: they are unpacked in chunks, where and when they are used.

Importing it registers the kernels of the operations in compiler/ir/ops.py, which any device runs. They are plain torch;
libgguf, where it is installed, unpacks on the CPU instead, and Triton on devices that it compiles for.
"""

from . import kernels as kernels
from .native import only_torch
from .rows import FLOATS, dequantize_rows

__all__ = ["FLOATS", "dequantize_rows", "only_torch"]
