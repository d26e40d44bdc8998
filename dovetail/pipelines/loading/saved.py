"""Loads a saved pipeline so that each weight is read straight to the device that it will be used on."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...addons.addons import check_addons
from ...compiler.checkpoints.index import WeightIndex
from ...compiler.checkpoints.names import check_names
from ...compiler.devices.rig import Rig
from ...compiler.errors import NoWeightsError, UsageError, WeightError
from ...compiler.spec.budget import MaxMemory
from ...compiler.spec.roles import role_of, role_of_component
from ...conventions import libraries
from ...conventions.checked import NAMED_FILES, SOURCE, checked
from ...conventions.dtypes import Dtypes, dtype_of, one_dtype, read_dtypes, without_auto
from ...conventions.hub import INDEX, pipeline_folder, read_index
from ...conventions.pretrained import sorted_out
from ...conventions.quiet_imports import without_notices
from ...conventions.spellings import Budgets, Counts, Modes, Places, Shares, Tiling
from ...lora.requested import Loras, check_mode, read_loras
from ...passes.infra.base import Pass
from ...passes.infra.manager import Callback
from ...quant import Packing, Quant, read_quant
from ...quant.asked import by_component, meant_by
from ...runtime.store.reader import WeightReader
from ...runtime.store.store import Origins
from ...weights.ahead import folders_in, read_ahead
from ...weights.files import Given, open_weights
from ..compile_pipeline import compile_opened
from .building import STEMS, Built, build
from .checkpoint import built_from
from .tokenizers import check_tokenizer

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


@checked(source=SOURCE, weights=NAMED_FILES)
@without_notices()
def load_pipeline(
    source: str | os.PathLike[str],
    backend: Places | None = None,
    *,
    dtype: Dtypes = None,
    torch_dtype: Dtypes = None,
    variant: str | None = None,
    pipeline_class: type[DiffusionPipeline] | None = None,
    components: Mapping[str, object] | None = None,
    weights: Mapping[str, Given] | None = None,
    quant: Quant | None = None,
    params_backend: Places | None = None,
    split_mode: Modes | None = None,
    tensor_split: Shares | None = None,
    max_vram: Budgets | None = None,
    max_memory: MaxMemory | None = None,
    device_map: Places | None = None,
    lora: Loras = None,
    lora_apply_mode: str = "auto",
    vae_tiling: Tiling | None = None,
    attention: str | None = None,
    cache: str | None = None,
    chunk: Counts | None = None,
    micro_batches: Counts | None = None,
    bf16_partials: bool = False,
    inductor: bool = False,
    auto_fit: bool = True,
    multi_gpu: bool = True,
    rig: Rig | str | None = None,
    dynamic_shapes: Mapping[str, Mapping[str, object]] | None = None,
    passes: str | Sequence[Pass] | None = None,
    callbacks: Sequence[Callback] = (),
    plans: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool | None = None,
    **others: object,
) -> DiffusionPipeline:
    """Loads a pipeline as diffusers does and compiles it; no weight passes through a device that it is not used on.

    Components are built without weights, and all files are checked by their headers. A weight is read when the first
    call that needs it has been compiled, for only then its device is known: the first picture waits for that, or
    ``prepare(…)`` does it before. A weight that no call needs is never read. Where the files take less than half of the
    host's free memory, they are read into its page cache meanwhile.

    Args:
        source: a folder that ``save_pretrained`` wrote, or the name of a repository on the Hugging Face Hub, which
            diffusers downloads, without what ``components`` and ``weights`` replace.
        revision, token, cache_dir, local_files_only: where on the Hub, as in ``from_pretrained``.
        dtype: the dtype of floating weights, for all or by component, as in ``from_pretrained``: an object, its name,
            or ``"auto"`` for that of the files; ``torch_dtype`` is the older name.
        variant: the variant of the files, such as ``"fp16"``.
        pipeline_class: another pipeline than the folder names, for instance an image-to-image one.
        components: components to take in place of the saved ones, or None to leave one out; or by keyword, as in
            ``from_pretrained``: ``vae=…``, ``safety_checker=None``, ``requires_safety_checker=False``.
        others: what else ``from_pretrained`` takes; the page on weights says of each argument what it does here.
        weights: files of weights in place of a component's own, by its name or role: ``{"transformer":
            "flux1-dev-Q4_K_S.gguf"}``. Safetensors or GGUF, one or a list of parts, in diffusers' names or as the
            model's authors published them. GGUF's quantized types stay as they are.
        quant: types in which weights are packed while they are loaded, by component or role:
            ``"transformer=q8_0,te=f8"`` or a dict. What was packed is kept for the next start. The page on weights
            lists the types.
        backend, params_backend, and all from split_mode to plans: as for ``compile_pipeline``.

    Returns:
        The pipeline, as ``from_pretrained`` gives it; what is dovetail's is at ``pipe.dovetail``: see CompiledPipeline.

    Raises:
        UsageError: there is no such folder, no such variant, or no such component.
        WeightError: files are missing or damaged; nothing was loaded then.
        SpecError: a spec is wrong; the message points at the place.
    """
    check_mode(lora_apply_mode)
    check_addons(attention, cache)
    pretrained = sorted_out(others)
    components = {**(components or {}), **pretrained.components}
    packed = [one for name in read_quant(quant) for one in meant_by(name, folders_in(source))]
    read_ahead(source, variant, {*components, *(weights or {}), *packed})
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
    loras = read_loras(lora)
    pipe, origins = open_pipeline(
        source,
        dtype=one_dtype(dtype, torch_dtype),
        variant=variant,
        pipeline_class=pipeline_class,
        components=components,
        weights=weights,
        quant=quant,
        hub={**{name: value for name, value in hub.items() if value is not None}, **pretrained.hub},
        loading=pretrained.loading,
    )
    return compile_opened(
        pipe,
        origins,
        backend=backend,
        params_backend=params_backend,
        split_mode=split_mode,
        tensor_split=tensor_split,
        max_vram=max_vram,
        max_memory=max_memory,
        device_map=device_map,
        rig=rig,
        chunk=chunk,
        micro_batches=micro_batches,
        bf16_partials=bf16_partials,
        inductor=inductor,
        auto_fit=auto_fit,
        multi_gpu=multi_gpu,
        dynamic_shapes=dynamic_shapes,
        passes=passes,
        callbacks=callbacks,
        lora=loras,
        lora_apply_mode=lora_apply_mode,
        vae_tiling=vae_tiling,
        attention=attention,
        cache=cache,
        plans=plans,
    )


def open_pipeline(
    source: str | os.PathLike[str],
    *,
    dtype: Dtypes = None,
    variant: str | None = None,
    pipeline_class: type[DiffusionPipeline] | None = None,
    components: Mapping[str, object] | None = None,
    weights: Mapping[str, Given] | None = None,
    quant: Quant | None = None,
    hub: Mapping[str, Any] | None = None,
    loading: Mapping[str, Any] | None = None,
    checkpoint: WeightIndex | None = None,
    needs_files: bool = True,
) -> tuple[Any, dict[str, Origins]]:
    """Builds a saved pipeline without its weights, and says where they come from, by component.

    It takes what load_pipeline takes, and ``loading``, which diffusers is told when it puts the pipeline together. To
    plan alone, no file of weights is needed: the configs of components will do. A ``checkpoint`` comes before the
    components' own files, for those of which it has the weights.

    Raises UsageError or WeightError as load_pipeline does.
    """
    import diffusers

    given = dict(components or {})
    cls = pipeline_class or diffusers.DiffusionPipeline
    dtypes = read_dtypes(dtype)

    def own_parts(listing: Mapping[str, Any]) -> dict[str, Any]:
        classes = {name: value for name, value in listing.items() if isinstance(value, list) and len(value) == 2}
        check_names(Path(source), classes)
        return {name: value for name, value in classes.items() if value[0] and name not in given}

    def with_files(listing: Mapping[str, Any]) -> dict[str, Given]:
        return _by_component(weights or {}, list(own_parts(listing)))

    folder = pipeline_folder(cls, source, variant, hub or {}, given, with_files if weights else None)
    variant = _variant_in(folder, variant)
    listing = read_index(folder / INDEX)
    own = own_parts(listing)
    parts_there = [name for name, value in listing.items() if isinstance(value, list)]
    named_class = None if "custom_pipeline" in (loading or {}) else getattr(diffusers, listing["_class_name"], None)
    _check_given(given, pipeline_class or named_class, parts_there)
    models = [name for name in own if _may_have_weights(folder / name)]
    named = _by_component(weights or {}, models)
    indices = {name: open_weights(files) for name, files in named.items()}
    inside = {name: value for name, value in own.items() if name not in indices}
    left = _quantized((loading or {}).get("quantization_config"), own, models, named)
    own = {name: value for name, value in own.items() if name not in left}
    types = by_component(read_quant(quant), [name for name in models if name in own])
    packings = {name: Packing(name, one, dry=not needs_files) for name, one in types.items()}
    from_file = built_from(checkpoint, folder, inside, dtypes, packings, needs_files=needs_files) if checkpoint else {}
    rest = {name: value for name, value in own.items() if name not in from_file}
    built = {**from_file, **_build_all(folder, variant, dtypes, rest, indices, packings, needs_files)}
    parts = {**{name: module for name, (module, _) in built.items()}, **given}
    origins: dict[str, Origins] = {name: found for name, (_, found) in built.items() if found}
    known = {"dtype": without_auto(dtypes), **(loading or {}), **parts}
    return _assemble(_class_in(listing, cls), folder, variant, known), origins


def _check_given(given: Mapping[str, Any], cls: Any, classes: Sequence[str]) -> None:
    """Raises UsageError for a component that the pipeline does not take; says nothing where its class is unknown."""
    if cls is None:
        return
    taken = {*inspect.signature(cls.__init__).parameters, *classes}
    wrong = sorted(given.keys() - taken)
    if wrong:
        options = inspect.signature(load_pipeline).parameters
        near = difflib.get_close_matches(wrong[0], [*classes, *options], n=1)
        hint = f", did you mean {near[0]}?" if near else "."
        raise UsageError(f"{cls.__name__} has no {', '.join(wrong)}{hint} There are: {', '.join(sorted(classes))}")


def _quantized(config: Any, own: Mapping[str, Any], models: Sequence[str], named: Mapping[str, Given]) -> list[str]:
    """The components that their libraries quantize while they load them; raises UsageError where files are theirs."""
    if config is None:
        return []
    found = [name for name in models if libraries.is_quantized_by(config, own[name][0], name)]
    for name in found:
        if name in named:
            raise UsageError(
                f"weights: {name} is quantized by quantization_config, out of its own files: leave one of the two out"
            )
    return found


def _may_have_weights(home: Path) -> bool:
    """Whether a component is a model: those have a config.json, and tokenizers and schedulers another file."""
    return (home / "config.json").is_file() or not home.is_dir()


def _by_component(weights: Mapping[str, Given], own: Sequence[str]) -> dict[str, Given]:
    """The files of weights by component; raises UsageError for a key that does not mean one component."""
    found: dict[str, Given] = {}
    for key, files in weights.items():
        alike = [name for name in own if role_of_component(name) == role_of(key)]
        meant = [key] if key in own else alike
        if len(meant) != 1 or meant[0] in found:
            near = difflib.get_close_matches(key, [*own, *map(role_of_component, own)], n=1)
            hint = f", did you mean {near[0]!r}?" if near else ":"
            several = f"{key!r} means {' and '.join(meant)}:" if meant else f"this pipeline has no {key!r}{hint}"
            raise UsageError(f"weights: {several} name one of its components, each once: {', '.join(own)}")
        found[meant[0]] = files
    for key, (name, files) in zip(weights, found.items(), strict=True):
        _check_there(key, name, files)
    return found


def _check_there(key: str, name: str, files: Given) -> None:
    """Raises NoWeightsError for a file that is not there, which was typed so and not lost in a download."""
    paths = [files] if isinstance(files, (str, os.PathLike)) else files if not isinstance(files, WeightIndex) else []
    for path in (one for one in paths if "://" not in str(one) and not Path(one).exists()):
        of = repr(key) if key == name else f"{key!r}, which is {name} here,"
        raise NoWeightsError(f"weights: there is no file {path} for {of}: name a safetensors or GGUF file")


def _build_all(
    folder: Path,
    variant: str | None,
    dtypes: Any,
    classes: Mapping[str, Any],
    indices: Mapping[str, WeightIndex],
    packings: Mapping[str, Packing],
    needs_files: bool,
) -> dict[str, Built]:
    built: dict[str, Built] = {}
    reader = WeightReader()
    for name in (name for name in indices if not (folder / name).is_dir()):
        raise WeightError(f"{folder} has no {name}: its config.json says what the weights given belong to: download it")
    for name, (library, cls) in classes.items():
        check_tokenizer(folder, name, library, cls)
        if not (folder / name).is_dir():
            continue
        one = build(
            library, cls, folder / name, variant, dtype_of(dtypes, name), indices.get(name), reader,
            needs_files=needs_files, packing=packings.get(name),
        )  # fmt: skip
        if one is not None:
            built[name] = one
    return built


def _class_in(listing: Mapping[str, Any], cls: Any) -> Any:
    """The class that a folder's index names, where diffusers has it and no other is asked for.

    The general class would load again what is optional for that class (Wan's transformer) and was given.
    """
    import diffusers

    named = getattr(diffusers, listing["_class_name"], None)
    is_general = cls is diffusers.DiffusionPipeline and isinstance(named, type) and issubclass(named, cls)
    return named if is_general else cls


def _assemble(cls: Any, folder: Path, variant: str | None, known: Mapping[str, Any]) -> Any:
    others = (RuntimeError, ImportError) if "quantization_config" in known else ()  # a missing GPU, a missing package
    try:
        with libraries.quiet_assembly():
            return cls.from_pretrained(folder, variant=variant, local_files_only=True, **known)
    except (OSError, ValueError, AttributeError, *others) as error:  # the third for a class that this diffusers has not
        why = _missing_class(cls, folder, known) or (str(error).splitlines() or [""])[0]
        raise WeightError(f"diffusers cannot load {folder}: {why}") from error


def _missing_class(cls: Any, folder: Path, known: Mapping[str, Any]) -> str:
    """Which class of a folder's index the installed libraries lack, with the way out; empty where they lack none."""
    import diffusers

    index = read_index(folder / INDEX)
    is_general = cls is diffusers.DiffusionPipeline and "custom_pipeline" not in known
    named = {"the pipeline": ["diffusers", index["_class_name"]]} if is_general else {}
    for name, entry in {**named, **index}.items():
        match entry:
            case [str(library), str(asked)] if library in STEMS and name not in known:
                home = import_module(library)
                if asked not in dir(home):
                    return f"{name} is a {asked}, which {library} {home.__version__} does not have: use another release"
    return ""


def _variant_in(folder: Path, variant: str | None) -> str | None:
    """The variant, or None in a folder without weights, which has none; raises UsageError for a wrong one."""
    if not variant or not any(any(folder.glob(f"*/*.{ending}")) for ending in ("safetensors", "bin")):
        return None
    if not any(folder.glob(f"*/*.{variant}[.-]*")):
        raise UsageError(f"no file in {folder} is of variant {variant!r}: leave variant out, or name another")
    return variant
