"""A function of PyTorch that somebody has replaced by one which calls it is applied once, as in eager."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.compiler.frontend import replaced_functions

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: F.silu(x),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "softmax": lambda x: F.softmax(x, -1),
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "gelu": lambda x: F.gelu(x),
    "normalize": lambda x: F.normalize(x),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x, x, x),
}
METHODS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda x: x.norm(),
    "unflatten": lambda x: x.unflatten(1, (2, 2)),
    "mul": lambda x: x.mul(3),
    "__add__": lambda x: x + 3,
}


class Calling(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * self.scale


def halved(monkeypatch: pytest.MonkeyPatch, home: Any, name: str) -> None:
    original = getattr(home, name)

    def replacement(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) / 2

    monkeypatch.setattr(home, name, replacement)


def agrees(function: Callable[[Tensor], Tensor]) -> bool:
    module, x = Calling(function).eval(), torch.randn(2, 4, 8, 8)
    with torch.no_grad():
        return torch.equal(dovetail.compile(module, (x,), backend="sim0")(x), module(x))


@pytest.mark.parametrize("name", CALLS)
def test_a_replaced_function_is_applied_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch, F, name)
    assert agrees(CALLS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_replaced_method_of_tensors_is_applied_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch, torch.Tensor, name)
    assert agrees(METHODS[name])


def test_one_that_replaces_a_replacement_is_applied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    halved(monkeypatch, F, "silu")
    halved(monkeypatch, F, "silu")
    assert agrees(CALLS["silu"])


class Halving:
    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs) / 2


def _in_a_package_named_as_pytorch_begins(original: Callable[..., Any]) -> Any:
    """One whose file lies in a folder that begins as PyTorch's does, as those of torchvision do."""
    file = Path(torch.__file__).parent.with_name("torchpatches") / "__init__.py"
    found: dict[str, Any] = {"original": original}
    exec(compile("def silu(x):\n    return original(x) / 2", str(file), "exec"), found)
    return found["silu"]


KINDS: dict[str, Callable[[Any], Any]] = {
    "object": Halving,
    "object that is updated as a wrapper": lambda original: functools.update_wrapper(Halving(original), original),
    "bound method": lambda original: Halving(original).__call__,
    "partial": lambda original: functools.partial(Halving.__call__, Halving(original)),
    "cache": lambda original: functools.lru_cache(lambda x: original(x) / 2),
    "decorated by PyTorch": lambda original: torch.no_grad()(lambda x: original(x) / 2),
    "package": _in_a_package_named_as_pytorch_begins,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [False, True], ids=["replaced afterwards", "replaced before the import"])
def test_what_replaces_a_function_may_be_anything_that_is_called(
    kind: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F, "silu", KINDS[kind](F.silu))
    if first:
        own = [one for one in replaced_functions._functions() if replaced_functions._is_own(one)]
        monkeypatch.setattr(replaced_functions, "_FIRST", {id(one): one for one in own})
    module, x = Calling(CALLS["silu"]).eval(), torch.randn(2, 4)
    with torch.no_grad():
        compiled = dovetail.compile(module, (x,), backend="sim0")
        assert torch.equal(compiled(x), module(x))
    assert compiled.program.graph is not None  # it was traced whole


@contextlib.contextmanager
def halving(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        halved(patch, F, name)
        yield


@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_a_forward_replaces_itself_is_applied_once(name: str) -> None:
    def call(x: Tensor) -> Tensor:
        with halving(name):
            return CALLS[name](x)

    assert agrees(call)


def test_a_forward_that_replaces_nothing_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: exports.append(1) or export(*args, **kwargs))
    assert agrees(lambda x: F.softmax(F.layer_norm(F.silu(x), (8,)), -1).norm(dim=-1, keepdim=True))
    assert len(exports) == 1


def test_nothing_of_pytorchs_own_counts_as_replaced() -> None:
    assert not list(replaced_functions._foreign())
