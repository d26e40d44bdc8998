"""States as a plan has them: what was solved once is not solved again where the plan is read.

A plan is the program that was placed, so that it says of each operation what the group yields and takes. Those states
are put onto a fresh trace, in the form that has the operations of the plan; memory is checked as of states that were
solved. Where the plan is of other operations or devices states are solved for anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch.fx import Node

from ...compiler.ir.program import Program
from ...compiler.ir.split import is_shared
from ...compiler.ir.state import WHOLE
from ...compiler.spec.modes import inner_mode
from ...compiler.states.strategy import Strategy
from ...compiler.states.table import strategy_of
from ..infra.base import Change, Pass
from ..placement.assignment import check_needs
from .fitting import group_of, needs_of_states, together
from .forms import forms_of
from .mesh import meshes_of
from .solution import Decision, Groups, NotPossible
from .states import States


@dataclass(frozen=True)
class KeptStates(Pass):
    """Has the devices of a program compute it together as a plan of it says; stands in the place of ``states``."""

    name: ClassVar[str] = States.name
    requires: ClassVar[frozenset[str]] = States.requires
    ensures: ClassVar[frozenset[str]] = States.ensures
    refuses: ClassVar[frozenset[str]] = States.refuses

    asked: States
    plan: Program

    def run(self, program: Program) -> Change:
        """Checks the states of the plan, then changes the program; raises DoesNotFitError and changes nothing then."""
        found = self._found(program)
        if found is None:
            return self.asked.run(program)
        form, strategies, groups = found
        decision = Decision(strategies, self.asked.has_short_terms, groups)
        check_needs(program, needs_of_states(form, decision, self.asked.headroom))
        program.graph = form.graph
        count = together(program, decision)
        return Change(len(list(program.ops())), f"operations computed as a plan says, {count} values change state")

    def __str__(self) -> str:
        return str(self.asked)

    def _found(self, program: Program) -> tuple[Program, Mapping[Node, Strategy], Groups] | None:
        """The form of a program that has the operations of the plan, with the states of these there."""
        if program.devices != self.plan.devices or program.symbols:
            return None
        for form, groups in self._forms(program):
            strategies = strategies_in(self.plan, form)
            if strategies is not None:
                return form, strategies, groups
        return None

    def _forms(self, program: Program) -> Iterator[tuple[Program, Groups]]:
        group = group_of(program, self.asked.shares)
        if not inner_mode(self.asked.mode):
            yield from ((form, {}) for form in forms_of(program, self.asked.mode, group.shares))
            return
        meshes = meshes_of(program, self.asked.mode, group)
        yield from ((one.program, one.groups) for one in meshes) if not isinstance(meshes, NotPossible) else ()


def strategies_in(plan: Program, program: Program) -> Mapping[Node, Strategy] | None:
    """How a plan has each operation of a program computed; None where it is a plan of other operations."""
    there = {node.name: node for node in plan.graph.nodes}
    found: dict[Node, Strategy] = {}
    for node in program.ops():
        like = there.get(node.name)
        if like is None or like.target != node.target or len(like.all_input_nodes) != len(node.all_input_nodes):
            return None
        way = strategy_of(like) if is_shared(like) else None
        if way is not None:
            pairs = zip(node.all_input_nodes, like.all_input_nodes, strict=True)
            taken = {one: way.takes(other) for one, other in pairs if way.takes(other) != WHOLE}
            found[node] = Strategy(way.results, taken)
    return found
