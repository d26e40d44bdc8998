"""Packed weights through the passes, over one and two simulated devices."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dovetail.compiler.checkpoints.quantized_types import QUANT_TYPES
from dovetail.compiler.checkpoints.unpacking import scratch_bytes, sizes_on
from dovetail.compiler.devices.rig import Rig
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import Program, origin_of, value_of
from dovetail.compiler.ir.value import TensorType
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.passes.analysis.liveness import peak_bytes
from dovetail.passes.analysis.memory_needs import needs_of
from dovetail.passes.infra.manager import PassManager
from dovetail.passes.pipeline import default_passes, parse_passes
from dovetail.passes.verify.deep import verify_deep
from dovetail.runtime import sim
from dovetail.runtime.packing import pack
from dovetail.runtime.store.program_weights import ProgramWeights
from dovetail.weights.files import set_types

WIDE = 256
IDS = torch.tensor([[3, 0, 8, 8]])
RIG = Rig.parse("sim0=64MiB,sim1=64MiB")


class Layer(nn.Module):
    """A gate over a projection without bias, with a table that is added and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE, bias=False)
        self.norm = nn.LayerNorm(WIDE)
        self.table = nn.Parameter(torch.randn(2, WIDE) / 8)

    def forward(self, x: Tensor) -> Tensor:
        shift, scale = (self.table[None] + x[:, :1]).chunk(2, dim=1)
        x = self.norm(x) * (1 + scale) + shift
        return x + torch.sigmoid(self.gate(x)) * self.up(x.transpose(0, 1)).transpose(0, 1)


class Reader(nn.Module):
    """Reads one embedding as a table, as a matrix and as numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, WIDE, padding_idx=0)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDE, 12, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Any:
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x), self.words.weight.float().mean(0), self.words.weight[2:4].t() * 2


def reader(dtype: torch.dtype = torch.float32) -> Reader:
    torch.manual_seed(0)
    return Reader().eval().to(dtype)


def traced(module: nn.Module, *args: Tensor) -> Program:
    with torch.no_grad():
        return trace(module, args)


@cache
def program_of(dtype: torch.dtype) -> Program:
    return traced(reader(dtype), IDS)


def program_in(quant: str, dtype: torch.dtype = torch.float32) -> Program:
    """A fresh program whose matrices rest in a type."""
    program = program_of(dtype).copy()
    set_types(program, {weight.name: quant for weight in program.weights.values() if len(weight.shape) == 2})
    return program


def packed(module: Reader, quant: str, program: Program | None = None) -> tuple[Program, dict[str, Tensor]]:
    """A program whose matrices rest in a type, and their bytes; the module then has the numbers of those bytes."""
    program = program or program_in(quant, module.head.weight.dtype)
    tensors: dict[str, Tensor] = dict(module.state_dict())
    with torch.no_grad():
        for weight in program.weights.values():
            if weight.quant:
                parameter = module.get_parameter(weight.name)
                tensors[weight.name] = torch.from_numpy(pack(parameter.float().numpy(), quant))
                parameter.copy_(torch.ops.dovetail.dequantize(tensors[weight.name], quant, parameter.dtype))
    return program, tensors


def lowered(program: Program, passes: str = "simplify,quantize") -> Program:
    return PassManager(parse_passes(passes)).run(program)


def targets(program: Program) -> list[str]:
    return [str(node.target) for node in program.ops()]


def test_matmuls_and_lookups_read_packed_bytes_and_the_rest_one_unpacked_weight() -> None:
    found = targets(lowered(program_in("Q8_0")))
    assert found.count("dovetail.quantized_linear.default") == 5
    assert found.count("dovetail.quantized_embedding.default") == 1
    assert found.count("dovetail.dequantize.default") == 3
    assert not {"aten.linear.default", "aten.embedding.default"} & set(found)


def test_a_packed_weight_yields_its_bytes_and_its_views_name_the_unpacked_memory() -> None:
    program = lowered(program_in("Q4_K"))
    words = next(node for node in program.weight_nodes() if program.weight(node).shape == (12, WIDE))
    assert value_of(words) == TensorType((12, 144), torch.uint8, (144, 1), value_of(words).storage)  # type: ignore[union-attr]
    (unpacked,) = (node for node in words.users if "dequantize" in str(node.target))
    sliced = next(node for node in unpacked.users if "slice" in str(node.target))
    assert value_of(sliced).storage == value_of(unpacked).storage != value_of(words).storage  # type: ignore[union-attr]
    storages = [value_of(node).storage for node in program.weight_nodes()]  # type: ignore[union-attr]
    assert len(set(storages)) == len(storages)


def test_an_unpacked_weight_stands_before_its_first_reader_and_comes_from_there() -> None:
    program = lowered(program_in("Q8_0"))
    for node in [node for node in program.ops() if "dequantize" in str(node.target)]:
        assert node.next in node.users
        assert origin_of(node) == origin_of(node.next) != origin_of(node.prev)


def test_without_packed_weights_nothing_changes() -> None:
    before, after = lowered(program_in(""), "simplify"), lowered(program_in(""))
    assert print_program(after).splitlines()[3:] == print_program(before).splitlines()[3:]


def test_a_matrix_that_is_multiplied_with_itself_is_unpacked() -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(WIDE, WIDE))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(self.matrix, self.matrix) + x

    program = traced(Square(), torch.ones(WIDE))
    set_types(program, {"matrix": "Q8_0"})
    assert targets(lowered(program))[:2] == ["dovetail.dequantize.default", "aten.linear.default"]


def test_a_program_is_quantized_once() -> None:
    program = lowered(program_in("Q8_0"))
    with pytest.raises(Exception, match="pass quantize refuses one that is quantized"):
        lowered(program, "quantize")


@pytest.mark.parametrize(
    "passes", ["simplify,quantize", "", "simplify,quantize,blocks,place{shares=1:1},pin,hoist,cut"]
)
def test_a_program_with_packed_weights_reads_back_from_its_text(passes: str) -> None:
    program, _ = packed(reader(), "Q5_K")
    program.rig = RIG
    text = print_program(lowered(program, passes))
    assert print_program(parse_program(text)) == text
    assert "packed Q5_K f32[256, 256]" in text


def compiled(module: Reader, quant: str, devices: int, program: Program | None) -> CompiledModule:
    program, tensors = packed(module, quant, program)
    rig = RIG.only(RIG.devices[:devices])
    program.rig = rig
    PassManager(default_passes()).run(program)
    verify_deep(program)
    return CompiledModule(program, rig, ProgramWeights.of_tensors(tensors, program))


@pytest.fixture(autouse=True)
def _devices() -> None:
    sim.enable({device.index: RIG[device].total for device in RIG})


@pytest.mark.parametrize("quant", QUANT_TYPES)
def test_packed_weights_on_two_devices_compute_the_bits_of_the_dense_model(quant: str) -> None:
    check(reader(), quant, 2)


@pytest.mark.parametrize("quant", ["Q4_K", "Q8_0", "F16", "F32"])
def test_so_they_do_in_bf16(quant: str) -> None:
    check(reader(torch.bfloat16), quant, 2)


def test_so_they_do_on_one_device() -> None:
    check(reader(), "Q4_K", 1)


@pytest.mark.parametrize("quant", ["Q6_K", "F16"])
def test_so_they_do_with_frozen_weights(quant: str) -> None:
    module = reader().requires_grad_(False)
    program = traced(module, IDS)
    set_types(program, {weight.name: quant for weight in program.weights.values() if len(weight.shape) == 2})
    check(module, quant, 2, program)


def check(module: Reader, quant: str, devices: int, program: Program | None = None) -> None:
    results = compiled(module, quant, devices, program)(IDS)
    with torch.no_grad():
        expected = module(IDS)
    assert [torch.equal(*pair) for pair in zip(results, expected, strict=True)] == [True] * 3
    assert all(result.float().std() > 1e-4 for result in results)


def test_the_peak_of_values_does_not_depend_on_the_type() -> None:
    class Chain(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(super().forward(x))

    program = traced(Chain(*(nn.Linear(WIDE, WIDE) for _ in range(3))).eval(), torch.ones(7, WIDE))
    peaks = []
    for quant in ("", "Q8_0", "Q4_K", "BF16"):
        typed = program.copy()
        set_types(typed, {name: quant for name in program.weights if "weight" in name})
        peaks.append(peak_bytes(lowered(typed)))
    assert peaks == [peaks[0]] * 4


def test_blocks_and_devices_are_sized_by_packed_bytes() -> None:
    program, tensors = packed(reader(), "Q4_0")
    lowered(program, "simplify,quantize,blocks")
    held = sum(tensor.nbytes for name, tensor in tensors.items() if name.startswith("layers."))
    assert sum(program.nbytes_of(block.weights) for block in program.blocks) == held


def test_the_ledger_counts_one_op_and_its_result() -> None:
    x, weight = torch.randn(3, WIDE).to("sim:0"), torch.zeros(512, 136, dtype=torch.uint8).to("sim:0")
    before = sim.stats(0)
    product = torch.ops.dovetail.quantized_linear(x, weight, None, "IQ4_XS")
    after = sim.stats(0)
    assert product.device == torch.device("sim", 0)
    assert (after.ops - before.ops, after.in_use - before.in_use) == (1, 3 * 512 * 4)


def test_what_a_product_unpacks_is_counted_on_its_device() -> None:
    program = traced(nn.Linear(WIDE, 64 * WIDE), torch.ones(1, WIDE)).copy()
    set_types(program, {weight.name: "Q4_K" for weight in program.weights.values() if len(weight.shape) == 2})
    program.rig = RIG.only(RIG.devices[:1])
    lowered(program)
    need = needs_of(program, dict.fromkeys(program.ops(), program.main))[program.main]
    least = scratch_bytes("Q4_K", 64 * WIDE, WIDE, 4, sizes_on(host=False, room=0))
    assert least == 12_194_304
    assert least < need.values < least + 100_000
