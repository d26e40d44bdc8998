"""Which weights diffusers' layerwise casting keeps in a short dtype."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from .libraries import layerwise_casting


def cast_layerwise(module: nn.Module) -> list[str]:
    """The names of the parameters that ``enable_layerwise_casting`` casts if nothing else is said.

    Those are of linear layers, convolutions and embeddings, apart from those in modules whose names say that much
    depends on them, by diffusers' general list and the model's own.
    """
    layers, skipped = layerwise_casting(module)

    def cast(part: nn.Module, path: str) -> Iterator[str]:
        if any(re.search(pattern, path) for pattern in skipped):
            return
        if isinstance(part, layers):
            yield from (f"{path}.{name}" if path else name for name, _ in part.named_parameters())
            return
        for name, child in part.named_children():
            yield from cast(child, f"{path}.{name}" if path else name)

    return list(dict.fromkeys(cast(module, "")))
