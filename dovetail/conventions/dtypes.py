"""The dtypes that a person names: objects, names, one for all components or one each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..compiler.errors import UsageError

AUTO = "auto"
"""Each component in the dtype of its files."""

_SMALLEST = 2
"""Bytes of a number in which models compute; no product of matrices is of smaller floats alone."""

_SHORT = {"fp8": "float8_e4m3fn", "fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}

Dtypes = torch.dtype | str | None | Mapping[str, "torch.dtype | str"]


def one_dtype(dtype: Dtypes, torch_dtype: Dtypes) -> Dtypes:
    """What was given of two names for one thing; raises UsageError where they say different things."""
    if dtype is not None and torch_dtype is not None and read_dtypes(dtype) != read_dtypes(torch_dtype):
        raise UsageError(f"dtype={dtype} and its older name torch_dtype={torch_dtype} contradict each other: give one")
    return torch_dtype if dtype is None else dtype


def read_dtypes(given: Any) -> Any:
    """One dtype, ``"auto"``, None, or a dict of them, out of what a person gave, in which dtypes may be names.

    >>> read_dtypes("bf16"), read_dtypes({"vae": "torch.float32", "default": torch.float16})
    (torch.bfloat16, {'vae': torch.float32, 'default': torch.float16})

    Raises UsageError for anything else.
    """
    if isinstance(given, Mapping):
        return {name: _read(one) for name, one in given.items()}
    return None if given is None else _read(given)


def _read(given: Any) -> torch.dtype | str:
    if isinstance(given, torch.dtype):
        return _floating(given, given)
    name = given.removeprefix("torch.") if isinstance(given, str) else ""
    if name == AUTO:
        return AUTO
    return _floating(getattr(torch, _SHORT.get(name, name), None), given)


def _floating(found: Any, given: Any) -> torch.dtype:
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"{given!r} is no floating dtype: give torch.bfloat16, 'float16', 'float32' or 'auto'")
    if found.itemsize < _SMALLEST:
        raise UsageError(
            f"{given!r} is a dtype to keep weights in, and nothing computes in it: give torch.bfloat16, and have "
            "weights packed (quant='transformer=f8'), or give such files (dovetail convert --type q8_0, weights=…)"
        )
    return found


def dtype_of(dtypes: Any, name: str) -> torch.dtype | str | None:
    """The dtype of a component; one that a dict leaves out gets its default, and else float32, as in diffusers."""
    if isinstance(dtypes, Mapping):
        found: torch.dtype | str = dtypes.get(name, dtypes.get("default", torch.float32))
        return found
    return dtypes  # type: ignore[no-any-return]


def without_auto(dtypes: Any) -> Any:
    """The dtypes as from_pretrained of diffusers takes them, which has no ``"auto"``."""
    if isinstance(dtypes, Mapping):
        return {name: one for name, one in dtypes.items() if one != AUTO} or None
    return None if dtypes == AUTO else dtypes
