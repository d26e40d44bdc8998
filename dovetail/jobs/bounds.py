"""The most that one job may ask for: whoever takes jobs from others says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..compiler.errors import UsageError

if TYPE_CHECKING:
    from .job import Job

_SEEDS = 2**64


@dataclass(frozen=True)
class Bounds:
    """The largest job that is taken; ``side`` and ``pixels`` are of a picture, ``bytes`` of one that is sent."""

    side: int = 4096
    pixels: int = 2048 * 2048
    steps: int = 200
    count: int = 16
    prompt: int = 20_000
    loras: int = 8
    bytes: int = 16 * 2**20

    def check(self, job: Job) -> None:
        """Raises UsageError for a job that asks for more, or for what there is not."""
        self._check_size(job)
        self._check_texts(job)
        _check_within("steps", job.steps, self.steps)
        self.check_count("count", job.count)
        if not 0 <= job.seed <= _SEEDS - job.count:
            raise UsageError(f"seed is {_short(job.seed)}, and may be 0 to {_SEEDS - job.count}", field="seed")
        for name, number, most in (("guidance", job.guidance, 1000), ("cfg_scale", job.cfg_scale, 1000)):
            if number is not None and not 0 <= number <= most:
                raise UsageError(f"{name} is {number:g}, and may be 0 to {most}", field=name)
        if job.strength is not None and not 0 <= job.strength <= 1:
            raise UsageError(f"strength is {job.strength:g}, and may be 0 to 1", field="strength")
        self._check_pictures(job)

    def check_count(self, name: str, count: int | None) -> None:
        """Raises UsageError for a number of pictures that is none or too large, which a client knows by a name."""
        _check_within(name, count, self.count)

    def _check_size(self, job: Job) -> None:
        for name, value in (("width", job.width), ("height", job.height)):
            _check_within(name, value, self.side)
        if job.width and job.height and job.width * job.height > self.pixels:
            asked = f"{job.width} x {job.height}"
            raise UsageError(f"{asked} has more than {self.pixels} pixels: ask for a smaller size", field="width")

    def _check_texts(self, job: Job) -> None:
        for name, text in (("prompt", job.prompt), ("negative_prompt", job.negative_prompt or "")):
            if len(text) > self.prompt:
                raise UsageError(f"{name} has {len(text)} characters, and may have {self.prompt}", field=name)
        if len(job.loras) > self.loras:
            raise UsageError(f"{len(job.loras)} LoRAs are asked for, and may be {self.loras}", field="loras")
        for name, scale in job.loras:
            if not -100 <= scale <= 100:
                said = f"the LoRA {name[:100]} has the scale {scale:g}, and may have -100 to 100"
                raise UsageError(said, field="loras")

    def _check_pictures(self, job: Job) -> None:
        if job.mask is not None and job.image is None:
            raise UsageError("a mask says which part of a picture is replaced: give that picture too", field="mask")
        if job.strength is not None and job.image is None:
            raise UsageError("strength says how much of a picture is changed: give that picture too", field="strength")
        for name, data in (("image", job.image), ("mask", job.mask)):
            if data is not None and len(data) > self.bytes:
                raise UsageError(f"{name} has {len(data)} bytes, and may have {self.bytes}", field=name)


def _check_within(name: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise UsageError(f"{name} is {_short(value)}, and may be 1 to {most}", field=name)


def _short(number: int) -> str:
    """A number as it is said; Python writes no integer of very many digits."""
    return str(number) if abs(number) < 10**20 else "a number of more than 20 digits"
