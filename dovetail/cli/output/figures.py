"""What is said at the end of a generation: seconds by phase, what was read, and how full each device was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...compiler.spec.units import format_bytes
from ...progress.phases import READING, Phases

if TYPE_CHECKING:
    from ...pipelines.pipeline import CompiledPipeline

_ORDER = ("loading", "planning", "conditioning", "reading", "sampling", "decoding", "writing")


def peaks_of(handle: CompiledPipeline) -> dict[str, int]:
    """The most bytes in use on each device of a pipeline, where the device counts them, and in the process."""
    import resource

    from ...runtime.devices.accelerator import accelerator_of

    devices = dict.fromkeys(device for one in handle.components.values() for device in one.devices)
    peaks = {one.name: accelerator_of(one.torch).memory()[1] for one in devices if not one.is_host}
    peaks["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {name: peak for name, peak in peaks.items() if peak}


def line_of(phases: Phases, peaks: Mapping[str, int]) -> str:
    """One line for people."""
    told = []
    for name, seconds in sorted(phases.seconds.items(), key=_place):
        told.append(f"{name} {seconds:.1f} s{_read(phases, name, seconds)}")
    return f"{', '.join(told)}; peak: {', '.join(f'{name} {format_bytes(peak)}' for name, peak in peaks.items())}"


def document_of(phases: Phases, peaks: Mapping[str, int]) -> dict[str, Any]:
    """The same as data; sizes are in bytes."""
    seconds = {name: round(seconds, 3) for name, seconds in sorted(phases.seconds.items(), key=_place)}
    during = {name: nbytes for name, nbytes in phases.read_during.items() if nbytes}
    return {"phases": seconds, "bytes_read": phases.bytes_read, "read_during": during, "peaks": dict(peaks)}


def _place(item: tuple[str, float]) -> int:
    """Where a phase stands in what is told; one that a pipeline begins twice stands where it ends."""
    return _ORDER.index(item[0]) if item[0] in _ORDER else _ORDER.index("sampling")


def _read(phases: Phases, name: str, seconds: float) -> str:
    if name == READING:
        return f" ({_rate(phases.bytes_read, seconds)})" if phases.bytes_read else ""
    streamed = phases.read_during[name]
    return f" (and {format_bytes(streamed)} read)" if streamed else ""


def _rate(nbytes: int, seconds: float) -> str:
    return f"{format_bytes(nbytes)}, {format_bytes(int(nbytes / max(seconds, 1e-9)))}/s"
