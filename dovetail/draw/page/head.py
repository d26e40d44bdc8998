"""What stands at the head of the page: what was planned, and which other plans were found on the way to it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ...compiler.durations import duration
from ...compiler.ir.program import Program
from ...passes.fit.trial import ALONE, LAYER
from ...planning.table import Account

_TRIFLE = 0.1
"""Types of weights that have a smaller part of the bytes are not named."""
_MOST = 5
"""So many other plans are shown, the quickest ones."""
_WAYS = {ALONE: "on one device", LAYER: "by layers"}


def head_of(programs: Mapping[str, Program], account: Account | None) -> dict[str, Any]:
    """What a call makes, in words, with the seconds of a step, and which version shows it on which day."""
    version = sys.modules[__name__.partition(".")[0]].__version__  # of the package, which imports this folder
    words = account.generation.picture.words() if account else []
    return {
        "words": [*words, *types_in(programs.values())],
        "step": _step(account) if account else "",
        "made": f"dovetail {version}, {time.strftime('%Y-%m-%d')}",
    }


def types_in(programs: Any) -> list[str]:
    """The types of most weights, those of most bytes first."""
    found: Counter[str] = Counter()
    for program in programs:
        for weight in program.weights.values():
            found[weight.quant or str(weight.dtype).removeprefix("torch.")] += weight.nbytes
    least = _TRIFLE * sum(found.values())
    return [name for name, nbytes in found.most_common() if nbytes > least]


def _step(account: Account) -> str:
    """The seconds of a step of sampling; nothing where the number of steps is not known."""
    steps = account.generation.picture.steps
    parts = [part for part in account.shown if part.call.phase.startswith("sampling")]
    seconds = sum(part.seconds - part.bringing for part in parts) - sum(one.saved for one in account.together)
    return duration(seconds / steps, account.spread) if steps and seconds > 0 else ""


def others_of(account: Account | None) -> list[dict[str, Any]]:
    """The plan and the quickest of those that its search met, the plan first; none where it met no others.

    Each has what is otherwise in it, the seconds of a picture, these in words, and how much longer it takes in percent.
    A search has no more than an estimate of seconds, so that they count in proportion to those of the plan.
    """
    if account is None or account.decision is None:
        return []
    whole = account.decision.solution.seconds
    others = sorted(_others(account), key=lambda one: one[1])[:_MOST]
    rows = [("this plan", whole), *others] if others and whole else []
    return [
        {
            "what": what,
            "seconds": account.seconds * seconds / whole,
            "takes": duration(account.seconds * seconds / whole, account.spread),
            "longer": round(100 * (seconds / whole - 1)),
        }
        for what, seconds in rows
    ]


def _others(account: Account) -> Iterator[tuple[str, float]]:
    """What is otherwise in each other plan that is at hand, and its seconds by the search."""
    assert account.decision is not None
    yield from ((one.what, one.seconds) for one in account.decision.others)
    yield from ((f"{' and '.join(one.names)} in {one.quant}", one.seconds) for one in account.packed)
    for one in account.decision.choices:
        if one.seconds is not None and not one.is_taken:
            yield f"{one.component}, {_WAYS.get(one.mode, f'by {one.mode}')}", one.seconds
    if (quicker := account.decision.quicker) is not None:
        yield "--split-mode auto", quicker.seconds
