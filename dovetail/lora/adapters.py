"""What peft has put on a component: which adapters, of what form, how strong, and their weights.

peft wraps each module that an adapter belongs to. For the time of a trace the wrappers are taken out, so that a program
is that of the bare model, and what they would add is told to the pass `lora` instead. At each call their state is read
anew: another form means another program, another scale or other weights of the same form only other tensors in it.
What is no plain low-rank branch (DoRA, LoKr, adapters of embeddings) stays in the module and is traced as it is, and so
does one on which somebody has put hooks or another function.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..compiler.ir.weight import Adapter
from ..conventions import libraries
from ..conventions.replacements import has_own_forward
from .watched import unwatch, unwatched_version, version_of, watch

logger = logging.getLogger(__name__)

_BASE = "base_layer"
_MATRICES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TENSORS = frozenset({"weight", "bias"})
_LIBRARIES = ("torch", "peft")


def plain_name(name: str) -> str:
    """The name that a weight or module has without peft's wrappers.

    >>> plain_name("blocks.0.to_q.base_layer.weight")
    'blocks.0.to_q.weight'
    """
    return ".".join(part for part in name.split(".") if part != _BASE) if _BASE in name else name


@dataclass(frozen=True)
class Wrapper:
    """A module that peft has wrapped: its plain path, and what wraps it."""

    path: str
    layer: Any
    is_plain: bool

    @property
    def is_low_rank(self) -> bool:
        """Whether its adapters are low-rank branches, whatever somebody has done to how they are computed."""
        return _is_low_rank(self.layer)

    @property
    def active(self) -> list[str]:
        """The names of the adapters that a call applies beside the module, in order."""
        if self.layer.disable_adapters or self.layer.merged_adapters:
            return []
        return [name for name in self.layer.active_adapters if libraries.has_lora(self.layer, name)]

    def tensors(self, adapter: str) -> dict[str, torch.Tensor]:
        """The weights of one of its adapters, by their part; looked up directly, for it happens at every call."""
        down, up = libraries.lora_parts(self.layer, adapter)
        found = {"down": down["weight"], "up": up["weight"]}
        return found if up["bias"] is None else {**found, "bias": up["bias"]}

    def scale(self, adapter: str) -> float:
        """The scale of one of its adapters, which may be a tensor that hotswap writes into."""
        scale = self.layer.scaling[adapter]
        return scale.item() if isinstance(scale, torch.Tensor) else scale


@dataclass(frozen=True)
class Branches:
    """The branches of a call: their form, which a program is compiled for, and the tensors of their weights by name.

    A tensor is another object when its numbers may have changed. ``rest`` tells apart the states of other kinds of
    adapters, which a program takes in.
    """

    form: tuple[Adapter, ...] = ()
    held: Mapping[str, torch.Tensor] = field(default_factory=dict)
    rest: Hashable = ()

    @property
    def key(self) -> Hashable:
        """Calls of equal keys may run one program."""
        return self.form, self.rest


NO_BRANCHES = Branches()
"""Those of a call of a module that peft has not touched."""


Taken = Mapping[str, tuple[torch.Tensor, Hashable, torch.Tensor]]


@dataclass(frozen=True)
class _Read:
    """What was read for a call, of which state, and each tensor of peft's with its version and what is given for it.

    These are kept, so that no other tensor has the place in memory that tells one of them from others. ``is_watched``
    tells whether every write to them is seen.
    """

    state: Hashable
    branches: Branches
    taken: Taken
    is_watched: bool


class Adapters:
    """Reads what peft has put on a component and its parts; ``found`` is told of each module that peft has wrapped."""

    def __init__(self, root: nn.Module, found: Callable[[Wrapper], None] = lambda _: None) -> None:
        self._root = weakref.ref(root)
        self._tell = found
        self._stamp: tuple[Any, ...] = ()
        self._found: MutableMapping[nn.Module, tuple[Wrapper, ...]] = weakref.WeakKeyDictionary()
        self._read: MutableMapping[nn.Module, _Read] = weakref.WeakKeyDictionary()

    @property
    def stamp(self) -> tuple[Any, ...]:
        """Other objects when adapters came or went since the last look."""
        return self._stamp

    def wrappers(self, module: nn.Module) -> tuple[Wrapper, ...]:
        """The wrapped modules of a part of the component; looks for them anew when adapters came or went."""
        root = self._root()
        assert root is not None
        stamp = libraries.adapter_configs(root)
        if len(stamp) != len(self._stamp) or any(new is not old for new, old in zip(stamp, self._stamp, strict=True)):
            self._stamp = stamp
            self._found.clear()
            self._read.clear()
        found = self._found.get(module)
        if found is None:
            found = self._found[module] = tuple(_wrappers(module))
            for one in found:
                self._tell(one)
            _tell_of_others(type(root).__name__, found)
        return found

    def read(self, module: nn.Module, factor: float = 1.0) -> Branches:
        """The branches of a call of a part, all scales multiplied by a factor; the same object until they change."""
        wrappers = self.wrappers(module)
        if not wrappers:
            return NO_BRANCHES
        for one in wrappers:
            if one.layer.merged_adapters and one.layer.disable_adapters:  # as peft does in such a call
                one.layer.unmerge()
        state = factor, tuple(map(_state, wrappers))
        known = self._read.get(module)  # another thread may forget it at any time
        if known is None or known.state != state:
            known = self._read[module] = _branches(wrappers, factor, state, known.taken if known else {})
        return known.branches

    def look_anew(self) -> bool:
        """Has the wrapped modules be looked for anew, for parts were replaced; says whether there were any."""
        had_some = any(self._found.values())
        self._found.clear()
        self._read.clear()
        return had_some

    def forget(self) -> None:
        """Has the next call of each part take its adapters' weights again, however they were written meanwhile."""
        self._read.clear()

    def forget_unwatched(self) -> None:
        """Has it take those again to which not every write is seen."""
        for module, known in list(self._read.items()):
            if not known.is_watched:
                self._read.pop(module, None)

    def hand_back(self, module: nn.Module) -> None:
        """Makes the parameters of all adapters of a module ordinary ones again."""
        for one in self.wrappers(module):
            for parameter in one.layer.parameters():
                unwatch(parameter)
        self._read.clear()

    def bases(self, module: nn.Module) -> dict[nn.Module, nn.Module]:
        """What each wrapper of plain branches of a part wraps, by what they are now."""
        if any(one.is_plain is not _is_plain(one.layer) for one in self.wrappers(module)):
            self.look_anew()
        return {one.layer: one.layer.get_base_layer() for one in self.wrappers(module) if one.is_plain}

    def without_factor(self, kwargs: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        """What diffusers multiplies all scales by, which is no argument of a program, and the other arguments."""
        root = self._root()
        assert root is not None
        name = next((name for name in libraries.LORA_SCALES if isinstance(kwargs.get(name), dict)), None)
        if name is None or not (kwargs[name].keys() <= {"scale"} or self.wrappers(root)):
            return 1.0, kwargs
        others = {key: value for key, value in kwargs[name].items() if key != "scale"}
        return kwargs[name].get("scale", 1.0), {**kwargs, name: others or None}


def adds_branches(module: nn.Module) -> bool:
    """Whether a module wraps another and adds plain branches of adapters: a program of it alone would not have them."""
    return _BASE in module._modules and hasattr(module, "active_adapters") and _is_plain(module)


def _wrappers(module: nn.Module) -> Iterator[Wrapper]:
    for path, parent in module.named_modules(remove_duplicate=False):  # a program knows a part by where it was called
        for key, child in parent._modules.items():
            if hasattr(child, _BASE) and hasattr(child, "active_adapters"):
                yield Wrapper(plain_name(f"{path}.{key}" if path else key), child, _is_plain(child))


def _is_plain(layer: Any) -> bool:
    """Whether all that a wrapper adds are low-rank branches, which are computed as peft and PyTorch compute them."""
    if not _is_low_rank(layer):
        return False
    added = libraries.lora_modules(layer)
    return all(map(_is_of_library, added)) and not any(map(_is_touched, (layer, *added)))


def _is_low_rank(layer: Any) -> bool:
    """Whether the adapters of a wrapper are of that kind; a convolution's must pad as the convolution does."""
    if not libraries.is_plain_lora(layer):
        return False
    base = layer.get_base_layer()
    return getattr(base, "padding_mode", "zeros") == "zeros" and not isinstance(getattr(base, "padding", 0), str)


def _is_of_library(added: nn.Module) -> bool:
    """Whether what a wrapper calls is a matrix with weights of its own, or a dropout that drops nothing."""
    if isinstance(added, nn.Dropout):
        return not added.training or added.p == 0
    return isinstance(added, nn.Identity) or (isinstance(added, _MATRICES) and added._parameters.keys() >= _TENSORS)


def _is_touched(module: nn.Module) -> bool:
    """Whether somebody has put hooks on a module, or another function in the place of what it computes."""
    if module._forward_hooks or module._forward_pre_hooks or has_own_forward(module):
        return True
    home = getattr(type(module).forward, "__globals__", {}).get("__name__", "")  # whatever functools.wraps says
    return home.partition(".")[0] not in _LIBRARIES


def _tell_of_others(name: str, wrappers: Sequence[Wrapper]) -> None:
    others = sorted({type(one.layer).__name__ for one in wrappers if not one.is_low_rank})
    if others:
        logger.warning(
            "%s has adapters that are no plain low-rank branches (%s of its modules are wrapped by %s): they are "
            "compiled in as they are, so that another scale of theirs compiles again",
            name, sum(not one.is_low_rank for one in wrappers), ", ".join(others),
        )  # fmt: skip


def _state(wrapper: Wrapper) -> Hashable:
    """What must not change for a call to take the same branches as the one before."""
    layer = wrapper.layer
    if not wrapper.is_plain:
        own = (p for name, p in layer.named_parameters() if not name.startswith(_BASE))
        scales = tuple(sorted(getattr(layer, "scaling", {}).items()))
        state = layer.disable_adapters, tuple(layer.merged_adapters), tuple(layer.active_adapters), scales
        return wrapper.path, *state, *map(unwatched_version, own)
    return tuple((wrapper.scale(name), *map(version_of, wrapper.tensors(name).values())) for name in wrapper.active)


def _branches(wrappers: Sequence[Wrapper], factor: float, state: Hashable, before: Taken) -> _Read:
    """Reads what peft has; what has not changed since it was read ``before`` is given again."""
    form: list[Adapter] = []
    taken: dict[str, tuple[torch.Tensor, Hashable, torch.Tensor]] = {}
    scales: dict[str, torch.Tensor] = {}
    for one in wrappers:
        for slot, name in enumerate(one.active if one.is_plain else ()):
            tensors, scale = one.tensors(name), one.scale(name)
            down, up = tensors["down"], tensors["up"]
            form.append(
                Adapter(one.path, slot, (*down.shape,), (*up.shape,), up.dtype, "bias" in tensors, not up.requires_grad)
            )
            for part, tensor in tensors.items():
                key, version = form[-1].name(part), version_of(tensor)
                known = before.get(key)
                taken[key] = known if known and known[1] == version else (tensor, version, tensor.detach())
            number = scale if factor == 1 else scale * factor
            scales[form[-1].name("scale")] = torch.tensor(number, dtype=torch.float64)
    held = {name: given for name, (_, _, given) in taken.items()} | scales
    rest = tuple(_state(one) for one in wrappers if not one.is_plain)
    is_watched = all(watch(tensor) for tensor, _, _ in taken.values())
    return _Read(state, Branches(tuple(form), held, rest), taken, is_watched)
