"""The placement grammar: which component runs where, rests where, is split how, and within which memory.

One parser a setting, one printer (`str`), and `parse(str(x)) == x`. docs/placement.md has the grammar in ten lines.
"""

from .backend import (
    Backend,
    ParamsBackend,
    Word,
    parse_backend,
    parse_params_backend,
    with_cpu_flags,
    with_offload_flag,
)
from .budget import Amount, Budget, parse_budget, parse_max_memory
from .chunks import Chunks, parse_chunks
from .micro_batches import MicroBatchCounts, parse_micro_batches
from .modes import MODES, SplitMode, TensorSplit, parse_split_mode, parse_tensor_split
from .roles import ROLES, role_of, role_of_component

__all__ = [
    "MODES",
    "ROLES",
    "Amount",
    "Backend",
    "Budget",
    "Chunks",
    "MicroBatchCounts",
    "ParamsBackend",
    "SplitMode",
    "TensorSplit",
    "Word",
    "parse_backend",
    "parse_budget",
    "parse_chunks",
    "parse_max_memory",
    "parse_micro_batches",
    "parse_params_backend",
    "parse_split_mode",
    "parse_tensor_split",
    "role_of",
    "role_of_component",
    "with_cpu_flags",
    "with_offload_flag",
]
