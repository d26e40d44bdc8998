"""Calls of a pipeline that ask for less: a smaller picture, or fewer frames of a video."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ..components.dry import DryRun
from .tiling import ratio_of

_PARTS = (3 / 4, 1 / 2, 1 / 4)
_LEAST = 16  # pixels


def smaller_calls(pipe: Any, run: DryRun, given: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], dict[str, int]]]:
    """Smaller sizes than that of a dry run, the largest first: as options of a command, and as arguments.

    A video has fewer frames first. None are given of a pipeline that takes no size, or in which no VAE decodes.
    """
    decoded = next((one for one in run.calls.values() if one.title.endswith(".decode")), None)
    parameters = inspect.signature(type(pipe).__call__).parameters
    if decoded is None or not {"height", "width"} <= parameters.keys():
        return
    vae, shape = decoded.component.module, [int(size) for size in decoded.traced.signature.tensors[0].shape]
    frames = given.get("num_frames") or getattr(parameters.get("num_frames"), "default", None)
    if isinstance(frames, int) and len(shape) == 5:
        step = int(getattr(vae, "temporal_compression_ratio", None) or 1)
        fewer = [1 + int((frames - 1) * part) // step * step for part in _PARTS[1:]]
        yield from (({"--frames": str(count)}, {"num_frames": count}) for count in dict.fromkeys(fewer))
    ratio = ratio_of(vae)
    whole = [given.get("height") or shape[-2] * ratio, given.get("width") or shape[-1] * ratio]
    step = max(_LEAST, 2 * ratio)
    for part in _PARTS:
        height, width = (int(size * part) // step * step for size in whole)
        if height and width:
            yield {"--size": f"{width}x{height}"}, {"height": height, "width": width}
