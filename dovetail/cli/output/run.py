"""Paints the pictures of `dovetail generate` one after another, and writes each as soon as it is there."""

from __future__ import annotations

import functools
import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...compiler.errors import DovetailError
from ...pipelines.wrong_calls import wrong_calls_told
from ...progress.phases import Phases, begin
from ...recovery.latents import Latents, beside, save_latents
from ..options.call import own_checks, told_of_steps
from .progress import progress


@dataclass(frozen=True)
class Run:
    """Calls of a pipeline with the same arguments, and where what they make goes.

    ``size`` has ``height`` and ``width`` as far as they were typed, ``latents_to`` is where what is decoded goes too,
    ``again`` the options that name the pipeline and what it begins with. With ``json``, files are not printed, and
    progress is told as events.
    """

    pipe: Any
    arguments: Mapping[str, Any]
    phases: Phases
    output: Path
    again: Sequence[str]
    fps: float | None
    latents_to: Path | None
    json: bool
    size: Mapping[str, Any] = field(default_factory=dict)

    def pictures(self, seeds: Sequence[int], saved: Latents | None = None) -> list[Path]:
        """Paints a picture for each seed, or goes on from latents; gives the files, which are numbered if several."""
        from .picture import frames_of, numbered, other_size

        self.pipe.dovetail.keeps_latents = self.latents_to is not None
        files: list[Path] = []
        for index, seed in enumerate(seeds):
            name = functools.partial(numbered, index=index) if len(seeds) > 1 else _itself
            result = self._paint(seed, saved, name(self.output))
            if self.latents_to is not None:
                save_latents(name(self.latents_to), self._latents(seed))
            files += self._write(result, name(self.output))
        asked = {**self.size, **self.arguments}  # of which a class that paints in the size of a picture takes none
        warn(other_size(frames_of(result)[0].size, asked.get("width"), asked.get("height")))
        return files

    def _paint(self, seed: int, saved: Latents | None, output: Path) -> Any:
        """Calls the pipeline, or goes on from latents; a bar says which phase goes on, and moves a step at a time.

        Where decoding fails, what was to be decoded is written beside the picture's file.
        """
        import torch

        torch.manual_seed(seed)  # for schedulers that pipelines give no generator
        generator = torch.Generator("cpu").manual_seed(seed)
        shown = progress("planning", self._steps, self.phases.describe, as_events=self.json)
        with own_checks(), wrong_calls_told(type(self.pipe).__name__, self.arguments, ()), shown as advance:
            told = told_of_steps(self.pipe, lambda _: advance())
            try:
                with self.phases.watching():
                    if saved is not None:
                        return self.pipe.dovetail.go_on(saved.tensors, **self.arguments, generator=generator)
                    return self.pipe(**self.arguments, **told, generator=generator)
            except BaseException:
                if any(one.numel() for one in self.pipe.dovetail.latents.values()):
                    _keep(self._latents(seed), output, self.again)
                raise

    @property
    def _steps(self) -> int | None:
        """How many steps a call makes, where that is known."""
        parameter = inspect.signature(type(self.pipe).__call__).parameters.get("num_inference_steps")
        total = self.arguments.get("num_inference_steps") or getattr(parameter, "default", None)
        return total if isinstance(total, int) else None

    def _latents(self, seed: int) -> Latents:
        """What was to be decoded in the last call, with that call."""
        return Latents(self.pipe.dovetail.latents, type(self.pipe).__name__, {**self.arguments, "seed": seed})

    def _write(self, result: Any, output: Path) -> list[Path]:
        """Writes a picture or a video with its sound, and says where, unless that is to be said as JSON."""
        from .picture import FPS, save

        with self.phases.watching():
            begin("writing")
            files = [*save(result, output, self.fps or FPS), *self._write_sound(result, output)]
        if not self.json:
            print(*files, sep="\n", flush=True)
        return files

    def _write_sound(self, result: Any, output: Path) -> list[Path]:
        """Writes the sound of a video beside it, if it has one; a warning says why where that cannot be."""
        from .sound import rate_of, save_sound

        audio = getattr(result, "audio", None)
        if audio is None:
            return []
        try:
            return [save_sound(audio, output, rate_of(self.pipe))]
        except DovetailError as error:
            warn(f"the sound is not written: {error}; from Python the result has audio")
            return []


def _itself(path: Path) -> Path:
    return path


def warn(*texts: str) -> None:
    """Says on stderr what is to be known and is no error; empty texts are nothing."""
    for text in filter(None, texts):
        print(f"warning: {text}", file=sys.stderr)


def _keep(latents: Latents, output: Path, again: Sequence[str]) -> None:
    """Writes latents beside the picture that they were to become, and says what goes on from there."""
    try:
        file = save_latents(beside(output), latents)
    except OSError as error:
        print(f"what was to be decoded cannot be kept beside {output}: {error.strerror}", file=sys.stderr)
        return
    words = ["dovetail", "generate", "--latents", str(file), *again]
    print(f"what was to be decoded is in {file}: {shlex.join(words)} goes on there", file=sys.stderr)
