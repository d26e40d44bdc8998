"""Plans that are searched for published pipelines beside lines that a person types for the same rig, by one prediction.

A cell is a pipeline on a rig. Of each cell the search is made twice, for components whose weights lie in files and for
components that have none (a folder of configurations), which must give the same. Five kinds of lines are typed by
hand; of some there are two spellings, the quicker of which counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.units import GIB
from dovetail.components.weights.module_view import ModuleView
from dovetail.fitting.chains import chain_of_trace
from dovetail.passes.fit.chain import Chain
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.plan import settings_of
from dovetail.passes.fit.search import SLACK, search
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.planning.turns import turns_of

from .zoo.full_size import trace_entry
from .zoo.full_size_pipelines import PARTS, PIPELINES

PHASES = {"te": "conditioning", "diffusion": "sampling", "vae": "decoding"}
MODELS = ("FLUX.1-dev", "FLUX.2-dev", "SDXL", "SD3.5-large", "Qwen-Image", "Wan 2.2 A14B", "LTX-2")
RIGS: Mapping[str, tuple[tuple[int, ...], int]] = {
    "4 GiB, 16 of RAM": ((4,), 16),
    "6 GiB, 64 of RAM": ((6,), 64),
    "8 GiB, 16 of RAM": ((8,), 16),
    "8 GiB, 32 of RAM": ((8,), 32),
    "12 GiB, 32 of RAM": ((12,), 32),
    "16 + 10 GiB, 64 of RAM": ((16, 10), 64),
    "2 x 12 GiB, 32 of RAM": ((12, 12), 32),
    "24 GiB, 64 of RAM": ((24,), 64),
    "4 x 11 GiB, 64 of RAM": ((11,) * 4, 64),
    "2 x 24 GiB, 128 of RAM": ((24, 24), 128),
    "8 x 16 GiB, 128 of RAM": ((16,) * 8, 128),
    "80 GiB, 128 of RAM": ((80,), 128),
}


def rig_of(cards: Sequence[int], host: int) -> Rig:
    """Cards of some GiB, and the host."""
    return Rig.of(**{f"cuda{index}": size * GIB for index, size in enumerate(cards)}, cpu=host * GIB)


def on(rig: Rig) -> tuple[Machine, Budgets]:
    """The devices of a rig, and what may be used of them beside what is reserved."""
    machine = Machine(rig.devices, speeds_of(rig), rig.host)
    usable = {device: memory.within(memory.free).free for device, memory in rig.memory.items()}
    return machine, Budgets(usable, rig.host)


def traced(name: str) -> tuple[Chain, int]:
    """The chain of a part at full size, and the bytes of all its weights; traces it."""
    program, _ = trace_entry(PARTS[name])
    module, _ = PARTS[name].make()
    nbytes = sum({id(weight): weight.nbytes for weight in module.parameters()}.values())
    return chain_of_trace(program), nbytes


def without_files(pipeline: str, loads: Sequence[Load]) -> list[Load]:
    """The components of a pipeline as the planner has them where they are made of their configurations alone."""
    parts = {one.name: one.part for one in PIPELINES[pipeline]}
    return [replace(load, in_files=_may_rest_on_disk(parts[load.name])) for load in loads]


@functools.cache
def _may_rest_on_disk(part: str) -> bool:
    module, _ = PARTS[part].make()
    return ModuleView(module).is_in_files


def loads_of(pipeline: str, read: Callable[[str], tuple[Chain, int]]) -> list[Load]:
    """The components of a pipeline; ``read`` gives the chain of a part, and the bytes of all its weights."""
    found = []
    for one in PIPELINES[pipeline]:
        chain, nbytes = read(one.part)
        tiles = (read(one.tile[0])[0], float(one.tile[1])) if one.tile else None
        found.append(Load(one.name, one.role, PHASES[one.role], chain, one.times, tiles, nbytes))
    turns = turns_of([load.name for load in found], {load.name: load.phase for load in found})
    return [replace(load, phase=turns.get(load.name, load.phase)) for load in found]


def lines(loads: Sequence[Load], machine: Machine) -> Iterator[tuple[str, list[Load]]]:
    """What a person types for a rig: the kind of a line, and the components with what it asks of each."""
    cards = [device for device in machine.devices if device != machine.host]
    first, second = cards[0], cards[1] if len(cards) > 1 else machine.host
    disk, host, stays = Residency.DISK, Residency.HOST, Residency.DEVICE

    def asked(residency: Residency, devices: Sequence[Device] = (first,), te: Asked | None = None) -> list[Load]:
        told = Asked((first,), residency)
        of_role = {"diffusion": Asked(tuple(devices), residency), "te": te or told}
        return [replace(load, asked=of_role.get(load.role, told)) for load in loads]

    yield "one card, weights in RAM", asked(host)
    yield "one card, weights on disk", asked(disk)
    yield "encoders on disk, denoiser in RAM", asked(host, te=Asked((first,), disk))
    for rests in (stays, host):
        yield "encoders on the host or the second card", asked(rests, te=Asked((second,), stays))
    yield "layers over all cards, weights in RAM", asked(host, cards)


@dataclass(frozen=True)
class Cell:
    """A pipeline on a rig: the options and seconds that are searched, with files and without, and those by hand.

    What was refused has none. ``by_hand`` has the seconds of each kind of line that fits.
    """

    settings: Mapping[str, str] | None
    without_files: Mapping[str, str] | None
    seconds: float | None
    by_hand: Mapping[str, float]

    @property
    def misses(self) -> list[str]:
        """In words what should not be: a line that is quicker, by more than a simpler plan may cost; another plan."""
        slower = {
            kind: seconds
            for kind, seconds in self.by_hand.items()
            if self.seconds is None or self.seconds > seconds * SLACK * (1 + 1e-6)
        }
        found = [f"{kind} takes {seconds:.1f} s, what is searched {self.seconds}" for kind, seconds in slower.items()]
        return found + (["without weight files it is another plan"] if self.settings != self.without_files else [])


def cell(loads: Sequence[Load], bare: Sequence[Load], rig: Rig) -> Cell:
    """Searches a pipeline on a rig, with and without (``bare``) files of weights, and by hand."""
    machine, budgets = on(rig)
    searched = search(loads, machine, budgets)
    without = searched if list(bare) == list(loads) else search(bare, machine, budgets)
    by_hand: dict[str, float] = {}
    for kind, told in lines(loads, machine):
        found = search(told, machine, budgets)
        if found is not None:
            by_hand[kind] = min(found.seconds, by_hand.get(kind, found.seconds))
    settings, others = (settings_of(one, loads) if one else None for one in (searched, without))
    return Cell(settings, others, searched.seconds if searched else None, by_hand)
