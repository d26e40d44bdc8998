"""Every name of diffusers, transformers and peft that dovetail uses though their documentation does not promise it.

The rest of dovetail calls these functions (``addons/foreseen.py`` alone has classes of its own for hooks), and
tests/dovetail/conventions/test_libraries.py has a test for each. A release of a library that renames something is met
here and nowhere else. `.ci/run` runs these tests on the lowest versions that pyproject.toml declares or on the newest
too.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..compiler.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

NAMES = frozenset({"diffusers", "transformers", "peft", "accelerate", "huggingface_hub", "safetensors"})
"""Libraries of models: whose they are, wherever they lie, as where one is installed from a checkout."""

# diffusers and accelerate

HOOK = "_hf_hook"
"""The attribute in which accelerate keeps a module's hook; diffusers asks its ``execution_device``."""

BOOKKEEPING = frozenset(
    (
        "_diffusers_hook",
        HOOK,
        "_hf_peft_config_loaded",
        "peft_config",
        "lora_scale",
        "_safe_fusing",
        "_weight_conversions",
    )
)
"""Attributes of modules that steer nothing by themselves: hooks put a function in place, adapters are read apart."""

LEFT_AS_DEFAULT = "_use_default_values"
"""The entry of a diffusers configuration that lists, in an order that differs from process to process, which other
entries were left at their defaults; it steers nothing."""

OF_ONE_PROCESS = frozenset({"SESSION_ID", "_original_object_hash"})
"""Globals and attributes of diffusers and transformers that every process has others of, and that say nothing of a
model."""

END_OF_CALL = "maybe_free_model_hooks"
"""The method that every diffusers pipeline calls at the end of a call."""

EXECUTION_DEVICE = "_execution_device"
"""The property of a pipeline that says where it makes its own tensors."""

REMOVE_HOOKS = "remove_all_hooks"
"""The method of a pipeline that takes accelerate's hooks off its components."""

DEVICE_MAP, RESET_DEVICE_MAP = "hf_device_map", "reset_device_map"
"""Where a pipeline keeps the devices of its components, and its method that forgets them."""

VAE_METHODS = ("_encode", "_decode")
"""What a VAE's ``encode`` and ``decode`` call for one tile, or for the whole."""

OWN_METHODS = ("scale", "unscale", "post_process_latents")
"""What pipelines call of a component beside ``forward``, to compute with tensors that it holds itself."""

LOAD_IP_ADAPTER = "_load_ip_adapter_weights"
"""The method of a model that takes the weights of an IP-Adapter; every pipeline's load_ip_adapter calls it."""

LORA_SCALES = ("joint_attention_kwargs", "attention_kwargs", "cross_attention_kwargs")
"""The arguments of a model's forward in which a pipeline passes the scale of all LoRAs."""


def wrapped_forward(module: nn.Module) -> tuple[Any, str] | None:
    """Where diffusers' hooks keep the forward that they wrap: an object and the name of its attribute; None without.

    That is what a module gets back when its hooks are removed, and what is handed the arguments that they hand on.
    """
    registry = vars(module).get("_diffusers_hook")
    if registry is None or not registry._fn_refs:
        return None
    innermost = registry._fn_refs[0]
    return innermost, "forward" if innermost.original_forward is None else "original_forward"


def take_hooks_off(module: nn.Module) -> None:
    """Takes the hooks of accelerate off a module and its parts, which have their own forwards again."""
    from accelerate.hooks import remove_hook_from_module

    remove_hook_from_module(module, recurse=True)


def when_hooked(ask: Callable[[nn.Module], object]) -> None:
    """Has a function be asked before accelerate puts a hook on a module, from now on; what it raises ends that."""
    from accelerate import big_modeling, hooks

    own: Callable[..., nn.Module] = hooks.add_hook_to_module
    if hasattr(own, "__wrapped__"):  # it is already
        return

    @functools.wraps(own)
    def add(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        ask(module)
        return own(module, *args, **kwargs)

    hooks.add_hook_to_module = big_modeling.add_hook_to_module = add


def is_quantized_by(config: Any, library: str, name: str) -> bool:
    """Whether a `PipelineQuantizationConfig` has a component of a pipeline be quantized; UsageError for another one."""
    from diffusers import PipelineQuantizationConfig

    if not isinstance(config, PipelineQuantizationConfig):
        raise UsageError(
            f"quantization_config takes a diffusers.PipelineQuantizationConfig, and no {type(config).__name__}: give "
            "PipelineQuantizationConfig(quant_mapping={'transformer': …})"
        )
    return config._resolve_quant_config(is_diffusers=library != "transformers", module_name=name) is not None


def layerwise_casting(module: nn.Module) -> tuple[tuple[type[nn.Module], ...], tuple[str, ...]]:
    """The classes of modules that diffusers' layerwise casting casts, and patterns of the paths that it skips."""
    from diffusers.hooks._common import _GO_LC_SUPPORTED_PYTORCH_LAYERS
    from diffusers.hooks.layerwise_casting import DEFAULT_SKIP_MODULES_PATTERN

    own = (getattr(module, name, None) for name in ("_keep_in_fp32_modules", "_skip_layerwise_casting_patterns"))
    skipped = [*DEFAULT_SKIP_MODULES_PATTERN, *(pattern for patterns in own for pattern in patterns or ())]
    return tuple(_GO_LC_SUPPORTED_PYTORCH_LAYERS), tuple(skipped)


def is_group_offloaded(module: nn.Module) -> bool:
    """Whether diffusers moves the weights of a module by groups, between each call and the next."""
    from diffusers.hooks.group_offloading import _is_group_offload_enabled

    offloaded: bool = _is_group_offload_enabled(module)
    return offloaded


def tell_of_missing(name: str, why: Callable[[Any], str]) -> None:
    """Has diffusers' pipelines that lack an attribute say why they do, in the AttributeError that is raised anyway."""
    from diffusers import DiffusionPipeline

    cls: Any = DiffusionPipeline
    own = cls.__getattr__
    if "__getattr__" in vars(cls):  # it does already
        return

    def missing(pipe: Any, key: str) -> Any:
        if key == name:
            raise AttributeError(why(pipe))
        return own(pipe, key)

    cls.__getattr__ = missing


def when_registered(tell: Callable[[Any], object]) -> None:
    """Has a function be told of each diffusers pipeline that has registered its modules, from now on."""
    from diffusers import DiffusionPipeline

    cls: Any = DiffusionPipeline
    own = cls.register_modules
    if hasattr(own, "__wrapped__"):  # it does already
        return

    @functools.wraps(own)
    def register(pipe: Any, **modules: Any) -> None:
        own(pipe, **modules)
        tell(pipe)

    cls.register_modules = register


def execution_device(pipe: Any) -> torch.device:
    """The device on which a diffusers pipeline makes its own tensors."""
    device: torch.device = getattr(pipe, EXECUTION_DEVICE)
    return device


def float32_parts(cls: Any) -> tuple[str, ...]:
    """The names of the submodules that from_pretrained of a diffusers class keeps in float32."""
    kept = cls._keep_in_fp32_modules or ()
    return (kept,) if isinstance(kept, str) else tuple(kept)


def update_old_names(module: Any, named: dict[str, Any]) -> None:
    """Renames, in place, the keys of a state dict which older releases of diffusers wrote for a module."""
    module._fix_state_dict_keys_on_load(named)


def converter_of(class_name: str) -> Callable[..., Any] | None:
    """The function of diffusers that turns a published checkpoint into the names of a class, or None.

    It takes ``checkpoint`` and ``config`` by keyword.
    """
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    entry = SINGLE_FILE_LOADABLE_CLASSES.get(class_name)
    return entry and entry["checkpoint_mapping_fn"]  # type: ignore[no-any-return]


def published_as(checkpoint: Mapping[str, torch.Tensor]) -> str | None:
    """The repository whose checkpoint a state dict resembles, by keys that diffusers looks for, or None."""
    from diffusers.loaders import single_file_utils as utils

    try:
        kind = utils.infer_diffusers_model_type(checkpoint)
    except (IndexError, KeyError, AttributeError):
        return None
    if kind == "v1":  # what diffusers answers when it recognizes nothing
        return None
    return str(utils.DIFFUSERS_DEFAULT_PIPELINE_PATHS[kind]["pretrained_model_name_or_path"])


def encoder_in(file: Path, cls: Any, folder: Path, name: str, dtype: torch.dtype | None) -> nn.Module | None:
    """The text encoder of a class that diffusers finds in a published checkpoint, with its weights, or None.

    ``folder`` has the configs of the pipeline, and ``name`` is the encoder's there.
    """
    from diffusers.loaders import single_file_utils as utils

    state = utils.load_single_file_checkpoint(str(file), local_files_only=True)
    given = {"checkpoint": state, "config": str(folder), "subfolder": name, "torch_dtype": dtype}
    made: nn.Module | None = None
    if utils.is_clip_model_in_single_file(cls, state):
        made = utils.create_diffusers_clip_model_from_ldm(cls, **given, local_files_only=True)
    elif "T5" in cls.__name__ and utils.is_t5_in_single_file(state):
        made = utils.create_diffusers_t5_model_from_checkpoint(cls, **given, local_files_only=True)
    return made


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """Silences what diffusers logs while one of its converters is tried."""
    with _without_records("", "diffusers.loaders.single_file_utils"):
        yield


@contextmanager
def quiet_assembly() -> Iterator[None]:
    """Silences diffusers' remark that it cannot check the class of a component which is passed to from_pretrained."""
    with _without_records("cannot verify whether", "diffusers.pipelines.pipeline_loading_utils"):
        yield


@contextmanager
def quiet_lora_loading() -> Iterator[None]:
    """Silences diffusers' remark that a LoRA has nothing for one of the components."""
    with _without_records("No LoRA keys", "diffusers.loaders.peft", "diffusers.loaders.lora_base"):
        yield


@contextmanager
def _without_records(sentence: str, *loggers: str) -> Iterator[None]:
    """Drops the records of some loggers whose message contains a sentence."""

    def is_other(record: logging.LogRecord) -> bool:
        return sentence not in record.getMessage()

    noted = [logging.getLogger(name) for name in loggers]
    for logger in noted:
        logger.addFilter(is_other)
    try:
        yield
    finally:
        for logger in noted:
            logger.removeFilter(is_other)


def attention_backend() -> Any:
    """The backend that diffusers' attention takes where a model names none, or None before diffusers is there."""
    module = sys.modules.get("diffusers.models.attention_dispatch")
    return None if module is None else module._AttentionBackendRegistry._active_backend


def attention_backends() -> list[str]:
    """The names of all backends that diffusers' attention knows, of whatever packages."""
    from diffusers.models.attention_dispatch import AttentionBackendName

    return [one.value for one in AttentionBackendName]


def lacks_attention(name: str) -> str:
    """What a backend of attention lacks on this machine, in diffusers' words; empty where nothing is missing."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _check_attention_backend_requirements

    try:
        _check_attention_backend_requirements(AttentionBackendName(name))
    except RuntimeError as error:
        return str(error)
    return ""


def default_attention() -> str:
    """The backend of attention that diffusers takes where nobody has named one."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    return str(_AttentionBackendRegistry._active_backend.value)


def attention_processors(model: nn.Module) -> list[Any]:
    """What computes attention in a model of diffusers, each once, as far as it can take another backend."""
    if not hasattr(model, "set_attention_backend"):
        return []
    found = (getattr(part, "processor", None) for part in model.modules())
    return list({id(one): one for one in found if hasattr(one, "_attention_backend")}.values())


def set_attention(model: nn.Module, name: str) -> None:
    """Has the attention of a model take a backend, and that of no other one, which diffusers' own method would have."""
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    active = _AttentionBackendRegistry._active_backend
    try:
        with _without_records("experimental feature", "diffusers.models.modeling_utils"):
            model.set_attention_backend(name)  # type: ignore[operator]
    finally:
        _AttentionBackendRegistry.set_active_backend(active)


def first_block_cache(threshold: float) -> Any:
    """The configuration of a cache that computes what follows the first block where that changes by a threshold."""
    from diffusers import FirstBlockCacheConfig

    return FirstBlockCacheConfig(threshold=threshold)


def taylorseer_cache(interval: float) -> Any:
    """The configuration of a cache that computes attention anew after so many steps, and continues it in between."""
    from diffusers import TaylorSeerCacheConfig

    return TaylorSeerCacheConfig(cache_interval=int(interval))


def cache_of(model: Any) -> Any:
    """The configuration of the cache that a model of diffusers has, or None."""
    return model._cache_config


def enable_cache(model: Any, config: Any) -> None:
    """Puts a cache on a model of diffusers; one that fails half way is taken off again."""
    try:
        model.enable_cache(config)
    except BaseException:
        model._cache_config = config
        model.disable_cache()
        raise


def disable_cache(model: Any) -> None:
    """Takes the cache of a model of diffusers off."""
    model.disable_cache()


def reset_cache(model: Any) -> None:
    """Has the cache of a model, if it has one, forget what earlier steps left, as a pipeline does after a call."""
    if getattr(model, "is_cache_enabled", False):
        model._reset_stateful_cache()


def _cache_hooks(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """The path of each part with hooks of diffusers, and the name of each hook, and the hook."""
    for path, part in model.named_modules():
        registry = vars(part).get("_diffusers_hook")
        yield from ((path, name, hook) for name, hook in (registry.hooks.items() if registry else ()))


def cached_parts(model: nn.Module) -> list[str]:
    """The paths of the parts that the cache of a model may leave out."""
    from diffusers.hooks.first_block_cache import _FBC_BLOCK_HOOK
    from diffusers.hooks.taylorseer_cache import _TAYLORSEER_CACHE_HOOK

    return [path for path, name, _ in _cache_hooks(model) if name in (_FBC_BLOCK_HOOK, _TAYLORSEER_CACHE_HOOK)]


def hooks_of_cache(model: nn.Module) -> list[Any]:
    """The hooks of diffusers on the parts of a model."""
    return [hook for _, _, hook in _cache_hooks(model)]


def components_for_loras(pipe: Any) -> list[str]:
    """The names of the components of a diffusers pipeline that can take a LoRA."""
    return list(getattr(pipe, "_lora_loadable_modules", ()))


# transformers


def dtype_exceptions(module: Any, dtype: torch.dtype) -> Mapping[str, torch.dtype]:
    """Parts of weight names of a transformers model whose weights from_pretrained keeps in another dtype."""
    plan: Mapping[str, torch.dtype] = module._get_dtype_plan(dtype)
    return plan


def configs_in(config: Any) -> list[Any]:
    """A configuration of transformers and those of its parts."""
    parts = (getattr(config, key, None) for key in getattr(config, "sub_configs", ()))
    return [config, *(part for part in parts if part is not None)]


def names_after_loading(module: Any, stored: Iterable[str]) -> dict[str, str] | None:
    """The name under which transformers loads each stored weight; None where it would change tensors too."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    steps = get_model_conversion_mapping(module)
    renamings = [step for step in steps if isinstance(step, WeightRenaming)]
    converters = [step for step in steps if isinstance(step, WeightConverter)]
    state = module.state_dict()
    names = {}
    for old in stored:
        new, converted = rename_source_key(old, renamings, converters, module.base_model_prefix, state)
        if new not in state and old in state:
            new, converted = rename_source_key(old, [], [], module.base_model_prefix, state)
        if converted is not None:
            return None
        names[old] = new
    return names


def mark_initialized(tensor: torch.Tensor) -> torch.Tensor:
    """Tells transformers not to write random numbers into a tensor; returns the tensor."""
    tensor._is_hf_initialized = True  # type: ignore[attr-defined]
    return tensor


def returns_caches(model: nn.Module) -> bool:
    """Whether a model whose configuration says so returns keys and values for the next token; encoders do not."""
    config: Any = model.config
    is_encoder = getattr(config, "is_decoder", None) is False and getattr(config, "add_cross_attention", None) is False
    if is_encoder and not config.is_encoder_decoder:
        return False
    parameters: Any = inspect.signature(type(model).forward).parameters
    return bool("use_cache" in parameters)


def is_called_by_diffusers() -> bool:
    """Whether the code that calls a model is a pipeline's, which reads no more than it asks for."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if library not in _BETWEEN:
            return library == "diffusers"
        frame = frame.f_back
    return False


_BETWEEN = ("dovetail", "torch", "transformers", "accelerate", "contextlib", "functools")

# peft

_PLAIN_LORA = ("Linear", "Conv1d", "Conv2d", "Conv3d")


def is_plain_lora(layer: Any) -> bool:
    """Whether a layer of peft adds low-rank products to a plain matmul or convolution and does nothing else."""
    kind = type(layer)
    if kind.__module__ != "peft.tuners.lora.layer" or kind.__name__ not in _PLAIN_LORA:
        return False
    return not layer.lora_variant and not getattr(layer, "fan_in_fan_out", False)


_LORA_PARTS = ("lora_A", "lora_B", "lora_dropout")


def lora_tables(layer: Any) -> list[nn.ModuleDict]:
    """What a LoRA layer has for its adapters by their names: both matrices and a dropout."""
    return [layer._modules[name] for name in _LORA_PARTS]


def lora_modules(layer: Any) -> list[nn.Module]:
    """The modules that a LoRA layer calls beside the one that it wraps."""
    return [one for table in lora_tables(layer) for one in table._modules.values() if one is not None]


def lora_parts(layer: Any, adapter: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of the two matrices of an adapter in a LoRA layer, down and up, by name.

    They are looked up directly, past ``nn.Module.__getattr__``, for it happens at every call.
    """
    modules = layer._modules
    return modules["lora_A"]._modules[adapter]._parameters, modules["lora_B"]._modules[adapter]._parameters


def has_lora(layer: Any, adapter: str) -> bool:
    """Whether a LoRA layer has an adapter of that name."""
    return adapter in layer._modules["lora_A"]._modules


_DRAWN = (True, False, "gaussian", "orthogonal")
"""How peft initializes adapters without looking at the weights that they belong to."""


def is_computed_from_weights(config: Any) -> bool:
    """Whether peft computes a new adapter of such a configuration from the weights that it is added to."""
    return bool(getattr(config, "use_dora", False)) or getattr(config, "init_lora_weights", True) not in _DRAWN


FUSES = ("fuse_lora", "unfuse_lora")
"""The methods of pipelines and of their models that merge adapters into weights, and take them out."""

FUSED = "_merged_adapters"
"""The attribute in which a pipeline counts the adapters that are merged."""


def adapters_to_merge(layer: Any, names: Sequence[str] | None) -> list[str]:
    """Which adapters peft's ``merge`` would merge: the named ones, or the active ones, without those merged already."""
    from peft.tuners.tuners_utils import check_adapters_to_merge

    return list(check_adapters_to_merge(layer, None if names is None else list(names)))


def adapter_configs(module: nn.Module) -> tuple[Any, ...]:
    """The objects in which peft keeps the adapters of a model; other ones after some were added or deleted."""
    config = getattr(module, "peft_config", None)
    return (config, *config, *config.values()) if isinstance(config, dict) else (config,)
