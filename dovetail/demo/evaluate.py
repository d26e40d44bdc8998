"""Counts how many held-out captions the demo pipeline paints right: `python -m dovetail.demo.evaluate`."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxPipeline

from dovetail.demo import CALL_DEFAULTS, DTYPE, adapter, folder
from dovetail.demo.check import Picture, read
from dovetail.demo.draw import Scene, held_out_captions, in_blue
from dovetail.demo.sheet import sheet

_BATCH = 10


def load(where: Path | None = None) -> FluxPipeline:
    """Load the demo pipeline, or the one in another folder."""
    pipeline = FluxPipeline.from_pretrained(where or folder(), dtype=getattr(torch, DTYPE), local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint(pipeline: FluxPipeline, captions: Sequence[str], seeds: Sequence[int]) -> list[Picture]:
    """Paint captions in one batch, each from a seed of its own; RGB values of shape (64, 64, 3)."""
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    arguments = {**CALL_DEFAULTS, "negative_prompt": [CALL_DEFAULTS["negative_prompt"]] * len(captions)}
    return [np.asarray(picture) for picture in pipeline(list(captions), generator=generators, **arguments).images]


def attempts(pipeline: FluxPipeline, count: int) -> Iterator[tuple[str, Scene, Picture]]:
    """Paint the first `count` held-out captions, the n-th one from seed n."""
    wanted = held_out_captions()[:count]
    for start in range(0, len(wanted), _BATCH):
        part = wanted[start : start + _BATCH]
        pictures = paint(pipeline, [caption for caption, _ in part], range(start, start + len(part)))
        for (caption, scene), picture in zip(part, pictures, strict=True):
            yield caption, scene, picture


def wrong(
    pipeline: FluxPipeline, count: int, painted_as: Callable[[Scene], Scene] = lambda scene: scene
) -> list[tuple[str, Scene | None]]:
    """Return the captions that came out wrong, each with the scene that was painted instead."""
    painted = ((caption, scene, read(picture)) for caption, scene, picture in attempts(pipeline, count))
    return [(caption, seen) for caption, scene, seen in painted if seen != painted_as(scene)]


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dovetail.demo.evaluate", description=__doc__)
    parser.add_argument("--folder", type=Path, default=folder(), help="the pipeline (the one in the package)")
    parser.add_argument("--count", type=int, default=100, help="how many held-out captions (100)")
    parser.add_argument("--blue", action="store_true", help="with the demo's adapter, which paints everything blue")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--sheet", type=Path, help="also save the first twelve pictures, captions below, as a PNG")
    options = parser.parse_args()
    pipeline = load(options.folder)
    if options.blue:
        pipeline.load_lora_weights(adapter())
    missed = wrong(pipeline, options.count, in_blue) if options.blue else wrong(pipeline, options.count)
    if options.sheet:
        sheet([(caption, picture) for caption, _, picture in attempts(pipeline, 12)]).save(options.sheet, optimize=True)
    for caption, seen in missed:
        print(f"wrong: {caption}: {seen.captions()[0] if seen else 'no such scene'}", file=sys.stderr)
    result = {"captions": options.count, "right": options.count - len(missed)}
    print(json.dumps(result) if options.json else "{right} of {captions} held-out captions right".format(**result))


if __name__ == "__main__":
    _main()
