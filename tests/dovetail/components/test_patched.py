"""Methods of all tensors and all modules that somebody replaces in a running process: the next call is eager's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dovetail

from .small_pipeline import Block, Model, Pipeline, compiled_pair

pytestmark = pytest.mark.usefixtures("clean_sims")

Patch = Callable[[pytest.MonkeyPatch], None]


class Asking(Block):
    """A block that goes by methods of tensors, and by functions beside those of torch.nn."""

    def between(self, x: Tensor) -> Tensor:
        x = torch.fft.fft(x).abs().reshape(x.shape) + torch.special.expit(x)
        return (
            x.softmax(-1) + torch.linalg.vector_norm(x, dim=-1, keepdim=True) + torch.einsum("bi,bi->b", x, x)[:, None]
        )


def _scaled(own: Any) -> Any:
    @functools.wraps(own)
    def scaled(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) * 0.5

    return scaled


def _of(home: Any, name: str, make: Callable[[Any], Any] = _scaled) -> Patch:
    return lambda patch: patch.setattr(home, name, make(getattr(home, name)))


def _added(own: Any) -> Any:
    return lambda a, b: own(a, b).mul(0.9)


def _called(own: Any) -> Any:
    def called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(self, *args, **kwargs) * 0.9  # the component itself too

    return called


PATCHES: dict[str, Patch] = {
    "operator": _of(torch.Tensor, "__add__", _added),
    "method": _of(torch.Tensor, "softmax"),
    "method in the place of another": lambda patch: patch.setattr(torch.Tensor, "softmax", torch.Tensor.log_softmax),
    "property": lambda patch: patch.setattr(torch.Tensor, "shape", property(lambda self: tuple(self.size()))),
    "call of modules": _of(nn.Module, "__call__", _called),
    "call of modules, wrapped": _of(nn.Module, "__call__"),
    "inner call of modules": _of(nn.Module, "_call_impl", _called),
    "attributes of modules": _of(
        nn.Module,
        "__getattr__",
        lambda own: lambda self, name: own(self, name) * 0.5 if name == "bias" else own(self, name),
    ),
    "torch.fft": _of(torch.fft, "fft"),
    "torch.special": _of(torch.special, "expit"),
    "torch.linalg": _of(torch.linalg, "vector_norm"),
    "torch.functional": _of(torch, "einsum"),
}


@pytest.fixture(scope="module")
def painted() -> tuple[Model, Pipeline, Tensor]:
    return compiled_pair(Asking)


@pytest.mark.fifth
@pytest.mark.few(6)
@pytest.mark.parametrize("name", PATCHES)
def test_a_patched_method_changes_the_next_call_as_it_changes_eager_and_back(
    painted: tuple[Model, Pipeline, Tensor], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model, pipe, x = painted
    with torch.no_grad():
        before = model(x)
        assert torch.equal(pipe(x), before)
        programs = list(pipe._dovetail.components["unet"].programs)
        with monkeypatch.context() as patch:
            PATCHES[name](patch)
            want, found = model(x), [pipe(x) for _ in range(2)]
        assert all(torch.equal(one, want) for one in found)
        assert name == "property" or not torch.equal(before, want)
        count = len(pipe._dovetail.components["unet"].programs)
        assert torch.equal(pipe(x), before)
        assert len(pipe._dovetail.components["unet"].programs) == count
        assert set(programs) <= set(pipe._dovetail.components["unet"].programs)  # that of before holds again


@pytest.mark.parametrize("name", ["operator", "call of modules", "torch.fft"])
def test_what_was_patched_before_the_first_call_is_not_in_the_next(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    model, pipe, x = compiled_pair(Asking)
    with torch.no_grad():
        with monkeypatch.context() as patch:
            PATCHES[name](patch)
            want, found = model(x), pipe(x)
        assert torch.equal(found, want)
        assert torch.equal(pipe(x), model(x))


def test_a_module_is_compiled_by_its_parts_while_a_method_of_tensors_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, x = Asking().eval(), torch.randn(2, 32)
    with torch.no_grad():
        plain = module(x)
        with monkeypatch.context() as patch:
            PATCHES["method"](patch)
            compiled = dovetail.compile(module, (x,), backend="sim0")
            assert torch.equal(compiled(x), module(x))
            assert not compiled.programs  # type: ignore[attr-defined]
        assert torch.equal(compiled(x), plain)


def test_a_class_of_torch_whose_method_was_patched_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distributed(Block):
        def between(self, x: Tensor) -> Tensor:
            found: Tensor = torch.distributions.Normal(0.0, 1.0, validate_args=False).log_prob(x)
            return found

    model, pipe, x = compiled_pair(Distributed)
    with torch.no_grad():
        assert torch.equal(pipe(x), model(x))
        monkeypatch.setattr(torch.distributions.Normal, "log_prob", lambda self, x: x * 2)
        assert torch.equal(pipe(x), model(x))
