"""What `--split-mode auto` picks for denoisers at full size over twelve rigs, beside each mode and one card.

    python -m benchmarks.choice [--only flux-dev,wan2.1-14b] [--rigs "2x L20;4x L20"] [--steps 28]

A line has the predicted seconds of a step of a picture of so many: on the best single card of the rig, whatever comes
and goes there, by layers and under each mode, and what was chosen. Weights that are brought once a picture, and stay
for all steps, count a part of that in each. Behind them stands how many times quicker that is than one such card that
holds the model, or the fastest one where cards differ, with the floor, if there is one. Floors are for transformers of
at least 4000 tokens on equal cards; where a call has the two halves of guidance they are those of the halves on two
cards. Exchanges are added to computing, and not hidden behind it; "overlapped" has them hidden as far as the order of
the schedule has it, and counts the copies of inputs besides, where all weights stay on the cards. "Of at most" is what
cards could reach that exchange nothing: each starts all operations of its part, which no card does for another.
"Without starts" leaves the starts of operations out on both sides, so that computing and bytes alone are compared. The
last lines say where the choice is more than 2 % behind the best mode, or slower than the best single card: then the
exit code is 1.

Models are traced on meta, without weights. SD3.5 and SDXL have both halves of guidance in a call, as pipelines call
them. A size in a rig that is a part is that of the weights of the model.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import torch

from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.units import GIB
from dovetail.conventions.request import Request
from dovetail.fitting.by_layers import searched
from dovetail.fitting.chains import prepared
from dovetail.fitting.decide import Member, TracedCall, budgets_of, loads_of, machine_of
from dovetail.passes.fit.choices import Choice, choices
from dovetail.passes.fit.groups import MODES
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.options import Option
from dovetail.passes.fit.trial import ALONE, LAYER
from dovetail.passes.fit.workload import Load
from dovetail.passes.states.fitting import quickest, seconds_of, seconds_of_states
from dovetail.passes.states.forms import narrowed
from dovetail.passes.states.solution import NotPossible
from testbed.zoo.full_size import FULL_SIZE
from testbed.zoo.meta import FullSize

NAMES = (
    "flux-dev", "flux2-dev", "sdxl-unet", "sd3.5-large", "qwen-image", "wan2.1-14b", "ltx2-19b", "hunyuan-video",
)  # fmt: skip
HALVES = ("sdxl-unet", "sd3.5-large")
"""Those whose pipelines call them once for both halves of guidance."""

TRANSFORMERS = tuple(name for name in NAMES if name != "sdxl-unet")
HEADS = {ALONE: "one", **{mode: mode for mode in (LAYER, *MODES)}}
"""What each way to split is called above its column."""

BEHIND = 1.02
HALF = 1.9
"""The floor of two equal cards where a call has two halves."""


@dataclass(frozen=True)
class RigOf:
    """The cards of a rig: what each is and has, GB/s between them if that is said, and the floor.

    A size of less than 1 is a part of the weights of the model.
    """

    cards: tuple[tuple[str, float], ...]
    rate: float | None = None
    floor: float | None = None

    def text(self, nbytes: int) -> str:
        """The rig as it is typed, for a model of so many bytes."""
        sizes = [round((size * nbytes / GIB if size < 1 else size) * 1024) for _, size in self.cards]
        items = [
            f"cuda{at}={size}MiB@{card}" for at, ((card, _), size) in enumerate(zip(self.cards, sizes, strict=True))
        ]
        pairs = combinations(range(len(self.cards)), 2) if self.rate else ()
        ways = [f"cuda{one}-cuda{other}={self.rate:g}GB/s" for one, other in pairs]
        return "; ".join([",".join([*items, "cpu=256GiB"]), *ways])


def equal(count: int, card: str, size: float, rate: float | None, floor: float | None = None) -> RigOf:
    """So many equal cards."""
    return RigOf(((card, size),) * count, rate, floor)


WHOLE = 120.0
"""GiB in which each of the models has room, to tell what modes take from what does not fit."""

RIGS = {
    "2x RTX 3090 x8": equal(2, "RTX 3090", WHOLE, 6, 1.15),
    "4x RTX 3090 x8": equal(4, "RTX 3090", WHOLE, 6, 1.85),
    "2x RTX 4090 x16": equal(2, "RTX 4090", WHOLE, 11, 1.15),
    "4x RTX 4090 x16": equal(4, "RTX 4090", WHOLE, 11, 1.85),
    "2x L20": equal(2, "L20", WHOLE, 20, 1.5),
    "4x L20": equal(4, "L20", WHOLE, 20, 2.7),
    "2x A100 NVLink": equal(2, "A100", WHOLE, 200, 1.8),
    "4x A100 NVLink": equal(4, "A100", WHOLE, 200, 3.4),
    "2x L20, not whole": equal(2, "L20", 0.85, 20, 1.4),
    "4x L20, not whole": equal(4, "L20", 0.6, 20, 1.8),
    "4090 + 3090 + 3060": RigOf((("RTX 4090", 24), ("RTX 3090", 24), ("RTX 3060", 12))),
    "8x RTX 3090": equal(8, "RTX 3090", 24, None),
}


@dataclass(frozen=True)
class Model:
    """A denoiser by its name, and how often a picture calls it.

    Its program has both halves of guidance where its pipeline has these in one call.
    """

    name: str
    steps: int

    @cached_property
    def program(self) -> Program:
        """What was traced."""
        entry = FULL_SIZE[self.name]
        if self.name in HALVES:
            entry = FullSize(entry.build, _doubled(entry.call))
        module, call = entry.make()
        return trace(module, (), call)

    @cached_property
    def prepared(self) -> Program:
        """What states are solved for."""
        return narrowed(prepared(self.program))

    @property
    def nbytes(self) -> int:
        """The bytes of all weights."""
        return sum(weight.nbytes for weight in self.program.weights.values())


def _doubled(value: Any) -> Any:
    """A call of twice as many pictures."""
    if isinstance(value, Mapping):
        return {key: _doubled(one) for key, one in value.items()}
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True)
class Row:
    """What was found of a model on a rig, in seconds of a picture of some steps.

    ``held`` are those of the fastest card if it holds all, in ``starts`` of which it starts operations. ``least`` are
    those of cards that share out all computing and exchange nothing, and ``overlapped`` those of the choice with
    exchanges hidden, None where nothing is exchanged.
    """

    name: str
    rig: str
    held: float
    starts: float
    least: float
    chosen: str
    seconds: float
    overlapped: float | None
    choices: Sequence[Choice]
    steps: int
    took: float

    @property
    def alone(self) -> float | None:
        """The seconds on the best single card."""
        return next(one.seconds for one in self.choices if one.mode == ALONE)

    @property
    def floor(self) -> float | None:
        """The least times quicker than one card that holds the model; None where there is no floor."""
        given = RIGS[self.rig].floor if self.name in TRANSFORMERS else None
        is_half = self.name in HALVES and len(RIGS[self.rig].cards) == 2 and RIGS[self.rig].cards[0][1] == WHOLE
        return HALF if given and is_half else given

    @property
    def times(self) -> float:
        """How many times quicker the choice is than one card that holds the model."""
        return self.held / self.seconds

    @property
    def without_starts(self) -> float:
        """The same of computing and bytes alone: each card starts as many operations as one alone does."""
        return (self.held - self.starts) / (self.seconds - self.starts)

    def faults(self) -> Iterator[str]:
        """Where the choice is not the best."""
        best = min((one for one in self.choices if one.seconds is not None), key=lambda one: one.seconds or 0.0)
        if self.seconds > BEHIND * (best.seconds or 0.0):
            yield f"{self.name} on {self.rig}: {self.seconds:.3f} s, {best.mode} takes {best.seconds:.3f} s"
        if self.alone is not None and self.seconds > self.alone * 1.0001:
            yield f"{self.name} on {self.rig}: {self.seconds:.3f} s, one card takes {self.alone:.3f} s"

    def __str__(self) -> str:
        known = {one.mode: one.seconds for one in self.choices if one.seconds is not None}
        said = {mode: f"{seconds / self.steps:.3f}" for mode, seconds in known.items()}
        cells = " ".join(f"{said.get(mode, '-'):>{max(8, len(shown))}}" for mode, shown in HEADS.items())
        floor = "" if self.floor is None else f" floor {self.floor:g}{'' if self.times >= self.floor else ': BELOW'}"
        most = f" of at most {self.held / self.least:.2f}x, {self.without_starts:.2f}x without starts"
        hidden = f"{self.held / self.overlapped:5.2f}x overlapped" if self.overlapped else " " * 17
        return (
            f"{self.rig:19} {cells} {self.seconds / self.steps:8.3f} {self.times:5.2f}x {hidden}{most}{floor:18} "
            f"{self.took:5.1f} s  {self.chosen}"
        )


def found(model: Model, title: str) -> Row:
    """What is chosen for a model on a rig."""
    name = model.name
    request = Request.parse(rig=RIGS[title].text(model.nbytes), split_mode="auto", components={name: "diffusion"})
    started = time.process_time()
    machine, (budgets, _) = machine_of(request), budgets_of(request)
    loads = loads_of(
        {name: Member("diffusion", "sampling", model.nbytes)}, [TracedCall(name, model.program, model.steps)], request
    )
    loads, solution = searched(loads, machine, budgets)
    if solution is None:
        raise SystemExit(f"{name} fits on no devices of {title}")
    took, way = time.process_time() - started, solution.ways[name]
    each = list(choices(loads, solution, machine, budgets))
    chosen = f"{way.mode if len(way.devices) > 1 else ALONE} {'&'.join(map(str, way.devices))} {way.residency.value}"
    held, computing = _held(loads[0], machine), _held(loads[0], machine, launch=0.0)
    starts = min(held) - min(computing)
    least = starts + 1 / sum(1 / one for one in computing)
    hidden = _hidden(model, request, way)
    overlapped = hidden and solution.seconds * hidden
    return Row(name, title, min(held), starts, least, chosen, solution.seconds, overlapped, each, model.steps, took)


def _hidden(model: Model, request: Request, way: Option) -> float | None:
    """The part of its time that a choice takes with exchanges hidden by its schedule; None where that is not known."""
    if way.mode not in MODES or way.mode == "row" or way.residency is not Residency.DEVICE:
        return None
    program = replace(model.prepared, rig=request.granted.only(way.devices))
    states = quickest(program, way.mode, way.shares)
    if isinstance(states, NotPossible):
        return None
    hidden = seconds_of_states(replace(program, graph=states.graph), states.solution.decision)
    return hidden / seconds_of(program, states)


def _held(load: Load, machine: Machine, **other: float) -> list[float]:
    """The seconds of a call on each card, if that holds all weights; at ``other`` speeds than it has."""
    speeds = [replace(machine.speeds[device], **other) for device in machine.devices if device != machine.host]
    return [load.times * load.called(False)[0].seconds(speed) for speed in speeds]


def main() -> None:
    """Prints the rows, and fails where a choice is not the best."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(NAMES), help="the models, by the names of testbed.zoo")
    parser.add_argument("--rigs", default=";".join(RIGS), help="the rigs, joined by ';'")
    parser.add_argument("--steps", type=int, default=28, help="how often a picture calls the denoiser")
    asked = parser.parse_args()
    if asked.steps < 1:
        parser.error(f"--steps {asked.steps}: a picture has one at least")
    rows: list[Row] = []
    for name in asked.only.split(","):
        model = Model(name, asked.steps)
        heads = " ".join(f"{shown:>8}" for shown in HEADS.values())
        print(f"\n{name}\n{'seconds of a step':19} {heads}     auto  against one that holds it", flush=True)
        for title in asked.rigs.split(";"):
            rows.append(found(model, title))
            print(rows[-1], flush=True)
        del model
        gc.collect()
    faults = [fault for row in rows for fault in row.faults()]
    below = [row for row in rows if row.floor is not None and row.times < row.floor]
    still = sum(row.without_starts < (row.floor or 0.0) for row in below)
    print(f"\nbelow their floor: {len(below)}, without starts {still}")
    print(*(faults or ["auto is nowhere behind"]), sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
