"""How many replicas a machine takes: as many as its cards hold whole copies of the pipeline, by its plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...cli.options.inputs import NO_INPUTS
from ...cli.options.painting import called
from ...cli.options.shared import Where
from ...compiler.devices.device import Device
from ...compiler.errors import UsageError
from ...fitting.whole_copies import whole_copies
from ..runner import Opening
from .sharing import on_devices, on_groups


def automatic(opening: Opening, given: Mapping[str, Any]) -> list[Where]:
    """What each replica is asked for, of as many as cards hold; one that has all of them where none holds a copy.

    Args:
        opening: how the pipeline is opened.
        given: the arguments of the largest call.

    Raises UsageError where devices were named for components, and DoesNotFitError for a call that finds no room.
    """
    pipeline = opening.pipeline()
    where = _opened(opening.where, pipeline.components)
    _, arguments = called(pipeline, NO_INPUTS, given)
    dry, _ = replace(opening, where=where).loading(pipeline).plan(arguments, rests_in_files=False)
    copies = whole_copies(dry.decision) if dry.decision is not None else []
    groups: list[tuple[Device, ...]] = [one.devices for one in copies]
    return on_groups(where, pipeline.components, groups or [where.check(pipeline.components).rig.gpus])


def _opened(where: Where, components: Mapping[str, str]) -> Where:
    """What was asked for, where one list names devices: with those as the machine's, to be used as is best."""
    request = where.check(components)
    asked = [request.devices_for(name, role) for name, role in components.items() if not request.is_open(name, role)]
    cards = {device: None for devices in asked for device in devices if not device.is_host}
    if not cards:
        return where
    words = [word for _, target in request.backend.named for word in target]
    if not all(device.is_host for word in words for device in word.devices(request.rig)):
        raise UsageError(
            f"--replicas auto finds the devices of each copy, and --backend {where.backend} names them for components: "
            "say how many, such as --replicas 2, or name all devices in one list, as in cuda0+cuda1"
        )
    return on_devices(where, components, list(cards))
