"""How a row split rewrites the graph: batches, what stays apart, adapters, packed weights, the order of devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from dovetail.compiler.devices.device import Device
from dovetail.compiler.devices.memory import Memory
from dovetail.compiler.errors import PassError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.ops import LINEAR
from dovetail.compiler.ir.part import Part
from dovetail.compiler.ir.program import Program, placement_of, tensors_of
from dovetail.compiler.ir.schedule import Allocate, Copy, Run
from dovetail.compiler.ir.split import assembles, source_of, split_of, type_on
from dovetail.compiler.ir.value import TensorType
from dovetail.compiler.ir.weight import Adapter
from dovetail.compiler.states.parts import members, pieces, weight_on
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.passes.verify.deep import verify_deep
from dovetail.runtime import sim
from dovetail.runtime.executor import Executor
from dovetail.runtime.packing import pack
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.weights.files import set_types

from .sample import DEVICES, RIG

X = torch.linspace(-1, 1, 2 * 3 * 256).reshape(2, 3, 256)


class Block(nn.Module):
    """Three layers that read the same, and what is done with their results."""

    def __init__(self, use: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(256, 256) for _ in range(3))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x, self.one(x), self.two(x), self.three(x))


class Late(Block):
    """The same, but what reads the first result stands before the other layers."""

    def forward(self, x: Tensor) -> Tensor:
        one = self.one(x).softmax(-1)
        return self.use(x, one, self.two(x), self.three(x))


def model(use: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], block: type[Block] = Block) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(block(use), block(use)).eval()


def split(module: nn.Module, devices: tuple[Device, ...] = DEVICES, adapters: tuple[Adapter, ...] = ()) -> Program:
    sim.enable({device.index: RIG[device].total for device in RIG})
    program = trace(module, (X,))
    program.rig, program.adapters = RIG.with_device(Device("cpu"), Memory(2**30, 2**30)).only(devices), adapters
    PassManager(default_passes((16, 10, 6)[: len(devices)], split_mode="row")).run(program)
    verify_deep(program)
    return program


def run(program: Program, module: nn.Module, adapters: Mapping[str, Tensor] | None = None) -> Tensor:
    assert program.schedule is not None
    executor = Executor(program, program.schedule)
    weights = ProgramWeights.of_module(module, program)
    weights.adapters.exchange(adapters or {})
    executor.bind(weights)
    return executor([X.to(program.main.torch)])[0].cpu()  # type: ignore[no-any-return]


def gathered(program: Program) -> list[Node]:
    return [source_of(one) for one in program.transfers() if assembles(one)]


def runs(program: Program) -> list[Run]:
    assert program.schedule is not None
    return [one for one in program.schedule if isinstance(one, Run)]


def check(use: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], gathers: int, block: type[Block] = Block) -> Program:
    """Each block gathers so many values, and the result is that of the module."""
    module = model(use, block)
    program = split(module)
    assert len(gathered(program)) == 2 * gathers
    with torch.no_grad():
        assert torch.allclose(run(program, module), module(X), rtol=1e-4, atol=1e-5)
    return program


def test_what_three_layers_read_crosses_once_and_all_three_are_multiplied_by_before_anything_is_gathered() -> None:
    program = check(lambda x, one, two, three: x + one.softmax(-1) * two.softmax(-1) + three.softmax(-1), 3)
    assert len(program.segments) == 2 * 2, "a segment of all devices a block, and what is done with the wholes"
    assert len(runs(program)) == 2 * (3 + 1)
    sent = [one for one in program.schedule.flat() if isinstance(one, Copy) and not one.landings]  # type: ignore[union-attr]
    assert len(sent) == 2 * 2


def test_a_layer_that_reads_what_the_batch_reads_joins_it_however_late_it_stands() -> None:
    program = check(lambda x, one, two, three: x + one * two.softmax(-1) + three.softmax(-1), 3, Late)
    assert len(program.segments) == 2 * 2


def test_elementwise_operations_on_results_of_a_batch_are_done_on_the_parts() -> None:
    program = check(lambda x, one, two, three: x + (F.silu(one) * two.double().tanh().float() - 2 * three), 1)
    (last, *_) = gathered(program)
    parts = [type_on(last, device) for device in members(program, last)]
    assert all(isinstance(part, TensorType) and part.shape[-1] < 256 for part in parts)
    assert last.target not in LINEAR


def test_a_result_that_is_read_whole_as_well_is_gathered_before_and_not_twice() -> None:
    check(lambda x, one, two, three: x + one.softmax(-1) + F.silu(one) + two.softmax(-1) + three.softmax(-1), 3)


def test_a_cast_to_more_bytes_waits_until_the_parts_are_together() -> None:
    program = check(lambda x, one, two, three: x + one.double().softmax(-1).float() + two + three, 3)
    assert all(tensors_of(node)[0].dtype == torch.float32 for node in gathered(program))


def test_a_bias_is_added_where_its_rows_are_multiplied_by() -> None:
    program = check(lambda x, one, two, three: x + (one + two + three), 1)
    for node in (node for node in program.ops() if node.target in LINEAR):
        for device in members(program, node):
            weight, bias = (weight_on(program, node, operand, device) for operand in node.args[1:3])  # type: ignore[arg-type]
            rows = split_of(node).ranges(placement_of(node).group.index(device))  # type: ignore[union-attr]
            assert weight.which == bias.which == Part(0, rows)
            assert device == pieces(program)[weight.name][1] == pieces(program)[bias.name][1]


@pytest.mark.fifth
def test_the_main_device_multiplies_after_the_others_were_launched_and_the_host_last() -> None:
    cpu = Device("cpu")
    for devices, order in (
        ((DEVICES[0], DEVICES[1], cpu), ["sim1", "sim0", "cpu", "sim0"]),
        ((DEVICES[0], cpu), ["sim0", "cpu", "sim0"]),
        ((cpu, DEVICES[0], DEVICES[1]), ["sim0", "sim1", "cpu", "cpu"]),
    ):
        module = model(lambda x, one, two, three: x + one + two + three)
        program = split(module, devices)
        assert [str(run.device) for run in runs(program)] == [*order, *order]
        assert program.schedule is not None
        assert {one.device for one in program.schedule if isinstance(one, Allocate)} == {program.main}
        with torch.no_grad():
            assert torch.allclose(run(program, module), module(X), rtol=1e-4, atol=1e-5)


def adapters(rank: int) -> tuple[tuple[Adapter, ...], dict[str, Tensor]]:
    """Two adapters of one layer, one of them with a bias, and one of another layer."""
    forms = [Adapter("0.one", slot, (rank, 256), (256, rank), torch.float32, bias=slot == 1) for slot in range(2)]
    forms.append(Adapter("1.two", 0, (rank, 256), (256, rank), torch.float32))
    weights = {weight.name: weight for form in forms for weight in form.weights.values()}
    held = {name: torch.randn(weight.shape) / 16 for name, weight in weights.items() if not weight.is_number}
    numbers = {name: torch.tensor(0.5, dtype=torch.float64) for name, weight in weights.items() if weight.is_number}
    return tuple(forms), held | numbers


@pytest.mark.parametrize("rank", [4, 300])
def test_a_branch_of_an_adapter_is_sliced_like_its_base_and_stays_apart_with_it(rank: int) -> None:
    module, (forms, held) = model(lambda x, one, two, three: x + (F.silu(one) * two + three)), adapters(rank)
    program = split(module, adapters=forms)
    assert len(gathered(program)) == 2
    ups = [w for w, _ in pieces(program).values() if w.kind == "adapter" and w.which]
    assert {w.whole for w in ups} == {f"{f.target}.lora.{f.slot}.up" for f in forms} | {"0.one.lora.1.bias"}
    assert sum(w.shape[0] for w in ups) == 4 * 256
    with torch.no_grad():
        for form in forms:
            layer = module.get_submodule(form.target)
            layer.weight += 0.5 * held[form.name("up")] @ held[form.name("down")]
            if form.bias:
                layer.bias += 0.5 * held[form.name("bias")]
        expected = module(X)
    plain = model(lambda x, one, two, three: x + (F.silu(one) * two + three))
    assert torch.allclose(run(program, plain, held), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K"])
def test_packed_weights_are_sliced_in_whole_rows(quant: str) -> None:
    module = model(lambda x, one, two, three: x + (F.silu(one) * two + three))
    sim.enable({device.index: RIG[device].total for device in RIG})
    program, tensors = trace(module, (X,)), dict(module.state_dict())
    program.rig = RIG
    set_types(program, {name: quant for name, weight in program.weights.items() if len(weight.shape) == 2})
    with torch.no_grad():
        for name in [name for name, weight in program.weights.items() if weight.quant]:
            tensors[name] = torch.from_numpy(pack(tensors[name].numpy(), quant))
            module.get_parameter(name).copy_(torch.ops.dovetail.dequantize(tensors[name], quant, torch.float32))
    PassManager(default_passes((16, 10, 6), split_mode="row")).run(program)
    verify_deep(program)
    assert len(gathered(program)) == 2
    matrices = [w for w, _ in pieces(program).values() if len(w.shape) == 2]
    assert {w.quant for w in matrices} == {quant}
    assert all(w.which for w in matrices)
    assert program.schedule is not None
    executor = Executor(program, program.schedule)
    executor.bind(ProgramWeights.of_tensors(tensors, program))
    with torch.no_grad():
        assert torch.allclose(executor([X.to(program.main.torch)])[0].cpu(), module(X), rtol=1e-4, atol=1e-5)


def test_a_program_is_sliced_once() -> None:
    program = split(model(lambda x, one, two, three: x + one + two + three))
    with pytest.raises(PassError, match="pass rows refuses one that is placed"):
        PassManager(parse_passes("rows{shares=1:1:1}")).run(program)


def test_devices_of_a_group_share_the_code_of_a_segment_but_the_one_that_has_its_input() -> None:
    program = split(model(lambda x, one, two, three: x + one + two + three))
    assert program.schedule is not None
    sources = Executor(program, program.schedule).sources
    listings = [sources[index].listing for index, one in enumerate(program.schedule) if isinstance(one, Run)]
    assert [str(run.device) for run in runs(program)] == ["sim1", "sim2", "sim0", "sim0"] * 2
    assert listings[0] is listings[1] is not listings[2]
    assert len(set(listings)) == 2 * 3


class Modulated(nn.Module):
    """A result of one size multiplies a result of another."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.scale(x[:1, :1])) * self.layer(x) + x


def test_results_of_two_sizes_are_gathered_before_they_meet() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Modulated(), Modulated()).eval()
    program = split(module)
    assert len(gathered(program)) == 2 * 2
    with torch.no_grad():
        assert torch.allclose(run(program, module), module(X), rtol=1e-4, atol=1e-5)


class Rewritten(nn.Module):
    """A result whose memory is written between two matmuls that read it, through a view and at once."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(256, 256) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y[:, :1].mul_(2)
        y.add_(self.two(y))
        return y + self.three(y)


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[:2]])
def test_a_result_that_is_written_after_it_was_gathered_is_sent_on_as_it_is_then(devices: tuple[Device, ...]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Rewritten(), Rewritten()).eval()
    program = split(module, devices)
    assert len(gathered(program)) == 2 * 3
    with torch.no_grad():
        assert torch.allclose(run(program, module), module(X), rtol=1e-4, atol=1e-5)


class Queried(nn.Module):
    """A matrix that a parameter is multiplied by, which may be the bias of another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(256, 256) for _ in range(3))
        self.queries = nn.Parameter(torch.randn(3, 256))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.one(self.queries) * self.two(self.one.bias) + self.three(x)


def test_a_matrix_that_a_weight_is_multiplied_by_stays_whole() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Queried(), Queried()).eval()
    program = split(module)
    assert {name for name in program.bounds if name.endswith("weight")} == {f"{block}.three.weight" for block in (0, 1)}
    with torch.no_grad():
        assert torch.allclose(run(program, module), module(X), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3, 256), (2, 0, 256)])
def test_nothing_is_gathered_of_an_input_without_elements(shape: tuple[int, ...]) -> None:
    module, x = model(lambda x, one, two, three: x + (one + two) * three.softmax(-1)), torch.empty(shape)
    sim.enable({device.index: RIG[device].total for device in RIG})
    program = trace(module, (x,))
    program.rig = RIG
    PassManager(default_passes((16, 10, 6), split_mode="row")).run(program)
    assert program.schedule is not None
    executor = Executor(program, program.schedule)
    executor.bind(ProgramWeights.of_module(module, program))
    assert executor([x.to(program.main.torch)])[0].shape == shape
