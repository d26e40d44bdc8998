"""What kinds of arguments public functions take, asked before they do anything: a wrong one gets a sentence."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from ..compiler.errors import UsageError

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Kind(NamedTuple):
    """What an argument may be, and that in words."""

    accepts: Callable[[Any], bool]
    words: str


def _is_path(value: Any) -> bool:
    if not isinstance(value, (str, os.PathLike)):
        return False
    text = os.fspath(value)
    if not isinstance(text, str) or "\0" in text:
        return False
    return len(os.fsencode(text)) < 4096 and all(len(os.fsencode(part)) < 256 for part in PurePath(text).parts)


def _is_files(value: Any) -> bool:
    from ..compiler.checkpoints.index import WeightIndex

    several = isinstance(value, (list, tuple)) and bool(value) and all(map(_is_path, value))
    return isinstance(value, WeightIndex) or _is_path(value) or several


def _is_named(value: Any, accepts: Callable[[Any], bool] = lambda _: True) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and accepts(one) for key, one in value.items())


def _is_pipeline(value: Any) -> bool:
    named = not isinstance(value, type) and isinstance(getattr(value, "components", None), Mapping)
    return named and hasattr(value, "__dict__")


def _is_module(value: Any) -> bool:
    from torch import nn

    return isinstance(value, nn.Module)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_rig(value: Any) -> bool:
    from ..compiler.devices.rig import Rig

    return isinstance(value, (str, Rig))


def _is_passes(value: Any) -> bool:
    from ..passes.infra.base import Pass

    return isinstance(value, str) or (isinstance(value, (list, tuple)) and all(isinstance(one, Pass) for one in value))


def _is_functions(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(callable, value))


def _is_class(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "from_pretrained")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


PATH = Kind(_is_path, "a path")
SOURCE = Kind(_is_path, "a folder, or a name on the Hub; compile_pipeline takes pipelines")
FILES = Kind(_is_files, "a path of a file of weights, or a list of its parts")
NAMED_FILES = Kind(
    functools.partial(_is_named, accepts=_is_files), "a dict such as {'transformer': 'x.gguf'}, of component and files"
)
WEIGHTS = Kind(
    lambda value: _is_module(value) or isinstance(value, Mapping) or _is_files(value),
    "a module, its state dict, or files of weights",
)
MODULE = Kind(_is_module, "a torch.nn.Module; compile_pipeline takes pipelines, and load_pipeline folders")
PIPELINE = Kind(_is_pipeline, "a pipeline of diffusers; load_pipeline takes folders, and compile modules")
TENSORS = Kind(functools.partial(_is_named, accepts=_is_tensor), "a dict of name and tensor, as latents has it")
_NAMED = Kind(_is_named, "a dict with names as keys")
_TEXT = Kind(_is_text, "a text")

_KINDS = {
    "args": Kind(lambda value: isinstance(value, (list, tuple)) or _is_tensor(value), "a tuple of example inputs"),
    "kwargs": _NAMED,
    "dynamic_shapes": _NAMED,
    "components": _NAMED,
    "quant": Kind(
        lambda value: _is_text(value) or _is_named(value), "types, such as 'transformer=q8_0,te=f8' or a dict of them"
    ),
    "max_memory": Kind(lambda value: isinstance(value, Mapping), "a dict of device and size"),
    "rig": Kind(_is_rig, "a Rig, or a text such as cuda0=24GiB,cuda1=16GiB"),
    "passes": Kind(_is_passes, "a text of passes, or a list of them"),
    "callbacks": Kind(_is_functions, "a list of functions, called after passes"),
    "lora_apply_mode": _TEXT,
    "plans": PATH,
    "source": PATH,
    "config": PATH,
    "cache_dir": PATH,
    "path": PATH,
    "variant": _TEXT,
    "revision": _TEXT,
    "token": Kind(lambda value: isinstance(value, (str, bool)), "a text, or whether the one that is stored is taken"),
    "pipeline_class": Kind(_is_class, "a class of pipelines"),
    "custom_pipeline": _TEXT,
    "custom_revision": _TEXT,
}


def checked(**kinds: Kind) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Has a function raise UsageError for an argument of another kind than its name says; None is left to defaults.

    ``kinds`` are those of arguments that mean something else in this function.
    """

    def around(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        optional = {one.name for one in signature.parameters.values() if one.default is None}
        known = {**_KINDS, **kinds}

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise UsageError(f"{function.__name__}: {error}") from None
            others = given.get("others", {})
            given = {**given, **others}
            for name in given.keys() & known.keys():
                value = given[name]
                if not (value is None and name in {*optional, *others}) and not known[name].accepts(value):
                    raise UsageError(
                        f"{function.__name__} takes for {name} {known[name].words}, and no {type(value).__name__}"
                        + (f" such as {value[:40]!r}" if isinstance(value, str) else "")
                    )
            return function(*args, **kwargs)

        return cast("Callable[_P, _R]", call)

    return around
