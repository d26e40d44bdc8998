"""Traces parts of a component: of those that are alike one is traced, and the others get copies of what it gave.

A component that runs by its parts calls one part after another that is the same but for the numbers in its weights:
tracing takes seconds for some of them, and telling that two are alike takes milliseconds (``cache/key``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import nn

from ..cache.key import key_of
from ..cache.traces import Named, trace
from ..compiler.errors import TraceError
from ..compiler.frontend.trace_lock import alone
from ..compiler.ir.asked import one_tensor
from ..compiler.ir.program import Program


class TracedAlike:
    """What parts of a component gave that were traced so far, a program or the reason why there is none."""

    def __init__(self) -> None:
        self._known: dict[str, Program | TraceError] = {}
        self._open: defaultdict[str, list[tuple[Hashable, Program]]] = defaultdict(list)

    def trace(
        self,
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        dynamic_shapes: Mapping[str, Any] | None = None,
        kind: str,
        named: Named,
    ) -> Program:
        """What ``cache.traces.trace`` yields of a part; raises TraceError where it does, or did of one alike."""
        with alone():  # another thread's trace has fakes in the places of the weights meanwhile
            key = key_of(module, args, kwargs, dynamic_shapes, kind)
        if key is None:
            return trace(module, args, kwargs, dynamic_shapes=dynamic_shapes, kind=kind, named=named)
        known = self._known.get(key.full) or self._of_other_sizes(module, args, kwargs, kind)
        if isinstance(known, Program):
            return known.copy()
        if known is not None:
            raise _of_its_own(known)
        try:
            program = trace(module, args, kwargs, dynamic_shapes=dynamic_shapes, kind=kind, named=named, key=key)
        except TraceError as error:
            self._known[key.full] = _of_its_own(error)
            raise
        self._known[key.full] = program
        if program.symbols:
            self._open[_key_of_module(module, kind)].append((one_tensor((*args, *kwargs.values())), program))
        return program

    def _of_other_sizes(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], kind: str
    ) -> Program | None:
        """A program of a part that is alike, whose sizes were left open, and that takes this call too."""
        same = one_tensor((*args, *kwargs.values()))
        programs = self._open.get(_key_of_module(module, kind), ()) if self._open else ()
        return next((one for tensors, one in programs if tensors == same and one.signature.takes(args, kwargs)), None)

    def forget(self) -> None:
        """Lets go of all of them."""
        self._known.clear()
        self._open.clear()


def _key_of_module(module: nn.Module, kind: str) -> str:
    with alone():
        key = key_of(module, (), {}, None, kind)
    return key.full if key is not None else ""


def _of_its_own(error: TraceError) -> TraceError:
    """An error that says the same and keeps nothing alive of where it was raised."""
    return type(error)(str(error))
