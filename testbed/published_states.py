"""Published models as states are solved for them, and groups of cards."""

from __future__ import annotations

from itertools import combinations

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.devices.speeds import speeds_of
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program
from dovetail.passes.rewrites.simplify import Simplify
from dovetail.passes.states.exchanges import Group
from dovetail.passes.states.forms import put_in_form

from .zoo.meta import FullSize


def traced(entry: FullSize) -> Program:
    """The program of a model as it is published."""
    module, call = entry.make()
    program = trace(module, (), call)
    Simplify().run(program)
    put_in_form(program)
    return program


def card_group(card: str, shares: tuple[int, ...], link: float | None = None) -> Group:
    """Equal cards that work at once; two of them reach each other at so many GB/s, where that is said."""
    names = [f"cuda{index}" for index in range(len(shares))]
    ways = [f"{one}-{other}={link:g}GB/s" for one, other in combinations(names, 2) if link]
    rig = Rig.parse(";".join([",".join([*(f"{name}=24GiB@{card}" for name in names), "cpu=64GiB"]), *ways]))
    return Group(tuple(one for one in rig.devices if not one.is_host), shares, speeds_of(rig))
