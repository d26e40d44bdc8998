"""What other tools' published rules make of the same components, with the same predictions of time and memory.

stable-diffusion.cpp: `docs/backend.md` of its repository, "Automatic placement". accelerate: its own
`infer_auto_device_map`, on modules without data.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.compiler.devices.device import Device
from dovetail.compiler.units import GIB, MIB
from dovetail.passes.fit.grains import EXPOSED
from dovetail.passes.fit.machine import Machine
from dovetail.passes.fit.workload import Load
from testbed.zoo.full_size_pipelines import PARTS

MARGIN = 512 * MIB
RESERVES = {"diffusion": 2 * GIB, "te": 2 * GIB, "vae": GIB}


@dataclass(frozen=True)
class Other:
    """What a rule decides: the seconds of a picture, or why it does not run; and where each component is."""

    seconds: float | None
    why: str
    places: Mapping[str, str]


def stable_diffusion_cpp(loads: Sequence[Load], machine: Machine, free: Mapping[Device, int]) -> Other:
    """Its auto-fit: all graphs on the card with most memory, weights there, else in RAM, on another card, or on disk.

    Fixed reserves stand for what computing takes. A component whose weights lie elsewhere needs its reserve and the
    room of two blocks on the card. What computing really takes is counted here as for dovetail; a decoder that does not
    fit is retried in tiles.
    """
    cards = [device for device in machine.devices if device != machine.host]
    main = max(cards, key=lambda device: free[device])
    left = {device: free[device] - MARGIN for device in cards}
    ram = free[machine.host] - max(2 * GIB, free[machine.host] // 10)
    speed, places, seconds, why = machine.speeds[main], {}, 0.0, ""
    resident = 0
    for role in ("diffusion", "te", "vae"):
        for load in (one for one in loads if one.role == role):
            reserve = RESERVES[role]
            chain, times = load.way(False)
            if load.nbytes + reserve <= left[main]:
                places[load.name], rate = str(main), 0.0
                left[main] -= load.nbytes
                resident += load.nbytes
            elif load.nbytes <= ram:
                places[load.name], rate = "RAM", 1 / machine.speeds.loading(main, False)
                ram -= load.nbytes
            elif other := next((one for one in cards if one != main and load.nbytes + reserve <= left[one]), None):
                places[load.name], rate = str(other), 1 / machine.speeds.crossing(other, main)
                left[other] -= load.nbytes
            else:
                places[load.name], rate = "disk", 1 / machine.speeds.loading(main, True)
            own = load.nbytes if not rate else _least(load)
            room = free[main] - MARGIN - (resident if rate else resident - load.nbytes)
            if own + chain.live > room and role == "vae" and load.tiles:
                chain, times = load.way(True)
            if own + chain.live > room:
                why = why or f"{load.name} needs {(own + chain.live) / GIB:.1f} of {room / GIB:.1f} GiB"
            kept = max(0, room - chain.live - 2 * max((p.largest for p in chain.parts), default=0)) if rate else 0
            streamed = max(0, chain.nbytes - kept) if rate else 0
            computing, loading = chain.seconds(speed), streamed * rate
            seconds += times * (max(computing, loading) + EXPOSED * min(computing, loading))
            seconds += (chain.nbytes - streamed) * rate
    return Other(None if why else seconds, why, places)


def _least(load: Load) -> int:
    """The rest of a component and two of its blocks."""
    return load.chain.rest.nbytes + 2 * max((part.largest for part in load.chain.parts), default=0)


def accelerate(loads: Sequence[Load], parts: Mapping[str, str], machine: Machine, free: Mapping[Device, int]) -> Other:
    """`infer_auto_device_map` for each component, the largest first, in what is left; it counts no values.

    What it puts on `cpu` or `disk` is brought for each module and call, one after another, to the first card.
    """
    cards = [device for device in machine.devices if device != machine.host]
    left = {index: free[device] for index, device in enumerate(cards)}
    host, places, seconds, why = free[machine.host], {}, 0.0, ""
    for load in sorted(loads, key=lambda one: -one.nbytes):
        found = _device_map(parts[load.name], tuple(left.values()), host)
        for index in left:
            left[index] -= found[index]
        host -= found["cpu"]
        places[load.name] = "+".join(str(cards[p]) if isinstance(p, int) else str(p) for p in found if found[p])
        chain, times = load.way(False)
        total = sum(found.values()) or 1
        computing = sum(
            found[p] / total * chain.seconds(machine.speeds[cards[p] if isinstance(p, int) else cards[0]])
            for p in found
        )
        loading = sum(found[p] / machine.speeds.loading(cards[0], p == "disk") for p in ("cpu", "disk"))
        seconds += times * (computing + loading)
        for index in (p for p in found if isinstance(p, int) and found[p]):
            if chain.live > left[index] and not why:
                room = f"{left[index] / GIB:.1f} GiB left on {cards[index]}"
                why = f"{load.name}: {room} for {chain.live / GIB:.1f} of values"
    return Other(None if why else seconds, why, places)


@functools.cache
def _module(part: str) -> object:
    return PARTS[part].make()[0]


def _device_map(part: str, cards: tuple[int, ...], host: int) -> Counter[int | str]:
    """The bytes of a component by place."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import compute_module_sizes

    module = _module(part)
    limits = {**{index: max(0, n) for index, n in enumerate(cards)}, "cpu": max(0, host)}
    kept = list(getattr(module, "_no_split_modules", None) or [])
    sizes = compute_module_sizes(module)
    found: Counter[int | str] = Counter()
    for name, place in infer_auto_device_map(module, max_memory=limits, no_split_module_classes=kept).items():
        found[place] += sizes[name]
    return found
