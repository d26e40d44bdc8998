"""Tiny instances of real model classes, with seeded weights and example inputs.

``TINY[name]`` knows how to build a module and a call for it; ``name`` is the class, with a variant or a method behind a
dash (``AutoencoderKL-decode``). The weights are drawn anew for every parameter, so that no output layer is zero and no
uninitialised memory gets in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

Call = dict[str, Any]


class Draw:
    """Draws the tensors of a call: ``draw(2, 3)`` is normal in the model's dtype."""

    def __init__(self, dtype: torch.dtype, seed: int = 1) -> None:
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator).to(self.dtype)

    def float(self, *shape: int) -> torch.Tensor:
        """Uniform between 0 and 1, in fp32 whatever the model's dtype."""
        return torch.rand(shape, generator=self._generator)

    def ids(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, below, shape, generator=self._generator)

    def rotation(self, *shape: int) -> torch.Tensor:
        """Complex numbers of length one."""
        return torch.polar(torch.ones(shape), 6.28 * self.float(*shape))


@dataclass(frozen=True)
class Entry:
    """One class with a config and an example call."""

    name: str
    build: Callable[[], nn.Module]
    call: Callable[[Draw], Call]

    def make(self, dtype: torch.dtype) -> tuple[nn.Module, Call]:
        """The module in eval mode with its weights drawn, and the arguments of a call."""
        torch.manual_seed(0)
        module = self.build().eval()
        draw_weights(module)
        return module.to(dtype), self.call(Draw(dtype))


@torch.no_grad()
def draw_weights(module: nn.Module) -> None:
    """Gives every parameter numbers of a size that keeps activations near one."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() > 1:
            weight.copy_(noise / math.sqrt(math.prod(weight.shape[1:])))
        else:
            weight.copy_(0.1 * noise + (1.0 if name.endswith(("weight", "gamma")) else 0.0))


class Encode(nn.Module):
    """The encoder of an autoencoder; its output is what the latents are drawn from, or the latents."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        encoded = self.model.encode(sample, return_dict=False)[0]
        return getattr(encoded, "parameters", encoded)


class Decode(nn.Module):
    """The decoder of an autoencoder."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, latent: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.model.decode(latent, return_dict=False, **options)[0]


TINY: dict[str, Entry] = {}


def tiny(name: str, config: Mapping[str, Any], call: Callable[[Draw], Call]) -> None:
    """Adds a class of diffusers."""
    cls = name.partition("-")[0]
    TINY[name] = Entry(name, lambda: getattr(diffusers, cls)(**config), call)


def tiny_encoder(name: str, config_class: str, config: Mapping[str, Any], call: Callable[[Draw], Call]) -> None:
    """Adds a class of transformers."""
    cls = name.partition("-")[0]
    TINY[name] = Entry(name, lambda: getattr(transformers, cls)(getattr(transformers, config_class)(**config)), call)


def tiny_vae(
    name: str,
    config: Mapping[str, Any],
    sample: tuple[int, ...] | None,
    latent: tuple[int, ...] | None,
    **options: Callable[[Draw], Any],
) -> None:
    """Adds the encoder, the decoder or both of an autoencoder; ``options`` are further arguments of ``decode``."""

    def build(half: type[nn.Module]) -> Callable[[], nn.Module]:
        return lambda: half(getattr(diffusers, name.partition("-")[0])(**config))

    def decoding(draw: Draw) -> Call:
        assert latent
        return {"latent": draw(*latent), **{key: option(draw) for key, option in options.items()}}

    if sample:
        TINY[f"{name}-encode"] = Entry(f"{name}-encode", build(Encode), lambda draw: {"sample": draw(*sample)})
    if latent:
        TINY[f"{name}-decode"] = Entry(f"{name}-decode", build(Decode), decoding)
