"""Finds the folder of a saved pipeline: on disk, or downloaded from the Hugging Face Hub without what is not needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ..compiler.errors import UsageError, WeightError
from .downloads import announcing

INDEX = "model_index.json"
OPTIONS = ("revision", "token", "cache_dir", "local_files_only")
"""The arguments of from_pretrained that say where on the Hub a repository is taken from."""
_OF_FILES = (*OPTIONS, "force_download")


def pipeline_folder(
    cls: Any,
    source: str | os.PathLike[str],
    variant: str | None,
    hub: Mapping[str, Any],
    given: Collection[str],
    with_files: Callable[[Mapping[str, Any]], Collection[str]] | None,
) -> Path:
    """The folder of a pipeline, downloaded when ``source`` names a repository.

    Args:
        cls: the pipeline class, whose ``download`` fetches a repository.
        variant: the variant of the weight files.
        hub: what of OPTIONS was given, and of the arguments that only ``download`` takes.
        given: components that are passed as objects: nothing of theirs is downloaded.
        with_files: takes what model_index.json says and tells the components whose weights lie in other files: of
            theirs config.json alone is downloaded. None where there are none.

    Raises UsageError when there is no such folder or repository.
    """
    folder = Path(source)
    if not folder.is_dir():
        folder = _without_what_is_replaced(cls, os.fspath(source), variant, hub, given, with_files)
    if not (folder / INDEX).is_file():
        raise UsageError(f"{folder} is no saved pipeline: it has no {INDEX}")
    return folder


def _without_what_is_replaced(
    cls: Any,
    name: str,
    variant: str | None,
    hub: Mapping[str, Any],
    given: Collection[str],
    with_files: Callable[[Mapping[str, Any]], Collection[str]] | None,
) -> Path:
    _check_name(name)
    replaced = with_files(remote_index(name, hub)) if with_files else ()
    folder = download(cls, name, variant, {**hub, **dict.fromkeys([*given, *replaced])})
    for part in replaced:
        _fetch(name, f"{part}/config.json", hub)
    return folder


def download(cls: Any, name: str, variant: str | None, options: Mapping[str, Any]) -> Path:
    """The folder of a repository that the ``download`` of a pipeline class has fetched; its size is said before.

    Raises UsageError when there is none such or the network fails, DoesNotFitError when the disk has not the room.
    """
    try:
        return Path(announcing(cls.download)(name, variant=variant, **options))
    except (OSError, ValueError) as error:
        raise UsageError(_cannot_download(name, error)) from error


def _cannot_download(what: str, error: Exception) -> str:
    """What is said where the Hub, the network or the name is at fault: the library's first words, and a way out."""
    why = (str(error).strip() or type(error).__name__).splitlines()[0].partition(" (")[0].rstrip(".")
    return f"cannot download {what}: {why}: check its name and the network, or name a folder"


def remote_index(name: str, hub: Mapping[str, Any]) -> dict[str, Any]:
    """What model_index.json of a repository says; only that file is downloaded."""
    _check_name(name)
    return read_index(_fetch(name, INDEX, hub))


def configs_of(name: str, hub: Mapping[str, Any]) -> Path:
    """The folder of a repository of which the configs and tokenizers are downloaded, and no weights."""
    import huggingface_hub

    _check_name(name)
    given = {key: hub[key] for key in _OF_FILES if key in hub}
    patterns = ["*.json", "*.txt", "*.model"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, **given))
    except (OSError, ValueError) as error:
        raise UsageError(_cannot_download(f"the configs of {name}", error)) from error
    return folder


def _check_name(name: str) -> None:
    """Raises UsageError for what can be the name of no repository."""
    if name.count("/") != 1 or name[0] in "./~":
        raise UsageError(f"no folder is called {name}: give one with {INDEX}, or a repository (owner/name)")


def _fetch(name: str, file: str, hub: Mapping[str, Any]) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(name, file, **{key: hub[key] for key in _OF_FILES if key in hub}))
    except (OSError, ValueError) as error:  # what the library raises for the Hub, the network and names
        raise UsageError(_cannot_download(f"{file} of {name}", error)) from error


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; raises WeightError when there is none."""
    try:
        read = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise WeightError(f"cannot read {path}: {why}: is the download complete?") from error
    if not isinstance(read, dict):
        raise WeightError(f"{path} is no JSON object: it holds a {type(read).__name__}: is the download complete?")
    return read


def read_index(path: Path) -> dict[str, Any]:
    """What a model_index.json says; raises WeightError where it is none, or names no class of a pipeline."""
    index = read_json(path)
    if not isinstance(index.get("_class_name"), str):
        raise WeightError(f"{path} names no class of a pipeline (_class_name): is the download complete?")
    return index
