"""`dovetail passes`: what happens between a trace and a schedule."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any

from ..options.shared import Debug, Json
from ..output.results import print_json


def passes(json: Json = False, debug: Debug = False) -> None:
    """List the passes in their usual order, with the options that --passes takes."""
    from ...passes.pipeline import default_passes, known_passes

    steps = {name: _facts(step) for name, step in known_passes().items()}
    usual = [str(step) for step in default_passes()]
    if json:
        print_json({"usual": ",".join(usual), "passes": steps})
        return
    print(f'--passes "{",".join(usual)}" is what runs if nothing else is said\n')
    for name, step in steps.items():
        print(f"{name}: {step['what']}")
        for option, default in step["options"].items():
            print(f"    {{{option}=…}}, {default if default not in (None, ()) else 'chosen by the pass'} if left out")


def _shown(default: Any) -> Any:
    """A default as JSON takes it; None where there is none."""
    if default is MISSING:
        return None
    return default if isinstance(default, (bool, int, float, str, tuple, type(None))) else str(default)


def _facts(step: Any) -> dict[str, Any]:
    text = getattr(inspect.getmodule(step), "__doc__", None) or step.__doc__ or ""
    return {
        "what": " ".join(text.partition("\n\n")[0].split()),
        "options": {field.name: _shown(field.default) for field in fields(step)},
        "requires": sorted(step.requires),
        "ensures": sorted(step.ensures),
        "refuses": sorted(step.refuses),
    }
