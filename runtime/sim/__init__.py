"""Simulated devices: `torch.device("sim", i)`, with the CPU's numbers and an accelerator's manners.

They have a capacity each, count their bytes, ops and copies, refuse to mix devices in one op, and raise `RaceError`
where a wait between streams is missing. They are for correctness, memory and order, never for timing. Nothing happens
at import: `enable` switches them on for the process.
"""

from .backend import enable, is_enabled
from .copies import broken_link
from .ledger import SimStats, capacity, device_count, reset_peak, reset_stats, spare, stats, uncounted
from .streams import Event, RaceError, Stream, current_stream, default_stream, stream, synchronize
from .tensor import SimTensor

__all__ = [
    "Event", "RaceError", "SimStats", "SimTensor", "Stream", "broken_link", "capacity", "current_stream",
    "default_stream", "device_count", "enable", "is_enabled", "reset_peak", "reset_stats", "spare", "stats",
    "stream", "synchronize", "uncounted",
]  # fmt: skip
