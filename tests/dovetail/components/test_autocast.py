from __future__ import annotations

import contextlib
import itertools
import logging
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.compiler.errors import CallError, TraceError
from dovetail.compiler.frontend.trace import trace
from dovetail.compiler.ir.program import tensors_of
from dovetail.compiler.text.parser import parse_program
from dovetail.compiler.text.printer import print_program


class Mixed(nn.Module):
    """Adds what autocast has lowered to what it has not, and asks for the dtype that came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.conv = nn.Conv1d(3, 3, 3, padding=1)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.blocks[0](x)
        y = y * 1.5 + x
        y = self.norm(self.conv(y).to(y.dtype))
        weights = torch.softmax(y @ y.transpose(1, 2), -1)
        y = torch.cat([y, weights @ self.blocks[1](y).to(weights.dtype)], -1)
        return nn.functional.scaled_dot_product_attention(y, y, y)


class Pipe(diffusers.DiffusionPipeline):  # type: ignore[misc]
    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.register_modules(transformer=transformer)


def under(dtype: torch.dtype | None) -> Any:
    return contextlib.nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def eager(module: nn.Module, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    with torch.no_grad(), under(dtype):
        result: Tensor = module(x)
    return result


def same(result: Tensor, expected: Tensor) -> bool:
    return result.dtype == expected.dtype and torch.equal(result, expected)


@pytest.mark.fifth
@pytest.mark.few(5)
@pytest.mark.parametrize("backend", ["cpu", "sim0&sim1"])
@pytest.mark.parametrize("order", list(itertools.permutations([None, torch.bfloat16, torch.float16], 3)), ids=str)
def test_each_call_of_a_pipeline_gives_what_eager_gives_under_its_autocast(backend: str, order: Any) -> None:
    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(2, 3, 16)
    expected = {dtype: eager(module, x, dtype) for dtype in order}
    pipe = dovetail.compile_pipeline(Pipe(module), backend)
    for dtype in (*order, *order):
        assert same(eager(module, x, dtype), expected[dtype])
    assert len(pipe.dovetail.programs["transformer"]) == 3


@pytest.mark.fifth
@pytest.mark.parametrize("backend", ["cpu", "sim0&sim1"])
def test_a_module_compiled_under_autocast_is_right_under_it_and_refused_without(backend: str) -> None:
    module, x = Mixed().eval(), torch.randn(2, 3, 16)
    for dtype, other in ((None, torch.bfloat16), (torch.bfloat16, None), (torch.bfloat16, torch.float16)):
        with under(dtype):
            compiled = dovetail.compile(module, (x,), backend=backend)
        with under(dtype):
            assert same(compiled(x), eager(module, x, dtype))
        with (
            under(other),
            pytest.raises(CallError, match=r"was compiled .* and is called"),
        ):
            compiled(x)
        assert not torch.is_autocast_enabled("cpu")


def test_the_text_of_a_program_says_under_which_autocast_it_was_traced() -> None:
    with under(torch.bfloat16):
        program = trace(Mixed(), (torch.randn(2, 3, 16),))
    assert "\nautocast bfloat16\n" in print_program(program)
    assert parse_program(print_program(program)).autocast is torch.bfloat16
    assert "\nautocast" not in print_program(trace(Mixed(), (torch.randn(2, 3, 16),)))


class Regions(nn.Module):
    def __init__(self, kind: str, around: bool = True, within: bool = False) -> None:
        super().__init__()
        self.kind, self.around, self.within = kind, around, within
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.around):
            x = self.layers[0](x)
            with torch.autocast(self.kind, torch.bfloat16, enabled=self.within):
                x = self.layers[1](x.float()).to(x.dtype)
            return self.layers[2](x)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("around", "within"), [(True, False), (False, True), (False, False)])
def test_regions_of_a_model_keep_their_casts(dtype: torch.dtype | None, around: bool, within: bool) -> None:
    module, x = Regions("cpu", around, within).eval(), torch.randn(2, 4)
    with under(dtype):
        compiled = dovetail.compile(module, (x,), backend="sim0&sim1")
        assert same(compiled(x), eager(module, x, dtype))


@pytest.mark.fifth
@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_a_region_acts_on_the_device_that_it_names_and_on_no_other(kind: str) -> None:
    x = torch.randn(2, 4)
    for named in ("cuda", "xpu", "mps", "cpu"):
        program = trace(Regions(named), (x,), kind=kind)
        lowered = [tensors_of(node)[0].dtype for node in program.ops() if "linear" in str(node.target)]
        half = torch.bfloat16 if named == kind else torch.float32
        assert lowered == [half, torch.float32, half]


def test_autocast_that_differs_on_the_device_is_refused_by_line_and_the_component_runs_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.set_autocast_enabled("cuda", True)
    try:
        with pytest.raises(TraceError, match=r"autocast to torch.float16 on cuda .*test_autocast|functional\.py:\d+"):
            trace(Mixed(), (torch.randn(2, 3, 16),), kind="cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
    module, x = Sums().eval(), torch.randn(2, 4)
    expected = eager(module, x, torch.bfloat16), eager(module, x, None)
    pipe = dovetail.compile_pipeline(Pipe(module), "cpu")
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert same(eager(module, x, torch.bfloat16), expected[0])
    assert [record for record in caplog.records if "autocast to torch.bfloat16" in record.getMessage()]
    assert same(eager(module, x, None), expected[1])
    whole = [one for one in pipe.dovetail.programs["transformer"] if one.program.name == "Sums"]
    assert len(whole) == 1


class Sums(nn.Module):
    """An einsum multiplies within itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,bj->ij", self.layer(x), x)


def test_a_product_that_autocast_casts_is_traced_without_a_word_of_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.bmm(self.layer(x), x)

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)
    try:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            dovetail.compile(Product(), (torch.randn(2, 4, 4),))
    finally:
        logger.removeHandler(caplog.handler)
    assert "failed while attempting" not in caplog.text
