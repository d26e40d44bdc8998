"""What a trace depends on beside the model and the call: versions of all that is installed, settings, the machine."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from ..compiler.frontend.autocast import autocast_state
from ..compiler.switches import read_switches

_PREFIXES = ("DIFFUSERS_", "TRANSFORMERS_", "TORCH_", "PYTORCH_", "TORCHDYNAMO_", "PEFT_", "USE_", "XFORMERS_")
_OF_NO_EFFECT = frozenset({"TORCH_LOGS", "TORCH_HOME", "TRANSFORMERS_CACHE", "TORCH_TRACE"})
_SOURCES = ("cache", "components", "conventions", "lora")


def surroundings() -> tuple[Any, ...]:
    """What is so on this machine and in this process, in plain words."""
    return (*_of_process(), sorted((name, value) for name, value in os.environ.items() if _matters(name)))


def call_settings(kind: str) -> tuple[Any, ...]:
    """The settings of PyTorch under which a call is traced for a kind of device, in plain words."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return (*read_switches(), *modes, autocast_state(kind), kind)


def is_within_modes() -> bool:
    """Whether modes of somebody else act on all operations now, as a default device does."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def _matters(name: str) -> bool:
    return name.startswith(_PREFIXES) and name not in _OF_NO_EFFECT


@functools.cache
def _of_process() -> tuple[Any, ...]:
    """What does not change while a process runs."""
    return (
        sys.version,
        platform.machine(),
        torch.__version__,
        torch.version.git_version,
        torch.backends.cpu.get_cpu_capability(),
        sources(),
        _installed(),
    )


def sources() -> str:
    """A digest of dovetail's own files that take part in a trace, by content."""
    face = Path(__file__).parents[1]
    compiler = face / "compiler"
    found = hashlib.blake2b(digest_size=16)
    for folder in (compiler if compiler.is_dir() else face.parent / "compiler", *(face / name for name in _SOURCES)):
        for file in sorted(folder.rglob("*.py")):
            found.update(repr((file.name, file.read_bytes())).encode())
    return found.hexdigest()


def _installed() -> list[str]:
    """The names of all installed packages with their versions, as their folders say them."""
    found: set[str] = set()
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except OSError:
            continue
        found.update(name for name in names if name.endswith((".dist-info", ".egg-info", ".egg-link")))
    return sorted(found)
