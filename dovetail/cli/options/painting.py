"""The options that say what is painted, and with which of diffusers' classes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ...compiler.errors import UsageError
from .call import (
    CfgScale,
    Guidance,
    NegativePrompt,
    Steps,
    check_options,
    option,
    steering,
    takes,
)
from .inputs import Inputs
from .subject import Pipeline, quiet_libraries
from .words import words_of

ANY_SEED = -1
"""What is typed for a seed that is drawn."""
_SEEDS = 2**31
_MOST_SEEDS = 2**64


@dataclass(frozen=True)
class Painting:
    """What to paint and how, as it was typed."""

    named_prompt: Annotated[str | None, option("-p", "--prompt", metavar="TEXT", help="The same as PROMPT.")] = None
    steps: Steps = None
    seed: Annotated[int, option("-s", "--seed", help="The same seed gives the same picture; -1 takes any.")] = 0
    count: Annotated[
        int,
        option("-b", "--num-images", "--batch-count", min=1, help="So many pictures, each with the next seed."),
    ] = 1
    negative_prompt: NegativePrompt = None
    guidance: Guidance = None
    cfg_scale: CfgScale = None
    scheduler: Annotated[
        str,
        option("--scheduler", "--sampling-method", metavar="NAME", help="euler, euler_a, heun, dpm++2m, ddim, …"),
    ] = ""
    fps: Annotated[int | None, option("--fps", min=1, help="Frames of a video a second.")] = None
    threads: Annotated[
        int | None, typer.Option("-t", "--threads", min=1, help="Threads that the CPU computes with.")
    ] = None

    def prompt(self, argument: str | None) -> str | None:
        """The prompt, which may be empty, or None where there is none; raises UsageError for two of them."""
        if argument is not None and self.named_prompt is not None:
            raise UsageError(f"two prompts were given, {argument!r} and {self.named_prompt!r}: give one of them")
        return self.named_prompt if argument is None else argument

    def arguments(self) -> dict[str, Any]:
        """The arguments that were asked for, by the names that `call.check_options` knows.

        Raises UsageError for a seed that is none.
        """
        if not -_MOST_SEEDS // 2 <= self.seed <= _MOST_SEEDS - self.count:
            raise UsageError(f"--seed {self.seed} is no seed: give one below {_MOST_SEEDS}, or -1 for any")
        return steering(self.steps, self.negative_prompt, self.guidance, self.cfg_scale)

    def words(self) -> list[str]:
        """The same options as they are typed, apart from the prompt."""
        seed = str(self.seed) if self.seed else ""
        count = self.count if self.count > 1 else None
        return words_of(
            {"--steps": self.steps, "--seed": seed, "--num-images": count, "--negative-prompt": self.negative_prompt,
             "--guidance": self.guidance, "--cfg-scale": self.cfg_scale, "--scheduler": self.scheduler,
             "--fps": self.fps, "--threads": self.threads}
        )  # fmt: skip

    def seeds(self, first: int) -> range:
        """The seeds of the pictures, the first of which may be any."""
        first = random.randrange(_SEEDS) if first == ANY_SEED else first
        return range(first, first + self.count)

    def use_threads(self) -> None:
        """Has PyTorch compute with so many threads."""
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)


def without_size(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without a size where a class takes none: it paints in that of the picture, which is resized."""
    sizes = ("height", "width") if cls is not None and not takes(cls, "height") else ()
    return {name: value for name, value in given.items() if name not in sizes}


def called(
    pipeline: Pipeline, inputs: Inputs, given: Mapping[str, Any], fps: int | None = None
) -> tuple[Any, dict[str, Any]]:
    """The class that is to paint, None where it is unknown, and the arguments of its call, pictures among them."""
    cls = class_of(pipeline, inputs, given, fps)
    return cls, without_size(cls, given) | inputs.arguments(cls, given)


def class_of(pipeline: Pipeline, inputs: Inputs, given: Mapping[str, Any], fps: int | None = None) -> Any:
    """The class that is to paint: that of the folder, or another one that takes such inputs; None where it is unknown.

    Raises UsageError for an option that it has no use for, before anything is loaded, and where there is no such class.
    """
    from ...conventions.tasks import class_for, has_controlnet

    quiet_libraries()
    cls = class_for(pipeline.kind, **inputs.kinds)
    if cls is None:
        return None
    options = {**given, **inputs.options()}
    check_options(cls, without_size(cls, options) if inputs.image else options)
    if fps is not None and not takes(cls, "num_frames"):
        raise UsageError(f"{cls.__name__} makes no video: leave out --fps")
    if has_controlnet(cls) and inputs.control_image is None:
        raise UsageError(f"{cls.__name__} has a ControlNet, which follows a picture: give --control-image FILE")
    return cls
