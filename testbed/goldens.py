"""Plans, refusals and schedules of pipelines on declared rigs, as texts that are kept and compared.

They are tiny pipelines, and five published ones by their configurations alone.

    python -m testbed.goldens                       # writes tests/goldens/texts, which takes a quarter of an hour
    python -m testbed.goldens --only SDXL,flux      # some of them
    python -m testbed.goldens sd "two cards"        # prints one of them, with its schedules in full

Every card of a rig is named and none of them is asked for anything, so that a text is the same on any machine. A
budget is told in parts of a pipeline's weights. A schedule is told by what it is made of and by a digest: where that
changes, the command above prints it in full in both versions.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.compiler.errors import DovetailError
from dovetail.compiler.ir.program import Program
from dovetail.compiler.states.parts import crossing_bytes
from dovetail.explain.sentences import explain_plan
from dovetail.pipelines.dryrun import DryPipeline
from dovetail.pipelines.loading.saved import open_pipeline

from .folders import flux_folder, pixart_folder, sd15_folder, sdxl_folder, write_sparse
from .folders_by_parts import lumina2_folder
from .pipelines.tiny_pipelines import PIPELINES

TEXTS = Path(__file__).parent.parent / "tests/goldens/texts"


@dataclass(frozen=True)
class Cell:
    """A rig by its cards, each with its part of the weights of a pipeline, and what is asked for there."""

    cards: tuple[tuple[str, float], ...]
    asked: dict[str, str] = field(default_factory=dict)

    def request(self, nbytes: int) -> dict[str, str]:
        """The options of a pipeline that has so many bytes of weights."""
        cards = [f"cuda{i}={int(part * nbytes)}B@{name}" for i, (name, part) in enumerate(self.cards)]
        return {"rig": ",".join([*cards, "cpu=64GiB"]), **self.asked}


CELLS = {
    "one card": Cell((("RTX 4090", 8),)),
    "a small card": Cell((("RTX 3060", 1.4),)),
    "two cards": Cell((("RTX 4090", 2), ("RTX 3060", 1.2)), {"backend": "cuda0&cuda1"}),
    "four old cards": Cell((("RTX 2080 Ti", 0.8),) * 4),
    "a refusal": Cell((("RTX 3060", 0.5),), {"backend": "cuda0", "params_backend": "device"}),
}


PUBLISHED: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "FLUX.1-dev": (flux_folder, {"height": 1024, "width": 1024}),
    "SD1.5": (partial(sd15_folder, write=write_sparse), {"height": 512, "width": 512}),
    "SDXL": (sdxl_folder, {"height": 1024, "width": 1024}),
    "PixArt-Sigma": (pixart_folder, {"height": 1024, "width": 1024}),
    "Lumina-Image-2.0": (lumina2_folder, {"height": 1024, "width": 1024}),
}
"""Pipelines at full size, the folder of each with what is called of it."""


def opened(name: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A pipeline, a call of it, and where its weights come from if these have no data."""
    if name in PIPELINES:
        return *PIPELINES[name](), {}
    make, size = PUBLISHED[name]
    with tempfile.TemporaryDirectory() as place:
        folder = make(Path(place) / name)
        for file in folder.glob("*/*.safetensors"):
            file.unlink()
        pipe, origins = open_pipeline(folder, dtype=torch.bfloat16, needs_files=False)
    call = {"prompt": "a cat", "num_inference_steps": 2, **size}
    return pipe, call, {"origins": origins}


def text_of(name: str, in_full: bool = False, titles: list[str] | None = None) -> str:
    """What is planned of a pipeline on every rig, or on some of them."""
    pipe, call, options = opened(name)
    nbytes = sum(
        weight.nbytes for one in pipe.components.values() if isinstance(one, nn.Module) for weight in one.parameters()
    )
    lines: list[str] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # by which the scratch of attention on the host goes
    try:
        for title in titles or CELLS:
            lines += [f"== {title}", *_planned(pipe, call, CELLS[title].request(nbytes), options, in_full), ""]
    finally:
        torch.set_num_threads(threads)
    return "\n".join(lines)


def _planned(
    pipe: Any, call: dict[str, Any], request: dict[str, str], options: dict[str, Any], in_full: bool
) -> Iterator[str]:
    yield " ".join(f"--{option.replace('_', '-')} {value}" for option, value in request.items())
    dry = DryPipeline(pipe, request, **options)
    try:
        yield from explain_plan(dry.account(dry(**call)))
        for title, made in dry.plans().items():
            yield from _schedule(title, made.program, in_full)
    except DovetailError as error:
        yield f"refused: {error}"
    finally:
        dry.undo()


def _schedule(title: str, program: Program, in_full: bool) -> Iterator[str]:
    items = list(map(str, program.schedule or ()))
    kinds = Counter(type(item).__name__ for item in program.schedule or ())
    made_of = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    digest = hashlib.sha256("\n".join(items).encode()).hexdigest()[:16]
    yield f"schedule of {title}: {made_of}; {crossing_bytes(program)} B cross; {digest}"
    if in_full:
        yield from items


def main(words: list[str]) -> None:
    """Prints one text in full, or writes all of them, or some."""
    if words and words[0] != "--only":
        print(text_of(words[0], True, words[1:]))
        return
    TEXTS.mkdir(parents=True, exist_ok=True)
    for name in words[1].split(",") if words else [*PIPELINES, *PUBLISHED]:
        (TEXTS / f"{name}.txt").write_text(text_of(name))
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
