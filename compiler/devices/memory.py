"""What a device has of memory, and what may be used of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..units import format_bytes


@dataclass(frozen=True)
class Memory:
    """What a device has, in bytes, and what may be used of it.

    `total` is what the device has, `free` what nobody uses of it, `why` in words what keeps the rest. `reserve` is what
    of the free memory is kept for kernels, or for the process on the host; `within` takes it off. `label` is what its
    maker calls the device, `way` how it reaches others of its kind where a rig says that (`WAYS`). `beside` is what of
    the free memory values of other programs take at other times: weights that stay must leave it free, values need not.
    """

    total: int
    free: int
    why: str = field(default="", compare=False)
    reserve: int = field(default=0, compare=False)
    label: str = field(default="", compare=False)
    integrated: bool = field(default=False, compare=False)
    beside: int = field(default=0, compare=False)
    way: str = field(default="", compare=False)

    def within(self, limit: int) -> Memory:
        """This memory, of which no more than a budget may be used, and not what is reserved."""
        free = max(self.free - self.reserve, 0)
        if free <= limit < self.free or (free < limit and self.reserve):
            return replace(self, free=free, why=f"{format_bytes(self.reserve)} of it are reserved")
        if limit >= self.free:
            return self
        return replace(self, free=limit, why=f"a budget leaves {format_bytes(limit)} of {format_bytes(self.free)}")

    def less(self, taken: int, why: str) -> Memory:
        """This memory without some bytes of it, and in words what keeps these."""
        if not taken:
            return self
        return replace(self, free=max(0, self.free - taken), why=", ".join(filter(None, (self.why, why))))
