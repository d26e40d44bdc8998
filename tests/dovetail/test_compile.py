"""Compiling one module, and calling what comes of it."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.errors import (
    CallError,
    DoesNotFitError,
    ExecutionError,
    NotHereError,
    PassError,
    SpecError,
    TraceError,
    UsageError,
)

SIMS = "sim0&sim1&sim2"


@dataclass
class Result:
    sample: torch.Tensor
    skips: list[torch.Tensor]
    nothing: None = None
    count: int = 0


pytree.register_dataclass(Result, serialized_type_name="tests.Result")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 16, depth: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(width, 4)

    def forward(
        self, ids: torch.Tensor, scale: torch.Tensor | None = None, power: float = 1.0, return_dict: bool = True
    ) -> Any:
        x = self.embed(ids)
        skips = []
        for block in self.blocks:
            x = self.drop(block(x))
            skips.append(x)
        if scale is not None:
            x = x * scale**power
        sample = self.head(x)
        return Result(sample, skips, None, len(skips)) if return_dict else (sample, None, {"skips": skips})


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.arange(10).reshape(2, 5)


def eager(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.no_grad():
        return model(*args, **kwargs)


def same(left: Any, right: Any) -> bool:
    ours, own = pytree.tree_flatten(left)
    theirs, other = pytree.tree_flatten(right)
    pairs = zip(ours, theirs, strict=True)
    return own == other and all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("backend", ["cpu", "sim0", "sim0&sim1", SIMS, "sim1&cpu"])
def test_the_result_is_the_eager_one_bit_for_bit(model: Model, ids: torch.Tensor, backend: str) -> None:
    compiled = dovetail.compile(model, (ids,), backend=backend)
    assert same(compiled(ids), eager(model, ids))


def test_it_is_called_as_the_module_was(model: Model, ids: torch.Tensor) -> None:
    scale = torch.tensor(0.5)
    compiled = dovetail.compile(model, (ids, scale), {"return_dict": False}, backend="sim0&sim1")
    expected = eager(model, ids, scale, return_dict=False)
    assert same(compiled(ids, scale, return_dict=False), expected)
    assert same(compiled(return_dict=False, scale=scale, ids=ids), expected)
    assert same(compiled(ids, scale, 1.0, False), expected)


def test_results_keep_their_structure(model: Model, ids: torch.Tensor) -> None:
    result = dovetail.compile(model, (ids,), backend="sim0&sim1")(ids)
    assert isinstance(result, Result)
    assert result.nothing is None
    assert result.count == 6


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.zeros(2, 6, dtype=torch.long),), {}, "int64[2, 5], got int64[2, 6]"),
        ((torch.zeros(2, 5),), {}, "got float32[2, 5]"),
        ((torch.zeros(2, 5, dtype=torch.long),), {"return_dict": False}, "return_dict was True when traced, got False"),
        ((torch.zeros(2, 5, dtype=torch.long), torch.ones(1)), {}, "scale was None when traced"),
        ((), {}, "missing ['ids']"),
        ((torch.zeros(2, 5, dtype=torch.long),), {"speed": 3}, "not in the trace ['speed']"),
        ((torch.zeros(2, 5, dtype=torch.long),), {"ids": None}, "given twice"),
        (("no tensor",), {}, "must be a tensor"),
    ],
)
def test_another_call_than_the_traced_one_raises(
    model: Model, ids: torch.Tensor, args: Any, kwargs: Any, words: str
) -> None:
    compiled = dovetail.compile(model, (ids,), backend="cpu")
    with pytest.raises(CallError) as caught:
        compiled(*args, **kwargs)
    assert words in str(caught.value)


def test_a_list_of_another_length_raises() -> None:
    class Sum(nn.Module):
        def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
            return sum(parts, torch.zeros(()))

    x = torch.ones(3)
    compiled = dovetail.compile(Sum(), ([x, x],), backend="cpu")
    assert torch.equal(compiled([x, x]), x + x)
    with pytest.raises(CallError, match="another structure"):
        compiled([x, x, x])


def test_an_input_in_another_layout_is_used_as_it_is() -> None:
    class Flat(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.contiguous().view(-1) + 1

    x = torch.arange(12.0).reshape(3, 4)
    compiled = dovetail.compile(Flat(), (x,), backend="cpu")
    turned = torch.arange(12.0).reshape(4, 3).t()
    assert torch.equal(compiled(turned), Flat()(turned))


def test_what_is_one_number_in_memory_may_be_expanded_in_the_example_or_in_the_call() -> None:
    module, dense, expanded = nn.Linear(3, 3).eval(), torch.randn(4, 3), torch.randn(1, 3).expand(4, 3)
    for example in (dense, expanded):
        compiled = dovetail.compile(module, (example,), backend="sim0")
        for x in (dense, expanded):
            with torch.no_grad():
                assert torch.equal(compiled(x), module(x))


def test_results_come_back_to_where_the_call_came_from_and_may_be_written_to(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), backend="sim0&sim1")
    for where in ("cpu", "sim:0", "sim:1"):
        sample = compiled(ids.to(where)).sample
        assert sample.device == torch.device(where)
        sample.mul_(2)
        assert torch.equal(sample.cpu(), eager(model, ids).sample * 2)


def test_the_module_is_left_as_it_was(model: Model, ids: torch.Tensor) -> None:
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = list(model.parameters())
    dovetail.compile(model, (ids,), backend="sim0&sim1")(ids)
    assert all(module.training for module in model.modules())
    assert all(ours is theirs for ours, theirs in zip(parameters, model.parameters(), strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_is_taken_from_the_host_too_does_not_draw_the_results_there() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, places: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + places

    module, places, x = Shifted(), torch.arange(4.0), torch.randn(2, 4)
    with torch.no_grad():
        expected = module(places, x)
        result = dovetail.compile(module, (places, x), backend="sim0&sim1")(places, x.to("sim:1"))
    assert result.device == torch.device("sim", 1)
    assert torch.equal(result.cpu(), expected)


def test_weights_on_a_host_device_are_not_copied(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), backend="cpu")
    compiled(ids)
    with torch.no_grad():
        model.head.bias.fill_(7.0)
    assert same(compiled(ids), eager(model, ids))


def test_a_device_map_places_modules_by_path(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), device_map={"": "sim0", "blocks.1": "sim1", "blocks.4.up": "sim2"})
    homes = {name: device.name for name, device in compiled.program.home.items()}
    assert homes["blocks.1.up.weight"] == "sim1"
    assert homes["blocks.4.up.bias"] == "sim2"
    assert homes["blocks.4.down.bias"] == homes["head.weight"] == "sim0"
    assert same(compiled(ids), eager(model, ids))


def test_a_device_map_must_say_something_of_every_weight(model: Model, ids: torch.Tensor) -> None:
    with pytest.raises(UsageError, match="says nothing of"):
        dovetail.compile(model, (ids,), device_map={"blocks": "sim0"})
    with pytest.raises(UsageError, match="give one of them"):
        dovetail.compile(model, (ids,), device_map="balanced", backend="cpu")


@pytest.mark.fifth
def test_shares_and_budgets_move_the_cut(model: Model, ids: torch.Tensor) -> None:
    def on_main(**options: Any) -> int:
        compiled = dovetail.compile(model, (ids,), backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB", **options)
        homes = compiled.program.home
        return sum(homes[f"blocks.{index}.up.weight"].name == "sim0" for index in range(6))

    assert on_main(tensor_split="2,1") > on_main() > on_main(tensor_split="1,5")
    assert on_main(max_vram="sim0=100MiB") < on_main() < on_main(max_memory={"sim1": "100MiB"})


def test_what_does_not_fit_is_refused_with_both_numbers(ids: torch.Tensor) -> None:
    with torch.device("meta"):
        large = Model(width=1024)
    with pytest.raises(DoesNotFitError, match=r"needs .* MiB of weights .* on sim0, which has 20.0 MiB free"):
        dovetail.compile(large, (ids,), backend="sim0&sim1", rig="sim0=20MiB,sim1=1GiB", tensor_split="1,1")


@pytest.mark.fifth
def test_a_module_whose_weights_do_not_fit_is_told_to_have_them_in_host_memory_where_that_fits() -> None:
    layers, x = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).eval(), torch.ones(1, 256)
    options = {"backend": "sim0", "rig": "sim0=1MiB,cpu=1GiB"}
    with pytest.raises(DoesNotFitError, match=r"weights in host memory, .* it fits \(params_backend=cpu, "):
        dovetail.compile(layers, (x,), **options)  # type: ignore[arg-type]
    compiled = dovetail.compile(layers, (x,), params_backend="cpu", **options)  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(compiled(x), layers(x))
    for told in ("sim0", "cpu"):
        tiny = {**options, "rig": "sim0=64KiB,cpu=1GiB", "params_backend": told}
        with pytest.raises(DoesNotFitError) as refused:
            dovetail.compile(layers, (x,), **tiny)  # type: ignore[arg-type]
        assert "params_backend=cpu" not in str(refused.value)


def test_running_out_of_memory_names_the_node_and_its_source_line(ids: torch.Tensor) -> None:
    class Greedy(Model):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.embed(ids).repeat(4000, 1, 1))

    greedy = Greedy().eval()
    compiled = dovetail.compile(
        greedy,
        (ids,),
        backend="sim5",
        rig="sim5=1MiB",  # nothing of another test lies there
        passes="simplify,blocks,place{headroom=0},pin,hoist,cut,schedule",
    )
    with pytest.raises(DoesNotFitError, match=r"%repeat \(aten\.repeat\.default\) .*test_compile\.py:\d+: OutOfMemory"):
        compiled(ids)


def test_a_failing_operation_names_the_node_and_its_source_line(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), backend="sim0&sim1")
    with pytest.raises(ExecutionError, match=r"%embedding \(aten\.embedding\.default\) in embed, .*_compile\.py:\d+"):
        compiled(ids + 100)
    assert same(compiled(ids), eager(model, ids))


def test_meta_weights_compile_print_and_save_but_do_not_run(ids: torch.Tensor, tmp_path: Any) -> None:
    with torch.device("meta"):
        ghost = Model()
    compiled = dovetail.compile(ghost, (ids,), backend="sim0&sim1")
    assert "aten.linear.default" in str(compiled)
    compiled.save(tmp_path / "plan.json")
    with pytest.raises(NotHereError, match=r"no data for \d+ of its \d+ weights"):
        compiled(ids)


def test_a_rig_that_is_not_here_compiles_but_does_not_run(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), backend="cuda6&cuda7", rig="cuda6=24GiB,cuda7=16GiB")
    assert [device.name for device in compiled.program.devices] == ["cuda6", "cuda7"]
    there = r"cuda6 \(24.0 GiB\), cuda7 \(16.0 GiB\)"
    with pytest.raises(NotHereError, match=f"compiled for {there}, which is not this machine"):
        compiled(ids)


def test_passes_that_stop_short_can_be_looked_at_but_not_run(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), backend="cpu", passes="simplify,blocks")
    assert len(compiled.program.blocks) == 6
    with pytest.raises(PassError, match="simplify → blocks: end them with schedule"):
        compiled(ids)


def test_dynamic_shapes_take_other_sizes_within_their_range(model: Model, ids: torch.Tensor) -> None:
    length = torch.export.Dim("length", min=2, max=64)
    compiled = dovetail.compile(model, (ids,), backend="sim0&sim1", dynamic_shapes={"ids": {1: length}})
    for size in (5, 9, 31):
        other = torch.arange(2 * size).reshape(2, size) % 32
        assert same(compiled(other), eager(model, other))
    with pytest.raises(CallError, match="traced as"):
        compiled(torch.zeros(2, 65, dtype=torch.long))
    with pytest.raises(CallError, match="traced as"):
        compiled(torch.zeros(3, 5, dtype=torch.long))


def test_a_module_that_can_neither_be_traced_nor_run_is_named_with_its_line_and_a_way_out(ids: torch.Tensor) -> None:
    class Branching(Model):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            if ids.sum() > 3:
                return self.embed(ids)
            raise ValueError("there are no ids")

    with pytest.raises(
        TraceError,
        match=r"there are no ids: .*Branching cannot be traced past .*_compile\.py:\d+ .*compile a submodule",
    ):
        dovetail.compile(Branching(), (ids.to("meta"),))


@pytest.mark.parametrize("backend", ["sim0&sim0", "gpu&sim0", "nothere"])
def test_a_wrong_backend_is_pointed_at(model: Model, ids: torch.Tensor, backend: str) -> None:
    with pytest.raises(SpecError, match=r"\^"):
        dovetail.compile(model, (ids,), backend=backend, rig="cuda0=8GiB")


def test_the_listing_is_what_runs_and_says_where_each_line_came_from(model: Model, ids: torch.Tensor) -> None:
    compiled = dovetail.compile(model, (ids,), backend="sim0&sim1")
    source = compiled.source()
    assert source.count("def run(slots):") == len(compiled.program.segments)
    assert "# blocks.5.down · " in source
    compile(source, "listing", "exec")


def test_threads_may_compile_one_module_at_once() -> None:
    module, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), torch.randn(2, 8)

    def answer(_: int) -> torch.Tensor:
        found: torch.Tensor = dovetail.compile(module, (x,), backend="sim0&sim1")(x)
        return found

    with torch.no_grad(), ThreadPoolExecutor(3) as pool:
        expected = module(x)
        assert all(torch.equal(found, expected) for found in pool.map(answer, range(6)))


@pytest.mark.parametrize("args", [(), (torch.ones(1, 8), torch.ones(1, 8))])
def test_an_example_that_is_no_call_of_the_module_is_refused_before_anything_is_traced(
    args: tuple[torch.Tensor, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UsageError, match=r"^Linear cannot be called with this example: [^\n]*: give the arguments of a"
    ):
        dovetail.compile(nn.Linear(8, 8, device="meta"), args, backend="sim0")
    assert capfd.readouterr() == ("", "")


def test_an_example_of_a_wrong_shape_is_refused_in_one_sentence_and_nothing_else_is_said(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(
        TraceError, match=r"^Sequential refuses this example call: [^\n]*\(1x7 and 8x8\): give arguments"
    ):
        dovetail.compile(layers, (torch.ones(1, 7),), backend="sim0&sim1")
    assert (capfd.readouterr(), caplog.text) == (("", ""), "")


@pytest.mark.parametrize("training", [True, False])
def test_a_module_in_training_mode_is_compiled_as_in_eval_mode_and_that_is_said_where_it_matters(
    training: bool, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train(training), torch.ones(2, 8)
    compiled = dovetail.compile(module, (x,), backend="sim0")
    assert (
        "Sequential is in training mode and is compiled as in eval mode, in which its Dropout" in caplog.text
    ) is training
    assert torch.equal(compiled(x), module.eval()(x))


@pytest.mark.parametrize(
    ("module", "is_told"),
    [
        (nn.BatchNorm1d(4), True),
        (nn.BatchNorm1d(4, track_running_stats=False), False),
        (nn.InstanceNorm1d(4, track_running_stats=True), True),
        (nn.InstanceNorm1d(4), False),
        (nn.Dropout(0.0), False),
        (nn.RNN(5, 5, 2, batch_first=True, dropout=0.5), True),
        (nn.RNN(5, 5, 2, batch_first=True), False),
    ],
    ids=str,
)
def test_training_mode_is_spoken_of_where_it_computes_otherwise_and_nowhere_else(
    module: nn.Module, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(2, 4, 5)
    with torch.no_grad():
        trained, evaluated = (copy.deepcopy(module).train(mode)(x) for mode in (True, False))
    trained, evaluated = (one if isinstance(one, torch.Tensor) else one[0] for one in (trained, evaluated))
    assert torch.equal(trained, evaluated) is not is_told
    dovetail.compile(module, (x,), backend="cpu")
    assert ("is in training mode" in caplog.text) is is_told


def test_an_example_that_a_hook_completes_is_a_call() -> None:
    module = nn.Bilinear(4, 4, 4).eval()
    module.register_forward_pre_hook(lambda _, args: (args[0], args[0]))
    x = torch.randn(2, 4)
    assert torch.equal(dovetail.compile(module, (x,), backend="sim0")(x), module(x))


def test_a_call_without_data_is_refused_and_names_its_argument() -> None:
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    for backend in ("cpu", "sim0&sim1"):
        compiled = dovetail.compile(module, (x,), backend=backend)
        with pytest.raises(CallError, match="argument input is on meta and has no data"):
            compiled(x.to("meta"))


def test_methods_of_the_module_are_said_to_be_the_modules() -> None:
    compiled = dovetail.compile(nn.Linear(4, 4), (torch.ones(2, 4),), backend="cpu")
    with pytest.raises(AttributeError, match=r"'state_dict': .*call that of the module"):
        compiled.state_dict()
    assert not hasattr(compiled, "generate")


@pytest.mark.parametrize(
    ("names", "told"), [(("bias",), "0.bias had .* is None"), (("weight", "bias"), "had .* are None")]
)
def test_a_weight_that_is_none_since_is_said_to_be_so(names: tuple[str, ...], told: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = dovetail.compile(module, (torch.ones(1, 4),), backend="sim0")
    for name in names:
        setattr(module[0], name, None)
    with pytest.raises(NotHereError, match=rf"{told} now: compile it again"):
        compiled(torch.ones(1, 4))


@pytest.mark.parametrize("shape", [(1, 4), (2, 4)])
def test_an_argument_of_another_dtype_is_refused_with_the_way_out(shape: tuple[int, int]) -> None:
    compiled = dovetail.compile(nn.Linear(4, 4), (torch.ones(1, 4),), backend="sim0")
    way = "compile for this dtype, or cast the argument" if shape == (1, 4) else "compile for this shape, or trace with"
    with pytest.raises(CallError, match=way):
        compiled(torch.ones(shape, dtype=torch.half))
