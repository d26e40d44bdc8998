"""torch.compile with the backend dovetail: what Dynamo makes of a model, where it runs, and what is refused."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import tomllib
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dovetail.cache import folder
from dovetail.compiler.errors import SpecError, TraceError, UsageError
from dovetail.compiler.ir.program import origin_of
from dovetail.runtime import sim
from dovetail.torch_compile.backend import CompiledGraph, compile_graph

ROOT = Path(__file__).parents[2]
TWO = {"backend": "sim0&sim1", "rig": "sim0=8MiB,sim1=8MiB"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """Blocks, and Python in the middle that Dynamo cannot follow where ``breaks``."""

    def __init__(self, breaks: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.dropout, self.breaks = nn.Dropout(dropout), breaks

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.blocks):
            if self.breaks and index == 2:
                torch._dynamo.graph_break()
            x = block(x)
        return self.dropout(x)


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    sim.enable()
    torch.compiler.reset()
    torch.manual_seed(0)
    gc.collect()
    yield
    torch.compiler.reset()
    gc.collect()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=compile_graph, options={**TWO, **options})


def in_use() -> int:
    return sum(sim.stats(index).in_use for index in (0, 1))


def nbytes(model: nn.Module) -> int:
    return sum(one.nbytes for one in (*model.parameters(), *model.buffers()))


def test_the_entry_point_names_the_backend() -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    assert {name: EntryPoint(name, one, "").load() for name, one in points.items()} == {"dovetail": compile_graph}


@pytest.mark.fifth
@torch.no_grad()
def test_weights_are_spread_over_the_devices_block_by_block() -> None:
    model, x, before = Model().eval(), torch.randn(2, 8), [sim.stats(index).in_use for index in (0, 1)]
    fast = compiled(model)
    assert torch.equal(fast(x), model(x))
    assert [sim.stats(index).in_use - one for index, one in enumerate(before)] == [nbytes(model) // 2] * 2


@pytest.mark.fifth
@torch.no_grad()
@pytest.mark.parametrize("breaks", [False, True])
def test_weights_are_on_a_device_once_for_all_graphs_and_sizes(breaks: bool) -> None:
    model, before = Model(breaks).eval(), in_use()
    fast = compiled(model, backend="sim0")
    for batch in (2, 3, 5):
        x = torch.randn(batch, 8)
        assert torch.equal(fast(x), model(x))
    assert in_use() - before == nbytes(model)


@pytest.mark.fifth
@torch.no_grad()
def test_weights_leave_with_what_was_compiled() -> None:
    model, before = Model().eval(), in_use()
    fast = compiled(model)
    fast(torch.ones(2, 8))
    assert in_use() > before
    del fast
    torch.compiler.reset()
    gc.collect()
    assert in_use() == before


@pytest.mark.fifth
@torch.no_grad()
def test_one_graph_serves_modules_that_do_the_same_each_with_its_own_weights() -> None:
    model, before = Model().eval(), in_use()
    for block in model.blocks:
        block.compile(backend=compile_graph, options=TWO)
    x = torch.randn(2, 8)
    found, again = model(x), model(x)
    assert in_use() - before == nbytes(model)
    for block in model.blocks:
        block._compiled_call_impl = None
    assert torch.equal(found, model(x))
    assert torch.equal(again, found)


@pytest.mark.fifth
@torch.no_grad()
def test_operations_are_known_by_their_modules_and_lines_in_the_model() -> None:
    graphs: list[CompiledGraph] = []

    def keep(*args: Any, **options: Any) -> CompiledGraph:
        graphs.append(compile_graph(*args, **options))
        return graphs[0]

    torch.compile(Model().eval(), backend=keep, options=TWO)(torch.ones(2, 8))
    (made,) = graphs[0]._made.values()
    assert {block.name for block in made.program.blocks} == {f"blocks.{index}" for index in range(4)}
    origins = {origin_of(node) for node in made.program.ops() if origin_of(node).cls == "Block"}
    assert {origin.module for origin in origins} == {f"blocks.{index}" for index in range(4)}
    assert all(Path(__file__).name in origin.source for origin in origins)


@pytest.mark.fifth
@torch.no_grad()
def test_sizes_that_were_marked_dynamic_may_be_any() -> None:
    model = Model().eval()
    fast = compiled(model)
    for batch in (4, 7):
        x = torch.randn(batch, 8)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(fast(x), model(x))


@pytest.mark.fifth
def test_inference_mode_is_taken() -> None:
    model, x = Model().eval(), torch.randn(2, 8)
    with torch.inference_mode():
        assert torch.equal(compiled(model)(x), model(x))


@pytest.mark.fifth
@torch.no_grad()
def test_a_weight_that_is_written_or_replaced_counts_in_the_next_call() -> None:
    model, x = Model().eval(), torch.randn(2, 8)
    fast = compiled(model)
    fast(x)
    model.blocks[0].up.weight.mul_(2)
    assert torch.equal(fast(x), model(x))
    model.blocks[3].up.weight = nn.Parameter(torch.randn(32, 8))
    assert torch.equal(fast(x), model(x))


@pytest.mark.fifth
@torch.no_grad()
def test_a_weight_with_other_data_counts_in_the_next_call_of_each_size() -> None:
    model, sizes = Model().eval(), [torch.randn(batch, 8) for batch in (2, 3)]
    fast = compiled(model, backend="sim0")
    assert all(torch.equal(fast(x), model(x)) for x in sizes)
    model.blocks[0].up.weight.data = torch.randn(32, 8)
    assert all(torch.equal(fast(x), model(x)) for x in sizes)
    model.double()
    assert all(torch.equal(fast(x.double()), model(x.double())) for x in sizes)


@pytest.mark.fifth
@torch.no_grad()
def test_a_model_that_writes_its_input_is_refused_with_its_line_and_the_input_stays() -> None:
    def write(x: Tensor) -> Tensor:
        x.mul_(2)
        return x + 1

    x = torch.ones(3)
    with pytest.raises(TraceError, match=r"writes into its input inputs_0 at .*test_torch_compile\.py:\d+: "):
        compiled(write)(x)
    assert torch.equal(x, torch.ones(3))


@pytest.mark.fifth
@torch.no_grad()
def test_graphs_over_the_same_weights_are_told_apart_where_traces_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(folder.SWITCH, "1")
    monkeypatch.setenv(folder.PLACE, str(tmp_path))
    x = torch.randn(4)
    assert torch.equal(compiled(lambda x: x + 2)(x), x + 2)
    assert torch.equal(compiled(lambda x: x - 2)(x), x - 2)


def test_gradients_are_refused() -> None:
    with pytest.raises(UsageError, match=r"computes no gradients.*torch\.no_grad\(\)"):
        compiled(Model().eval())(torch.ones(2, 8))


@pytest.mark.fifth
@torch.no_grad()
def test_a_model_that_trains_is_refused() -> None:
    with pytest.raises(UsageError, match=r"call model\.eval\(\) first"):
        compiled(Model(dropout=0.5).train())(torch.ones(2, 8))


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"bakend": "sim0"}, UsageError, "the backend dovetail has no option 'bakend'; it has those of"),
        ({"backend": "sim0&foo"}, SpecError, "no device is called 'foo'"),
        ({"split_mode": "diagonal"}, SpecError, "'diagonal' is not a split mode"),
    ],
)
def test_a_wrong_option_is_refused_in_dovetail_s_own_words(
    options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        compiled(Model().eval(), **options)(torch.ones(2, 8))


@torch.no_grad()
def test_modes_of_inductor_are_refused() -> None:
    with pytest.raises(UsageError, match="no mode 'max-autotune'"):
        torch.compile(Model().eval(), backend=compile_graph, mode="max-autotune")(torch.ones(2, 8))
