"""Checks that a tokenizer has its files: without them transformers makes one that knows no word, and says nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from ...compiler.errors import UsageError, WeightError
from .building import class_of

_WHOLE = "tokenizer_file"
"""What transformers calls the one file that has all of a tokenizer."""
_OTHERS = ("tokenizer*.json", "*.model*", "tekken.json")
"""Files that transformers takes in the place of those that a class names."""
_SETTINGS = "tokenizer_config.json"


def check_tokenizer(folder: Path, name: str, library: str, class_name: str) -> None:
    """Checks that a tokenizer in a pipeline's folder has a vocabulary; other components pass.

    Raises WeightError where it has no folder, and UsageError where its folder lacks files.
    """
    if "Tokenizer" not in class_name:
        return
    home = folder / name
    if not home.is_dir():
        raise WeightError(
            f"{folder} has no {name}, which its model_index.json names: download it too, a few MB of text"
        )
    missing = _missing(home, class_of(library, class_name))
    if missing:
        raise UsageError(
            f"the tokenizer's folder {home} lacks {' and '.join(missing)}: download that folder whole, a few MB of "
            "text; plans need it too"
        )


def _missing(home: Path, cls: Any) -> list[str]:
    """The files that a tokenizer's class needs and its folder lacks: one that has all of it, or each of the others."""
    names: dict[str, str] = {}
    with contextlib.suppress(ImportError):  # a class whose package is not installed, which its library says better
        names = dict(getattr(cls, "vocab_files_names", {}))
    if any(path.name != _SETTINGS for pattern in _OTHERS for path in home.glob(pattern)):
        return []
    whole = names.pop(_WHOLE, "")
    missing = [name for name in names.values() if not (home / name).is_file()]
    if not names:
        return [whole] if whole else []
    if len(missing) == len(names) and whole:
        return [f"{whole} (or {' and '.join(missing)})"]
    return missing
