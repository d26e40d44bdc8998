"""What a model asks of its inputs beside their elements: a call with other answers is refused, or answered anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor, nn

import dovetail
from dovetail.cache import traces
from dovetail.compiler.errors import CallError
from dovetail.compiler.frontend.trace import trace

from .small_pipeline import Pipeline

LAST = torch.channels_last
Question = Callable[[Tensor], Any]

QUESTIONS: dict[str, Question] = {
    "is_contiguous": lambda x: 2 if x.is_contiguous() else 3,
    "is_contiguous in a format": lambda x: 2 if x[None, None].is_contiguous(memory_format=LAST) else 3,
    "stride": lambda x: x.stride(0),
    "strides": lambda x: x.stride()[1],
    "torch's own question": lambda x: 2 if torch._prims_common.is_contiguous(x) else 3,
    "stride of a result": lambda x: (x * 2).stride(0),
    "dim_order": lambda x: x.dim_order()[0] + 2,
    "storage_offset": lambda x: x.storage_offset(),
    "storage_offset of a view": lambda x: x[1:].storage_offset(),
    "the storage": lambda x: x.untyped_storage().nbytes(),
    "as_strided": lambda x: x.as_strided((8, 8), (1, 8), 0),
    "requires_grad": lambda x: 2 if x.requires_grad else 3,
    "is_leaf": lambda x: 2 if x.is_leaf else 3,
    "is_neg": lambda x: 2 if x.is_neg() else 3,
    "_is_view": lambda x: 2 if x._is_view() else 3,
    "_version": lambda x: x._version + 2,
    "is_inference": lambda x: 2 if x.is_inference() else 3,
}


COARSE = ("stride of a result", "dim_order")
"""The answer may be the same for other strides."""


def expected(module: nn.Module, x: Tensor) -> Tensor:
    """What a module answers; nothing where it raises."""
    try:
        found: Tensor = module(x)
    except RuntimeError:
        return torch.empty(0)
    return found


class Asking(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Multiplies by what a question about its input yields."""

    @register_to_config
    def __init__(self, question: str = "stride") -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.layer(x) * QUESTIONS[self.config.question](x)
        return made


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, by: Any) -> Tensor:
        by = by[0]["by"] if isinstance(by, list) else by
        return torch.atan2(self.layer(x) * 0 + by, -torch.ones(8))


def calls() -> list[Tensor]:
    """Tensors of the same numbers, which lie in memory in many ways."""
    x = torch.arange(64.0).view(8, 8).sin().clone()
    behind = torch.cat([x * 0, x])[8:]
    with torch.inference_mode():
        inferred = x + 0
    negative = torch.complex(x * 0, -x).conj().imag  # of which x is the negative
    with torch.enable_grad():
        trained = x.clone().requires_grad_()
        result = trained * 1
    return [x, x.t().contiguous().t(), behind, trained, result, negative, x.clone().add_(0), inferred]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_call_that_gives_another_answer_is_refused_or_right(question: str) -> None:
    torch.manual_seed(0)
    module, (example, *_) = Asking(question).eval(), calls()
    compiled, taken = dovetail.compile(module, (example,), backend="cpu"), 0
    with torch.no_grad():
        assert torch.equal(compiled(example), module(example))
        for other in calls():
            try:
                found = compiled(other)
            except CallError as error:
                assert "the model" in str(error)
                assert question in COARSE or not torch.equal(expected(module, other), compiled(example)), str(error)
            else:
                taken += 1
                assert torch.equal(found, expected(module, other))
    assert 0 < taken < len(calls())


@pytest.mark.fifth
@pytest.mark.parametrize("question", ["stride", "storage_offset", "requires_grad"])
def test_a_saved_plan_and_a_kept_trace_know_what_the_model_asks(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "kept"))
    module, (example, strided, behind, trained, *_) = Asking(question).eval(), calls()
    other = {"stride": strided, "storage_offset": behind, "requires_grad": trained}[question]
    first = dovetail.compile(module, (example,), backend="cpu")
    traces.wait()
    first.save(tmp_path / "plan.json")
    with torch.no_grad():
        for again in (
            dovetail.compile(module, (example,), backend="cpu"),
            dovetail.load(tmp_path / "plan.json", module),
        ):
            assert again.program.signature.asked == first.program.signature.asked
            assert torch.equal(again(example), module(example))
            with pytest.raises(CallError, match="argument x"):
                again(other)
        assert torch.equal(dovetail.compile(module, (other,), backend="cpu")(other), module(other))


@pytest.mark.fifth
@pytest.mark.parametrize("question", ["is_contiguous", "storage_offset", "is_inference"])
def test_a_pipeline_answers_each_call_as_the_model_would(question: str) -> None:
    module = Asking(question).eval()
    with torch.no_grad():
        eager = [module(x) for x in calls() for _ in range(2)]
    pipe = Pipeline(module)
    dovetail.compile_pipeline(pipe, backend="cpu")
    for x, expected in zip((x for x in calls() for _ in range(2)), eager, strict=True):
        assert torch.equal(pipe(x), expected)


def test_models_that_ask_only_of_their_weights_or_nothing_ask_nothing_of_a_call() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("table", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            known = self.layer.weight.is_contiguous() and self.layer.weight.requires_grad and self.table.stride(0)
            x = self.layer(x.reshape(4, 2, 8).contiguous().view(8, 8)).softmax(-1)
            return x * (2 if known else 3)

    for kind in ("cpu", "cuda"):
        assert not trace(Plain(), (torch.ones(8, 8),), kind=kind).signature.asked


@pytest.mark.parametrize("wrap", [lambda by: by, lambda by: [{"by": by}]], ids=["alone", "in containers"])
@pytest.mark.parametrize(
    ("traced", "called"),
    [(0.0, -0.0), (-0.0, 0.0), (1, True), (1, 1.0), (True, 1), (0.0, 0), (math.nan, 0.0), (0.0, False)],
)
def test_a_constant_of_another_sign_or_type_is_another_one(
    traced: Any, called: Any, wrap: Callable[[Any], Any]
) -> None:
    module, x = Scaled().eval(), torch.ones(8, 8)
    compiled = dovetail.compile(module, (x, wrap(traced)), backend="cpu")
    with torch.no_grad():
        assert torch.equal(compiled(x, wrap(traced)), module(x, wrap(traced))) or traced != traced
        with pytest.raises(CallError, match="when traced"):
            compiled(x, wrap(called))


@pytest.mark.fifth
def test_an_argument_that_is_known_by_its_number_alone_runs_as_it_is() -> None:
    class Summed(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
        @register_to_config
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor, some: set[int]) -> Tensor:
            return self.layer(x) * sum(some)

    pipe = Pipeline(Summed().eval())
    eager, x = {by: pipe.unet(torch.ones(1, 8), {by}).detach() for by in range(4)}, torch.ones(1, 8)
    dovetail.compile_pipeline(pipe, backend="cpu")
    some = {0}
    for by in range(4):
        assert torch.equal(pipe(x, {by}), eager[by])  # a set where the last one was
        some.clear()
        some.add(by)
        assert torch.equal(pipe(x, some), eager[by])


class AskingModes(diffusers.ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Asks for the modes of a call."""

    @register_to_config
    def __init__(self, way: str = "gradients") -> None:
        super().__init__()
        self.first, self.way, self.gradient_checkpointing = nn.Linear(8, 8), way, False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x * WAYS[self.way](self)


def _within(model: Any) -> int:
    with torch.no_grad():
        first = 2 if torch.is_grad_enabled() else 3
    return first + (10 if torch.is_grad_enabled() else 20)


def _around(model: Any) -> int:
    with torch.enable_grad():
        first = 2 if torch.is_grad_enabled() else 3
    return first + (10 if torch.is_grad_enabled() else 20)


@torch.no_grad()
def _decorated(model: Any) -> int:
    return 2 if torch.is_grad_enabled() else 3


def _checkpointed(model: Any) -> int:
    if torch.is_grad_enabled() and model.gradient_checkpointing:
        return 5
    return 4


def _checkpointed_in_a_closure(model: Any) -> int:
    def is_so() -> bool:
        return bool(model.gradient_checkpointing)

    if torch.is_grad_enabled() and model.gradient_checkpointing:
        return 5 + is_so()
    return 4


OF_NO_EFFECT = ("decorated", "checkpointed", "checkpointed in a closure")
WAYS: dict[str, Callable[[Any], int]] = {
    "gradients": lambda model: 2 if torch.is_grad_enabled() else 3,
    "inference": lambda model: 2 if torch.is_inference_mode_enabled() else 3,
    "by and": lambda model: 2 if torch.is_grad_enabled() and model.way else 3,
    "within": _within,
    "around": _around,
    "decorated": _decorated,
    "checkpointed": _checkpointed,
    "checkpointed in a closure": _checkpointed_in_a_closure,
}
CALL_MODES: list[Any] = [torch.enable_grad, torch.no_grad, torch.inference_mode]


@pytest.mark.fifth
@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_asks_for_the_mode_of_a_call_is_answered_as_eager_is(way: str) -> None:
    module, x = AskingModes(way).eval().requires_grad_(False), torch.ones(2, 8)
    pipe = Pipeline(module)
    eager = [[mode()(module)(x) for mode in CALL_MODES] for _ in range(2)]
    dovetail.compile_pipeline(pipe, backend="sim0")
    for wanted in eager:
        for mode, want in zip(CALL_MODES, wanted, strict=True):
            assert torch.equal(mode()(pipe.unet)(x), want)
    if way in OF_NO_EFFECT:
        assert len(pipe._dovetail.components["unet"].programs) == 1


@pytest.mark.few(10)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", CALL_MODES)
def test_a_module_compiled_in_a_mode_that_it_asks_for_refuses_calls_in_another(way: str, mode: Any) -> None:
    module, x = AskingModes(way).eval().requires_grad_(False), torch.ones(2, 8)
    compiled = mode()(dovetail.compile)(module, (x,), backend="sim0")
    assert torch.equal(mode()(compiled)(x), mode()(module)(x))
    refused = 0
    for other in CALL_MODES:
        try:
            assert torch.equal(other()(compiled)(x), other()(module)(x))
        except CallError as error:
            refused += 1
            assert "the model asks for" in str(error)
            assert "call it" in str(error)
    assert (refused > 0) == (way not in OF_NO_EFFECT)


@pytest.mark.fifth
def test_a_kept_trace_and_a_saved_plan_know_the_mode_that_the_model_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "kept"))
    module, x = AskingModes().eval().requires_grad_(False), torch.ones(2, 8)
    first = dovetail.compile(module, (x,), backend="cpu")
    traces.wait()
    first.save(tmp_path / "plan.json")
    loaded = dovetail.load(tmp_path / "plan.json", module)
    assert torch.equal(loaded(x), module(x))
    with torch.no_grad():
        assert torch.equal(dovetail.compile(module, (x,), backend="cpu")(x), module(x))
        with pytest.raises(CallError, match=r"asks for gradients, traced enabled: call it outside of torch\.no_grad"):
            loaded(x)
