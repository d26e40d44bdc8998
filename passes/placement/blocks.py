"""Finds the repeated blocks of a component from the structure of its weights' names.

A block is what a layer split moves as one: a transformer block, in a UNet a resnet or attention unit. Members of a
list (``blocks.0``, ``blocks.1``, …) are blocks when most of them hold the same weights in the same shapes. Where they
do not (the stages of a UNet) and their own lists hold nearly all they have, the search goes on inside. What a stage
holds beside its units goes with the unit before it in graph order. No class and no model is known by name.

The invariants: a weight is in one block at most; blocks, and the weights in each, stand in the order in which the graph
uses them first; no block lies inside another. Takes time linear in the weights (times the depth of their names) and in
the nodes.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from torch.fx import Node

from ...compiler.ir.program import Block, Program, origin_of, weight_name
from ...compiler.ir.weight import Weight
from ..infra.base import Change, Pass

logger = logging.getLogger(__name__)

_NUMBERED = re.compile(r"(.*\D)\d+")
_COVERED = 0.9  # share of a stage's bytes that lies in its own lists


@dataclass(frozen=True)
class FindBlocks(Pass):
    """Groups the weights of repeated units into blocks, in the order in which the graph uses them."""

    name: ClassVar[str] = "blocks"
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})
    ensures: ClassVar[frozenset[str]] = frozenset({"blocks found"})

    def run(self, program: Program) -> Change:
        """Finds units by name, hands every weight of a stage to one of them, and orders them by first use."""
        units = _with_layers_whole(program, _find_units(_Module.of(program.weights)))
        program.blocks = _collect(_by_first_use(program), units)
        if len(program.blocks) < 2 and len(program.devices) > 1:
            program.blocks = _runs_of_modules(program)
            if len(program.blocks) > 1:
                logger.info("%s has no repeated blocks: it is cut between any two modules", program.name)
        return Change(len(program.blocks), "blocks found")


def blocks_by_name(weights: Mapping[str, Weight]) -> tuple[Block, ...]:
    """The blocks among the weights of a module of which there is no graph, in the order of the names."""
    return _collect(((weight, "") for weight in weights.values()), _find_units(_Module.of(weights)))


@dataclass
class _Module:
    """A node of the module tree as the weights' names spell it."""

    path: str
    children: dict[str, _Module] = field(default_factory=dict)
    weights: dict[str, Weight] = field(default_factory=dict)  # by name relative to this module
    nbytes: int = 0

    @staticmethod
    def of(weights: Mapping[str, Weight]) -> _Module:
        root = _Module("")
        for weight in weights.values():
            if weight.kind != "constant":
                root._add(weight)
        return root

    def _add(self, weight: Weight) -> None:
        module, parts = self, weight.name.split(".")
        for depth in range(len(parts)):
            module.weights[".".join(parts[depth:])] = weight
            module.nbytes += weight.nbytes
            if depth < len(parts) - 1:
                path = ".".join(parts[: depth + 1])
                module = module.children.setdefault(parts[depth], _Module(path))

    def with_numbers_as_lists(self) -> _Module | None:
        """This tree with ``layer0, layer1, …`` as the members of a list, at any depth; None where there are none."""
        stems: dict[str, list[str]] = defaultdict(list)
        for name in self.children:
            match = _NUMBERED.fullmatch(name)
            if match:
                stems[match[1]].append(name)
        lists = {stem: names for stem, names in stems.items() if len(names) > 1}
        deeper = {name: child.with_numbers_as_lists() for name, child in self.children.items()}
        if not lists and not any(deeper.values()):
            return None
        inside = {name for names in lists.values() for name in names}
        known = {name: deeper[name] or child for name, child in self.children.items()}
        children = {name: child for name, child in known.items() if name not in inside}
        for stem, names in lists.items():
            members = {str(place): known[name] for place, name in enumerate(names)}
            nbytes = sum(member.nbytes for member in members.values())
            children[f"{stem}*"] = _Module(f"{self.path}.{stem}*".lstrip("."), members, {}, nbytes)
        return _Module(self.path, children, self.weights, self.nbytes)

    @property
    def is_list(self) -> bool:
        return bool(self.children) and all(name.isdigit() for name in self.children)

    @property
    def shapes(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        return frozenset((name, weight.shape) for name, weight in self.weights.items())


@dataclass(frozen=True)
class _Search:
    """Looks for blocks in lists; those of plain layers count only where there are no others (``layers``).

    A list of more than ``half`` of a component's bytes holds blocks even if they differ.
    """

    half: int
    layers: bool = False

    def is_list(self, module: _Module) -> bool:
        return module.is_list and (self.layers or any(child.children for child in module.children.values()))

    def lists(self, module: _Module) -> Iterator[_Module]:
        """The outermost lists inside a module."""
        for child in module.children.values():
            if self.is_list(child):
                yield child
            else:
                yield from self.lists(child)

    def units(self, module: _Module, inside: bool = False) -> Iterator[str]:
        """The paths of the blocks in a module; ``inside`` a stage, a list of one is a block as well."""
        for held in [module] if self.is_list(module) and not inside else list(self.lists(module)):
            alike = _alike(list(held.children.values()))
            inner = {member.path: self._parts(member, alike) for member in held.children.values()}
            taken = alike or inside or any(inner.values()) or (held.nbytes > self.half and len(inner) > 1)
            for path, parts in inner.items():
                if len(parts) > 1:
                    yield from parts
                elif taken:
                    yield path

    def _parts(self, member: _Module, alike: bool) -> list[str]:
        """The blocks in a member of a list if it is a stage: if nearly all that it has lies in its lists.

        One among its like must be a chain of blocks.
        """
        lists = list(self.lists(member))
        if alike:
            own = [held.path for held in member.children.values()]
            lists = [held for held in lists if held.path in own and _alike(list(held.children.values()))]
        covered = sum(held.nbytes for held in lists)
        return list(self.units(member, inside=True)) if covered >= _COVERED * member.nbytes > 0 else []

    def singles(self, module: _Module, units: set[str]) -> Iterator[str]:
        """The members of lists of one beside a list of blocks, such as the attention between two resnets.

        At the top, where embeddings and heads stand beside the blocks too, one must weigh as much as a block.
        """
        lists = [child for child in module.children.values() if child.is_list]
        blocks = [one for held in lists for one in held.children.values() if one.path in units]
        least = min((one.nbytes for one in blocks), default=0) if not module.path else 0
        for child in module.children.values():
            if not child.is_list:
                yield from self.singles(child, units)
            elif blocks and len(child.children) == 1:
                (member,) = child.children.values()
                inside = any(f"{unit}.".startswith(f"{member.path}.") for unit in units)
                if not inside and member.nbytes >= least:
                    yield member.path


def _find_units(tree: _Module) -> list[str]:
    """Units in lists; those that are numbered attributes where these hold far more, or where there is no list."""
    listed = _search(tree)
    numbered = tree.with_numbers_as_lists()
    if numbered is None:
        return listed
    others = _search(numbered)
    return others if _nbytes_in(tree, others) > 2 * _nbytes_in(tree, listed) else listed


def _nbytes_in(tree: _Module, units: list[str]) -> int:
    owner = _Owner(units)
    return sum(weight.nbytes for name, weight in tree.weights.items() if owner.unit(name))


def _search(tree: _Module) -> list[str]:
    for search in (_Search(tree.nbytes // 2), _Search(tree.nbytes // 2, layers=True)):
        units = list(search.units(tree)) or list(search.units(tree, inside=True))
        if units:
            return [*units, *search.singles(tree, set(units))]
    return []


def _alike(members: list[_Module]) -> bool:
    """Whether more than half of the members hold the same weights as another one, give or take a few."""
    if len(members) < 2:
        return False
    shapes = [member.shapes for member in members]
    common = Counter(shapes).most_common(1)[0][0]
    alike = sum(len(own & common) > 0.5 * len(own | common) for own in shapes)
    return alike >= 2 and alike > len(members) / 2


def _collect(used: Iterable[tuple[Weight, str]], units: list[str]) -> tuple[Block, ...]:
    """Blocks with their weights, ordered by first use.

    A weight of a stage that lies in none of its units joins the unit that was used before it; one that is used before
    any unit of its stage is kept in ``waiting``, and joins the first.
    """
    owner = _Owner(units)
    held: dict[str, list[str]] = defaultdict(list)
    waiting: dict[str | None, list[str]] = defaultdict(list)  # by stage
    last = ""
    for weight, module in used:
        name = module if weight.kind == "constant" else weight.name
        unit, stage = owner.unit(name), owner.stage(name)
        if unit is None and stage is None:
            continue
        if unit is None and owner.stage(last) != stage:
            waiting[stage].append(weight.name)
            continue
        last = unit or last
        held[last] += [*waiting.pop(owner.stage(last), []), weight.name]
    return tuple(Block(name, tuple(weights)) for name, weights in held.items())


@dataclass
class _Owner:
    """Tells the unit that a path lies in, and else the stage."""

    units: list[str]

    def __post_init__(self) -> None:
        self._units = set(self.units)
        self._stages = {stage for unit in self.units if (stage := _stage_of(unit))}

    def unit(self, path: str) -> str | None:
        return next((prefix for prefix in _prefixes(path) if prefix in self._units), None)

    def stage(self, path: str) -> str | None:
        return next((prefix for prefix in _prefixes(path) if prefix in self._stages), None)


def _with_layers_whole(program: Program, units: list[str]) -> list[str]:
    """The units with those that work beside each other (experts) replaced by the list member around them.

    Lists of the same name in members of a list are alike: one of each is looked at.
    """
    lists: dict[str, list[str]] = defaultdict(list)
    for unit in units:
        if _stage_of(unit):
            lists[unit.rpartition(".")[0]].append(unit)
    parallel: dict[str, bool] = {}
    for path, members in lists.items():
        name = path.removeprefix(_stage_of(members[0])).lstrip(".")
        if name and name not in parallel:
            parallel[name] = len(members) > 2 and not _depend(program, members)
    whole = {
        path for path, members in lists.items() if parallel.get(path.removeprefix(_stage_of(members[0])).lstrip("."))
    }
    return list(dict.fromkeys(_stage_of(unit) if unit.rpartition(".")[0] in whole else unit for unit in units))


def _depend(program: Program, members: list[str]) -> bool:
    """Whether any member of a list computes with what the one used first has computed; one pass over the graph."""
    owner = _Owner(members)
    first = ""
    after: dict[Node, bool] = {}
    for node in program.ops():
        read = [unit for name in map(weight_name, node.all_input_nodes) if name and (unit := owner.unit(name))]
        first = first or (read[0] if read else "")
        behind = any(after.get(operand, False) for operand in node.all_input_nodes)
        if behind and any(unit != first for unit in read):
            return True
        after[node] = behind or first in read
    return False


def _runs_of_modules(program: Program) -> tuple[Block, ...]:
    """Modules with weights of their own as blocks, in the order of the graph, where there are no others.

    Modules that are used in turns are one block: a cut anywhere between two blocks is then crossed once. They are the
    strongly connected parts of the walk that the operations make from module to module.
    """
    import networkx as nx

    held: dict[str, dict[str, None]] = {}
    walk: list[str] = []
    for node in program.ops():
        names = [name for name in map(weight_name, node.all_input_nodes) if name and _is_parameter(program, name)]
        paths = [name.rpartition(".")[0] for name in names]
        walk += [*paths, *paths[:1]]  # and back: what one operation reads is one block
        for path, name in zip(paths, names, strict=True):
            held.setdefault(path, {})[name] = None
    graph = nx.DiGraph()
    nx.add_path(graph, walk)
    place = {path: number for number, path in enumerate(held)}
    parts = (sorted(part, key=place.__getitem__) for part in nx.strongly_connected_components(graph))
    runs = sorted(parts, key=lambda run: place[run[0]])
    return tuple(Block(run[0], tuple(name for path in run for name in held[path])) for run in runs)


def _is_parameter(program: Program, name: str) -> bool:
    return program.weights[name].kind == "parameter"


def _stage_of(unit: str) -> str:
    """The outermost list member around a unit, or nothing."""
    parts = unit.split(".")
    return next((".".join(parts[: i + 1]) for i in range(len(parts) - 1) if parts[i].isdigit()), "")


def _prefixes(path: str) -> Iterator[str]:
    parts = path.split(".")
    return (".".join(parts[: length + 1]) for length in range(len(parts)))


def _by_first_use(program: Program) -> Iterator[tuple[Weight, str]]:
    """Each weight with the module that reads it first, in graph order."""
    seen: set[str] = set()
    for node in program.ops():
        for name in map(weight_name, node.all_input_nodes):
            if name and name not in seen:
                seen.add(name)
                yield program.weights[name], origin_of(node).module
