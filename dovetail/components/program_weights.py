"""Gives one program the weights of its component: resident ones from their home, staged ones from where they rest."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn

from ..compiler.ir.program import Program, Weight
from ..compiler.ir.schedule import Load
from ..compiler.spec.devices import Device
from ..runtime.devices.transfers import moved
from ..runtime.store.source import WeightSource, check_matches
from .holdings import Held
from .residence import Residence, find_name, tensors_by_name


class ProgramWeights(WeightSource):
    """The weights of a program of a component or of a part of it."""

    def __init__(self, residence: Residence, module: nn.Module, program: Program) -> None:
        self._residence = residence
        self._module = weakref.ref(module)
        self._program = program
        self._devices = {device.torch: device for device in program.devices} if program.rests else {}
        self._constants: dict[str, torch.Tensor] = {}
        self._held: dict[str, Held] = {}
        self._readers: dict[str, list[Device]] = {}
        self._slices: dict[str, list[Weight]] = {}

    def missing(self, program: Program) -> list[str]:
        """The names of weights that the module does not have; looks at it afresh."""
        module = self._module()
        assert module is not None
        self._residence.survey()
        self._constants = dict(program.constants)
        tensors = tensors_by_name(module)
        self._held = {
            weight.name: self._residence.holdings.of(tensors[name])
            for weight in program.weights.values()
            if (name := find_name(weight, tensors))
        }
        self._readers = _readers(program)
        self._slices = defaultdict(list)
        for weight in program.weights.values():
            if weight.rows:
                self._slices[weight.whole].append(weight)
        return [name for name in program.weights if name not in self._held and name not in self._constants]

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The weight on a device: its own, rows of it, or a copy where another device reads it too.

        Raises WeightError when it is not what was traced, DoesNotFitError when there is no room.
        """
        with self._residence.holdings.lock, torch.inference_mode(False), torch.no_grad():
            held = self._held.get(weight.name)
            if held is None:
                return moved(self._constants[weight.name], device)
            return self._held_on(held, weight, device).detach()

    def requires_grad(self, weight: Weight) -> bool:
        """Whether the module's own tensor requires a gradient now."""
        held = self._held.get(weight.name)
        if held is None or weight.kind != "parameter" or weight.quant:
            return weight.requires_grad
        return held.tensor.requires_grad

    def advise(self, weights: Iterable[Weight]) -> None:
        """Has the system read ahead from files."""
        self._residence.advise(self._held[weight.name] for weight in weights)

    def settle(self, device: torch.device) -> None:
        """Waits for what was staged new on a device, for it stays for other calls, whose streams may be others."""
        self._residence.settle_staged(device)

    def check(self) -> None:
        """Raises WeightError when a file was written to, of which weights are views."""
        self._residence.check()

    def _held_on(self, held: Held, weight: Weight, device: torch.device) -> torch.Tensor:
        residence, home = self._residence, self._home(weight)
        if self._program.stages(weight, self._devices.get(device, home)):
            return residence.stage(held, weight, device)
        if self._program.rests == "cpu" and weight.kind == "parameter" and not weight.quant:
            residence.rest(held, device)
            check_matches(weight, held.tensor)
            return held.tensor[slice(*weight.rows)] if weight.rows else held.tensor
        if weight.rows:
            self._slice(held, weight)
        if weight.rows or weight.quant:
            held.home = held.home if weight.rows else held.home or home
            return residence.part(held, weight, device)
        check_matches(weight, held.tensor)
        placed = residence.place(held.tensor, home)
        return placed if placed.device == device else residence.part(held, weight, device)

    def _slice(self, held: Held, weight: Weight) -> None:
        """Cuts all slices of a weight at once; its data then lies nowhere else, unless a program reads it whole."""
        for one in self._slices[weight.whole]:
            self._residence.part(held, one, self._home(one).torch)
        if held.home is None:
            self._residence.holdings.take_out(held)

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
