"""Modes that a user puts around calls: what they do, they do to each operation, before, after and between pictures."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import dovetail
from dovetail.compiler.errors import CallError
from tests.cases import IS_2_11

from .small_pipeline import WIDTH, Block, Model, Numpy, Pipeline, compiled_pair

pytestmark = pytest.mark.usefixtures("clean_sims")


class Activated(Block):
    """A block with an activation that modes know."""

    def between(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Functions(TorchFunctionMode):
    """Halves an activation, and counts the linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", ""))
        result = func(*args, **(kwargs or {}))
        return result * 0.5 if func is F.silu or func is torch.relu else result


class Operations(TorchDispatchMode):
    """Doubles what comes of each activation, and notes the operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        result = func(*args, **(kwargs or {}))
        return result * 2 if func in (torch.ops.aten.silu.default, torch.ops.aten.relu.default) else result


MODES: list[Callable[[], Any]] = [Functions, Operations]


@pytest.mark.fifth
@pytest.mark.few(4)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["within", "without"])
@pytest.mark.parametrize("kind", [Activated, Numpy])
def test_a_mode_acts_on_a_call_as_on_eager_and_leaves_nothing_in_the_next(
    mode: Callable[[], Any], first: str, kind: type[Block]
) -> None:
    model, pipe, x = compiled_pair(kind)
    plain = model(x).detach()
    if first == "without":
        assert torch.equal(pipe(x), plain)
    for _ in range(2):
        with torch.no_grad(), mode():
            want = model(x)
        with mode():
            assert torch.equal(pipe(x), want)
        assert kind is Numpy or not torch.equal(want, plain)
        assert torch.equal(pipe(x), plain)


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_told_of_the_operations_that_eager_has(mode: Callable[[], Any]) -> None:
    model, x = Model(Activated).eval(), torch.randn(2, WIDTH)
    pipe = Pipeline(copy.deepcopy(model))
    dovetail.compile_pipeline(pipe, "diffusion=cpu")  # others have operations of their own
    with torch.no_grad(), mode() as eagerly:
        model(x)
    pipe(x)
    with mode() as found, torch.no_grad():
        pipe.unet(x)
    own = [one for one in found.seen if "grad" not in one]
    assert own == [one for one in eagerly.seen if "grad" not in one]


def test_modes_within_modes_come_in_their_order_and_a_default_device_beside_them() -> None:
    model, pipe, x = compiled_pair(Activated)
    with torch.no_grad(), Functions(), torch.device("cpu"), Functions(), Operations():
        want = model(x)
        assert torch.equal(pipe(x), want)
        assert torch._C._len_torch_function_stack() == 3
        assert torch._C._len_torch_dispatch_stack() == 1
    assert torch.equal(pipe(x), model(x))


def test_an_error_within_a_mode_leaves_the_mode_in_its_place() -> None:
    _, pipe, _ = compiled_pair(Activated)
    with Functions() as mode:
        with pytest.raises(RuntimeError):
            pipe(torch.zeros(2, 3))
        assert torch._C._len_torch_function_stack() == 1
        mode.seen.clear()
        torch.zeros(1).sin()
        assert mode.seen == ["zeros", "sin"]
    assert torch._C._len_torch_function_stack() == 0


def test_a_mode_of_pytorch_itself_leaves_the_program_as_it_is() -> None:
    _, pipe, x = compiled_pair(Activated)
    pipe(x)
    programs = list(pipe._dovetail.components["unet"].programs)
    with torch.device("cpu"):
        pipe(x)
    assert pipe._dovetail.components["unet"].programs == programs


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_module_is_compiled_without_the_mode_around_it_and_refuses_calls_within_one(
    mode: Callable[[], Any],
) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.SiLU()).eval(), torch.ones(2, 4)
    with mode():
        compiled = dovetail.compile(module, (x,), backend="sim0")
        with pytest.raises(CallError, match=rf"Sequential is called within {mode.__name__}, a mode .*leave the mode"):
            compiled(x)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


def test_a_module_that_is_compiled_by_its_parts_takes_the_mode_as_eager_does() -> None:
    module, x = Numpy().eval(), torch.randn(2, 32)
    compiled = dovetail.compile(module, (x,), backend="sim0")
    for mode in MODES:
        with torch.no_grad(), mode():
            assert torch.equal(compiled(x), module(x))


@pytest.mark.fifth
@pytest.mark.skipif(IS_2_11, reason="a guard fails on the frame that it was made for, with any backend")
def test_torch_compile_puts_a_mode_into_the_graph_that_dovetail_is_given() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.SiLU()).eval(), torch.ones(2, 4)
    compiled = torch.compile(module, backend="dovetail", options={"backend": "cpu"})  # it is kept
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x), module(x))
            with Functions():
                want = module(x)
            with Functions():
                assert torch.equal(compiled(x), want)
