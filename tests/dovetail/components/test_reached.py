"""What the code of a model reaches beside the model: patched classes and functions, and globals that were changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from .small_pipeline import Block, Model, Pipeline, compiled_pair

COUNT = [0]
FACTOR = 1.0
TABLE: dict[str, Any] = {"a": {"b": 1.0}}
ACTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"one": torch.sin}


class Config:
    """An object of somebody's own among the globals."""

    scale = 1.0


CONFIG = Config()


def helped(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


class Base:
    """What processors have in common."""

    def shift(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Processor(Base):
    """An object in an attribute that computes."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = helped(self.shift(x)) + COUNT[0] + TABLE["a"]["b"]
        y: torch.Tensor = ACTS["one"](x) * CONFIG.scale
        q = y[None]
        return F.scaled_dot_product_attention(q, q, q)[0]


def partly(by: float, x: torch.Tensor) -> torch.Tensor:
    return x * by * FACTOR


class Reaching(Block):
    """A block that has a processor and a function."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = Processor()
        self.last = functools.partial(partly, 2.0)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.processor(super().between(x)))


def _here(name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setitem(globals(), name, value)


def _half(*args: Any, own: Any = F.scaled_dot_product_attention, **kwargs: Any) -> torch.Tensor:
    y: torch.Tensor = own(*args, **kwargs) * 0.5
    return y


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "call of a processor's class": lambda patch: patch.setattr(Processor, "__call__", lambda self, x: x * 0.5),
    "method of its base": lambda patch: patch.setattr(Base, "shift", lambda self, x: x + 1),
    "method that its class had not": lambda patch: patch.setattr(
        Processor, "shift", lambda self, x: x + 2, raising=False
    ),
    "function of torch": lambda patch: patch.setattr(F, "scaled_dot_product_attention", _half),
    "function of the file": _here("helped", lambda x: x * 3),
    "number": _here("FACTOR", 2.0),
    "list": _here("COUNT", [1]),
    "item of a table in a table": lambda patch: patch.setitem(TABLE["a"], "b", 5.0),
    "function in a table": lambda patch: patch.setitem(ACTS, "one", torch.cos),
    "attribute of an object": lambda patch: patch.setattr(CONFIG, "scale", 3.0),
    "attribute of its class": lambda patch: patch.setattr(Config, "scale", 4.0),
    "function within a partial one": _here("FACTOR", -1.0),
}


@pytest.fixture(scope="module")
def painted() -> tuple[Model, Pipeline, torch.Tensor]:
    return compiled_pair(Reaching)


@pytest.mark.parametrize("change", CHANGES)
def test_what_code_reaches_is_changed_between_two_calls_and_back(
    painted: tuple[Model, Pipeline, torch.Tensor], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    model, pipe, x = painted
    with torch.no_grad():
        before = model(x)
        assert torch.equal(pipe(x), before)
        count = len(pipe._dovetail.components["unet"].programs)
        with monkeypatch.context() as patch:
            CHANGES[change](patch)
            want = model(x)
            assert torch.equal(pipe(x), want)
            assert not torch.equal(before, want)
            assert torch.equal(pipe(x), want)
            assert len(pipe._dovetail.components["unet"].programs) == count + 1
        assert torch.equal(pipe(x), before)
        assert len(pipe._dovetail.components["unet"].programs) == count + 1  # the one of before holds again


def test_a_model_that_reads_a_switch_of_torch_follows_it() -> None:
    class Reads(Block):
        def between(self, x: torch.Tensor) -> torch.Tensor:
            return x * (2 if torch.backends.cuda.matmul.allow_tf32 else 3)

    model, pipe, x = compiled_pair(Reads)
    for setting in (False, True, False):
        torch.backends.cuda.matmul.allow_tf32 = setting
        try:
            with torch.no_grad():
                assert torch.equal(pipe(x), model(x))
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False


def test_a_model_that_reads_a_list_of_a_closure_is_never_a_call_behind() -> None:
    seen: list[int] = [0]

    class Counts(Block):
        def between(self, x: torch.Tensor) -> torch.Tensor:
            return x * (1.0 if seen[0] < 3 else 0.5)

    model, pipe, x = compiled_pair(Counts)
    for number in (0, 3, 1):
        seen[0] = number
        with torch.no_grad():
            assert torch.equal(pipe(x), model(x))


class Chain:
    """Objects that hold one another."""

    def __init__(self, length: int) -> None:
        self.next = Chain(length - 1) if length else None


BESIDE: Any = None
SEEN: list[int] = []
ZOOM = 1.0


class Beside(Block):
    """A block whose code names something beside what it computes with."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(1)
        return x if BESIDE is Ellipsis else torch.relu(x) * ZOOM


BESIDES: dict[str, Callable[[Pipeline], Any]] = {
    "pipeline": lambda pipe: pipe,
    "its handle": lambda pipe: pipe.dovetail,
    "component": lambda pipe: pipe.unet,
    "part in a list": lambda pipe: [pipe.unet.blocks[0]],
    "function of a component": lambda pipe: pipe.unet.forward,
    "chain": lambda pipe: Chain(100),
}


@pytest.mark.fifth
@pytest.mark.few(3)
@pytest.mark.parametrize("what", BESIDES)
def test_whatever_else_the_code_of_a_model_names_a_change_of_a_global_is_seen(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pipe, x = compiled_pair(Beside)
    monkeypatch.setitem(globals(), "BESIDE", BESIDES[what](pipe))
    monkeypatch.setitem(globals(), "SEEN", [])
    with torch.no_grad():
        assert torch.equal(pipe(x), model(x))
        assert len(SEEN) == 2
        monkeypatch.setitem(globals(), "ZOOM", 2.0)
        assert torch.equal(pipe(x), model(x))


INNERMOST = {"factor": 1.0}


def test_what_is_held_deep_in_a_global_is_followed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Innermost:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * INNERMOST["factor"]

    class Holds(Block):
        def between(self, x: torch.Tensor) -> torch.Tensor:
            last = BESIDE
            while last.next is not None:
                last = last.next
            result: torch.Tensor = last.innermost(x)
            return result

    monkeypatch.setitem(globals(), "BESIDE", chain := Chain(100))
    while chain.next is not None:
        chain = chain.next
    chain.innermost = Innermost()  # type: ignore[attr-defined]
    model, pipe, x = compiled_pair(Holds)
    with torch.no_grad():
        assert torch.equal(pipe(x), model(x))
        monkeypatch.setitem(INNERMOST, "factor", 2.0)
        assert torch.equal(pipe(x), model(x))


class OwnDict(dict[str, float]):
    """A table that answers by an attribute."""

    factor = 1.0

    def __getitem__(self, key: str) -> float:
        return self.factor


OWN_DICT = OwnDict(one=1.0)


@pytest.mark.fifth
def test_an_attribute_of_a_table_of_somebodys_own_class_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    class Looks(Block):
        def between(self, x: torch.Tensor) -> torch.Tensor:
            return x * OWN_DICT["one"]

    model, pipe, x = compiled_pair(Looks)
    with torch.no_grad():
        for factor in (2.0, 3.0):
            assert torch.equal(pipe(x), model(x))
            monkeypatch.setattr(OWN_DICT, "factor", factor)
        assert torch.equal(pipe(x), model(x))
