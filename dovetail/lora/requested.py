"""LoRAs that are asked for by name when a pipeline is compiled, and whether they are merged or stay beside."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compiler.errors import UsageError
from ..conventions import libraries

if TYPE_CHECKING:
    from ..components.component import Component
    from ..pipelines.pipeline import CompiledPipeline

logger = logging.getLogger(__name__)

MODES = ("auto", "immediately", "at_runtime")
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
        spelled = os.fspath(text)
        name, colon, tail = spelled.rpartition(":")
        if not colon or (_found(spelled, folder) and not _found(name, folder)):
            return cls(_place(spelled, folder))
        scale = _number(tail)
        if scale is None or not name:
            raise UsageError(f"cannot read LoRA {spelled!r}: {tail!r} is no scale: write NAME:SCALE, as in style:0.8")
        return cls(_place(name, folder), scale)

    @property
    def stem(self) -> str:
        """A short name, of letters that peft takes."""
        return re.sub(r"\W+", "_", Path(self.place).stem) or "lora"


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return number if math.isfinite(number := float(text)) else None
    return None


def _found(name: str, folder: str | os.PathLike[str] | None) -> Path | None:
    inside = [Path(folder, name), Path(folder, f"{name}.safetensors")] if folder else []
    return next((path for path in (*inside, Path(name)) if name and path.exists()), None)


def _place(name: str, folder: str | os.PathLike[str] | None) -> str:
    found = _found(name, folder)
    if found is None and (name.count("/") != 1 or name[0] in "./~" or name.endswith(".safetensors")):
        where = f"{Path(folder, name)} nor {name}" if folder else name
        raise UsageError(
            f"no LoRA is at {where}: give a .safetensors file, a folder with one, or a repository (owner/name)"
        )
    return str(found or name)


def read_loras(given: Any, folder: str | os.PathLike[str] | None = None) -> tuple[Lora, ...]:
    """Reads one LoRA or several, as text, paths or Lora; raises UsageError as Lora.parse does."""
    several = given if isinstance(given, (list, tuple)) else [given] if given else []
    return tuple(one if isinstance(one, Lora) else Lora.parse(one, folder) for one in several)


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


def apply_loras(handle: CompiledPipeline, loras: Sequence[Lora], mode: str = "auto") -> None:
    """Loads LoRAs into a compiled pipeline and makes them active together; merges them, or leaves them beside.

    ``auto`` merges into the weights of a component that are dense, resident and on one device each; into others the
    LoRA stays beside the weights. Raises UsageError, after which no LoRA is loaded.
    """
    check_mode(mode)
    if not loras:
        return
    pipe = handle.pipe
    if not hasattr(pipe, "load_lora_weights"):
        raise UsageError(f"{type(pipe).__name__} takes no LoRA: leave it out")
    try:
        names = [_load(handle, lora) for lora in loras]
        pipe.set_adapters(names, [lora.scale for lora in loras])
        merging = [name for name, one in _with_adapters(handle).items() if _is_merged(handle, one, mode)]
        for name in merging:
            handle.components[name].merges.check()
        if merging:
            pipe.fuse_lora(components=merging)
    except Exception:
        pipe.unload_lora_weights()
        raise


def _refuse_pickle(place: Path) -> None:
    """Raises UsageError for a file that is not safetensors, and for a folder that has none."""
    if place.is_file() and place.suffix != ".safetensors":
        what = f"{place} is not a .safetensors file"
    elif place.is_dir() and not any(place.glob("*.safetensors")):
        what = f"{place} has no .safetensors file"
    else:
        return
    raise UsageError(
        f"{what}: pickles can run code and are not read: convert it to safetensors, or, if you trust it, ask for it "
        "with --lora-pickles, in Python with Lora(path, pickled=True)"
    )


def _load(handle: CompiledPipeline, lora: Lora) -> str:
    """Loads one LoRA under a name of its own, which it returns."""
    pipe, place = handle.pipe, Path(lora.place)
    taken = {name for names in pipe.get_list_adapters().values() for name in names}
    numbered = [lora.stem, *(f"{lora.stem}_{number}" for number in range(len(taken)))]
    name = next(name for name in numbered if name not in taken)
    where: dict[str, Any] = {"weight_name": place.name} if place.is_file() else {}
    if not lora.pickled:
        _refuse_pickle(place)
        where["use_safetensors"] = True
    try:
        with libraries.quiet_lora_loading():
            pipe.load_lora_weights(str(place.parent if place.is_file() else place), adapter_name=name, **where)
    except UsageError:
        raise
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"the LoRA {lora.place} does not fit {type(pipe).__name__}, or is damaged: {why}") from error
    taken_by = [part for part, names in pipe.get_list_adapters().items() if name in names]
    if taken_by and not any(handle.components[part].role == "diffusion" for part in taken_by):
        logger.warning(
            "the LoRA %s has weights for %s alone, and none for what paints: it may have been made for another model",
            lora.place, ", ".join(taken_by),
        )  # fmt: skip
    if not taken_by:
        raise UsageError(
            f"the LoRA {lora.place} has no weight for {type(pipe).__name__} (for {', '.join(_parts(pipe))}): "
            "it was made for another model"
        )
    return name


def _parts(pipe: Any) -> list[str]:
    return [name for name in libraries.components_for_loras(pipe) if getattr(pipe, name, None) is not None]


def _with_adapters(handle: CompiledPipeline) -> dict[str, Component]:
    found = {name: handle.components[name] for name in _parts(handle.pipe) if name in handle.components}
    return {name: one for name, one in found.items() if one.adapters.wrappers(one.module)}


def _is_merged(handle: CompiledPipeline, component: Component, mode: str) -> bool:
    """Whether a component's adapters are merged; of itself only where that costs nothing later."""
    if mode != "auto":
        return mode == "immediately"
    if component.residence.rests or handle.splits_rows(component):
        return False
    with contextlib.suppress(UsageError):
        component.merges.check()
        return True
    return False
