"""Calls of text encoders that run before the call of a pipeline that makes them: by a thread of ours, and kept.

While a picture is sampled, the front of the next call of the pipeline runs on such a thread. There calls of encoders
run the programs that are compiled already, and what they give is kept (`Encoded`) with the inputs; any other call of a
component ends the thread's run. The next call itself takes what is kept where its own call of the encoder is the same:
the same program over the same weights, and inputs that are equal by value. So each result is the one that it would have
computed. What is kept lies in host memory, where it takes nothing of a device while that call is planned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ..conventions import modes
from ..runtime.devices.transfers import handed
from ..runtime.store.origin import HOST
from .arguments.ambient import ambient
from .arguments.call_key import call_key
from .compiled import CompiledModule
from .running_ahead import EndedError, running_ahead

if TYPE_CHECKING:
    from .calls import Call
    from .component import Component


@dataclass(frozen=True, eq=False)
class Asked:
    """A call that is asked for: its key, the program that answers it, and what it is given."""

    call: Call
    key: tuple[Any, ...]
    program: CompiledModule
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that it is given."""
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, torch.Tensor)]


@dataclass(frozen=True, eq=False)
class Kept:
    """A call that has run: its key and inputs, the program and the state of its weights, and what that has given."""

    call: Call
    key: tuple[Any, ...]
    program: CompiledModule
    weights: tuple[int, int]
    inputs: Sequence[torch.Tensor]
    places: Sequence[torch.device]
    is_inference: bool
    result: Any

    def is_of(self, asked: Asked) -> bool:
        """Whether a call would compute the same."""
        if asked.call is not self.call or asked.key != self.key or asked.program is not self.program:
            return False
        given = asked.tensors
        if [one.device for one in given] != self.places or torch.is_inference_mode_enabled() is not self.is_inference:
            return False
        return all(map(_is_same, given, self.inputs)) and asked.program.weights_now() == self.weights

    def given_back(self) -> Any:
        """The result where it belongs, of memory that nobody else has; to be asked for once."""
        found: dict[int, torch.Tensor] = {}

        def back(leaf: Any) -> Any:
            if not isinstance(leaf, _Away):
                return leaf
            if id(leaf) not in found:
                found[id(leaf)] = leaf.value if leaf.device == HOST else handed(leaf.value, leaf.device)
            return found[id(leaf)]

        return pytree.tree_map(back, self.result)


class Encoded:
    """What encoders have given to calls that are still to come; each result is given away once."""

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self.taken = 0
        """How many results were given away."""

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, kept: Kept) -> None:
        """Keeps one more result."""
        self._kept.append(kept)

    def take(self, asked: Asked) -> Kept | None:
        """Gives away what a call would compute, where that is here; the inputs are compared on the host."""
        found = next((one for one in self._kept if one.is_of(asked)), None)
        if found is not None:
            self._kept.remove(found)
            self.taken += 1
        return found

    def drop(self) -> None:
        """Lets go of all that nobody has taken."""
        self._kept.clear()


_KNOWN: ContextVar[Encoded | None] = ContextVar("dovetail encoded", default=None)


@contextlib.contextmanager
def answering_from(known: Encoded | None) -> Iterator[None]:
    """Has calls of components of this thread take what is known already meanwhile; the rest is dropped at the end."""
    token = _KNOWN.set(known)
    try:
        yield
    finally:
        _KNOWN.reset(token)
        if known is not None:
            known.drop()


def known_answer(component: Component, asked: Asked) -> Kept | None:
    """What a call of a component in this thread would compute, where that is known; None costs nothing."""
    known = _KNOWN.get()
    if not known or component.parts.frame is not None:
        return None
    return known.take(asked)


class Encoding:
    """The front of a call that runs ahead: which calls of encoders may run, and where their results are kept.

    Args:
        states: the calls that may, each with what a key of it begins and goes on with: the number of its module's
            state, and the key of its adapters, which has to be that of none.
        programs: the ids of the compiled programs that may run.
        count: after so many calls the run has done its work, and ends.
        kept: where results are kept.
    """

    def __init__(
        self, states: Mapping[Call, tuple[Any, Any]], programs: Collection[int], count: int, kept: Encoded
    ) -> None:
        self._states, self._programs, self._left, self._kept = dict(states), frozenset(programs), count, kept
        self.is_stopped = False
        """Whether it is to end at the next call of a component."""

    def answer(self, component: Component, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call gives, which is kept as well; raises EndedError for one that may not run here, and after all."""
        state = self._states.get(call)
        if self.is_stopped or state is None:
            raise EndedError(f"{component.title(call)} does not run ahead")
        number, branches = state
        around = ambient(component.devices[0].traced_as)
        key = number, *around, branches, call_key(args, kwargs, call.asked)
        program = call.programs.get(key)
        if not isinstance(program, CompiledModule) or id(program.program) not in self._programs:
            raise EndedError(f"{component.title(call)} is not compiled for such a call yet")
        result = self._run(component, Asked(call, key, program, args, kwargs))
        self._left -= 1
        if self._left <= 0:
            raise EndedError("all encoders have run that run ahead")
        return result

    def _run(self, component: Component, asked: Asked) -> Any:
        given, program, title = asked.tensors, asked.program, component.title(asked.call)
        before = program.weights_now()
        if before is None:
            raise EndedError(f"the weights of {title} are not there")
        with modes.all_off(), component.view.using():
            inputs = [_on_host(one) for one in given]
            result = program(*asked.args, **asked.kwargs)
            kept = _on_host_once(result)
        if program.weights_now() != before:
            raise EndedError(f"the weights of {title} were changed meanwhile")
        places, is_inference = [one.device for one in given], torch.is_inference_mode_enabled()
        self._kept.keep(Kept(asked.call, asked.key, program, before, inputs, places, is_inference, kept))
        return result


def encoding() -> Encoding | None:
    """The run ahead that this thread is for."""
    found = running_ahead()
    return found if isinstance(found, Encoding) else None


def _is_same(given: torch.Tensor, known: torch.Tensor) -> bool:
    return torch.equal(_on_host(given) if given.device != HOST else given, known)


def _on_host(value: torch.Tensor) -> torch.Tensor:
    """The value in host memory that nobody else has."""
    return value.clone() if value.device == HOST else handed(value, HOST)


@dataclass(frozen=True, eq=False)
class _Away:
    """A tensor of a result in host memory, and where it belongs."""

    value: torch.Tensor
    device: torch.device


def _on_host_once(result: Any) -> Any:
    """A result with its tensors in host memory; raises EndedError where two of them are views of the same memory."""
    found: dict[int, _Away] = {}
    storages: set[int] = set()

    def away(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in found:
            storage = leaf.untyped_storage()._cdata
            if storage in storages:
                raise EndedError("two results share memory")
            storages.add(storage)
            found[id(leaf)] = _Away(_on_host(leaf), leaf.device)
        return found[id(leaf)]

    return pytree.tree_map(away, result)
