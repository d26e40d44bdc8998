"""Which of diffusers' pipelines does another task with the same models: paints over a picture, fills a mask."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..compiler.errors import UsageError

_CONTROL = "-controlnet"


def class_for(name: str, *, image: bool = False, mask: bool = False, controlnet: bool = False) -> Any:
    """The class of a pipeline that takes such inputs, for a folder whose index names another one, or the same.

    Args:
        name: the class that the index of the folder names.
        image: whether it is to begin with a picture.
        mask: whether it is to fill a part of that picture.
        controlnet: whether a ControlNet is added to its models.

    Returns:
        The class, of diffusers' own tables of tasks (``AutoPipelineForImage2Image`` and the like); None where this
        diffusers knows no class of that name, so that nothing can be said of it.

    Raises UsageError where diffusers has no such pipeline for these models.
    """
    import diffusers

    own = getattr(diffusers, name, None)
    if own is None or not (image or mask or controlnet):
        return own
    adds = controlnet and not has_controlnet(own)
    if not adds and takes(own, image=image, mask=mask):
        return own
    family = _family(name) + (_CONTROL if adds else "")
    found = _table(image=image, mask=mask).get(family)
    if found is None:
        wanted = [
            word for word, is_wanted in (("an image", image), ("a mask", mask), ("a ControlNet", adds)) if is_wanted
        ]
        raise UsageError(f"diffusers has no pipeline that takes {' and '.join(wanted)} for the models of {name}")
    return found


def has_controlnet(cls: Any) -> bool:
    """Whether a pipeline has a ControlNet among its models."""
    return "controlnet" in inspect.signature(cls.__init__).parameters


def takes(cls: Any, *, image: bool, mask: bool) -> bool:
    """Whether a pipeline begins with a picture, and with a mask; its picture may be for its ControlNet instead."""
    known = inspect.signature(cls.__call__).parameters
    begins = "image" in known and ("control_image" in known or not has_controlnet(cls))
    return (begins or not image) and ("mask_image" in known or not mask)


def _table(*, image: bool, mask: bool) -> Mapping[str, Any]:
    from diffusers.pipelines import auto_pipeline as tables

    one = "INPAINT" if mask else "IMAGE2IMAGE" if image else "TEXT2IMAGE"
    found: Mapping[str, Any] = getattr(tables, f"AUTO_{one}_PIPELINES_MAPPING")
    return found


def _family(name: str) -> str:
    """What diffusers calls the models of a pipeline in its tables; empty for one that is in none of them."""
    tables = (_table(image=False, mask=False), _table(image=True, mask=False), _table(image=True, mask=True))
    return next((key for table in tables for key, cls in table.items() if cls.__name__ == name), "")
