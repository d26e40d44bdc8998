"""The options that name pictures to begin with, and what they become as arguments of a pipeline's call."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from ...compiler.errors import UsageError
from ...conventions.hub import read_json
from .call import takes
from .subject import Pipeline
from .words import words_of

if TYPE_CHECKING:
    from PIL import Image

logger = logging.getLogger(__name__)

INPUTS = "Pictures to begin with"
_BYTE = 255
_BITS = 258
"""The tag of a TIFF that says how many bits a level has."""
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0
"""The tag of a TIFF that says what a level means, and that of a negative, which Pillow turns for 8 bits alone."""
_DEEP = ("PNG", "PPM", "TIFF", "JPEG2000")
"""The formats whose levels of 16 bits go from black to white."""
_STEP = 16
"""A picture's size is rounded down to a multiple of so many pixels, as the models take them."""


def _input(*names: str, metavar: str, help: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=INPUTS)


@dataclass(frozen=True)
class Inputs:
    """Pictures and a ControlNet, as they were typed."""

    image: Annotated[
        Path | None, _input("-i", "--image", "--init-img", metavar="FILE", help="Begin with this picture.")
    ] = None
    mask: Annotated[
        Path | None, _input("--mask", metavar="FILE", help="Replace the picture only where this one is white.")
    ] = None
    strength: Annotated[
        float | None,
        typer.Option(help="How much of the picture to change: 0 to 1.", min=0, max=1, rich_help_panel=INPUTS),
    ] = None
    control_image: Annotated[
        Path | None, _input("--control-image", metavar="FILE", help="What the ControlNet is to follow.")
    ] = None
    control_net: Annotated[
        Path | None, _input("--control-net", metavar="FOLDER", help="A ControlNet to add to the model.")
    ] = None
    control_strength: Annotated[
        float | None, typer.Option(help="How closely to follow it.", min=0, rich_help_panel=INPUTS)
    ] = None

    def check(self) -> None:
        """Raises UsageError for a mask without a picture, and for files that are not there."""
        if self.mask and not self.image:
            raise UsageError("--mask says which part of a picture is replaced: give that picture with --image")
        if self.strength is not None and not self.image:
            raise UsageError("--strength says how much of a picture is changed: give that picture with --image")
        if self.control_strength is not None and not self.control_image:
            raise UsageError("--control-strength says how closely to follow a picture: give it with --control-image")
        for option, path in (("--image", self.image), ("--mask", self.mask), ("--control-image", self.control_image)):
            if path is not None and not path.is_file():
                raise UsageError(f"{option}: there is no file {path}")
        if self.control_net is not None and not (self.control_net / "config.json").is_file():
            raise UsageError(f"--control-net: {self.control_net} is no ControlNet's folder: it has no config.json")

    def added_to(self, pipeline: Pipeline) -> Pipeline:
        """A pipeline with the ControlNet among its components, so that it can be placed."""
        if self.control_net is None:
            return pipeline
        return replace(pipeline, components={**pipeline.components, "controlnet": "controlnet"})

    @property
    def kinds(self) -> dict[str, bool]:
        """What a pipeline must take, as `conventions.tasks.class_for` wants to know it."""
        return {
            "image": self.image is not None,
            "mask": self.mask is not None,
            "controlnet": self.control_net is not None,
        }

    def options(self) -> dict[str, Any]:
        """What was typed, by the names that `call.check_options` knows."""
        given = {
            "image": self.image,
            "mask_image": self.mask,
            "strength": self.strength,
            "control_image": self.control_image,
            "controlnet_conditioning_scale": self.control_strength,
        }
        return {name: value for name, value in given.items() if value is not None}

    def words(self) -> list[str]:
        """The pictures and the ControlNet, as they are typed."""
        pictures = {"--image": self.image, "--mask": self.mask, "--strength": self.strength}
        control = {"--control-image": self.control_image, "--control-net": self.control_net}
        return words_of({**pictures, **control, "--control-strength": self.control_strength})

    def arguments(self, cls: Any, size: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call: pictures in the size that was asked for, else in their own, which is asked for then.

        Args:
            cls: the class of the pipeline, None where it is not known; one that takes no size paints in the picture's.
            size: ``height`` and ``width`` as far as they were typed.
        """
        pictures = {
            name: read_picture(path, name, str(path)) for name, path in self.options().items() if isinstance(path, Path)
        }
        sized = in_size(pictures, cls, size)
        first = next((name for name in ("image", "control_image") if name in pictures), None)
        if first is not None and not (size.get("height") or size.get("width")):
            _tell_rounded(str(self.options()[first]), pictures[first].size, sized[first].size)
        return {**self.options(), **sized}

    def components(self, dtype: Any) -> dict[str, Any]:
        """The ControlNet, as `dovetail.load_pipeline` takes components; raises UsageError where it cannot be read."""
        if self.control_net is None:
            return {}
        import diffusers

        name = read_json(self.control_net / "config.json").get("_class_name", "ControlNetModel")
        cls = getattr(diffusers, str(name), None)
        if not inspect.isclass(cls) or not hasattr(cls, "from_pretrained"):
            raise UsageError(f"--control-net: diffusers has no {name}, which {self.control_net} is")
        try:
            return {"controlnet": cls.from_pretrained(self.control_net, torch_dtype=dtype, local_files_only=True)}
        except (OSError, ValueError) as error:
            raise UsageError(f"--control-net: cannot read {self.control_net}: {error}") from error


NO_INPUTS = Inputs()
"""Nothing to begin with."""


def in_size(pictures: Mapping[str, Image.Image], cls: Any, size: Mapping[str, Any]) -> dict[str, Any]:
    """Pictures in the size that was asked for, else in that of the first, which is asked for then.

    Args:
        pictures: by the parameters of a call.
        cls: the class of the pipeline, None where it is not known; one that takes no size paints in the picture's.
        size: ``height`` and ``width`` as far as they were typed.
    """
    first = pictures.get("image") or pictures.get("control_image")
    if first is None:
        return {}
    width, height = size.get("width") or _rounded(first.width), size.get("height") or _rounded(first.height)
    sized = {name: picture.resize((width, height)) for name, picture in pictures.items()}
    both = {"height": height, "width": width} if cls is None or takes(cls, "height") else {}
    return {**sized, **both}


def read_picture(
    file: Path | IO[bytes], parameter: str, told: str, kinds: tuple[str, ...] | None = None
) -> Image.Image:
    """A picture as a parameter of a call takes it: a mask is grey.

    Args:
        file: where it is read from.
        parameter: the name of the parameter.
        told: what the file is called in the error.
        kinds: the formats that are read, as Pillow calls them; all that it knows if left out.

    Raises UsageError for what is no such picture.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(file, formats=kinds) as picture:  # photographs say how they are to be turned, as in diffusers
            most = _most_level(picture, told)
            turned = ImageOps.exif_transpose(picture)
            if most != _BYTE:
                turned = _in_eight_bits(turned, most)
                is_negative = getattr(picture, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
                turned = ImageOps.invert(turned) if is_negative else turned
            return turned.convert("L" if parameter == "mask_image" else "RGB")
    except UnidentifiedImageError as error:
        raise UsageError(f"cannot read a picture from {told}: it is none; give a PNG, JPEG or WebP file") from error
    except (OSError, Image.DecompressionBombError) as error:
        raise UsageError(f"cannot read a picture from {told}: {error}") from error


def _most_level(picture: Image.Image, told: str) -> int:
    """The level of white in a picture that was opened; raises UsageError for numbers of no known range."""
    mode, tags = picture.mode, getattr(picture, "tag_v2", {})
    if not mode.startswith(("I", "F")):
        return _BYTE
    if picture.format not in (_DEEP if mode.startswith("I;16") else ("PNG", "PPM") if mode == "I" else ()):
        raise UsageError(f"{told} has levels of no known range ({mode}): save it with 8 or 16 bits a channel")
    bits = (tags.get(_BITS) or (16,))[0]  # a TIFF may have 12
    return int(2**bits - 1)


def _in_eight_bits(picture: Image.Image, most: int) -> Image.Image:
    """A picture whose levels are 0 to 255: Pillow cuts those of 16 bits off there, so that most of them are white."""
    import numpy as np
    from PIL import Image

    levels = np.minimum(np.asarray(picture).astype(np.uint32), most)
    return Image.fromarray(((levels * _BYTE + most // 2) // most).astype(np.uint8))


@functools.cache
def _tell_rounded(file: str, found: tuple[int, int], taken: tuple[int, int]) -> None:
    """Says once of a picture that is taken in another size than its own, though no size was typed."""
    if found != taken:
        logger.warning(
            "%s has %d x %d pixels and is taken as %d x %d, multiples of %d, as models take them: --size says another",
            file, *found, *taken, _STEP,
        )  # fmt: skip


def _rounded(pixels: int) -> int:
    return max(_STEP, pixels // _STEP * _STEP)
