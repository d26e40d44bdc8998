"""Makes a module what it was, after its own Python ran in a dry run: what it keeps of a call, the next one reads.

A counter, a cache of keys and values and a buffer that is written would otherwise begin a call with what zeros left. So
would what its code counts and collects in classes and globals of the user's (``cache/written.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from ..cache.written import written
from ..compiler.frontend.fakes import LARGEST_WRITTEN, has_numbers
from ..compiler.frontend.outside import reached_by_functions
from ..compiler.frontend.rollback import (
    containers_of,
    contents,
    contents_beside,
    contents_of,
    contents_of_weights,
    restore,
)
from ..conventions.replacements import Replacement
from ..runtime.devices.transfers import moved
from ..runtime.store.origin import HOST
from ..runtime.store.store import Store


class ContainersAsBefore:
    """What some containers hold at one moment, and the numbers of small tensors in them."""

    def __init__(self, containers: Iterable[Any]) -> None:
        self._held = [(one, contents(one)) for one in containers]
        self._tensors = [(one, _version(one), _copied(one)) for one in _tensors((), self._held)]

    def give_back(self) -> None:
        """Makes all of it so again."""
        for container, before in self._held:
            restore(container, _with_replacements(container, before))
        for tensor, version, numbers in self._tensors:
            if version is None or _version(tensor) != version:
                _fill(tensor, numbers)


class WeightsAsBefore:
    """Which parameters and buffers a module and its parts have at one moment, and the numbers of what may be written.

    These are buffers, and tensors in what it keeps beside (``held``). ``store`` knows what stands for a weight by then.
    """

    def __init__(self, module: nn.Module, store: Store, held: list[tuple[Any, Any]]) -> None:
        self._places = [
            (place, before, list(map(store.known, before.values()))) for place, before in contents_of_weights(module)
        ]
        tensors = _tensors(module.buffers(), held)
        self._tensors = [(one, store.known(one), _version(one), _copied(one)) for one in tensors]

    def give_back(self) -> None:
        """Makes all of it so again."""
        for place, before, weights in self._places:
            held = [
                (one if known is None else known.tensor) for one, known in zip(before.values(), weights, strict=True)
            ]
            restore(place, dict(zip(before, held, strict=True)))
        for tensor, weight, version, numbers in self._tensors:
            now = tensor if weight is None else weight.tensor
            if has_numbers(now) and (now is not tensor or version is None or _version(now) != version):
                _fill(now, numbers)


class AsBefore:
    """What a module, its parts, the functions on them and its code keep at one moment, apart from parameters.

    Of parameters it is which ones there are.
    """

    def __init__(self, module: nn.Module, store: Store) -> None:
        self._kept = ContainersAsBefore([*containers_of(module), *reached_by_functions(module), *written(module)])
        self._weights = WeightsAsBefore(module, store, [])

    def give_back(self) -> None:
        """Makes all of it so again."""
        self._kept.give_back()
        self._weights.give_back()


def left_as_is(module: nn.Module) -> Callable[[], bool]:
    """What says, later, whether a module keeps the same objects as now, and has written to none of its tensors."""
    held = [*contents_of(module), *contents_beside(module), *contents_of_weights(module)]
    versions = [(one, _version(one)) for one in _tensors(module.buffers(), held)]

    def is_so() -> bool:
        same = all(_is_same(contents(container), before) for container, before in held)
        return same and all(version is not None and _version(one) == version for one, version in versions)

    return is_so


def _is_same(now: Any, before: Any) -> bool:
    """Whether two copies of a container hold the same objects in the same order, or an array the same bytes."""
    if isinstance(now, dict):
        return now.keys() == before.keys() and all(
            one is before[key] or (isinstance(one, bytes) and one == before[key]) for key, one in now.items()
        )
    return len(now) == len(before) and all(one is other for one, other in zip(now, before, strict=True))


def _with_replacements(container: Any, before: Any) -> Any:
    """What a container held before, but for what this package has put there or taken out since."""
    if not isinstance(container, dict):
        return before
    now = dict(dict.items(container))
    ours = [name for held in (before, now) for name, value in held.items() if isinstance(value, Replacement)]
    if not ours:
        return before
    others = {name: value for name, value in before.items() if name not in ours}
    return others | {name: now[name] for name in ours if name in now}


def _tensors(beside: Iterable[torch.Tensor], held: list[tuple[Any, Any]]) -> Iterator[torch.Tensor]:
    """These tensors and those that are held, each once, where they are small."""
    kept = (one for _, before in held for one in (before.values() if isinstance(before, dict) else before))
    found = {id(one): one for one in (*beside, *kept) if isinstance(one, torch.Tensor)}
    for one in found.values():
        if not isinstance(one, nn.Parameter) and has_numbers(one) and one.nbytes <= LARGEST_WRITTEN:
            yield one


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.detach().clone() if tensor.is_cpu else moved(tensor.detach(), HOST)


def _fill(tensor: torch.Tensor, numbers: torch.Tensor) -> None:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        tensor.copy_(moved(numbers, tensor.device))


def _version(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version
