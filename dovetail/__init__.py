"""Compiles a diffusion model once, so that it runs on whatever devices you have."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiling import compile
    from .components.compiled import CompiledModule
    from .pipelines.compile_pipeline import compile_pipeline, undo
    from .pipelines.loading.saved import load_pipeline
    from .pipelines.loading.single_file import load_single_file
    from .pipelines.pipeline import CompiledPipeline
    from .saved import load

__version__ = "0.1.0"

# In a checkout the three folders stand beside this one and not inside it.
if not (Path(__file__).parent / "compiler").is_dir():
    __path__.append(str(Path(__file__).parent.parent))

_HOMES = {
    "CompiledModule": "components.compiled",
    "CompiledPipeline": "pipelines.pipeline",
    "compile": "compiling",
    "compile_pipeline": "pipelines.compile_pipeline",
    "load": "saved",
    "load_pipeline": "pipelines.loading.saved",
    "load_single_file": "pipelines.loading.single_file",
    "undo": "pipelines.compile_pipeline",
}

__all__ = [
    "CompiledModule",
    "CompiledPipeline",
    "__version__",
    "compile",
    "compile_pipeline",
    "load",
    "load_pipeline",
    "load_single_file",
    "undo",
]


def __getattr__(name: str) -> object:
    """Imports a public name when it is first asked for, so that importing dovetail costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dovetail' has no attribute {name!r}")
    from .conventions.quiet_imports import without_notices

    with without_notices():
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    """The public names, whether they were asked for or not, so that completion shows them."""
    return sorted(__all__)
