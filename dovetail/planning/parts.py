"""What is told of each program of a plan: what devices have of it, and its seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..compiler.devices.device import Device
from ..compiler.durations import seconds_text
from ..compiler.spec.residency import Residency
from .generation import PlannedCall


@dataclass(frozen=True)
class Row:
    """What a device has of a program; sizes in bytes.

    ``weights`` are there throughout or for the phase, ``streamed`` are brought in every call, ``activations`` is the
    most of values and of what kernels take. ``rests`` has by place what rests where, if some of it rests elsewhere.
    """

    device: Device
    what: str
    weights: int
    streamed: int
    activations: int
    rests: Mapping[Residency, int]


@dataclass(frozen=True)
class Part:
    """A program of the plan: its rows, main device first, and its seconds a picture, bringing included.

    ``chunks`` says in how many its wide parts are computed, ``micro_batches`` in how many its pictures go through a
    layer split, and ``busy`` which part of its time each device computes then, by its name; ``spread`` says which part
    of its seconds they may be off by.
    For a component that runs by its parts this stands for so many ``programs``, and ``call`` is the slowest.
    """

    title: str
    call: PlannedCall
    rows: tuple[Row, ...]
    tile: str
    seconds: float
    bringing: float
    chunks: int = 1
    spread: float = 0.0
    programs: int = 1
    micro_batches: int = 1
    busy: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"<Part {self.title}: {seconds_text(self.seconds)} s on {', '.join(one.device.name for one in self.rows)}>"
        )
