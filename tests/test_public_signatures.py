"""What the types of public functions say: each argument and result by what it is."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import dovetail
from dovetail import demo
from dovetail.compiled_by_parts import CompiledByParts
from dovetail.compiler import errors
from dovetail.components.component import Component
from dovetail.draw.page.page import Page
from dovetail.planning.generation import Generation
from dovetail.planning.table import Account

REACHED = (CompiledByParts, Generation, Account, Page)
"""Classes of what a user meets at a compiled module and at ``pipe.dovetail``."""

OF_COMPONENT = ("programs", "module", "refresh")
"""What is for users of the components that ``pipe.dovetail`` has."""

UNKNOWN = {
    "CompiledModule.__call__": "returns what the module returns",
    "CompiledByParts.__call__": "returns what the module returns",
    "CompiledPipeline.go_on": "returns what the pipeline returns",
    "DoesNotFitError.__init__": "has bytes by device, and errors know nothing of devices",
}
"""Why a type is not known: of a result, or of keys."""


def functions_of(thing: object, name: str) -> Iterator[tuple[str, object]]:
    """A function itself, or the public ones of a class, with those that it inherits from classes of dovetail."""
    if not inspect.isclass(thing):
        yield name, thing
        return
    for own, member in [pair for cls in thing.__mro__ if "dovetail" in cls.__module__ for pair in vars(cls).items()]:
        held = (getattr(member, attribute, None) for attribute in ("fget", "func", "__func__"))
        found = next(filter(None, held), member)
        if inspect.isfunction(found) and (own in ("__init__", "__call__") or not own.startswith("_")):
            yield f"{thing.__name__}.{own}", found


def public() -> Iterator[tuple[str, object]]:
    things = {name: getattr(dovetail, name) for name in dovetail.__all__ if name != "__version__"}
    things |= {cls.__name__: cls for cls in REACHED}
    things |= {name: one for name, one in vars(errors).items() if inspect.isclass(one) and not name.startswith("_")}
    things |= {name: one for name, one in vars(demo).items() if inspect.isfunction(one)}
    for name, thing in things.items():
        yield from functions_of(thing, name)
    for name, function in functions_of(Component, ""):
        if name.removeprefix("Component.") in OF_COMPONENT:
            yield name, function


def types_in(function: object) -> Iterator[tuple[str, str]]:
    """The annotations as written, with those that a name among them stands for."""
    module = importlib.import_module(inspect.unwrap(function).__module__)  # type: ignore[arg-type]
    for name, annotation in inspect.unwrap(function).__annotations__.items():  # type: ignore[arg-type]
        yield name, " ".join(spelled_out(str(annotation), module))


def spelled_out(text: str, module: ModuleType) -> Iterator[str]:
    """A type, and the aliases in it that its module has, as they are defined."""
    yield text
    for word in set(re.findall(r"\w+", text)):
        meant = getattr(module, word, None)
        if isinstance(meant, str) or "typing" in type(meant).__module__:
            yield str(meant)


@pytest.mark.parametrize(("name", "function"), [pytest.param(*one, id=one[0]) for one in dict(public()).items()])
def test_a_public_signature_says_what_it_takes_and_returns(name: str, function: object) -> None:
    unknown = [one for one, text in types_in(function) if re.search(r"\bAny\b", text)]
    assert len(unknown) == (1 if name in UNKNOWN else 0), unknown


def test_dir_lists_what_is_public_and_imports_none_of_it() -> None:
    code = "import sys, dovetail; print(*dir(dovetail)); print('torch' in sys.modules)"
    listed, has_torch = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert listed.split() == sorted(dovetail.__all__)
    assert has_torch == "False"
