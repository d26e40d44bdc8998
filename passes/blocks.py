"""Finds the repeated blocks of a component from the structure of its weights' names.

A block is what a layer split moves as one: a transformer block, in a UNet a resnet or attention unit. Members of a
list (``blocks.0``, ``blocks.1``, …) are blocks when most of them hold the same weights in the same shapes. Where they
do not (the stages of a UNet) and their own lists hold nearly all they have, the search goes on inside. What a stage
holds beside its units goes with the unit before it in graph order. No class and no model is known by name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ..compiler.program import Block, Program, Weight, origin_of, weight_of
from .base import Change, Pass

_COVERED = 0.9  # share of a stage's bytes that lies in its own lists


@dataclass(frozen=True)
class FindBlocks(Pass):
    """Groups the weights of repeated units into blocks, in the order in which the graph uses them."""

    name: ClassVar[str] = "blocks"
    refuses: ClassVar[frozenset[str]] = frozenset({"placed"})
    ensures: ClassVar[frozenset[str]] = frozenset({"blocks found"})

    def run(self, program: Program) -> Change:
        """Finds units by name, hands every weight of a stage to one of them, and orders them by first use."""
        tree = _Module.of(program.weights)
        units = list(_units(tree, inside=False)) or list(_units(tree, inside=True))
        program.blocks = _collect(program, [*units, *_singles(tree, set(units))])
        return Change(len(program.blocks), "blocks found")


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

    @property
    def is_list(self) -> bool:
        return bool(self.children) and all(name.isdigit() for name in self.children)

    @property
    def shapes(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        return frozenset((name, weight.shape) for name, weight in self.weights.items())


def _lists(module: _Module) -> Iterator[_Module]:
    """The outermost lists inside a module."""
    for child in module.children.values():
        if child.is_list:
            yield child
        else:
            yield from _lists(child)


def _units(module: _Module, inside: bool) -> Iterator[str]:
    """The paths of the blocks in a module; ``inside`` a stage, a list of one is a block as well."""
    for held in [module] if module.is_list and not inside else list(_lists(module)):
        members = list(held.children.values())
        alike = _alike(members)
        for member in members:
            inner = list(_units(member, inside=True)) if _is_stage(member, alike) else []
            if len(inner) > 1 or (inner and not inside):
                yield from inner
            elif alike or inside:
                yield member.path


def _is_stage(module: _Module, alike: bool) -> bool:
    """Whether nearly all that a module has lies in its lists; one among its like must be a chain of blocks."""
    lists = list(_lists(module))
    if alike:
        lists = [held for held in lists if held in module.children.values() and _alike(list(held.children.values()))]
    return sum(held.nbytes for held in lists) >= _COVERED * module.nbytes > 0


def _singles(module: _Module, units: set[str]) -> Iterator[str]:
    """The members of lists of one beside a list of blocks, such as the attention between two resnets."""
    for child in module.children.values():
        beside = any(f"{other.path}.{name}" in units for other in module.children.values() for name in other.children)
        if child.path not in units and not child.is_list:
            yield from _singles(child, units)
        elif beside and module.path and child.is_list and len(child.children) == 1:
            (path,) = (member.path for member in child.children.values())
            if not any(unit == path or unit.startswith(f"{path}.") for unit in units):
                yield path


def _alike(members: list[_Module]) -> bool:
    """Whether more than half of the members hold the same weights as another one, give or take a few."""
    if len(members) < 2:
        return False
    shapes = [member.shapes for member in members]
    common = Counter(shapes).most_common(1)[0][0]
    alike = sum(len(own & common) > 0.5 * len(own | common) for own in shapes)
    return alike >= 2 and alike > len(members) / 2


def _collect(program: Program, units: list[str]) -> tuple[Block, ...]:
    """Blocks with their weights, ordered by first use; strays of a stage join the unit used before them."""
    owner = _Owner(units)
    held: dict[str, list[Weight]] = defaultdict(list)
    waiting: list[tuple[str, Weight]] = []
    last = ""
    for weight, module in _by_first_use(program):
        name = module if weight.kind == "constant" else weight.name
        unit = owner.unit(name)
        if unit is None and owner.stage(name) is None:
            continue
        if unit is None and owner.stage(last) != owner.stage(name):
            waiting.append((name, weight))
            continue
        last = unit or last
        early = [item for item in waiting if owner.stage(item[0]) == owner.stage(last)]
        waiting = [item for item in waiting if item not in early]
        held[last] += [*(item[1] for item in early), weight]
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
        for operand in node.all_input_nodes:
            weight = weight_of(operand)
            if weight is not None and weight.name not in seen:
                seen.add(weight.name)
                yield weight, origin_of(node).module
