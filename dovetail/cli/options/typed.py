"""What is read of a command's words before its options are: what help is to show, and switches that say on or off."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

VERBOSE = "verbose"
OTHER_SPELLINGS = "Other spellings"
"""The heading of options that help shows only where it is asked for all of them."""

_SWITCHES = {"--auto-fit": {"on": "--auto-fit", "off": "--no-auto-fit"}}


def value_in(words: Sequence[str], option: str) -> str:
    """What was typed for an option; empty text where it was not.

    >>> value_in(["plan", "--rig", "cuda0=8GiB"], "--rig"), value_in(["--rig=sim0=1GiB"], "--rig")
    ('cuda0=8GiB', 'sim0=1GiB')
    """
    joined = next((word.partition("=")[2] for word in words if word.startswith(f"{option}=")), "")
    return joined or next((value for word, value in pairwise(words) if word == option), "")


class DevicesAskedError(Exception):
    """The devices are to be listed, in place of what the command does."""


def asks_for_all(args: Sequence[str]) -> bool:
    """Whether the words of a command ask for more to be said, wherever they stand."""
    return any(one in ("-v", "--verbose") for one in itertools.takewhile("--".__ne__, args))


def with_switches(args: Sequence[str]) -> list[str]:
    """The words with ``--auto-fit off`` as the option that says so.

    >>> with_switches(["a cat", "--auto-fit", "off", "--auto-fit=on"])
    ['a cat', '--no-auto-fit', '--auto-fit']
    """
    found: list[str] = []
    for one in args:
        name, _, value = one.partition("=")
        if name in _SWITCHES and value.lower() in _SWITCHES[name]:
            found.append(_SWITCHES[name][value.lower()])
        elif found and one.lower() in _SWITCHES.get(found[-1], {}):
            found[-1] = _SWITCHES[found[-1]][one.lower()]
        else:
            found.append(one)
    return found


def shown(parameters: Sequence[Any], all_of_them: bool) -> list[Any]:
    """The parameters as help shows them: flags take nothing, and hidden ones stand below a heading of their own."""
    return [_shown(one, all_of_them) for one in parameters]


def _shown(one: Any, all_of_them: bool) -> Any:
    if getattr(one, "is_flag", False) and one.metavar is None:
        one.metavar = ""
    if not all_of_them or not getattr(one, "hidden", False):
        return one
    visible = copy.copy(one)
    visible.hidden, visible.rich_help_panel = False, OTHER_SPELLINGS
    return visible
