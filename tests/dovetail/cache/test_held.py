"""What a model's code reads of objects among its globals is told by what they hold, whatever class they are of."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from dovetail.cache.key import key_of

HEAD = """
import argparse, array, collections, contextvars, decimal, enum, fractions, functools, operator, os, threading, types
import weakref
from pathlib import Path
import torch
from torch import nn
def number(): return float(os.environ["HELD_NUMBER"])
class Own: pass
class OwnList(list): pass
class Kept(list): pass
Kept.one = Own()
Kept.one.k = number()
def own(x): return x * own.k
own.k = number()
def made(c):
    def go(x): return x * c
    return go
class ByName:
    @staticmethod
    def k0(): return HIDDEN[0]
HIDDEN = [number()]
nn.Linear.dotted_k = lambda self, k=number(): k
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.index = nn.Linear(4, 4), 0
    def by(self, x, k): return x * k
    partly = functools.partialmethod(by, k=number())
    def forward(self, x):
        x = self.layer(x)
"""
WAYS = {
    "a namespace": ("types.SimpleNamespace(k=number())", "x * V.k"),
    "parsed arguments": ("argparse.Namespace(k=number())", "x * V.k"),
    "the default of a context variable": ("contextvars.ContextVar('V', default=number())", "x * V.get()"),
    "a read-only table": ("types.MappingProxyType({'k': number()})", "x * V['k']"),
    "chained tables": ("collections.ChainMap({'k': number()})", "x * V['k']"),
    "a table of Python": ("collections.UserDict(k=number())", "x * V['k']"),
    "a fraction": ("fractions.Fraction(number())", "x * float(V)"),
    "a decimal": ("decimal.Decimal(number())", "x * float(V)"),
    "an array": ("array.array('d', [number()])", "x * V[0]"),
    "bytes that may be written": ("bytearray([int(number())])", "x * V[0]"),
    "an item getter": ("operator.itemgetter(int(number()))", "x * V([1.0, 2.0, 3.0, 4.0])"),
    "a weak reference": ("weakref.ref(Kept.one)", "x * V().k"),
    "an attribute of a function": ("own", "own(x)"),
    "functions in a set": ("{made(number())}", "[one(x) for one in V][0]"),
    "the value of an enum": ("enum.Enum('V', {'K': number()})", "x * V.K.value"),
    "a partial method": ("0", "self.partly(x)"),
    "a name of one letter and a number": ("0", "x * getattr(ByName, 'k' + str(self.index))()"),
    "a dotted name": ("0", "x * operator.attrgetter('layer.dotted_k')(self)()"),
}
ATTRIBUTES = {
    "a variable of a thread": ("threading.local()", "x * V.k"),
    "a list": ("OwnList([1.0])", "x * V.k"),
    "a tensor": ("torch.ones(1)", "x * V.k"),
}


def _key(folder: Path, patch: pytest.MonkeyPatch, text: str, number: str) -> str | None:
    """The key of a model whose file has a text, imported anew while the environment says a number."""
    patch.syspath_prepend(str(folder))
    patch.setattr(sys, "dont_write_bytecode", True)
    patch.setenv("HELD_NUMBER", number)
    (folder / "model_that_holds.py").write_text(text)
    sys.modules.pop("model_that_holds", None)
    importlib.invalidate_caches()
    torch.manual_seed(0)
    try:
        model = importlib.import_module("model_that_holds").Model().eval()
        key = key_of(model, (torch.ones(1, 4),), {}, None, "cpu")
        return key and key.full
    finally:
        sys.modules.pop("model_that_holds", None)
        vars(torch.nn.Linear).get("dotted_k") and delattr(torch.nn.Linear, "dotted_k")


def _text(made: str, body: str, beside: str = "") -> str:
    return f"{HEAD}        return {body}\nV = {made}\n{beside}"


@pytest.mark.parametrize("way", [*WAYS, *ATTRIBUTES])
def test_a_number_in_an_object_among_the_globals_is_in_the_key(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, body = WAYS[way] if way in WAYS else ATTRIBUTES[way]
    text = _text(made, body, "V.k = number()\n" if way in ATTRIBUTES else "")
    first, again, other = (_key(tmp_path, monkeypatch, text, number) for number in ("2.0", "2.0", "3.0"))
    assert first is not None
    assert first == again
    assert first != other


@pytest.mark.parametrize(
    "asked",
    ["Path('flag').exists()", "Path('flag').is_file()", "os.access('flag', 4)", "os.path.lexists('flag')"],
)
def test_a_forward_that_asks_for_a_file_has_no_key(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _key(tmp_path, monkeypatch, _text("0", f"x * (2 if {asked} else 3)"), "2.0") is None
