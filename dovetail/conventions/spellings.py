"""The types of settings as Python code spells them: one value, or several by role, component or device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.spec.budget import MaxMemory

if TYPE_CHECKING:
    import torch

DeviceLike: TypeAlias = "str | int | torch.device | Device"
"""A device, such as ``"cuda0"``, ``"cuda:0"``, ``0``, ``torch.device("cuda", 0)``."""

Places: TypeAlias = "DeviceLike | Sequence[DeviceLike] | Mapping[str, DeviceLike | Sequence[DeviceLike]]"
"""Devices for all, ``"cuda0&cuda1"``, or by role or component, ``{"diffusion": [0, 1], "te": "cpu"}``."""

Modes: TypeAlias = "str | Mapping[str, str]"
"""``"row"``, or ``{"diffusion": "row"}``."""

Shares: TypeAlias = "str | Sequence[float] | Mapping[str, str | Sequence[float]]"
"""``"3,1"``, ``[3, 1]``, or ``{"diffusion": [3, 1]}``."""

Amount: TypeAlias = "str | float"
"""``"8GiB"``, ``"80%"``, or a number of GiB."""

Budgets: TypeAlias = "Amount | Mapping[str, Amount] | Mapping[int, Amount]"
"""An amount of each GPU, or ``{"cuda0": "6GiB", "cpu": 20}``."""

Counts: TypeAlias = "int | str | Mapping[str, int | str]"
"""Numbers of chunks or micro-batches, such as ``4``, or ``{"diffusion": 4}``."""

Tiling: TypeAlias = "bool | int | str"
"""``"auto"``, ``"on"``, ``"off"``, or the size of a tile in pixels, ``512`` or ``"512x384"``."""


class Settings(TypedDict, total=False):
    """What a person may ask for of every component, by the names of arguments; what is missing is left open."""

    backend: Places | None
    params_backend: Places | None
    split_mode: Modes | None
    tensor_split: Shares | None
    max_vram: Budgets | None
    max_memory: MaxMemory | None
    rig: Rig | str | None
    chunk: Counts | None
    micro_batches: Counts | None
    bf16_partials: bool
    inductor: bool
    auto_fit: bool
    multi_gpu: bool
