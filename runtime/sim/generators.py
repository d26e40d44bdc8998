"""Random number generators of simulated devices: they draw the CPU's numbers and belong to their device, as CUDA's do.

PyTorch makes generators of a private-use backend in C++ only. So `torch.Generator` becomes a class that makes, for a
simulated device, a CPU generator that gives the simulated device as its own.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_C_GENERATOR: Any = torch._C.Generator
_belongs: weakref.WeakValueDictionary[int, SimGenerator] = weakref.WeakValueDictionary()


class _AnyGenerator(type):
    """Counts every generator of PyTorch as an instance of the class that stands at `torch.Generator`."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _C_GENERATOR)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _C_GENERATOR)


class SimGenerator(_C_GENERATOR):  # type: ignore[misc]
    """A generator of a simulated device; two with one seed draw the same numbers, on whatever device they are."""

    def __new__(cls, device: torch.device) -> SimGenerator:
        """Makes a generator of the CPU that is known by its address."""
        made: SimGenerator = _C_GENERATOR.__new__(cls, "cpu")
        _belongs[made._cdata] = made
        return made

    def __init__(self, device: torch.device) -> None:
        self._device = torch.device(device.type, device.index or 0)

    @property
    def device(self) -> torch.device:
        """The simulated device that the generator draws for."""
        return self._device

    def clone_state(self) -> SimGenerator:
        """Returns another generator of the same device, in the same state."""
        made = SimGenerator(self._device)
        made.set_state(self.get_state())
        return made

    def __reduce__(self) -> Any:
        return _restored, (str(self._device), self.get_state())


def _restored(device: str, state: torch.Tensor) -> SimGenerator:
    made = SimGenerator(torch.device(device))
    made.set_state(state)
    return made


class Generator(metaclass=_AnyGenerator):
    """Makes a generator of any device, under the name `torch.Generator`."""

    def __new__(cls, device: torch.device | str | int = "cpu") -> Any:
        """Makes a generator of a simulated device here, and of another one as PyTorch does."""
        kind = torch.device(device)
        return SimGenerator(kind) if kind.type == "sim" else _C_GENERATOR(device)


def install() -> None:
    """Puts the class at `torch.Generator`."""
    torch.Generator = Generator  # type: ignore[assignment, misc]


def require_generator_of(device: torch.device, generator: Any) -> None:
    """Raises RuntimeError where a generator of another device is to draw on a simulated one, as CUDA does."""
    if generator is None:
        return
    known = _belongs.get(generator._cdata)
    found = known.device if known is not None else generator.device
    if found != device:
        raise RuntimeError(
            f"a tensor on {device} cannot be drawn with a generator on {found}: use torch.Generator({str(device)!r}), "
            f"or draw on {found} and move the tensor"
        )
