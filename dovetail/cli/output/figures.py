"""What is said at the end of a generation: seconds by phase, what was read, and how full each device was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...compiler.units import format_bytes
from ...progress.phases import READING, Phases

if TYPE_CHECKING:
    from ...compiler.devices.device import Device
    from ...pipelines.pipeline import CompiledPipeline

_ORDER = ("loading", "packing", "planning", "conditioning", "reading", "sampling", "decoding", "writing")


def peaks_of(handle: CompiledPipeline) -> dict[str, int]:
    """The most bytes in use on each device of a pipeline, where the device counts them, and in the process."""
    import resource

    from ...runtime.devices.accelerator import accelerator_of

    peaks = {one.name: accelerator_of(one.torch).memory()[1] for one in _accelerators(handle)}
    peaks["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {name: peak for name, peak in peaks.items() if peak}


def reserved_of(handle: CompiledPipeline) -> dict[str, int]:
    """The most bytes that the allocator held of each device of a pipeline, in use or not, where it is counted."""
    from ...runtime.devices.accelerator import accelerator_of

    held = {one.name: accelerator_of(one.torch).reserved_peak() for one in _accelerators(handle)}
    return {name: nbytes for name, nbytes in held.items() if nbytes}


def _accelerators(handle: CompiledPipeline) -> list[Device]:
    devices = dict.fromkeys(device for one in handle.components.values() for device in one.devices)
    return [one for one in devices if not one.is_host]


def line_of(phases: Phases, peaks: Mapping[str, int], reserved: Mapping[str, int] | None = None) -> str:
    """One line for people; what is ``reserved`` of a device stands beside what is in use, where it is more."""
    told = []
    for name, seconds in sorted(phases.seconds.items(), key=_place):
        told.append(f"{name} {seconds:.1f} s{_read(phases, name, seconds)}")
    held = {name: nbytes for name, nbytes in (reserved or {}).items() if nbytes > peaks.get(name, 0)}
    most = [
        f"{name} {format_bytes(peak)}{f' ({format_bytes(held[name])} reserved)' if name in held else ''}"
        for name, peak in peaks.items()
    ]
    return f"{', '.join(told)}; peak: {', '.join(most)}"


def document_of(phases: Phases, peaks: Mapping[str, int], reserved: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The same as data; sizes are in bytes."""
    seconds = {name: round(seconds, 3) for name, seconds in sorted(phases.seconds.items(), key=_place)}
    during = {name: nbytes for name, nbytes in phases.read_during.items() if nbytes}
    return {
        "phases": seconds,
        "bytes_read": phases.bytes_read,
        "read_during": during,
        "peaks": dict(peaks),
        "reserved": dict(reserved or {}),
    }


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
