"""The GraphModule of a compiled module: it computes what the module does, and PyTorch's own tools take it."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node, Transformer
from torch.fx.passes.graph_drawer import FxGraphDrawer
from torch.fx.passes.shape_prop import ShapeProp
from torch.fx.passes.split_module import split_module
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.errors import NotHereError, TraceError, UsageError
from dovetail.compiler.ir.graph_module import graph_module
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program
from dovetail.components.compiled import CompiledModule
from dovetail.runtime.packing import pack
from testbed.zoo.everything import FIRST
from testbed.zoo.tiny import TINY
from tests.cases import drawn

SPLIT: dict[str, Any] = {"backend": "sim0&sim1", "rig": "sim0=64MiB,sim1=64MiB"}


class Block(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.down.weight.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1, size), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        halves = self.down(torch.relu(self.up(x))).chunk(2, -1)
        return x + torch.cat(halves, -1) * self.scale + torch.zeros(1, device=x.device)


class Model(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(3))

    def forward(self, x: Tensor, twice: bool = False) -> dict[str, Any]:
        for block in self.blocks:
            x = block(x)
        return {"x": x, "sum": x.sum(), "twice": twice}


def model(size: int = 8) -> Model:
    torch.manual_seed(0)
    return Model(size).eval()


def empty() -> Model:
    """The same without data, but for what is in no file."""
    with torch.device("meta"):
        made = Model().eval()
    for block, real in zip(made.blocks, model().blocks, strict=True):
        block.register_buffer("scale", real.scale, persistent=False)  # type: ignore[union-attr, arg-type]
    return made


X = torch.linspace(-1, 1, 24).reshape(3, 8)


def compiled(module: nn.Module, *args: Any, **options: Any) -> CompiledModule:
    return dovetail.compile(module, args or (X,), **{**SPLIT, **options})


def results(compiled: CompiledModule, module: GraphModule, *args: Any, **kwargs: Any) -> Any:
    """What the GraphModule makes of a call, in the structure of the module's results."""
    with torch.no_grad():
        return compiled.program.signature.unflatten(module(*compiled.program.signature.flatten(args, kwargs)))


def same(found: Any, expected: Any) -> bool:
    pairs = zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True)
    return all(torch.equal(one, other) if isinstance(one, Tensor) else one == other for one, other in pairs)


class Compare(Interpreter):
    """Runs node by node, and compares what each yields with what its `val` says."""

    def run_node(self, n: Node) -> Any:
        found = super().run_node(n)
        if n.op != "output":
            for real, said in zip(pytree.tree_leaves(found), pytree.tree_leaves(n.meta["val"]), strict=True):
                assert type(real) is int or (real.shape, real.dtype, real.device) == (
                    said.shape, said.dtype, said.device
                ), n  # fmt: skip
                assert isinstance(real, Tensor) or real == said
        return found


@pytest.mark.fifth
@pytest.mark.few(quick=3)
@pytest.mark.parametrize("name", drawn(FIRST, 5))
def test_it_computes_the_bits_of_real_models_and_says_what_each_node_yields(name: str) -> None:
    module, call = TINY[name].make(torch.float32)
    one = dovetail.compile(module, kwargs=call, **SPLIT)
    made = one.graph_module()
    with torch.no_grad():
        expected = module(**call)
    assert same(results(one, made, **call), expected)
    inputs = one.program.signature.flatten((), call)
    with torch.no_grad():
        found = Compare(made).run(*inputs)
    assert same(one.program.signature.unflatten(found), expected)


def test_the_tools_of_fx_take_it() -> None:
    one = compiled(model())
    made = one.graph_module()
    made.graph.lint()
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        made.graph.print_tabular()
    assert "aten.linear.default" in out.getvalue()
    assert "shape=(3, 16)" in FxGraphDrawer(made, "model").get_dot_graph().to_string()
    parts = split_module(made, made, lambda node: node.meta["placement"].segment)  # type: ignore[arg-type]
    assert sum(name.startswith("submod") for name, _ in parts.named_children()) == len(one.program.segments) == 2
    assert same(results(one, parts, X), model()(X))
    ShapeProp(made).propagate(X)
    assert next(iter(made.graph.find_nodes(op="output"))).meta["tensor_meta"][0].shape == X.shape


def test_it_is_copied_and_transformed_as_any_other() -> None:
    made = compiled(model()).graph_module()
    with torch.no_grad():
        expected = made(X)
        assert same(copy.deepcopy(made)(X), expected)
        assert same(Transformer(made).transform()(X), expected)


def test_nodes_keep_their_annotations_and_weights_say_where_they_are_at_home() -> None:
    one = compiled(model())
    made = {node.name: node for node in one.graph_module().graph.nodes}
    for node in one.program.ops():
        assert {**made[node.name].meta, **node.meta} == made[node.name].meta
    home = {node.target: node.meta["placement"].device for node in made.values() if node.op == "get_attr"}
    assert home == one.program.home


def test_weights_are_the_modules_own_memory_and_need_gradients_as_they_do() -> None:
    module = model()
    made = compiled(module).graph_module()
    for name, parameter in module.named_parameters():
        assert made.get_parameter(name).data_ptr() == parameter.data_ptr()
        assert made.get_parameter(name).requires_grad == parameter.requires_grad
    assert made.get_buffer("blocks.0.scale").data_ptr() == module.blocks[0].scale.data_ptr()  # type: ignore[union-attr]


@pytest.mark.parametrize("looks", [lambda program: program.graph_module(), lambda program: program.load()])
@pytest.mark.parametrize("rests", [None, "cpu"])
def test_a_weight_that_was_written_is_read_by_the_next_call_whoever_looked_at_weights_meanwhile(
    looks: Callable[[dovetail.CompiledModule], object], rests: str | None
) -> None:
    module, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))).eval(), torch.ones(1, 8)
    program = dovetail.compile(module, (x,), backend="sim0&sim1", params_backend=rests)
    with torch.no_grad():
        program(x)
        module[0].weight.mul_(1.5)
        looks(program)
        assert torch.equal(program(x), module(x))


def test_on_another_device_it_has_copies_there_and_computes_there() -> None:
    one = compiled(model())
    made = one.graph_module("sim1")
    assert {parameter.device for parameter in made.parameters()} == {torch.device("sim", 1)}
    with torch.no_grad():
        found = made(X.to("sim:1"))
    assert found[0].device == torch.device("sim", 1)
    assert torch.equal(found[0].cpu(), model()(X)["x"])
    assert torch.equal(one(X)["x"], model()(X)["x"])


@pytest.mark.parametrize("rests", ["device", "cpu", "disk"])
def test_weights_of_files_are_read_wherever_they_rest(rests: str, tmp_path: Path) -> None:
    module = model()
    save_file(module.state_dict(), tmp_path / "model.safetensors")
    rest = {} if rests == "device" else {"params_backend": rests}
    one = compiled(empty(), weights=tmp_path / "model.safetensors", **rest)
    before = one(X)["x"]
    assert torch.equal(results(one, one.graph_module(), X)["x"], before)
    assert torch.equal(one(X)["x"], before)


def test_dynamic_sizes_stay_dynamic_and_val_has_those_of_the_example() -> None:
    length = torch.export.Dim("length", min=2, max=64)
    one = compiled(model(), dynamic_shapes={"x": {0: length}, "twice": None})
    made = one.graph_module()
    assert next(iter(made.graph.nodes)).meta["val"].shape == X.shape
    with torch.no_grad():
        Compare(made).run(X)
    for size in (2, 5, 31):
        x = torch.randn(size, 8)
        assert same(results(one, made, x), model()(x))


def test_what_a_row_split_computes_in_parts_is_computed_whole() -> None:
    module, x = model(256), torch.randn(3, 256)
    one = compiled(module, x, split_mode="row")
    assert one.program.is_sliced
    assert same(results(one, one.graph_module(), x), module(x))
    one(x)
    assert same(results(one, one.graph_module(), x), module(x)), "also when each device has its rows alone"


def test_packed_weights_stay_packed() -> None:
    module, x = model(256), torch.randn(3, 256)
    packed = {name: pack(one.detach().numpy(), "Q8_0") for name, one in module.named_parameters() if one.dim() == 2}
    held = {**module.state_dict(), **{name: torch.from_numpy(one) for name, one in packed.items()}}
    program = compiled(module, x).base
    assert program is not None
    from dovetail.passes.infra.manager import PassManager
    from dovetail.passes.pipeline import parse_passes
    from dovetail.weights.files import set_types

    program = program.copy()
    set_types(program, dict.fromkeys(packed, "Q8_0"))
    PassManager(parse_passes("simplify,quantize")).run(program)
    scale = {f"blocks.{n}.scale": block.scale for n, block in enumerate(module.blocks)}
    made = graph_module(program, lambda weight: {**held, **scale}[weight.name], torch.device("cpu"))
    with torch.no_grad():
        for name, one in packed.items():
            numbers = torch.ops.dovetail.dequantize(torch.from_numpy(one), "Q8_0", torch.float32)
            module.get_parameter(name).copy_(numbers)
        assert torch.allclose(made(x)[0], module(x)["x"], rtol=1e-4, atol=1e-5)
    assert made.get_buffer("blocks.0.up.weight").dtype == torch.uint8


def test_without_data_it_is_refused_and_has_shapes_on_meta() -> None:
    one = compiled(empty(), X.to("meta"))
    with pytest.raises(NotHereError, match=r"no data for 12 of its 15 weights .*or take graph_module\('meta'\)"):
        one.graph_module()
    made = one.graph_module("meta")
    assert made(X.to("meta"))[0].shape == X.shape
    assert {parameter.is_meta for parameter in made.parameters()} == {True}
    ShapeProp(made).propagate(X.to("meta"))


def test_a_device_that_is_not_here_is_told() -> None:
    for name in ("cuda7", "nonsense", ""):
        with pytest.raises(UsageError, match=f"there is no device {name} here: "):
            compiled(model()).graph_module(name)


def test_a_module_by_its_parts_says_that_it_has_none() -> None:
    class Untraceable(Model):
        def forward(self, x: Tensor, twice: bool = False) -> dict[str, Any]:
            return super().forward(x * float(x.sum().item() > 0), twice)

    with pytest.raises(TraceError, match="has no program of its own"):
        compiled(Untraceable().eval()).graph_module()


def test_names_of_a_plan_get_into_no_code() -> None:
    text = print_program(compiled(model()).program)
    hostile = 'a"); raise SystemExit; ("'
    for name in ("blocks.0.up.weight", "Model"):
        text = text.replace(f'"{name}"', json.dumps(hostile))
    text = text.replace("%relu", "%lambda").replace("%x:", "%class:").replace("(%x,", "(%class,")
    program = parse_program(text)
    weights = {**model().state_dict(), **{f"blocks.{n}.scale": torch.linspace(0.5, 1, 8) for n in range(3)}}
    weights[hostile] = weights["blocks.0.up.weight"]
    made = graph_module(program, lambda weight: weights[weight.name], torch.device("cpu"))
    made.graph.lint()
    assert "SystemExit" not in made.code
    with torch.no_grad():
        assert torch.equal(made(X)[0], model()(X)["x"])
