"""Finds the weights that are to be converted: in a file, behind the index of several, or in a component's folder."""

from __future__ import annotations

import json
from pathlib import Path

from ..compiler.errors import UsageError, WeightError
from ..compiler.weights import WeightIndex

_FILES = (".safetensors", ".gguf")


def open_source(path: Path) -> WeightIndex:
    """The index of what a path names; raises UsageError when it names no weights, WeightError when they are damaged."""
    if not path.exists():
        raise UsageError(f"there is no {path}: name a safetensors or GGUF file, or the folder of a component")
    if path.is_dir():
        path = _only_one(path)
    if path.suffix.lower() == ".json":
        return WeightIndex.of_shards(path)
    if path.suffix.lower() not in _FILES:
        raise UsageError(f"{path} holds no weights: name a safetensors or GGUF file, an index of several, or a folder")
    index = WeightIndex.of_file(path)
    if not index:
        raise WeightError(f"{path} holds no weights: there is nothing to convert")
    return index


def _only_one(folder: Path) -> Path:
    """The file with the weights of a component: the index of several before any single file."""
    if (folder / "model_index.json").is_file():
        parts = sorted(config.parent.name for config in folder.glob("*/config.json"))
        raise UsageError(f"{folder} is a whole pipeline: convert one component at a time ({', '.join(parts)})")
    found = sorted(folder.glob("*.safetensors.index*.json"))
    found = found or sorted(file for suffix in _FILES for file in folder.glob(f"*{suffix}"))
    if not found:
        raise UsageError(f"{folder} has neither safetensors nor GGUF files: name a component's folder, or a file")
    if len(found) > 1:
        raise UsageError(f"{folder} has several files of weights: name one of {', '.join(file.name for file in found)}")
    return found[0]


def architecture_of(path: Path) -> str:
    """What a component's config says it is, in lower case: the class that diffusers or transformers has for it."""
    folder = path if path.is_dir() else path.parent
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        names = [config.get("_class_name"), *(config.get("architectures") or []), config.get("model_type")]
    except (OSError, ValueError, AttributeError, TypeError):
        return "unknown"
    return next((name.lower() for name in names if isinstance(name, str) and name), "unknown")
