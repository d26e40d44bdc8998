"""`dovetail env`: what a bug report needs to say."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from ... import __version__
from ...compiler.devices.rig import Rig
from ...compiler.units import format_bytes
from ..options.shared import Debug, Json
from ..output.results import print_json, print_table
from .devices import facts

PACKAGES = (
    "torch", "diffusers", "transformers", "accelerate", "safetensors", "gguf", "tokenizers", "numpy", "scipy",
    "networkx", "pydantic", "typer", "rich",
)  # fmt: skip


def env(json: Json = False, debug: Debug = False) -> None:
    """Print versions and devices, for bug reports."""
    machine = {
        "dovetail": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }
    packages = {name: _version(name) for name in PACKAGES}
    rig = Rig.detect()
    if json:
        print_json({**machine, "packages": packages, "devices": [facts(*one) for one in rig.memory.items()]})
        return
    devices = [
        (d.name, f"{m.label or d.kind}, {format_bytes(m.free)} free of {format_bytes(m.total)}")
        for d, m in rig.memory.items()
    ]
    print_table(
        ("what", "which"), [*machine.items(), *((k, v or "not installed") for k, v in packages.items()), *devices]
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
