"""What a pipeline paints, for those who make jobs for it: names, sizes, and what a picture may begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cli.options.subject import Pipeline, located
from ..compiler.errors import UsageError
from ..conventions.hub import INDEX, read_index
from ..conventions.tasks import class_for
from .steps import own_steps


@dataclass(frozen=True)
class About:
    """The names of LoRAs that jobs may give, of the scheduler, and what a picture is of which nothing is said.

    ``tasks`` says what jobs may begin with besides a prompt: ``image``, ``mask``. A size of 0 is not known.
    """

    loras: Sequence[str] = ()
    sampler: str = ""
    tasks: Sequence[str] = ()
    size: tuple[int, int] = (0, 0)
    steps: int = 0


def about(pipeline: Pipeline, loras: Sequence[str], sampler: str = "") -> About:
    """What a pipeline paints, as far as its folder says; nothing is loaded. A ``sampler`` replaces its own."""
    cls, given = class_for(pipeline.kind), pipeline.defaults or {}
    index = read_index(Path(located(pipeline, with_weights=False).place) / INDEX)
    own = index.get("scheduler")
    return About(
        loras,
        sampler or (str(own[-1]) if isinstance(own, list) else ""),
        [name for name in ("image", "mask") if _can(pipeline.kind, mask=name == "mask")],
        (int(given.get("width", 0)), int(given.get("height", 0))),
        int(given.get("num_inference_steps", 0)) or (0 if cls is None else own_steps(cls)),
    )


def _can(kind: str, *, mask: bool) -> bool:
    try:
        return class_for(kind, image=True, mask=mask) is not None
    except UsageError:
        return False
