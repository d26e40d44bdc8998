"""All tiny pipelines in one table, and the comparison of a compiled one with itself in eager."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import dovetail

from .more_pipelines import MORE_PIPELINES
from .tiny_pipelines import PIPELINES, Made
from .transformer_pipelines import TRANSFORMER_PIPELINES
from .unet_pipelines import UNET_PIPELINES

EVERY_PIPELINE: dict[str, Callable[[], Made]] = {
    **PIPELINES,
    **MORE_PIPELINES,
    **UNET_PIPELINES,
    **TRANSFORMER_PIPELINES,
}
DEVICES = ("sim0", "sim0&sim1", "sim0&sim1&sim2")


def result(pipe: Any, call: dict[str, Any]) -> list[torch.Tensor]:
    """Everything that a call with a fixed seed returns, on the CPU."""
    pipe.set_progress_bar_config(disable=True)
    torch.manual_seed(7)
    given = {"output_type": "pt", "return_dict": False, **call, "generator": torch.Generator().manual_seed(0)}
    leaves = [leaf for leaf in tree_leaves(pipe(**given)) if isinstance(leaf, (torch.Tensor, np.ndarray))]
    return [torch.as_tensor(leaf).detach().cpu() for leaf in leaves]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


def meaningful(found: list[torch.Tensor]) -> bool:
    """Whether there is anything to compare: finite numbers, and not all the same."""
    return bool(found) and all(bool(one.isfinite().all()) for one in found) and any(one.std() > 0 for one in found)


def compare(name: str, devices: tuple[str, ...] = DEVICES) -> dict[str, str]:
    """Compares a pipeline with itself in eager over the same memory; says `equal`, or what else, for each backend."""
    pipe, call = EVERY_PIPELINE[name]()
    expected = result(pipe, call)
    if not meaningful(expected):
        return dict.fromkeys(devices, "eager returns nothing to compare")
    return {backend: _compiled(pipe, call, expected, backend) for backend in devices}


def _compiled(pipe: Any, call: dict[str, Any], expected: list[torch.Tensor], backend: str) -> str:
    handle = dovetail.compile_pipeline(pipe, backend)
    try:
        found = result(pipe, call)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        handle.undo()
        gc.collect()
    if same(found, expected):
        return "equal"
    if [one.shape for one in found] != [one.shape for one in expected]:
        return "other shapes"
    most = max(float((one - other).abs().max()) for one, other in zip(found, expected, strict=True))
    return f"differs by {most:.1e}"
