"""What the arguments of a pipeline's call decide of the calls that it makes: calls of equal kinds have one plan.

Texts count by the numbers of their tokens, pictures by their sizes, tensors by their shapes. Generators do not count,
nor what is called back; but that something is called at the end of each step does, for pipelines keep values for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .isolated import STEP_END, is_left_out
from .own_code import kept_of, runs_own_code

_PLAIN = (bool, int, float, complex, bytes, type(None), torch.dtype, torch.device)


def kind_of(pipe: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """The kind of a call of a pipeline, with what the pipeline itself is set to."""
    tokenizers = [part for part in pipe.components.values() if hasattr(part, "tokenize") and callable(part)]
    own = [one for one in tokenizers if runs_own_code(one)]
    if not own:
        return _kind(pipe, args, kwargs, tokenizers)
    kept = kept_of(own)  # which may count their calls
    try:
        return _kind(pipe, args, kwargs, tokenizers)
    finally:
        kept.give_back()


def _kind(pipe: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tokenizers: Sequence[Any]) -> Hashable:
    named = {name: value is not None if name == STEP_END else value for name, value in kwargs.items()}
    own = tuple((name, _of(value, tokenizers)) for name, value in named.items() if not is_left_out(name, value))
    given = tuple(_of(value, tokenizers) for value in args)
    return type(pipe), given, own, _settings(pipe)


def _settings(pipe: Any) -> Hashable:
    """The classes and settings of what is no module: schedulers decide how often what is called."""
    others = ((name, part) for name, part in pipe.components.items() if not isinstance(part, nn.Module))
    modes = ("use_tiling", "use_slicing", "dtype")
    modules = ((name, part) for name, part in pipe.components.items() if isinstance(part, nn.Module))
    return (
        tuple((name, type(part), id(getattr(part, "config", part))) for name, part in others),
        tuple((name, id(part), *(getattr(part, mode, None) for mode in modes)) for name, part in modules),
    )


def _of(value: Any, tokenizers: Sequence[Any]) -> Hashable:
    if isinstance(value, str):
        return "text", _lengths(value, tokenizers)
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.stride(), value.device
    if isinstance(value, torch.Generator):
        return "generator", value.device
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_of(item, tokenizers) for item in value)
    if isinstance(value, dict):
        return "dict", tuple((str(name), _of(item, tokenizers)) for name, item in value.items())
    shape = getattr(value, "shape", None) or (getattr(value, "size", None), getattr(value, "mode", None))
    return type(value), str(shape)


def _lengths(text: str, tokenizers: Sequence[Any]) -> Hashable:
    """The numbers of tokens of a text; the text itself where a tokenizer does not take it."""
    try:
        return tuple(len(one(text, verbose=False)["input_ids"]) for one in tokenizers) or text
    except Exception:
        return text
