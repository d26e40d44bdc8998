"""Writes the page of recipes by hardware, with plans of published models: `python -m scripts.recipes`.

Full-size components are traced once for it, which takes some minutes, and kept as in `benchmarks.plans`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.plans import gib, loads_of
from dovetail.compiler.devices.measured_speeds import cache_folder
from dovetail.compiler.durations import seconds_text
from dovetail.compiler.units import GIB
from dovetail.passes.fit.plan import plan_of
from dovetail.passes.fit.search import search
from dovetail.planning.warnings import in_float16
from testbed.by_hand import on, rig_of

PIPELINES = ("FLUX.1-dev", "SDXL", "SD3.5-large", "Qwen-Image", "Z-Image", "Wan 2.1 14B")
MACHINES = {
    "One card of 8 GB, 32 GB of RAM": ((8,), 32),
    "One card of 8 GB, 16 GB of RAM": ((8,), 16),
    "A card of 16 GB and one of 10 GB, 64 GB of RAM": ((16, 10), 64),
    "Two cards of 12 GB, 64 GB of RAM": ((12, 12), 64),
    "One card of 24 GB, 64 GB of RAM": ((24,), 64),
    "Four cards of 11 GB, 64 GB of RAM": ((11,) * 4, 64),
}
HEAD = """\
# Recipes by hardware

What `dovetail plan` finds for published models at full size, in bfloat16 (in float16 where cards have no units for
it: `--dtype float16`) and in the sizes of their own examples: pictures of 1024² pixels, clips of some seconds.
Nothing of it was run on such cards: bytes are those of the plans, and seconds are predicted from published figures of
common cards of that size, once loaded. A part of each card and of the RAM is
[reserved](placement.md#what-fits), as in `dovetail plan --rig` and `dovetail generate`, which find the same by
themselves; the options, below each table, are what to type to have it in any case.

For your own machine, or one that you think of buying, ask with its own sizes:

```sh
dovetail plan MODEL --rig "cuda0=16GiB@RTX 4080,cuda1=10GiB@RTX 3080,cpu=64GiB" --size 1024 --steps 28
```

If it does not fit, or takes too long, try these in turn; each can be asked of `dovetail plan` first:

1. Weights in a packed type: `--quant transformer=q4_k`, which packs while loading. It takes 28 % of the memory of
   bfloat16.
2. Weights in RAM or on disk: `--params-backend cpu`, `--params-backend te=disk`.
3. Text encoders on the CPU: `--backend "cuda0,te=cpu"`.
4. Decoding in tiles: `--vae-tiling on`. The picture changes slightly.
5. Wide layers in chunks: `--chunk 4`. The last bits of the picture may change.
6. A smaller picture: `--size 768`.

A Mac (`mps`) shares one memory between its GPU and its CPU, which dovetail counts once. No plan of one stands here, and
none was run.
"""


def main() -> None:
    """Prints the page."""
    folder = (cache_folder() or Path(".")) / "profiles"
    print(HEAD)
    for title, (cards, host) in MACHINES.items():
        print(f"## {title}\n")
        print("| model | seconds | GiB at most |\n|---|---|---|")
        found = [recipe(name, cards, host, folder) for name in PIPELINES]
        print(*(row for row, _ in found), sep="\n")
        lines = [f"# {name}\n{line}" for name, (_, line) in zip(PIPELINES, found, strict=True) if line]
        print("\n```text", *lines, "```\n", sep="\n")
    print(
        "`python -m scripts.recipes` prints this page, `python -m benchmarks.plans` more models and what others plan."
    )


def recipe(name: str, cards: tuple[int, ...], host: int, folder: Path) -> tuple[str, str]:
    """A model on a machine as a row of the table, and the options; no options where it does not fit."""
    loads, rig = loads_of(name, folder), rig_of(cards, host)
    machine, budgets = on(rig)
    known = machine.speeds
    in_half = any(known[device].lacks_bfloat16 for device in rig.devices)
    solution = search(loads, replace(machine, speeds=in_float16(known)), budgets)
    size = sum(load.nbytes for load in loads) / GIB
    if solution is None:
        return f"| {name}, {size:.0f} GiB | does not fit | |", ""
    plan = plan_of(solution, loads, budgets)
    seconds = seconds_text(plan.seconds, known.spread(rig.devices))
    line = plan.line + (" --dtype float16" if in_half else "")
    return f"| {name}, {size:.0f} GiB | {seconds} | {gib(plan.peak)} |", line


if __name__ == "__main__":
    main()
