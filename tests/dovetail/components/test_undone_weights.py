"""What is written to a module, or to the parameters that it had before, while it is compiled is there after undo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.compiler.errors import WeightError
from dovetail.runtime.store.store import Store

from .small_pipeline import WIDTH, Model, Pipeline

pytestmark = pytest.mark.usefixtures("clean_sims")

X = torch.linspace(-1, 1, 2 * WIDTH).reshape(2, WIDTH)


def _models() -> tuple[Model, Model]:
    """A model, and another that shares a parameter with it; one batch of gradients is there."""
    torch.manual_seed(0)
    one, other = Model().eval(), Model().eval()
    one.blocks, other.blocks = one.blocks[:1], other.blocks[:1]
    other.first.weight = one.first.weight
    one(X).sum().backward()
    return one, other


def _as_compiled(change: Callable[[Model, Model], Any], **settings: Any) -> tuple[Model, Model]:
    """Two models after a change while one of them is compiled."""
    one, other = _models()
    pipe = dovetail.compile_pipeline(Pipeline(one), **settings)
    with torch.no_grad():
        pipe(X)
    change(one, other)
    pipe.dovetail.undo()
    return one, other


def _gradients(model: Model) -> dict[str, torch.Tensor | None]:
    return {name: weight.grad for name, weight in model.named_parameters()}


def _written_by_the_other(_: Model, other: Model) -> None:
    with torch.no_grad():
        other.first.weight.mul_(2)


def _rounded_by_the_other(_: Model, other: Model) -> None:
    other.bfloat16()


def _average(_: Model, other: Model) -> None:
    other.first.weight.data.copy_(other.first.weight.data * 0.5)


def _rounded(one: Model, _: Model) -> None:
    one.bfloat16()


def _cleared(one: Model, _: Model) -> None:
    one.zero_grad()


def _trained(one: Model, other: Model) -> None:
    torch.optim.SGD(other.parameters(), 0.1).step()
    one.zero_grad()


CHANGES = [_written_by_the_other, _rounded_by_the_other, _average, _rounded, _cleared, _trained]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("change", "settings"),
    [
        *((change, {"backend": "sim0&sim1"}) for change in CHANGES),
        *((change, {"backend": "sim0", "params_backend": "cpu"}) for change in (_written_by_the_other, _rounded)),
    ],
)
def test_a_model_that_shares_a_parameter_and_gradients_are_as_in_eager_after_undo(
    change: Callable[[Model, Model], None], settings: dict[str, str]
) -> None:
    found, wanted = _as_compiled(change, **settings), _models()
    change(*wanted)
    assert found[0].first.weight is found[1].first.weight
    for mine, theirs in zip(found, wanted, strict=True):
        for held, expected in ((mine.state_dict(), theirs.state_dict()), (_gradients(mine), _gradients(theirs))):
            for key, one in expected.items():
                assert (held[key] is None) == (one is None)
                assert one is None or (held[key].dtype == one.dtype and torch.equal(held[key], one))


def test_a_weight_that_cannot_be_given_back_leaves_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    (one, _), give_back = _models(), Store.give_back
    pipe = dovetail.compile_pipeline(Pipeline(one), backend="sim0")
    with torch.no_grad():
        pipe(X)

    def fail(store: Store, weight: Any) -> None:
        if weight.name == "shift":
            raise RuntimeError("not this one")
        give_back(store, weight)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "give_back", fail)
        with pytest.raises(RuntimeError, match="not this one"):
            pipe.dovetail.undo()
    assert {str(weight.device) for weight in one.parameters()} == {"cpu"}
    pipe.dovetail.undo()
    assert not hasattr(pipe, "dovetail")


def test_a_module_that_was_compiled_and_undone_in_inference_mode_is_trained_as_before() -> None:
    one, wanted = _models()[0], _models()[0]
    held = one.first.weight
    with torch.inference_mode():
        pipe = dovetail.compile_pipeline(Pipeline(one), backend="sim0")
        pipe(X)
        pipe.dovetail.undo()
    for model in (one, wanted):
        model(X).sum().backward()
    assert one.first.weight is held
    for mine, theirs in zip(one.parameters(), wanted.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


WEIGHTS: dict[str, Callable[[], torch.Tensor]] = {
    "torch.sparse_coo": lambda: torch.eye(3).to_sparse(),
    "torch.sparse_csr": lambda: torch.eye(3).to_sparse_csr(),
    "torch.qint8": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_buffer_that_no_program_reads_is_refused_by_its_name_and_nothing_is_moved(kind: str) -> None:
    one, _ = _models()
    one.register_buffer("table", WEIGHTS[kind]())
    with pytest.raises(WeightError, match=f"table of Model has the .* {kind}"):
        dovetail.compile_pipeline(Pipeline(one), backend="sim0")
    with pytest.raises(WeightError, match=f"table of Model has the .* {kind}"):
        dovetail.compile(one, (X,), backend="sim0")
    assert {str(weight.device) for weight in one.parameters()} == {"cpu"}
