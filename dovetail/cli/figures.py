"""What is said at the end of a generation: seconds by phase, what was read, and how full each device was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..compiler.spec.units import format_bytes
from ..progress.phases import READING, Phases

if TYPE_CHECKING:
    from ..pipelines.pipeline import CompiledPipeline


def peaks_of(handle: CompiledPipeline) -> dict[str, int]:
    """The most bytes in use on each device of a pipeline, where the device counts them, and in the process."""
    import resource

    from ..runtime.devices.accelerator import accelerator_of

    devices = dict.fromkeys(device for one in handle.components.values() for device in one.devices)
    peaks = {one.name: accelerator_of(one.torch).memory()[1] for one in devices if not one.is_host}
    peaks["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {name: peak for name, peak in peaks.items() if peak}


def line_of(phases: Phases, peaks: Mapping[str, int]) -> str:
    """One line for people."""
    told = []
    for name, seconds in phases.seconds.items():
        read = f" ({_rate(phases.bytes_read, seconds)})" if name == READING and phases.bytes_read else ""
        told.append(f"{name} {seconds:.1f} s{read}")
    return f"{', '.join(told)}; peak: {', '.join(f'{name} {format_bytes(peak)}' for name, peak in peaks.items())}"


def document_of(phases: Phases, peaks: Mapping[str, int]) -> dict[str, Any]:
    """The same as data; sizes are in bytes."""
    seconds = {name: round(seconds, 3) for name, seconds in phases.seconds.items()}
    return {"phases": seconds, "bytes_read": phases.bytes_read, "peaks": dict(peaks)}


def _rate(nbytes: int, seconds: float) -> str:
    return f"{format_bytes(nbytes)}, {format_bytes(int(nbytes / max(seconds, 1e-9)))}/s"
