"""Opens the weights that are to be converted, and says what they are of."""

from __future__ import annotations

import json
from pathlib import Path

from ..compiler.checkpoints.index import WeightIndex
from ..compiler.errors import UsageError, WeightError
from ..weights.files import open_weights


def open_source(path: Path) -> WeightIndex:
    """The index of a file, of several behind the JSON file that lists them, or of a component's folder.

    Raises:
        UsageError: nothing is there, or a whole pipeline.
        WeightError: no weights are there, or damaged ones.
    """
    if not path.exists():
        raise UsageError(f"there is no {path}: name a safetensors or GGUF file, or the folder of a component")
    if (path / "model_index.json").is_file():
        parts = sorted(config.parent.name for config in path.glob("*/config.json"))
        raise UsageError(f"{path} is a whole pipeline: convert one component at a time ({', '.join(parts)})")
    index = open_weights(path)
    if not index:
        raise WeightError(f"{path} holds no weights: there is nothing to convert")
    return index


def architecture_of(path: Path) -> str:
    """What a component's config says it is, in lower case: the class that diffusers or transformers has for it."""
    folder = path if path.is_dir() else path.parent
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        names = [config.get("_class_name"), *(config.get("architectures") or []), config.get("model_type")]
    except (OSError, ValueError, AttributeError, TypeError):
        return "unknown"
    return next((name.lower() for name in names if isinstance(name, str) and name), "unknown")
