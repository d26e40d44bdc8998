"""Builds the components of a saved pipeline without their weights, as their libraries' from_pretrained would.

Parameters are on meta; buffers that no checkpoint has keep the values and the dtype of construction. The dtype each
weight must be read in is written on its meta tensor. What this cannot do (other file formats, quantized checkpoints of
other libraries, weights that a library recombines while loading) is answered with None, and the caller lets the library
load it; unless a person named the files of the weights, for then there is nothing else to load.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...compiler.checkpoints.index import WeightIndex
from ...compiler.errors import DovetailError, UsageError, WeightError
from ...conventions import libraries
from ...conventions.hub import read_json
from ...quant import Packing
from ...runtime.store.origin import HOST, FileOrigin
from ...runtime.store.origins import origins_of
from ...runtime.store.reader import WeightReader
from ...runtime.store.source import tensors_of_module
from ...weights.files import under_names_of
from ...weights.name_matching import Wanted

logger = logging.getLogger(__name__)

STEMS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}


Built = tuple[nn.Module, Mapping[str, FileOrigin]]
"""A component without its weights, and where they come from: under the first name that it has for each."""


def build(
    library: str,
    class_name: str,
    folder: Path,
    variant: str | None,
    dtype: torch.dtype | str | None,
    given: WeightIndex | None = None,
    reader: WeightReader | None = None,
    *,
    needs_files: bool = True,
    packing: Packing | None = None,
) -> Built | None:
    """Builds the component in a folder, or returns None when its library must load it.

    ``given`` has its weights where they are not the folder's own. ``reader`` reads them: components that share one
    share its buffers, and what it knows of how much is read in all. Where files are not needed, and there are none, the
    weights come from nowhere, and buffers are as they are constructed: enough for a plan. With a ``packing``
    weights are packed, and come from the packed file.

    Raises:
        WeightError: a file or the config is missing or damaged, or weights are missing or of another shape than needed.
        UsageError: weights shall be packed that are already, or that its library must load.
    """
    cls = class_of(library, class_name)
    family = _family(cls)
    if cls is None or family is None:
        _leave(folder, "no file of weights can be given to it", given, packing, quietly=True)
        return None
    read_json(folder / "config.json")  # raises where it is none
    index = given or find_index(folder, STEMS[family], variant, needs_files=needs_files)
    if index is None and not needs_files and not any(folder.glob("*.bin")):
        return _without_files(family, cls, folder, dtype, packing)
    if index is None:
        _leave(folder, "it has no safetensors file", given, packing)
        return None
    make = _of_diffusers if family == "diffusers" else _of_transformers
    if isinstance(dtype, str):  # "auto"; transformers takes the dtype of the files by itself
        dtype = _stored_dtype(index) if family == "diffusers" else None
    module = _made(make, cls, folder, index, dtype)
    if module is None:
        _leave(folder, "it is quantized", given, packing)
        return None
    named = under_names_of(Wanted.of_module(module), index)
    if named is None:
        _leave(folder, "its library recombines weights while loading", given, packing)
        return None
    origins = origins_of(packing.packed(module, named) if packing else named, reader)
    _read_buffers(module.eval(), origins)
    return module, origins


def _without_files(
    family: str, cls: Any, folder: Path, dtype: torch.dtype | str | None, packing: Packing | None
) -> Built | None:
    """A component of which there is but the config; of dtype float32 where none is named."""
    make = _of_diffusers if family == "diffusers" else _of_transformers
    module = _made(make, cls, folder, None, dtype if isinstance(dtype, torch.dtype) else torch.float32)
    if module is None:
        return None
    return module.eval(), origins_of(packing.planned(module)) if packing else {}


def _made(
    make: Callable[..., Any], cls: Any, folder: Path, index: WeightIndex | None, dtype: torch.dtype | None
) -> Any:
    """What makes a component of its config; raises WeightError where its class cannot be made of that."""
    try:
        return make(cls, folder, index, dtype)
    except (DovetailError, ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        way_out = "correct it, or download it again"
        raise WeightError(f"{folder / 'config.json'} makes no {cls.__name__} ({said}): {way_out}") from error


def _leave(
    folder: Path, why: str, given: WeightIndex | None, packing: Packing | None, *, quietly: bool = False
) -> None:
    """Leaves a component to its library, unless that would load other weights than those given, or unpacked ones.

    Raises WeightError or UsageError then.
    """
    if given is not None:
        raise WeightError(f"{given.where} cannot be loaded into {folder}: {why}: leave it out, or give another file")
    if packing is not None:
        raise UsageError(
            f"quant: {folder} is loaded by its library and cannot be packed: {why}: leave out {packing.component}="
            f"{packing.type_name.lower()}, or give a file of its weights (weights=…)"
        )
    if not quietly:
        logger.warning("%s is loaded by its library, through host memory: %s", folder, why)


def class_of(library: str, name: str) -> Any:
    """The class of a component as model_index.json names it, or None."""
    import diffusers

    home = getattr(diffusers.pipelines, library, None)
    if home is None and library in STEMS:
        home = importlib.import_module(library)
    return getattr(home, name, None)


def find_index(folder: Path, stem: str, variant: str | None, *, needs_files: bool = True) -> WeightIndex | None:
    """The index of the weights in a folder: of the variant if it has that, of the plain files otherwise.

    Raises WeightError where there is none, if it is needed.
    """
    for middle in ([f".{variant}"] if variant else []) + [""]:
        listing = folder / f"{stem}.safetensors.index{middle}.json"
        single = folder / f"{stem}{middle}.safetensors"
        if listing.exists():
            return WeightIndex.of_shards(listing)
        if single.exists():
            return WeightIndex.of_file(single)
    if not needs_files or any(folder.glob("*.bin")):
        return None
    raise WeightError(f"{folder} has no weights ({stem}.safetensors): download it again, or name another variant")


def _family(cls: Any) -> str | None:
    import diffusers
    import transformers

    if not isinstance(cls, type):
        return None
    if issubclass(cls, diffusers.ModelMixin):
        return "diffusers"
    return "transformers" if issubclass(cls, transformers.PreTrainedModel) else None


def _of_diffusers(cls: Any, folder: Path, index: WeightIndex | None, dtype: torch.dtype | None) -> Any:
    config = cls.load_config(folder)
    if config.get("quantization_config"):
        return None
    with _empty(dtype or torch.get_default_dtype()):
        module = cls.from_config(config)
    module.register_to_config(_name_or_path=str(folder))
    kept = libraries.float32_parts(cls)
    for name, tensor in _persistent(module).items():
        if dtype is not None and tensor.is_floating_point():
            keep = any(part in name.split(".") for part in kept)
            _set_dtype(module, name, torch.float32 if keep else dtype)
    return module


def _of_transformers(cls: Any, folder: Path, index: WeightIndex | None, dtype: torch.dtype | None) -> Any:
    import transformers

    config = cls.config_class.from_pretrained(folder)
    if getattr(config, "quantization_config", None):
        return None
    dtype = dtype or config.dtype or _stored_dtype(index)
    for part in libraries.configs_in(config):
        part.dtype = dtype
    config.name_or_path = str(folder)
    with _empty(dtype):
        module = cls(config)
    module.tie_weights()
    for pattern, wide in libraries.dtype_exceptions(module, dtype).items():
        for name in (name for name in _persistent(module) if pattern in name):
            _set_dtype(module, name, wide)
    if module.can_generate() and (folder / "generation_config.json").is_file():
        module.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    return module


def _stored_dtype(index: WeightIndex | None) -> torch.dtype:
    """The dtype of the first floating tensor in files of weights."""
    return next((entry.dtype for entry in (index or {}).values() if entry.dtype.is_floating_point), torch.float32)


@contextlib.contextmanager
def _empty(dtype: torch.dtype) -> Iterator[None]:
    """Parameters made meanwhile are on meta, buffers are real, both in a default dtype."""
    import accelerate

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype if dtype.is_floating_point and dtype.itemsize > 1 else before)
    try:
        with accelerate.init_empty_weights(include_buffers=False):
            yield
    finally:
        torch.set_default_dtype(before)


def _persistent(module: nn.Module) -> Mapping[str, torch.Tensor]:
    """The weights that a checkpoint of the module holds, by every name."""
    saved = module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in tensors_of_module(module).items() if name in saved}


def _set_dtype(module: nn.Module, name: str, dtype: torch.dtype) -> None:
    """Gives a weight that has no data yet another dtype."""
    path, _, key = name.rpartition(".")
    owner = module.get_submodule(path)
    tensor = getattr(owner, key)
    if tensor.dtype == dtype:
        return
    if isinstance(tensor, nn.Parameter):
        tensor.data = tensor.data.to(dtype)
    else:
        owner._buffers[key] = tensor.to(dtype)


def _read_buffers(module: nn.Module, origins: Mapping[str, FileOrigin]) -> None:
    """Reads the buffers, which are small and which tracing wants to see."""
    for child in module.modules():
        child._buffers.update({key: value for key, value in child._buffers.items() if value is not None})
    persistent = _persistent(module)
    buffers = dict(module.named_buffers())
    for name in buffers.keys() & persistent.keys():
        path, _, key = name.rpartition(".")
        module.get_submodule(path)._buffers[key] = origins[name].whole(buffers[name].dtype, HOST)
