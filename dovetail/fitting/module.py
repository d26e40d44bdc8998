"""One module whose devices were left open, on a rig of several: searches how it is spread, and lowers what is found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ..compiler.ir.program import Program
from ..compiler.spec import parse_backend, parse_tensor_split
from ..compiler.spec.devices import Device
from ..compiler.spec.residency import Residency
from ..conventions.request import Request
from ..passes.fit.search import Solution
from ..passes.fit.workload import Load
from .asked import leaves_devices_open
from .decide import Member, TracedCall, decide, loads_of, tightened

logger = logging.getLogger(__name__)

T = TypeVar("T")


def is_open(request: Request) -> bool:
    """Whether nothing was said of the devices of a module, and there is a choice."""
    return len(request.rig.gpus) > 1 and leaves_devices_open(request, {"": ""})


def fitted_module(name: str, traced: Program, request: Request, lower: Callable[[Request], T]) -> T:
    """What lowering makes of a module on the devices that the search finds for it; weights rest where that was said.

    Args:
        name: of the module, for messages.
        traced: the program.
        request: what was asked.
        lower: lowers it as a request says, and raises DoesNotFitError.

    Raises DoesNotFitError where it fits on no devices.
    """
    nbytes = sum(weight.nbytes for weight in traced.weights.values())
    loads = loads_of({name: Member("", "all", nbytes)}, [TracedCall(name, traced)], request)
    loads = [_staying(load) for load in loads]

    def attempt(over: Mapping[Device, int]) -> T:
        placed = _placed(request, decide(name, loads, request, over).solution, name)
        logger.info("%s: --backend %s", name, placed.backend)
        return lower(placed)

    return tightened(attempt)


def _staying(load: Load) -> Load:
    """A module whose weights stay on their devices where nothing else was said."""
    rests = load.asked.residency or Residency.DEVICE
    return replace(load, asked=replace(load.asked, residency=rests))


def _placed(request: Request, solution: Solution, name: str) -> Request:
    way = solution.ways[name]
    nbytes = [max(1, way.weights.get(device, 0) // 2**20) for device in way.devices]
    shares = parse_tensor_split(":".join(map(str, nbytes)) if len(nbytes) > 1 else None)
    asked = request.tensor_split if request.tensor_split.default or request.tensor_split.named else shares
    return replace(request, backend=parse_backend("&".join(map(str, way.devices))), tensor_split=asked)
