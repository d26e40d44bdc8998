"""States that are solved for published models at full size: seconds, bytes sent and weights held by each device.

    python -m benchmarks.states [--only flux-dev,wan2.1-14b] [--card "RTX 4090"] [--shares 1,1]

Models are traced on meta, without weights. A row has a mode, whether states were solved or a recipe was taken, the
predicted milliseconds of a call and how many times quicker than on one device that holds all that is, the most bytes
that a device sends in a call and has of the weights, the exchanges, and the processor's seconds of solving, for each
class of blocks and in total. The first row is FLUX.1-dev with three blocks where no device may have more than 56 % of
the weights; hand-written plans add up two results a block there, 113 MB. A row with a star is that of a program whose
norms over all heads are taken apart. At the end stand the rows that took longer than 2 s a class or 10 s in total, each
with the part of solving that took longest.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Iterator, Sequence

from dovetail.compiler.ir.program import Program
from dovetail.passes.simulate.cost import cost_of
from dovetail.passes.states.exchanges import Group
from dovetail.passes.states.modes import MODES, Limits, posed
from dovetail.passes.states.solution import NotPossible
from dovetail.passes.states.solve import solve
from dovetail.passes.states.statistics import with_statistics
from testbed.published_states import card_group, traced
from testbed.zoo.full_size_diffusion import deepened
from testbed.zoo.meta import FULL_SIZE

NAMES = ("flux-dev", "wan2.1-14b", "sd3.5-large", "qwen-image", "sdxl-unet")
SHARES = ((1, 1), (1, 1, 1, 1), (5, 3, 2))
HAND_WRITTEN = 0.56

SECONDS_A_CLASS = 2.0
"""The processor's seconds that solving a class of blocks may take."""

SECONDS_IN_TOTAL = 10.0
"""The processor's seconds that solving a model may take."""

_PARTS = {
    "posed": "the ways of operations",
    "recipes": "recipes",
    "clusters_of": "clusters",
    "modelled": "building the program",
    "limited": "rows of bytes",
    "milp": "the search of the mixed-integer program",
}


def rows(
    program: Program, group: Group, modes: tuple[str, ...], slow: list[str], most: Limits = (), mark: str = ""
) -> Iterator[str]:
    """What is solved under some modes, a line each, with a mark behind the mode; notes those that are slow."""
    total = sum(weight.nbytes for weight in program.weights.values())
    alone = sum(cost_of(node).seconds(group.speeds[group.devices[0]]) for node in program.ops())
    classes = max(1, len(posed(program, group, "free").problem.folded.blocks))
    for mode in modes:
        start = time.process_time()
        found = solve(program, group, mode, most)
        spent = time.process_time() - start
        head = f"  {':'.join(map(str, group.shares)):8} {mode + mark:9}"
        took = f"{spent / classes:5.2f} s a class {spent:5.2f} s"
        if spent > min(SECONDS_IN_TOTAL, SECONDS_A_CLASS * classes):
            slow.append(f"{program.name} {head.strip()} {took}: {_reason(program, group, mode, most)}")
        if isinstance(found, NotPossible):
            yield f"{head} {found.reason} {took}"
            continue
        account, count = found.account, sum(change.count for change in found.account.changes)
        yield (
            f"{head} {found.how:25} {account.seconds * 1e3:9.1f} ms {alone / account.seconds:5.2f}×"
            f" {max(account.sent) / 1e6:9.1f} MB sent {max(account.weights) / total:5.0%} of weights"
            f" {count:4} exchanges {took}"
        )


def _reason(program: Program, group: Group, mode: str, most: Limits) -> str:
    """The part of solving that takes longest, with its part of all."""
    profile = cProfile.Profile(time.process_time)
    profile.runcall(solve, program, group, mode, most)
    stats = pstats.Stats(profile)
    found = {name: took for (_, _, name), (_, _, _, took, _) in stats.stats.items() if name in _PARTS}  # type: ignore[attr-defined]
    longest = max(found, key=found.__getitem__)
    return f"{_PARTS[longest]} takes {found[longest] / max(1e-9, stats.total_tt):.0%}"  # type: ignore[attr-defined]


def told(slow: Sequence[str]) -> Iterator[str]:
    """The rows that took longer than they may, or that none did."""
    limits = f"{SECONDS_A_CLASS:g} s a class of blocks or {SECONDS_IN_TOTAL:g} s in total"
    yield f"longer than {limits}: {len(slow) or 'none'}"
    yield from (f"  {one}" for one in slow)


def main() -> None:
    """Prints the rows of each model that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(NAMES), help="the models, by the names of testbed.zoo")
    parser.add_argument("--card", default="L20", help="the card of which there are several")
    parser.add_argument("--shares", default="", help="the part of each card, such as 5,3,2; several ways if left out")
    asked = parser.parse_args()
    shares = [tuple(map(int, asked.shares.split(",")))] if asked.shares else SHARES
    slow: list[str] = []
    program = traced(deepened("flux-dev", 3))
    most = int(HAND_WRITTEN * sum(weight.nbytes for weight in program.weights.values()))
    print("flux-dev with three blocks")
    print(*rows(program, card_group(asked.card, (1, 1)), ("tensor",), slow, (most, most)), sep="\n", flush=True)
    for name in asked.only.split(","):
        program = traced(FULL_SIZE[name])
        print(name)
        apart = with_statistics(program)
        has_norms = len(list(apart.ops())) > len(list(program.ops()))
        for each in shares:
            group = card_group(asked.card, each)
            print(*rows(program, group, MODES, slow), sep="\n", flush=True)
            if has_norms:
                print(*rows(apart, group, ("tensor",), slow, mark="*"), sep="\n", flush=True)
    print(*told(slow), sep="\n")


if __name__ == "__main__":
    main()
