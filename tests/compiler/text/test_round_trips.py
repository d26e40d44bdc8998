"""What is odd in a call, or in a name, comes through printing, saving and loading."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import dovetail
from dovetail.compiler.errors import CallError, TraceError
from dovetail.compiler.ir.structure import count_leaves, read_structure, show_structure
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({'a : "b"': nn.Linear(4, 4), "c\n\x1b[2J": nn.Linear(4, 4), "ü:": nn.ReLU()})

    def forward(
        self,
        x: torch.Tensor,
        /,
        y: torch.Tensor,
        limit: float = float("inf"),
        nothing: float = float("nan"),
        text: str = "x as [y, = %z",
        sizes: tuple[Any, ...] = (1, (2, [3.5, None])),
        **more: torch.Tensor,
    ) -> Any:
        for part in self.parts.values():
            x = part(x)
        return {"x": (x + y).clamp(max=limit), 3: [more[name] for name in sorted(more)], "text": text}


X, Y = torch.ones(2, 4), torch.ones(2, 4)
MORE = {"b: tensor": torch.ones(1), "é": torch.ones(2), "a\nb": torch.ones(3)}


def test_odd_arguments_and_names_are_read_back(tmp_path: Path) -> None:
    module = Odd().eval()
    compiled = dovetail.compile(module, (X, Y), MORE, backend="sim0&sim1", rig="sim0=1GiB,sim1=1GiB")
    assert print_program(parse_program(str(compiled))) == str(compiled)
    compiled.save(tmp_path / "plan.json")
    loaded = dovetail.load(tmp_path / "plan.json", weights=module)
    assert str(loaded) == str(compiled)
    for program in (compiled, loaded):
        for given in ({}, {"nothing": math.nan}, {"limit": math.inf, "sizes": (1, (2, [3.5, None]))}):
            with torch.no_grad():
                found, wanted = program(X, Y, **MORE, **given), module(X, Y, **MORE)
            assert torch.equal(found["x"], wanted["x"])
            assert found["text"] == "x as [y, = %z"
            assert len(found[3]) == 3


@pytest.mark.parametrize(
    "given", [{"limit": 1.0}, {"nothing": 0.0}, {"text": "other"}, {"sizes": (1, [2, [3.5, None]])}]
)
def test_another_value_is_refused(given: dict[str, Any]) -> None:
    compiled = dovetail.compile(Odd().eval(), (X, Y), MORE, backend="cpu")
    with pytest.raises(CallError):
        compiled(X, Y, **MORE, **given)


def test_an_example_with_stride_zero_stands_for_dense_tensors_too() -> None:
    layer = nn.Linear(8, 8).eval()
    compiled = dovetail.compile(layer, (torch.randn(1, 8).expand(4, 8),), backend="cpu")
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(compiled(x), layer(x))


class Pair(NamedTuple):
    one: Any
    other: Any


torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="tests.round_trips.Pair")


@pytest.mark.parametrize(
    "value",
    [1, [1, (2, 3)], {"a": [1], "b": ()}, collections.OrderedDict(z=1, a={3: 4}), torch.Size([1, 2]), Pair(1, [2])],
)  # fmt: skip
def test_structures_are_read_as_torch_reads_them(value: Any) -> None:
    _, spec = torch.utils._pytree.tree_flatten(value)
    text = show_structure(spec)
    assert count_leaves(text) == spec.num_leaves
    assert read_structure(text) == spec == torch.utils._pytree.treespec_loads(text)


class Largest(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return {"largest": [torch.topk(x, 2), x], "all": x.sort()}


def test_what_operations_of_pytorch_return_is_printed_and_read_as_what_it_is() -> None:
    x = torch.tensor([3.0, 1.0, 2.0])
    compiled = dovetail.compile(Largest(), (x,), backend="cpu")
    read = parse_program(str(compiled))
    assert print_program(read) == str(compiled)
    made = read.signature.unflatten([x, x.long(), x, x, x.long()])
    assert isinstance(made["largest"][0], torch.return_types.topk)
    assert isinstance(made["all"], torch.return_types.sort)


class Unregistered(NamedTuple):
    """A named tuple that nobody has registered."""

    first: Any
    second: Any


class Returning(nn.Module):
    def __init__(self, way: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor) -> Any:
        return self.way(x + 1)


@pytest.mark.parametrize(
    "way", [lambda y: Unregistered(torch.topk(y, 2), y), lambda y: Unregistered(y, y * 2)], ids=["nested", "alone"]
)
def test_a_program_that_returns_what_has_no_name_in_text_is_called_and_not_saved(
    way: Callable[[torch.Tensor], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "kept"))
    module, x = Returning(way), torch.randn(2, 4)
    compiled = dovetail.compile(module, (x,), backend="cpu")
    assert torch.equal(compiled(x).second, module(x).second)
    for write in (lambda: str(compiled), lambda: compiled.save(tmp_path / "plan.json")):
        with pytest.raises(
            TraceError, match=r"Unregistered, of which nobody has told PyTorch the name.*or register it first"
        ):
            write()


@pytest.mark.parametrize("name", ["topk", "nothing", "__class__", "all_types"])
def test_a_text_that_names_no_result_of_an_operation_is_refused(name: str) -> None:
    text = f'[1, {{"type": "torch.return_types.{name}", "context": null, "children_spec": []}}]'
    with pytest.raises(CallError, match="which PyTorch does not return"):
        read_structure(text)


def test_an_output_class_that_is_not_imported_is_named() -> None:
    text = '[1, {"type": "nowhere.Output", "context": "[\\"a\\"]", "children_spec": [' \
           '{"type": null, "context": null, "children_spec": []}]}]'  # fmt: skip
    assert count_leaves(text) == 1
    with pytest.raises(CallError, match=r"nowhere\.Output.*import its module first"):
        read_structure(text)
