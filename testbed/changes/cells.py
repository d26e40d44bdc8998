"""The cells of the grid, and how one is judged: a change to a compiled pipeline, under a setting, against eager."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import dovetail
from dovetail.compiler.errors import DovetailError

from . import in_adapters, in_all_weights, in_modules, in_weights
from .change import CHANGES, Change, do
from .placed import Lying, lies, refused_where_it_lies
from .references import Digests, Reference, digests_held, digests_pickled, digests_saved, norms, references, unchanged

__all__ = ["in_adapters", "in_all_weights", "in_modules", "in_weights"]

EQUAL, REFUSED_BY_EAGER, SENTENCE = "equal", "eager refuses too", "a sentence"
UNCHANGED, WRONG, READ_WRONG, RAW, ENDED = (
    "unchanged picture",
    "wrong picture",
    "read back wrong",
    "raw error",
    "process ended",
)
GOOD = (EQUAL, REFUSED_BY_EAGER)
BACKEND = "diffusion=sim0&sim1,te=sim1,vae=sim0"
ROWS = 1e-5
"""How far numbers of a picture may be from eager's, which are from 0 to 1, where rows are split."""

RESTS = ("device", "cpu", "disk")
WHENS = ("before", "after")
SPLITS = ("layer", "row")


@dataclass(frozen=True)
class Setting:
    """Where weights rest, whether a picture was painted before the change, how weights are split.

    ``reads`` has all weights be read back between the change and the picture: that must disturb neither.
    """

    rests: str
    when: str
    split: str
    reads: bool = False

    def __str__(self) -> str:
        return f"{self.rests} {self.when} {self.split}{' read' if self.reads else ''}"


@dataclass(frozen=True)
class Cell:
    """A change under a setting."""

    change: str
    setting: Setting

    def __str__(self) -> str:
        return f"{self.change} | {self.setting}"


SETTINGS = [Setting(*one) for one in itertools.product(RESTS, WHENS, SPLITS)]
READING = [Setting(rests, when, "layer", reads=True) for rests, when in itertools.product(RESTS, WHENS)]
GRID = [Cell(name, setting) for setting in (*SETTINGS, *READING) for name in CHANGES]


def draw(cells: list[Cell], count: int, seed: int) -> list[Cell]:
    """Some of the cells, the same for the same seed."""
    return random.Random(seed).sample(cells, min(count, len(cells)))


@dataclass(frozen=True)
class Verdict:
    """How a cell came out, and the words of an error, or what is different."""

    kind: str
    words: str = ""


def judge(cell: Cell, folder: Path) -> Verdict:
    """Changes a compiled pipeline and compares it with eager, picture by picture."""
    change, setting = CHANGES[cell.change], cell.setting
    expected = references(change, folder)
    lying: list[Lying] = []
    try:
        pipe = loaded(change, setting, folder)
        if setting.when == "after":
            change.model.paint(pipe)
        for step, reference in zip(change.steps, expected, strict=True):
            lying.append(lies(pipe))
            do(step, pipe, folder)
            wrong = _misread(pipe, reference, change) if setting.reads else ""
            found = change.model.paint(pipe, **change.call)
            verdict = _compared(found, reference, cell, unchanged(change, folder))
            if verdict.kind not in GOOD or wrong:
                return verdict if not wrong else Verdict(READ_WRONG, f"{wrong}; {verdict.kind}")
    except Exception as error:
        return _refused(error, cell, expected, lying, folder)
    return Verdict(EQUAL)


def loaded(change: Change, setting: Setting, folder: Path) -> Any:
    """The compiled pipeline, which has not painted yet."""
    rests = {} if setting.rests == "device" else {"params_backend": setting.rests}
    place = folder / change.model.name
    return dovetail.load_pipeline(place, BACKEND, dtype=torch.float32, split_mode=setting.split, **rests)  # type: ignore[arg-type]


def _compared(found: torch.Tensor, reference: Reference, cell: Cell, before: torch.Tensor) -> Verdict:
    if reference.picture is None:
        return Verdict(WRONG, f"painted what eager refuses: {reference.error}")
    if _is_equal(found, reference, cell):
        return Verdict(EQUAL)
    if found.shape != reference.picture.shape or found.dtype != reference.picture.dtype:
        return Verdict(WRONG, f"{found.dtype} {tuple(found.shape)}")
    apart = float((found.double() - reference.picture.double()).abs().max())
    is_same = found.dtype == before.dtype and torch.allclose(found, before, rtol=0, atol=1e-6)
    return Verdict(UNCHANGED if is_same else WRONG, f"{apart:.3g} from eager's")


def _is_equal(found: torch.Tensor, reference: Reference, cell: Cell) -> bool:
    expected = reference.picture
    assert expected is not None
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if cell.setting.split == "layer" and CHANGES[cell.change].is_exact:
        return torch.equal(found, expected)
    if reference.exact is None:
        return torch.allclose(found, expected, rtol=0, atol=ROWS)
    own = float((expected.double() - reference.exact.double()).norm())
    return float((found.double() - reference.exact.double()).norm()) <= 2 * own + ROWS


def _refused(error: Exception, cell: Cell, expected: list[Reference], lying: list[Lying], folder: Path) -> Verdict:
    words = f"{type(error).__name__}: {str(error).strip()}"
    if any(one.error for one in expected) or type(error) is refused_where_it_lies(CHANGES[cell.change], lying, folder):
        return Verdict(REFUSED_BY_EAGER, words)
    return Verdict(SENTENCE if isinstance(error, DovetailError) else RAW, words)


def _misread(pipe: Any, reference: Reference, change: Change) -> str:
    """What is read back otherwise than eager's, or an empty text."""
    if reference.picture is None or not change.is_exact:
        return ""
    ways = {"state_dict": (digests_held, reference.held), "save_pretrained": (digests_saved, reference.saved),
            "torch.save": (digests_pickled, reference.held)}  # fmt: skip
    norms(pipe)
    for way, (read, wanted) in ways.items():
        if wrong := _different(read(pipe), wanted):
            return f"{way}: {wrong}"
    return ""


def _different(found: Digests, wanted: Digests) -> str:
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    if not names:
        return ""
    first = names[0]
    return f"{len(names)} of {len(wanted)}, {first}: {found.get(first, 'missing')} for {wanted.get(first, 'nothing')}"
