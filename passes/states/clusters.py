"""Operations that pass states through, joined with what makes their operands: fewer and larger choices.

An operation joins the cluster that makes its operands if it can be computed in some way whatever is chosen there; no
state changes inside a cluster. A choice of a cluster is one way of each of its operations. Of choices that look the
same from outside (what others read, what is read of others, what is read of weights) the fastest stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch.fx import Node

from ...compiler.ir.program import tensors_of, weight_name
from ...compiler.ir.state import PARTIAL, WHOLE, Split, State
from ...compiler.states.strategy import name_of
from .folding import Reading, Tensor, made_by, operands_of
from .problem import HEAVY, Problem

MOST = 64
"""A cluster of more choices is not joined with another operation."""


@dataclass(frozen=True)
class Joint:
    """One way of each operation of a cluster by its number, with the seconds of all."""

    picks: Mapping[Node, int]
    seconds: float


@dataclass(eq=False)
class Cluster:
    """Operations between which no state changes, and the choices of their ways together."""

    nodes: dict[Node, None]
    joints: list[Joint]
    inside: set[tuple[Reading, Tensor]] = field(default_factory=set)


@dataclass
class Clusters:
    """All clusters of a problem, in order, and that of each operation."""

    problem: Problem
    all: list[Cluster] = field(default_factory=list)
    of: dict[Node, Cluster] = field(default_factory=dict)

    def state(self, joint: Joint, tensor: Tensor) -> State:
        """The state in which a choice makes a tensor."""
        node, at = tensor
        return self.problem.ways[node][joint.picks[node]].results[at]

    def need(self, joint: Joint, reading: Reading) -> State:
        """The state in which a choice reads an operand."""
        node, operand = reading
        return self.problem.ways[node][joint.picks[node]].takes(operand)

    def made(self, node: Node, operand: Node) -> list[Tensor]:
        """The tensors that an operand is of which devices may have but parts."""
        sources = self.problem.folded.sources.get((node, operand), ())
        return [one for one in sources if one[0] in self.problem.ways and self._is_open(one)]

    def _is_open(self, tensor: Tensor) -> bool:
        node, at = tensor
        return any(way.results[at] != WHOLE for way in self.problem.ways[node])

    def outside(self, cluster: Cluster) -> Iterator[Tensor]:
        """The tensors of a cluster that others read, or that it reads of equal blocks."""
        for node in cluster.nodes:
            for at in range(len(self.problem.ways[node][0].results)):
                groups = self.problem.folded.readers.get((node, at), ())
                if any((reading, (node, at)) not in cluster.inside for readings, _ in groups for reading in readings):
                    yield node, at


def clusters_of(problem: Problem) -> Clusters:
    """The operations of a problem in clusters."""
    found = Clusters(problem)
    for node in problem.ways:
        if not _joins(found, node):
            joints = [Joint({node: at}, seconds) for at, seconds in enumerate(problem.times[node])]
            cluster = Cluster({node: None}, joints)
            found.all.append(cluster)
            found.of[node] = cluster
    for cluster in found.all:
        cluster.joints = _fastest(found, cluster, cluster.joints)
    return found


def _joins(found: Clusters, node: Node) -> bool:
    """Whether an operation was joined with the cluster that makes its operands."""
    read = {(node, one): found.made(node, one) for one in operands_of(node)}
    tensors = [tensor for some in read.values() for tensor in some]
    owners = {found.of.get(tensor[0]) for tensor in tensors}
    is_cut = len(tensors_of(node)) > 1  # one exchange of what is cut up is better than one for each piece
    if is_cut or name_of(node) in HEAVY or len(owners) != 1 or any(len(some) > 1 for some in read.values()):
        return False
    (cluster,) = owners
    if cluster is None:
        return False
    pairs = [(reading, some[0]) for reading, some in read.items() if some]
    joints = [*_joined(found, cluster, node, pairs)]
    if not joints or len(joints) > MOST * MOST:
        return False
    grown = Cluster({**cluster.nodes, node: None}, [], cluster.inside.union(pairs))
    fewer = _fastest(found, grown, joints)
    if len(fewer) > MOST:
        return False
    cluster.nodes, cluster.joints, cluster.inside = grown.nodes, fewer, grown.inside
    found.of[node] = cluster
    return True


def _joined(found: Clusters, cluster: Cluster, node: Node, pairs: Iterable[tuple[Reading, Tensor]]) -> Iterator[Joint]:
    """Each choice of a cluster with each way of an operation that goes with it; nothing where one has no such way."""
    problem, made = found.problem, []
    pairs = list(pairs)
    bound = [problem.is_bound(reading) for reading, _ in pairs]
    times = problem.times[node]
    for joint in cluster.joints:
        states = [found.state(joint, tensor) for _, tensor in pairs]
        if PARTIAL in states and any(times):
            return  # terms had better be added first: each device then computes but a part
        own = [
            Joint({**joint.picks, node: at}, joint.seconds + times[at])
            for at, way in enumerate(problem.ways[node])
            if all(
                _goes(state, way.takes(reading[1]), is_bound)
                for state, (reading, _), is_bound in zip(states, pairs, bound, strict=True)
            )
        ]
        if not own:
            return
        made += own
    yield from made


def _goes(made: State, need: State, is_bound: bool) -> bool:
    """Whether a value is read as it is made, or in parts of what all devices have."""
    return made == need or (made == WHOLE and isinstance(need, Split) and not is_bound)


def _fastest(found: Clusters, cluster: Cluster, joints: Iterable[Joint]) -> list[Joint]:
    """Of choices that look the same from outside the fastest, the first of several."""
    tensors = list(found.outside(cluster))
    readings = [
        (node, one)
        for node in cluster.nodes
        for one in operands_of(node)
        if weight_name(made_by(one)[0])
        or any(((node, one), tensor) not in cluster.inside for tensor in found.made(node, one))
    ]
    best: dict[object, Joint] = {}
    for joint in joints:
        facts = (
            tuple(found.state(joint, tensor) for tensor in tensors),
            tuple(found.need(joint, reading) for reading in readings),
        )
        if facts not in best or joint.seconds < best[facts].seconds:
            best[facts] = joint
    return list(best.values())
