"""Modules that run by their parts, and hooks, that read weights of parts which they do not call."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from tests.cases import slow_but

from .small_pipeline import WIDTH, Block, Model, Numpy, Pipeline


class Gamma(nn.Module):
    """A part with one parameter, of a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Inner(nn.Module):
    """A part whose method is called, and not its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.table = nn.Parameter(torch.randn(WIDTH))

    def embed(self, x: Tensor) -> Tensor:
        return self.proj(x) + self.table

    def forward(self, x: Tensor) -> Tensor:
        return self.embed(x)


class OfPart(Numpy):
    """Reads a parameter of a part twice, as one that it holds on to."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Gamma()

    def forward(self, x: Tensor) -> Tensor:
        gamma = self.norm.gamma
        return super().forward(x * gamma) + gamma


class InMethod(Numpy):
    """Has a method read the weights of a part."""

    def forward(self, x: Tensor) -> Tensor:
        return x + self._project(self.between(self.up(x))) * self.scale

    def _project(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.down.weight, self.down.bias)


class Named(Numpy):
    """Takes the weights of a part as they are named, some of them in a list."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = dict(self.down.named_parameters()).values()
        x = functional.linear(self.between(self.up(x)), weight)
        return torch.cat([x, bias.expand(1, -1)])[: len(x)] + getattr(self.down, "bi" + "as")


class OfMethod(Numpy):
    """Calls a method of a part."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.inner.embed(x))


class Root(Model):
    """Reads parameters of its blocks itself, of the last one too."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(torch.from_numpy(x.cpu().numpy()).to(x.device))
        return y * self.blocks[-1].scale + self.blocks[0].up.bias[:WIDTH]


BACKENDS: list[tuple[str, dict[str, Any]]] = [
    (backend, asked) for backend in ("sim0", "sim0&sim1") for asked in ({}, {"params_backend": "cpu"})
]
KINDS = (OfPart, InMethod, Named, OfMethod)


def _hook(model: Model) -> None:
    """Has hooks of blocks read weights of theirs, of their parts and of other blocks."""
    first, second, third, _ = model.blocks
    first.register_forward_pre_hook(lambda one, args: (args[0] + one.scale,))
    second.register_forward_pre_hook(lambda one, args: (args[0] + one.up.weight.mean(0),))
    second.register_forward_hook(lambda one, args, x: x * first.scale)
    third.up.register_forward_pre_hook(lambda one, args: (args[0] + second.down.bias,))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def _made(*kinds: type[Block], cls: type[Model] = Model) -> tuple[Model, Tensor]:
    torch.manual_seed(0)
    model = cls(Block)
    model.blocks = nn.ModuleList(kind() for kind in kinds)
    return model.eval(), torch.randn(2, WIDTH)


def _check(model: Model, x: Tensor, backend: str, asked: dict[str, Any]) -> None:
    eager = copy.deepcopy(model)
    for one in (model, eager) if type(model) is Model else ():
        _hook(one)
    pipe = Pipeline(model)
    dovetail.compile_pipeline(pipe, f"diffusion={backend}", **asked)
    for _ in range(2):
        assert torch.equal(pipe(x), eager(x))
    model.blocks[1].down.weight.mul_(2)
    eager.blocks[1].down.weight.mul_(2)
    assert torch.equal(pipe(x), eager(x))
    pipe.dovetail.undo()
    assert torch.equal(model(x), eager(x))
    assert {one.device.type for one in model.parameters()} == {"cpu"}


@pytest.mark.fifth
@pytest.mark.few(2)
@pytest.mark.parametrize(("backend", "asked"), BACKENDS)
def test_weights_are_read_of_parts_that_are_not_called(backend: str, asked: dict[str, Any]) -> None:
    model, x = _made(*KINDS, cls=Root)
    _check(model, x, backend, asked)


@pytest.mark.fifth
@pytest.mark.few(quick=2)
@pytest.mark.parametrize("kind", slow_but([Block], [Block, Numpy]))
@pytest.mark.parametrize(("backend", "asked"), BACKENDS)
def test_hooks_read_weights_of_their_part_and_of_others(backend: str, asked: dict[str, Any], kind: type[Block]) -> None:
    model, x = _made(*(kind,) * 4)
    _check(model, x, backend, asked)


@pytest.mark.fifth
@pytest.mark.parametrize("on_block", slow_but([False], [True, False]))
@pytest.mark.parametrize("backend", ["sim0", "sim0&sim1"])
def test_a_hook_that_does_nothing_leaves_weights_where_they_are_read(backend: str, on_block: bool) -> None:
    class Traced(OfPart):
        def between(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    model, x = _made(Traced, Traced)
    expected, block = model(x), model.blocks[1]
    (block if on_block else block.up).register_forward_hook(lambda *_: None)
    pipe = Pipeline(model)
    dovetail.compile_pipeline(pipe, f"diffusion={backend}")
    assert torch.equal(pipe(x), expected)


@pytest.mark.fifth
@pytest.mark.parametrize(("backend", "asked"), slow_but([BACKENDS[2]], BACKENDS))
def test_a_module_that_is_compiled_by_itself_reads_weights_of_parts(backend: str, asked: dict[str, Any]) -> None:
    model, x = _made(OfPart, Block, cls=Root)
    expected = model(x)
    assert torch.equal(dovetail.compile(model, (x,), backend=backend, **asked)(x), expected)


class Functions(TorchFunctionMode):
    """Does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    """Does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Within(Root):
    """Enters a mode of its own."""

    def forward(self, x: Tensor) -> Tensor:
        with Functions():
            return super().forward(x)


@pytest.mark.fifth
@pytest.mark.few(quick=2)
@pytest.mark.parametrize("mode", [Functions, Dispatches])
@pytest.mark.parametrize("cls", slow_but([Root], [Root, Within]))
@pytest.mark.parametrize(("backend", "asked"), BACKENDS[1:3])
def test_weights_are_read_within_modes_of_somebody_else(
    backend: str, asked: dict[str, Any], cls: type[Model], mode: type[Any]
) -> None:
    model, x = _made(*KINDS, cls=cls)
    eager, pipe = copy.deepcopy(model), Pipeline(model)
    dovetail.compile_pipeline(pipe, f"diffusion={backend}", **asked)
    for _ in range(2):
        with mode():
            assert torch.equal(pipe(x), eager(x))
    assert torch.equal(pipe(x), eager(x))


class Decaying(Numpy):
    """Halves a parameter of its own at each call, and one of a part that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Gamma()

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.5)
        gamma = self.norm.gamma
        gamma.mul_(0.5)
        gamma.data = gamma.data * 0.5
        return super().forward(x * gamma)


@pytest.mark.fifth
@pytest.mark.few(1)
@pytest.mark.parametrize("asked", [{}, {"params_backend": "cpu"}])
def test_a_dry_run_writes_no_weight_that_a_module_writes_at_each_call(asked: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Model(Decaying).eval()
    eager, compiled = Pipeline(copy.deepcopy(model)), Pipeline(model)
    dovetail.compile_pipeline(compiled, "diffusion=sim0", **asked)
    x = torch.randn(4, WIDTH)
    for given in (x, x, x[:1], x):  # of each new size there is a dry run first, of the second one on a device
        assert torch.equal(compiled(given), eager(given))
