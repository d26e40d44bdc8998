"""Reads what the text form says of one weight behind its type, and of what devices have of a value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..checkpoints.entries import can_be_shape
from ..errors import TextError
from ..ir.slices import Bounds, cover
from ..ir.state import PARTIAL, WHOLE, Halo, Range, Split, State, States
from ..ir.value import TensorType, Value
from ..ir.weight import Weight
from ..spec.residency import Residency
from .tokens import Line


@dataclass(frozen=True)
class WeightText:
    """A weight, its rows on each device, its mark, its block, and where it rests; None where nothing is said."""

    weight: Weight
    bounds: Bounds
    is_eligible: bool
    block: str | None
    rests: Residency | None


def read_weight(kind: str, value: Value, line: Line, devices: int, is_quantized: bool) -> WeightText:
    """What a line says of a weight whose node yields a value, up to its home.

    Raises TextError where that contradicts the value, or the number of devices.
    """
    name = line.text_in_quotes()
    aliases = []
    while line.accept("alias"):
        aliases.append(line.text_in_quotes())
    bounds = read_bounds(line, devices) if line.accept("rows") else ()
    quant = line.take() if line.accept("packed") else ""
    shape, dtype = _numbers_in(line) if quant else _numbers_of(value)
    persistent, frozen = not line.accept("transient"), line.accept("frozen")
    weight = Weight(name, kind, shape, dtype, tuple(aliases), persistent, frozen, quant)
    _check_weight(weight, value, is_quantized)
    is_eligible = line.accept("eligible")
    block = line.text_in_quotes() if line.accept("in") else None
    return WeightText(weight, bounds, is_eligible, block, read_residency(line) if line.accept("rests") else None)


def read_bounds(line: Line, devices: int) -> Bounds:
    """A range of rows or columns for each of some devices, one after another from the first on."""
    found: list[tuple[int, int]] = []
    while not found or line.accept(","):
        found.append(_range(line))
    bounds = tuple(found)
    if len(bounds) != devices or not cover(bounds, bounds[-1][1]):
        raise TextError(f"{devices} ranges, one after another from 0 on, are needed, one a device")
    return bounds


STATES = frozenset({"whole", "split", "halo", "partial"})


def read_states(line: Line, devices: int) -> Iterator[States]:
    """What each of some devices has of each result; raises TextError where ranges do not follow one another."""
    yield (_read_state(line, devices),)
    while line.accept(";"):
        yield (_read_state(line, devices),)


def _read_state(line: Line, devices: int) -> State:
    if line.peek() in ("whole", "partial"):
        return WHOLE if line.take() == "whole" else PARTIAL
    if line.accept("halo"):
        return _read_halo(line, devices)
    line.take("split")
    axis = line.count()
    segments: list[Bounds] = []
    while not segments or line.accept(","):
        line.take("[")
        segments.append(tuple(line.items("]", lambda: _range(line))))
    state = Split(axis, tuple(segments))
    if not all(segments) or not state.covers(devices, state.size):
        raise TextError(f"each segment needs {devices} ranges, one a device, and all follow one another from 0 on")
    return state


def _read_halo(line: Line, devices: int) -> Halo:
    axis = line.count()
    line.take("of")
    size = line.count()
    line.take("[")
    parts = list(line.items("]", lambda: (_range(line), _range(line) if line.accept("zeros") else (0, 0))))
    bounds, zeros = (tuple(part[at] for part in parts) for at in (0, 1))
    state = Halo(axis, bounds, zeros, size)
    if not state.covers(devices, size):
        raise TextError(f"a halo needs {devices} ranges, one a device, within the {size} elements of its axis")
    return state


def _range(line: Line) -> Range:
    start = line.count()
    line.take(":")
    return start, line.count()


def _check_weight(weight: Weight, value: Value, is_quantized: bool) -> None:
    """Raises TextError where a weight is not what its node yields: its bytes, or before quantize ran its numbers."""
    if isinstance(value, tuple) or (value is None) != weight.is_number:
        raise TextError("a weight is one tensor, the scale of an adapter a number")
    held = [weight.stored] if is_quantized else [weight.stored, (weight.shape, weight.dtype)]
    if isinstance(value, TensorType) and (value.sizes, value.dtype) not in held:
        raise TextError("a packed weight does not have as many bytes as its rows take")


def read_residency(line: Line) -> Residency:
    """Where weights rest."""
    word = line.take()
    if word not in {one.value for one in Residency}:
        raise TextError("weights are kept on the cpu or the disk, or on the device that reads them")
    return Residency(word)


def _numbers_of(value: Value) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a weight; one that is a Python number is a float."""
    return (value.sizes, value.dtype) if isinstance(value, TensorType) else ((), torch.float64)


def _numbers_in(line: Line) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of a packed weight, whose value says how its bytes lie."""
    shape, dtype = line.numbers()
    sizes = tuple(size for size in shape if isinstance(size, int))
    if len(sizes) < len(shape) or not can_be_shape(sizes):
        raise TextError("a weight cannot have these sizes")
    return sizes, dtype
