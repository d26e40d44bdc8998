"""The names that llama.cpp gives to the weights of a language model, for text encoders in its files."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .single_file import Layout

RENAMED = ("t5", "t5encoder", "qwen2", "qwen3")
"""The architectures, as a GGUF file names them, of which llama.cpp's converter changes names only.

Of others it permutes rows (Llama) or adds one to the weights of norms (Gemma).
"""

_BLOCK = re.compile(r"blk\.(\d+)\.")


def under_own_names(names: Iterable[str], stored: Layout, architecture: str) -> Layout:
    """The weights of a file that llama.cpp's converter wrote, under those of some names that it knows."""
    if architecture not in RENAMED:
        return {}
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture)
    blocks = [int(found[1]) for name in stored if (found := _BLOCK.search(name))]
    known = get_tensor_name_map(kind, max(blocks, default=0) + 1)
    theirs = {name: known.get_name(name, (".weight", ".bias")) for name in names}
    theirs |= {name: known.get_name(f"model.{name}", (".weight", ".bias")) for name in names if not theirs[name]}
    return {name: stored[their] for name, their in theirs.items() if their and their in stored}
