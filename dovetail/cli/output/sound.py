"""Writes the sound that a pipeline made along with a video."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np

from ...compiler.atomic_write import written_beside
from ...compiler.errors import DovetailError

SOUND = ".wav"
_LARGEST = 2**15 - 1
_CHANNELS = 8
"""So many channels at most; what there is more of are samples."""


def save_sound(audio: Any, path: Path, rate: int | None) -> Path:
    """Writes the first sound of a result beside its video, as 16-bit samples, ``rate`` of them a second.

    Raises DovetailError where it cannot be written, and says why.
    """
    wanted = path.with_suffix(SOUND)
    if rate is None:
        raise DovetailError("no component says how many samples of it are a second (sampling_rate)")
    samples = _samples(audio)
    try:
        with written_beside(wanted) as draft, wave.open(str(draft), "wb") as file:
            file.setnchannels(samples.shape[1])
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(samples.tobytes())
    except OSError as error:
        raise DovetailError(f"cannot write {wanted}: {error.strerror}") from error
    return wanted


def rate_of(pipe: Any) -> int | None:
    """How many samples a second the sound of a pipeline has, as its vocoder says; None where none does."""
    config = getattr(getattr(pipe, "vocoder", None), "config", {})
    found = (getattr(config, name, None) for name in ("output_sampling_rate", "sampling_rate"))
    return next((int(rate) for rate in found if rate), None)


def _samples(audio: Any) -> np.ndarray[Any, np.dtype[np.int16]]:
    """Samples by channels, in 16 bits, of the first sound; what is beyond the range is cut."""
    first = audio[0] if isinstance(audio, (list, tuple)) or audio.ndim > 1 else audio
    values = np.asarray(first.detach().float().cpu() if hasattr(first, "detach") else first, dtype=np.float32)
    values = np.atleast_2d(values.squeeze())
    if values.ndim > 2 or min(values.shape) > _CHANNELS or not values.size:
        raise DovetailError(f"it has the shape {list(values.shape)}, which is not channels by samples")
    by_sample = values.T if values.shape[0] <= _CHANNELS else values
    return (np.nan_to_num(by_sample).clip(-1, 1) * _LARGEST).round().astype("<i2")
