from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail.compiler.errors import CallError, TraceError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import HERE, origin_of, tensors_of
from dovetail.compiler.text.printer import print_program


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) + self.table + self.kept


def test_a_tied_weight_is_one_weight_with_an_alias() -> None:
    program = trace(Tied(), (torch.ones(1, 4),))
    assert program.weights["first.weight"].names == ("first.weight", "second.weight")
    assert "second.weight" not in program.weights
    assert len(program.weights) == len(list(program.weight_nodes())) == 3


def test_a_buffer_says_whether_a_checkpoint_has_it() -> None:
    weights = trace(Tied(), (torch.ones(1, 4),)).weights
    assert not weights["table"].persistent
    assert weights["kept"].persistent
    assert weights["first.weight"].persistent


def test_a_parameter_says_whether_it_requires_a_gradient() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    weights = trace(module, (torch.ones(1, 2),)).weights
    assert {name for name, weight in weights.items() if weight.requires_grad} == {"0.weight", "0.bias"}


def test_a_product_takes_the_kernel_that_eager_takes_for_its_weight() -> None:
    x = torch.randn(2, 8, 64).transpose(1, 2)
    for trained in (True, False):
        module = nn.Linear(8, 8).requires_grad_(trained)
        compiled = dovetail.compile(module, (x,), backend="sim0")
        with torch.no_grad():
            assert torch.equal(compiled(x), module(x))


def test_a_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    module[1].eval()
    before = dict(module.named_parameters())
    trace(module, (torch.ones(1, 2),))
    assert dict(module.named_parameters()).items() == before.items()
    assert module.training
    assert not module[1].training


def test_a_module_is_left_as_it_was_when_it_cannot_be_traced() -> None:
    module = Branching()
    before = dict(module.named_parameters())
    with pytest.raises(TraceError):
        trace(module, (torch.ones(1, 2),))
    assert dict(module.named_parameters()).items() == before.items()
    assert module.training


def test_a_module_on_meta_gives_the_program_of_a_real_one() -> None:
    real, meta = nn.Linear(4, 4), nn.Linear(4, 4, device="meta")
    example = (torch.ones(2, 4),)
    assert print_program(trace(real, example)) == print_program(trace(meta, (torch.ones(2, 4, device="meta"),)))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.layer(x)
        return x


def test_a_branch_on_a_value_is_refused_with_the_line_and_a_way_out() -> None:
    with pytest.raises(TraceError) as caught:
        trace(Branching(), (torch.ones(1, 2),))
    message = str(caught.value)
    assert message.startswith("Branching cannot be traced past ")
    assert "test_trace.py" in message
    assert "(if x.sum() > 0:)" in message
    assert "compile a submodule that leaves it out" in message


class Choosing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0] * 2


def test_a_size_that_depends_on_values_is_refused_with_the_line() -> None:
    with pytest.raises(TraceError, match=r"Choosing cannot be traced past .*\(return x\[x > 0\] \* 2\).*depends on"):
        trace(Choosing(), (torch.ones(3),))


class WritesInput(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class WritesBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


@pytest.mark.parametrize(("module", "what"), [(WritesInput(), "its input x"), (WritesBuffer(), "its weight calls")])
def test_writing_what_a_module_was_given_is_refused_by_name(module: nn.Module, what: str) -> None:
    with pytest.raises(TraceError, match=rf"writes into {what} at .*test_trace\.py:\d+: .*clone it first"):
        trace(module, (torch.ones(2),))


class UpdatesStatistics(nn.Module):
    """Normalizes by the batch, though it is in eval mode, and has the op keep running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x, self.mean, torch.ones_like(self.mean), training=True)


def test_a_normalization_that_updates_its_running_statistics_is_refused() -> None:
    with pytest.raises(TraceError, match=r"writes into its weight mean at .*clone it first"):
        trace(UpdatesStatistics(), (torch.ones(2, 3),))


class Fills(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tensor([1.0, 2.0]) * 3
        y[0] = 5
        z = torch.zeros_like(x)
        z[:, 1:] = x[:, :-1]
        return y + z


def test_writing_into_memory_of_its_own_is_traced_right() -> None:
    x = torch.randn(3, 2)
    compiled = dovetail.compile(Fills(), (x,), backend="sim0&sim1")
    assert torch.equal(compiled(x), Fills()(x))
    assert torch.equal(compiled(x), Fills()(x))


class Region(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", enabled=False):
            y = self.layer(x)
            flat = y.view(-1)
        with torch.set_grad_enabled(False):
            return flat * 2 + y.sum()


def test_the_regions_of_a_model_become_part_of_the_graph() -> None:
    module, x = Region(), torch.randn(3, 2)
    program = trace(module, (x,))
    assert not [node for node in program.ops() if isinstance(node.target, torch._ops.HigherOrderOperator)]
    (view,) = (node for node in program.ops() if node.target is torch.ops.aten.view.default)
    assert tensors_of(view)[0].storage == tensors_of(view.args[0])[0].storage  # type: ignore[arg-type]
    with torch.no_grad():
        assert torch.equal(dovetail.compile(module, (x,), backend="sim0")(x), module(x))


class Positions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[-1], device=x.device).to(x.device, x.dtype)


def test_no_device_is_frozen_into_the_graph() -> None:
    program = trace(Positions(), (torch.ones(4),))
    arguments = [a for node in program.ops() for a in (*node.args, *node.kwargs.values())]
    assert {a for a in arguments if isinstance(a, torch.device)} == {HERE}
    x = torch.randn(4)
    assert torch.equal(dovetail.compile(Positions(), (x,), backend="sim1")(x), Positions()(x))


@dataclass
class Answer:
    main: torch.Tensor
    more: Any = None


pytree.register_dataclass(Answer, serialized_type_name="test_trace.Answer")


class Structured(nn.Module):
    def forward(self, pair: tuple[Any, Any], *rest: Any, scale: int = 2, options: Any = None, **more: Any) -> Answer:
        return Answer(pair[0] * scale, {"list": [pair[1], None, 7], "more": (more["extra"] + 1, options, *rest)})


def test_a_call_keeps_its_structure_on_both_sides() -> None:
    a, b = torch.randn(2), torch.randn(2)
    args, kwargs = ((a, 3), b), {"extra": b, "options": "some"}
    compiled = dovetail.compile(Structured(), args, kwargs, backend="sim0")
    result, expected = compiled(*args, **kwargs), Structured()(*args, **kwargs)
    assert isinstance(result, Answer)
    mine, theirs = pytree.tree_flatten(result), pytree.tree_flatten(expected)
    assert mine[1] == theirs[1]
    for x, y in zip(mine[0], theirs[0], strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        (((torch.ones(3), 3), torch.ones(2)), {"extra": torch.ones(2)}),
        (((torch.ones(2), 4), torch.ones(2)), {"extra": torch.ones(2)}),
        (((torch.ones(2), 3), torch.ones(2)), {"extra": torch.ones(2), "scale": 3}),
        (((torch.ones(2), 3), torch.ones(2)), {"extra": torch.ones(2, dtype=torch.float64)}),
        (((torch.ones(2), 3),), {"extra": torch.ones(2)}),
    ],
)
def test_a_call_that_differs_from_the_traced_one_raises(args: Any, kwargs: Any) -> None:
    compiled = dovetail.compile(
        Structured(), ((torch.ones(2), 3), torch.ones(2)), {"extra": torch.ones(2)}, backend="sim0"
    )
    with pytest.raises(CallError):
        compiled(*args, **kwargs)


def test_a_dynamic_dimension_takes_other_sizes() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    batch = torch.export.Dim("batch", min=2, max=64)
    compiled = dovetail.compile(module, (torch.ones(3, 4),), backend="sim0&sim1", dynamic_shapes={"input": {0: batch}})
    for size in (2, 3, 17):
        x = torch.randn(size, 4)
        with torch.no_grad():
            assert torch.equal(compiled(x), module(x))
    with pytest.raises(CallError):
        compiled(torch.ones(65, 4))


def test_a_node_knows_its_module_and_its_line() -> None:
    program = trace(nn.Sequential(nn.Linear(2, 2), Positions()), (torch.ones(1, 2),))
    origins = [origin_of(node) for node in program.ops()]
    assert {origin.module for origin in origins} == {"0", "1"}
    assert {origin.cls for origin in origins} == {"Linear", "Positions"}
    assert [origin for origin in origins if "test_trace.py:" in origin.source]


def test_a_copied_program_is_changed_alone() -> None:
    program = trace(Tied(), (torch.ones(1, 4),))
    before = print_program(program)
    copy = program.copy()
    assert print_program(copy) == before
    for node in reversed(list(copy.ops())):
        node.meta["value"] = None
    copy.weights.clear()
    assert print_program(program) == before


def test_exporting_lazily_changes_nothing_that_a_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).eval()
    lazy = print_program(trace(module, (torch.ones(2, 4),)))
    assert "linear.py:" in lazy
    monkeypatch.setattr("dovetail.compiler.frontend.trace.lazily_exported", contextlib.nullcontext)
    assert print_program(trace(module, (torch.ones(2, 4),))) == lazy


def test_an_export_leaves_the_way_in_which_stacks_are_read_as_it_was() -> None:
    before = torch.utils._traceback._extract_symbolized_tb
    with pytest.raises(TraceError):
        trace(Raises(), (torch.ones(2),))
    assert torch.utils._traceback._extract_symbolized_tb is before
    assert not torch.fx._lazy_graph_module._use_lazy_graph_module_flag


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")
