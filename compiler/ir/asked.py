"""What a model asks of a tensor beside its elements: how it lies in memory, and what it is to autograd.

It may also ask whether gradients are enabled, or inference mode, which is a matter of the call.

A trace has one answer to each question, and a program computes what followed from it. Its inputs have the strides of
the example; beside that they are what tensors usually are: each begins memory of its own, and needs no gradient. So a
program remembers which questions were asked, and a call is refused for which an answer would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import torch

LAYOUT, STRIDES = "layout", "strides"
"""Questions about the order of elements: ``is_contiguous`` does not care about dimensions of size 1, a stride does."""
TRACED = "tracing"
"""The question whether it is being traced, of a model that can only be traced if it is told so: no call is refused."""

WITHOUT_GRADIENTS = "no_grad_mode"
"""The question for the mode of a call of a model that was answered as gradients are disabled."""


def _is_all_of_its_memory(tensor: torch.Tensor) -> bool:
    reach = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.untyped_storage().nbytes() == reach * tensor.element_size() * bool(tensor.numel())


_USUAL: Mapping[str, tuple[Callable[[torch.Tensor], bool], str]] = {
    "offset": (lambda one: one.storage_offset() == 0, "begins inside of the memory of another tensor"),
    "memory": (_is_all_of_its_memory, "lies in memory that has more than it"),
    "view": (lambda one: not one._is_view(), "is a view"),
    "gradient": (lambda one: not one.requires_grad, "requires a gradient"),
    "history": (lambda one: one.is_leaf, "is a result that gradients flow through"),
    "conjugate": (lambda one: not one.is_conj() and not one.is_neg(), "is a conjugate or negative view"),
    "inference": (lambda one: not one.is_inference(), "was made in inference mode"),
    "version": (lambda one: not one.is_inference() and one._version == 0, "was written to"),
}
"""The other questions: whether a tensor is as a trace shows its inputs, and what it is where it is not."""

_NO_TENSORS = frozenset((bool, int, float, str, type(None), list, tuple, dict, torch.dtype, torch.device))

_MODES: Mapping[str, tuple[Callable[[], bool], str]] = {
    "grad_mode": (torch.is_grad_enabled, "enabled: call it outside of torch.no_grad()"),
    WITHOUT_GRADIENTS: (lambda: not torch.is_grad_enabled(), "disabled: call it under torch.no_grad()"),
    "inference_mode": (torch.is_inference_mode_enabled, "on: call it under torch.inference_mode()"),
    "no_inference_mode": (
        lambda: not torch.is_inference_mode_enabled(),
        "off: call it outside of torch.inference_mode()",
    ),
}
"""What a model asked of the call's modes, with the answer that it got: whether that is so now, and what was so."""

UNUSUAL = {question: what for question, (_, what) in _USUAL.items()}
MODES = frozenset(_MODES)
QUESTIONS = frozenset((LAYOUT, STRIDES, TRACED, *_USUAL, *_MODES))


def one_tensor(values: Iterable[object]) -> tuple[int, ...]:
    """Which of the tensors among some arguments are one object: for each the first that it is; empty where all differ.

    A model may ask that (``query is key``), and no trace notes that it did.
    """
    found = [value for value in values if type(value) not in _NO_TENSORS]
    if len(set(map(id, found))) == len(found):  # as nearly every call has it
        return ()
    given = [id(value) for value in found if isinstance(value, torch.Tensor)]
    return tuple(map(given.index, given)) if len(set(given)) < len(given) else ()


def modes_of_call(asked: Collection[str]) -> tuple[str, ...]:
    """What is so of the modes of a call now, of a model that asks for one of them."""
    if MODES.isdisjoint(asked):
        return ()
    return tuple(question for question, (is_so, _) in _MODES.items() if is_so())


def other_mode(asked: Collection[str]) -> str:
    """How a mode was when a model was traced that asks for it, and is not now; empty where there is none."""
    for question in MODES.intersection(asked):
        is_so, was = _MODES[question]
        if not is_so():
            return f"the model asks for {'inference mode' if 'inference' in question else 'gradients'}, traced {was}"
    return ""


def unusual(tensor: torch.Tensor, asked: Collection[str]) -> tuple[str, ...]:
    """Those of the questions to which a tensor has another answer than a trace gives, whatever its strides."""
    return tuple(one for one, (is_so, _) in _USUAL.items() if one in asked and not is_so(tensor))


def difference(tensor: torch.Tensor, strides: Sequence[int], asked: Collection[str]) -> str:
    """How a tensor differs from a traced one of these strides, where a model asks; empty where it does not."""
    for question in unusual(tensor, asked):
        return (
            f"{_USUAL[question][1]}, and the model, which asks for that, was traced with one that is not so: give a "
            "detached clone"
        )
    exactly = STRIDES in asked
    found = zip(tensor.stride(), strides, tensor.shape, strict=True)
    if (exactly or LAYOUT in asked) and any(one != other for one, other, size in found if exactly or size > 1):
        return (
            f"has the strides {tuple(tensor.stride())} and was traced with {tuple(strides)}, which the model asks for: "
            "give a tensor of the same strides"
        )
    return ""
