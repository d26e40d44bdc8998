"""`dovetail devices`: what there is to run on."""

from __future__ import annotations

from ..compiler.spec.devices import Device
from ..compiler.spec.devices import Rig as Devices
from ..compiler.spec.units import format_bytes
from .options import Debug, Json, Rig
from .output import print_json, print_table


def devices(rig: Rig = "", json: Json = False, debug: Debug = False) -> None:
    """List the devices with their memory, by the names that --backend takes.

    Simulated devices (sim0, sim1, …) are not listed: naming one makes it.
    """
    found = Devices.parse(rig) if rig else Devices.detect()
    if json:
        print_json({"devices": [facts(device) for device in found]})
        return
    rows = [(d.name, d.label or d.kind, format_bytes(d.free), format_bytes(d.total)) for d in found]
    print_table(("device", "what it is", "free", "total"), rows, right=(2, 3))


def facts(device: Device) -> dict[str, object]:
    """A device as JSON takes it."""
    return {
        "name": device.name,
        "kind": device.kind,
        "label": device.label,
        "free_bytes": device.free,
        "total_bytes": device.total,
        "integrated": device.integrated,
    }
