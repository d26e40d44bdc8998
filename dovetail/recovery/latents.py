"""Files of latents: what a VAE was to decode, with the call that made it, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compiler.atomic_write import written_beside
from ..compiler.errors import UsageError

if TYPE_CHECKING:
    import torch

_FORMAT = "dovetail latents 1"


@dataclass(frozen=True)
class Latents:
    """Latents by component and number, the class of the pipeline that made them, and the arguments of its call."""

    tensors: Mapping[str, torch.Tensor]
    pipeline: str
    call: Mapping[str, Any]


def beside(output: Path) -> Path:
    """Where latents go whose picture was to go to a file."""
    return output.with_suffix(".latents.safetensors")


def save_latents(path: Path, latents: Latents) -> Path:
    """Writes latents, whole or not at all; returns the path. Raises OSError where they cannot be written."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in latents.tensors.items()}
    call = json.dumps({name: value for name, value in latents.call.items() if _is_plain(value)})
    with written_beside(path) as draft:
        draft.write_bytes(save(tensors, {"format": _FORMAT, "pipeline": latents.pipeline, "call": call}))
    return path


def read_latents(path: Path) -> Latents:
    """Reads latents; raises UsageError for a file that holds none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about.get("format") != _FORMAT:
            raise UsageError(f"{path} holds no latents that dovetail saved")
        call = json.loads(about["call"])
        if not isinstance(call, dict) or not isinstance(call.get("seed", 0), int):
            raise UsageError(f"{path} does not say which call its latents are of")
        return Latents(tensors, about["pipeline"], call)
    except FileNotFoundError as error:
        raise UsageError(f"there are no latents {path}: a call whose decoding fails writes them") from error
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise UsageError(f"cannot read latents from {path}: {error}") from error


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool, type(None)))
