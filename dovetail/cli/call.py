"""From options to the arguments of a pipeline's call; the pipeline's own signature says what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..compiler.errors import UsageError

PICTURE = "Picture"
_STEP_END = "callback_on_step_end"


@dataclass(frozen=True)
class Size:
    """How large the picture shall be."""

    size: Annotated[
        str, typer.Option(metavar="WxH", help="Width and height: 512x768, 512.", rich_help_panel=PICTURE)
    ] = ""
    height: Annotated[int | None, typer.Option(help="Height in pixels.", min=1, rich_help_panel=PICTURE)] = None
    width: Annotated[int | None, typer.Option(help="Width in pixels.", min=1, rich_help_panel=PICTURE)] = None
    frames: Annotated[int | None, typer.Option(help="Frames of a video.", min=1, rich_help_panel=PICTURE)] = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that were asked for."""
        width, height = self._both()
        for name, one, other in (("width", width, self.width), ("height", height, self.height)):
            if one and other and one != other:
                raise UsageError(f"--size {self.size} and --{name} {other} contradict each other: give one of them")
        given = {"height": self.height or height, "width": self.width or width, "num_frames": self.frames}
        return {name: value for name, value in given.items() if value is not None}

    def _both(self) -> tuple[int | None, int | None]:
        if not self.size:
            return None, None
        parts = self.size.lower().split("x")
        if len(parts) > 2 or not all(part.isdecimal() and int(part) for part in parts):
            raise UsageError(f"--size {self.size} is no size: write width and height, such as 512x768, or one number")
        return int(parts[0]), int(parts[-1])


def call_arguments(pipe: Any, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keyword arguments of a call, once each of them is known to the pipeline.

    `guidance` becomes the argument that steers this pipeline: `guidance_scale`, or `true_cfg_scale` where there is one
    and no component has learned guidance as an input.

    Raises UsageError when the pipeline takes no such argument, or needs one that no option gives.
    """
    parameters = inspect.signature(type(pipe).__call__).parameters
    wanted = {**(defaults or {}), **given}
    if "guidance" in wanted:
        wanted[_guidance_name(pipe, parameters)] = wanted.pop("guidance")
    if "true_cfg_scale" in wanted and "negative_prompt" in parameters:
        wanted.setdefault("negative_prompt", "")
    name = type(pipe).__name__
    unknown = [key for key in wanted if key not in parameters]
    if unknown:
        raise UsageError(f"{name} takes no {unknown[0]}: leave it out")
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    missing = [key for key in needed if key not in wanted and key != "self"]
    if missing:
        raise UsageError(
            f"{name} needs {missing[0]}, which the command line cannot give yet: use dovetail.load_pipeline"
        )
    return wanted


def told_of_steps(pipe: Any, tell: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The argument with which a pipeline tells of each step that is done, where it takes one."""

    def told(_pipe: Any, _step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
        tell()
        return state

    return {_STEP_END: told} if _STEP_END in inspect.signature(type(pipe).__call__).parameters else {}


def _guidance_name(pipe: Any, parameters: Mapping[str, Any]) -> str:
    configs = [getattr(part, "config", None) for part in pipe.components.values()]
    learned = any(getattr(config, "guidance_embeds", False) for config in configs)
    return "true_cfg_scale" if "true_cfg_scale" in parameters and not learned else "guidance_scale"
