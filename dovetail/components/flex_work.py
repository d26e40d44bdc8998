"""Has calls of PyTorch's flex attention be answered in a dry run, which would compute them by all of their scores."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

Answer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

_FLEX = "torch.nn.attention.flex_attention"
_ANSWER: ContextVar[Answer | None] = ContextVar("dovetail answer of flex attention", default=None)
_lock = threading.Lock()
_own: list[Any] = []
"""The function that is replaced, once for each that has it replaced meanwhile."""


@contextlib.contextmanager
def flex_answered(answer: Answer) -> Iterator[None]:
    """Has a function answer flex attention in this thread meanwhile, given query, key and value.

    Other threads' calls are computed. Where nobody has imported flex attention, nobody calls it.
    """
    flex: Any = sys.modules.get(_FLEX)
    if flex is None:
        yield
        return
    token = _ANSWER.set(answer)
    with _lock:
        _own.append(_own[-1] if _own else flex.flex_attention)
        flex.flex_attention = functools.wraps(_own[-1])(functools.partial(_attend, _own[-1]))
    try:
        yield
    finally:
        with _lock:
            own = _own.pop()
            if not _own:
                flex.flex_attention = own
        _ANSWER.reset(token)


def _attend(own: Callable[..., Any], query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    answer = _ANSWER.get()
    is_plain = not kwargs.get("return_lse") and kwargs.get("return_aux") is None and len(args) < 5
    return answer(query, key, value) if answer and is_plain else own(query, key, value, *args, **kwargs)
