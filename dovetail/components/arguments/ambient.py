"""What acts on a call beside module and arguments: autocast, PyTorch's switches, attention's backend, collectors."""

from __future__ import annotations

from typing import Any

from ...compiler.frontend.autocast import autocast_state
from ...compiler.switches import read_switches
from ...conventions import libraries
from .collecting import collecting


def ambient(kind: str) -> tuple[Any, ...]:
    """What is so for a call that is traced for a kind of device now."""
    return autocast_state(kind), libraries.attention_backend(), read_switches(), collecting()
