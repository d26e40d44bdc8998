"""Fetching of weights: what is said where there is no room, and what is made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from ...compiler.devices.device import canonical_name
from ...compiler.errors import DoesNotFitError, WeightError
from ...compiler.frontend.refusals import foreign_library
from ...compiler.ir.weight import Weight
from ...compiler.units import format_bytes
from ..devices.out_of_memory import fetched, ran_out
from .objects import has_bits
from .origin import HOST, FileOrigin, Origin
from .stored_weight import PartKey, StoredWeight

T = TypeVar("T")

WAY_OUT = "list more devices, or give {device} a smaller share (tensor_split, max_vram)"
GRADIENT_WAY_OUT = "its gradient goes with it: call zero_grad() on the module first, or " + WAY_OUT


def reread(source: Origin, like: torch.Tensor) -> torch.Tensor:
    """A weight's numbers in host memory of their own: a view of the file has what somebody wrote into its memory."""
    if isinstance(source, FileOrigin) and source.can_view(like.dtype):
        made = torch.empty(like.shape, dtype=like.dtype)
        source.reader.read_into(source.entry, made)
        return made
    return source.whole(like.dtype, HOST)


def is_in_file(one: StoredWeight) -> bool:
    """Whether a file has the numbers of a weight; what modules hold of it is compared, for it may be written."""
    source = one.read_from if one.is_here else one.origin
    if source is None or source.file is None or not one.is_here or not one.places:
        return source is not None and source.file is not None
    if not has_bits(one.tensor, reread(source, one.tensor)):
        one.read_from = None
    return one.read_from is not None


def of_one_range(weights: Iterable[StoredWeight]) -> Iterator[tuple[StoredWeight, StoredWeight]]:
    """The weights without data that lie where another does in a file, behind that."""
    seen: dict[Any, StoredWeight] = {}
    for one in weights:
        if not one.is_here and one.file is not None:
            first = seen.setdefault((one.file.entry, one.tensor.dtype, tuple(one.tensor.shape)), one)
            if first is not one:
                yield first, one


def once(one: StoredWeight, key: PartKey, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What lies beside a weight's own tensor, made when it is first asked for."""
    if key not in one.parts:
        one.parts[key] = make()
    return one.parts[key]


def fetched_weight(
    one: StoredWeight,
    what: StoredWeight | Weight,
    device: torch.device,
    fetch: Callable[[], T],
    way_out: str = WAY_OUT,
) -> T:
    """What a fetch brings to a device of a weight; where memory runs out it is tried once more with all caches empty.

    Raises DoesNotFitError, which names the weight, when there is no room, and WeightError when the weight is of a class
    of another library that cannot lie there.
    """
    try:
        return fetched(fetch)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            _refuse_foreign(one, device, error)
            raise
        there = canonical_name(device)
        raise DoesNotFitError(
            f"weight {what.name} of {one.owner} needs {format_bytes(what.nbytes)} on {there}: {error}: "
            f"{way_out.format(device=there)}"
        ) from error


def _refuse_foreign(one: StoredWeight, device: torch.device, error: Exception) -> None:
    if library := foreign_library(one.tensor):
        raise WeightError(
            f"{one.name} of {one.owner} is a {type(one.tensor).__name__} of {library}, which does not go to "
            f"{canonical_name(device)}: load the component without, and give a file of its quantized weights, as "
            "dovetail convert --type q8_0 makes it (weights=…)"
        ) from error
