"""The weights of one component: each rests on one device, once, and the module itself holds it there.

A weight is brought to its device when a program that reads it is loaded for the first time. It replaces the module's
own parameter or buffer, so that the memory it had before is free and the module still knows its weights: saving,
``.device`` and ``.dtype`` go on working. A weight that no program has read yet stays where it was.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .compiler.devices import Device
from .compiler.errors import DoesNotFitError, WeightError
from .compiler.program import Program, Weight
from .compiler.schedule import Load
from .compiler.units import format_bytes
from .runtime.weights import check_matches, tensors_of_module

Reader = Callable[[str, torch.Tensor, torch.device], torch.Tensor]
"""Reads the weight of a name, shape and dtype, which has no data yet, to a device."""

Slot = tuple[dict[str, Any], str]
"""Where a module holds a weight: a dictionary and a key."""


@dataclass
class _Slots:
    """A weight's first name, and every place where its module holds it."""

    name: str
    held: list[Slot]


@dataclass(frozen=True)
class _Placed:
    tensor: torch.Tensor
    device: Device
    before: torch.device
    nbytes: int


class Residence:
    """Knows where each weight of a component rests, and brings it there.

    Args:
        module: the component.
        read: reads weights that are on meta; without it every weight must have data.
    """

    def __init__(self, module: nn.Module, read: Reader | None = None) -> None:
        self.module = module
        self._read = read
        self._placed: dict[int, _Placed] = {}
        self._copies: dict[tuple[int, torch.device], torch.Tensor] = {}
        self._slots: dict[int, _Slots] = {}
        self.survey()
        self._names = {slots.name for slots in self._slots.values()}
        self._origin = next((tensor.device for _, tensor in self._tensors() if not tensor.is_meta), torch.device("cpu"))

    def survey(self) -> None:
        """Looks where the module holds its weights; to be called when its structure may have changed."""
        self._slots = {}
        for path, child in self.module.named_modules():
            for held in (child._parameters, child._buffers):
                for key, tensor in held.items():
                    name = f"{path}.{key}" if path else key
                    self._slots.setdefault(id(tensor), _Slots(name, [])).held.append((held, key))
        self._placed = {key: entry for key, entry in self._placed.items() if key in self._slots}

    @property
    def reads(self) -> bool:
        """Whether weights may have no data yet, and are read when they are needed."""
        return self._read is not None

    @property
    def nbytes(self) -> int:
        """Bytes of all weights of the component, each counted once."""
        return sum(tensor.nbytes for _, tensor in self._tensors())

    def bytes_on(self) -> Counter[str]:
        """Bytes that were brought to each device, by the device's name."""
        placed: Counter[str] = Counter()
        for entry in self._placed.values():
            placed[entry.device.name] += entry.nbytes
        return placed

    def homes(self, module: nn.Module, program: Program) -> dict[str, Device]:
        """Which of a program's devices its weights have already; the program is of a part of the component."""
        tensors = tensors_of_module(module)
        devices = {device.name: device for device in program.devices}
        homes = {}
        for weight in program.weights.values():
            name = _find(weight, tensors)
            entry = self._placed.get(id(tensors[name])) if name else None
            if entry and entry.device.name in devices:
                homes[weight.name] = devices[entry.device.name]
        return homes

    def settle(self, module: nn.Module, program: Program) -> None:
        """Notes where a program's weights are to rest, and brings none there: for planning."""
        tensors = tensors_of_module(module)
        for weight in program.weights.values():
            name = _find(weight, tensors)
            if name and weight.name in program.home:
                tensor, home = tensors[name], program.home[weight.name]
                known = self._placed.get(id(tensor))
                if known is None or known.device.name not in {device.name for device in program.devices}:
                    self._placed[id(tensor)] = _Placed(tensor, home, tensor.device, tensor.nbytes)

    def source(self, module: nn.Module, program: Program) -> ProgramWeights:
        """What gives a program of a part of the component its weights."""
        return ProgramWeights(self, module, program)

    def place(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """The weight on its device, where it is from now on; raises DoesNotFitError when there is no room."""
        entry = self._placed.get(id(tensor))
        if entry is not None:
            return entry.tensor
        moved = self._fetch(tensor, device.torch)
        if moved is not tensor:
            moved = self._replace(tensor, moved)
        self._placed[id(moved)] = _Placed(moved, device, tensor.device, moved.nbytes)
        return moved

    def place_all(self, module: nn.Module, device: Device) -> None:
        """Brings every weight of a part of the component to one device."""
        self.survey()
        for tensor in {id(tensor): tensor for tensor in tensors_of_module(module).values()}.values():
            self.place(tensor, device)

    def copy(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A second copy of a weight, for another device that reads it too; made once."""
        key = id(tensor), device
        if key not in self._copies:
            self._copies[key] = self._fetch(tensor, device)
        return self._copies[key]

    def complete(self) -> None:
        """Reads the weights that have no data yet to host memory."""
        self.survey()
        for _, tensor in list(self._tensors()):
            if tensor.is_meta:
                self._replace(tensor, self._fetch(tensor, torch.device("cpu")))

    @contextlib.contextmanager
    def on_file_terms(self) -> Iterator[None]:
        """Every weight has data meanwhile, and none is on a device that file writers do not know."""
        self.complete()
        placed = [entry for entry in self._placed.values() if entry.device.is_simulated]
        back = {id(self._replace(one.tensor, _move(one.tensor, torch.device("cpu")))): one.tensor for one in placed}
        try:
            yield
        finally:
            for key, tensor in back.items():
                self._put(key, tensor)

    def undo(self) -> None:
        """Brings every weight back to where it was; one that had no data goes to host memory."""
        self.survey()
        self._copies.clear()
        for entry in self._placed.values():
            before = torch.device("cpu") if entry.before.type == "meta" else entry.before
            if entry.tensor.device != before:
                self._replace(entry.tensor, _move(entry.tensor, before))
        self._placed.clear()
        for _, tensor in list(self._tensors()):
            if self._name(tensor) not in self._names and tensor.device != self._origin:  # made while it was placed
                self._replace(tensor, _move(tensor, self._origin))
        self.complete()

    def forget_copies(self) -> None:
        """Lets go of second copies, after the weights themselves were changed."""
        self._copies.clear()

    def _fetch(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        try:
            if not tensor.is_meta:
                return _move(tensor, device)
            if self._read is None:
                raise WeightError(f"a weight of {type(self.module).__name__} is on meta: load its weights first")
            return self._read(self._name(tensor), tensor, device)
        except torch.OutOfMemoryError as error:
            raise DoesNotFitError(
                f"{self._name(tensor)} of {type(self.module).__name__} needs {format_bytes(tensor.nbytes)} on "
                f"{device}: {error}: give this component more devices, or less to this one (tensor_split, max_vram)"
            ) from error

    def _replace(self, tensor: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        """Puts new data in every place where the component holds a weight."""
        if isinstance(tensor, nn.Parameter):
            data = nn.Parameter(data, requires_grad=tensor.requires_grad)
        self._put(id(tensor), data)
        return data

    def _put(self, old: int, data: torch.Tensor) -> None:
        slots = self._slots.pop(old)
        for held, key in slots.held:
            held[key] = data
        self._slots[id(data)] = slots

    def _name(self, tensor: torch.Tensor) -> str:
        return self._slots[id(tensor)].name

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.module.named_parameters()
        yield from self.module.named_buffers()


class ProgramWeights:
    """Gives one program the weights of its component, each on the device it rests on."""

    def __init__(self, residence: Residence, module: nn.Module, program: Program) -> None:
        self._residence = residence
        self._module = module
        self._program = program
        self._tensors: dict[str, torch.Tensor] = {}
        self._readers: dict[str, list[Device]] = {}

    def missing(self, program: Program) -> list[str]:
        """The names of weights that the module does not have; looks at it afresh."""
        self._residence.survey()
        found = {**program.constants, **tensors_of_module(self._module)}
        self._tensors = {
            weight.name: found[name] for weight in program.weights.values() if (name := _find(weight, found))
        }
        self._readers = _readers(program)
        return [name for name in program.weights if name not in self._tensors]

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The weight on a device: its own, or a copy where another device reads it too.

        Raises WeightError when it is not what was traced, DoesNotFitError when there is no room.
        """
        tensor = self._tensors[weight.name]
        with torch.inference_mode(False), torch.no_grad():
            if weight.kind == "constant":
                return _move(tensor, device)
            check_matches(weight, tensor)
            placed = self._tensors[weight.name] = self._residence.place(tensor, self._home(weight))
            return placed.detach() if placed.device == device else self._residence.copy(placed, device)

    def _home(self, weight: Weight) -> Device:
        """The device that the weight was given, or the first that reads it when that one does not."""
        home = self._program.home[weight.name]
        readers = self._readers[weight.name]
        return home if home in readers else readers[0]


def _readers(program: Program) -> dict[str, list[Device]]:
    readers: dict[str, list[Device]] = defaultdict(list)
    for item in program.schedule or ():
        if isinstance(item, Load):
            for weight in item.weights:
                readers[weight.name].append(item.device)
    return readers


def _find(weight: Weight, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name under which a weight is found."""
    return next((name for name in weight.names if name in tensors), None)


def _move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor if tensor.device == device else tensor.detach().to(device)
