"""Plans of published pipelines at full size over six rigs: what runs where, predicted peaks and seconds, ways out.

    python -m benchmarks.plans [--profiles FOLDER] [--only FLUX.1-dev,SDXL] [--without-others]
    python -m benchmarks.plans --hand [--profiles FOLDER] [--only FLUX.1-dev,SDXL]

With ``--hand`` it is seven pipelines over twelve rigs: what is searched, with and without weight files, beside the best
of five kinds of lines that a person types (`testbed.by_hand`); cells in which a line is quicker are listed at the end.
Below a plan stands what `--backend cuda0` alone, with all weights on that card, is refused with, and the ways out that
were searched for it. Components are traced once, each in a process of its own, and kept as profiles (numbers) in a
folder. Cards have what is free beside the reserve that dovetail keeps of a found card; the host has what its process
leaves. The seconds of a search are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.measured_speeds import cache_folder
from dovetail.compiler.durations import seconds_text
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.units import GIB
from dovetail.passes.fit.chain import Chain, Part
from dovetail.passes.fit.lacking import lacking, problem_of
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.plan import Plan, plan_of
from dovetail.passes.fit.search import search
from dovetail.passes.fit.solution import fits
from dovetail.passes.fit.ways_out import refusal, said_of, ways_out
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.passes.simulate.cost import OpCost
from testbed import by_hand
from testbed.by_hand import rig_of, traced
from testbed.zoo.full_size_pipelines import PIPELINES

RIGS = {
    "8 GB + 32 GB RAM": ((8,), 32),
    "16 + 10 GB": ((16, 10), 64),
    "24 GB": ((24,), 64),
    "4 x 11 GB": ((11,) * 4, 64),
    "2 x 24 GB": ((24, 24), 64),
    "8 GB + 16 GB RAM": ((8,), 16),
}


def profile(name: str) -> dict[str, object]:
    """The chain of a part, and the bytes of all its weights; traces it."""
    chain, nbytes = traced(name)
    return {"nbytes": nbytes, **asdict(chain)}


def read_profile(folder: Path, name: str) -> tuple[Chain, int]:
    """The profile of a part: from the folder, or made in another process first."""
    file = folder / f"{name}.json"
    if not file.exists() or '"finest"' not in file.read_text():  # one of before stages were finer than a block
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "benchmarks.plans", "--profile", name, str(file)], check=True)
    data = json.loads(file.read_text())
    return Chain(data["name"], _part(data["rest"]), tuple(map(_part, data["parts"]))), data["nbytes"]


def _part(data: dict) -> Part:
    work = tuple((OpCost(**cost), count) for cost, count in data.pop("work"))
    return Part(**data, work=work)


def loads_of(pipeline: str, folder: Path) -> list[Load]:
    """The components of a pipeline."""
    return by_hand.loads_of(pipeline, partial(read_profile, folder))


def gib(peaks: dict[Device, int]) -> str:
    """Peaks by device in GiB, without those of next to nothing."""
    return " ".join(f"{device} {nbytes / GIB:.1f}" for device, nbytes in peaks.items() if nbytes > GIB // 20)


def show(pipeline: str, folder: Path, others: bool) -> None:
    """The cells of a pipeline."""
    loads = loads_of(pipeline, folder)
    print(f"\n{pipeline}: " + ", ".join(f"{load.name} {load.nbytes / GIB:.1f} GiB" for load in loads))
    for title, (cards, host) in RIGS.items():
        machine, budgets = by_hand.on(rig_of(cards, host))
        started = time.process_time()
        solution = search(loads, machine, budgets)
        took = time.process_time() - started
        if solution is None:
            refused(title, loads, machine, budgets)
        else:
            assert fits(solution, budgets)
            accepted(title, plan_of(solution, loads, budgets), took)
        first = [replace(load, asked=Asked((machine.devices[0],), Residency.DEVICE)) for load in loads]
        if search(first, machine, budgets) is None:
            refused("--backend cuda0", first, machine, budgets)
        if others:
            beside(pipeline, loads, machine, budgets)


def accepted(title: str, plan: Plan, took: float) -> None:
    """Prints a plan."""
    print(f"  {title:17} {seconds_text(plan.seconds):>6} s  search {took:.2f} s  peaks {gib(plan.peak)}")
    print(f"  {'':17} {plan.line}")


def refused(title: str, loads: list[Load], machine: Machine, budgets: Budgets) -> None:
    """Prints a refusal, whose ways out were tried."""
    outs = ways_out(loads, machine, budgets)
    assert all(fits(out.solution, out.budgets) for out in outs), "each way out was searched, and fits"
    problem = problem_of(lacking(loads, machine, budgets), loads, budgets, dict(budgets.devices))
    said = refusal(problem, [said_of(out) for out in outs])
    print(f"  {title:17} refused: {said}")


def beside(pipeline: str, loads: list[Load], machine: Machine, budgets: Budgets) -> None:
    """What the rules of others make of the same."""
    from .other_planners import accelerate, stable_diffusion_cpp

    free = {**budgets.devices, machine.host: budgets.of(machine.host)}
    parts = {one.name: one.part for one in PIPELINES[pipeline]}
    for name, other in {
        "stable-diffusion.cpp": stable_diffusion_cpp(loads, machine, free),
        "accelerate": accelerate(loads, parts, machine, free),
    }.items():
        said = f"{seconds_text(other.seconds)} s" if other.seconds else f"does not fit: {other.why}"
        places = ", ".join(f"{part} {place}" for part, place in other.places.items())
        print(f"  {'':17}   {name}: {said} ({places})")


def beside_hand(pipelines: Sequence[str], folder: Path) -> int:
    """Prints what is searched beside lines by hand; returns in how many cells a line is quicker, or plans differ."""
    misses = []
    for pipeline in pipelines:
        loads = loads_of(pipeline, folder)
        bare = by_hand.without_files(pipeline, loads)
        print(f"\n{pipeline}: " + ", ".join(f"{load.name} {load.nbytes / GIB:.1f} GiB" for load in loads))
        for title, (cards, host) in by_hand.RIGS.items():
            started = time.process_time()
            cell = by_hand.cell(loads, bare, rig_of(cards, host))
            best = min(cell.by_hand, key=cell.by_hand.__getitem__, default="")
            hand = f"{seconds_text(cell.by_hand[best])} s: {best}" if best else "none fits"
            found = f"{seconds_text(cell.seconds)} s" if cell.seconds else "refused"
            print(f"  {title:24} {found:>8}  by hand {hand}  ({time.process_time() - started:.1f} s)", flush=True)
            print(f"  {'':24} {' '.join(f'{option} {value}' for option, value in (cell.settings or {}).items())}")
            misses += [f"{pipeline} on {title}: {why}" for why in cell.misses]
    print(f"\n{len(misses)} misses" + "".join(f"\n  {one}" for one in misses))
    return len(misses)


def main() -> None:
    """Reads the options, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", nargs=2, metavar=("PART", "FILE"))
    parser.add_argument("--profiles", type=Path, default=(cache_folder() or Path(".")) / "profiles")
    parser.add_argument("--only", default="")
    parser.add_argument("--without-others", action="store_true")
    parser.add_argument("--hand", action="store_true")
    options = parser.parse_args()
    if options.profile:
        Path(options.profile[1]).write_text(json.dumps(profile(options.profile[0])))
        return
    only = options.only.split(",") if options.only else []
    if options.hand:
        sys.exit(1 if beside_hand(only or by_hand.MODELS, options.profiles) else 0)
    for pipeline in only or PIPELINES:
        show(pipeline, options.profiles, not options.without_others)


if __name__ == "__main__":
    main()
