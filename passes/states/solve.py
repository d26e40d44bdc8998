"""The states of all values of a program over a group of devices that take least under a mode.

Recipes are built first (`recipes`), then a mixed-integer linear program (`model`) says what is better than the best of
them. A mode is a constraint on ways and on bytes of weights (`modes.posed`). Equal blocks have equal states: one stands
for all (`folding`), with as many times its seconds and bytes. What comes in at the next block of a chain is what left
the one before.

Effort is limited by nodes of the search and by the gap to the bound, never by time: equal input gives an equal plan. A
recipe is the answer where none better is found in that effort.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from ...compiler.ir.program import Program
from .clusters import clusters_of
from .exchanges import Group
from .masks import as_read
from .model import Model, modelled
from .modes import Limits, Posed, posed, why_not
from .recipes import Recipe, best_recipe, recipes
from .solution import NotPossible, Solution, solution_of

NODE_LIMIT = 500
GAP = 2e-3


def solve(
    program: Program,
    group: Group,
    mode: str = "free",
    most: Limits = (),
    room: Limits = (),
    *,
    node_limit: int = NODE_LIMIT,
    mip_rel_gap: float = GAP,
) -> Solution | NotPossible:
    """The states of least seconds under a mode.

    Args:
        program: it is traced, and not placed; its blocks are found if they were not.
        group: the devices that work at once.
        mode: one of `modes.MODES`.
        most: the bytes of weights that each device may have; None for as many as there are.
        room: the bytes of weights and values together that each device may have, likewise.
        node_limit: the most nodes of the search.
        mip_rel_gap: how far from the bound, as a part of it, is good enough.
    """
    return solver_of(program, group, mode, most).solved(room, node_limit, mip_rel_gap)


def solver_of(program: Program, group: Group, mode: str, most: Limits = ()) -> Solver:
    """What solves a program under a mode, for one room after another; see `solve` for the arguments."""
    return Solver(posed(program, group, mode, most), mode)


@dataclass(frozen=True)
class Solver:
    """Solves a problem for one room of devices after another: what does not depend on room is built once."""

    posed: Posed
    mode: str

    def solved(self, room: Limits = (), node_limit: int = NODE_LIMIT, gap: float = GAP) -> Solution | NotPossible:
        """The states of least seconds that keep to the bytes of weights and values that devices may have."""
        if self._refusal:
            return NotPossible(self.mode, self._refusal)
        question = self.posed.within(room)
        problem, recipe = question.problem, best_recipe(question, self._recipes)
        floor = recipe.account.seconds if recipe else None
        if question.in_space and recipe is not None:
            found = solution_of(problem, recipe.choice, recipe.account, self.mode, recipe.name, floor)
            return replace(found, strategies=as_read(problem.folded.program, found.strategies))
        choice, is_closed = self._model.limited(question.most, question.room, floor).solved(node_limit, gap)
        if choice is not None and problem.is_possible(choice):
            account = problem.account(choice)
            if (floor is None or account.seconds <= floor) and question.is_kept(account):
                return solution_of(problem, choice, account, self.mode, "solved", floor)
        if recipe is None:
            others = "there are none" if is_closed else f"none were found in {node_limit} nodes"
            return NotPossible(self.mode, f"no recipe keeps to the bytes that devices may have, and of states {others}")
        return solution_of(problem, recipe.choice, recipe.account, self.mode, recipe.name, floor)

    def recipe(self) -> Solution | NotPossible:
        """The best recipe that splits something, whatever room devices have; nothing is solved for."""
        some = [one for one in self._recipes if one.name != "whole"] if not self._refusal else []
        best = best_recipe(self.posed.within(()), some)
        if best is None:
            return NotPossible(self.mode, self._refusal or "no recipe splits any of its operations")
        seconds = best.account.seconds
        return solution_of(self.posed.problem, best.choice, best.account, self.mode, best.name, seconds)

    def over(self, group: Group) -> Solver:
        """The same over devices of other speeds, whose shares are these."""
        return Solver(self.posed.over(group), self.mode)

    @cached_property
    def _refusal(self) -> str:
        """Why nothing can be split under the mode, if so."""
        problem = self.posed.problem
        return why_not(problem.folded.program, problem.group, self.mode)

    @cached_property
    def _recipes(self) -> tuple[Recipe, ...]:
        return tuple(recipes(self.posed))

    @cached_property
    def _model(self) -> Model:
        return modelled(self.posed.problem, clusters_of(self.posed.problem))
