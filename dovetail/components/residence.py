"""The weights of one component: where each rests, and how it comes to the devices that read it.

A weight is brought to its device when a program that reads it is loaded for the first time. It replaces the module's
own parameter or buffer, so that the memory it had before is free and the module still knows its weights: saving,
``.device`` and ``.dtype`` go on working. A weight that no program has read yet stays where it was.

Parameters that rest in host memory or on disk are brought to a device for the segment that reads them, and stay until
``release``: a component that is called again and again does not send them each time.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import nn

from ..compiler.errors import DoesNotFitError, UsageError, WeightError
from ..compiler.frontend.trace import foreign_library
from ..compiler.ir.program import Program, Weight, weight_of
from ..compiler.spec.devices import Device, canonical_name
from ..compiler.spec.units import format_bytes
from ..lora.adapters import plain_name
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.out_of_memory import ran_out
from ..runtime.devices.transfers import moved
from ..runtime.store.file_weights import rests_packed
from ..runtime.store.source import tensors_of_module
from .holdings import Files, Held, Holdings, Updated

_HOST = torch.device("cpu")
_KEPT_BYTES = 1 << 20
"""A parameter of a component's own module that is no larger stays on its device, for pipelines may compute with it."""


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _locked(method: Callable[Concatenate[Residence, _P], _R]) -> Callable[Concatenate[Residence, _P], _R]:
    """Has one thread at a time look weights up or move them."""

    @functools.wraps(method)
    def within(self: Residence, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.holdings.lock:
            return method(self, *args, **kwargs)

    return cast("Callable[Concatenate[Residence, _P], _R]", within)


class Residence:
    """Knows where each weight of a component rests, and brings it where it is read.

    Args:
        module: the component.
        files: where weights lie that are on meta; without them every weight must have data.
        holdings: the weights of all components of a pipeline.
        rests: where parameters rest while nobody reads them: "cpu", "disk", or "" for where they are read.
        updated: what is merged into weights that are read from files.

    Raises UsageError when weights shall rest on disk that lie in no file.
    """

    def __init__(
        self,
        module: nn.Module,
        files: Files | None = None,
        *,
        holdings: Holdings | None = None,
        rests: str = "",
        updated: Updated | None = None,
    ) -> None:
        self._module = weakref.ref(module)
        self.rests = rests
        self.files = files
        self.shares: tuple[float, ...] = ()
        self.holdings = holdings or Holdings()
        self.holdings.add(module, files, updated)
        self._planned: dict[tuple[Held, tuple[int, int] | None], tuple[str, int]] = {}
        self._staged: set[Held] = set()
        self._coming: set[torch.device] = set()
        self._lent: set[Held] = set()
        self._users = 0
        self._is_due = False
        self._kept: set[Held] = set()
        self.moved: Callable[[], None] = lambda: None
        """Called when weights that were lent have left their devices."""
        self._names = {held.name for held in self.held()}
        self._origin = next((tensor.device for tensor in self._tensors() if not tensor.is_meta), _HOST)
        if rests == "disk":
            self._check_files()

    @property
    def module(self) -> nn.Module:
        """The component's module; raises ReferenceError when nobody has it any more."""
        module = self._module()
        if module is None:
            raise ReferenceError("the module of these weights is gone")
        return module

    @_locked
    def survey(self) -> None:
        """Looks where the module holds its weights; to be called when its structure may have changed."""
        self.holdings.survey()

    def held(self, module: nn.Module | None = None) -> list[Held]:
        """The weights of the component or of a part of it, each once; none when nobody has the module any more."""
        module = self._module() if module is None else module
        tensors = {} if module is None else {id(tensor): tensor for tensor in tensors_of_module(module).values()}
        return [self.holdings.of(tensor) for tensor in tensors.values()]

    @property
    def reads(self) -> bool:
        """Whether weights may have no data yet, and are read when they are needed."""
        return self.files is not None

    @property
    def nbytes(self) -> int:
        """Bytes of all weights of the component as they rest, each counted once."""
        return sum(held.nbytes for held in self.held())

    @_locked
    def bytes_on(self, apart_from: Iterable[Held] = ()) -> Counter[str]:
        """Bytes that were brought to each device, or are brought there for a reading, by the device's name.

        Weights ``apart_from`` which they are counted do not count.
        """
        placed: Counter[str] = Counter()
        left_out = set(apart_from)
        for held in self.held():
            if held in left_out:
                continue
            if held.home and not self._is_staged(held):
                placed[held.home.name] += held.nbytes
            for (_, _, device), part in held.parts.items():
                name = canonical_name(str(device))
                placed[name] += 0 if held.home and held.home.name == name else part.nbytes
        for (held, _), (name, nbytes) in self._planned.items():
            placed[name] += 0 if held in left_out else nbytes
        return placed

    @_locked
    def read_by(self, module: nn.Module, program: Program) -> list[Held]:
        """The weights of the component that a program reads."""
        tensors = tensors_by_name(module)
        read = (weight for node in program.weight_nodes() if node.users and (weight := weight_of(node)))
        names = (find_name(weight, tensors) for weight in read)
        return [self.holdings.of(tensors[name]) for name in names if name]

    @_locked
    def homes(self, module: nn.Module, program: Program) -> dict[str, Device]:
        """Which of a program's devices its weights have already; the program is of a part of the component."""
        tensors = tensors_by_name(module)
        homes = {}
        for weight in program.weights.values():
            name = find_name(weight, tensors)
            home = self.holdings.of(tensors[name]).home if name else None
            if home and home in program.devices:
                homes[weight.name] = home
        return homes

    @_locked
    def settle(self, module: nn.Module, program: Program) -> None:
        """Notes where a program's weights are read, and brings none there: for planning, and for what is staged."""
        tensors = tensors_by_name(module)
        for weight in program.weights.values():
            name = find_name(weight, tensors)
            home = program.home.get(weight.name)
            if name is None or home is None:
                continue
            held = self.holdings.of(tensors[name])
            if program.stages(weight, home):
                self._planned[held, weight.rows] = home.name, weight.nbytes
                self._staged.add(held)
            if not weight.rows and (held.home is None or held.home not in program.devices):
                held.home = home

    @_locked
    def assign(self, homes: Mapping[Held, Device]) -> None:
        """Settles on which devices weights are read, those that have no home yet, and brings none there."""
        for held, device in homes.items():
            held.home = held.home or device
            stages = self.rests == "disk" or (self.rests and not held.home.is_host)
            if stages and isinstance(held.tensor, nn.Parameter):
                self._planned[held, None] = held.home.name, held.nbytes
                self._staged.add(held)

    @_locked
    def set_types(self, module: nn.Module, program: Program) -> None:
        """Lets each weight of a fresh program that has no data rest in the type in which its file has it."""
        tensors = tensors_by_name(module)
        for node in program.weight_nodes():
            weight: Weight = node.meta["weight"]
            name = find_name(weight, tensors)
            held = self.holdings.of(tensors[name]) if name else None
            if held and held.tensor.is_meta and held.entry and rests_packed(weight, held.entry):
                node.meta["weight"] = program.weights[weight.name] = replace(weight, quant=held.entry.quant)

    @_locked
    def place(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """The weight on its device, where it is from now on; raises DoesNotFitError when there is no room."""
        held = self.holdings.of(tensor)
        held.home = held.home or device
        there = held.home.torch
        if held.tensor.device == there:
            return held.tensor
        return self.holdings.put(held, self._bring(held, there, functools.partial(held.whole, there)))

    @_locked
    def show(self, tensor: torch.Tensor, device: Device) -> None:
        """Reads a weight that has no data yet to a device or to host memory; one that has none there looks as if."""
        held = self.holdings.of(tensor)
        if self.files is None:
            return
        if self.rests == "disk" or (held.entry and held.entry.is_packed):
            self.holdings.take_out(held)
            self.holdings.show(held, device.torch)
        elif self.rests:
            self.rest(held, device.torch)
        else:
            self.place(tensor, device)

    @_locked
    def keep(self, tensors: Iterable[torch.Tensor], device: Device) -> None:
        """Reads small weights that have no data yet to their device, where they stay wherever the others rest."""
        for held in map(self.holdings.of, list(tensors)):
            if self.files is not None and held.nbytes <= _KEPT_BYTES:
                self._kept.add(held)
                self.place(held.tensor, device)

    @_locked
    def rehome(self, device: Device, home: Device) -> None:
        """Has the weights of one device be those of another, where they would lie if this were no planning alone."""
        for held in self.held():
            if held.home == device:
                held.home = home

    @_locked
    def lend(self, held: Held, device: Device) -> None:
        """Brings a weight to a device for modules that run as they are; one that rests elsewhere until `release`."""
        if not self.rests or not isinstance(held.tensor, nn.Parameter):
            self.place(held.tensor, device)
        elif held.tensor.device != device.torch:
            self.holdings.put(held, self._bring(held, device.torch, functools.partial(held.whole, device.torch)))
            self._lent.add(held)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keeps what is staged and lent where it is meanwhile; what others release leaves with the last user."""
        entered = False
        try:
            with self.holdings.lock:
                self._users += 1
                entered = True
            yield
        finally:
            with self.holdings.lock:
                self._users -= entered
                if not self._users and self._is_due:
                    self.release()

    @_locked
    def copy_on(self, held: Held, device: torch.device) -> torch.Tensor:
        """A second copy of a whole weight, for a module that runs as it is on another device than its home."""
        key = None, "", device
        if key not in held.parts:
            held.parts[key] = self._bring(held, device, functools.partial(held.whole, device))
        return held.parts[key]

    @_locked
    def part(self, held: Held, weight: Weight, device: torch.device) -> torch.Tensor:
        """What stays on a device beside the module's own tensor: rows, packed bytes, or a second copy; made once."""
        key = weight.rows, weight.quant, device
        if key not in held.parts:
            held.parts[key] = self._bring(held, device, functools.partial(held.read, weight, device))
        return held.parts[key]

    @_locked
    def stage(self, held: Held, weight: Weight, device: torch.device) -> torch.Tensor:
        """What a segment reads of a weight that rests elsewhere; it stays on the device until `release`."""
        key = weight.rows, weight.quant, device
        if key not in held.staged:
            fetch = functools.partial(self._from_rest, held, weight, device)
            held.staged[key] = self._bring(held, device, fetch)
            self._coming.add(device)
        return held.staged[key]

    @_locked
    def settle_staged(self, device: torch.device) -> None:
        """Blocks the host until what was staged on a device since the last time is there."""
        if device in self._coming:
            self._coming.discard(device)
            accelerator_of(device).synchronize()

    @_locked
    def rest(self, held: Held, device: torch.device) -> None:
        """Brings a weight to where it rests: host memory, from which copies to a device need not stage, or its file.

        A weight that is in no file, such as an adapter's that was loaded later, rests in host memory.
        """
        if held in self._kept:
            return
        if self.rests == "disk" and held.entry is not None:
            self.holdings.take_out(held)
            return
        data = accelerator_of(device).pin(held.whole(_HOST))
        if held.tensor.device != _HOST or data.data_ptr() != held.tensor.data_ptr():
            self.holdings.put(held, data)

    @_locked
    def release(self) -> None:
        """Lets go of everything that was staged or lent, and of the memory that views of files take.

        What calls are using now leaves when the last of them ends.
        """
        self._is_due = self._users > 0
        if self._is_due:
            return
        staged = [held for held in self.held() if held.staged]
        for held in staged:
            held.staged.clear()
        if self._lent:
            for held in self._lent:
                self.rest(held, held.tensor.device)
            self._lent = set()
            self.moved()
        if self.files is not None and self.rests == "disk":
            self.files.reader.release([held.entry for held in staged if held.entry])

    @_locked
    def complete(self) -> None:
        """Brings weights that have no data in the module to host memory."""
        self.survey()
        for held in self.held():
            if held.tensor.is_meta:
                self.holdings.put(held, held.whole(_HOST))

    @_locked
    def take_over(self) -> None:
        """Brings the data of all weights into the module's own tensors, which are what counts from now on.

        One that has no data, such as an adapter's that is being loaded, stays as it is. Raises UsageError where weights
        rest on disk in their files.
        """
        if self.rests == "disk":
            raise UsageError(
                f"the weights of {type(self.module).__name__} rest on disk, and what is in their files cannot be "
                "replaced: call undo() first"
            )
        self.survey()
        for held in self.held():
            if held.tensor.is_meta and held.has_data:
                self.holdings.put(held, held.whole(_HOST))
            held.parts.clear()
            held.staged.clear()
            held.files = None

    @_locked
    def data_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a copy of the module has in the place of a weight: it has data, and no simulated device."""
        held = self.holdings.known(tensor)
        if held is None or not (held.tensor.is_meta or _is_elsewhere(held)):
            return tensor if held is None else held.tensor
        data = held.whole(_HOST)
        return nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data

    @contextlib.contextmanager
    def on_file_terms(self) -> Iterator[None]:
        """Every weight has data meanwhile, and none is on a device that file writers do not know."""
        self.survey()
        back = [(held, held.tensor, held.shown) for held in self.held() if held.tensor.is_meta or _is_elsewhere(held)]
        for held, _, _ in back:
            self.holdings.put(held, held.whole(_HOST))
        try:
            yield
        finally:
            for held, tensor, shown in back:
                self.holdings.restore(held, tensor)
                if shown is not None:
                    self.holdings.show(held, shown.device)

    @contextlib.contextmanager
    def bared(self) -> Iterator[None]:
        """Modules hold meanwhile what stands for weights without data, and not what is shown in its place."""
        back = [(held, held.shown.device) for held in self.held() if held.shown is not None]
        for held, _ in back:
            self.holdings.restore(held, held.tensor)
        try:
            yield
        finally:
            for held, device in back:
                self.holdings.show(held, device)

    @_locked
    def undo(self) -> None:
        """Brings every weight back to where it was; one that had no data goes to host memory.

        Raises DoesNotFitError when there is no room; the rest is brought back when it is called again.
        """
        self.survey()
        for held in self.held():
            self.holdings.forget_parts(held)
            before = held.before if held.name in self._names else self._origin  # else made while it was placed
            target = _HOST if before is None or before.type == "meta" else before
            moves = before is not None and held.tensor.device not in (target, torch.device("meta"))
            if moves or (held.tensor.is_meta and held.entry):
                self.holdings.put(held, self._brought_back(held, target))
            held.home = held.before = None
        self._planned.clear()
        self._staged.clear()
        self._lent.clear()
        self._is_due = False

    @_locked
    def original(self, name: str) -> torch.Tensor | None:
        """A weight as its file has it, in host memory; None when it lies in no file."""
        held = next((held for held in self.held() if held.name == name), None)
        if held is None or self.files is None or held.entry is None:
            return None
        return self.files(held.name, held.tensor, _HOST)

    @_locked
    def forget_copies(self) -> None:
        """Lets go of all that lies beside the module's tensors, after these were changed; it is made again."""
        for held in self.held():
            self.holdings.forget_parts(held)

    def _bring(self, held: Held, device: torch.device, fetch: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What a fetch brings to a device.

        Raises DoesNotFitError, which names the weight, when there is no room, and WeightError when the weight is of a
        class of another library that cannot lie there.
        """
        try:
            return fetch()
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                self._refuse_foreign(held, device, error)
                raise
            raise DoesNotFitError(
                f"{held.name} of {type(self.module).__name__} needs {format_bytes(held.nbytes)} on "
                f"{device}: {error}: give this component more devices, or less to this one (tensor_split, max_vram)"
            ) from error

    def _refuse_foreign(self, held: Held, device: torch.device, error: Exception) -> None:
        if library := foreign_library(held.tensor):
            raise WeightError(
                f"{held.name} of {type(self.module).__name__} is a {type(held.tensor).__name__} of {library}, which "
                f"does not go to {device}: {error}: load the component without, and give the file of its quantized "
                "weights to dovetail (weights=…)"
            ) from error

    def check(self) -> None:
        """Raises WeightError when a file was written to, of which weights are views; cheap enough for every call."""
        if self.files is not None:
            self.files.reader.check()

    def _brought_back(self, held: Held, device: torch.device) -> torch.Tensor:
        try:
            return held.whole(device)
        except torch.OutOfMemoryError as error:
            raise DoesNotFitError(
                f"{held.name} of {type(self.module).__name__} needs {format_bytes(held.nbytes)} on {device}, where it "
                f"was before: {error}: free memory there, and call undo() again"
            ) from error

    def advise(self, held: Iterable[Held]) -> None:
        """Has the system read ahead what is staged next from files."""
        if self.files is not None and self.rests == "disk":
            self.files.reader.advise([one.entry for one in held if one.entry and not one.staged])

    def _from_rest(self, held: Held, weight: Weight, device: torch.device) -> torch.Tensor:
        if self.rests != "disk" and weight.quant:
            packed = self._packed_at_rest(held, weight, device)
            return moved(packed[slice(*weight.rows or (None,))], device)
        self.rest(held, device)
        return held.read(weight, device)

    def _packed_at_rest(self, held: Held, weight: Weight, device: torch.device) -> torch.Tensor:
        """All packed bytes of a weight in host memory, read once, from where copies to a device need not stage."""
        key = None, weight.quant, _HOST
        if key not in held.parts:
            whole = held.read(replace(weight, name=weight.whole, rows=None), _HOST)
            held.parts[key] = accelerator_of(device).pin(whole)
        return held.parts[key]

    def _is_staged(self, held: Held) -> bool:
        return held in self._staged

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from self.module.parameters()
        yield from self.module.buffers()

    def _check_files(self) -> None:
        homeless = [held.name for held in self.held() if isinstance(held.tensor, nn.Parameter) and held.entry is None]
        if homeless:
            raise UsageError(
                f"{len(homeless)} weights of {type(self.module).__name__} ({', '.join(homeless[:3])}"
                f"{', …' if len(homeless) > 3 else ''}) are in no file and cannot rest on disk: load them with "
                "load_pipeline, or let them rest in host memory (params_backend=cpu)"
            )


def tensors_by_name(module: nn.Module) -> dict[str, torch.Tensor]:
    """All parameters and buffers of a module, under every name that they have without adapters."""
    return {plain_name(name): tensor for name, tensor in tensors_of_module(module).items()}


def find_name(weight: Weight, tensors: Mapping[str, torch.Tensor]) -> str | None:
    """The name under which a weight is found."""
    return next((name for name in map(plain_name, weight.names) if name in tensors), None)


def _is_elsewhere(held: Held) -> bool:
    return held.home is not None and held.home.is_simulated and held.tensor.device != _HOST
