"""What a component is for, and the names under which people know it."""

from __future__ import annotations

from collections.abc import Mapping

from ..spans import Span

ROLES: Mapping[str, tuple[str, ...]] = {
    "diffusion": ("model", "unet", "dit", "transformer"),
    "te": ("clip", "text", "textencoder", "textencoders", "conditioner", "cond", "llm", "t5", "t5xxl"),
    "clip_vision": ("vision", "imageencoder"),
    "vae": ("firststage", "autoencoder", "tae"),
    "controlnet": ("control",),
    "upscaler": ("esrgan", "hires"),
    "photomaker": ("photomakerid", "pmid", "photo"),
    "detector": ("adetailer", "yolo"),
}
"""Each role with its other names, written without `-` and `_`."""

DEFAULT_KEYS = ("all", "default", "*")


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


_BY_NAME = {_plain(name): role for role, names in ROLES.items() for name in (role, *names)}


def role_of(name: str) -> str | None:
    """The role that a name stands for, if it does; case, `-` and `_` do not count.

    >>> role_of("Text-Encoder"), role_of("DiT"), role_of("scheduler")
    ('te', 'diffusion', None)
    """
    return _BY_NAME.get(_plain(name))


def role_of_component(attribute: str) -> str:
    """The role of a pipeline's component by its attribute name; its own name if it has none of the known roles.

    >>> role_of_component("text_encoder_2"), role_of_component("transformer"), role_of_component("vocoder")
    ('te', 'diffusion', 'vocoder')
    """
    return role_of(attribute) or role_of(attribute.rstrip("_0123456789")) or attribute


def read_key(span: Span, components: Mapping[str, str]) -> str | None:
    """The role or attribute name that a key means, or None for the default.

    A component's own name means that component alone, even if it is a role's other name too.
    """
    if span.value.lower() in DEFAULT_KEYS:
        return None
    attribute = next((name for name in components if _plain(name) == _plain(span.value)), None)
    role = role_of(span.value)
    key = role if role == attribute or attribute is None else attribute
    if key is None:
        names = [*components, *ROLES, *DEFAULT_KEYS]
        roles = ", ".join(dict.fromkeys(ROLES))
        own = f" or a component ({', '.join(components)})" if components else ""
        problem = f"no role or component is called {span.value!r}" if span.value else "a key is missing before '='"
        raise span.error(problem, f"a role ({roles}){own}, or all", [*names, *_BY_NAME])
    return key
