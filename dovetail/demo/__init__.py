"""The built-in demo: a small FLUX pipeline that paints coloured shapes, trained by `python -m dovetail.demo.train`.

It needs no download, so that a first picture, a test and an example have a real, trained diffusion pipeline at hand.
Importing this package is cheap: it only says where the pipeline lies and how to call it.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

DTYPE: Final = "float32"
"""The torch dtype to load the pipeline with; the files hold bfloat16, which a CPU runs no faster at this size."""

CALL_DEFAULTS: Final[Mapping[str, int | float | str]] = MappingProxyType(
    {
        "height": 64,
        "width": 64,
        "max_sequence_length": 12,
        "num_inference_steps": 16,
        "true_cfg_scale": 3.0,
        "negative_prompt": "",
    }
)
"""The keyword arguments of a call of the pipeline that it was trained for."""


def folder() -> Path:
    """Return the folder of the trained pipeline, which `FluxPipeline.from_pretrained` takes as it is."""
    return Path(__file__).parent / "pipeline"


def adapter() -> Path:
    """Return the file of the trained adapter, which paints everything blue; `pipe.load_lora_weights` takes it."""
    return Path(__file__).parent / "lora" / "blue.safetensors"
