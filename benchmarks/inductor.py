"""What compiling blocks by Inductor saves: dovetail's compiled blocks beside eager and diffusers' own way.

    python -m benchmarks.inductor [--rounds 15] [--hidden 1024] [--blocks 12] [--clock cpu]

One diffusion transformer on one device, the CPU; eager, ``compile_repeated_blocks()`` and ``dovetail.compile`` with and
without ``inductor`` run one after the other in each round, in turning order. Prints the medians of ratios in rounds,
how far results are from eager's, and the seconds until the first result of each; either of the two that compile finds
no kernel from before, and Inductor itself is loaded. Time on a machine that does other things too swings: look at the
quartiles, or count the seconds of the processor (``--clock cpu``) with one thread.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import DiTTransformer2DModel
from rich.console import Console
from rich.table import Table
from torch._inductor.utils import fresh_cache

import dovetail

BLOCKS = "BasicTransformerBlock"
Run = Callable[[], torch.Tensor]


def case(hidden: int, blocks: int, size: int) -> tuple[Any, dict[str, Any]]:
    """A transformer with so many equal blocks, and a call over pictures of so many latents a side."""
    torch.manual_seed(0)
    model = DiTTransformer2DModel(
        num_attention_heads=hidden // 64,
        attention_head_dim=64,
        in_channels=4,
        out_channels=4,
        num_layers=blocks,
        sample_size=size,
        patch_size=2,
        num_embeds_ada_norm=10,
    ).eval()
    latents = torch.randn(1, 4, size, size)
    numbers = {"timestep": torch.tensor([5]), "class_labels": torch.tensor([1])}
    return model, {"hidden_states": latents, **numbers, "return_dict": False}


@dataclass(frozen=True)
class Clock:
    """Measures calls by a clock of Python's."""

    now: Callable[[], float]

    def seconds(self, run: Run) -> float:
        """The seconds of one call."""
        started = self.now()
        run()
        return self.now() - started

    @staticmethod
    def first(make: Callable[[], Run]) -> tuple[Run, float]:
        """What is made, and the seconds until it has given a first result, with no kernel from before."""
        with fresh_cache():
            started = time.perf_counter()  # compilers are processes of their own
            run = make()
            run()
            return run, time.perf_counter() - started

    def rounds(self, runs: dict[str, Run], count: int) -> dict[str, list[float]]:
        """The seconds of each way in each round; who begins changes from round to round."""
        names, times = list(runs), {name: list[float]() for name in runs}
        for number in range(count):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                times[name].append(self.seconds(runs[name]))
        return times


def measure(hidden: int, blocks: int, size: int, rounds: int, clock: Clock) -> Table:
    """The table of one model: each way against eager, and its first call."""
    model, call = case(hidden, blocks, size)
    own = copy.deepcopy(model)
    own._repeated_blocks = [BLOCKS]

    def compiled_repeatedly() -> Run:
        own.compile_repeated_blocks(fullgraph=True, dynamic=False)
        return lambda: own(**call)[0]

    def compiled_here(inductor: bool) -> Run:
        compiled = dovetail.compile(model, kwargs=call, backend="cpu", inductor=inductor)
        return lambda: compiled(**call)[0]

    makers: dict[str, Callable[[], Run]] = {
        "eager": lambda: lambda: model(**call)[0],
        "dovetail": lambda: compiled_here(False),
        "dovetail, inductor": lambda: compiled_here(True),
        "compile_repeated_blocks": compiled_repeatedly,
    }
    torch.compile(lambda x: x.sin().cos(), dynamic=False)(torch.ones(8))
    runs, first = {}, {}
    for name, make in makers.items():
        runs[name], first[name] = clock.first(make)
    return shown(runs, first, clock.rounds(runs, rounds))


def shown(runs: dict[str, Run], first: dict[str, float], times: dict[str, list[float]]) -> Table:
    """The figures as a table."""
    table = Table("way", "/ eager", "quartiles", "/ repeated", "first call", "distance")
    expected = runs["eager"]()
    for name, run in runs.items():
        ratios = [own / eager for own, eager in zip(times[name], times["eager"], strict=True)]
        others = [own / one for own, one in zip(times[name], times["compile_repeated_blocks"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        far = f"{(run() - expected).abs().max():.1e}"
        cells = (f"{middle:.3f}", f"{low:.3f} … {high:.3f}", f"{statistics.median(others):.3f}", f"{first[name]:.1f} s")
        table.add_row(name, *cells, far)
    return table


@torch.no_grad()
def main() -> None:
    """Measures one model and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--size", type=int, default=32, help="latents a side; a token is two by two")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    asked = parser.parse_args()
    clock = Clock(time.process_time if asked.clock == "cpu" else time.perf_counter)
    Console().print(measure(asked.hidden, asked.blocks, asked.size, asked.rounds, clock))


if __name__ == "__main__":
    main()
