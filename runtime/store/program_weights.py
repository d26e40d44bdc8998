"""Gives one program its weights out of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import torch
from torch import nn

from ...compiler.checkpoints.index import WeightIndex
from ...compiler.checkpoints.origin_table import OriginTable
from ...compiler.devices.device import Device
from ...compiler.errors import WeightError
from ...compiler.ir.part import Part
from ...compiler.ir.program import Program
from ...compiler.ir.staging import offsets
from ...compiler.ir.weight import Weight
from ...compiler.spec.residency import Residency
from ...compiler.states.parts import pieces
from ..devices.accelerator import accelerator_of
from .adapter_weights import AdapterWeights
from .at_rest import memory_for, place_in
from .fetching import fetched_weight
from .kept import KeptLoad, KeptSlots, Place
from .landing import Landing
from .origin import HOST, FileOrigin, Origin
from .origins import located, origins_in, origins_of
from .pinning import tell_of, threads_beside
from .scheduled import coming, kept, readers, staying
from .seen import ModuleWeights
from .source import WeightSource
from .staging import Slot, SlotSizes, StagedLoad, Staging
from .store import Store
from .stored_weight import Numbers, StoredWeight

_MOST_LANDINGS = 1024

Find = Callable[[], Mapping[str, StoredWeight]]
"""Gives the weights that a program may read, by name."""


class ProgramWeights(WeightSource):
    """The weights of a program: resident ones on the device of each, staged ones from where they rest.

    Args:
        store: brings them.
        program: the program.
        find: gives the weights by their names in the module or file; it is asked when weights are looked for anew.
        module: the module that shows them, if that stays somebody else's, who may change it.
        staging: the slots through which weights come and go, which programs of one component share.
    """

    def __init__(
        self,
        store: Store,
        program: Program,
        find: Find,
        module: ModuleWeights | None = None,
        staging: Staging | None = None,
    ) -> None:
        self.store = store
        self._program = program
        self._find = find
        self._module = module
        self._staging = staging or Staging()
        self._slots = KeptSlots()
        self.adapters = AdapterWeights(store, program, self._staging)
        self._found: dict[str, StoredWeight] | None = None
        self._readers: dict[str, list[Device]] = {}
        self._staying: frozenset[tuple[str, torch.device]] = frozenset()
        self._kept: dict[str, set[tuple[Part | None, torch.device]]] = {}
        self._homes: dict[str, Device] = {}
        self._parts: dict[str, list[Weight]] = {}
        self._sent_from_others: list[torch.device] = []
        self._has_told = False
        self._landings: dict[int, Landing] = {}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, torch.Tensor], program: Program) -> ProgramWeights:
        """Those of a program whose weights are tensors by name, which stay where they are and as they are."""
        found = _borrowed(tensors, program)
        return cls(Store(), program, lambda: found)

    @classmethod
    def of_module(
        cls, module: nn.Module, program: Program, others: Mapping[str, torch.Tensor] | None = None
    ) -> ProgramWeights:
        """Those of a module, as it has them when they are loaded, apart from ``others`` that stay as they are."""
        shown = ModuleWeights(module)
        return cls(Store(), program, lambda: _borrowed({**_looked(shown, program), **(others or {})}, program), shown)

    @classmethod
    def of_files(
        cls,
        index: WeightIndex,
        program: Program,
        others: Mapping[str, torch.Tensor] | None = None,
        module: nn.Module | None = None,
    ) -> ProgramWeights:
        """Those of files; what no file has is one of the ``others``, which stay as they are, or a module's."""
        return cls._of(origins_of(index), program, others or {}, None if module is None else ModuleWeights(module))

    @classmethod
    def of_origins(
        cls,
        table: OriginTable,
        program: Program,
        files: Iterable[Path],
        others: Mapping[str, torch.Tensor] | None = None,
    ) -> ProgramWeights:
        """Those that a table of another process names, out of files here; what it lacks is one of the ``others``.

        Raises WeightError, which names the file, where none of the files is one in which the program's weights lie.
        """
        names = {name for weight in program.weights.values() for name in weight.names}
        return cls._of(origins_in(table.only(names), files), program, others or {})

    @classmethod
    def _of(
        cls,
        origins: Mapping[str, Origin],
        program: Program,
        others: Mapping[str, torch.Tensor],
        shown: ModuleWeights | None = None,
    ) -> ProgramWeights:
        store = Store()
        known: dict[str, StoredWeight] = {}

        def find() -> Mapping[str, StoredWeight]:
            for weight in program.weights.values():
                name = next((name for name in weight.names if name in origins), None)
                if name is not None and weight.whole not in known:
                    known[weight.whole] = store.adopt(_in_file(weight, origins[name], program))
            rest = {**(_looked(shown, program) if shown else {}), **others}
            return {**_borrowed(rest, program), **known}

        return cls(store, program, find, shown)

    def origins(self) -> OriginTable:
        """Where its weights come from that lie in files as they are now, for other processes.

        What a module holds wins: where weights have data, that is compared with the file. All others are to be sent
        (`to_send`). Raises WeightError where a file has changed.
        """
        with self.store.lock:
            self._look()
            found = located(self._found or {})
        return OriginTable.of(found)

    def is_changed(self) -> bool:
        """Whether somebody changed weights of the module that shows them; they are to be loaded again then."""
        return self._module is not None and self._module.is_changed()

    def settle(self) -> None:
        """Moves parameters that stay somebody else's, and come for calls, to where copies from them need not stage.

        They stay the objects that they are. Those whose memory somebody else sees stay where they lie, and all do while
        another thread may work on them, which is said once. To be called before weights are brought, and their memory
        is noted anew.
        """
        if self._module is None:
            return
        beside = threads_beside()
        with self.store.lock:
            found = self._found or {}
            left: list[torch.Tensor] = []
            has_moved = False
            for there, names in coming(self._program).items():
                tensors = [found[name].tensor for name in names if name in found and found[name].borrowed]
                stays, moved = self._module.pin(tensors, accelerator_of(there))
                left, has_moved = [*left, *stays], has_moved or moved
            if has_moved:
                self._look()
        self._has_told = self._has_told or tell_of(left, self._program.name, beside)

    def missing(self, program: Program) -> list[str]:
        """The names of weights that are not here, or have no data; looks for them afresh."""
        self._look()
        assert self._found is not None
        there = {name for name, one in self._found.items() if one.has_data}
        return [
            name for name, weight in program.weights.items() if name not in there and not self.adapters.known(weight)
        ]

    def emptied(self, missing: Sequence[str]) -> list[str]:
        """Those of missing weights that are None in the module that shows them."""
        if self._module is None:
            return []
        nones, weights = self._module.emptied(), self._program.weights
        return [name for name in missing if not nones.isdisjoint(weights[name].names)]

    def __call__(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """The weight on a device: its own, a part of it, or a copy where another device reads it too.

        It requires a gradient as the module's own does, for kernels are picked by that even in inference. Raises
        WeightError when it is not what was traced, DoesNotFitError when there is no room.
        """
        with self.store.lock, torch.inference_mode(False), torch.no_grad():
            return self._as_read(weight, self._on(self._stored(weight), weight, device).detach())

    def whole(self, weight: Weight, device: torch.device) -> torch.Tensor:
        """All of a weight on a device, for somebody who keeps it: where the weight is, it stays, and no copy is kept.

        Raises WeightError and DoesNotFitError as `__call__` does.
        """
        with self.store.lock, torch.inference_mode(False), torch.no_grad():
            one = self._stored(weight)
            one.check(weight)
            data = one.tensor if weight.is_number else self.store.fetch(one, weight, device).detach()
            if one.borrowed:  # and may be written when this returns
                accelerator_of(device).finish()
            return data if data.is_inference() else data.requires_grad_(self._requires_grad(weight))

    @contextmanager
    def call(self, sizes: SlotSizes) -> Iterator[None]:
        """A call, for whose loads there are slots of so many bytes on each device meanwhile.

        What another program of the component has kept for the phase leaves, unless this one keeps it too. When it
        fails, nothing is on its way any more.
        """
        if self._staging.enter(self):
            self._let_others_go()
        try:
            with self._staging.call(sizes) if sizes else nullcontext():
                yield
        except BaseException:
            self._slots.settle()
            with suppress(RuntimeError):  # of a device that is lost, which has been told
                self._wait_for_copies()
            raise
        self._wait_for_copies()

    def _wait_for_copies(self) -> None:
        """Blocks the host until what is somebody else's was read, who may write it when a call returns."""
        for device in self._sent_from_others:
            there = accelerator_of(device)
            event = there.record(there.side_stream("weights"))
            if event is not None:
                event.synchronize()

    def _let_others_go(self) -> None:
        """Keeps of the weights that this program reads only what it keeps itself."""
        with self.store.lock:
            for name, one in (self._found or {}).items():
                if one.staged:
                    one.leave_slots(but=self._kept.get(name, ()))

    def stage(self, weights: Sequence[Weight], device: Device, slot: int, what: str = "") -> StagedLoad:
        """Starts to bring weights into a slot of a device; each has the strides that it has at rest.

        On the host, what a file has as it is needed is a view of the file, and the slot's memory is not touched.
        """
        with self.store.lock:
            found = [(self._stored(weight), weight) for weight in weights]
            for one, weight in found:
                self._check_whole(one, weight)

        landing = self._landing(weights)

        def fill(to: Slot) -> list[torch.Tensor]:
            if to.memory.device == HOST:
                places = [partial(place_in, to.memory, start) for start in offsets(weights)[0]]
                landed = [self._landed(*one, HOST, place) for one, place in zip(found, places, strict=True)]
            else:
                landed = landing.fill(found, to.memory, to.places.setdefault(landing, {}), self._into)
            return list(map(self._as_read, weights, landed))

        return self._staging.start(device, slot, fill, partial(self.release, weights), what)

    def keep(self, weights: Sequence[Weight], device: Device, slot: int, what: str = "") -> KeptLoad:
        """Weights in a slot of a device that stays filled until a phase ends; where it is empty, starts to fill it.

        What a slot of another program has of them is taken as it is. Raises DoesNotFitError when there is no room.
        """
        place = device, slot
        return self._slots.start(place, partial(self._begin, weights, place, what))

    def is_filled(self, device: Device, slot: int) -> bool:
        """Whether there is something in a slot that is filled once, or on its way there."""
        return self._slots.is_filled((device, slot))

    def _begin(self, weights: Sequence[Weight], place: Place, what: str) -> KeptLoad:
        """Starts to fill a slot; its memory is there when this returns, as the plan counts it from now on."""
        there = accelerator_of(place[0].torch)
        with self.store.lock, there.use(there.side_stream("weights")), torch.inference_mode(False), torch.no_grad():
            found = [(self._stored(weight), weight) for weight in weights]
            for one, weight in found:
                self._check_whole(one, weight)
            load = KeptLoad(there, what, self._slots, place)
            sources = [self._source_of(load, one, weight, there.device) for one, weight in found]
            for one, _ in found:
                one.slots.add(load)
            # in the order of the lane, so that what another load has coming is there when this one is filled
            load.begin(partial(self._brought, load, found, sources, there.device))
        return load

    def _source_of(
        self, load: KeptLoad, one: StoredWeight, weight: Weight, device: torch.device
    ) -> Callable[[], torch.Tensor]:
        """Gives a weight on a device, which is brought by then: a slot has it already, or there is memory for it."""
        if weight.is_number:
            one.check(weight)
            return one.tensor.detach
        key = weight.which, weight.quant, device
        if (known := one.staged.get(key)) is not None:
            return known.detach
        if (coming := one.coming(key)) is not None:
            other, load.coming[one, key] = coming
            return partial(self._taken, other, one, weight, load.coming[one, key])

        make = partial(fetched_weight, one, weight, device, partial(memory_for, one, weight, device))
        if device == HOST or (one.borrowed and one.is_on(device)):  # most are views, and take no memory
            return partial(self._landed, one, weight, device, lambda *_: make())
        made = load.coming[one, key] = make()
        return partial(self._landed, one, weight, device, lambda *_: made)

    def _taken(self, other: KeptLoad, one: StoredWeight, weight: Weight, memory: torch.Tensor) -> torch.Tensor:
        """A weight in memory that another load has filled before on the lane; where that failed, it is filled here."""
        if not other.has_arrived:
            self.store.land(one, weight, memory)
        return memory.detach()

    def _brought(
        self,
        load: KeptLoad,
        found: Sequence[tuple[StoredWeight, Weight]],
        sources: list[Callable[[], torch.Tensor]],
        device: torch.device,
    ) -> list[torch.Tensor]:
        """Fills a slot; other programs find then what is in it, unless somebody had it emptied meanwhile."""
        try:
            tensors = [source() for source in sources]
        finally:
            sources.clear()  # which an error's traceback keeps, and they have the memory
        with self.store.lock:
            load.coming.clear()
            for (one, weight), tensor in zip(found, tensors, strict=True) if not load.is_empty else ():
                if not weight.is_number:
                    one.staged[weight.which, weight.quant, device] = tensor
        return list(map(self._as_read, (weight for _, weight in found), tensors))

    def _landing(self, weights: Sequence[Weight]) -> Landing:
        """How the weights of a load land, the same for the same list."""
        known = self._landings.get(id(weights))
        if known is None or known.weights is not weights:
            if len(self._landings) >= _MOST_LANDINGS:  # of steps that were made anew meanwhile
                self._landings.clear()
            known = self._landings[id(weights)] = Landing(self.store, weights)
        return known

    def _into(self, one: StoredWeight, weight: Weight, place: torch.Tensor) -> torch.Tensor:
        return self._landed(one, weight, place.device, lambda *_: place)

    def _landed(
        self,
        one: StoredWeight,
        weight: Weight,
        device: torch.device,
        made: Callable[[StoredWeight, Weight], torch.Tensor],
    ) -> torch.Tensor:
        """A weight in memory that is made for it, or a view of where it lies; then none is made."""
        view = self.store.bring_view(one, weight, device)
        if view is not None:
            return view
        place = made(one, weight)
        self.store.land(one, weight, place)
        return place

    def _as_read(self, weight: Weight, data: torch.Tensor) -> torch.Tensor:
        """A tensor of our own that operations read as a weight; it requires a gradient as the module's own does."""
        if not data.is_inference() and data.requires_grad is not (wants := self._requires_grad(weight)):
            data.requires_grad_(wants)
        return data

    def advise(self, weights: Iterable[Weight]) -> None:
        """Has the system read ahead from files what is asked for next."""
        for file, weight in self._files(weights):
            file.reader.advise([file.fitting(weight)])

    def release(self, weights: Iterable[Weight]) -> None:
        """Lets go of the memory that views of files take, unless something else has them too."""
        for file, weight in self._files(weights):
            file.reader.release([file.fitting(weight)])

    def check(self) -> None:
        """Raises WeightError when a file was written to, of which weights are views."""
        self.store.check()

    def forget(self) -> None:
        """Lets go of what was brought and is in no module; it is read again."""
        self._staging.drop()
        self._slots.clear()
        self._landings.clear()
        for one in (self._found or {}).values():
            self.store.drop(one)

    def _look(self) -> None:
        """Looks for the weights; other threads see what was found before or all that is found now."""
        known = {**_borrowed(self._program.constants, self._program), **self._find()}
        found: dict[str, StoredWeight] = {}
        parts: dict[str, list[Weight]] = defaultdict(list)
        for weight in self._program.weights.values():
            if name := next((name for name in map(self.store.name_of, weight.names) if name in known), None):
                found[weight.whole] = known[name]
        homes = dict(self._program.home)
        for weight, home in pieces(self._program).values():
            homes[weight.name] = home
            if weight.which:
                parts[weight.whole].append(weight)
        self._readers, self._staying = readers(self._program), staying(self._program)
        self._kept = kept(self._program)
        self._parts, self._homes, self._found = parts, homes, found
        self._sent_from_others = [
            device
            for device, names in coming(self._program).items()
            if any(name in found and found[name].borrowed and found[name].is_on(HOST) for name in names)
        ]

    def _stored(self, weight: Weight) -> StoredWeight:
        if (adapter := self.adapters.known(weight)) is not None:
            return adapter
        if self._found is None:
            self._look()
        assert self._found is not None
        if weight.whole not in self._found:
            raise WeightError(
                f"weight {weight.name} is not among the weights given: give those of the whole module, or name the "
                "files that have them (weights=…)"
            )
        return self._found[weight.whole]

    def _on(self, one: StoredWeight, weight: Weight, device: torch.device) -> torch.Tensor:
        """What this program reads of a weight on a device, brought there unless it is there."""
        program, store = self._program, self.store
        self._check_whole(one, weight)
        if weight.kind == "adapter":
            return self.adapters.on(one, weight, device)
        if one.borrowed:
            one.check(weight)
            return store.fetch(one, weight, device)
        home = self._home(weight)
        if program.stages(weight, next((d for d in program.devices if d.is_of_here and d.torch == device), home)):
            if (weight.name, device) in self._staying:
                return store.stay(one, weight, device)
            return store.stage(one, weight, device)
        if one.residency is Residency.HOST and not weight.quant:
            store.rest(one, device)
            one.check(weight)
            return weight.of(one.tensor)
        if weight.which:
            self._slice(one, weight)
        if weight.which or weight.quant:
            one.home = one.home if weight.which else one.home or home
            return store.part(one, weight, device)
        one.check(weight)
        placed = store.place(one, home)
        return placed if placed.device == device else store.part(one, weight, device)

    def _check_whole(self, one: StoredWeight, weight: Weight) -> None:
        """Raises WeightError where a part is read of what is not the weight, though it has such a part too."""
        if weight.which:
            one.check(self._program.weights.get(weight.whole, weight))

    def _slice(self, one: StoredWeight, weight: Weight) -> None:
        """Cuts all parts of a weight at once; its data then lies nowhere else, unless a program reads it whole."""
        for other in self._parts[weight.whole]:
            self.store.part(one, other, self._home(other).torch)
        if one.home is None:
            self.store.take_out(one, one.origin)

    def _home(self, weight: Weight) -> Device:
        """The device that the weight was given, or the first that reads it when that one does not."""
        home = self._homes[weight.name]
        readers = self._readers.get(weight.name, [home])
        return home if home in readers else readers[0]

    def _files(self, weights: Iterable[Weight]) -> Iterator[tuple[FileOrigin, Weight]]:
        """The files from which weights are read, that are nowhere else."""
        for weight in weights:
            one = self._stored(weight)
            if not one.is_here and one.file is not None and not one.is_held(weight, HOST):
                yield one.file, weight

    def _requires_grad(self, weight: Weight) -> bool:
        """Whether the module's own tensor requires a gradient now; as when it was traced, where it is another's."""
        one = None if weight.kind != "parameter" or weight.quant else self._stored(weight)
        return weight.requires_grad if one is None or one.borrowed else one.tensor.requires_grad


def _borrowed(tensors: Mapping[str, torch.Tensor], program: Program) -> dict[str, StoredWeight]:
    """Weights whose tensors are somebody else's, and stay where they are and as they are."""
    return {name: StoredWeight(name, one, owner=program.name, borrowed=True) for name, one in tensors.items()}


def _looked(shown: ModuleWeights, program: Program) -> dict[str, torch.Tensor]:
    """What a module holds now; raises WeightError where a weight of the program was one and is several."""
    tensors = shown.look()
    for weight in program.weights.values():
        held = {id(tensors[name]): name for name in weight.names if name in tensors}
        if len(held) > 1:
            raise WeightError(
                f"{' and '.join(held.values())} were one weight when {program.name} was compiled, and are not now: "
                "compile it again"
            )
    return tensors


def _in_file(weight: Weight, origin: Origin, program: Program) -> StoredWeight:
    """A weight that lies in a file alone, of the shape that it has there."""
    shape = weight.shape if origin.file is None else origin.file.entry.shape
    tensor = torch.empty(shape, dtype=weight.dtype, device="meta")
    if weight.kind == "parameter":
        tensor = nn.Parameter(tensor, weight.requires_grad)
    residency = program.residency.get(weight.name, Residency.DEVICE)
    return StoredWeight(weight.whole, tensor, Numbers(origin=origin), program.name, residency)
