"""What a pipeline may write of weights into host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ..compiler.devices.memory import Memory
from ..compiler.devices.rig import Rig
from ..compiler.errors import DoesNotFitError
from ..compiler.units import format_bytes
from ..components.component import Component
from ..runtime.store.stored_weight import StoredWeight


class _Placed(Protocol):
    """A pipeline whose components have devices."""

    @property
    def components(self) -> Mapping[str, Component]:
        """Its components."""

    @property
    def granted(self) -> Rig:
        """What it may use of each device."""


def host_checked(placed: Callable[[], _Placed | None]) -> Callable[[Sequence[StoredWeight]], None]:
    """What raises DoesNotFitError where a pipeline's host has no room for weights that somebody writes."""

    def check(written: Sequence[StoredWeight]) -> None:
        owner = placed()
        if owner is not None:
            _check_host(owner.components.values(), owner.granted[owner.granted.host], written)

    return check


def _check_host(components: Iterable[Component], host: Memory, written: Sequence[StoredWeight]) -> None:
    held = {one for component in components for one in component.view.weights() if one.is_in_host_memory}
    taken, needed = sum(one.nbytes for one in held), sum(one.tensor.nbytes for one in written)
    if needed > max(host.free - taken, 0):
        first, more = written[0], len(written) - 1
        raise DoesNotFitError(
            f"weight {first.name} of {first.owner}{f' and {more} more' if more else ''} would be written, which takes "
            f"{format_bytes(needed)} of host memory: the host may use {format_bytes(host.free)}, and other weights "
            f"hold {format_bytes(taken)} of it: give it a larger budget (max_vram cpu=…), load the pipeline in a "
            "smaller dtype, or write the weights to its files first"
        )
