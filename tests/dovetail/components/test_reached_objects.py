"""Objects and functions that the code of a model reaches, changed in place between two calls."""

from __future__ import annotations

import argparse
import collections
import os
import types
import weakref
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch.nn import functional

import dovetail

from .small_pipeline import WIDTH, Block, Model, Pipeline, compiled_pair


class Own:
    """An object that nobody but a weak reference leads to, or a method."""

    k = 1.0

    def read(self) -> float:
        return self.k


class Slotted:
    """An object with a place for an attribute."""

    __slots__ = ("k",)


class Both(Slotted):
    """One with a dictionary beside it."""

    def __init__(self) -> None:
        self.k = 1.0

    def __get__(self, _: Any, kind: Any) -> float:
        return self.k


class OwnList(list[float]):
    """A list with attributes."""

    k = 1.0


SPACE = types.SimpleNamespace(k=1.0)
ARGUMENTS = argparse.Namespace(k=1.0)
TABLE = {"k": 1.0}
VIEW = types.MappingProxyType(TABLE)
CHAIN = collections.ChainMap({"k": 1.0})
USERS = collections.UserDict(k=1.0)
LAST = collections.deque([1.0])
BYTES = bytearray([1])
OWN, BOTH = Own(), Both()
WEAK = weakref.ref(OWN)
LIST = OwnList([1.0])
GIVEN, LISTED, METHOD = partial(max, [1.0]), [1.0].__getitem__, Own().read
OUTER = Own()
OUTER.inner = Own()  # type: ignore[attr-defined]
OUTER.inner.innermost = Own()  # type: ignore[attr-defined]
KEYS = {"slow": True}
VARIABLE = "A_NUMBER_OF_THIS_TEST"


def counted(x: torch.Tensor, by: float = 1.0, *, plus: float = 0.0) -> torch.Tensor:
    return x * by * counted.k + plus  # type: ignore[attr-defined,no-any-return]


counted.k = 1.0  # type: ignore[attr-defined]


def coded(x: torch.Tensor) -> torch.Tensor:
    from torch.nn.functional import hardsigmoid

    return hardsigmoid(x * 1.0)


class Reaching(Block):
    """A block whose code reads all of these."""

    def __init__(self) -> None:
        super().__init__()
        self.flags = {"slow": True}
        self.table = torch.nn.ModuleDict({"slow": torch.nn.Identity()})

    own, asked, part = Own(), Both(), partialmethod(lambda _, held: held[0], [1.0])

    def between(self, x: torch.Tensor) -> torch.Tensor:
        x = x * GIVEN() * LISTED(0) * METHOD() * self.own.read() * self.asked * BOTH.k * self.part()
        read = SPACE.k * ARGUMENTS.k * VIEW["k"] * CHAIN["k"] * USERS["k"] * LAST[0] * BYTES[0] * WEAK().k * LIST.k
        read = read * OUTER.inner.innermost.k  # type: ignore[attr-defined]
        keys = 1 + sum("slow" in held for held in (KEYS, self.flags, self.table))
        return coded(counted(super().between(x))) * read * keys * float(os.environ.get(VARIABLE, "1"))


def _renamed(held: Any) -> None:
    held["fast"] = held.pop("slow")


CHANGES: dict[str, Callable[[Model], object]] = {
    "a namespace": lambda _: setattr(SPACE, "k", 2.0),
    "parsed arguments": lambda _: setattr(ARGUMENTS, "k", 2.0),
    "a table behind a read-only one": lambda _: TABLE.update(k=2.0),
    "chained tables": lambda _: CHAIN.update(k=2.0),
    "a table of Python": lambda _: USERS.update(k=2.0),
    "a deque": lambda _: LAST.append(LAST.popleft() * 2.0),
    "bytes": lambda _: BYTES.__setitem__(0, 2),
    "what a weak reference leads to": lambda _: setattr(OWN, "k", 2.0),
    "an attribute of a list": lambda _: setattr(LIST, "k", 2.0),
    "an attribute of a function": lambda _: setattr(counted, "k", 2.0),
    "the defaults of a function": lambda _: setattr(counted, "__defaults__", (2.0,)),
    "its defaults by name": lambda _: setattr(counted, "__kwdefaults__", {"plus": 2.0}),
    "a function that a function imports": lambda _: setattr(functional, "hardsigmoid", functional.softsign),
    "the code of a function": lambda _: setattr(coded, "__code__", (lambda x: x * 2.0).__code__),
    "a key of a table": lambda _: _renamed(KEYS),
    "a key of a table of the module": lambda model: _renamed(model.blocks[0].flags),
    "a key of a ModuleDict": lambda model: _renamed(model.blocks[0].table),
    "what a partial function is given": lambda _: GIVEN.args[0].append(2.0),
    "the list of a method": lambda _: LISTED.__self__.__setitem__(0, 2.0),
    "the object of a method": lambda _: setattr(METHOD.__self__, "k", 2.0),
    "an object of a class": lambda _: setattr(Reaching.own, "k", 2.0),
    "a descriptor of a class": lambda _: setattr(vars(Reaching)["asked"], "k", 2.0),
    "what a partial method is given": lambda _: vars(Reaching)["part"].args[0].__setitem__(0, 2.0),
    "an attribute without a dictionary": lambda _: setattr(BOTH, "k", 2.0),
    "an object within objects": lambda _: setattr(OUTER.inner.innermost, "k", 2.0),  # type: ignore[attr-defined]
    "an environment variable": lambda _: os.environ.update({VARIABLE: "2"}),
}


@pytest.fixture(scope="module")
def painted() -> Any:
    """Both models, the pipeline of the compiled one, and an input."""
    model, pipe, x = compiled_pair(Reaching)
    before = functional.hardsigmoid
    yield [model, pipe.unet], pipe, x
    functional.hardsigmoid = before
    os.environ.pop(VARIABLE, None)


@pytest.mark.few(12)
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_place_counts_at_the_next_call(what: str, painted: Any) -> None:
    models, pipe, x = painted
    with torch.no_grad():
        before = models[0](x)
        assert torch.equal(pipe(x).cpu(), before)
        for model in models if "module" in what.lower() else models[:1]:
            CHANGES[what](model)
        after = models[0](x)
    assert not torch.equal(before, after)
    assert torch.equal(pipe(x).cpu(), after)


def calls_counted(x: torch.Tensor) -> torch.Tensor:
    calls_counted.calls += 1  # type: ignore[attr-defined]
    return x


calls_counted.calls = 0  # type: ignore[attr-defined]


class Counting(Block):
    """A block whose code counts its calls on a function and in a namespace."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        SPACE.calls = getattr(SPACE, "calls", 0) + 1
        return calls_counted(super().between(x))


@pytest.mark.fifth
def test_code_that_counts_on_a_function_goes_on_counting_and_is_not_compiled_each_time(traced: list[str]) -> None:
    pipe, x = Pipeline(Model(Counting).eval()), torch.randn(2, WIDTH)
    dovetail.compile_pipeline(pipe, "diffusion=sim0")
    for _ in range(3):
        pipe(x)
    known, calls = len(traced), calls_counted.calls  # type: ignore[attr-defined]
    pipe(x)
    assert len(traced) == known
    assert calls_counted.calls == calls + 4  # type: ignore[attr-defined]
