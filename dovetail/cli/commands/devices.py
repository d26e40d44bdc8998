"""`dovetail devices`: what there is to run on."""

from __future__ import annotations

from ...compiler.spec.devices import Device, Memory
from ...compiler.spec.devices import Rig as Devices
from ...compiler.spec.units import format_bytes
from ..options.shared import Debug, Json, Rig
from ..output.results import print_json, print_table


def devices(rig: Rig = "", json: Json = False, debug: Debug = False) -> None:
    """List the devices with their memory, by the names that --backend takes.

    Simulated devices (sim0, sim1, …) are not listed: naming one makes it.
    """
    found = Devices.parse(rig) if rig else Devices.detect()
    if json:
        print_json({"devices": [facts(*one) for one in found.memory.items()]})
        return
    rows = [(d.name, m.label or d.kind, format_bytes(m.free), format_bytes(m.total)) for d, m in found.memory.items()]
    print_table(("device", "what it is", "free", "total"), rows, right=(2, 3))


def facts(device: Device, memory: Memory) -> dict[str, object]:
    """A device as JSON takes it."""
    return {
        "name": device.name,
        "kind": device.kind,
        "label": memory.label,
        "free_bytes": memory.free,
        "total_bytes": memory.total,
        "integrated": memory.integrated,
    }
