"""What a person asked for: which devices each component gets, how it is split, and how much memory may be used."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from ..compiler.devices.device import SINGLE, Device
from ..compiler.devices.memory import Memory
from ..compiler.devices.rig import Rig
from ..compiler.errors import UsageError
from ..compiler.spec import (
    Backend,
    Budget,
    Chunks,
    MicroBatchCounts,
    ParamsBackend,
    SplitMode,
    TensorSplit,
    parse_backend,
    parse_budget,
    parse_chunks,
    parse_max_memory,
    parse_micro_batches,
    parse_params_backend,
    parse_split_mode,
    parse_tensor_split,
)
from ..compiler.spec.backend import AUTO
from ..compiler.spec.budget import MaxMemory
from ..compiler.spec.modes import QUICKEST, SHORT_TERMS, TOGETHER, check_kinds, shares_out_weights
from ..compiler.spec.residency import Amounts, Residency
from ..compiler.units import format_bytes
from .spellings import Budgets, Counts, Modes, Places, Shares

logger = logging.getLogger(__name__)

BF16_PARTIALS = "--bf16-partials"


@dataclass(frozen=True)
class Request:
    """A parsed request over a rig; the same for one module and for a whole pipeline."""

    backend: Backend
    params_backend: ParamsBackend
    split_mode: SplitMode
    tensor_split: TensorSplit
    budget: Budget
    rig: Rig
    chunks: Chunks = field(default_factory=Chunks)
    micro_batches: MicroBatchCounts = field(default_factory=MicroBatchCounts)
    bf16_partials: bool = False
    inductor: bool = False
    auto_fit: bool = True
    """Whether what was not said may be searched; without, nothing is moved of what is on its device."""

    @classmethod
    def parse(
        cls,
        *,
        backend: Places | None = None,
        params_backend: Places | None = None,
        split_mode: Modes | None = None,
        tensor_split: Shares | None = None,
        max_vram: Budgets | None = None,
        max_memory: MaxMemory | None = None,
        rig: Rig | str | None = None,
        chunk: Counts | None = None,
        micro_batches: Counts | None = None,
        bf16_partials: bool = False,
        inductor: bool = False,
        auto_fit: bool = True,
        multi_gpu: bool = True,
        components: Mapping[str, str] | None = None,
    ) -> Request:
        """Reads every part in the spelling that people type, or as Python values.

        ``components`` maps attribute names to roles. Without ``auto_fit`` what is left open is on the main device,
        without ``multi_gpu`` there is one GPU. Raises SpecError, which points at what is wrong, and UsageError for a
        budget where blocks are compiled, and for short partial sums where nothing is split by tensor, or where what
        asks for them is no truth value.
        """
        if inductor and (max_vram is not None or max_memory is not None):
            raise UsageError(
                "a budget cannot be kept with inductor, for what compiled blocks need is not known before they are "
                "compiled: leave out one of the two, max_vram (--max-vram) or inductor (--inductor)"
            )
        modes = parse_split_mode(split_mode, components)
        if not isinstance(bf16_partials, bool):
            raise UsageError(f"bf16_partials is True or False, and not {bf16_partials!r}: give one of the two")
        if bf16_partials and not any(map(shares_out_weights, (modes.default or "", *dict(modes.named).values()))):
            raise UsageError(
                "bf16_partials (--bf16-partials) is for the sums that devices exchange under a tensor split, and "
                "nothing is split so: add split_mode='tensor' (--split-mode tensor), or leave it out"
            )
        spec = parse_backend(backend, components)
        given = Rig.parse(rig) if isinstance(rig, str) else rig
        here = given or Rig.detect(measured=())
        named = spec.extend(here)
        if not multi_gpu:
            spec, named = spec.on_one_gpu(named)
        if not auto_fit:
            spec = spec.on_main(named)
        if given is None:
            named = named.measured(spec.names(components or {"": ""}, named))
        return cls(
            backend=spec,
            params_backend=parse_params_backend(params_backend, components),
            split_mode=modes,
            tensor_split=parse_tensor_split(tensor_split, components),
            budget=parse_budget(max_vram) if max_memory is None else parse_max_memory(max_memory),
            rig=named,
            chunks=parse_chunks(chunk, components),
            micro_batches=parse_micro_batches(micro_batches, components),
            bf16_partials=bf16_partials,
            inductor=inductor,
            auto_fit=auto_fit,
        )

    def mode_for(self, attribute: str = "", role: str = "") -> str:
        """How a component is split, one of `MODES`; by layers where a search is yet to say."""
        return "layer" if self.chooses_mode(attribute, role) else self.split_mode.mode_for(attribute, role)

    def chooses_mode(self, attribute: str = "", role: str = "") -> bool:
        """Whether a search is to say how a component is split."""
        return self.split_mode.mode_for(attribute, role) == QUICKEST

    def rig_for(self, attribute: str = "", role: str = "") -> Rig:
        """The devices of a component, main device first, each with no more free memory than its budget.

        Raises UsageError for devices that its split mode cannot have together.
        """
        return self._within(self.devices_for(attribute, role))

    @property
    def granted(self) -> Rig:
        """All devices and the host, each with no more free memory than its budget."""
        return self._within(self.rig.with_device(self.rig.host).devices)

    def _within(self, devices: Sequence[Device]) -> Rig:
        """Some devices, each with no more than its budget, and none with more of the host's memory than the host."""
        limits, host = self.budget.limits(self.rig), self.rig.host

        def within(device: Device) -> Memory:
            return self.rig[device].within(limits.get(device, self.rig[device].free))

        found = {device: within(device) for device in devices}
        for device, memory in found.items():
            over = memory.free - within(host).free if memory.integrated else 0
            why = f"the host keeps {format_bytes(over)} of the memory that they share"
            found[device] = memory.less(max(0, over), why)
        return self.rig.having(found)

    def devices_for(self, attribute: str = "", role: str = "") -> tuple[Device, ...]:
        """The devices of a component, main device first; raises UsageError for those that its mode cannot have."""
        mode = self.mode_for(attribute, role)
        devices = self.backend.devices_for(attribute, role, self.rig)
        is_told = len(devices) == 1 and not self._is_searched(attribute, role)
        if mode != "layer" and is_told and self._is_asked(self.split_mode, attribute, role):
            _tell_alone(attribute, devices[0], f"split mode {mode}", _several(devices[0], self.rig, mode))
        if mode in TOGETHER:
            check_kinds(attribute or "a module", mode, devices)
        return devices

    def is_open(self, attribute: str, role: str) -> bool:
        """Whether a component has no devices of its own."""
        words = self.backend.get(attribute, role)
        return words is None or [word.text for word in words] == [AUTO]

    def _is_searched(self, attribute: str, role: str) -> bool:
        """Whether a search is yet to say which devices a component has."""
        return bool(attribute) and self.auto_fit and self.is_open(attribute, role) and len(self.rig.gpus) > 1

    @staticmethod
    def _is_asked(setting: SplitMode | TensorSplit | MicroBatchCounts, attribute: str, role: str) -> bool:
        """Whether something was said of this component, or of the only one there is, and not of all."""
        keys = [key for key, _ in setting.named]
        return attribute in keys or role in keys or (not attribute and setting.default is not None)

    def residency_for(self, attribute: str, role: str, devices: tuple[Device, ...]) -> Residency:
        """Where the weights of a component are kept while nobody computes with them.

        Raises UsageError for another device than those.
        """
        place = self.params_backend.resting_place(attribute, role, self.rig)
        names = [device.name for device in devices]
        if place is None or names == [getattr(place, "name", "")]:
            return Residency.DEVICE
        if place == "disk":
            return Residency.DISK
        if place.is_host:
            return Residency.HOST
        of = f" of {attribute}" if attribute else ""
        raise UsageError(
            f"weights{of} cannot be kept on {place} and be read on {' & '.join(names)}: "
            "keep them on cpu or disk (--params-backend), or where they are read by leaving it out"
        )

    def chunks_for(self, attribute: str = "", role: str = "") -> int:
        """In how many chunks wide parts of a component are computed."""
        return self.chunks.count_for(attribute, role)

    def micro_batches_for(self, attribute: str = "", role: str = "", devices: Sequence[Device] = ()) -> int:
        """In how many parts the pictures of a call go through a layer split; said once where it is split otherwise.

        One where it is on one of some ``devices`` alone, which is said where they were asked for by its name.
        """
        count, mode = self.micro_batches.count_for(attribute, role), self.mode_for(attribute, role)
        if count > 1 and len(devices) == 1:
            if not self._is_searched(attribute, role) and self._is_asked(self.micro_batches, attribute, role):
                _tell_alone(attribute, devices[0], "--micro-batches", _several(devices[0], self.rig, mode))
            return 1
        if count > 1 and mode != "layer":
            _tell_mode(attribute, count, mode)
            return 1
        return count

    def terms_for(self, attribute: str = "", role: str = "") -> str:
        """The dtype in which devices of a component send terms of float32 sums, where it is not their own."""
        return SHORT_TERMS if self.bf16_partials and shares_out_weights(self.mode_for(attribute, role)) else ""

    def compiles(self, role: str = "diffusion") -> bool:
        """Whether Inductor compiles the blocks of a component: of what runs in each step, and no others."""
        return self.inductor and role == "diffusion"

    def amounts_for(self, attribute: str = "", role: str = "") -> Amounts:
        """The bytes of weights that rest on their devices or in host memory, where most rest elsewhere."""
        return self.params_backend.amounts(attribute, role)

    def shares_for(self, attribute: str, role: str, devices: tuple[Device, ...]) -> tuple[float, ...]:
        """The shares that were asked for, or nothing: free memory decides."""
        is_told = len(devices) == 1 and not self._is_searched(attribute, role)
        if is_told and self._is_asked(self.tensor_split, attribute, role):
            several = _several(devices[0], self.rig, self.mode_for(attribute, role))
            _tell_alone(attribute, devices[0], "shares (--tensor-split)", several)
        return self.tensor_split.shares_for(attribute, role, devices) or ()

    def switch_on(self) -> None:
        """Makes the simulated devices of the rig exist, with their capacities."""
        switch_on(self.rig)


def tell_unused_split(request: Request, roles: Mapping[str, str]) -> None:
    """Says where a way to split was asked for that no component is split by, whatever is searched.

    That is one which was asked for of all components, where each is on one device, and `--bf16-partials`, where none is
    split by tensor.
    """
    asked = {
        f"--split-mode {request.split_mode.default}": request.split_mode.default not in (None, "layer"),
        f"--tensor-split {request.tensor_split}": request.tensor_split.default is not None,
        f"--micro-batches {request.micro_batches}": request.micro_batches.default not in (None, 1),
        BF16_PARTIALS: request.bf16_partials,
    }
    is_open = any(request.is_open(name, role) for name, role in roles.items())
    if not any(asked.values()) or (is_open and len(request.rig.gpus) > 1):
        return
    devices = {name: request.devices_for(name, role) for name, role in roles.items()}
    sums = [name for name, role in roles.items() if len(devices[name]) > 1 and request.terms_for(name, role)]
    if devices and all(len(one) == 1 for one in devices.values()):
        several = _several(next(iter(devices.values()))[0], request.rig, request.split_mode.default or "layer")
        for what in (what for what, is_asked in asked.items() if is_asked):
            _tell_unused(what, ", ".join(dict.fromkeys(one[0].name for one in devices.values())), several)
    elif devices and request.bf16_partials and not sums:
        _tell_no_sums()


@cache
def _tell_unused(what: str, devices: str, several: str) -> None:
    logger.warning(
        "%s is not used, for each component is on one device (%s): name several in --backend, such as %s",
        what, devices, shlex.quote(several),
    )  # fmt: skip


@cache
def _tell_no_sums() -> None:
    """Says once that nothing is split in the mode that short partial sums are for."""
    logger.warning(
        "%s is not used, for no component is split by tensor over several devices: name devices of one kind in "
        "--backend for one that is, or leave it out",
        BF16_PARTIALS,
    )


@cache
def _tell_alone(attribute: str, device: Device, what: str, several: str) -> None:
    """Says once that a way to split means nothing on one device."""
    of = f"{attribute}, which" if attribute else "a module that"
    example = shlex.quote(several)
    logger.warning("%s says nothing of %s is on one device, %s: name several, as in %s", what, of, device, example)


@cache
def tell_by_parts(name: str) -> None:
    """Says once that micro-batches are not for what runs by its parts, each of which is a program of its own."""
    logger.warning("%s runs by its parts, each of them whole, and not in micro-batches", name)


@cache
def _tell_mode(attribute: str, count: int, mode: str) -> None:
    """Says once that micro-batches are not for a mode in which devices work at the same time already."""
    logger.warning(
        "%s is split by %s and is not computed in %d micro-batches, which go through a layer split: leave out "
        "micro_batches (--micro-batches), or the split mode",
        attribute or "a module", mode, count,
    )  # fmt: skip


def _several(device: Device, rig: Rig, mode: str) -> str:
    """An example of two devices for a component that is on one: of those of the rig, where it has two that will do.

    Devices that compute together are of one kind, as they are where the mode is to be found.
    """
    is_alike = mode in (*TOGETHER, QUICKEST)
    if device.kind not in SINGLE:
        others = [one for one in rig.gpus if one.kind == device.kind and one != device]
        another = replace(device, index=0 if device.index else 1) if is_alike else rig.host
        return f"{device}&{next(iter(others), another)}"
    kinds = [one.kind for one in rig.gpus]
    alike = [one for one in rig.gpus if one.kind not in SINGLE and kinds.count(one.kind) > 1]
    if alike:
        return "&".join(str(one) for one in alike[:2])
    others = [one for one in rig if one != device]
    return f"{others[0]}&{device}" if others and not is_alike else "sim0&sim1"


def switch_on(rig: Rig) -> None:
    """Makes the simulated devices of a rig exist, with their capacities."""
    ours = ((device, memory) for device, memory in rig.memory.items() if device.is_of_here)
    simulated = {device.index: memory.total for device, memory in ours if device.is_simulated}
    if simulated:
        from ..runtime import sim

        sim.enable(simulated)


BOTH = "passes names all that run, so that inductor means nothing beside it: put inductor before schedule in passes"


def one_backend(backend: Places | None, device_map: Places | None) -> Places | None:
    """What was given of two names for one thing; raises UsageError when both were."""
    if backend is not None and device_map is not None:
        raise UsageError("backend and device_map say the same thing twice: give one of them")
    return device_map if backend is None else backend
