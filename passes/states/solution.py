"""What was decided: a way for each operation, the changes of state between them, and what these take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from torch.fx import Node

from ...compiler.devices.device import Device
from ...compiler.ir.state import WHOLE
from ...compiler.states.strategy import Strategy
from .exchanges import kind_of
from .problem import Account, Change, Choice, Problem

Groups = Mapping[Node, tuple[Device, ...]]
"""The devices that compute each operation together; one that is not there is for all devices of the program."""


@dataclass(frozen=True)
class Decision:
    """How each operation is computed, by all devices or those of its group, and whether terms cross in bfloat16."""

    strategies: Mapping[Node, Strategy]
    has_short_terms: bool = False
    groups: Groups = field(default_factory=dict)

    def of_copy(self, names: Mapping[str, Node]) -> Decision:
        """The same over the nodes of a copy, by their names."""
        ways = {names[node.name]: way_over(way, names) for node, way in self.strategies.items()}
        return Decision(ways, self.has_short_terms, {names[node.name]: its for node, its in self.groups.items()})


@dataclass(frozen=True)
class Solution:
    """The states of all values of a program over a group of devices.

    Args:
        mode: what was allowed.
        how: "solved", or the recipe that was taken.
        shares: the part of the work of each device.
        strategies: how each operation is computed, of those that stand for equal ones and of these.
        counts: for each operation that stands for equal ones how many they are with it; one for others.
        account: the seconds, the changes of state and the bytes of weights.
        floor: the seconds of the best recipe, if there is one.
        has_short_terms: whether terms of float32 sums cross in bfloat16.
        groups: the devices of each operation that not all of them compute.
    """

    mode: str
    how: str
    shares: tuple[int, ...]
    strategies: Mapping[Node, Strategy]
    counts: Mapping[Node, int]
    account: Account
    floor: float | None
    has_short_terms: bool = False
    groups: Groups = field(default_factory=dict)

    @property
    def decision(self) -> Decision:
        """What is to be done: without what it takes."""
        return Decision(self.strategies, self.has_short_terms, self.groups)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def of_copy(self, names: Mapping[str, Node]) -> Solution:
        """The same over the nodes of a copy, by their names."""
        changes = tuple(
            replace(
                one,
                tensor=(names[one.tensor[0].name], one.tensor[1]),
                readers=tuple(names[reader.name] for reader in one.readers),
            )
            for one in self.account.changes
        )
        decision = self.decision.of_copy(names)
        return replace(
            self,
            strategies=decision.strategies,
            groups=decision.groups,
            counts={names[node.name]: count for node, count in self.counts.items()},
            account=replace(self.account, changes=changes),
        )

    def _lines(self) -> Iterator[str]:
        account, shares = self.account, ":".join(map(str, self.shares))
        yield f"{self.mode} over {shares}, {self.how}: {account.seconds * 1e3:.4f} ms"
        yield f"weights {' '.join(map(str, account.weights))} B, sent {' '.join(map(str, account.sent))} B"
        of_node: dict[Node, list[Change]] = {}
        for change in account.changes:
            of_node.setdefault(change.tensor[0], []).append(change)
        for node, count in self.counts.items():
            yield f"%{node.name}{f' × {count}' if count > 1 else ''}: {self.strategies[node]}"
            yield from map(_spelled, of_node.get(node, ()))


@dataclass(frozen=True)
class NotPossible:
    """Why there is no solution under a mode."""

    mode: str
    reason: str

    def __str__(self) -> str:
        return f"{self.mode} is not possible: {self.reason}"


def _spelled(change: Change) -> str:
    kind = kind_of(change.source, change.target)
    at = f" of result {change.tensor[1]}" if change.tensor[1] else ""
    sent, readers = " ".join(map(str, change.sent)), ", ".join(f"%{node.name}" for node in change.readers)
    return f"  {kind}{at} × {change.count} to {change.target} for {readers}: sends {sent} B"


def solution_of(
    problem: Problem, choice: Choice, account: Account, mode: str, how: str, floor: float | None
) -> Solution:
    """A choice as what is decided of each operation, of equal blocks too."""
    chosen: dict[Node, Strategy] = {}
    for node, some in problem.ways.items():
        way = some[choice[node]]
        for like in problem.folded.likes[node]:
            chosen[like] = of_like(way, node, like)
    counts = {node: problem.folded.count(node) for node in problem.ways}
    group = problem.group
    return Solution(mode, how, group.shares, chosen, counts, account, floor, group.has_short_terms)


def way_over(way: Strategy, names: Mapping[str, Node]) -> Strategy:
    """A way over the nodes of a copy, by their names."""
    return Strategy(way.results, {names[one.name]: state for one, state in way.operands.items()})


def of_like(way: Strategy, node: Node, like: Node) -> Strategy:
    """The way of an operation for an equal one."""
    if like is node:
        return way
    pairs = zip(node.all_input_nodes, like.all_input_nodes, strict=True)
    return Strategy(way.results, {other: way.takes(one) for one, other in pairs if way.takes(one) != WHOLE})
