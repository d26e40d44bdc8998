"""Fixtures of the tests of the cache: a folder of its own for each, and models in modules that can be edited."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dovetail.cache import traces

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

FACTOR = 3
SCALES = {"one": 1.0}

def helped(x):
    return x * FACTOR

class Helper:
    def __init__(self, by=1.0):
        self.by = by
    def __call__(self, x):
        return x + self.by

class Model(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.register_buffer("table", torch.arange(float(width)), persistent=False)
        self.helper = Helper()
        self.setting = "one"
    def forward(self, x, scale=1.0, *, flag=False):
        x = F.relu(self.layer(x)) + self.table + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"y": self.helper(helped(x)) * SCALES[self.setting] * scale}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for entries, and the cache switched on."""
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(traces, "_told", set())
    yield tmp_path / "kept"
    traces.wait()


@pytest.fixture
def traced(cache: Path, traced: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the classes that were really traced while there is a cache, one after another."""
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    return traced


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Imports the module of the model anew, with some of its text replaced, as another process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def made(old: str = "", new: str = "") -> ModuleType:
        (tmp_path / "models_of_somebody.py").write_text(MODEL.replace(old, new) if old else MODEL)
        sys.modules.pop("models_of_somebody", None)
        importlib.invalidate_caches()
        return importlib.import_module("models_of_somebody")

    yield made
    sys.modules.pop("models_of_somebody", None)
