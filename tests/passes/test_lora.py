from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from dovetail.compiler.errors import PassError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, device_of
from dovetail.compiler.ir.weight import Adapter
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.passes.verify.deep import verify_deep
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.store.program_weights import ProgramWeights

from .sample import RIG

Tensor = torch.Tensor


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).view(-1, 2, 16).mul_(2).relu()).flatten(1, 2).view_as(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward = nn.Linear(8, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inward(self.inward(x))
        for layer in self.layers:
            x = layer(x)
        return x


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 1, groups=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


@dataclass(frozen=True)
class Branch:
    """One adapter of one module, with the weights of it."""

    target: str
    down: Tensor
    up: Tensor
    scale: float = 0.8
    bias: Tensor | None = None
    slot: int = 0

    @property
    def form(self) -> Adapter:
        down, up = tuple(self.down.shape), tuple(self.up.shape)
        return Adapter(self.target, self.slot, down, up, self.down.dtype, self.bias is not None, frozen=True)

    @property
    def held(self) -> dict[str, Tensor]:
        parts = {"down": self.down, "up": self.up, "scale": torch.tensor(self.scale, dtype=torch.float64)}
        parts |= {} if self.bias is None else {"bias": self.bias}
        return {self.form.name(part): tensor for part, tensor in parts.items()}


class Branched(nn.Module):
    """What peft makes of a module, as far as its values go."""

    def __init__(self, base: nn.Module, branches: Sequence[Branch]) -> None:
        super().__init__()
        self.base, self.branches = base, branches

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        dtype = result.dtype
        for one in self.branches:
            x = x.to(one.down.dtype)
            result = result + self.added(x, one) * one.scale
        return result.to(dtype)

    def added(self, x: Tensor, one: Branch) -> Tensor:
        if isinstance(self.base, nn.Linear):
            return nn.functional.linear(nn.functional.linear(x, one.down), one.up, one.bias)
        assert isinstance(self.base, nn.Conv2d)
        narrow = nn.functional.conv2d(x, one.down, None, self.base.stride, self.base.padding)  # type: ignore[arg-type]
        return nn.functional.conv2d(narrow, one.up, one.bias, groups=self.base.groups)


def eager(module: nn.Module, x: Tensor, branches: Sequence[Branch]) -> Tensor:
    for path in {one.target for one in branches}:
        beside = [one for one in branches if one.target == path]
        module.set_submodule(path, Branched(module.get_submodule(path), beside))
    with torch.no_grad():
        return module(x)  # type: ignore[no-any-return]


def program(module: nn.Module, x: Tensor, branches: Sequence[Branch], passes: str = "") -> Program:
    sim.enable({device.index: RIG[device].total for device in RIG})
    traced = trace(module, (x,))
    traced.rig = RIG
    traced.adapters = tuple(one.form for one in branches)
    return PassManager(parse_passes(passes) if passes else default_passes((1.0, 1.0, 1.0))).run(traced)


def run(traced: Program, module: nn.Module, x: Tensor, branches: Sequence[Branch]) -> Tensor:
    held = {name: tensor for one in branches for name, tensor in one.held.items()}
    assert traced.schedule is not None
    executor = Executor(traced, traced.schedule)
    weights = ProgramWeights.of_module(module, traced)
    weights.adapters.exchange(held)
    executor.bind(weights)
    return executor([x.to(traced.main.torch)])[0].cpu()  # type: ignore[no-any-return]


def branch(target: str, inward: int, outward: int, rank: int = 3, **more: object) -> Branch:
    return Branch(target, torch.randn(rank, inward), torch.randn(outward, rank), **more)  # type: ignore[arg-type]


def some_branches() -> list[Branch]:
    torch.manual_seed(1)
    return [
        branch("inward", 8, 8),
        branch("layers.0.up", 8, 16, bias=torch.randn(16)),
        branch("layers.1.down", 16, 8),
        branch("layers.1.down", 16, 8, rank=2, slot=1, scale=-0.3),
        branch("layers.2.up", 8, 16, rank=1),
    ]


def test_branches_add_what_peft_adds_to_the_bit_on_three_devices() -> None:
    module, x, branches = Model(), torch.randn(2, 5, 8), some_branches()
    found = run(program(module, x, branches), module, x, branches)
    assert not torch.equal(found, eager(module, x, []))
    assert torch.equal(found, eager(module, x, branches))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_branch_of_another_dtype_computes_in_its_own(dtype: torch.dtype) -> None:
    module, x = Model(), torch.randn(2, 5, 8)
    branches = [
        Branch(one.target, one.down.to(dtype), one.up.to(dtype), slot=one.slot)
        for one in some_branches()
        if one.slot == 0 and one.bias is None
    ]
    branches.append(branch("layers.1.down", 16, 8, slot=1))
    assert torch.equal(run(program(module, x, branches), module, x, branches), eager(module, x, branches))


def test_convolutions_have_branches_too() -> None:
    torch.manual_seed(1)
    module, x = Picture(), torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)
    branches = [
        Branch("first", torch.randn(3, 4, 3, 3), torch.randn(8, 3, 1, 1)),
        Branch("second", torch.randn(2, 8, 1, 1), torch.randn(8, 1, 1, 1), bias=torch.randn(8)),
    ]
    traced = program(module, x, branches)
    assert verify_deep(traced)
    assert torch.equal(run(traced, module, x, branches), eager(module, x, branches))


def test_another_scale_or_adapter_is_only_bound_again() -> None:
    module, x, branches = Model(), torch.randn(2, 5, 8), some_branches()
    traced = program(module, x, branches)
    others = [Branch(one.target, one.down + 1, one.up - 1, 1.5, one.bias, one.slot) for one in branches]
    first, second = run(traced, module, x, branches), run(traced, module, x, others)
    assert not torch.equal(first, second)
    assert torch.equal(second, eager(module, x, others))


def test_the_weights_of_a_branch_rest_with_the_weight_they_belong_to() -> None:
    traced = program(Model(), torch.randn(2, 5, 8), some_branches())
    for name, weight in traced.weights.items():
        if weight.kind == "adapter":
            base = traced.weights[f"{name.partition('.lora.')[0]}.weight"]
            assert traced.home[name] == traced.home[base.name]
            inside = [block.name for block in traced.blocks if name in block.weights]
            assert inside == [block.name for block in traced.blocks if base.name in block.weights]
    assert len({traced.home[name] for name, weight in traced.weights.items() if weight.kind == "adapter"}) == 3


def test_a_branch_runs_on_the_device_of_its_weight() -> None:
    traced = program(Model(), torch.randn(2, 5, 8), some_branches())
    readers = [
        (weight.name, device_of(user))
        for node in traced.weight_nodes()
        if (weight := traced.weight(node)).kind == "adapter"
        for user in node.users
    ]
    assert len(readers) == 19  # inward is called twice
    assert all(device == traced.home[name] for name, device in readers)


def test_an_adapter_of_a_module_that_is_not_called_leaves_no_trace() -> None:
    module, x = Model(), torch.randn(2, 5, 8)
    bare = program(module, x, [])
    assert print_program(program(module, x, [branch("elsewhere", 8, 8)])) == print_program(bare)


def test_an_adapter_of_a_module_that_multiplies_in_another_way_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = OddLinear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    class OddLinear(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.weight * 2).T

    with pytest.raises(PassError, match="inner does not multiply by its weight"):
        program(Odd(), torch.randn(2, 8), [branch("inner", 8, 8)])


def test_a_program_with_branches_is_printed_and_read_back() -> None:
    module, x, branches = Model(), torch.randn(2, 5, 8), some_branches()
    traced = program(module, x, branches)
    text = print_program(traced)
    assert 'adapter "layers.1.down.lora.1.scale"' in text
    again = parse_program(text)
    assert print_program(again) == text
    PassManager(parse_passes("schedule,verify")).run(again)
    assert torch.equal(run(again, module, x, branches), eager(module, x, branches))


@pytest.mark.fifth
def test_sizes_may_be_dynamic() -> None:
    module, x, branches = Model(), torch.randn(4, 5, 8), some_branches()
    traced = trace(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}})
    sim.enable({device.index: RIG[device].total for device in RIG})
    traced.rig = RIG
    traced.adapters = tuple(one.form for one in branches)
    PassManager(default_passes((1.0, 1.0, 1.0))).run(traced)
    assert print_program(parse_program(print_program(traced))) == print_program(traced)
    assert verify_deep(traced)
    other = torch.randn(6, 5, 8)
    assert torch.equal(run(traced, module, other, branches), eager(module, other, branches))


def test_a_graph_module_has_the_adapters_that_were_given_last() -> None:
    module, x, branches = Model(), torch.randn(2, 5, 8), some_branches()
    made = program(module, x, branches)
    compiled = CompiledModule(made, RIG, ProgramWeights.of_module(module, made))
    compiled.exchange({name: tensor for one in branches for name, tensor in one.held.items()})
    with torch.no_grad():
        found = compiled.graph_module()(x)[0]
    assert torch.equal(found, eager(module, x, branches))
