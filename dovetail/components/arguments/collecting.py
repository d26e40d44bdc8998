"""What context variables collect while a call goes on: a program does it for nobody, so each has programs of its own.

Libraries collect what layers compute in dicts and lists that a context variable holds, under the names that were asked
for. A trace shows whether a part has something for these; it was made for the names of its time alone.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Hashable
from contextvars import ContextVar, copy_context

from torch.utils._config_module import ConfigModule


def collecting() -> Hashable:
    """The context variables that hold a container, and the names in each that is a dict; takes about a microsecond.

    Not those of dovetail, which no model sees, nor what PyTorch keeps for itself, which differs from thread to thread:
    its settings, and what its compiler is busy with.
    """
    found: list[Hashable] = []
    for variable, value in copy_context().items():
        if not isinstance(value, (dict, list, set, deque)) or _is_own(variable):
            continue
        if isinstance(value, dict):
            names = tuple(name for name in value if isinstance(name, str))
            if names:
                found.append((variable, names))
        else:
            found.append((variable, type(value)))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _is_own(variable: ContextVar[object]) -> bool:
    """Whether a context variable is one of dovetail, a global of PyTorch, or has the value of a setting of that.

    The first look at a variable takes some milliseconds, for it does not say where it is from.
    """
    if variable.name.startswith(("dovetail", "torch.")):
        return True
    modules = [one for name, one in list(sys.modules.items()) if name.partition(".")[0] == "torch"]
    settings = (one._config.values() for one in modules if isinstance(one, ConfigModule))
    return any(entry.user_override is variable for held in settings for entry in held) or any(
        value is variable for one in modules for value in list(getattr(one, "__dict__", {}).values())
    )
