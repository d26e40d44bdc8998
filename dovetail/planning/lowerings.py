"""What passes made of traces while one plan is made: what is given equal is lowered once.

A plan is made of many attempts: of orders, of tiles, of ways out, and most components are placed alike in several. The
passes read nothing but the program, so that equal programs give equal schedules, which nobody changes afterwards.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, MutableMapping

from ..cache import programs
from ..cache.answers import warnings_noted
from ..compiler.ir.program import Program

_KEPT = 4
"""So many schedules are kept of one trace; those of a large model take tens of megabytes."""


class Lowerings:
    """The lowered programs of traces, by what the passes were given."""

    def __init__(self) -> None:
        self._known: MutableMapping[Program, OrderedDict[Hashable, Program]] = weakref.WeakKeyDictionary()
        self._new: MutableMapping[Program, str] = weakref.WeakKeyDictionary()  # the keys of those to be kept on disk

    def forget(self) -> None:
        """Lets go of all of them."""
        self._known.clear()
        self._new.clear()

    def of(self, traced: Program, how: Hashable, run: Callable[[Program], Program]) -> Program:
        """What ``run`` makes of a copy of a trace, or has made of it when it was as it is now and ``how`` was equal.

        Raises what ``run`` raises; a refusal is not kept.
        """
        known = self._known.setdefault(traced, OrderedDict())
        key = how, _key_of(traced)
        if key not in known:
            known[key] = self._read_or_made(traced, key, run)
            if len(known) > _KEPT:
                known.popitem(last=False)
        known.move_to_end(key)
        return known[key]

    def _read_or_made(self, traced: Program, key: Hashable, run: Callable[[Program], Program]) -> Program:
        """The program, from disk where an earlier process has kept it there."""
        on_disk = programs.key_of(traced, key)
        found = programs.read(on_disk, traced) if on_disk else None
        if found is not None:
            return found
        with warnings_noted() as warned:
            made = run(traced.copy())
        if on_disk and not warned:
            self._new[made] = on_disk
        return made

    def keep(self, adopted: Iterable[Program]) -> None:
        """Writes those of some programs to disk that are not there yet."""
        for program in adopted:
            key = self._new.pop(program, "")
            if key:
                programs.keep(key, program)


def _key_of(program: Program) -> Hashable:
    """All that passes read of a program beside its graph, which is that of the trace."""
    devices = tuple(
        (device, one.total, one.free, one.beside, one.integrated) for device, one in program.rig.memory.items()
    )
    weights = tuple((name, one.quant) for name, one in program.weights.items() if one.quant)
    places = tuple(tuple(some.items()) for some in (program.home, program.residency, program.bounds))
    return devices, weights, places, program.keeps_staged, program.given, program.adapters
