"""What a person asked for: which devices each component gets, how it is split, and how much memory may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .compiler.devices import Device, Rig
from .compiler.errors import UsageError
from .compiler.spec import (
    Backend,
    Budget,
    ParamsBackend,
    SplitMode,
    TensorSplit,
    parse_backend,
    parse_budget,
    parse_max_memory,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
)


@dataclass(frozen=True)
class Request:
    """A parsed request over a rig; the same for one module and for a whole pipeline."""

    backend: Backend
    params_backend: ParamsBackend
    split_mode: SplitMode
    tensor_split: TensorSplit
    budget: Budget
    rig: Rig

    @classmethod
    def parse(
        cls,
        *,
        backend: Any = None,
        params_backend: Any = None,
        split_mode: Any = "layer",
        tensor_split: Any = None,
        max_vram: Any = None,
        max_memory: Mapping[Any, Any] | None = None,
        rig: Rig | str | None = None,
        components: Mapping[str, str] | None = None,
    ) -> Request:
        """Reads every part in the spelling that people type, or as Python values.

        ``components`` maps attribute names to roles. Raises SpecError, which points at what is wrong.
        """
        spec = parse_backend(backend, components)
        given = Rig.parse(rig) if isinstance(rig, str) else rig
        return cls(
            backend=spec,
            params_backend=parse_params_backend(params_backend, components),
            split_mode=parse_split_mode(split_mode, components),
            tensor_split=parse_tensor_split(tensor_split, components),
            budget=parse_budget(max_vram) if max_memory is None else parse_max_memory(max_memory),
            rig=spec.extend(given or Rig.detect()),
        )

    def mode_for(self, attribute: str = "", role: str = "") -> str:
        """How a component is split: ``layer`` or ``row``; raises UsageError for a mode that is not there yet."""
        mode = self.split_mode.mode_for(attribute, role)
        if mode == "tensor":
            raise UsageError("split mode tensor is not available yet: use layer or row")
        return mode

    def devices_for(self, attribute: str = "", role: str = "") -> tuple[Device, ...]:
        """The devices of a component, main device first, each with no more free memory than its budget.

        Raises UsageError for a split mode that is not there yet.
        """
        self.mode_for(attribute, role)
        limits = self.budget.limits(self.rig)
        devices = self.backend.devices_for(attribute, role, self.rig)
        return tuple(replace(device, free=min(device.free, limits.get(device.name, device.free))) for device in devices)

    def rests_for(self, attribute: str, role: str, devices: tuple[Device, ...]) -> str:
        """Where the weights of a component rest: "cpu", "disk", or "" for the devices that read them.

        Raises UsageError for another device than those.
        """
        place = self.params_backend.resting_place(attribute, role, self.rig)
        names = [device.name for device in devices]
        if place is None or names == [getattr(place, "name", "")]:
            return ""
        if place == "disk":
            return place
        if place.is_host:
            return place.kind
        of = f" of {attribute}" if attribute else ""
        raise UsageError(
            f"weights{of} cannot rest on {place} and be read on {' & '.join(names)}: "
            "let them rest on cpu or disk (--params-backend), or where they are read by leaving it out"
        )

    def shares_for(self, attribute: str, role: str, devices: tuple[Device, ...]) -> tuple[float, ...]:
        """The shares that were asked for, or nothing: free memory decides."""
        return self.tensor_split.shares_for(attribute, role, devices) or ()

    def switch_on(self) -> None:
        """Makes the simulated devices of the rig exist, with their capacities."""
        switch_on(self.rig)


def switch_on(rig: Rig) -> None:
    """Makes the simulated devices of a rig exist, with their capacities."""
    simulated = {device.index: device.total for device in rig if device.is_simulated}
    if simulated:
        from .runtime import sim

        sim.enable(simulated)


def one_backend(backend: Any, device_map: Any) -> Any:
    """What was given of two names for one thing; raises UsageError when both were."""
    if backend is not None and device_map is not None:
        raise UsageError("backend and device_map say the same thing twice: give one of them")
    return device_map if backend is None else backend
