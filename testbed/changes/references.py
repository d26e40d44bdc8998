"""What eager diffusers yields for a change: pictures, and the numbers that its modules hold; kept in files."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from .change import Change, Step, do
from .models import align, modules

Digests = dict[str, str]
"""A short text for each tensor: its dtype, shape and a digest of its numbers."""


@dataclass(frozen=True)
class Reference:
    """What eager yields after a step; ``exact`` is its picture in single precision, where it computes in half."""

    picture: torch.Tensor | None
    exact: torch.Tensor | None
    held: Digests
    saved: Digests
    error: str = ""


def references(change: Change, folder: Path) -> list[Reference]:
    """What eager yields after each step of a change."""
    file = folder / "references" / f"{change.name}.pt"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        made = [_made(change, steps, folder) for steps in change.expected]
        torch.save(made, own := file.with_suffix(f".{id(made)}"))
        own.rename(file)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


def unchanged(change: Change, folder: Path) -> torch.Tensor:
    """Eager's picture before anything is changed."""
    file = folder / "references" / f"{change.model.name} unchanged.pt"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        pipe = change.model.eager(folder)
        align(pipe)
        torch.save(change.model.paint(pipe), own := file.with_suffix(f".{id(change)}"))
        own.rename(file)
    return torch.load(file)  # type: ignore[no-any-return]


def _made(change: Change, steps: tuple[Step, ...], folder: Path) -> Reference:
    pipe = change.model.eager(folder)
    try:
        for step in steps:
            do(step, pipe, folder)
        held, saved = digests_held(pipe), digests_saved(pipe)
        align(pipe)
        picture = change.model.paint(pipe, **change.call)
    except Exception as error:
        return Reference(None, None, {}, {}, f"{type(error).__name__}: {error}")
    exact = None
    if picture.dtype in (torch.float16, torch.bfloat16):
        for part in modules(pipe).values():
            part.float()
        exact = change.model.paint(pipe, **change.call)
    return Reference(picture.clone(), exact, held, saved)


def digests_held(pipe: Any) -> Digests:
    """What `state_dict()` of each component gives."""
    return _digests({name: part.state_dict() for name, part in modules(pipe).items()})


def digests_saved(pipe: Any) -> Digests:
    """What `save_pretrained` of each component writes; nothing where it refuses, as it does for tied weights."""
    try:
        return _digests({name: _read_back(part) for name, part in modules(pipe).items()})
    except Exception:
        return {"all": "cannot be saved"}


def digests_pickled(pipe: Any) -> Digests:
    """What is read back of each component's `state_dict()` when torch saved it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "state.pt"
        torch.save({name: part.state_dict() for name, part in modules(pipe).items()}, file)
        return _digests(torch.load(file, weights_only=True))


def norms(pipe: Any) -> list[float]:
    """The norm of each parameter, read one after the other."""
    return [float(one.detach().double().norm()) for part in modules(pipe).values() for one in part.parameters()]


def _read_back(part: nn.Module) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        part.save_pretrained(folder)  # type: ignore[operator]
        files = sorted(Path(folder).glob("*.safetensors"))
        return {name: one for file in files for name, one in load_file(file).items()}


def _digests(states: dict[str, dict[str, torch.Tensor]]) -> Digests:
    return {f"{part}.{name}": _digest(one) for part, state in states.items() for name, one in state.items()}


def _digest(tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        return "no data"
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(numbers).hexdigest()[:16]}"
