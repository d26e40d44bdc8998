"""The object that modules held for a weight before another came in its place, and what it is when they hold it again.

An optimizer, an average or another model may hold that object meanwhile, write it, and give it a gradient. Each thing
is therefore compared with what it was: what was changed on one of the two objects alone counts afterwards.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef

from ..devices.transfers import moved
from .objects import bits_of, can_exchange, gradient_of, has_bits, hooking, hung_on, is_dense
from .origin import HOST
from .stored_weight import Data, StoredWeight, data_of, version_of

_LOG = logging.getLogger(__name__)
_PLACES = 64

State = tuple[Data, int]
"""What tells the numbers of a tensor from those that it had before or after, but for writes through ``.data``."""


class Former:
    """An object that modules held, while somebody has it, and what it was when another came in its place.

    Args:
        tensor: the object.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._reference = TensorWeakRef(tensor)
        self._state, self._sample = _state_of(tensor), _sample_of(tensor)
        grad = gradient_of(tensor)
        self._sparse = None if grad is None or is_dense(grad) else grad
        self._grad = self._grad_of_now = _state_of(grad)
        self._hung, self._requires_grad = hung_on(tensor), tensor.requires_grad
        self._is_replaced = self._is_grad_replaced = self._is_swapped = False
        self._namespace = id(vars(tensor))

    def note(self, now: torch.Tensor) -> None:
        """Notes what modules hold from now on, to which the gradient and what else was on the one before came."""
        self._namespace = id(vars(now))
        self._grad_of_now = _state_of(gradient_of(now))

    def look(self, one: StoredWeight) -> None:
        """Looks whether somebody wrote what modules hold, or its gradient, since that was noted; before it changes."""
        self._is_replaced |= not one.is_as_noted()
        self._is_swapped |= self._namespace != id(vars(one.tensor))
        self._is_grad_replaced |= self._grad_of_now != _state_of(gradient_of(one.tensor))

    def again(self, one: StoredWeight) -> torch.Tensor | None:
        """The object, as the weight that it is from now on; None where nobody has it, or it cannot be that.

        An object that was written while the weight was not keeps its numbers. Where both were written each keeps its
        own, and the object is not the weight's any more.
        """
        kept: torch.Tensor | None = self._reference()
        now = one.tensor
        if kept is None and self._sparse is not None and now.is_leaf and now.grad is None:
            now.grad = moved(self._sparse, now.device).to(now.dtype)
        if kept is None or kept is now or not one.is_here:
            return None
        self.look(one)
        with torch.inference_mode(kept.is_inference()), torch.no_grad():
            if not (self._keeps_numbers(kept, one) if self._is_written(kept) else _take_numbers(kept, now)):
                return None
            self._take_what_hangs(kept, now)
            self._take_gradient(kept, now)
        return kept

    def _is_written(self, kept: torch.Tensor) -> bool:
        return self._state != _state_of(kept) or not self._is_sampled(kept)

    def _is_sampled(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has the numbers of then at some places: a write through ``.data`` leaves no other trace."""
        sample = _sample_of(tensor)
        return self._sample is None or sample is None or torch.equal(self._sample, sample)

    def _keeps_numbers(self, kept: torch.Tensor, one: StoredWeight) -> bool:
        """Whether an object that somebody wrote is the weight, with what was written."""
        is_one_written = self._is_replaced or not self._is_sampled(one.tensor)
        if kept.is_meta or (is_one_written and not _is_alike(kept, one.tensor)):
            _LOG.warning(
                "weight %s of %s was written in the module, and by whoever holds the tensor that the module had "
                "before: the module keeps its numbers in a tensor of its own",
                one.name,
                one.owner,
            )
            return False
        one.origin = one.read_from = None
        return True

    def _take_what_hangs(self, kept: torch.Tensor, now: torch.Tensor) -> None:
        """Gives the object the attributes, hooks and state that were changed on what was in its place."""
        hung, then = hung_on(now), self._hung
        # PyTorch converts a tensor on a simulated device by exchanging it for one that has no attributes
        for name in () if self._is_swapped else then.keys() - hung.keys():
            vars(kept).pop(name, None)
        vars(kept).update({name: one for name, one in hung.items() if name not in then or one is not then[name]})
        for step in hooking(kept, now):
            step()
        if kept.is_leaf and now.requires_grad != self._requires_grad:
            kept.requires_grad_(now.requires_grad)

    def _take_gradient(self, kept: torch.Tensor, now: torch.Tensor) -> None:
        """Gives the object the gradient that was changed, or cleared, on what was in its place; in its own dtype."""
        had, given = gradient_of(kept), gradient_of(now)
        is_cleared = given is None and self._grad == _state_of(had)
        grad = given if self._is_grad_replaced and (given is not None or is_cleared) else had
        if not kept.is_leaf or (grad is not None and grad.shape != kept.shape):
            return
        kept.grad = None if grad is None else moved(grad, kept.device).to(kept.dtype)


def _take_numbers(kept: torch.Tensor, now: torch.Tensor) -> bool:
    """Gives an object the numbers of another, if it can have them: not where one alone lies on a simulated device.

    Where it has the same numbers it keeps its memory, which others may look at.
    """
    if not (can_exchange(kept, now) and torch._has_compatible_shallow_copy_type(kept, now)):
        return False
    if not _is_alike(kept, now):  # a tensor of inference mode takes no data but of its own kind
        kept.data = now.clone() if kept.is_inference() and not now.is_inference() else now.detach()
    return True


def _is_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    def form(tensor: torch.Tensor) -> Any:
        return tensor.dtype, tensor.device, tensor.size(), tensor.stride()

    return form(one) == form(other) and one.device == HOST and has_bits(one, other.detach())


def _state_of(tensor: torch.Tensor | None) -> State:
    held = tensor if tensor is not None and is_dense(tensor) else None
    return data_of(held), version_of(tensor)


def _sample_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The bits of a tensor in host memory at some places; None where it lies elsewhere, or cannot be indexed."""
    if tensor.device != HOST or not tensor.numel():
        return None
    try:
        return bits_of(tensor.detach()[_places_of(tensor.shape)].clone())
    except NotImplementedError:  # the dtype has no kernel for it
        return None


@functools.lru_cache(maxsize=256)
def _places_of(shape: torch.Size) -> tuple[torch.Tensor, ...]:
    """Some places in a tensor of a shape, an index for each of its axes."""
    with torch.inference_mode(False):
        places = torch.linspace(0, shape.numel() - 1, min(_PLACES, shape.numel()), dtype=torch.float64).long()
        return torch.unravel_index(places, shape)
