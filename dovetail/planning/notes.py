"""What is said below the table of a plan of the memory of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..compiler.devices.device import Device
from ..compiler.devices.rig import Rig
from ..compiler.devices.speeds import LIKE, Speeds
from ..compiler.states.parts import slot_bytes
from ..compiler.units import format_bytes
from ..fitting.decide import joined
from ..quant.packing import packed_bytes
from ..runtime.store.stored_weight import StoredWeight
from .generation import Generation


def staging_notes(generation: Generation) -> list[str]:
    """How much of the values of devices are slots through which weights are streamed; a line for those of one size."""
    alike: dict[str, list[Device]] = defaultdict(list)
    for device, peak in generation.peaks().items():
        if nbytes := sum(slot_bytes(peak.call.program).get(device, ())):
            alike[format_bytes(nbytes)].append(device)
    return [
        f"values of {joined(devices)} include {size} of staging slots{' each' if len(devices) > 1 else ''}, through "
        "which weights are streamed"
        for size, devices in alike.items()
    ]


def encoder_notes(named: Mapping[str, Sequence[Device]], placed: Mapping[str, Sequence[Device]]) -> list[str]:
    """Which of the ``placed`` text encoders are whole though several devices were ``named``: the largest is split."""
    whole = [name for name, devices in placed.items() if len(devices) == 1 and len(named[name]) > 1]
    return [
        f"{name} is whole on {placed[name][0]}, for of several text encoders the largest alone is split, unless others "
        f"are named ({name}={'&'.join(map(str, named[name]))})"
        for name in whole
    ]


def memory_notes(generation: Generation, asked: Rig) -> list[str]:
    """What the sizes of a rig leave open: whose memory the host's is, and what devices have that share it."""
    rig, notes = generation.rig, []
    shared = [device for device in asked if asked[device].integrated]
    if not (asked.present or shared or rig.host in asked.memory):
        notes.append(
            f"the rig does not say how much RAM it has, so that of this machine counts, of which "
            f"{format_bytes(asked[rig.host].free)} of {format_bytes(asked[rig.host].total)} are free; cpu=64GiB says it"
        )
    for device in (one for one in shared if rig[one].free < rig[one].total - rig[one].reserve):
        notes.append(f"{device} has the host's memory, of which {format_bytes(rig[device].free)} may be used")
    return notes


def file_notes(absent: Mapping[str, int]) -> list[str]:
    """That components are planned as if weight files were there that they lack; ``absent`` has the bytes of each."""
    if not absent:
        return []
    nbytes = format_bytes(sum(absent.values()))
    return [f"weight files of {', '.join(absent)} are not here: {nbytes} are counted as if they lay on disk"]


def packing_notes(components: Mapping[str, Iterable[StoredWeight]]) -> list[str]:
    """For each component whose weights are packed while it is loaded, in which types, and what they take so."""
    notes = []
    for name, weights in components.items():
        entries = [one.file.entry for one in weights if one.file is not None]
        sizes = packed_bytes(entries)
        if sizes:
            whole = format_bytes(sum(entry.nbytes for entry in entries))
            types = " and ".join(f"{format_bytes(nbytes)} of {quant}" for quant, nbytes in sizes.items())
            notes.append(f"{name} is packed when it is loaded first, and kept so: {types}, {whole} with what is not")
    return notes


def card_notes(rig: Rig, speeds: Speeds) -> list[str]:
    """As which cards those count that a rig does not name."""
    guessed: dict[str, list[str]] = defaultdict(list)
    for device in rig.devices:
        label = speeds[device].label
        if label.startswith(LIKE) and not device.is_simulated:
            guessed[label.removeprefix(LIKE)].append(device.name)
    if not guessed:
        return []
    taken = ", ".join(f"{' and '.join(names)} as {card}" for card, names in guessed.items())
    return [f"counted by memory alone: {taken}; --rig names cards, as in cuda0=24GiB@RTX 4090"]
