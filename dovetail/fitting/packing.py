"""Traces as they would be with weights in a packed type, to try a plan before a file is converted."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import replace

from ..compiler.checkpoints.quantized_types import block_of
from ..compiler.ir.weight import Weight
from ..components.dry import DryRun
from ..convert.types import SMALLEST_SIDE


@contextlib.contextmanager
def packed(run: DryRun, names: Collection[str], quant: str) -> Iterator[None]:
    """Has the large matrices of some components be of a packed type meanwhile, as `dovetail convert` packs them."""
    traces = [one.traced for one in run.calls.values() if one.component.name in names]
    before = [(traced, dict(traced.weights)) for traced in traces]
    for traced in traces:
        traced.weights.update({name: _packed(weight, quant) for name, weight in traced.weights.items()})
    try:
        yield
    finally:
        for traced, weights in before:
            traced.weights.update(weights)


def _packed(weight: Weight, quant: str) -> Weight:
    if weight.kind != "parameter" or weight.quant or len(weight.shape) != 2 or min(weight.shape) < SMALLEST_SIDE:
        return weight
    fitting = [one for one in (quant, "Q8_0") if weight.shape[-1] % block_of(one)[0] == 0]
    return replace(weight, quant=fitting[0]) if fitting else weight
