"""What must be seen in a program for a fact about it to be believed."""

from __future__ import annotations

from collections.abc import Callable

from ...compiler.ir.program import Program, placement_of, weight_name


def placed(program: Program) -> bool:
    """Every weight has a home among the devices."""
    return bool(program.devices) and all(program.home.get(name) in program.devices for name in program.weights)


def pinned(program: Program) -> bool:
    """Every node that is no weight is on a device."""
    return all(placement_of(node).device is not None for node in program.graph.nodes if not weight_name(node))


def cut(program: Program) -> bool:
    """Every op is in a segment."""
    return sum(len(segment.nodes) for segment in program.segments) == sum(1 for _ in program.ops())


def scheduled(program: Program) -> bool:
    """There is a schedule."""
    return program.schedule is not None


POSTCONDITIONS: dict[str, Callable[[Program], bool]] = {
    check.__name__: check for check in (placed, pinned, cut, scheduled)
}
"""The facts that a program shows. Others (that blocks were looked for, that rules were checked) leave no trace."""
