from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, weight_name
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.placement.blocks import FindBlocks
from dovetail.passes.rewrites.simplify import Simplify
from tests.cases import drawn

Tensor = torch.Tensor


class Layer(nn.Module):
    def __init__(self, width: int = 8, out: int | None = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, out or width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Attention(nn.Module):
    """A unit that is a chain of layers between two projections."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(width, 1), nn.Linear(1, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.outward(self.inward(x))
        for layer in self.layers:
            y = layer(y)
        return y


class Stage(nn.Module):
    """A stage of resnets and attentions in turn, and what follows them."""

    def __init__(self, width: int, out: int, attentions: bool, depth: int = 1) -> None:
        super().__init__()
        self.resnets = nn.ModuleList([Layer(width), Layer(width, out)])
        self.attentions = nn.ModuleList([Attention(w, depth) for w in (width, out)] if attentions else [])
        self.after = nn.Linear(out, 1, bias=False) if attentions else None

    def forward(self, x: Tensor) -> Tensor:
        for index, resnet in enumerate(self.resnets):
            x = resnet(x)
            if len(self.attentions):
                x = self.attentions[index](x)
        return x if self.after is None else x + self.after(x)


class Staged(nn.Module):
    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.inward = nn.Linear(4, 8)
        self.stages = nn.ModuleList([Stage(8, 8, False), Stage(8, 16, True, depth), Stage(16, 16, False)])
        self.middle = nn.Module()
        self.middle.resnets = nn.ModuleList([Layer(16), Layer(16)])
        self.middle.attentions = nn.ModuleList([Attention(16, depth)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(x)
        for stage in self.stages:
            x = stage(x)
        return self.middle.resnets[1](self.middle.attentions[0](self.middle.resnets[0](x)))  # type: ignore[index, operator]


def blocks(module: nn.Module, width: int = 4) -> Program:
    return PassManager([Simplify(), FindBlocks()]).run(trace(module, (torch.ones(1, width),)))


def names(module: nn.Module, width: int = 4) -> list[str]:
    return [block.name for block in blocks(module, width).blocks]


def test_the_members_of_a_list_that_hold_the_same_weights_are_blocks() -> None:
    assert names(nn.Sequential(*(Layer() for _ in range(3))), 8) == ["0", "1", "2"]


def test_the_units_of_stages_that_differ_are_blocks_in_the_order_of_their_use() -> None:
    assert names(Staged()) == [
        "stages.0.resnets.0",
        "stages.0.resnets.1",
        "stages.1.resnets.0",
        "stages.1.attentions.0",
        "stages.1.resnets.1",
        "stages.1.attentions.1",
        "stages.2.resnets.0",
        "stages.2.resnets.1",
        "middle.resnets.0",
        "middle.attentions.0",
        "middle.resnets.1",
    ]


def test_a_unit_that_is_a_chain_of_blocks_counts_as_many() -> None:
    found = names(Staged(depth=3))
    assert [name for name in found if name.startswith("stages.1.attentions.0")] == [
        f"stages.1.attentions.0.layers.{index}" for index in range(3)
    ]
    assert [name for name in found if name.startswith("middle.attentions")] == [
        f"middle.attentions.0.layers.{index}" for index in range(3)
    ]


def test_every_weight_of_a_stage_belongs_to_one_block() -> None:
    program = blocks(Staged(depth=3))
    inside = [name for block in program.blocks for name in block.weights]
    assert len(inside) == len(set(inside))
    assert {name for name in program.weights if name.startswith("stages")} <= set(inside)
    assert not {name for name in inside if name.startswith("inward")}


def test_units_of_one_mixed_list_are_blocks_when_it_holds_most_of_the_model() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inward = nn.Linear(4, 8)
            self.body = nn.ModuleList([Layer(8), Layer(8, 12), nn.Linear(12, 12), Layer(12, 6)])

        def forward(self, x: Tensor) -> Tensor:
            x = self.inward(x)
            for unit in self.body:
                x = unit(x)
            return x

    assert names(Mixed()) == ["body.0", "body.1", "body.2", "body.3"]


def test_plain_layers_are_blocks_only_where_there_are_no_others() -> None:
    assert names(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))) == ["0", "1", "2"]

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(4) for _ in range(2))
            self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for layer, head in zip(self.layers, self.heads, strict=True):
                x = head(layer(x))
            return x

    assert names(Both()) == ["layers.0", "layers.1"]


def test_the_two_halves_of_a_block_are_no_blocks() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ModuleList([Attention(4, 1), Layer(4)])

        def forward(self, x: Tensor) -> Tensor:
            return self.layer[1](self.layer[0](x))

    assert names(nn.Sequential(*(Halves() for _ in range(3)))) == ["0", "1", "2"]


def test_blocks_follow_the_order_of_use_and_not_of_names() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer(4) for _ in range(11))

        def forward(self, x: Tensor) -> Tensor:
            for layer in reversed(self.layers):
                x = layer(x)
            return x

    assert names(Backwards()) == [f"layers.{index}" for index in reversed(range(11))]


def test_a_module_without_repetition_has_no_blocks() -> None:
    assert names(Layer(4)) == []
    assert names(nn.Linear(4, 4)) == []


def test_a_lone_block_beside_a_list_of_blocks_is_a_block_if_it_weighs_as_much() -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image, self.text = Layer(), Layer()

        def forward(self, x: Tensor) -> Tensor:
            return self.image(x) + self.text(x)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.double_blocks = nn.ModuleList([Double()])
            self.single_blocks = nn.ModuleList(Layer() for _ in range(3))
            self.head = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x: Tensor) -> Tensor:
            for block in (*self.double_blocks, *self.single_blocks):
                x = block(x)
            return self.head(x)

    program = trace(Mixed().eval(), (torch.ones(1, 8),))
    PassManager((Simplify(), FindBlocks())).run(program)
    names = [block.name for block in program.blocks]
    assert names == ["double_blocks.0", "single_blocks.0", "single_blocks.1", "single_blocks.2"]


class Numbered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer0, self.layer1, self.layer2 = Layer(), Layer(), Layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer2(self.layer1(self.layer0(x)))  # type: ignore[no-any-return]


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({f"layer{index}": Layer() for index in range(3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


class Unlike(nn.Module):
    """Modules that are not alike, one of which is used twice around another."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.around, self.within = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.outward = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.around(self.within(self.around(self.inward(x))))
        return self.outward(x)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Layers beside each other, whose results are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 3), nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gates = self.gate(x).softmax(-1)
        return x + sum(gates[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def names_of(module: nn.Module, devices: int) -> list[str]:
    program = trace(module.eval(), (torch.ones(1, 8),))
    program.rig = Rig.of(**{f"sim{index}": 2**20 for index in range(devices)})
    return [block.name for block in PassManager([Simplify(), FindBlocks()]).run(program).blocks]


def test_numbered_attributes_are_blocks() -> None:
    assert names_of(Numbered(), 1) == ["layer0", "layer1", "layer2"]
    assert names_of(Named(), 1) == ["layers.layer0", "layers.layer1", "layers.layer2"]


def test_without_blocks_a_split_over_several_devices_may_cut_between_any_two_modules_once() -> None:
    assert names_of(Unlike(), 1) == []
    assert names_of(Unlike(), 2) == ["inward", "around", "outward"]


def test_experts_beside_each_other_are_no_blocks_but_the_layer_around_them_is_one() -> None:
    assert names_of(nn.Sequential(Experts(), Experts()), 2) == ["0", "1"]


class Turns(nn.Module):
    """Modules without repetition in a list, each of another shape, used in a given order; some operations read two."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__()
        self.order = order
        for number in range(4):
            setattr(self, "abcd"[number], nn.Linear(8, 8 + number))

    def forward(self, x: Tensor) -> Tensor:
        for one, other in itertools.pairwise(self.order):
            layer = getattr(self, "abcd"[one])
            x = nn.functional.linear(x, layer.weight[:8], layer.bias[:8])
            if other == one:
                x = x + torch.addcmul(self.a.bias[:8], self.b.bias[:8], self.b.bias[:8])
        return x


def expected_turns(program: Program) -> list[set[str]]:
    """Modules whose times of use overlap, one after another, counted in operations."""
    uses: dict[str, list[int]] = {}
    for step, node in enumerate(program.ops()):
        for name in filter(None, map(weight_name, node.all_input_nodes)):
            uses.setdefault(name.rpartition(".")[0], []).append(step)
    found: list[tuple[int, set[str]]] = []
    for path, steps in sorted(uses.items(), key=lambda item: item[1][0]):
        inside, last = {path}, steps[-1]
        while found and found[-1][0] >= steps[0]:
            until, others = found.pop()
            inside, last = inside | others, max(until, last)
        found.append((last, inside))
    return [inside for _, inside in found]


@pytest.mark.parametrize("order", drawn(list(itertools.product(range(4), repeat=6)), 12))
def test_modules_that_are_used_in_turns_are_one_block_in_the_order_of_the_graph(order: tuple[int, ...]) -> None:
    traced = trace(Turns(order).eval(), (torch.ones(2, 8),))
    traced.rig = Rig.parse("sim0=1GiB,sim1=1GiB")
    program = PassManager((Simplify(), FindBlocks())).run(traced)
    found = [{name.rpartition(".")[0] for name in block.weights} for block in program.blocks]
    assert found == expected_turns(program)
    assert [block.name for block in program.blocks] == [block.weights[0].rpartition(".")[0] for block in program.blocks]
