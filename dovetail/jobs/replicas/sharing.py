"""Which devices each of several replicas has, and what is asked for with these.

Each list of devices in `--backend` is cut into as many equal parts as there are replicas, and so are the cards that no
list names where something is left open. The host, and words that choose, are for all of them; each may use its part of
the host's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...cli.options.shared import Where
from ...compiler.devices.cards import card_of
from ...compiler.devices.device import Device
from ...compiler.devices.memory import Memory
from ...compiler.devices.rig import Rig
from ...compiler.errors import UsageError
from ...compiler.spec.backend import AUTO, BALANCED, GPU, Backend, Target, Word
from ...compiler.spec.budget import Budget
from ...conventions.request import Request

_CHOOSERS = (AUTO, GPU, BALANCED)


def shares(where: Where, components: Mapping[str, str], count: int) -> list[Where]:
    """What each of so many replicas is asked for: the devices that it has, and no others.

    Args:
        where: what was asked for of all of them.
        components: those of the pipeline, attribute name → role.
        count: how many replicas there are.

    Raises UsageError where there are not as many devices as replicas.
    """
    request = replace(where, auto_fit=True).check(components)  # else the main device would be named for each component
    lists = _lists(request.backend, request.rig)
    named = {device for target in lists for device in target if not device.is_host}
    others = tuple(one for one in request.rig.gpus if one not in named) if _leaves_open(request.backend) else ()
    if len(others) >= count or not named:
        lists.append(others)
    cut = {target: _cut(target, count) for target in lists if any(not one.is_host for one in target)}
    groups = [dict.fromkeys(device for parts in cut.values() for device in parts[index]) for index in range(count)]
    _check_apart(groups)
    return [
        _on(where, request, _with(request, cut, index), [*group], count, components)
        for index, group in enumerate(groups)
    ]


def on_groups(where: Where, components: Mapping[str, str], groups: Sequence[Sequence[Device]]) -> list[Where]:
    """What each of several replicas is asked for that has a group of devices, on which nothing was named."""
    request = where.check(components)
    return [_on(where, request, request.backend, group, len(groups), components) for group in groups]


def on_devices(where: Where, components: Mapping[str, str], devices: Sequence[Device]) -> Where:
    """The same with some devices as those of the machine, and nothing said of which component has which."""
    return _on(where, where.check(components), Backend(), devices, 1, components)


def left_out(where: Where, components: Mapping[str, str], each: Sequence[Where]) -> list[Device]:
    """The cards that no replica has, for there are too few of them for one more each."""
    used = {device for one in each for device in Rig.parse(one.rig)}
    return [one for one in where.check(components).rig.gpus if one not in used]


def names_of(each: Sequence[Where]) -> list[str]:
    """What replicas are called: by their number, and their devices."""
    rigs = [Rig.parse(one.rig) for one in each]
    devices = [" & ".join(map(str, rig.gpus or (rig.host,))) for rig in rigs]
    return [f"replica {number} on {name}" for number, name in enumerate(devices, start=1)]


def _lists(backend: Backend, rig: Rig) -> list[tuple[Device, ...]]:
    """The devices of each list that a backend has, but for those that a word chooses."""
    targets = [*([backend.default] if backend.default else []), *(target for _, target in backend.named)]
    return [tuple(word.devices(rig)[0] for word in target) for target in targets if not _chooses(target)]


def _chooses(target: Target) -> bool:
    return any(word.text in _CHOOSERS for word in target)


def _leaves_open(backend: Backend) -> bool:
    """Whether a component may have devices that no list names."""
    targets = [target for _, target in backend.named]
    return backend.default is None or any(map(_chooses, [backend.default, *targets]))


def _cut(target: Sequence[Device], count: int) -> list[tuple[Device, ...]]:
    """A list of devices in equal parts, one after another; the host stands in each of them."""
    cards = [one for one in target if not one.is_host]
    size = len(cards) // count
    if not size:
        there, enough = f"{len(cards)} ({' & '.join(map(str, cards))})", "+".join(f"sim{one}" for one in range(count))
        raise UsageError(
            f"{count} replicas need a device each, and there {'is' if len(cards) == 1 else 'are'} {there}: give "
            f"--replicas {len(cards)}, or name as many in --backend, as in {enough}"
        )
    hosts = tuple(one for one in target if one.is_host)
    return [(*cards[index * size : (index + 1) * size], *hosts) for index in range(count)]


def _check_apart(groups: Sequence[Mapping[Device, None]]) -> None:
    """Raises UsageError where two replicas would have the same card."""
    for index, group in enumerate(groups):
        others = {device for other in groups[index + 1 :] for device in other}
        both = next((one for one in group if one in others and not one.is_host), None)
        if both is not None:
            raise UsageError(
                f"{both} would be in two replicas, as --backend has it: name devices in the same order in each list, "
                "so that each replica has its own"
            )


def _with(request: Request, cut: Mapping[tuple[Device, ...], Sequence[tuple[Device, ...]]], index: int) -> Backend:
    """The backend of one replica: of each list its part."""

    def part(target: Target) -> Target:
        if _chooses(target):
            return target
        devices = tuple(word.devices(request.rig)[0] for word in target)
        mine = cut[devices][index] if devices in cut else devices
        return tuple(Word(device.name) for device in mine)

    default = request.backend.default
    named = tuple((key, part(target)) for key, target in request.backend.named)
    return Backend(None if default is None else part(default), named)


def _on(
    where: Where, request: Request, backend: Backend, group: Sequence[Device], count: int, components: Mapping[str, str]
) -> Where:
    """What a replica is asked for on a group of devices; raises UsageError where that cannot be."""
    host = request.rig.host
    devices = [*(one for one in group if not one.is_host), host]
    memory = {one: _labelled(request.rig[one]) for one in devices}
    memory[host] = replace(memory[host], free=memory[host].free // count)
    rig = request.rig.with_device(host).having(memory)
    found = replace(
        where,
        backend=str(backend), rig=str(rig), max_vram=str(_budget(request, devices)),
        clip_on_cpu=False, vae_on_cpu=False, control_net_cpu=False, no_multi_gpu=False,
    )  # fmt: skip
    found.check(components)
    return found


def _labelled(memory: Memory) -> Memory:
    """Memory with the name of its card as a rig's text has it."""
    card = card_of(memory.label)
    return memory if card is None else replace(memory, label=card.name)


def _budget(request: Request, devices: Sequence[Device]) -> Budget:
    """The budgets of some devices, by their names."""
    named = ((word.devices(request.rig), amount) for word, amount in request.budget.named)
    mine = {one: amount for each, amount in named for one in each if one in devices}
    return Budget(request.budget.default, tuple((Word(one.name), amount) for one, amount in mine.items()))
