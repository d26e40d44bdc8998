"""Brings the weights that a module's own Python reads of parts that it does not call.

Only what it computes shows which these are, not its source: a method of a part may read them, or a hook. So each
operation is looked at where some weights lie elsewhere than the module runs; where all are there, none is.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn, overrides
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..runtime.store.store import Store
from ..runtime.store.stored_weight import StoredWeight

_local = threading.local()
_QUESTIONS = frozenset({"size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_contiguous"})
_QUESTIONS |= {"is_floating_point", "is_complex", "get_device", "is_pinned", "data_ptr", "storage_offset", "__len__"}
"""What asks a tensor for something that is the same wherever it lies, or that says where that is."""


class Reads(TorchFunctionMode):
    """Has ``bring`` give the weights of a store that are computed with while it is entered, each as it is to be read.

    What writes a weight gets it as ``bring`` gives it only if that is the weight itself, or in a dry run.
    """

    def __init__(self, store: Store, bring: Callable[[StoredWeight], torch.Tensor], is_dry: bool = False) -> None:
        super().__init__()
        self._store, self._bring, self._is_dry = store, bring, is_dry
        self._former: dict[int, tuple[torch.Tensor, StoredWeight]] = {}
        """What the weights that were brought were before: their reader may hold that still."""

    def __enter__(self) -> Reads:
        self._before, _local.reads = reading(), self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _local.reads = self._before

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Looks at nothing meanwhile: a program runs, or is made. Modes that were entered since stay."""
        modes = overrides._get_current_function_mode_stack()
        above = modes[modes.index(self) + 1 :] if self in modes else None  # PyTorch takes it off where it looks at one
        if above is None:
            yield
            return
        _exchange([self, *above], above)
        _local.reads = None
        try:
            yield
        finally:
            _exchange(above, [self, *above])
            _local.reads = self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes, with the weights that it reads where they can be read."""
        kwargs = kwargs or {}
        if not self._has_weights((*args, *kwargs.values())):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _QUESTIONS or _is_converting():
            return func(*args, **kwargs)
        if name == "__get__":  # of an attribute: most are no tensors
            found = func(*args, **kwargs)
            if not isinstance(found, torch.Tensor):
                return found
        given, named = pytree.tree_map_only(torch.Tensor, self._at_hand, (tuple(args), dict(kwargs)))
        is_written = args and not self._is_dry and (name == "__set__" or _writes(name))
        if is_written and not self._is_itself(args[0], given[0]):
            given = (args[0], *given[1:])
        if name == "__set__" and given[0] is not args[0]:  # its class may set attributes in a way of its own
            return setattr(given[0], _attribute_of(func), given[1])
        return func(*given, **named)

    def _has_weights(self, given: Sequence[Any]) -> bool:
        for one in given:
            if isinstance(one, torch.Tensor):
                if self._known(one) is not None:
                    return True
            elif isinstance(one, (list, tuple, dict)) and self._has_weights(pytree.tree_leaves(one)):
                return True
        return False

    def _known(self, tensor: torch.Tensor) -> StoredWeight | None:
        former = self._former.get(id(tensor))
        return former[1] if former else self._store.known(tensor)

    def _at_hand(self, tensor: torch.Tensor) -> torch.Tensor:
        held = self._known(tensor)
        if held is None:
            return tensor
        made = self._bring(held)
        if made is not tensor:
            self._former[id(tensor)] = tensor, held
        return made

    def _is_itself(self, tensor: Any, given: Any) -> bool:
        held = self._known(tensor) if isinstance(tensor, torch.Tensor) else None
        return held is None or given is held.tensor


def _attribute_of(setting: Any) -> str:
    """The name of an attribute, of what sets it."""
    attribute = setting.__self__
    return str(getattr(attribute, "__name__", "") or attribute.fget.__name__)


def _writes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _is_converting() -> bool:
    """Whether a module's own methods convert its weights now, as ``to()`` does, and put what they get in their place.

    Where a weight was brought before that, another tensor would be in the place.
    """
    frame = sys._getframe(2)
    for _ in range(3):
        if frame.f_code is nn.Module._apply.__code__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _exchange(modes: Sequence[Any], others: Sequence[Any]) -> None:
    """Puts others in the place of the last modes of this thread."""
    for _ in modes:
        overrides._pop_mode()
    for mode in others:
        overrides._push_mode(mode)


def reading() -> Reads | None:
    """What looks at the operations of this thread now."""
    found: Reads | None = getattr(_local, "reads", None)
    return found


def unread() -> contextlib.AbstractContextManager[None]:
    """Has nothing look at the operations of this thread meanwhile."""
    reads = reading()
    return contextlib.nullcontext() if reads is None else reads.paused()
