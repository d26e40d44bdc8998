"""What to do where nothing fits: the same search with one thing that a person asked for left out, or made smaller.

Each way out is named only after the search with it has found a plan. They are named in the order in which they cost a
person least: what places things otherwise (other devices, weights that rest elsewhere, decoding in tiles), the quickest
first; more of the memory that is there; weights in a packed type, which are not the same weights; a smaller size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...compiler.checkpoints.quantized_types import block_of
from ...compiler.spec.devices import Device
from ...compiler.spec.units import format_bytes
from .chain import Part
from .options import SLOTS, Machine, residencies
from .plan import settings_of
from .search import Solution, search
from .workload import Asked, Budgets, Load

TYPES = ("Q8_0", "Q4_K")
"""The packed types that are tried, in bits a number from most to least."""

_PLACEMENTS = (
    "other devices", "weights that rest elsewhere", "decoding in tiles",
    "devices and places of weights left to dovetail",
)  # fmt: skip
_SMALL = 2**20  # bytes of a block that is not worth packing
_DENSE = 2  # bytes a number before it is packed


@dataclass(frozen=True)
class Lack:
    """The component that does not fit, the least bytes that it needs on a device, and what that offers.

    ``weights`` and ``values`` are parts of the ``least``. Without a component, all fit alone and not together.
    """

    component: str
    device: Device
    least: int
    weights: int
    values: int
    offered: int


@dataclass(frozen=True)
class WayOut:
    """Something that makes it fit: what is changed, the options that say so, and the plan found with it."""

    what: str
    settings: Mapping[str, str]
    solution: Solution
    loads: tuple[Load, ...]
    budgets: Budgets


Smaller = Callable[[], "tuple[str, Sequence[Load]] | None"]
"""Gives a smaller size in words, and the components at that size; None if there is none."""


def ways_out(
    loads: Sequence[Load],
    machine: Machine,
    budgets: Budgets,
    free: Mapping[Device, int] | None = None,
    smaller: Smaller | None = None,
    most: int = 3,
) -> list[WayOut]:
    """Up to so many ways out, the cheapest first; ``free`` are the bytes of devices without what was typed of them."""
    found: list[WayOut] = []
    kinds: set[str] = set()
    for kind, what, changed, given in _relaxed(loads, budgets, free):
        solution = None if kind in kinds else search(changed, machine, given)
        if solution is not None:
            found.append(_way_out(what, solution, changed, given))
            kinds.add(kind)
            if kind not in _PLACEMENTS and len(found) >= most:
                break
    placed = [out for out in found if out.what in _PLACEMENTS]
    others = [out for out in found if out.what not in _PLACEMENTS]
    found = [*sorted(placed, key=lambda out: out.solution.seconds), *others][:most]
    if not found and smaller is not None:
        size = smaller()
        solution = size and search(size[1], machine, budgets)
        if size and solution:
            found.append(_way_out(size[0], solution, size[1], budgets))
    return found


def _way_out(what: str, solution: Solution, loads: Sequence[Load], budgets: Budgets) -> WayOut:
    typed = {"--max-vram": budgets.typed} if budgets.typed else {}
    return WayOut(what, {**settings_of(solution, loads), **typed}, solution, tuple(loads), budgets)


def _relaxed(
    loads: Sequence[Load], budgets: Budgets, free: Mapping[Device, int] | None
) -> Iterator[tuple[str, str, list[Load], Budgets]]:
    """One thing left out or made smaller at a time, with its kind: of each kind one way out is enough."""
    changes: list[Callable[[Asked], Asked]] = [
        lambda asked: replace(asked, devices=(), shares=(), rows=False),
        lambda asked: replace(asked, residency=None),
        lambda asked: replace(asked, tiled=None),
        lambda asked: Asked(),
    ]
    for what, change in zip(_PLACEMENTS, changes, strict=True):
        for some in _groups(loads):
            changed = [_with(load, change(load.asked)) if load.name in some else load for load in loads]
            if [load.asked for load in changed] != [load.asked for load in loads]:
                yield what, what, changed, budgets
    whole = (
        replace(budgets, devices=dict(free), typed="", why={}) if free and dict(free) != dict(budgets.devices) else None
    )
    if whole:
        yield "budget", "a larger budget", list(loads), whole
    for quant in TYPES:
        for some in _groups(loads):
            yield "types", f"weights of {' and '.join(sorted(some))} in {quant}", _packed(loads, some, quant), budgets


def _groups(loads: Sequence[Load]) -> list[set[str]]:
    """Each component alone, the largest first, then all of them."""
    names = [load.name for load in sorted(loads, key=lambda load: -load.nbytes)]
    large = [load.name for load in loads if 10 * load.nbytes >= max(one.nbytes for one in loads)]
    groups = [*({name} for name in names if name in large), set(large), set(names)]
    return [group for index, group in enumerate(groups) if group not in groups[:index]]


def _with(load: Load, asked: Asked) -> Load:
    return replace(load, asked=asked)


def _packed(loads: Sequence[Load], some: set[str], quant: str) -> list[Load]:
    """The components with the weights of their blocks in a packed type."""
    elements, nbytes = block_of(quant)
    factor = nbytes / (elements * _DENSE)

    def smaller(part: Part) -> Part:
        scale = factor if part.nbytes > _SMALL else 1.0
        return replace(part, nbytes=int(part.nbytes * scale), largest=int(part.largest * scale))

    def packed(load: Load) -> Load:
        chain = replace(load.chain, parts=tuple(map(smaller, load.chain.parts)))
        return replace(load, chain=chain, nbytes=load.nbytes - load.chain.nbytes + chain.nbytes)

    return [packed(load) if load.name in some and load.role != "vae" else load for load in loads]


def lacking(loads: Sequence[Load], machine: Machine, budgets: Budgets) -> Lack:
    """What takes the space: the component that does not fit alone, by most; or the largest where all fit alone."""
    alone = [load for load in loads if search([load], machine, budgets) is None]
    lacks = [least(load, machine, budgets) for load in alone or loads]
    worst = max(lacks, key=lambda lack: lack.least - lack.offered)
    return worst if alone else replace(worst, component="")


def least(load: Load, machine: Machine, budgets: Budgets) -> Lack:
    """The least that a component needs on its main device, in the way that needs least, and what that offers."""
    devices = load.asked.devices or max([(one,) for one in machine.devices], key=lambda one: budgets.of(one[0]))
    found = []
    for residency in residencies(load, devices, machine.host):
        for tiled in load.ways():
            chain, _ = load.way(tiled)
            streams = residency.stages_on(devices[0])
            held = (
                SLOTS * max((part.largest for part in chain.parts), default=0)
                if streams
                else sum(part.nbytes for part in chain.parts)
            )
            others = sum(budgets.of(device) for device in devices[1:]) if not streams else 0
            found.append((chain.rest.nbytes + max(0, held - others), chain.live))
    weights, values = min(found, key=sum)
    return Lack(load.name, devices[0], weights + values, weights, values, budgets.of(devices[0]))


def refusal(
    lack: Lack, loads: Sequence[Load], budgets: Budgets, total: Mapping[Device, int], outs: Sequence[WayOut]
) -> str:
    """The sentence of a refusal: what takes the space, what there is and why, and what was found to work."""
    on = f"on {lack.device}, which has {format_bytes(lack.offered)}"
    why = budgets.why.get(lack.device, "")
    of = total.get(lack.device, lack.offered)
    on += f" of {format_bytes(of)}" if of != lack.offered else ""
    on += f" ({why})" if why else ""
    if lack.component:
        need = (
            f"{lack.component} needs at least {format_bytes(lack.least)} {on}: {format_bytes(lack.weights)} of weights"
        )
        need += f" and {format_bytes(lack.values)} of values"
    else:
        resting = sum(load.nbytes for load in loads)
        need = f"the components fit one by one, but not together, with {format_bytes(resting)} of weights in all, {on}"
    if not outs:
        return f"{need}; nothing that dovetail can do helps here: it takes a larger device, or a smaller model"
    found = "; ".join(f"{out.what} ({_typed(out)}: {out.solution.seconds:.0f} s)" for out in outs)
    return f"{need}; what fits: {found}"


def _typed(out: WayOut) -> str:
    return " ".join(f'{option} "{value}"' for option, value in out.settings.items()) or "as it is otherwise"
