"""Schedulers by the names that people type: those of diffusers' classes, and of stable-diffusion.cpp's methods."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable
from typing import Any

from ..compiler.errors import UsageError

_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "euler_a": ("EulerAncestralDiscrete", {}),
    "dpm2": ("KDPM2Discrete", {}),
    "dpm++2m": ("DPMSolverMultistep", {}),
    "dpm++2s": ("DPMSolverSinglestep", {}),
    "dpm++2m_karras": ("DPMSolverMultistep", {"use_karras_sigmas": True}),
    "ddim_trailing": ("DDIM", {"timestep_spacing": "trailing"}),
    "unipc": ("UniPCMultistep", {}),
}
"""What is no part of a class's name: the class, and what is changed of the scheduler's config."""

_FLOW = "FlowMatch"


def exchanged(scheduler: Any, name: str) -> Any:
    """A scheduler of another kind in place of a pipeline's own, made of its config.

    Args:
        scheduler: that of the pipeline.
        name: ``EulerDiscreteScheduler``, or a part of such a name: ``euler``, ``heun``, ``ddim``; or a sampling method
            of stable-diffusion.cpp: ``euler_a``, ``dpm++2m``.

    Raises UsageError for one that cannot take its place; the message has those that can.
    """
    import diffusers

    known = {one.__name__: one for one in _compatible(scheduler)}
    wanted, changes = _METHODS.get(name.lower(), (name, {}))
    found = next((cls for own, cls in sorted(known.items()) if _plain(own) == _plain(wanted)), None)
    if found is None and not any(_plain(one) == _plain(wanted) for one in dir(diffusers) if one.endswith("Scheduler")):
        words = _words(known)
        every = {one.lower(): one for one in (*known, *words)}
        near = difflib.get_close_matches(name.lower(), every, 1)
        hint = f", did you mean {every[near[0]]}?" if near else ";"
        raise UsageError(f"no scheduler is called {name}{hint} what can be taken: {', '.join(words)}")
    if found is None:
        others = ", ".join(_words(set(known) - {type(scheduler).__name__})) or "none"
        raise UsageError(f"--scheduler {name} cannot take the place of {type(scheduler).__name__}; what can: {others}")
    return found.from_config(scheduler.config, **changes)


def _compatible(scheduler: Any) -> list[Any]:
    """The classes that can take a scheduler's place: those that it names itself.

    Those of flow matching name none: all that take sigmas, which their pipelines give.
    """
    import diffusers

    if not type(scheduler).__name__.startswith(_FLOW):
        return [type(scheduler), *scheduler.compatibles]
    flow = [getattr(diffusers, name) for name in dir(diffusers) if name.startswith(_FLOW)]
    return [one for one in flow if "sigmas" in inspect.signature(one.set_timesteps).parameters]


def _words(classes: Iterable[str]) -> list[str]:
    """What classes are called for short, and the methods that they carry out."""
    plain = {_plain(one) for one in classes}
    return sorted(plain | {method for method, (name, _) in _METHODS.items() if _plain(name) in plain})


def _plain(name: str) -> str:
    """A name without what all of them share."""
    return re.sub(rf"^{_FLOW.lower()}|discrete|scheduler|[^a-z0-9]", "", name.lower())
