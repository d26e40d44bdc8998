"""One module whose devices were left open: searches how it is spread, and lowers what is found."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..compiler.devices.device import HOST
from ..compiler.errors import DoesNotFitError, unless_refused
from ..compiler.ir.program import Program
from ..compiler.spec import (
    parse_backend,
    parse_micro_batches,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
)
from ..compiler.spec.chunks import Chunks
from ..compiler.spec.modes import TOGETHER, TensorSplit
from ..compiler.spec.residency import Residency
from ..conventions.request import Request
from ..passes.fit.options import Option
from ..passes.fit.solution import Solution
from ..passes.fit.workload import Load, Over
from ..passes.rewrites.chunk import chunks_of
from .asked import leaves_devices_open, micro_batches_found
from .chains import COUNTS
from .decide import Member, TracedCall, decide, loads_of, tightened

logger = logging.getLogger(__name__)


def is_open(request: Request) -> bool:
    """Whether nothing was said of the devices of a module, and there is a choice."""
    return len(request.rig.gpus) > 1 and leaves_devices_open(request, {"": ""})


Lowers = Callable[[Request], Program]
"""Lowers a module as a request says, and raises DoesNotFitError."""


def placed_module(name: str, traced: Program, request: Request, lower: Lowers, is_open: bool) -> Program:
    """What lowering makes of a module: on devices that are searched where they are open.

    Raises DoesNotFitError, which names what was not asked for and makes it fit: weights in host memory, or chunks.
    """
    fit = fitted_module if is_open else _as_asked
    try:
        return fit(name, traced, request, lower)
    except DoesNotFitError as error:
        ways = list(_other_ways(fit, name, traced, request, lower))
        if not ways:
            raise
        raise DoesNotFitError(error.problem, error.over, ", ".join(filter(None, (*ways, error.ways)))) from None


def _as_asked(name: str, traced: Program, request: Request, lower: Lowers) -> Program:
    """What lowering makes of a module on the devices that were named."""
    return lower(request)


def _other_ways(
    fit: Callable[[str, Program, Request, Lowers], Program], name: str, traced: Program, request: Request, lower: Lowers
) -> Iterator[str]:
    """What was not asked for and makes a module fit, in words."""
    if _fits_from_host(fit, name, traced, request, lower):
        yield (
            "keep its weights in host memory, from which each is brought for the stage that reads it, with which "
            "it fits (params_backend=cpu, --params-backend cpu)"
        )
    count = next((count for count in COUNTS if _fits_in_chunks(count, fit, name, traced, request, lower)), None)
    if count is not None:
        yield f"compute wide parts in chunks, with which it fits (chunk={count}, --chunk {count})"


def _fits_from_host(
    fit: Callable[[str, Program, Request, Lowers], Program], name: str, traced: Program, request: Request, lower: Lowers
) -> bool:
    """Whether a module fits if its weights, of which nothing was said, rest in host memory."""
    if request.params_backend.get("", "") is not None or not request.rig.gpus:
        return False
    try:
        fit(name, traced, replace(request, params_backend=parse_params_backend(HOST)), lower)
    except DoesNotFitError:
        return False
    return True


def _fits_in_chunks(
    count: int, fit: Callable[[str, Program, Request, Lowers], Program], name: str, traced: Program, request: Request,
    lower: Lowers,
) -> bool:  # fmt: skip
    """Whether a module fits in so many chunks that does not as it was asked for."""
    if count <= request.chunks_for():
        return False
    try:
        return chunks_of(fit(name, traced, replace(request, chunks=Chunks(count)), lower)) == count
    except DoesNotFitError:
        return False


def fitted_module(name: str, traced: Program, request: Request, lower: Lowers) -> Program:
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

    def attempt(over: Over) -> Program | DoesNotFitError:
        decision = decide(name, loads, request, over)
        if isinstance(decision, DoesNotFitError):
            return decision
        placed = _placed(request, decision.solution, name)
        logger.info("%s: --backend %s", name, shlex.quote(str(placed.backend)))
        try:
            return lower(placed)
        except DoesNotFitError as error:
            return error.as_value()

    return unless_refused(tightened(attempt))


def _staying(load: Load) -> Load:
    """A module whose weights stay on their devices where nothing else was said."""
    rests = load.asked.residency or Residency.DEVICE
    return replace(load, asked=replace(load.asked, residency=rests))


def _placed(request: Request, solution: Solution, name: str) -> Request:
    way = solution.ways[name]
    nbytes = [max(1, way.weights.get(device, 0) // 2**20) for device in way.devices]
    shares = parse_tensor_split(":".join(map(str, nbytes)) if len(nbytes) > 1 else None)
    asked = request.tensor_split if request.tensor_split.default or request.tensor_split.named else shares
    backend = parse_backend("&".join(map(str, way.devices)))
    if request.mode_for() not in TOGETHER and not request.chooses_mode():
        return replace(request, backend=backend, tensor_split=asked)
    split = asked if way.mode == "layer" else _shares_said(request, way)
    in_parts = parse_micro_batches(micro_batches_found(request, way, "", request.chooses_mode()))
    return replace(
        request, backend=backend, split_mode=parse_split_mode(way.mode), tensor_split=split, micro_batches=in_parts
    )


def _shares_said(request: Request, way: Option) -> TensorSplit:
    """The shares of a way under a mode: its own, or those that were asked for."""
    return parse_tensor_split(list(way.shares)) if way.shares else request.tensor_split
