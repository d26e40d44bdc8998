"""Plans of published pipelines at full size over six rigs: what runs where, predicted peaks and seconds, ways out.

    python -m benchmarks.plans [--profiles FOLDER] [--only FLUX.1-dev,SDXL] [--without-others]

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
from pathlib import Path

from dovetail.compiler.spec.devices import PROCESS, Device, Rig, reserve_of
from dovetail.compiler.spec.durations import seconds_text
from dovetail.compiler.spec.measured_speeds import cache_folder
from dovetail.compiler.spec.residency import Residency
from dovetail.compiler.spec.speeds import speeds_of
from dovetail.compiler.spec.units import GIB
from dovetail.passes.fit.chain import Chain, Part
from dovetail.passes.fit.lacking import lacking, problem_of
from dovetail.passes.fit.options import Machine
from dovetail.passes.fit.plan import Plan, plan_of
from dovetail.passes.fit.search import fits, search
from dovetail.passes.fit.ways_out import refusal, said_of, ways_out
from dovetail.passes.fit.workload import Asked, Budgets, Load
from dovetail.passes.simulate.cost import OpCost
from testbed.zoo.full_size_pipelines import PARTS, PIPELINES

PHASES = {"te": "conditioning", "diffusion": "sampling", "vae": "decoding"}
RIGS = {
    "8 GB + 32 GB RAM": ((8,), 32),
    "16 + 10 GB": ((16, 10), 64),
    "24 GB": ((24,), 64),
    "4 x 11 GB": ((11,) * 4, 64),
    "2 x 24 GB": ((24, 24), 64),
    "8 GB + 16 GB RAM": ((8,), 16),
}


def rig_of(cards: Sequence[int], host: int) -> Rig:
    """Cards of some GiB with their reserves, and the host."""
    sizes = {
        f"cuda{index}": (size * GIB - reserve_of("cuda", size * GIB), size * GIB) for index, size in enumerate(cards)
    }
    return Rig.of(**sizes, cpu=host * GIB)


def profile(name: str) -> dict[str, object]:
    """The chain of a part, and the bytes of all its weights; traces it."""
    from dovetail.fitting.chains import chain_of_trace
    from testbed.zoo.full_size import trace_entry

    program, _ = trace_entry(PARTS[name])
    module, _ = PARTS[name].make()
    nbytes = sum({id(weight): weight.nbytes for weight in module.parameters()}.values())
    return {"nbytes": nbytes, **asdict(chain_of_trace(program))}


def read_profile(folder: Path, name: str) -> tuple[Chain, int]:
    """The profile of a part: from the folder, or made in another process first."""
    file = folder / f"{name}.json"
    if not file.exists() or '"attention"' not in file.read_text():  # one of before attention was told apart
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "benchmarks.plans", "--profile", name, str(file)], check=True)
    data = json.loads(file.read_text())
    return Chain(data["name"], _part(data["rest"]), tuple(map(_part, data["parts"]))), data["nbytes"]


def _part(data: dict) -> Part:
    work = tuple((OpCost(**cost), count) for cost, count in data.pop("work"))
    return Part(**data, work=work)


def loads_of(pipeline: str, folder: Path) -> list[Load]:
    """The components of a pipeline."""
    found = []
    for one in PIPELINES[pipeline]:
        chain, nbytes = read_profile(folder, one.part)
        tiles = (read_profile(folder, one.tile[0])[0], float(one.tile[1])) if one.tile else None
        found.append(Load(one.name, one.role, PHASES[one.role], chain, one.times, tiles, nbytes))
    return found


def gib(peaks: dict[Device, int]) -> str:
    """Peaks by device in GiB, without those of next to nothing."""
    return " ".join(f"{device} {nbytes / GIB:.1f}" for device, nbytes in peaks.items() if nbytes > GIB // 20)


def show(pipeline: str, folder: Path, others: bool) -> None:
    """The cells of a pipeline."""
    loads = loads_of(pipeline, folder)
    print(f"\n{pipeline}: " + ", ".join(f"{load.name} {load.nbytes / GIB:.1f} GiB" for load in loads))
    for title, (cards, host) in RIGS.items():
        rig = rig_of(cards, host)
        machine = Machine(rig.devices, speeds_of(rig), rig.host)
        budgets = Budgets({device: memory.free for device, memory in rig.memory.items()}, rig.host, PROCESS)
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


def main() -> None:
    """Reads the options, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", nargs=2, metavar=("PART", "FILE"))
    parser.add_argument("--profiles", type=Path, default=(cache_folder() or Path(".")) / "profiles")
    parser.add_argument("--only", default="")
    parser.add_argument("--without-others", action="store_true")
    options = parser.parse_args()
    if options.profile:
        Path(options.profile[1]).write_text(json.dumps(profile(options.profile[0])))
        return
    for pipeline in options.only.split(",") if options.only else PIPELINES:
        show(pipeline, options.profiles, not options.without_others)


if __name__ == "__main__":
    main()
