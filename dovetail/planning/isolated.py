"""A call of a pipeline that changes nothing: no attribute, no scheduler, no random number, and no argument.

The pipeline's own code runs on a copy of the pipeline, which has the same components and a scheduler of its own,
unless functions of somebody's lie on that: it is given back what it held then (``own_code.py``). What
is called back at the end of a step gives back what it is given, for pipelines keep values of the step for it; all else
that is called back is left out. Random generators are copies; tensors that were given are those that were given, for
their numbers may decide what is called, in containers of their own. Objects of the user's are copied
(``copies.py``).
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..components.dry import dry_run
from ..components.running_ahead import running_ahead
from .copies import copied, is_of_a_library, is_of_the_user
from .own_code import functions_on

STEP_END = "callback_on_step_end"
"""The argument that is called at the end of each step."""

_LIBRARIES = ("diffusers", "transformers")


@dataclass(frozen=True)
class IsolatedCall:
    """A call of a pipeline without its effects: what it writes to, it writes to ``copies``.

    These are by the identities of what they are copies of.
    """

    call: Callable[[], Any]
    copies: Mapping[int, Any]

    def __call__(self) -> Any:
        """Makes the call."""
        return self.call()


@contextlib.contextmanager
def isolated(
    pipe: Any,
    cls: type[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    devices: Sequence[torch.device],
    main: torch.device | None = None,
) -> Iterator[IsolatedCall]:
    """Gives the call of a pipeline with such arguments, as of an object of a class, without its effects.

    ``devices`` are those on which random numbers may be drawn. ``main`` is that of the pipeline's own tensors, if it is
    another one than in the call: generators that were given are there too.
    """
    call = _isolated(pipe, cls, args, kwargs, main, copy.deepcopy)
    with same_random_numbers(devices), quiet(), np.errstate(all="ignore"):
        yield call


def isolated_beside(pipe: Any, cls: type[Any], kwargs: Mapping[str, Any]) -> IsolatedCall:
    """The same of a call that another thread makes while the pipeline works: schedulers are new ones, not copies.

    Whoever makes it takes care that it draws no random numbers but from generators that were given. Raises what making
    such a scheduler does, and TypeError for one with functions of somebody's, which has no copy.
    """
    return _isolated(pipe, cls, (), kwargs, None, _made_anew)


def _isolated(
    pipe: Any,
    cls: type[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    main: torch.device | None,
    again: Callable[[Any], Any],
) -> IsolatedCall:
    copies: dict[int, Any] = {}
    memo: dict[int, Any] = {}
    there = _copied(pipe, cls, copies, memo, again)
    given = [_harmless(value, copies, memo, main) for value in args]
    wanted = {name: value for name, value in kwargs.items() if not is_left_out(name, value)}
    named = {name: _named(name, value, copies, memo, main) for name, value in wanted.items()}
    return IsolatedCall(lambda: there(*given, **named), copies)


def _made_anew(value: Any) -> Any:
    """Another scheduler, or the like, of the same settings."""
    if functions_on(value):
        raise TypeError(f"{type(value).__name__} has functions of its own, which lead back to it")
    return type(value).from_config(value.config)


def is_called_back(name: str, value: Any) -> bool:
    """Whether an argument is called back, which a dry run does not do."""
    return name.startswith("callback") and callable(value)


def is_left_out(name: str, value: Any) -> bool:
    """Whether an argument is called back, other than at the end of a step."""
    return is_called_back(name, value) and name != STEP_END


def _named(name: str, value: Any, known: Mapping[int, Any], memo: dict[int, Any], main: torch.device | None) -> Any:
    return _given_back if name == STEP_END and value is not None else _harmless(value, known, memo, main)


def _given_back(*given: Any) -> Any:
    """What is called at the end of a step, with the values of the step last: it changes none of them."""
    return given[-1]


def _harmless(value: Any, known: Mapping[int, Any], memo: dict[int, Any], main: torch.device | None) -> Any:
    """An argument that the call may write to: generators, containers and objects of the user's are copies."""
    if isinstance(value, torch.Generator):
        is_there = main is None or value.device in (main, torch.device("cpu"))
        return value.clone_state() if is_there else torch.Generator(main).manual_seed(value.initial_seed())
    if type(value) is dict:
        return {key: _harmless(item, known, memo, main) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_harmless(item, known, memo, main) for item in value)
    return value if is_of_a_library(value) else copied("an argument", value, known, memo)


def _copied(pipe: Any, cls: type[Any], known: dict[int, Any], memo: dict[int, Any], again: Callable[[Any], Any]) -> Any:
    """A pipeline of the same components; what it holds that is neither a module nor of another library is copied."""
    if id(pipe) in known:
        return known[id(pipe)]
    made = known[id(pipe)] = object.__new__(cls)
    vars(made).update({name: _own(value, known, memo, again) for name, value in vars(pipe).items()})
    own = {name: value for name, value in vars(made).items() if value is vars(pipe)[name]}
    may_write = (torch.Generator, torch.Tensor) if is_of_the_user(cls) else torch.Generator
    for name, value in own.items():
        if not is_of_a_library(value) or isinstance(value, may_write):
            vars(made)[name] = copied(name, value, known, memo)
    vars(made)["_progress_bar_config"] = {"disable": True}
    return made


def _own(value: Any, known: dict[int, Any], memo: dict[int, Any], again: Callable[[Any], Any]) -> Any:
    """What a copy of a pipeline has in an attribute: schedulers and the like are its own, as are pipelines in it."""
    from diffusers import ConfigMixin, DiffusionPipeline

    if isinstance(value, (nn.Module, type)):
        return value
    if isinstance(value, DiffusionPipeline):
        return _copied(value, type(value), known, memo, again)
    if isinstance(value, ConfigMixin) and id(value) not in known:
        leads_back = again is copy.deepcopy and functions_on(value)
        known[id(value)] = value if leads_back else again(value)
    return known.get(id(value), value)


@contextlib.contextmanager
def same_random_numbers(devices: Sequence[torch.device]) -> Iterator[None]:
    """The numbers that are drawn meanwhile are drawn again afterwards."""
    modules = [(torch.get_device_module(one), one) for one in dict.fromkeys(devices) if one.index is not None]
    states = [module.get_rng_state(device) for module, device in modules]
    state, of_numpy, of_python = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        for (module, device), before in zip(modules, states, strict=True):
            module.set_rng_state(before, device)
        torch.set_rng_state(state)
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Libraries say nothing of a call that runs dry or ahead: they will say it of the call itself."""

    def is_wanted(record: logging.LogRecord) -> bool:
        is_itself = dry_run() is None and running_ahead() is None
        return is_itself or record.name.partition(".")[0] not in _LIBRARIES

    handlers = [handler for name in _LIBRARIES for handler in logging.getLogger(name).handlers]
    for handler in handlers:
        handler.addFilter(is_wanted)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_wanted)
