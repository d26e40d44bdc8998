"""The states of all values of a program over a group of devices: a mixed-integer linear program, by HiGHS.

Variables
    for each cluster of operations and each choice of their ways x, 0 or 1 (`_Model.choices`); for each tensor, each of
    its readers in another cluster, and each two states f, the part of it that is made in the one and read in the other,
    and for tensors of several readers y, the change of state that these share (`_Model.flows`, `_Model.shared`); for
    each weight that several operations read and each state h, that it is held so (`_Model.held`). Only x must be
    integers.

Objective, least
    the predicted seconds of a call: x times those of the choice on the device that takes longest at each operation
    (`Problem.times`), and f or y times those of the exchange: bytes by the ways between devices, those of a shared
    root together, and a latency (`Group.seconds`). What cannot be split takes its time on each device.

Constraints
    one choice for each cluster (`_Model.choices`); what is made of a tensor in a state flows to the states in which it
    is read (`_Model.flows`), no more than y of it (`_Model.shared`); memory that is written is read as it is made
    (`_Model.bound`); the bytes of weights of each device are at most what it may have (`_Model.within`), and so are
    those of weights and of values together (`_Model.beside`); the seconds are at most those of the best recipe
    (`_Model.below`). A mode is a constraint on ways and on these bytes (`modes.posed`).

Equal blocks have equal states: one stands for all (`folding`), with as many times its seconds and bytes. What comes in
at the next block of a chain is what left the one before. Effort is limited by nodes of the search and by the gap to the
bound, never by time: equal input gives an equal plan. A recipe is the answer where none better is found in that effort.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch.fx import Node

from ...compiler.ir.program import Program
from ...compiler.ir.state import PARTIAL, WHOLE, State
from .clusters import Cluster, Clusters, clusters_of
from .exchanges import Group, can_change
from .folding import Reading, Tensor, operands_of
from .masks import as_read
from .modes import Limits, Posed, pictures, posed
from .problem import Choice
from .recipes import best_recipe
from .solution import NotPossible, Solution, solution_of

NODE_LIMIT = 500
GAP = 2e-3

_MS, _MIB = 1e3, 2**-20
_INFEASIBLE = 2

Columns = Mapping[State, Sequence[int]]
"""For each state the columns of the choices that make a tensor in it, or read it so."""


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
    question = posed(program, group, mode, most, room)
    if mode == "batch" and question.batch < 2:
        return NotPossible(mode, "the inputs are of one picture")
    if mode == "spatial" and not pictures(program, group):
        return NotPossible(mode, "none of the inputs is a picture that can be split")
    problem, recipe = question.problem, best_recipe(question)
    floor = recipe.account.seconds if recipe else None
    if question.in_space and recipe is not None:
        found = solution_of(problem, recipe.choice, recipe.account, mode, recipe.name, floor)
        return replace(found, strategies=as_read(program, found.strategies))
    choice, is_closed = _Model(question, clusters_of(problem), floor).solved(node_limit, mip_rel_gap)
    if choice is not None and problem.is_possible(choice):
        account = problem.account(choice)
        if (floor is None or account.seconds <= floor) and question.is_kept(account):
            return solution_of(problem, choice, account, mode, "solved", floor)
    if recipe is None:
        others = "there are none" if is_closed else f"none were found in {node_limit} nodes"
        return NotPossible(mode, f"no recipe keeps to the bytes that devices may have, and of states {others}")
    return solution_of(problem, recipe.choice, recipe.account, mode, recipe.name, floor)


@dataclass
class _Model:
    """The columns and rows of the program, in milliseconds and MiB."""

    posed: Posed
    clusters: Clusters
    floor: float | None
    costs: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)
    column: dict[tuple[Cluster, int], int] = field(default_factory=dict)
    copies: dict[Reading, list[tuple[int, Tensor, State]]] = field(default_factory=lambda: defaultdict(list))

    def solved(self, node_limit: int, gap: float) -> tuple[Choice | None, bool]:
        """The choice of least milliseconds that was found, if one was; else whether there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        self.choices()
        self.readings()
        self.within()
        self.beside()
        self.below()
        spots = [(row, column, value) for row, (terms, _, _) in enumerate(self.rows) for column, value in terms.items()]
        rows, columns, values = zip(*spots, strict=True)
        matrix = csr_array((values, (rows, columns)), shape=(len(self.rows), len(self.costs)))
        low, high = ([row[at] for row in self.rows] for at in (1, 2))
        result = milp(
            np.array(self.costs),
            constraints=LinearConstraint(matrix, low, high),
            integrality=np.array(self.whole),
            bounds=Bounds(0, 1),
            options={"node_limit": node_limit, "mip_rel_gap": gap},
        )
        if result.x is None:
            return None, result.status == _INFEASIBLE
        found: dict[Node, int] = {}
        for (cluster, at), column in self.column.items():
            if result.x[column] > 0.5:
                found.update(cluster.joints[at].picks)
        return {node: found[node] for node in self.posed.problem.ways}, True

    def add(self, cost: float = 0.0, whole: int = 0) -> int:
        """A new column."""
        self.costs.append(cost)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, terms: Mapping[int, float], low: float, high: float) -> None:
        """A new row, unless it has nothing in it."""
        if terms:
            self.rows.append((dict(terms), low, high))

    def choices(self) -> None:
        """One choice for each cluster."""
        for cluster in self.clusters.all:
            own = [self.add(joint.seconds * _MS, 1) for joint in cluster.joints]
            self.column.update({(cluster, at): column for at, column in enumerate(own)})
            self.row(dict.fromkeys(own, 1.0), 1, 1)

    def readings(self) -> None:
        """What is made of each tensor is read by its readers, those of each block by themselves."""
        problem = self.posed.problem
        for tensor in problem.tensors:
            owner = self.clusters.of[tensor[0]]
            made = self._columns(owner, lambda joint, at=tensor: self.clusters.state(joint, at))
            for readings, count in problem.folded.readers[tensor]:
                outer = [one for one in readings if (one, tensor) not in owner.inside]
                for reading in filter(problem.is_bound, outer):
                    self.bound(made, self.needs(reading))
                alike: dict[str, list[Reading]] = defaultdict(list)
                for reading in (one for one in outer if not problem.is_bound(one)):
                    needed = self.needs(reading)
                    alike[str({str(state): some for state, some in needed.items()})].append(reading)
                    if PARTIAL not in made:
                        self.row(dict.fromkeys(needed.get(PARTIAL, ()), 1.0), 0, 0)
                if set(made) != {WHOLE}:
                    self.read(tensor, made, list(alike.values()), count)

    def needs(self, reading: Reading) -> Columns:
        """The columns of the choices that read an operand, by the state; none where the whole of it is yielded."""
        cluster = self.clusters.of.get(reading[0])
        if cluster is None:
            return {WHOLE: ()}
        return self._columns(cluster, lambda joint: self.clusters.need(joint, reading))

    def _columns(self, cluster: Cluster, state: object) -> Columns:
        found: dict[State, list[int]] = defaultdict(list)
        for at, joint in enumerate(cluster.joints):
            found[state(joint)].append(self.column[cluster, at])  # type: ignore[operator]
        return found

    def bound(self, made: Columns, needed: Columns) -> None:
        """Memory that is written is read in the state in which it is made."""
        for state in dict.fromkeys((*made, *needed)):
            terms = dict.fromkeys(made.get(state, ()), 1.0)
            for column in needed.get(state, ()):
                terms[column] = terms.get(column, 0.0) - 1
            self.row(terms, 0, 0)

    def read(self, tensor: Tensor, made: Columns, readers: Sequence[Sequence[Reading]], count: int) -> None:
        """The readers of a tensor, those that choose alike together; if they are several they share what is changed."""
        needs = [self.needs(some[0]) for some in readers]
        if len(needs) == 1 and set(needs[0]) == {WHOLE}:
            for state, columns in made.items():
                for column in columns:
                    self.costs[column] += self._cost(tensor, state, WHOLE, count)
                    self._copied(readers[0], column, tensor, state, WHOLE)
            return
        shared = self.shared(tensor, made, needs, count) if len(needs) > 1 else None
        for some, needed in zip(readers, needs, strict=True):
            for source, target, column in self.flows(tensor, made, needed, count, shared):
                self._copied(some, column, tensor, source, target)

    def _copied(self, readers: Sequence[Reading], column: int, tensor: Tensor, source: State, target: State) -> None:
        """Notes a column that has a tensor be brought into another state for some readers."""
        if source not in (target, WHOLE):
            for reading in readers:
                self.copies[reading].append((column, tensor, target))

    def shared(
        self, tensor: Tensor, made: Columns, readers: Iterable[Columns], count: int
    ) -> dict[tuple[State, State], int]:
        """A column for each change of state that readers of a tensor share."""
        needed = dict.fromkeys((WHOLE, *(state for one in readers for state in one)))
        return {
            (source, target): self.add(self._cost(tensor, source, target, count))
            for source in made
            for target in needed
            if source not in (target, WHOLE) and can_change(source, target)
        }

    def flows(
        self,
        tensor: Tensor,
        made: Columns,
        needed: Columns,
        count: int,
        shared: Mapping[tuple[State, State], int] | None,
    ) -> list[tuple[State, State, int]]:
        """What is made in each state goes to the states in which it is read, straight or through the whole.

        Returns the columns, each with the two states.
        """
        found = []
        out: dict[State, dict[int, float]] = {state: dict.fromkeys(some, -1.0) for state, some in made.items()}
        into: dict[State, dict[int, float]] = {state: dict.fromkeys(some, -1.0) for state, some in needed.items()}
        used: dict[tuple[State, State], dict[int, float]] = defaultdict(dict)
        for source in made:
            for target in needed:
                for through in self._routes(source, target, shared is not None):
                    is_free = through is None or shared is not None
                    column = self.add(0.0 if is_free else self._cost(tensor, source, target, count))
                    out[source][column] = into[target][column] = 1.0
                    found.append((source, target, column))
                    if through is not None:
                        used[source, through][column] = 1.0
        for terms in out.values():
            self.row(terms, 0, 0)
        for state, terms in into.items():
            ends = 1.0 if not needed[state] else 0.0
            self.row(terms, ends, ends)
        for change, column in (shared or {}).items():
            self.row({**used[change], column: -1.0}, -np.inf, 0)
        return found

    def _routes(self, source: State, target: State, is_shared: bool) -> list[State | None]:
        """The states into which a tensor is brought to be read in one: none, that one, or the whole."""
        if source in (target, WHOLE):
            return [None] if can_change(source, target) else []
        if not can_change(source, target):
            return []
        return [target, WHOLE] if is_shared and target not in (WHOLE, PARTIAL) else [target]

    def _cost(self, tensor: Tensor, source: State, target: State, count: int) -> float:
        return self.posed.problem.change(tensor, source, target)[1] * count * _MS

    def within(self) -> None:
        """The bytes of weights of each device are at most what it may have."""
        if set(self.posed.most) == {None}:
            return
        for terms, limit in zip(self._held(), self.posed.most, strict=True):
            if limit is not None:
                self.row(terms, -np.inf, limit * _MIB)

    def beside(self) -> None:
        """The bytes of weights and of values at each heavy operation are at most what each device has room for."""
        problem, room = self.posed.problem, self.posed.room
        if set(room) == {None}:
            return
        for member, (terms, limit) in enumerate(zip(self._held(), room, strict=True)):
            if limit is None:
                continue
            total = sum(nbytes for _, nbytes in problem.weights) * _MIB
            weights = self.add()
            self.row({**terms, weights: -total}, -np.inf, 0)
            for node, tensors in problem.steps:
                self.row({**self._alive(node, tensors, member), weights: total}, -np.inf, limit * _MIB)

    def _alive(self, node: Node, tensors: Iterable[Tensor], member: int) -> dict[int, float]:
        """The bytes of values of a device at an operation, with what is brought for it, by column."""
        problem, terms = self.posed.problem, defaultdict[int, float](float)
        for tensor in tensors:
            made = self._columns(self.clusters.of[tensor[0]], lambda joint, at=tensor: self.clusters.state(joint, at))
            for state, columns in made.items():
                for column in columns:
                    terms[column] += problem.nbytes(tensor, state, member) * _MIB
        for operand in operands_of(node):
            copies = self.copies[node, operand]
            for column, tensor, target in (one for one in copies if one[1] == copies[0][1]):
                terms[column] += problem.nbytes(tensor, target, member) * _MIB
        return terms

    def _held(self) -> list[dict[int, float]]:
        """The bytes of weights of each device, by column."""
        problem = self.posed.problem
        each: list[dict[int, float]] = [defaultdict(float) for _ in problem.group.devices]
        for readings, nbytes in problem.weights:
            for state, columns in self.held(readings).items():
                for member, terms in enumerate(each):
                    for column in columns:
                        terms[column] += nbytes * problem.held([state], member) * _MIB
        return each

    def held(self, readings: Sequence[Reading]) -> Columns:
        """The columns that say in which states a weight is held: those of its reader, or new ones for several."""
        needs = [self.needs(reading) for reading in readings]
        if len(needs) == 1:
            return needs[0]
        states = {state: [self.add()] for state in dict.fromkeys((WHOLE, *(state for one in needs for state in one)))}
        for needed in needs:
            for state, columns in needed.items():
                terms = {**dict.fromkeys(columns, 1.0), states[state][0]: -1.0, states[WHOLE][0]: -1.0}
                self.row(terms, -np.inf, 0)
        return states

    def below(self) -> None:
        """The milliseconds are at most those of the best recipe."""
        if self.floor is not None:
            self.row({at: cost for at, cost in enumerate(self.costs) if cost}, -np.inf, self.floor * _MS * (1 + 1e-7))
