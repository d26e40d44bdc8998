"""Tiny pipelines whose guidance is on two simulated devices: calls of their own in turn, or the halves of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import dovetail
from dovetail.components.alternating import Alternating
from dovetail.runtime import sim

from .overlap import overlap_of
from .pipelines.every_pipeline import EVERY_PIPELINE
from .pipelines.tiny_pipelines import paint

GUIDED = ("flux", "wan", "qwen", "hunyuan_video", "sd", "sdxl")
ON_TWO = "diffusion=sim0&sim1,te=sim0,vae=sim0"
_OF_ITS_OWN = frozenset(("flux", "qwen", "hunyuan_video"))
"""Pipelines that have a guidance of the model's own besides, so that two parts are asked for by a scale."""


def guided(name: str) -> tuple[Any, dict[str, Any]]:
    """A tiny pipeline, and a call of it that has guidance."""
    pipe, call = EVERY_PIPELINE[name]()
    return pipe, {**call, "negative_prompt": "grey", **({"true_cfg_scale": 2.0} if name in _OF_ITS_OWN else {})}


@dataclass(frozen=True)
class Painted:
    """What came of a picture with guidance on two devices."""

    name: str
    takes_turns: bool
    factor: float
    is_equal: bool
    off: float

    def __str__(self) -> str:
        how = "calls in turn" if self.takes_turns else "halves of a call"
        bits = "eager's bits" if self.is_equal else f"{self.off:.1e} off eager"
        return f"{self.name:16} {how:18} {self.factor:.2f} times as much as one device, {bits}"


def painted(name: str) -> Painted:
    """Paints with guidance on two devices under the mode of batches, and counts what they do at the same time."""
    sim.enable(dict.fromkeys(range(2), 2**33))
    pipe, call = guided(name)
    eager = paint(pipe, call)
    part = "unet" if hasattr(pipe, "unet") else "transformer"
    with dovetail.compile_pipeline(pipe, ON_TWO, split_mode="diffusion=batch").dovetail as handle:
        paint(pipe, call)
        programs = handle.programs[part]
        with overlap_of(programs[0].program.name) as found:
            picture = paint(pipe, call).cpu()
        takes_turns = any(isinstance(one, Alternating) for one in programs)
    off = float((picture.double() - eager.double()).norm() / eager.double().norm())
    return Painted(name, takes_turns, found.factor, torch.equal(picture, eager), off)
