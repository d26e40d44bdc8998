"""Runs whole pipelines within small budgets of one device: `python -m benchmarks.budgets [NAME …]`.

Sixty pipelines with tiny components run on a simulated device, with their weights in host memory, without tiles, and
without computing on the host. For each a bound B is computed from its programs as they are lowered with all weights
there (`testbed/budgets.py`). Within 1.15 × B, and within more, a call has to be accepted, to give eager's bits and to
keep its peak within the budget; within less it may also be refused before anything runs, in words that name what is
needed and for which operation.

Prints a row a pipeline: its peak with all weights there, B as a part of that, and what became of it within 1.15 × B and
within parts of the peak, with the peak that was measured as a part of the budget. Then how many were accepted within
each, and all that is not as it has to be.
"""

from __future__ import annotations

import logging
import sys

from dovetail.runtime import sim
from testbed.budgets import SIXTY, SLACK, Answer, Bound, Subject

PARTS = (0.7, 0.4, 0.2)
"""The budgets that are tried besides, as parts of the peak with all weights there."""


def ask(name: str) -> tuple[Bound, list[Answer]]:
    """The bound of a pipeline, and what becomes of its call within the budgets that are tried."""
    subject = Subject(name)
    bound = subject.bound()
    budgets = [int(SLACK * bound.nbytes) + 1, *(int(part * bound.unbounded) for part in PARTS)]
    return bound, [subject.within(budget) for budget in budgets]


def told(answer: Answer) -> str:
    """What became of a call, in a cell of the table."""
    part = f" ({answer.peak / answer.budget:.2f})" if answer.peak else ""
    return f"{answer.verdict}{part}"


def main() -> None:
    """Prints the table of the pipelines named, or of all sixty."""
    logging.disable(logging.WARNING)
    sim.enable()
    names = sys.argv[1:] or list(SIXTY)
    labels = [f"{SLACK} × B", *(f"{part} × peak" for part in PARTS)]
    print("| pipeline | peak | B |", " | ".join(labels), "|", flush=True)
    print("|---|" + "---|" * (len(labels) + 2), flush=True)
    accepted, wrong = dict.fromkeys(labels, 0), []
    for name in names:
        bound, answers = ask(name)
        cells = " | ".join(map(told, answers))
        print(f"| {name} | {bound.unbounded} | {bound.nbytes / bound.unbounded:.2f} | {cells} |", flush=True)
        for label, answer in zip(labels, answers, strict=True):
            accepted[label] += answer.verdict == "accepted"
            if not answer.is_right(bound):
                wrong.append(f"{name} within {label}, {answer.budget} bytes: {answer.verdict}: {answer.said}")
    print(f"\naccepted of {len(names)}:", ", ".join(f"{count} within {label}" for label, count in accepted.items()))
    print("\n".join(wrong), flush=True)


if __name__ == "__main__":
    main()
