"""What is said of a call of a pipeline that the pipeline itself refuses."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..compiler.errors import DovetailError, UsageError

WRONG = (TypeError, ValueError, AttributeError, LookupError)
"""What a pipeline raises that is called with wrong arguments."""
_NUMBERS = ("height", "width", "num_frames", "num_inference_steps", "num_images_per_prompt")
"""The arguments of pipelines that are whole numbers in all of them."""
_OF_SIZE = re.compile(
    r"(?:kernel|input|output|padding) (?:size|shape)|sizes? of tensors?|of 0 elements|non-?empty|reduction dim",
    re.IGNORECASE,
)
"""What PyTorch says where nothing is left of a picture, or halves of a U-Net do not meet."""
_SMALL = 64
"""Pixels of a side from which on all common models work: they have up to 32 pixels in one of a latent."""


@contextlib.contextmanager
def wrong_calls_told(
    name: str, given: Mapping[str, Any], errors: tuple[type[Exception], ...] = WRONG
) -> Iterator[None]:
    """Raises UsageError for what a pipeline of a class says of the arguments that it is given by name."""
    try:
        yield
    except Exception as error:
        wrong = _no_number(given) or _no_step(given) or _too_small(given, error)
        of_call = wrong and isinstance(error, RuntimeError) and not isinstance(error, DovetailError)
        if not isinstance(error, errors) and not of_call:
            raise
        why = wrong or (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"this {name} cannot be called so: {why}") from error


def _no_number(given: Mapping[str, Any]) -> str:
    """The first argument that should be a number and is none; empty where there is none such."""
    there = ((name, given[name]) for name in _NUMBERS if given.get(name) is not None)
    wrong = ((name, value) for name, value in there if not isinstance(value, (int, float)))
    return next((f"{name} is {_named(value)}, and no whole number" for name, value in wrong), "")


def _no_step(given: Mapping[str, Any]) -> str:
    """That a strength leaves no step to make, of which pipelines say as many things as there are; empty if it does."""
    strength, steps = given.get("strength"), given.get("num_inference_steps")
    if not isinstance(strength, (int, float)) or (strength and not isinstance(steps, int)):
        return ""
    if int(strength * (steps or 0)):
        return ""
    return f"a strength of {strength:g} leaves none of {steps or 'its'} steps to make: give a larger one, or more steps"


def _too_small(given: Mapping[str, Any], error: Exception) -> str:
    """That PyTorch refuses an operation of a picture of few pixels; empty where that is not what happened.

    Which sizes a model can do it does not say: the error is of the first layer whose kernel is larger than its input.
    """
    from ..runtime.devices.out_of_memory import ran_out  # which needs PyTorch; who shows help does not

    height, width = given.get("height"), given.get("width")
    if type(error) is not RuntimeError or not isinstance(height, int) or not isinstance(width, int):
        return ""
    if min(height, width) >= _SMALL or ran_out(error) or not _OF_SIZE.search(str(error)):
        return ""
    said = str(error).strip().partition("\n")[0]
    return f"{width} x {height} may be too small for its models, ask for a larger size; PyTorch says: {said}"


def _named(value: object) -> str:
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"
