"""The steps of a job: how many are done, of how many, and the latents after each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

OnStep = Callable[[int, int, "torch.Tensor | None"], None]
"""Is told how many steps of how many are done, and what there is of the picture; what it raises ends the job."""


class Steps:
    """Counts the steps of all pictures of a job, and tells of each.

    Args:
        pipe: the pipeline that paints.
        arguments: those of its call.
        count: how many pictures are painted.
        on_step: is told.
    """

    def __init__(self, pipe: Any, arguments: Mapping[str, Any], count: int, on_step: OnStep) -> None:
        self._pipe, self._count, self._on_step = pipe, count, on_step
        self._asked = arguments.get("num_inference_steps") or own_steps(type(pipe))
        self._before = self._done = 0

    def begin(self, picture: int) -> None:
        """Tells that a picture begins, the first of which is 0."""
        self._before, self._done = picture * self._each, 0
        self._tell(None)

    def told(self, state: Mapping[str, Any]) -> None:
        """Tells of one more step, with what a pipeline says of it."""
        self._done += 1
        self._tell(state.get("latents"))

    @property
    def _each(self) -> int:
        """How many steps a picture takes: as many as the pipeline makes, once it has begun, else those asked for."""
        made = getattr(self._pipe, "_num_timesteps", None) if self._done else None
        return made if isinstance(made, int) and made else self._asked

    def _tell(self, latents: torch.Tensor | None) -> None:
        self._on_step(self._before + min(self._done, self._each), self._count * self._each, latents)


def own_steps(cls: Any) -> int:
    """How many steps a class of pipelines makes where nobody says."""
    parameter = inspect.signature(cls.__call__).parameters.get("num_inference_steps")
    own = getattr(parameter, "default", None)
    return own if isinstance(own, int) else 1
