"""From options to the arguments of a pipeline's call; the pipeline's own signature says what it takes."""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ...compiler.errors import UsageError
from .words import words_of

PICTURE = "Picture"
_PIXELS = re.compile("[0-9]{1,6}")
_LARGEST = 2**15
"""Pixels of the longest side: planning makes the latents of a picture, and those of a mistyped size fill the memory."""
MOST_STEPS = 10_000
"""Planning walks through the loop of a call too, step by step, and a mistyped number of them would take hours."""
_STEP_END = "callback_on_step_end"
_SPELLINGS = {
    "guidance": ("guidance_scale", "true_cfg_scale"),
    "cfg": ("true_cfg_scale", "guidance_scale"),
    "control_image": ("control_image", "image"),
}
"""The parameters that an option may set, where there are several."""
_OPTIONS = {
    "num_inference_steps": "--steps",
    "num_frames": "--frames",
    "cfg": "--cfg-scale",
    "image": "--image FILE",
    "mask_image": "--mask FILE",
    "control_image": "--control-image FILE",
    "controlnet_conditioning_scale": "--control-strength",
}
"""The options by parameter, where they are called otherwise."""


def option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    """An option that says something of the picture."""
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=PICTURE, **more)


Steps = Annotated[int | None, option("--steps", min=1, max=MOST_STEPS, help="Denoising steps.")]
NegativePrompt = Annotated[str | None, option("-n", "--negative-prompt", metavar="TEXT", help="What not to show.")]
Guidance = Annotated[float | None, option("--guidance", help="How closely to follow the prompt.")]
CfgScale = Annotated[
    float | None,
    option("--cfg-scale", help="The same by a second call without the prompt, where both exist."),
]


def steering(
    steps: int | None, negative_prompt: str | None, guidance: float | None, cfg_scale: float | None
) -> dict[str, Any]:
    """What was asked for, by the names that `check_options` knows."""
    given = {
        "num_inference_steps": steps,
        "negative_prompt": negative_prompt,
        "guidance": guidance,
        "cfg": cfg_scale,
    }
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Size:
    """How large the picture shall be."""

    size: Annotated[
        str, typer.Option(metavar="WxH", help="Width and height: 512x768, 512.", rich_help_panel=PICTURE)
    ] = ""
    height: Annotated[
        int | None, typer.Option(help="Height in pixels.", min=1, max=_LARGEST, rich_help_panel=PICTURE)
    ] = None
    width: Annotated[
        int | None, typer.Option(help="Width in pixels.", min=1, max=_LARGEST, rich_help_panel=PICTURE)
    ] = None
    frames: Annotated[int | None, typer.Option(help="Frames of a video.", min=1, rich_help_panel=PICTURE)] = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that were asked for."""
        width, height = self._both()
        for name, one, other in (("width", width, self.width), ("height", height, self.height)):
            if one and other and one != other:
                raise UsageError(f"--size {self.size} and --{name} {other} contradict each other: give one of them")
        given = {"height": self.height or height, "width": self.width or width, "num_frames": self.frames}
        return {name: value for name, value in given.items() if value is not None}

    def words(self) -> list[str]:
        """The same options as they are typed."""
        return words_of({f"--{name.replace('_', '-')}": value for name, value in vars(self).items()})

    def _both(self) -> tuple[int | None, int | None]:
        if not self.size:
            return None, None
        parts = self.size.lower().split("x")
        if len(parts) > 2 or not all(_PIXELS.fullmatch(part) and int(part) for part in parts):
            raise UsageError(
                f"--size {self.size[:40]} is no size: write width and height, such as 512x768, or one number"
            )
        width, height = int(parts[0]), int(parts[-1])
        if max(width, height) > _LARGEST:
            raise UsageError(f"--size {self.size} has a side of more than {_LARGEST} pixels: ask for a smaller picture")
        return width, height


SAMPLE = "a picture"
"""The prompt of a call that is planned without one."""


@dataclass(frozen=True)
class Sample(Size):
    """The call that is planned where none is made: of a size, in so many steps, steered so."""

    steps: Steps = None
    negative_prompt: NegativePrompt = None
    guidance: Guidance = None
    cfg_scale: CfgScale = None

    def one_step(self) -> Sample:
        """The same in one step, where none are asked for: enough to know what is called."""
        return replace(self, steps=self.steps or 1)

    def call(self) -> dict[str, Any]:
        """Its keyword arguments."""
        steered = steering(self.steps, self.negative_prompt, self.guidance, self.cfg_scale)
        return {"prompt": SAMPLE, **steered, **self.arguments()}


def takes(cls: Any, name: str) -> bool:
    """Whether the call of a class of pipelines has a parameter."""
    return bool(_spelled(name, inspect.signature(cls.__call__).parameters))


def frame_rate(cls: Any) -> float | None:
    """The frames a second that a class of pipelines computes videos for; None where it takes no such number."""
    parameter = inspect.signature(cls.__call__).parameters.get("frame_rate")
    return float(parameter.default) if parameter and isinstance(parameter.default, (int, float)) else None


def check_options(cls: Any, given: Mapping[str, Any]) -> None:
    """Raises UsageError for an option that a class of pipelines cannot use; nothing needs to be loaded for it."""
    parameters = inspect.signature(cls.__call__).parameters
    for name in given:
        if not _spelled(name, parameters):
            raise UsageError(f"{cls.__name__} has no use for {_option(name)}: leave it out")


def call_arguments(pipe: Any, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The keyword arguments of a call, once each of them is known to the pipeline.

    `guidance` becomes the argument that steers this pipeline: `guidance_scale`, or `true_cfg_scale` where there is one
    and no component has learned guidance as an input.

    Raises UsageError when the pipeline has no use for an option, or needs one that was not given.
    """
    check_options(type(pipe), given)
    parameters = inspect.signature(type(pipe).__call__).parameters
    wanted = {_name(pipe, name, parameters): value for name, value in {**(defaults or {}), **given}.items()}
    if "true_cfg_scale" in wanted and "negative_prompt" in parameters:
        wanted.setdefault("negative_prompt", "")
    name = type(pipe).__name__
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    missing = [key for key in needed if key not in wanted and key != "self"]
    if missing:
        way = f"give {_OPTIONS[missing[0]]}" if missing[0] in _OPTIONS else "use dovetail.load_pipeline"
        raise UsageError(f"{name} needs {missing[0]}: {way}")
    _check_negative(name, wanted, parameters)
    return wanted


def _check_negative(name: str, wanted: Mapping[str, Any], parameters: Mapping[str, Any]) -> None:
    """Raises UsageError for a negative prompt that would be ignored, for nothing is guided away from it."""
    scale = "true_cfg_scale" if "true_cfg_scale" in parameters else "guidance_scale"
    value = wanted.get(scale, getattr(parameters.get(scale), "default", None))
    if wanted.get("negative_prompt") and isinstance(value, (int, float)) and value <= 1:
        raise UsageError(
            f"{name} uses a negative prompt only with --cfg-scale above 1, and it is {value:g}: give --cfg-scale 4, or "
            "leave out --negative-prompt"
        )


def _name(pipe: Any, name: str, parameters: Mapping[str, Any]) -> str:
    """The parameter that an option sets."""
    return _guidance_name(pipe, parameters) if name == "guidance" else _spelled(name, parameters) or name


def _spelled(name: str, parameters: Mapping[str, Any]) -> str:
    """The first of the parameters that an option may set, which is there; empty where none is.

    What diffusers takes as ``**kwargs`` are names of former times, and does not count.
    """
    return next((one for one in _SPELLINGS.get(name, (name,)) if one in parameters), "")


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


@contextlib.contextmanager
def own_checks() -> Iterator[None]:
    """Turns what a pipeline's own code says of its arguments into a UsageError."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raised = traceback.extract_tb(error.__traceback__)[-1]
        if "/diffusers/pipelines/" not in Path(raised.filename).as_posix():
            raise
        raise UsageError(str(error)) from error


def told_of_steps(pipe: Any, tell: Callable[[Mapping[str, Any]], object] = lambda state: None) -> dict[str, Any]:
    """The argument with which a pipeline tells of each step that is done, where it takes one, with the latents then."""

    def told(_pipe: Any, _step: int, _time: Any, state: dict[str, Any]) -> dict[str, Any]:
        tell(state)
        return state

    return {_STEP_END: told} if _STEP_END in inspect.signature(type(pipe).__call__).parameters else {}


def _guidance_name(pipe: Any, parameters: Mapping[str, Any]) -> str:
    configs = [getattr(part, "config", None) for part in pipe.components.values()]
    learned = any(getattr(config, "guidance_embeds", False) for config in configs)
    return "true_cfg_scale" if "true_cfg_scale" in parameters and not learned else "guidance_scale"
