"""Finds a module's weights in a file, whatever names the file has for them.

Tried in this order, and the first that has every weight of the module is it: the library's own names, old ones too;
the same behind a prefix, as one file for a whole pipeline has them; names as published, through diffusers' converter
for the class.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .compiler.errors import WeightError
from .runtime.weights import tensors_of_module
from .single_file import Arranged, Lacking, Layout, as_stored, converted

_ORIGINAL = "model.diffusion_model."


def find_weights(module: nn.Module, shapes: Mapping[str, tuple[int, ...]], where: Path) -> Layout | None:
    """Every weight of a module, under its first name, as pieces of what a file stores.

    None when the module's library does more than rename what the file has, and only it can load that.

    Raises:
        WeightError: the file is for another module, lacks a weight, or has one in another shape or arrangement.
    """
    wanted = names_of_weights(module)
    best: tuple[int, Layout] = (0, {})
    lacking: list[str] = []
    for layout in _layouts(module, as_stored(shapes), lacking):
        if layout is None:
            return None
        fitting = [name for name, names in wanted.items() if _take(module, names, layout)]
        if len(fitting) == len(wanted):
            return {name: _take(module, names, layout) or layout[name] for name, names in wanted.items()}
        best = max(best, (len(fitting), layout), key=lambda one: one[0])
    if lacking and not best[0]:
        raise WeightError(f"{where} lacks {lacking[0]} of {type(module).__name__}: download it again")
    raise _misfit(module, wanted, best[1], shapes, where)


def names_of_weights(module: nn.Module) -> dict[str, list[str]]:
    """The names of each weight that a checkpoint of the module holds, by the first of them."""
    saved = module.state_dict(keep_vars=True)
    names: dict[int, list[str]] = {}
    for name, tensor in tensors_of_module(module).items():
        if name in saved:
            names.setdefault(id(tensor), []).append(name)
    return {own[0]: own for own in names.values()}


def _take(module: nn.Module, names: list[str], layout: Layout) -> Arranged | None:
    """A weight under any of its names, in the module's shape; None when it is not there so."""
    found = next((layout[name] for name in names if name in layout), None)
    fits = found and found.pieces is not None
    return found.shaped(_shape_of(module, names[0])) if found and fits else None


def _shape_of(module: nn.Module, name: str) -> tuple[int, ...]:
    path, _, key = name.rpartition(".")
    return tuple(getattr(module.get_submodule(path), key).shape)


def _layouts(module: nn.Module, stored: Layout, lacking: list[str]) -> Iterator[Layout | None]:
    """The layouts that a file may have; None for one that only the module's library can read.

    Notes what the file lacks of a layout that it else has.
    """
    for layout in (stored, *_without_prefix(module, stored)):
        yield _under_library_names(module, layout)
    convert = _converter_of(module)
    bare = {name.removeprefix(_ORIGINAL): weight for name, weight in stored.items() if name.startswith(_ORIGINAL)}
    for layout in (stored, bare, {_ORIGINAL + name: weight for name, weight in stored.items()}):
        try:
            yield converted(convert, layout) if convert else {}
        except Lacking as error:
            lacking.append(str(error))


def _without_prefix(module: nn.Module, stored: Layout) -> Iterator[Layout]:
    """The weights behind each prefix that any of the file's names has before a name of the module."""
    first = "." + next(iter(names_of_weights(module)), "")
    for prefix in dict.fromkeys(name.removesuffix(first) + "." for name in stored if name.endswith(first)):
        yield {name.removeprefix(prefix): weight for name, weight in stored.items() if name.startswith(prefix)}


def _under_library_names(module: Any, layout: Layout) -> Layout | None:
    if _is_of("diffusers", "ModelMixin", module):
        named = dict(layout)
        module._fix_state_dict_keys_on_load(named)
        return named
    if _is_of("transformers", "PreTrainedModel", module):
        names = _transformers_names(module, layout)
        return None if names is None else {names[name]: weight for name, weight in layout.items()}
    return layout


def _is_of(library: str, name: str, module: nn.Module) -> bool:
    """Whether a module is of a library's base class; what was never imported is the class of nothing."""
    return library in sys.modules and isinstance(module, getattr(importlib.import_module(library), name))


def _transformers_names(module: Any, layout: Layout) -> dict[str, str] | None:
    """The names under which transformers would load what the files hold; None where it would change tensors too."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    steps = get_model_conversion_mapping(module)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    state = module.state_dict()
    names = {}
    for old in layout:
        new, converted = rename_source_key(old, renamings, converters, module.base_model_prefix, state)
        if new not in state and old in state:
            new, converted = rename_source_key(old, [], [], module.base_model_prefix, state)
        if converted is not None:
            return None
        names[old] = new
    return names


def _converter_of(module: Any) -> Any:
    """Diffusers' function from published names to its own, for the class of a module."""
    if not _is_of("diffusers", "ModelMixin", module):
        return None
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    known = (SINGLE_FILE_LOADABLE_CLASSES.get(cls.__name__) for cls in type(module).__mro__)
    entry = next(filter(None, known), None)
    return entry and functools.partial(_convert, entry["checkpoint_mapping_fn"], dict(module.config))


def _convert(function: Any, config: dict[str, Any], checkpoint: dict[str, Any]) -> Any:
    return function(checkpoint=checkpoint, config=config)


def _misfit(
    module: nn.Module,
    wanted: Mapping[str, list[str]],
    layout: Layout,
    shapes: Mapping[str, tuple[int, ...]],
    where: Path,
) -> WeightError:
    """What is wrong with a file that does not have what a module needs, in its most fitting layout."""
    cls = type(module).__name__
    found = {name: next((layout[own] for own in names if own in layout), None) for name, names in wanted.items()}
    lost = [name for name, weight in found.items() if weight is None]
    if not layout or len(lost) == len(wanted):
        return WeightError(f"{where} is not for {cls}: {_likeness(shapes)}: give it to another component, or another file")
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return WeightError(f"{where} lacks {lost[0]}{more} of {cls}: download it again")
    for name, weight in found.items():
        shape = _shape_of(module, name)
        if weight is not None and weight.shaped(shape) is None:
            return WeightError(
                f"{where} has {name} as {list(weight.shape)}, {cls} needs {list(shape)}: the files belong to another "
                "configuration"
            )
    odd = next(name for name, weight in found.items() if weight is not None and weight.pieces is None)
    return WeightError(
        f"{where} stores {odd} of {cls} in another order of its numbers, which cannot be read piece by piece: "
        "give the component's own folder, or convert the file with diffusers first"
    )


def _likeness(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What a file seems to be, by diffusers' knowledge of published checkpoints, or its first names."""
    import torch
    from diffusers.loaders.single_file_utils import (
        CHECKPOINT_KEY_NAMES,
        DIFFUSERS_DEFAULT_PIPELINE_PATHS,
        infer_diffusers_model_type,
    )

    checkpoint = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    try:
        kind = infer_diffusers_model_type(checkpoint)
    except (IndexError, KeyError, AttributeError):
        kind = "v1"
    if kind != "v1":
        return f"it looks like {DIFFUSERS_DEFAULT_PIPELINE_PATHS[kind]['pretrained_model_name_or_path']}"
    return f"its weights are called {', '.join(sorted(shapes)[:3])}{', …' if len(shapes) > 3 else ''}"
