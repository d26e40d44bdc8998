"""Which numbers cross devices in schedules of dynamic sizes, and that each process can compute them for itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim
from torch.fx import GraphModule, Interpreter, Node

from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.graph_module import graph_module, without_data
from dovetail.compiler.ir.numbers import Numbers, numbers_at, numbers_read
from dovetail.compiler.ir.program import Program, device_of, tensors_of
from dovetail.compiler.ir.sizes import evaluate
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes
from testbed.zoo.everything import TINY
from tests.cases import slow_but

RIG = Rig.parse("sim0=1GiB,1/sim0=1GiB,2/sim0=1GiB")
META = torch.device("meta")
ZOO = (
    "FluxTransformer2DModel", "SD3Transformer2DModel", "UNet2DConditionModel", "ControlNetModel", "CLIPTextModel",
    "AutoencoderKLWan-decode",
)  # fmt: skip


class Sizes(nn.Module):
    """Four layers whose results are cut, repeated and scaled by sizes and by what is computed of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        rows, others = x.shape[0], y.shape[0]
        x = self.blocks[0](x)
        x = torch.cat([x, self.blocks[1](y)])
        both = x.shape[0] * 2 - rows // 2
        x = self.blocks[2](x)[: rows + others // 3] * both
        return self.blocks[3](x) * (both % 7) + x.shape[0], rows + others


class ReadsOut(Sizes):
    """One number is read out of a tensor, and another is computed of that."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        first = self.blocks[0](x)
        scale = first.sum().item()
        rows = x.shape[0] * 3
        for block in self.blocks[1:]:
            first = block(first) * scale + rows
        return first, y


def lowered(module: nn.Module, call: Mapping[str, Any], shares: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Program:
    """A module of dynamic sizes over three devices, each of a process of its own."""
    shapes = {
        name: dict.fromkeys(range(one.dim()), Dim.AUTO) if isinstance(one, torch.Tensor) else None
        for name, one in call.items()
    }
    program = trace(module, (), dict(call), dynamic_shapes=shapes)
    program.rig = RIG
    steps = default_passes(shares)
    last = [str(step) for step in steps].index("verify")
    return PassManager(steps[:last]).run(program)


@functools.cache
def small(kind: type[Sizes] = Sizes) -> Program:
    torch.manual_seed(0)
    return lowered(kind().eval(), {"x": torch.ones(6, 8), "y": torch.ones(9, 8)}, (1.0, 1.0, 2.0))


def needed(program: Program) -> dict[int, Numbers]:
    assert program.schedule is not None
    return numbers_read(program.schedule, lambda device: device.process)


def crossing(program: Program) -> dict[int, set[Node]]:
    """The numbers that each process reads and does not make, found in the graph alone."""
    found: dict[int, set[Node]] = {}
    for node in [*program.ops(), program.output]:
        here = program.main.process if node is program.output else device_of(node).process
        operands = {one for one in node.all_input_nodes if one.op == "call_function" and not tensors_of(one)}
        found.setdefault(here, set()).update(one for one in operands if device_of(one).process != here)
    return found


class Recorded(Interpreter):
    """Runs a module without data, and keeps the numbers that it computes, by their names."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.numbers: dict[str, Any] = {}

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        if isinstance(found, (int, float)):
            self.numbers[n.name] = found
        return found


def recorded(program: Program, symbols: Mapping[str, int]) -> dict[str, Any]:
    """The numbers of a call of other sizes, as the program's own operations compute them."""
    module = Recorded(graph_module(program, without_data(program), META))
    shapes = [tensors_of(node)[0] for node in program.inputs()]
    inputs = [
        torch.empty([evaluate(size, symbols) for size in one.shape], dtype=one.dtype, device=META) for one in shapes
    ]
    module.run(*inputs)
    return module.numbers


def check_computed(program: Program, symbols: Mapping[str, int]) -> None:
    expected = recorded(program, symbols)
    for found in needed(program).values():
        values = numbers_at(found.computed, symbols)
        assert {node.name: number for node, number in values.items()} == {
            node.name: expected[node.name] for node in found.computed
        }


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 40), others=st.integers(2, 40))
def test_each_process_computes_the_numbers_that_it_reads_and_others_make(rows: int, others: int) -> None:
    program = small()
    inputs = [torch.empty(rows, 8, device=META), torch.empty(others, 8, device=META)]
    check_computed(program, program.signature.symbols_of(inputs))
    found, there = needed(program), crossing(program)
    assert any(there.values())
    for process, numbers in there.items():
        assert numbers <= {*found[process].computed}
        assert not found[process].sent


@pytest.mark.parametrize("name", slow_but(["CLIPTextModel"], ZOO))
def test_the_numbers_that_cross_in_real_models_follow_from_the_sizes_of_their_inputs(name: str) -> None:
    module, call = TINY[name].make(torch.float32)
    program = lowered(module, call)
    found, there = needed(program), crossing(program)
    assert any(there.values())
    assert not any(one.sent for one in found.values())
    assert all(numbers <= {*found[process].computed} for process, numbers in there.items())
    check_computed(program, program.symbols)


def test_a_size_is_that_of_the_axis_that_is_named_by_keyword() -> None:
    program = lowered(Sizes().eval(), {"x": torch.ones(6, 8), "y": torch.ones(9, 8)})
    asking = [node for node in program.ops() if node.target is torch.ops.aten.sym_size.int]
    before = numbers_at(asking, program.symbols)
    for node in asking:
        node.args, node.kwargs = (), {"dim": node.args[1], "self": node.args[0]}
    assert numbers_at(asking, program.symbols) == before
    for node in asking:
        node.args, node.kwargs = (node.kwargs["self"],), {"dim": node.kwargs["dim"]}
    assert numbers_at(asking, program.symbols) == before


def test_what_is_read_out_of_a_tensor_has_to_be_sent_to_each_process_that_reads_it() -> None:
    program = small(ReadsOut)
    found = needed(program)
    (item,) = (node for node in program.ops() if "item" in str(node.target))
    here = device_of(item).process
    assert found[here].sent == ()
    readers = {device_of(user).process for user in item.users} - {here}
    assert readers
    assert {process for process, one in found.items() if one.sent} == readers
    assert all(found[process].sent == (item,) for process in readers)
    assert all(found[process].computed for process in readers)


def test_devices_are_told_apart_as_they_are_asked_for() -> None:
    program = small()
    assert program.schedule is not None
    by_device = numbers_read(program.schedule, lambda device: device)
    assert {device.process: one for device, one in by_device.items()} == needed(program)
    (everywhere,) = numbers_read(program.schedule, lambda device: 0).values()
    assert everywhere == Numbers()
