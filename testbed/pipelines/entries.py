"""How the tables of tiny pipelines are written: a class, a maker of its parts, and what a call is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers

from . import tiny_text
from .tiny_pipelines import Made, picture

Parts = Callable[[], dict[str, Any]]


def entry(kind: str, parts: Parts, call: dict[str, Any], **options: Any) -> Callable[[], Made]:
    """A maker of a pipeline of this class; callables in the call are called, so that tensors are made late."""

    def make() -> Made:
        given = {name: value() if callable(value) else value for name, value in call.items()}
        return getattr(diffusers, kind)(**parts(), **options), given

    return make


def image(size: int = 32, channels: int = 3, scale: float = 1.0) -> Callable[[], torch.Tensor]:
    def make() -> torch.Tensor:
        return torch.rand(1, channels, size, size, generator=torch.Generator().manual_seed(3)) * scale

    return make


def embedding(*size: int, seed: int = 4) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(size, generator=torch.Generator().manual_seed(seed))


def mask(size: int = 32) -> torch.Tensor:
    made = torch.zeros(1, 1, size, size)
    made[..., size // 4 : size // 2, size // 4 : size // 2] = 1
    return made


def frames(count: int = 5, size: int = 16) -> list[Any]:
    from PIL import Image

    return [Image.new("RGB", (size, size), (20 * index, 90, 200 - 10 * index)) for index in range(count)]


def still(size: int = 16) -> Any:
    return frames(1, size)[0]


def free(**call: Any) -> dict[str, Any]:
    """A call that takes its size from the pictures it is given."""
    return {name: value for name, value in picture(**call).items() if name not in ("height", "width")}


def seeing(width: int = 32, size: int = 32, patch: int = 8) -> Any:
    """A CLIP encoder of pictures."""
    torch.manual_seed(width)
    config = transformers.CLIPVisionConfig(
        hidden_size=width,
        projection_dim=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=size,
        intermediate_size=37,
        patch_size=patch,
    )
    return transformers.CLIPVisionModelWithProjection(config).eval()


def processor(size: int = 32) -> Any:
    return transformers.CLIPImageProcessor(crop_size=size, size=size)


def decoder_config(**more: Any) -> dict[str, Any]:
    """What the language models that only decode have in common."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    marks = {"bos_token_id": 3, "eos_token_id": 1, "pad_token_id": 0, "vocab_size": tiny_text.VOCABULARY}
    return {**sizes, "num_key_value_heads": 2, **marks, **more}


def text(kind: str = "T5", width: int = 32, length: int = 16) -> dict[str, Any]:
    return {"text_encoder": tiny_text.t5(width, kind=kind), "tokenizer": tiny_text.t5_tokenizer(length)}


def made(kind: str, seed: int = 0, **config: Any) -> Any:
    """A component of diffusers with random weights."""
    torch.manual_seed(seed)
    return getattr(diffusers, kind)(**config).eval()
