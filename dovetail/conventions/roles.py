"""What each component of a pipeline is for: by its name, or, where that is no role's, by its class.

Pipelines call a denoiser ``prior`` or ``decoder``, and an autoencoder ``movq`` or ``vqgan``. What neither name nor
class tells (a vocoder, a safety checker, a projection) has its own name for a role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..compiler.spec.roles import ROLES, role_of_component

if TYPE_CHECKING:
    from torch import nn

_DIFFUSERS = {
    "controlnet": ("controlnet",),
    "vae": ("autoencoder", "vae", "vqmodel"),
    "diffusion": ("transformer", "unet", "prior", "diffnext"),
}
_TRANSFORMERS = {
    "clip_vision": ("vision",),
    "te": ("text", "t5encoder", "bert", "lmhead", "causallm", "conditionalgeneration"),
}
"""What stands in the names of classes of a library, in small letters; the first that is found counts."""


def role_for(name: str, library: str, class_name: str) -> str:
    """The role of a component from its name, the library that it is from and its class, as model_index.json has them.

    >>> role_for("prior", "diffusers", "PriorTransformer"), role_for("vqgan", "wuerstchen", "PaellaVQModel")
    ('diffusion', 'vae')
    >>> role_for("unet", "diffusers", "AutoencoderKL"), role_for("vocoder", "transformers", "SpeechT5HifiGan")
    ('diffusion', 'vocoder')
    """
    by_name = role_of_component(name)
    if by_name in ROLES:
        return by_name
    kinds: Mapping[str, Sequence[str]] = _TRANSFORMERS if library == "transformers" else _DIFFUSERS
    plain = class_name.lower()
    return next((role for role, parts in kinds.items() if any(part in plain for part in parts)), by_name)


def role_of_module(name: str, module: nn.Module) -> str:
    """The role of a component that is there."""
    kind = type(module)
    return role_for(name, kind.__module__.partition(".")[0], kind.__name__)
