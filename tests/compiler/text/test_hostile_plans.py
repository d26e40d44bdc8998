"""Plans that try to run code, to hang or to take memory: each is refused, or is nothing but a program."""

from __future__ import annotations

import faulthandler
import importlib
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dovetail
from dovetail.compiler.errors import DovetailError, ExecutionError, VerificationError
from dovetail.passes.verify.deep import verify_deep
from dovetail.plans import reading

from .hostile import CANARY, HOSTILE, Net, X, before_ops, good_plan, read, write

PROPORTION, CONSTANT = 60, 8 * 2**20
"""A plan may take so many times its bytes, and this much more."""


@pytest.fixture(autouse=True)
def _guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails where code of a plan runs, and ends the run where one hangs."""
    (tmp_path / "hostile_module.py").write_text(f"open({str(tmp_path / CANARY)!r}, 'w').close()\nclass X: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    assert not (tmp_path / CANARY).exists(), "a plan ran code"
    assert "hostile_module" not in sys.modules, "a plan imported a module"


def use(plan: Path) -> str:
    """Does all that one can do with a plan: loads, shows, rehearses and calls it."""
    compiled = dovetail.load(plan, weights=Net().eval())
    text = str(compiled)
    verify_deep(compiled.program)
    with torch.no_grad():
        compiled(X)
    assert "run" in compiled.source()
    return text


def test_the_good_plan_is_used_whole(tmp_path: Path) -> None:
    assert "aten.linear" in use(good_plan(tmp_path))


@pytest.mark.parametrize("way", HOSTILE)
def test_a_hostile_plan_runs_nothing_and_takes_little(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = good_plan(tmp_path)
    use(plan)  # which imports what it needs
    write(plan, HOSTILE[way](read(plan)))

    def forbidden(*given: object, **named: object) -> object:
        raise AssertionError(f"{way}: code ran: {given}")

    for module, name in ((os, "system"), (os, "popen"), (subprocess, "Popen"), (importlib, "import_module")):
        monkeypatch.setattr(module, name, forbidden)
    tracemalloc.start()
    try:
        use(plan)
    except DovetailError as error:
        assert str(error)
        assert len(str(error)) < 6000
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert taken < PROPORTION * plan.stat().st_size + CONSTANT


@pytest.mark.parametrize("way", ["numbers that grow", "a power of numbers", "a power of large numbers"])
def test_numbers_that_grow_are_refused_and_end_a_call(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = good_plan(tmp_path)
    write(plan, HOSTILE[way](read(plan)))
    with pytest.raises(VerificationError, match="more than 64 bits"):
        dovetail.load(plan, weights=Net().eval())
    monkeypatch.setattr(reading, "verify_types", lambda _: None)
    compiled = dovetail.load(plan, weights=Net().eval())
    with torch.no_grad(), pytest.raises(ExecutionError, match="more than 64 bits"):
        compiled(X)


def test_a_plan_names_no_device_in_an_argument(tmp_path: Path) -> None:
    plan = good_plan(tmp_path)
    write(plan, before_ops('%a: f32[4]~90 = aten.zeros.default([4], dtype=f32, device=device "cuda:1")')(read(plan)))
    with pytest.raises(DovetailError, match=r"%a = aten\.zeros\.default makes a tensor on a device"):
        dovetail.load(plan, weights=Net().eval())
