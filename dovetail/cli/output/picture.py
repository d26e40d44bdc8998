"""Writes what a pipeline made: a picture, or the frames of a video."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ...compiler.atomic_write import written_beside
from ...compiler.errors import DovetailError, UsageError

FILM = ".mp4"
MOVING = (".gif", ".webp", FILM)
FPS = 16


def save(result: Any, path: Path, fps: float = FPS) -> list[Path]:
    """Writes the first picture of a result, or its first video, as `save_frames` does.

    Raises DovetailError when the result holds no pictures.
    """
    return save_frames(frames_of(result), path, fps)


def save_frames(frames: Sequence[Image.Image], path: Path, fps: float = FPS) -> list[Path]:
    """Writes a picture, or the frames of a video: as one file where that moves, else as a file a frame.

    Where the disk is full or gone by now, what was painted goes to a folder for temporary files, and the error says so.
    Raises DovetailError for that.
    """
    try:
        return _save(frames, path, fps)
    except OSError as error:
        if error.errno is None:  # a format that cannot hold such a picture
            raise
        why = f"cannot write {path}: {error.strerror}"
        raise DovetailError(f"{why}; what was painted is in {_save_elsewhere(frames, path, fps)}") from error


def _save_elsewhere(frames: Sequence[Image.Image], path: Path, fps: float) -> str:
    try:
        folder = Path(tempfile.mkdtemp(prefix="dovetail-"))
        return ", ".join(map(str, _save(frames, folder / f"out{path.suffix}", fps)))  # the name may be what failed
    except OSError as error:
        return f"no file either ({error.strerror}): make room and paint it again"


def _save(frames: Sequence[Image.Image], path: Path, fps: float) -> list[Path]:
    if len(frames) == 1 or path.suffix.lower() in MOVING:
        return [_write(frames, path, fps)]
    return [_write([frame], numbered(path, index), fps) for index, frame in enumerate(frames)]


def numbered(path: Path, index: int) -> Path:
    """The file of one of several pictures."""
    return path.with_stem(f"{path.stem}-{index:03}")


def other_size(found: tuple[int, int], width: int | None, height: int | None) -> str:
    """What to say of a picture whose size was found to be another than was asked for; empty where it is that."""
    asked = width or found[0], height or found[1]
    if found == asked:
        return ""
    return (
        f"{asked[0]} x {asked[1]} was asked for and {found[0]} x {found[1]} is painted: this pipeline rounds sizes to "
        "what its models can do"
    )


def check_suffix(path: Path) -> None:
    """Raises UsageError, before any work is done, when pictures cannot be written to such a file."""
    if path.suffix.lower() == FILM:
        _check_film(path)
        return
    known = Image.registered_extensions()
    if known.get(path.suffix.lower()) not in Image.SAVE:
        raise UsageError(f"cannot write pictures to {path}: name a file such as out.png, or out.mp4 for a video")


def _check_film(path: Path) -> None:
    if importlib.util.find_spec("imageio") is None or importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError(
            f"{path} needs imageio and its ffmpeg: pip install 'dovetail-diffusion[video]', or name a .gif or .webp"
        )


def frames_of(result: Any) -> list[Image.Image]:
    """The first picture of a result, or the frames of its first video; raises DovetailError where it has neither."""
    if getattr(result, "images", None) is not None:
        return [_picture(result.images[0])]
    if getattr(result, "frames", None) is not None:
        return [_picture(frame) for frame in result.frames[0]]
    raise DovetailError(f"a {type(result).__name__} holds neither images nor frames: use the pipeline from Python")


def _picture(frame: Any) -> Image.Image:
    if isinstance(frame, Image.Image):
        return frame
    values = np.asarray(frame)
    return Image.fromarray(values if values.dtype == np.uint8 else (values * 255).round().clip(0, 255).astype("uint8"))


def _write(frames: Sequence[Image.Image], path: Path, fps: float) -> Path:
    with written_beside(path) as draft:
        if path.suffix.lower() == FILM:
            _write_film(frames, draft, fps)
        else:
            kind = Image.registered_extensions()[path.suffix.lower()]
            more = {"save_all": True, "append_images": frames[1:], "duration": 1000 / fps, "loop": 0}
            frames[0].save(draft, format=kind, **(more if len(frames) > 1 else {}))
    return path


def _write_film(frames: Sequence[Image.Image], path: Path, fps: float) -> None:
    """Writes H.264, whose sides are even: of a frame with an odd one, the last row or column is left out."""
    from diffusers.utils import export_to_video

    even = [frame.crop((0, 0, max(frame.width // 2 * 2, 2), max(frame.height // 2 * 2, 2))) for frame in frames]
    export_to_video([frame.convert("RGB") for frame in even], str(path), fps, macro_block_size=2)
