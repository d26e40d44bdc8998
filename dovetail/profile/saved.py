"""Has plans rest on a profile: what a device took longer than was predicted, later predictions have longer too."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..compiler.devices.device import Device
from ..compiler.devices.measured_speeds import keep_host, keep_speed, speeds_file
from ..compiler.devices.rig import Rig
from ..compiler.devices.speeds import Speed
from ..compiler.errors import DovetailError, UsageError
from ..fitting.decide import speeds_here
from ..runtime.devices.card_speeds import forget, key_of, scaled
from .compare import Compared

_LOADS = "loads to "
_WITHIN = 100.0
"""So many times what was predicted, or so small a part of it, is a mistake of the profile and no card's speed."""


def check_is_newer(profile: Path) -> None:
    """Raises UsageError for a profile from before speeds were kept last: its predictions rest on other ones."""
    kept = speeds_file()
    if kept is not None and kept.exists() and kept.stat().st_mtime_ns > profile.stat().st_mtime_ns:
        raise UsageError(
            f"{profile} was written before {kept} was, so that its predictions use other speeds: profile a call "
            "again (dovetail generate --profile FILE), and save that"
        )


def saved(rows: Sequence[Compared]) -> Iterator[str]:
    """Writes the speeds of the devices of this machine that a profile measured; a sentence for each device.

    Raises UsageError where it measured none, and DovetailError where nothing can be kept.
    """
    computing, loading = _ratios(rows, ""), _ratios(rows, _LOADS)
    names = [name for name in computing if not Device.named(name).is_simulated]
    rig = Rig.detect(())
    here = [device for device in map(Device.named, names) if device in rig.memory or device.is_host]
    if not here:
        what = ", ".join(computing) or "no device"
        raise UsageError(f"the profile measured {what}: only what real devices of this machine took feeds plans")
    if speeds_file() is None:
        raise DovetailError("nothing is kept, for DOVETAIL_CACHE is off: switch it on to keep speeds")
    speeds = speeds_here(rig)
    for device in here:
        ratio, loads = computing[device.name], loading.get(device.name, 1.0)
        _keep(device, rig, scaled(speeds[device], ratio, loads))
        yield f"{device} computes {ratio:.2f} times as long as was predicted: the next plans count on that"
    forget()


def _keep(device: Device, rig: Rig, speed: Speed) -> None:
    kept = keep_host(speed) if device.is_host else keep_speed(speeds_file(), key_of(rig[device].label), speed)
    if not kept:
        raise DovetailError(f"the speed of {device} cannot be written to {speeds_file()}")


def _ratios(rows: Iterable[Compared], prefix: str) -> dict[str, float]:
    """Measured over predicted of all that the lanes of devices did, by device; ``prefix`` is that of the lanes."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        name = row.lane.removeprefix(prefix)
        if row.ratio is None or not row.lane.startswith(prefix) or not _is_device(name):
            continue
        sums[name][0] += row.calls * (row.measured or 0.0)
        sums[name][1] += row.calls * (row.predicted or 0.0)
    found = {name: measured / predicted for name, (measured, predicted) in sums.items() if predicted}
    return {name: ratio for name, ratio in found.items() if 1 / _WITHIN < ratio < _WITHIN}


def _is_device(name: str) -> bool:
    try:
        return str(Device.named(name)) == name
    except DovetailError:
        return False
