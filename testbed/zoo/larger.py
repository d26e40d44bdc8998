"""Calls of tiny entries of at least 256 tokens, of sizes that divide by nothing, or of as many as a class takes.

Pictures are made of so many patches along each side, sequences of tokens that were given by hand of so many. What no
class takes is left as it is.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping

import torch
from torch import nn

from .everything import TINY
from .tiny import Call, Draw

SIDES = ((17, 19), (16, 16), (13, 23), (18, 15), (31, 9))
"""Patches along the sides of a picture: all are 256 tokens or more."""

PICTURES = ("hidden_states", "sample", "latent", "controlnet_cond", "control_hidden_states", "input_ids")
"""Arguments whose last two sizes are those of a picture."""

_FEWER = ((12, 11), (8, 8), (7, 5))
"""Sides for classes whose positions end there, the most first."""


def _tokens(call: Call, draw: Draw, sides: tuple[int, int]) -> Call:
    """A call with as many tokens as there are patches, and positions for each."""
    count, made = sides[0] * sides[1], dict(call)
    for name in ("hidden_states", "controlnet_cond"):
        if name in made:
            made[name] = draw(1, count, made[name].shape[-1])
    ids = made.get("img_ids")
    if ids is not None:
        made["img_ids"] = draw.ids(max(sides), *ids.shape[:-2], count, ids.shape[-1])
    if "img_shapes" in made:
        made["img_shapes"] = [(1, *sides)]
    if "num_frames" in made:
        made |= {"num_frames": 1, "height": sides[0], "width": sides[1]}
    return made


def _pictures(call: Call, draw: Draw, sides: tuple[int, int]) -> Call:
    """A call with larger pictures; the sides of a patch are those of the first one, by eight patches or four."""
    made = dict(call)
    for name in PICTURES:
        value = made.get(name)
        if not isinstance(value, torch.Tensor) or value.dim() < 3 or value.shape[-1] < 2:
            continue
        unit = max(1, value.shape[-1] // 4)
        shape = (*value.shape[:-2], sides[0] * unit, sides[1] * unit)
        made[name] = draw(*shape) if value.is_floating_point() else draw.ids(8, *shape)
    return made


def _sentences(call: Call, draw: Draw, sides: tuple[int, int]) -> Call:
    """A call with as many ids of tokens."""
    count, made = sides[0] * sides[1], dict(call)
    ids = made["input_ids"]
    made["input_ids"] = draw.ids(90, ids.shape[0], count)
    if "attention_mask" in made:
        made["attention_mask"] = torch.ones(ids.shape[0], count, dtype=torch.int64)
    return made


Enlarge = Callable[[Call, Draw, tuple[int, int]], Call]


def _kind(call: Mapping[str, object]) -> Enlarge:
    ids, hidden = call.get("input_ids"), call.get("hidden_states")
    if isinstance(ids, torch.Tensor) and ids.dim() == 2:
        return _sentences
    return _tokens if isinstance(hidden, torch.Tensor) and hidden.dim() == 3 and hidden.shape[0] == 1 else _pictures


def sides_taken(name: str, seed: int) -> tuple[int, int] | None:
    """Sides that a class takes, drawn by a seed; None where it takes but those of its entry."""
    with torch.no_grad():  # what weight norm makes of weights is copied as they are
        module, call = TINY[name].make(torch.float32)
    choice = random.Random(f"{name} {seed}")
    for sides in (choice.choice(SIDES), *_FEWER):
        if _takes(module, _kind(call)(call, Draw(torch.float32), sides)):
            return sides
    return None


def _takes(module: nn.Module, call: Call) -> bool:
    try:
        with torch.no_grad():
            copy.deepcopy(module)(**call)
    except (RuntimeError, ValueError, IndexError, AssertionError, TypeError, KeyError):
        return False
    return True


def larger(name: str, sides: tuple[int, int] | None, dtype: torch.dtype, seed: int) -> Call:
    """A call of a tiny entry with other sides; its numbers are drawn by a seed."""
    draw = Draw(dtype, seed)
    call = TINY[name].call(draw)
    return call if sides is None else _kind(call)(call, draw, sides)
