"""What to do where nothing fits: the same search with one thing that a person asked for left out, or made smaller.

Each way out is named only after the search with it has found a plan, and that plan has been tried where the caller can
lower it. They are named in the order in which they cost a person least: what places things otherwise (other devices,
weights that rest elsewhere, decoding in tiles), the quickest first; wide parts in chunks, which may change last bits;
more of the memory that is there. Weights in a packed type, which are not the same weights, are named where nothing else
helps or they are quicker, and a smaller size where nothing else helps. What takes more than five times as long as the
quickest is not named. The first three are named, and a larger budget where that comes after these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import ceil, inf

from ...compiler.checkpoints.quantized_types import block_of
from ...compiler.devices.device import Device
from ...compiler.durations import seconds_text
from ...compiler.spec.residency import ALIKE
from ...compiler.units import GIB, MIB, exact_bytes
from .chain import Part
from .machine import Machine
from .plan import settings_of
from .search import search
from .solution import Solution, peaks
from .workload import TRIES, Asked, Budgets, Load, Over, foreseeing, taken_off

TYPES = ("Q8_0", "Q4_K")
"""The packed types that are tried, in bits a number from most to least."""

_PLACEMENTS = (
    "other devices", "weights kept elsewhere", "decoding in tiles",
    "other devices, and weights kept elsewhere",
)  # fmt: skip
CHUNKS = "wide parts in chunks"
LARGER = "a larger budget"
WORST = 5
"""How many times as long as the quickest way out another one may take that is named."""
_HOPELESS = 2 * WORST  # times the seconds of the quickest search, none is lowered to find out what it takes
_QUICKER = 0.9  # times the seconds of other ways out, packed weights are worth naming: they are not the same
_MUCH = 1.25  # times the budget in tiles, one that does without them is worth naming
_MORE = 1.02  # times what a plan is searched to take, a budget is tried that is as large as it
_SMALL = 2**20  # bytes of a block that is not worth packing
_DENSE = 2  # bytes a number before it is packed


@dataclass(frozen=True)
class WayOut:
    """Something that makes it fit: what is changed, the options that say so, and the plan found with it.

    ``packed`` are the components whose weights are packed while they are loaded, in the type ``quant``, and
    ``by_layers`` those that were to be split by rows, or under another mode that is named, and are not.
    """

    what: str
    settings: Mapping[str, str]
    solution: Solution
    loads: tuple[Load, ...]
    budgets: Budgets
    quant: str = ""
    packed: tuple[str, ...] = ()
    lowered: float | None = None
    by_layers: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The seconds of a picture: of the lowered schedules where they are known, else as the search predicts them."""
        return self.solution.seconds if self.lowered is None else self.lowered


@dataclass(frozen=True)
class Outcome:
    """What comes of lowering something: by how much devices are exceeded, or the seconds of a picture if none is.

    Without seconds it was not lowered, and is taken to fit.
    """

    over: Over = field(default_factory=dict)
    seconds: float | None = None


Trial = Callable[[WayOut], Outcome | None]
"""Tries a way out; None if it cannot be."""

Smaller = Callable[[], Iterator[tuple[Mapping[str, str], Sequence[Load], Trial]]]
"""Gives smaller sizes, the largest first: the options that ask for it, the components at that size, and its trial."""

InTiles = Callable[[], tuple[Sequence[Load], Trial] | None]
"""Gives the components of which some decode in tiles, and their trial; None where none can."""


def _fits(_: WayOut) -> Outcome:
    return Outcome()


def ways_out(
    loads: Sequence[Load],
    machine: Machine,
    budgets: Budgets,
    free: Mapping[Device, int] | None = None,
    smaller: Smaller | None = None,
    most: int = 3,
    trial: Trial = _fits,
    chunked: Callable[[], Iterator[Sequence[Load]]] | None = None,
    in_tiles: InTiles | None = None,
) -> list[WayOut]:
    """Up to so many ways out, the cheapest first; ``free`` are the bytes of devices without what was typed of them.

    ``chunked`` gives the components of which less is alive in chunks, in more and more of them, and ``in_tiles`` what
    decodes in tiles, which it does where a whole does not fit: that may make do with a smaller budget.
    """
    trial = _once(trial)
    quickest = search([_with(load, load.asked.opened) for load in loads], machine, budgets)
    found = _placed_otherwise(loads, machine, budgets, trial, _HOPELESS * quickest.seconds if quickest else inf)
    found = found or _placed_otherwise(loads, machine, budgets, trial, inf)
    if len(found) < most:
        found += islice(_in_chunks(loads, chunked() if chunked else (), machine, budgets, trial), 1)
    if free and dict(free) != dict(budgets.devices):
        found += _larger(loads, machine, budgets, free, trial, in_tiles, bool(found))
    if len(found) < most:
        least = _QUICKER * min((out.seconds for out in found), default=inf)
        packed = _in_a_packed_type(loads, machine, budgets, trial)
        found += islice((out for out in packed if out.seconds < least), 1)
    return _first(best_first(found), most) or _at_a_smaller_size(machine, budgets, smaller)


def _first(outs: Sequence[WayOut], most: int) -> list[WayOut]:
    """The first so many, and a larger budget where that would come later: it is another kind of way."""
    larger = (out for out in outs[most:] if out.what.startswith(LARGER))
    return [*outs[:most], *islice(larger, 1 if most > 1 else 0)]


def _once(trial: Trial) -> Trial:
    """A trial that tries what is typed alike once."""
    known: dict[tuple[object, ...], Outcome | None] = {}

    def tried(out: WayOut) -> Outcome | None:
        key = (*sorted(out.settings.items()), out.quant, out.packed)
        if key not in known:
            known[key] = trial(out)
        return known[key]

    return tried


def _placed_otherwise(
    loads: Sequence[Load], machine: Machine, budgets: Budgets, trial: Trial, most: float
) -> list[WayOut]:
    """A way out of each kind that places things otherwise, of those that are searched to take so many seconds."""
    found: list[WayOut] = []
    kinds: set[str] = set()
    for what, changed in _relaxed(loads):
        if what not in kinds:
            out = _tried(what, changed, machine, budgets, trial, most=most)
            if out is not None:
                out = _by_layers(_of_its_kind(out, loads), loads)
                kinds |= {what, out.what}
                found += [] if any(out.settings == other.settings for other in found) else [out]
    return found


def _larger(
    loads: Sequence[Load], machine: Machine, budgets: Budgets, free: Mapping[Device, int], trial: Trial,
    in_tiles: InTiles | None, is_kept_to: bool,
) -> list[WayOut]:  # fmt: skip
    """The way out of a larger budget; of that in tiles where the whole takes much more, or what there is not.

    What was asked besides ``is_kept_to``, or left open where nothing fits as it was asked.
    """

    def first(some: Sequence[Load], tries: Trial) -> WayOut | None:
        opened = [_with(load, load.asked.opened) for load in some]
        asked = [some] if is_kept_to else [some, opened]
        return next(filter(None, (_within_more(one, machine, budgets, free, tries) for one in asked)), None)

    whole, given = first(loads, trial), in_tiles() if in_tiles else None
    tiled = first(*given) if given else None
    if tiled and not (whole and _bytes_of(whole, budgets) <= _MUCH * _bytes_of(tiled, budgets)):
        in_tiles_alone = replace(tiled, what=f"{tiled.what}, decoding in tiles")  # for a whole is taken where it fits
        whole = whole and _tried(tiled.what, whole.loads, machine, tiled.budgets, trial)
        return [_by_layers(whole or in_tiles_alone, loads)]
    return [_by_layers(whole, loads)] if whole else []


def _bytes_of(out: WayOut, budgets: Budgets) -> int:
    """The bytes of the devices of a way out to which some budgets give less than there is."""
    return sum(nbytes for device, nbytes in out.budgets.devices.items() if nbytes > budgets.of(device))


def _within_more(
    loads: Sequence[Load], machine: Machine, budgets: Budgets, free: Mapping[Device, int], trial: Trial
) -> WayOut | None:
    """Budgets as large as that takes which is found without them, rounded up; no budgets if these do not do."""
    whole = _tried(LARGER, loads, machine, replace(budgets, devices=free, typed="", why={}), trial)
    if whole is None:
        return None
    most = {device: 0 for device, nbytes in budgets.devices.items() if nbytes < free[device]}
    for (_, device), nbytes in peaks(whole.solution, budgets).items():
        most.update({device: max(most[device], nbytes)} if device in most else {})
    amounts = {one: min(free[one], max(budgets.of(one), _rounded_up(_MORE * most[one]))) for one in most}
    typed = ",".join(f"{device}={exact_bytes(nbytes)}" for device, nbytes in amounts.items())
    larger = replace(budgets, devices={**free, **amounts}, typed=typed, why={})
    return _tried(whole.what, loads, machine, larger, trial) or whole


def _rounded_up(nbytes: float) -> int:
    """A size in tenths of a GiB, or of a MiB where it is less than one, at least as large."""
    unit = GIB if nbytes >= GIB else MIB
    return ceil(10 * nbytes / unit) * unit // 10


def best_first(outs: Sequence[WayOut]) -> list[WayOut]:
    """Ways out that place things otherwise, the quickest first, before others; none that takes many times as long."""
    placed = [out for out in outs if out.what in _PLACEMENTS]
    others = [out for out in outs if out not in placed]
    of_these_weights = [out for out in outs if not out.packed] or outs
    most = WORST * min((out.seconds for out in of_these_weights), default=0)
    return [out for out in (*sorted(placed, key=lambda out: out.seconds), *others) if out.seconds <= most]


def _in_a_packed_type(loads: Sequence[Load], machine: Machine, budgets: Budgets, trial: Trial) -> Iterator[WayOut]:
    """For each of the packed types as few components as that takes."""
    for quant in TYPES:
        for some in _groups(loads):
            names = tuple(load.name for load in loads if load.name in some and load.role != "vae")
            options = {"--quant": ",".join(f"{name}={quant.lower()}" for name in names)}
            what = f"weights of {' and '.join(sorted(names))} in {quant}"
            packed = in_packed_type(loads, set(names), quant)
            out = _tried(what, packed, machine, budgets, trial, options, (quant, names)) if names else None
            if out is not None:
                yield out
                break


def _at_a_smaller_size(machine: Machine, budgets: Budgets, smaller: Smaller | None) -> list[WayOut]:
    for options, loads, trial in smaller() if smaller else ():
        out = _tried("a smaller size", loads, machine, budgets, trial, options)
        if out is not None:
            return [out]
    return []


def _tried(
    what: str, loads: Sequence[Load], machine: Machine, budgets: Budgets, trial: Trial,
    more: Mapping[str, str] | None = None, packed: tuple[str, tuple[str, ...]] = ("", ()), most: float = inf,
) -> WayOut | None:  # fmt: skip
    """The way out that a search finds and a trial confirms; where the trial exceeds a device, less is used of it.

    None is tried that is searched to take more than the ``most`` seconds.
    """
    some, left, known = loads, budgets, set[tuple[str, Device]]()
    for tries in range(1, TRIES + 1):
        solution = search(some, machine, left)
        if solution is None or solution.seconds > most:
            return None
        typed = {"--max-vram": budgets.typed} if budgets.typed else {}
        options = {**(more or {}), **settings_of(solution, loads), **typed}
        out = WayOut(what, options, solution, tuple(loads), budgets, *packed)
        outcome = trial(out)
        if outcome is None:
            return None
        if not outcome.over:
            return replace(out, lowered=outcome.seconds)
        off = taken_off(outcome.over, tries, known)
        some, left, known = *foreseeing(some, left, off), known | off.keys()
    return None


def _relaxed(loads: Sequence[Load]) -> Iterator[tuple[str, list[Load]]]:
    """One thing left out at a time, with its kind: of each kind one way out is enough."""
    changes: list[Callable[[Asked], Asked]] = [
        lambda asked: replace(asked, devices=(), shares=(), mode="layer"),
        lambda asked: replace(asked, residency=None, amounts=ALIKE),
        lambda asked: replace(asked, tiled=None),
        lambda asked: asked.opened,
    ]
    for what, change in zip(_PLACEMENTS, changes, strict=True):
        for some in _groups(loads):
            changed = [_with(load, change(load.asked)) if load.name in some else load for load in loads]
            if [load.asked for load in changed] != [load.asked for load in loads]:
                yield what, changed


def _of_its_kind(out: WayOut, loads: Sequence[Load]) -> WayOut:
    """A way out that was searched on other devices, as one of weights where the devices are those that were named."""
    named = [load for load in loads if load.asked.devices]
    is_there = all(out.solution.ways[load.name].devices == load.asked.devices for load in named)
    return replace(out, what=_PLACEMENTS[1]) if out.what == _PLACEMENTS[0] and is_there else out


def _by_layers(out: WayOut, loads: Sequence[Load]) -> WayOut:
    """A way out that says which components were to be split under another mode than by layers, and are not."""
    kept = {load.name for load in out.loads if load.asked.places_itself}
    asked = {load.name: load.asked.mode for load in loads if load.asked.places_itself}
    return replace(out, by_layers={name: mode for name, mode in asked.items() if name not in kept})


def _in_chunks(
    loads: Sequence[Load], chunked: Iterable[Sequence[Load]], machine: Machine, budgets: Budgets, trial: Trial
) -> Iterator[WayOut]:
    """The fewest chunks first, of as few components as that takes; none where even no values would not fit."""
    if search([_without_values(load) for load in loads], machine, budgets) is None:
        return
    for in_some in chunked:
        of = {load.name: load for load in in_some}
        for some in filter(None, _groups(in_some)):
            changed = [of[load.name] if load.name in some else load for load in loads]
            out = _tried(CHUNKS, changed, machine, budgets, trial)
            if out is not None:
                yield out


def _without_values(load: Load) -> Load:
    """A component of which nothing but weights is alive, which is less than in any number of chunks."""
    chain = load.chain
    parts = tuple(replace(part, live=0) for part in chain.parts)
    return replace(load, chain=replace(chain, rest=replace(chain.rest, live=0), parts=parts))


def _groups(loads: Sequence[Load]) -> list[set[str]]:
    """Each component alone, the largest first, then all of them."""
    names = [load.name for load in sorted(loads, key=lambda load: -load.nbytes)]
    large = [load.name for load in loads if 10 * load.nbytes >= max(one.nbytes for one in loads)]
    groups = [*({name} for name in names if name in large), set(large), set(names)]
    return [group for index, group in enumerate(groups) if group not in groups[:index]]


def _with(load: Load, asked: Asked) -> Load:
    return replace(load, asked=asked)


def in_packed_type(loads: Sequence[Load], some: set[str], quant: str) -> list[Load]:
    """The components with the weights of their blocks in a packed type."""
    elements, nbytes = block_of(quant)
    factor = nbytes / (elements * _DENSE)

    def smaller(part: Part) -> Part:
        scale = factor if part.nbytes > _SMALL else 1.0
        finest = None if part.finest is None else int(part.finest * scale)
        return replace(part, nbytes=int(part.nbytes * scale), largest=int(part.largest * scale), finest=finest)

    def packed(load: Load) -> Load:
        chain = replace(load.chain, parts=tuple(map(smaller, load.chain.parts)))
        return replace(load, chain=chain, nbytes=load.nbytes - load.chain.nbytes + chain.nbytes)

    return [packed(load) if load.name in some and load.role != "vae" else load for load in loads]


FITS = "what fits, best first:"


def refusal(problem: str, outs: Sequence[str]) -> str:
    """A problem, and what was found to work, a line each."""
    if not outs:
        return f"{problem}; nothing that dovetail can do helps here: it takes a larger device, or a smaller model"
    return "\n  ".join((f"{problem}\n{FITS}", *outs))


def said_of(out: WayOut, spread: float = 0.0) -> str:
    """A way out in words, with what to type and the seconds that a picture takes then.

    ``spread`` is the part of the seconds that they may be off by.
    """
    typed = line_of(out.settings) or "without --max-vram"
    return f"{_kind_of(out)} ({typed}: {_seconds(out.seconds, spread)} s)"


def _kind_of(out: WayOut) -> str:
    """What kind of a way out it is; of one that leaves some components to dovetail, which these are."""
    free = [load.name for load in out.loads if not load.asked.devices and load.asked.residency is None]
    what, layers = out.what, "".join(_unsplit(out.by_layers))
    if what == _PLACEMENTS[-1] and len(free) < len(out.loads):
        what += f", for {' and '.join(free)}"
    return f"{what}{layers}"


def _unsplit(by_layers: Mapping[str, str]) -> Iterator[str]:
    """The components of each mode that are not split so any more."""
    for mode in dict.fromkeys(by_layers.values()):
        names = " and ".join(name for name, one in by_layers.items() if one == mode)
        yield f", and {names} not split by {'rows' if mode == 'row' else mode}"


def line_of(settings: Mapping[str, str]) -> str:
    """Options as they are typed."""
    return " ".join(f'{option} "{value}"' for option, value in settings.items())


def _seconds(seconds: float, spread: float) -> str:
    if spread:
        return seconds_text(seconds, spread)
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.2g}"
