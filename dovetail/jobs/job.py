"""A job: what is to be painted, as a value that can be written as JSON and sent to another process."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ..compiler.errors import UsageError
from ..compiler.schema_errors import told_of


@dataclass(frozen=True)
class Job:
    """Pictures of one prompt: ``count`` of them, each with the next seed. What is None is as the pipeline has it.

    ``guidance`` and ``cfg_scale`` are as `dovetail generate` takes them. ``image`` and ``mask`` are files of pictures,
    as bytes; ``loras`` are names, each with its scale.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, ser_json_bytes="base64", val_json_bytes="base64"
    )

    prompt: str
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    cfg_scale: float | None = None
    seed: int = 0
    loras: tuple[tuple[str, float], ...] = ()
    image: bytes | None = None
    mask: bytes | None = None
    strength: float | None = None
    count: int = 1

    @property
    def seeds(self) -> range:
        """The seeds of its pictures."""
        return range(self.seed, self.seed + self.count)

    def each(self) -> list[Job]:
        """A job for each of its pictures."""
        return [replace(self, seed=seed, count=1) for seed in self.seeds]

    def to_json(self) -> str:
        """The job as JSON; pictures are base64, and what is as the pipeline has it is left out."""
        return _adapter().dump_json(self, exclude_defaults=True).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Job:
        """Reads what `to_json` wrote; raises UsageError for anything else."""
        try:
            return _adapter().validate_json(text)
        except ValidationError as error:
            raise UsageError(f"this is no job: {told_of(error)}") from error


@functools.cache
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)
