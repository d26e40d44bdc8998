"""How much quicker several devices are than one, in real time: ``python -m benchmarks.devices [--minutes 20]``.

Two simulated devices in one process, one thread of BLAS each; a transformer with half double and half single blocks. In
each round run, one after the other: one device alone; two modules that know nothing of each other, each on a device and
a thread of its own, which is the limit; two such modules that have half of the tokens each and exchange nothing, which
a split by sequence cannot pass: a product of half the rows may take more than half of the time; and the module over two
devices by each mode. Printed are medians over the rounds: how many times quicker than one device, and the part of the
limit. Micro-batches are two pictures that go through a layer split one behind the other; they are compared with the
layer split that has both at once, and their limit is that of a pipeline of two parts: half of the time one device at
work, half of it two. Plans are made for devices that compute as a thread of this machine does, which these are, not for
the card that they rehearse. Rounds in which others took more than a tenth of a core are dropped; with fewer than eight
that are left it says "not measured", and prints only what does not depend on who else computes: seconds of the CPU,
bytes between devices and values that change state.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

import dovetail
from dovetail.fitting.decide import speeds_rehearsed
from dovetail.passes.batches import interleave
from dovetail.passes.states import arrange, fitting
from dovetail.runtime import sim

from .overhead import Case, double_and_single

SIZES = ((1536, 4, 1024), (512, 6, 256), (256, 4, 256))
MODES = ("sequence", "tensor", "batch")
MICRO = "micro-batches"
HALF_EACH = "half of the tokens each"
HALVES = "7:3"
"""Shares of weights that give each device half of the blocks: double ones compute what single ones do, with more."""

PLANNERS = (fitting, arrange, interleave)
"""What plans by the speeds of devices."""

ALONE = {"limit": "one", "batch": "one of two pictures", MICRO: "layer of two pictures"}
"""What a mode is compared with where that is not one device with one picture."""
LEAST = 8
"""So many rounds that nobody disturbed are a measurement."""
FOREIGN = 0.1
"""The cores that others may take in a round."""

Call = Callable[[], Any]
Round = dict[str, tuple[float, float]]
"""Seconds of the wall clock and of the CPU of each way."""


def case(hidden: int, blocks: int, tokens: int, pictures: int, dtype: torch.dtype) -> Case:
    """A module, and a call of some pictures."""
    module, call = double_and_single(hidden, blocks, tokens)
    several = ("hidden_states", "encoder_hidden_states", "pooled_projections", "timestep")
    for name in several:
        one = call[name] if name == "timestep" else call[name].to(dtype)
        call[name] = torch.cat([one] * pictures)
    return module.to(dtype), call


def ways(size: tuple[int, int, int], dtype: torch.dtype) -> tuple[dict[str, Call], dict[str, Any]]:
    """The calls of a round, and the modules that are compiled for two devices."""
    with ExitStack() as stack:
        for module in PLANNERS:
            stack.enter_context(patch.object(module, "speeds_of", speeds_rehearsed))
        return _ways(size, dtype)


def _ways(size: tuple[int, int, int], dtype: torch.dtype) -> tuple[dict[str, Call], dict[str, Any]]:
    single, call = case(*size, 1, dtype)
    other, _ = case(*size, 1, dtype)
    pair, both = case(*size, 2, dtype)
    hidden, blocks, tokens = size
    _, half = case(hidden, blocks, tokens // 2, 1, dtype)
    alone, halves = (
        [dovetail.compile(module, (), given, backend=f"sim{at}") for at, module in enumerate((single, other))]
        for given in (call, half)
    )
    of_two = dovetail.compile(pair, (), both, backend="sim0")
    split = {
        mode: dovetail.compile(
            pair if mode == "batch" else single,
            (),
            both if mode == "batch" else call,
            backend="sim0&sim1",
            split_mode=mode,
        )
        for mode in MODES
    }
    turns = {
        name: dovetail.compile(pair, (), both, backend="sim0&sim1", tensor_split=HALVES, micro_batches=parts)
        for name, parts in (("layer of two pictures", 1), (MICRO, 2))
    }
    calls: dict[str, Call] = {
        "one": lambda: alone[0](**call),
        "one of two pictures": lambda: of_two(**both),
        "limit": lambda: together([lambda one=one: one(**call) for one in alone]),  # type: ignore[misc]
        HALF_EACH: lambda: together([lambda one=one: one(**half) for one in halves]),  # type: ignore[misc]
    }
    split |= turns
    for mode, compiled in split.items():
        given = both if mode in ("batch", *turns) else call
        calls[mode] = lambda compiled=compiled, given=given: compiled(**given)  # type: ignore[misc]
    return calls, split


def together(calls: list[Call]) -> None:
    """Makes calls at the same time, each on a thread of its own."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def busy_cores() -> float:
    """The seconds that all cores of the machine were busy since it started."""
    with open("/proc/stat") as stat:
        ticks = [int(one) for one in stat.readline().split()[1:]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def one_round(calls: dict[str, Call]) -> tuple[Round, float]:
    """The seconds of each way, and how many cores others took meanwhile."""
    begun, busy, own = time.perf_counter(), busy_cores(), time.process_time()
    found: Round = {}
    for name, call in calls.items():
        start, cpu = time.perf_counter(), time.process_time()
        call()
        found[name] = time.perf_counter() - start, time.process_time() - cpu
    foreign = (busy_cores() - busy) - (time.process_time() - own)
    return found, foreign / (time.perf_counter() - begun)


def measure(calls: dict[str, Call], seconds: float, most: int) -> tuple[list[Round], list[float]]:
    """Rounds that nobody disturbed, as many as asked for if there is time, and what others took in all of them."""
    for call in calls.values():
        call()
    found: list[Round] = []
    foreign: list[float] = []
    end = time.monotonic() + seconds
    while len(found) < most and time.monotonic() < end:
        times, others = one_round(calls)
        foreign.append(others)
        if others <= FOREIGN:
            found.append(times)
    return found, foreign


def quicker(one: Round, mode: str) -> float:
    """How many times as quick as one device a mode was in a round; micro-batches, as the layer split."""
    return one[ALONE.get(mode, "one")][0] / one[mode][0]


def limit(one: Round, mode: str = "") -> float:
    """How many times as much two devices did in a round that knew nothing of each other, or could in a pipeline."""
    found = 2 * one["one"][0] / one["limit"][0]
    return 1 / (0.5 + 0.5 / found) if mode == MICRO else found


def moved(compiled: Any, call: Call) -> int:
    """The bytes that come to two simulated devices from the other one in a call."""
    before = [sim.stats(at).bytes_in for at in (0, 1)]
    call()
    return sum(sim.stats(at).bytes_in - had for at, had in zip((0, 1), before, strict=True))


def main(minutes: float, most: int) -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    table = Table("hidden × blocks × tokens", "dtype", "mode", "× one", "of limit", "CPU of one", "MB moved", "rounds")
    cases = [(size, dtype) for size in SIZES for dtype in (torch.float32, torch.bfloat16)]
    for size, dtype in cases:
        calls, split = ways(size, dtype)
        rounds, foreign = measure(calls, 60 * minutes / len(cases), most)
        name, kind = " × ".join(map(str, size)), str(dtype).removeprefix("torch.")
        if len(rounds) < LEAST:
            name += f" (others took {statistics.median(foreign):.1f} cores)"
        for mode in ("limit", HALF_EACH, *MODES, MICRO):
            table.add_row(name, kind, *_row(mode, rounds, calls, split))
    Console(width=130).print(table)


def _row(mode: str, rounds: list[Round], calls: dict[str, Call], split: dict[str, Any]) -> tuple[str, ...]:
    gains = [limit(one) if mode == "limit" else quicker(one, mode) for one in rounds]
    parts = [gain / limit(one, mode) for gain, one in zip(gains, rounds, strict=True)]
    alone = ALONE.get(mode, "one")
    times = one_round({name: calls[name] for name in (alone, mode)})[0]
    cpu = times[mode][1] / times[alone][1] / (2 if mode == "limit" else 1)
    bytes_moved = f"{moved(split[mode], calls[mode]) / 1e6:.1f}" if mode in split else ""
    if len(rounds) < LEAST:
        return mode, "not measured", "", f"{cpu:.2f}", bytes_moved, str(len(rounds))
    return (
        mode, f"{statistics.median(gains):.2f}", f"{statistics.median(parts):.2f}", f"{cpu:.2f}", bytes_moved,
        str(len(rounds)),
    )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    main(given.minutes, given.rounds)
