"""Tiles of VAEs: diffusers' own tiling, with tile sizes that fit.

A VAE that decodes in tiles holds the activations of one tile at a time, and blends the tiles where they overlap, so
that the picture differs slightly from one decoded whole. Sizes are in pixels of the picture. Diffusers keeps them in
attributes of the VAE: one size for both sides with that of the latents beside it, or a height and a width with strides;
of some video VAEs also a number of frames.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..compiler.errors import UsageError

AUTO, ON, OFF = "auto", "on", "off"
_SIZES = re.compile(r"([0-9]+)(?:x([0-9]+))?(?:x([0-9]+))?")
_FRACTIONS = (3 / 4, 1 / 2, 3 / 8, 1 / 4, 3 / 16, 1 / 8, 1 / 16)
_LEAST = 8
"""Tiles are at least so many latents wide and high."""
_PREFIXES = ("tile_", "use_tiling", "use_framewise_")


@dataclass(frozen=True)
class Tile:
    """The size of a tile in pixels, and in frames of a video where those are tiled too."""

    height: int
    width: int
    frames: int | None = None

    def __str__(self) -> str:
        return f"{self.width}x{self.height}" + (f" and {self.frames} frames" if self.frames else "")


Asked = Tile | str
"""A tile, or ``auto`` (where the whole does not fit), ``on`` (with the VAE's own sizes), ``off``."""


def parse_tiling(value: Any) -> Asked:
    """What was asked: ``auto``, ``on``, ``off``, a bool, a number of pixels, or ``WxH`` or ``WxHxFRAMES``.

    Raises UsageError for anything else.
    """
    if value is None or isinstance(value, bool):
        return {None: AUTO, True: ON, False: OFF}[value]
    if isinstance(value, Tile):
        return value
    text = str(value).strip().lower()
    found = _SIZES.fullmatch(text)
    if text in (AUTO, ON, OFF, ""):
        return text or AUTO
    if not found or not all(int(size) for size in found.groups() if size):
        raise UsageError(f"VAE tiling {value!r} is none of: auto, on, off, a size in pixels (512), WxH, or WxHxFRAMES")
    width, height, frames = found.groups()
    return Tile(int(height or width), int(width), int(frames) if frames else None)


def typed(asked: Asked) -> str:
    """What `parse_tiling` reads as this."""
    if not isinstance(asked, Tile):
        return asked
    return "x".join(str(size) for size in (asked.width, asked.height, asked.frames) if size)


def can_be_tiled(module: Any) -> bool:
    """Whether a VAE has tiling whose sizes can be set."""
    return hasattr(module, "enable_tiling") and (
        hasattr(module, "tile_latent_min_size") or hasattr(module, "tile_sample_min_height")
    )


def settings(module: Any) -> dict[str, Any]:
    """What a VAE says of its tiles, to be put back by `put_settings`."""
    return {name: value for name, value in vars(module).items() if name.startswith(_PREFIXES)}


def put_settings(module: Any, before: Mapping[str, Any]) -> None:
    """Puts back what `settings` gave."""
    for name, value in before.items():
        if getattr(module, name) is not value:
            setattr(module, name, value)


def ratio_of(module: Any) -> int:
    """How many pixels a latent is wide."""
    if hasattr(module, "tile_latent_min_size"):
        return max(1, round(float(module.tile_sample_min_size) / float(module.tile_latent_min_size)))
    known = getattr(module, "spatial_compression_ratio", None)
    if known:
        return int(known)
    if getattr(module, "tile_latent_min_height", None):
        return max(1, round(float(module.tile_sample_min_height) / float(module.tile_latent_min_height)))
    return int(2 ** (len(getattr(module.config, "block_out_channels", (0,) * 4)) - 1))


def tile_vae(module: Any, tile: Asked) -> None:
    """Has a VAE encode and decode in tiles of a size, or ``on`` in those that it has itself, or ``off``."""
    if tile == OFF:
        module.use_tiling = False
        return
    module.use_tiling = True
    if not isinstance(tile, Tile):
        return
    ratio = ratio_of(module)
    if hasattr(module, "tile_latent_min_size"):
        latents = max(4, min(tile.height, tile.width) // ratio // 4 * 4)
        module.tile_latent_min_size, module.tile_sample_min_size = latents, latents * ratio
        return
    for side, size in (("height", tile.height), ("width", tile.width)):
        _set_side(module, side, max(2, size // ratio) * ratio, ratio)
    if tile.frames and hasattr(module, "tile_sample_min_num_frames"):
        step = int(getattr(module, "temporal_compression_ratio", 1))
        _set_side(module, "num_frames", max(2, tile.frames // step) * step, step)
        for name in ("use_framewise_encoding", "use_framewise_decoding"):
            if hasattr(module, name):
                setattr(module, name, True)


def tile_of(module: Any) -> Tile:
    """The size of a VAE's tiles as it is set."""
    side = getattr(module, "tile_sample_min_size", 0)
    height, width = (int(getattr(module, f"tile_sample_min_{name}", side)) for name in ("height", "width"))
    in_time = getattr(module, "use_framewise_decoding", False)
    return Tile(height, width, getattr(module, "tile_sample_min_num_frames", None) if in_time else None)


def _set_side(module: Any, side: str, size: int, ratio: int) -> None:
    """Sets one side of the tiles; their stride stays in the same proportion to it."""
    stride, before = f"tile_sample_stride_{side}", getattr(module, f"tile_sample_min_{side}")
    setattr(module, f"tile_sample_min_{side}", size)
    if hasattr(module, stride):
        part = size * getattr(module, stride) // before
        setattr(module, stride, max(1, part // ratio) * ratio)
    if hasattr(module, f"tile_latent_min_{side}"):
        setattr(module, f"tile_latent_min_{side}", size // ratio)


def candidates(module: Any, latents: Sequence[int]) -> list[Tile]:
    """Tiles for latents of a shape (…, height, width), from the largest to the smallest; of a video in time too."""
    ratio, (height, width) = ratio_of(module), latents[-2:]
    side = max(height, width)
    sizes = [max(_LEAST, int(side * part) // 4 * 4) for part in _FRACTIONS]
    found = [Tile(size * ratio, size * ratio) for size in dict.fromkeys(sizes) if size < side]
    if len(latents) < 5 or not hasattr(module, "tile_sample_min_num_frames") or not found:
        return found
    step = int(getattr(module, "temporal_compression_ratio", 1))
    frames = [latents[-3] // part * step for part in (2, 4, 8) if latents[-3] // part >= 2]
    return [*found, *(Tile(found[-1].height, found[-1].width, count) for count in frames)]
