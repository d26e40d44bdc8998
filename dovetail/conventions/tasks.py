"""Which of diffusers' pipelines does another task with the same models: paints over a picture, fills a mask."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from ..compiler.errors import UsageError

_CONTROL = "-controlnet"
_FROM_IMAGE = ("ImageToVideo", "Image2Video", "Img2Img")
_INPAINT = ("Inpaint",)


def class_for(name: str, *, image: bool = False, mask: bool = False, controlnet: bool = False) -> Any:
    """The class of a pipeline that takes such inputs, for a folder whose index names another one, or the same.

    Args:
        name: the class that the index of the folder names.
        image: whether it is to begin with a picture.
        mask: whether it is to fill a part of that picture.
        controlnet: whether a ControlNet is added to its models.

    Returns:
        The class, of diffusers' own tables of tasks (``AutoPipelineForImage2Image`` and the like), or of the name that
        diffusers gives such classes, where they are in no table: those of videos; None where this diffusers knows no
        class of that name, so that nothing can be said of it.

    Raises UsageError where diffusers has no such pipeline for these models, or it needs models that are not there.
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
    if found is None and not adds:
        found = _by_name(own, image=image, mask=mask)
    if found is None:
        wanted = [
            word for word, is_wanted in (("an image", image), ("a mask", mask), ("a ControlNet", adds)) if is_wanted
        ]
        raise UsageError(f"diffusers has no pipeline that takes {' and '.join(wanted)} for the models of {name}")
    return found


def _by_name(own: Any, *, image: bool, mask: bool) -> Any:
    """The class that is called like a pipeline, and as those that take such inputs; None where there is none.

    Raises UsageError where each that there is needs models which the pipeline has not.
    """
    import diffusers

    stem, refusals = own.__name__.removesuffix("Pipeline"), []
    for task in _INPAINT if mask else _FROM_IMAGE:
        found = getattr(diffusers, f"{stem}{task}Pipeline", None)
        if found is None or not takes(found, image=image, mask=mask):
            continue
        lacking = sorted(_needed(found) - inspect.signature(own.__init__).parameters.keys())
        if not lacking:
            return found
        refusals.append(f"{found.__name__} needs {' and '.join(lacking)}, which {own.__name__} has not")
    if refusals:
        raise UsageError(f"{'; '.join(refusals)}: name the folder of a pipeline that has all of them (--model)")
    return None


def _needed(cls: Any) -> set[str]:
    """The components without which a pipeline is not made."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    named = {one.name for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD}
    return named - set(cls._optional_components)


@contextlib.contextmanager
def told_of_models(cls: Any, name: str) -> Iterator[None]:
    """Raises UsageError in place of an error of PyTorch where another class than the folder names has its models.

    Models that begin with text alone may have other sizes than those that take a picture, and no config says so.
    """
    try:
        yield
    except RuntimeError as error:
        if cls is None or cls.__name__ == name or _family(cls.__name__):  # those of a table have the same models
            raise
        raise UsageError(
            f"the models of {name} do not compute with what {cls.__name__} gives them ({error}): name the folder of "
            f"models that were trained for it (--model), whose model_index.json says {cls.__name__}"
        ) from error


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
