"""What load_pipeline and load_single_file make of each argument of diffusers' from_pretrained and from_single_file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..compiler.errors import UsageError

TAKEN = {
    "pretrained_model_name_or_path": "the first argument: a folder, or a repository on the Hub",
    "pretrained_model_link_or_path": "the first argument of `load_single_file`: a safetensors or GGUF file",
    "dtype": 'one for all, or by component; `torch.float16`, `"float16"` or `"auto"`',
    "torch_dtype": "the older name of `dtype`",
    "variant": 'which of the files, such as `"fp16"`',
    "revision": "where on the Hub",
    "token": "where on the Hub",
    "cache_dir": "where on the Hub",
    "local_files_only": "where on the Hub",
    "force_download": "downloads what is in the cache already",
    "device_map": 'another spelling of `backend`: `"balanced"`, or a dict of component and device',
    "max_memory": "another spelling of `max_vram`",
    "use_safetensors": "`True` refuses components that have pickles alone; `False` is refused",
    "low_cpu_mem_usage": "of components that their library loads; others are built without weights in any case",
    "custom_pipeline": "the file, folder or repository of a pipeline's class",
    "custom_revision": "that of `custom_pipeline`",
    "trust_remote_code": "whether code from the Hub may run",
    "quantization_config": "diffusers' `PipelineQuantizationConfig`: what it names is quantized by its library, "
    "through host memory, and runs as it is; `quant` packs while loading and splits what it packed",
    "config": "of `load_single_file`: the folder or repository of a pipeline that has the configs",
    "kwargs": "components by name, `vae=…`, `safety_checker=None`, and what else the pipeline's class takes",
}
"""What each argument that is taken means."""

_MEMORY = 'params_backend="disk" keeps weights in their files, or load with diffusers and call compile_pipeline'
_DIFFUSERS = "load with diffusers and call compile_pipeline"
_CONFIG = "give config, the folder of a pipeline of this kind"
REFUSED = {
    "proxies": "huggingface_hub takes proxies from the environment: set HTTPS_PROXY",
    "mirror": "diffusers does nothing with it: set HF_ENDPOINT",
    "offload_folder": f"dovetail places weights: {_MEMORY}",
    "offload_state_dict": f"dovetail reads weights one at a time: {_MEMORY}",
    "disable_mmap": f"dovetail maps weights that stay in host memory: {_DIFFUSERS}",
    "use_onnx": "dovetail compiles PyTorch's modules: leave it out",
    "provider": "dovetail compiles PyTorch's modules, and this is of ONNX: leave it out",
    "provider_options": "dovetail compiles PyTorch's modules, and this is of ONNX: leave it out",
    "sess_options": "dovetail compiles PyTorch's modules, and this is of ONNX: leave it out",
    "use_flashpack": "dovetail reads safetensors and GGUF: leave it out",
    "dduf_file": "diffusers reads no DDUF file any more: give the folder of the pipeline",
    "load_connected_pipeline": f"it loads a second pipeline: {_DIFFUSERS}",
    "output_loading_info": "diffusers has it for models and not for pipelines: leave it out",
    "original_config": f"dovetail reads diffusers' configs: {_CONFIG}",
    "original_config_file": f"dovetail reads diffusers' configs: {_CONFIG}",
    "load_safety_checker": "give the object: safety_checker=…",
    "scaling_factor": "diffusers ignores it: set pipe.vae.config.scaling_factor",
}
"""Why each argument that is not taken is refused, and what does the same; None and False are what leaves it out."""

_OF_THE_HUB = ("force_download",)
_OF_BOTH = ("use_safetensors", "custom_pipeline", "custom_revision", "trust_remote_code")
_OF_LOADING = ("low_cpu_mem_usage", "quantization_config")


@dataclass(frozen=True)
class Pretrained:
    """Arguments by who takes them: components by name, the download, diffusers' own loading."""

    components: Mapping[str, Any]
    hub: Mapping[str, Any]
    loading: Mapping[str, Any]


def sorted_out(given: Mapping[str, Any], function: str = "load_pipeline") -> Pretrained:
    """Sorts what was given besides the named arguments of a function; raises UsageError for what is refused."""
    for name, why in REFUSED.items():
        if given.get(name) not in (None, False):
            raise UsageError(f"{function} does not take {name}: {why}")
    if given.get("use_safetensors") is False:
        raise UsageError(f"{function} does not take use_safetensors=False: pickles can run code: leave it out")
    if given.get("quantization_config") is not None and function == "load_single_file":
        raise UsageError(
            "load_single_file does not take quantization_config: quant packs weights while they are loaded: "
            "quant='transformer=q8_0'"
        )
    there = {name: value for name, value in given.items() if value is not None}
    hub = {name: there[name] for name in (*_OF_THE_HUB, *_OF_BOTH) if name in there}
    loading = {name: there[name] for name in (*_OF_LOADING, *_OF_BOTH) if name in there}
    known = {*REFUSED, *_OF_THE_HUB, *_OF_BOTH, *_OF_LOADING}
    return Pretrained({name: value for name, value in given.items() if name not in known}, hub, loading)


def table() -> str:
    """The arguments as a table in Markdown."""
    rows = list(TAKEN.items()) + [(name, f"refused: {why}") for name, why in REFUSED.items()]
    return "\n".join(["| argument | what it does |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in rows)])
