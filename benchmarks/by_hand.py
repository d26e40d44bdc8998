"""Bytes that each device sends in a step by states that are solved, beside those of plans that are written by hand.

    python -m benchmarks.by_hand [--link GB/s] [NAME …]

The classes are those of diffusers that have a plan, at published sizes and 1024² (clips have as many tokens), in bf16
and cut to three blocks, over 2 and over 4 devices. A plan for tensors is beside states under which no device of two
has more than 56 % of the weights, of four 31 %; plans for tokens, whose weights are whole, beside those of `sequence`.
An all-reduce counts as the ring of it: each of n devices sends 2(n - 1)/n of the bytes. A row with a star is one in
which ours sends more; its largest exchanges are listed, some of which are of what theirs computes on every device, for
least seconds are solved for, not least bytes: over links of another rate (`--link 4`) other states take the least.
Nothing runs: theirs are counted on tensors without data.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections.abc import Iterator

import diffusers

from dovetail.compiler.errors import DovetailError
from dovetail.compiler.ir.program import Program, tensors_of
from dovetail.passes.states.exchanges import Group, kind_of
from dovetail.passes.states.problem import Change
from dovetail.passes.states.solution import NotPossible, Solution
from dovetail.passes.states.solve import solve
from testbed.hand_written import ENTRIES, KINDS, Sent, kinds_of, most_weights, sent_by_hand
from testbed.published_states import card_group, traced

COUNTS = (2, 4)
CARD = "L20"
MB = 1e6
ROW = "{:30} {:>7} {:8} {:>9} {:>7} {:>9} {:>7} {:>6}"


def main() -> None:
    """Prints the rows of each class that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of the classes; all if left out")
    parser.add_argument("--link", type=float, help=f"GB/s between two cards; those of {CARD} reach each other directly")
    given = parser.parse_args()
    _be_quiet()
    print(ROW.format("class", "devices", "plan", "theirs MB", "weights", "ours MB", "weights", "s"))
    for name in given.names or ENTRIES:
        try:
            program = traced(ENTRIES[name])
        except DovetailError as error:
            print(f"{name:30} ours is not traced: {_first(error)}", flush=True)
            continue
        for count in COUNTS:
            print(*rows(name, program, card_group(CARD, (1,) * count, given.link)), sep="\n", flush=True)


def _be_quiet() -> None:
    """Has nobody warn of how theirs are made; errors are rows."""
    warnings.simplefilter("ignore")
    diffusers.utils.logging.set_verbosity_error()
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)


def rows(name: str, program: Program, group: Group) -> Iterator[str]:
    """A line for each plan of a class, and one for each large exchange where ours sends more."""
    kinds, count = kinds_of(name), len(group.devices)
    solved = {mode: _solved(program, mode, group) for mode in dict.fromkeys(map(_mode_of, kinds))}
    total = sum(weight.nbytes for weight in program.weights.values())
    for kind in kinds:
        try:
            theirs: Sent | str = sent_by_hand(name, kind, count)
        except RuntimeError as error:
            theirs = _first(error)
        found, seconds = solved[_mode_of(kind)]
        if isinstance(found, NotPossible):
            yield f"{name:30} {count:>7} {kind:8} {found}"
            continue
        ours = Sent(max(found.account.sent), max(found.account.weights) / total)
        is_more = isinstance(theirs, Sent) and ours.nbytes > theirs.nbytes
        left = (f"{theirs.nbytes / MB:.1f}", f"{theirs.weights:.0%}") if isinstance(theirs, Sent) else ("–", "")
        right = f"{ours.nbytes / MB:.1f}", f"{ours.weights:.0%}", f"{seconds:.1f}"
        yield ROW.format(name, count, kind, *left, *right) + (" *" if is_more else "")
        if isinstance(theirs, str):
            yield f"{'':30} theirs does not run: {theirs}"
        if is_more:
            yield from map(_spelled, _largest(found))


def _mode_of(kind: str) -> str:
    return "tensor" if kind == KINDS[0] else "sequence"


def _solved(program: Program, mode: str, group: Group) -> tuple[Solution | NotPossible, float]:
    """What is solved under a mode, and the processor's seconds of it."""
    start = time.process_time()
    found = solve(program, group, mode, most_weights(program, mode, len(group.devices)))
    return found, time.process_time() - start


def _largest(found: Solution) -> list[Change]:
    return sorted(found.account.changes, key=lambda one: -max(one.sent) * one.count)[:5]


def _spelled(change: Change) -> str:
    node, at = change.tensor
    shape, readers = tensors_of(node)[at].sizes, ", ".join(f"%{one.name}" for one in change.readers[:4])
    kind, sent = kind_of(change.source, change.target), max(change.sent) * change.count / MB
    return f"{'':30} {sent:.1f} MB: {kind} × {change.count} of %{node.name} {shape} for {readers}"


def _first(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


if __name__ == "__main__":
    main()
