"""Brings the weights that a module's own Python reads of parts that it does not call.

Only what it computes shows which these are, not its source: a method of a part may read them, or a hook. So each
operation is looked at where some weights lie elsewhere than the module runs; where all are there, none is.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn, overrides
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..compiler.devices.device import KINDS
from ..runtime.devices.transfers import moved
from ..runtime.store.store import Store
from ..runtime.store.stored_weight import StoredWeight, version_of

_local = threading.local()
_QUESTIONS = frozenset({"size", "dim", "ndimension", "numel", "nelement", "stride", "element_size", "is_contiguous"})
_QUESTIONS |= {"is_floating_point", "is_complex", "is_pinned", "data_ptr", "storage_offset", "__len__"}
"""What asks a tensor for something that is the same wherever it lies, or for its memory."""


@dataclass
class _Brought:
    """A weight that was brought, with tensors of the memory that was read and their versions.

    These are the copy, where it was brought as one, and what ``.data`` gave, which counts its versions for itself. The
    weight itself is not kept: it may leave its device before its reader ends.
    """

    held: StoredWeight
    copy: torch.Tensor | None
    seen: list[tuple[torch.Tensor, int]] = field(default_factory=list)

    def note(self, tensor: torch.Tensor) -> None:
        """Looks at another tensor of its memory too."""
        self.seen.append((tensor, version_of(tensor)))

    @property
    def is_written(self) -> bool:
        """Whether its memory was written through one of these since."""
        return any(version_of(tensor) != version for tensor, version in self.seen)


class Reads(TorchFunctionMode):
    """Has weights of a store that are computed with while it is entered be where that is done.

    What is written into a copy of a weight is written into the weight before anything else reads that.

    Args:
        store: has the weights.
        there: where is computed.
        bring: gives a weight as it is to be read.
        refresh: is called after weights were written of which there may be other copies.
        is_dry: whether stand-ins are brought, and what is written to them is of no use.
    """

    def __init__(
        self,
        store: Store,
        there: torch.device,
        bring: Callable[[StoredWeight], torch.Tensor],
        refresh: Callable[[], None],
        is_dry: bool = False,
    ) -> None:
        super().__init__()
        self._store, self._there, self._bring, self._refresh, self._is_dry = store, there, bring, refresh, is_dry
        self._former: dict[int, tuple[torch.Tensor, StoredWeight]] = {}
        """What the weights that were brought were before: their reader may hold that still."""
        self._brought: dict[StoredWeight, _Brought] = {}

    def __enter__(self) -> Reads:
        self._before, _local.reads = reading(), self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        _local.reads = self._before
        self._give_back()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Looks at nothing meanwhile: a program runs, or is made. Modes that were entered since stay."""
        modes = overrides._get_current_function_mode_stack()
        above = modes[modes.index(self) + 1 :] if self in modes else None  # it is taken off, or looks at one
        if above is not None:
            _exchange([self, *above], above)
        _local.reads = None
        try:
            self._give_back()
            yield
        finally:
            if above is not None:
                _exchange(above, [self, *above])
            _local.reads = self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Computes, with the weights that it reads where they can be read."""
        kwargs = kwargs or {}
        is_paused = reading() is not self  # and was put back with modes of somebody else
        if is_paused or not self._has_weights((*args, *kwargs.values())):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _QUESTIONS or _is_converting():
            return func(*args, **kwargs)
        if name == "__get__":  # of an attribute: most are no tensors
            found = func(*args, **kwargs)
            if not isinstance(found, torch.Tensor):
                return self._as_of_there(_attribute_of(func), found)
        given, named = pytree.tree_map_only(torch.Tensor, self._at_hand, (tuple(args), dict(kwargs)))
        if name == "__set__" and given[0] is not args[0]:
            return self._set(args[0], _attribute_of(func), given)
        result = func(*given, **named)
        if name == "__get__" and _attribute_of(func) == "data":
            self._note_data(args[0], result)
        return args[0] if args and result is given[0] else result  # what was written is the weight still

    def _as_of_there(self, attribute: str, found: Any) -> Any:
        """What an attribute of a weight says, as of one that lies where it is computed with."""
        if isinstance(found, torch.device):
            return self._there
        kind = attribute.removeprefix("is_")
        return kind == self._there.type if isinstance(found, bool) and kind in KINDS else found

    def _set(self, tensor: torch.Tensor, attribute: str, given: Sequence[Any]) -> None:
        """Sets an attribute of a weight: of itself, for what is set on a copy is lost; of a stand-in in a dry run."""
        held, (brought, value) = self._known(tensor), given
        if held is None or self._is_dry or brought is held.tensor:
            setattr(brought, attribute, value)  # its class may do so in a way of its own
            return
        self._give_back()
        there = held.tensor.device
        setattr(held.tensor, attribute, moved(value, there) if isinstance(value, torch.Tensor) else value)
        self._refresh()

    def _note_data(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        held = self._known(tensor)
        if held is not None and held in self._brought:
            self._brought[held].note(data)

    def _give_back(self) -> None:
        """Writes into the weights what was written into copies of them."""
        written = [one for one in self._brought.values() if one.is_written]
        self._brought.clear()
        if not written or self._is_dry:
            return
        for one in written:
            if one.copy is not None:
                with torch.inference_mode(False), torch.no_grad():
                    one.held.tensor.copy_(moved(one.copy, one.held.tensor.device))
        self._refresh()

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
        with temporarily_clear_interpreter_stack():  # of vmap and its like, which allow nothing new to be a parameter
            made = self._bring(held)
        if made is not tensor:
            self._former[id(tensor)] = tensor, held
        copy, brought = None if made is held.tensor else made, self._brought.get(held)
        if brought is None or brought.copy is not copy:
            self._brought[held] = brought = _Brought(held, copy)
            if copy is not None:
                brought.note(copy)
        return made


def _attribute_of(setting: Any) -> str:
    """The name of an attribute, of what sets it."""
    attribute = setting.__self__
    return str(getattr(attribute, "__name__", "") or attribute.fget.__name__)


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
