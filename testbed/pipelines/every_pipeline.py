"""All tiny pipelines in one table, and the comparison of a compiled one with itself in eager."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import dovetail
from dovetail.compiler.devices.device import Device

from .more_pipelines import MORE_PIPELINES
from .seen_pipelines import SEEN_PIPELINES
from .tiny_pipelines import PIPELINES, Made
from .transformer_pipelines import TRANSFORMER_PIPELINES
from .unet_pipelines import UNET_PIPELINES

CHANNELS_LAST = (
    "sd_img2img", "sd_inpaint", "sd_controlnet", "sd_controlnet_img2img", "sd_controlnet_inpaint", "sdxl_img2img",
    "sdxl_inpaint", "sdxl_controlnet", "flux_inpaint", "kandinsky",
)  # fmt: skip
"""The pipelines that are compared once more with channels-last modules and pictures."""


def channels_last(make: Callable[[], Made]) -> Callable[[], Made]:
    """A maker of the same pipeline whose convolutions, and the pictures that it is given, are channels-last."""

    def made() -> Made:
        pipe, call = make()
        for part in pipe.components.values():
            if isinstance(part, torch.nn.Module):
                part.to(memory_format=torch.channels_last)
        return pipe, {name: _last(value) for name, value in call.items()}

    return made


def _last(value: Any) -> Any:
    is_picture = isinstance(value, torch.Tensor) and value.dim() == 4
    return value.to(memory_format=torch.channels_last) if is_picture else value


_MADE: dict[str, Callable[[], Made]] = {
    **PIPELINES,
    **MORE_PIPELINES,
    **UNET_PIPELINES,
    **TRANSFORMER_PIPELINES,
    **SEEN_PIPELINES,
}
EVERY_PIPELINE: dict[str, Callable[[], Made]] = {
    **_MADE,
    **{f"{name}_channels_last": channels_last(_MADE[name]) for name in CHANNELS_LAST},
}
DEVICES = ("sim0", "sim0&sim1", "sim0&sim1&sim2")


def arguments(call: dict[str, Any]) -> dict[str, Any]:
    """A call as `result` makes it, without its seed: its pictures are tensors."""
    return {"output_type": "pt", "return_dict": False, **call}


def result(pipe: Any, call: dict[str, Any]) -> list[torch.Tensor]:
    """Everything that a call with a fixed seed returns, on the CPU."""
    pipe.set_progress_bar_config(disable=True)
    torch.manual_seed(7)
    given = {**arguments(call), "generator": torch.Generator().manual_seed(0)}
    leaves = [leaf for leaf in tree_leaves(pipe(**given)) if isinstance(leaf, (torch.Tensor, np.ndarray))]
    return [torch.as_tensor(leaf).detach().cpu() for leaf in leaves]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def meaningful(found: list[torch.Tensor]) -> bool:
    """Whether there is anything to compare: finite numbers, and not all the same."""
    return bool(found) and all(bool(one.isfinite().all()) for one in found) and any(one.std() > 0 for one in found)


def compare(name: str, devices: tuple[str, ...] = DEVICES, card: str = "cpu") -> dict[str, str]:
    """Compares a pipeline with itself in eager on a card, or on the CPU, which simulated devices equal.

    Says `equal`, or what else, for each backend, over the same memory. Eager is called twice on a card, for on some its
    first call of a pipeline that fills in pictures differs from all later ones.
    """
    try:
        pipe, call = EVERY_PIPELINE[name]()
        expected = result(pipe, call) if card == "cpu" else _on_card(pipe, call, card)
    except Exception as error:
        return dict.fromkeys(devices, f"in eager, {_first_line(error)}")
    if not meaningful(expected):
        return dict.fromkeys(devices, "eager returns nothing to compare")
    return {backend: _compiled(pipe, call, expected, backend) for backend in devices}


def _on_card(pipe: Any, call: dict[str, Any], card: str) -> list[torch.Tensor]:
    """What eager returns on a card in its second call; the pipeline is in the host's memory again then."""
    pipe.to(Device.named(card).torch)
    found = [result(pipe, call) for _ in range(2)]
    pipe.to("cpu")
    return found[-1]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _compiled(pipe: Any, call: dict[str, Any], expected: list[torch.Tensor], backend: str) -> str:
    try:
        dovetail.compile_pipeline(pipe, backend)
    except Exception as error:
        return _first_line(error)
    try:
        found = result(pipe, call)
    except Exception as error:
        return _first_line(error)
    finally:
        pipe.dovetail.undo()
        gc.collect()
    if same(found, expected):
        return "equal"
    if [one.shape for one in found] != [one.shape for one in expected]:
        return "other shapes"
    most = max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))
    return f"differs by {most:.1e}"
