"""Devices: where tensors live and operations run.

Names are canonical here and nowhere else: `cuda:0`, `CUDA0` and `cuda` all are `cuda0`. What a kind of device means
(which one is the host, which one is simulated) is asked of a `Device`, so that no other code spells a kind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from zlib import crc32

from ..errors import NotHereError, SpecError
from ..spans import Span
from .other_names import KINDS_ELSEWHERE, told_of

if TYPE_CHECKING:
    import torch

HOST, SIM = "cpu", "sim"
KINDS = (HOST, "cuda", "xpu", "mps", SIM)
SINGLE = (HOST, "mps")
"""The kinds of which a machine has one device, whose name has no number."""
_EXAMPLES = "a device such as cuda0, xpu0, mps, cpu or sim0; of another process 1/cuda0"
_LACKING = {
    "mps": frozenset({"float64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
}
_SPELLING = re.compile(r"(?:([0-9]{1,4})/)?([a-z]+):?([0-9]{1,4})?")


def canonical_name(name: str | int | torch.device | Device) -> str:
    """The one spelling of a device's name; a name of no known kind comes back in lower case.

    >>> canonical_name("cuda:1"), canonical_name("ROCm0"), canonical_name("sim"), canonical_name("1/CPU")
    ('cuda1', 'cuda0', 'sim0', '1/cpu')
    """
    text = str(name).strip().lower()
    return str(device_in(text) or text)


def device_in(text: str) -> Device | None:
    """The device of a spelling in lower case, if it is one: a process before a slash, a kind, a number."""
    match = _SPELLING.fullmatch(text)
    kind = KINDS_ELSEWHERE.get(match[2], match[2]) if match else ""
    if not match or kind not in KINDS:
        return None
    index = int(match[3] or 0)
    return None if index and kind in SINGLE else Device(kind, index, int(match[1] or 0))


@dataclass(frozen=True)
class Device:
    """The identity of a place where tensors live and ops run: its kind, its number, and the process it belongs to.

    What it has free is not said here but in a `Rig`, so that the same device is equal everywhere.
    """

    kind: str
    index: int = 0
    process: int = 0

    def __hash__(self) -> int:
        """The same in every process, and found once: passes look devices up a million times."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((crc32(self.kind.encode()), self.index, self.process))

    @classmethod
    def named(cls, name: str) -> Device:
        """The device of a name in any spelling; raises SpecError for a name of no known kind."""
        device = device_in(name.strip().lower())
        if device is None:
            raise no_device(Span.whole(name), _EXAMPLES)
        return device

    def __repr__(self) -> str:
        return f"<Device {self.name}>"

    @cached_property
    def name(self) -> str:
        """How specs and dumps spell the device."""
        where = f"{self.process}/" if self.process else ""
        return f"{where}{self.kind}" if self.kind in SINGLE else f"{where}{self.kind}{self.index}"

    @cached_property
    def torch(self) -> torch.device:
        """PyTorch's device; for a simulated one the simulation must have been switched on before.

        Raises NotHereError for a device of another process: PyTorch's device says nothing of processes, and would be
        that of this one.
        """
        import torch

        if not self.is_of_here:
            raise NotHereError(f"{self} is a device of process {self.process}, whose tensors this process cannot have")
        return torch.device(self.kind) if self.is_host else torch.device(self.kind, self.index)

    @property
    def is_of_here(self) -> bool:
        """Whether it is a device of this process."""
        return not self.process

    @property
    def traced_as(self) -> str:
        """The kind that a model sees while it is traced for this device: simulated ones compute as the host does."""
        return HOST if self.is_simulated else self.kind

    @property
    def lacks(self) -> frozenset[str]:
        """The names of the dtypes of which no tensor can lie on this device."""
        return _LACKING.get(self.kind, frozenset())

    @property
    def is_host(self) -> bool:
        """Whether this is the CPU with the host's memory."""
        return self.kind == HOST

    @property
    def is_simulated(self) -> bool:
        """Whether this device is made of host memory, and so exists wherever it is asked for."""
        return self.kind == SIM

    def __str__(self) -> str:
        """The name, which is how specs and dumps spell a device."""
        return self.name


def no_device(span: Span, expected: str) -> SpecError:
    """The error for what is no device's name; that of another program, or a device map, is named as such."""
    problem, way = told_of(span.value) or (f"{span.value!r} is not the name of a device", expected)
    digits = re.search(r"(?<![0-9])[0-9]{1,2}$", span.value)  # a longer number is that of a card
    number = digits[0] if digits else ""
    return span.error(problem, way, [kind if kind in SINGLE else f"{kind}{number}" for kind in KINDS])
