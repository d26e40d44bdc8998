"""LoRAs as they are asked for: their spelling, and the ways to apply them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

from ..compiler.errors import UsageError
from ..conventions.checked import PATH

MODES = ("auto", "immediately", "at_runtime")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)
"""Python reads more as a number: underscores in it, and digits of other scripts."""
_IN_PROMPT = re.compile(r"<lora:([^<>]+)>")


@dataclass(frozen=True)
class Lora:
    """A LoRA that was asked for: a file, a folder or a repository on the Hub, and how strong it shall be.

    Only safetensors files are read, unless ``pickled`` says that a pickle may be: one comes from whom you trust.
    """

    place: str
    scale: float = 1.0
    pickled: bool = False

    @classmethod
    def parse(cls, text: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Lora:
        """Reads ``NAME:SCALE``; a name without a scale has 1. Names are looked for in ``folder`` first.

        Raises UsageError for a scale that is no number, and for a name that means no file, folder or repository.
        """
        if not PATH.accepts(text):
            raise UsageError(
                f"a LoRA is a text, NAME:SCALE, or a path, and no {type(text).__name__} such as {str(text)[:40]!r}: "
                "write style.safetensors:0.8"
            )
        spelled = os.fspath(text)
        name, colon, tail = spelled.rpartition(":")
        if not colon or (_found(spelled, folder) and not _found(name, folder)):
            return cls(_place(spelled, folder))
        scale = scale_of(tail)
        if scale is None or not name:
            raise UsageError(f"cannot read LoRA {spelled!r}: {tail!r} is no scale: write NAME:SCALE, as in style:0.8")
        return cls(_place(name, folder), scale)

    @property
    def stem(self) -> str:
        """A short name, of letters that peft takes."""
        return re.sub(r"\W+", "_", Path(self.place).stem) or "lora"


Loras: TypeAlias = "str | os.PathLike[str] | Lora | Sequence[str | os.PathLike[str] | Lora] | None"
"""One LoRA or several: ``"NAME:SCALE"``, a path, or a Lora."""


def scale_of(text: str) -> float | None:
    """The finite number that a text is, of plain digits; None of any other text.

    >>> scale_of("0.8"), scale_of("1_0")
    (0.8, None)
    """
    if _NUMBER.fullmatch(text.strip()) is None:
        return None
    return number if math.isfinite(number := float(text)) else None


def _found(name: str, folder: str | os.PathLike[str] | None) -> Path | None:
    inside = [Path(folder, name), Path(folder, f"{name}.safetensors")] if folder else []
    return next((path for path in (*inside, Path(name)) if name and path.exists()), None)


def _place(name: str, folder: str | os.PathLike[str] | None) -> str:
    found = _found(name, folder)
    if found is None and (name.count("/") != 1 or name[0] in "./~" or name.endswith(".safetensors")):
        there = ", ".join(sorted(path.stem for path in Path(folder).glob("*.safetensors"))) if folder else ""
        where = f"{name}, and none is called so of those that there are ({there})" if there else name
        raise UsageError(
            f"no LoRA is at {where}: give a .safetensors file, a folder with one, or a repository (owner/name)"
        )
    return str(found or name)


def read_loras(given: Loras, folder: str | os.PathLike[str] | None = None) -> tuple[Lora, ...]:
    """Reads one LoRA or several, as text, paths or Lora; raises UsageError as Lora.parse does."""
    several = given if isinstance(given, (list, tuple)) else [] if given is None or given == "" else [given]
    asked = cast("Sequence[str | os.PathLike[str] | Lora]", several)  # anything else is refused by `Lora.parse`
    return tuple(one if isinstance(one, Lora) else Lora.parse(one, folder) for one in asked)


def taken_from(prompt: str) -> tuple[str, list[str]]:
    """A prompt without ``<lora:NAME:SCALE>``, and what was taken out of it.

    >>> taken_from("a red circle <lora:blue:0.5>")
    ('a red circle', ['blue:0.5'])
    """
    return re.sub(r" {2,}", " ", _IN_PROMPT.sub("", prompt)).strip(), _IN_PROMPT.findall(prompt)


def check_mode(mode: str) -> None:
    """Raises UsageError for a way to apply LoRAs that there is not."""
    if mode not in MODES:
        raise UsageError(f"a LoRA cannot be applied {mode!r}: lora_apply_mode is one of {', '.join(MODES)}")


def refuse_pickle(place: Path) -> None:
    """Raises UsageError for a file that is not safetensors, and for a folder that has none."""
    if place.is_file() and place.suffix not in (".safetensors", *_PICKLES):
        raise UsageError(f"{place} is no LoRA: LoRAs are read from .safetensors files{_other_use(place)}")
    if place.is_file() and place.suffix in _PICKLES:
        what = f"{place} is not a .safetensors file"
    elif place.is_dir() and not any(place.glob("*.safetensors")):
        what = f"{place} has no .safetensors file"
    else:
        return
    raise UsageError(
        f"{what}: pickles can run code and are not read: convert it to safetensors, or, if you trust it, ask for it "
        "with --lora-pickles, in Python with Lora(path, pickled=True)"
    )


def _other_use(place: Path) -> str:
    return f"; weights of a component are named with --weights NAME={place}" if place.suffix == ".gguf" else ""
