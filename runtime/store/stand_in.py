"""What modules hold in the place of a weight whose numbers are elsewhere: in a file, or in parts on several devices.

It looks like the weight in host memory: its shape, dtype and strides. What is read of it are the weight's numbers,
which are had for that and let go of at once. What is written to it makes data of the weight first, wherever modules
hold it, in host memory, where what others have made by its device (the state of an optimizer) lies too. What detaching
it, or looking at a part of it, gives is a stand-in of the same weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

from ..devices.transfers import moved
from . import stand_in_ops
from .objects import attributes_on, exchange_contents
from .origin import HOST
from .stored_weight import Numbers

Step = Callable[[torch.Tensor], torch.Tensor]
"""A look at a part of a tensor, or at all of it in another form."""


class StandIn(torch.Tensor):
    """A weight without data of its own; a parameter where ``_is_param`` is set.

    One is what a module holds; others are what it gave, which share its numbers and may come to others. Where the
    weight gets data, what the module holds becomes an ordinary tensor, and is the same object still.
    """

    stands_in = True
    numbers: Numbers
    steps: tuple[Step, ...]
    like: torch.Tensor

    HELD = ("numbers", "steps", "like")

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __new__(cls, data: torch.Tensor, requires_grad: bool = True) -> Any:
        """A plain parameter: libraries make another weight by the class of the one before (accelerate)."""
        return nn.Parameter(data, requires_grad)

    @staticmethod
    def of(
        numbers: Numbers,
        like: torch.Tensor,
        steps: tuple[Step, ...] = (),
        *,
        is_parameter: bool = False,
        requires_grad: bool = False,
    ) -> StandIn:
        """A stand-in for numbers, or what steps look at of them, of the form of a tensor on meta."""
        with torch.inference_mode(False):
            bare = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device="meta")
            bare = bare.as_strided(like.size(), like.stride(), like.storage_offset()) if like.storage_offset() else bare
            # on meta for PyTorch, so that no other tensor takes it for its data, where it has no memory
            made: StandIn = torch.Tensor._make_subclass(StandIn, bare, requires_grad, dispatch_device=True)
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.numbers, made.steps, made.like = numbers, steps, like
        if is_parameter:
            made._is_param = True
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Runs one ATen op."""
        return stand_in_ops.dispatch(func, args, kwargs or {})

    def read(self, device: torch.device = HOST) -> torch.Tensor:
        """The numbers on a device: to be read, and not to be kept."""
        held = vars(self)
        if "numbers" not in held:  # another thread has given the weight data just now
            return moved(self.detach(), device)
        with torch.inference_mode(False), torch.no_grad():
            data: torch.Tensor = held["numbers"].whole(device)
            for step in held["steps"]:
                data = step(data)
            return data

    def write(self, is_lent: bool = False) -> torch.Tensor:
        """What may be written: the weight's data, which is made if there is none, or what this looks at of it.

        With ``is_lent``, for somebody who may only read it: it may be a view of the file.
        """
        held = vars(self)
        if "numbers" not in held:
            return self
        with torch.inference_mode(False), torch.no_grad():
            data: torch.Tensor = held["numbers"].write(is_lent)
            for step in held["steps"]:
                data = step(data)
            return data

    def become(self, data: torch.Tensor) -> None:
        """Makes this an ordinary tensor, or parameter, of data."""
        exchange_contents(self, self._plain(data))

    def _plain(self, data: torch.Tensor) -> torch.Tensor:
        """Data as what this is: a parameter, or a tensor."""
        with torch.inference_mode(False):
            if hasattr(self, "_is_param"):
                return nn.Parameter(data, self.requires_grad)
            return data.detach().requires_grad_(self.requires_grad)

    def _open(self) -> torch.Tensor:
        data = self.write(is_lent=True)
        return self._plain(data) if isinstance(self, StandIn) else self

    @property
    def data(self) -> torch.Tensor:
        """A stand-in of the same weight without a history; assigning puts other data into the weight's place."""
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        stand_in_ops.assign(self, other)

    def detach(self) -> torch.Tensor:
        """A stand-in of the same weight."""
        return self.looking(torch.Tensor.detach, self.like)

    def looking(self, step: Step, like: torch.Tensor) -> StandIn:
        """A stand-in of what a step looks at, of the form of a tensor on meta."""
        is_whole = step is torch.Tensor.detach
        made = StandIn.of(self.numbers, like, self.steps if is_whole else (*self.steps, step))
        self.numbers.given[id(made)] = made
        return made

    def new(self, *args: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        """A tensor of the dtype in host memory."""
        return torch.empty(0, dtype=self.dtype, device=self.device).new(*args, **options)

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        """A tensor of other data, of the dtype and in host memory."""
        return torch.empty(0, dtype=self.dtype, device=self.device).new_tensor(data, **options)

    def numpy(self, *, force: bool = False) -> Any:
        """An array over the weight's data."""
        _refuse_array(self, force)
        return self._open().numpy(force=force)

    def tolist(self) -> Any:
        """The numbers as a number or as nested lists."""
        return self.read().tolist()

    def storage(self) -> Any:
        """The memory of the weight's data."""
        return self._open().storage()

    def _typed_storage(self) -> Any:
        return self._open()._typed_storage()

    def untyped_storage(self) -> Any:
        """The memory of the weight's data."""
        return self._open().untyped_storage()

    def data_ptr(self) -> int:
        """The address of the weight's data."""
        return self._open().data_ptr()

    def const_data_ptr(self) -> int:
        """The address of the weight's data."""
        return self._open().data_ptr()

    def is_shared(self) -> bool:
        """Whether other processes share its memory."""
        return self.numbers.data is not None and self.numbers.data.is_shared()

    def share_memory_(self) -> StandIn:
        """Makes data of it that other processes share."""
        self.write().share_memory_()
        return self

    def __dlpack__(self, **options: Any) -> Any:
        if self.requires_grad:
            torch.empty(0, requires_grad=True).__dlpack__()  # which raises
        return self._open().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._open().__dlpack_device__()

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        if id(self) not in memo:
            memo[id(self)] = self._plain(self.read().clone())
        made: torch.Tensor = memo[id(self)]
        return made

    def __copy__(self) -> torch.Tensor:
        made = self.looking(torch.Tensor.detach, self.like).requires_grad_(self.requires_grad)
        if hasattr(self, "_is_param"):
            made._is_param = True
        attributes_on(made, self)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = self._plain(self.read())
        attributes_on(made, self)
        return made.__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return repr(self._plain(self.read()))


def _refuse_array(stand_in: StandIn, force: bool) -> None:
    """Raises what PyTorch does where a tensor gives no array, before data is made."""
    if stand_in.requires_grad and not force:
        torch.empty(0, requires_grad=True).numpy()
