"""Checks calls of a program whose sizes are dynamic: it was fitted for the sizes of its example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program
from ..compiler.ir.sizes import symbol_names
from ..compiler.units import format_bytes
from ..passes.simulate.memory import simulate_at

_KEPT = 256
"""So many sizes that fit are remembered."""


class DynamicSizes:
    """The sizes of calls of a program that are known to fit.

    Args:
        program: with a schedule.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fitting: set[tuple[int, ...]] = set()

    def check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Raises DoesNotFitError, with both numbers, where a call of these inputs would exceed a device.

        Each combination of sizes is looked at once; those of the example are as the program was fitted for.
        """
        symbols = self._program.signature.symbols_of(inputs)
        sizes = tuple(symbols.values())
        if sizes in self._fitting or symbols.items() <= self._program.symbols.items():
            return
        self._check(symbols)
        if len(self._fitting) >= _KEPT:
            self._fitting.clear()
        self._fitting.add(sizes)

    def _check(self, symbols: Mapping[str, int]) -> None:
        program = self._program
        for device, usage in simulate_at(program, symbols).items():
            memory = program.rig[device]
            if usage.total > memory.free:
                raise DoesNotFitError(
                    f"a call of {program.name} with {self._named(symbols)} needs {format_bytes(usage.total)} on "
                    f"{device}, which has {format_bytes(memory.free)} free of {format_bytes(memory.total)}"
                    f"{f' ({memory.why})' if memory.why else ''}: {format_bytes(usage.weights + usage.staged)} of "
                    f"weights and {format_bytes(usage.total - usage.weights - usage.staged)} of values",
                    {device: usage.total - memory.free},
                    "ask for a smaller size or batch, list more devices, or compile it with an example of this size, "
                    "for which it is fitted",
                )

    def _named(self, symbols: Mapping[str, int]) -> str:
        """The sizes of a call in words: ``x.shape[0] = 64``."""
        leaves = ((leaf.path, leaf.shape) for leaf in self._program.signature.tensors)
        places = (text.partition(" is ") for text in symbol_names(leaves, symbols))
        return ", ".join(f"{place} = {symbols[symbol]}" for symbol, _, place in places)
