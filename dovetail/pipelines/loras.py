"""Loads the LoRAs that are asked for into a compiled pipeline, and merges them or leaves them beside the weights."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compiler.checkpoints.safetensors_header import read_safetensors
from ..compiler.errors import UsageError
from ..compiler.spec.residency import Residency
from ..components.component import Component
from ..conventions import libraries
from ..lora.requested import Lora, check_mode, refuse_pickle

if TYPE_CHECKING:
    from .pipeline import CompiledPipeline

logger = logging.getLogger(__name__)


def apply_loras(handle: CompiledPipeline, loras: Sequence[Lora], mode: str = "auto") -> None:
    """Loads LoRAs into a compiled pipeline and makes them active together; merges them, or leaves them beside.

    ``auto`` merges into the weights of a component that are dense, resident and on one device each; into others the
    LoRA stays beside the weights. Raises UsageError, or WeightError for a damaged file; no LoRA is loaded then.
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


def _load(handle: CompiledPipeline, lora: Lora) -> str:
    """Loads one LoRA under a name of its own, which it returns."""
    pipe, place = handle.pipe, Path(lora.place)
    taken = {name for names in pipe.get_list_adapters().values() for name in names}
    numbered = [lora.stem, *(f"{lora.stem}_{number}" for number in range(len(taken)))]
    name = next(name for name in numbered if name not in taken)
    where: dict[str, Any] = {"weight_name": place.name} if place.is_file() else {}
    if not lora.pickled:
        refuse_pickle(place)
        where["use_safetensors"] = True
    if place.is_file() and place.suffix == ".safetensors":
        read_safetensors(place)  # which says of a damaged file what it says of one of other weights
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
    if component.view.residency is not Residency.DEVICE or handle.splits_rows(component):
        return False
    with contextlib.suppress(UsageError):
        component.merges.check()
        return True
    return False
