"""Finds a module's weights in a file, whatever names the file has for them.

Tried in this order, and the first that has every weight of the module is it: the library's own names, old ones too;
the same behind a prefix, as one file for a whole pipeline has them; llama.cpp's names, in a GGUF file of a text
encoder; names as published, through diffusers' converter for the class.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..compiler.errors import WeightError
from ..compiler.ir.program import Program
from ..conventions import libraries
from ..runtime.store.source import tensors_of_module
from .gguf_names import under_own_names
from .single_file import Arranged, Lacking, Layout, as_stored, converted

_ORIGINAL = "model.diffusion_model."


@dataclass(frozen=True)
class Wanted:
    """The weights that a file shall have: their names, by the first of them, and their shapes by it.

    ``library_names`` gives a layout under the names that the module's library has today, or None where the library does
    more than rename. ``convert`` is diffusers' function from published names to its own.
    """

    title: str
    names: Mapping[str, Sequence[str]]
    shapes: Mapping[str, tuple[int, ...]]
    library_names: Callable[[Layout], Layout | None]
    convert: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None

    @classmethod
    def of_module(cls, module: Any) -> Wanted:
        """What a checkpoint of a module holds."""
        names: dict[int, list[str]] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        saved = module.state_dict(keep_vars=True)
        for name, tensor in tensors_of_module(module).items():
            if name in saved:
                names.setdefault(id(tensor), []).append(name)
                shapes[name] = tuple(tensor.shape)
        title = type(module).__name__
        is_diffusers = _is_of("diffusers", "ModelMixin", module)
        convert = _converter(type(module).__mro__, dict(module.config)) if is_diffusers else None
        rename = functools.partial(_under_library_names, module)
        return cls(title, {own[0]: own for own in names.values()}, shapes, rename, convert)

    @classmethod
    def of_program(cls, program: Program) -> Wanted:
        """What a program needs of a checkpoint; of the model that it was made from only its class's name is known."""
        weights = {name: weight for name, weight in program.weights.items() if weight.persistent}
        names = {name: weight.names for name, weight in weights.items()}
        shapes = {name: weight.shape for name, weight in weights.items()}
        return cls(program.name, names, shapes, lambda layout: layout, _converter_called(program.name))

    def take(self, name: str, layout: Layout) -> Arranged | None:
        """A weight under any of its names, in the shape that is wanted; None when it is not there so."""
        found = next((layout[name] for name in self.names[name] if name in layout), None)
        return found.shaped(self.shapes[name]) if found and found.pieces is not None else None


def find_weights(
    wanted: Wanted, shapes: Mapping[str, tuple[int, ...]], where: Path, architecture: str = ""
) -> Layout | None:
    """Every weight that is wanted, under its first name, as pieces of what a file stores.

    ``architecture`` is what a GGUF file says it is.

    None when the module's library does more than rename what the file has, and only it can load that.

    Raises:
        WeightError: the file is for another module, lacks a weight, or has one in another shape or arrangement.
    """
    best: tuple[int, Layout] = (0, {})
    lacking: list[str] = []
    for layout in _layouts(wanted, as_stored(shapes), architecture, lacking):
        if layout is None:
            return None
        found = {name: weight for name in wanted.names if (weight := wanted.take(name, layout)) is not None}
        if len(found) == len(wanted.names):
            return found
        best = max(best, (len(found), layout), key=lambda one: one[0])
    if lacking and not best[0]:
        raise WeightError(f"{where} lacks {lacking[0]} of {wanted.title}: download it again, or give another file")
    raise _misfit(wanted, best[1], shapes, where)


def _layouts(wanted: Wanted, stored: Layout, architecture: str, lacking: list[str]) -> Iterator[Layout | None]:
    """The layouts that a file may have; None for one that only the module's library can read.

    Notes what the file lacks of a layout that it else has.
    """
    for layout in (stored, *_without_prefix(wanted, stored)):
        yield wanted.library_names(layout)
    yield under_own_names([name for names in wanted.names.values() for name in names], stored, architecture)
    bare = {name.removeprefix(_ORIGINAL): weight for name, weight in stored.items() if name.startswith(_ORIGINAL)}
    for layout in (stored, bare, {_ORIGINAL + name: weight for name, weight in stored.items()}):
        try:
            yield converted(wanted.convert, layout) if wanted.convert else {}
        except Lacking as error:
            lacking.append(str(error))


def _without_prefix(wanted: Wanted, stored: Layout) -> Iterator[Layout]:
    """The weights behind each prefix that any of the file's names has before the first one that is wanted."""
    first = "." + next(iter(wanted.names), "")
    for prefix in dict.fromkeys(name.removesuffix(first) + "." for name in stored if name.endswith(first)):
        yield {name.removeprefix(prefix): weight for name, weight in stored.items() if name.startswith(prefix)}


def _under_library_names(module: Any, layout: Layout) -> Layout | None:
    if _is_of("diffusers", "ModelMixin", module):
        named = dict(layout)
        libraries.update_old_names(module, named)
        return named
    if _is_of("transformers", "PreTrainedModel", module):
        names = libraries.names_after_loading(module, layout)
        return None if names is None else {names[name]: weight for name, weight in layout.items()}
    return layout


def _is_of(library: str, name: str, module: nn.Module) -> bool:
    """Whether a module is of a library's base class; what was never imported is the class of nothing."""
    return library in sys.modules and isinstance(module, getattr(importlib.import_module(library), name))


def _converter(classes: Iterable[type], config: dict[str, Any]) -> Any:
    """Diffusers' function from published names to its own, for the first of some classes that has one."""
    known = (libraries.converter_of(cls.__name__) for cls in classes)
    function = next(filter(None, known), None)
    return function and functools.partial(_convert, function, config)


def _converter_called(name: str) -> Any:
    """The function for a class of diffusers' that is known by its name alone; None for any other name."""
    import diffusers

    cls = getattr(diffusers, name, None)
    return _converter((cls,), {}) if isinstance(cls, type) else None


def _convert(function: Any, config: dict[str, Any], checkpoint: dict[str, Any]) -> Any:
    return function(checkpoint=checkpoint, config=config)


def _misfit(wanted: Wanted, layout: Layout, shapes: Mapping[str, tuple[int, ...]], where: Path) -> WeightError:
    """What is wrong with a file that does not have what is wanted, in its most fitting layout."""
    title = wanted.title
    found = {name: next((layout[own] for own in names if own in layout), None) for name, names in wanted.names.items()}
    lost = [name for name, weight in found.items() if weight is None]
    if len(lost) == len(found):
        return WeightError(
            f"{where} is not for {title}: {_likeness(shapes)}: give it to another component, or another file"
        )
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        return WeightError(f"{where} lacks {lost[0]}{more} of {title}: download it again, or give another file")
    there = {name: weight for name, weight in found.items() if weight is not None and not wanted.take(name, layout)}
    name, weight = next(iter(there.items()))
    if weight.shaped(wanted.shapes[name]) is None:
        return WeightError(
            f"{where} has {name} as {list(weight.shape)}, {title} needs {list(wanted.shapes[name])}: the files belong "
            "to another configuration"
        )
    return WeightError(
        f"{where} stores {name} of {title} in another order of its numbers, which cannot be read piece by piece: "
        "give the component's own folder, or convert the file with diffusers first"
    )


def _likeness(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What a file seems to be, by diffusers' knowledge of published checkpoints, or its first names."""
    checkpoint = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    repository = libraries.published_as(checkpoint)
    if repository is not None:
        return f"it looks like {repository}"
    return f"its weights are called {', '.join(sorted(shapes)[:3])}{', …' if len(shapes) > 3 else ''}"
