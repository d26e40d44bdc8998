"""A page of pictures: one HTML file that needs nothing else, about programs and the plan of a pipeline's call.

All that comes from a plan or a model goes into the page as JSON data, which its script puts there as text. The page's
own policy allows its own script alone, and no request.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...compiler.atomic_write import written_beside
from ...compiler.devices.speeds import Speeds
from ...compiler.durations import duration
from ...compiler.errors import UsageError
from ...compiler.ir.program import Program
from ...compiler.units import format_bytes
from ...fitting.decide import speeds_here
from ...passes.simulate.profile import Profile, profile
from ...planning.choice import HEAD_OF_CHOICES
from ...planning.parts import Part
from ...planning.shared_work import HEAD_OF_BLOCKS, HEAD_OF_GROUPS
from ...planning.table import HEAD, HEAD_OF_DEVICES, Account
from ..outline.outline import outline
from ..text.marks import marks_in_words
from ..text.reasons import reason_for
from ..text.reproduce import command_for
from ..text.summary import rows_of_devices
from .browser import has_browser, open_page
from .head import head_of, others_of
from .nodes import graph_of
from .over_time import lanes_of, of_call, of_picture

_SCRIPTS = ("uPlot.iife.min.js", "base.js", "memory.js", "lanes.js", "ribbon.js", "tree.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


class Page(str):
    """The text of a page, which a notebook shows in a frame of its own."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Page, {format_bytes(len(self))} of HTML: .save(FILE) writes it, .open() shows it in a browser>"

    def open(self) -> Path:
        """Shows the page in a browser, from a file for temporary ones, which it returns.

        Raises UsageError where no browser can be opened.
        """
        if not has_browser():
            raise UsageError('no browser can be opened here: write the page with .save("plan.html"), and open that')
        return open_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a file, whole or not at all; raises UsageError where that cannot be."""
        try:
            with written_beside(path) as draft:
                draft.write_text(self, encoding="utf-8")
        except OSError as error:
            why = error.strerror if Path(path).absolute().parent.is_dir() else f"there is no folder {Path(path).parent}"
            raise UsageError(f"cannot write {path}: {why}: name a file in a folder that can be written to") from error

    def _repr_html_(self) -> str:
        style = "width:100%;height:85vh;border:0"
        return f'<iframe srcdoc="{escape(self)}" style="{style}" sandbox="allow-scripts"></iframe>'


def page(programs: Mapping[str, Program], account: Account | None = None, *, title: str = "", line: str = "") -> Page:
    """The page of programs by their names, and of the plan of a pipeline's call where there is one.

    Args:
        programs: cut programs, in the order of their calls.
        account: the plan with all that is said of it.
        title: what the page is about; the names of the programs if left out.
        line: the command that makes the same placements, as it is shown to be copied.

    Raises PassError for a program that was not cut.
    """
    from jinja2 import Environment

    whole = {name: outline(program, name) for name, program in programs.items()}  # which refuses what was not cut
    data = _data(programs, account, title or ", ".join(whole), line or command_for(programs))
    graphs = [_json(graph_of(program, _speeds(program, account))) for program in programs.values()]
    script = "\n".join(map(asset, _SCRIPTS))
    template = Environment(autoescape=True).from_string(asset("page.html"))
    text = template.render(
        title=data["title"],
        data=_json(data),
        graphs=graphs,
        script=script,
        style="\n".join(map(asset, _STYLES)),
        digest=base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode(),
    )
    return Page(text)


def _data(programs: Mapping[str, Program], account: Account | None, title: str, line: str) -> dict[str, Any]:
    profiles = {
        name: profile(program, _speeds(program, account))
        for name, program in programs.items()
        if program.schedule is not None
    }
    return {
        "title": title,
        "line": line,
        "head": head_of(programs, account),
        "others": others_of(account),
        "devices": _devices(programs, account, profiles),
        "weights": _weights(programs, account),
        "programs": [_program(name, one, account, profiles.get(name)) for name, one in programs.items()],
        "picture": _picture(account, profiles, programs),
        "plan": _plan(account),
    }


def _weights(programs: Mapping[str, Program], account: Account | None) -> int:
    """Bytes of weights, each once, however many programs of its component read it."""
    found: dict[tuple[str, str], int] = {}
    for title, program in programs.items():
        part = _part_of(program, account)
        component = part.call.component if part else title
        found.update({(component, name): weight.nbytes for name, weight in program.weights.items()})
    return sum(found.values())


def _speeds(program: Program, account: Account | None) -> Speeds:
    """The speeds of the plan, and of devices of a program that the plan does not know those of its rig."""
    own = speeds_here(program.rig)
    return own if account is None else replace(account.speeds, devices={**own.devices, **account.speeds.devices})


def _devices(
    programs: Mapping[str, Program], account: Account | None, profiles: Mapping[str, Profile]
) -> list[dict[str, Any]]:
    if account is not None:
        rig = account.generation.rig
        labels = {one.name: rig[one].label or account.speeds[one].label for one in account.generation.devices}
        return [{"name": name, "label": labels.get(name, ""), **peak} for name, peak in account.devices().items()]
    memory = {device: one.rig[device] for one in programs.values() for device in one.devices}
    at = {row[0]: row[3] for row in rows_of_devices(programs)}
    found = []
    for device, size in sorted(memory.items(), key=lambda item: (item[0].is_host, item[0].kind, item[0].index)):
        moments = [usage for one in profiles.values() for _, usage in one.moments.get(device, ())]
        peak = max(moments, key=lambda usage: usage.total, default=None)
        sizes = (peak.total, peak.weights, peak.staged, peak.values + peak.scratch) if peak else (0, 0, 0, 0)
        found.append(
            {"name": device.name, "label": size.label, "total": size.total, "free": size.free, "at": at[device.name],
             **dict(zip(("peak", "weights", "staged", "values"), sizes, strict=True))}
        )  # fmt: skip
    return found


def _program(name: str, program: Program, account: Account | None, seen: Profile | None) -> dict[str, Any]:
    part = _part_of(program, account)
    line = seen.timeline.seconds if seen else 0.0
    seconds, spread = part.seconds if part else line, _speeds(program, account).spread(program.devices)
    by_device = outline(program, name, "devices")
    return {
        "name": name,
        "class": program.name,
        "phase": part.call.phase if part else "",
        "calls": part.call.times if part else 1,
        "seconds": seconds,
        "takes": duration(seconds, spread),
        "call_seconds": line,
        "call_takes": duration(line, spread),
        "weights": sum(weight.nbytes for weight in program.weights.values()),
        "operations": sum(len(segment.nodes) for segment in program.segments),
        "segments": len(program.segments),
        "crosses": sum(edge.nbytes for edge in by_device.edges if edge.crosses)
        + sum(one.inside for one in by_device.parts),
        "sliced": program.is_grouped,
        "marks": marks_in_words(program),
        "devices": [device.name for device in program.devices],
        "why": reason_for(account, part) if account and part else "",
        "memory": of_call(program, seen) if seen else {},
        "lanes": lanes_of(seen.timeline) if seen else None,
    }


def _part_of(program: Program, account: Account | None) -> Part | None:
    return next((one for one in account.parts if one.call.program is program), None) if account else None


def _picture(
    account: Account | None, profiles: Mapping[str, Profile], programs: Mapping[str, Program]
) -> dict[str, Any] | None:
    if account is None:
        return None
    by_program = {id(program): profiles[name] for name, program in programs.items() if name in profiles}
    calls = {id(part.call): part for part in account.parts}
    known = {key: by_program.get(id(part.call.program)) or _profiled(part, account) for key, part in calls.items()}
    return of_picture(account.generation, known, {key: part.bringing for key, part in calls.items()})


def _profiled(part: Part, account: Account) -> Profile:
    return profile(part.call.program, _speeds(part.call.program, account))


def _plan(account: Account | None) -> dict[str, Any] | None:
    if account is None:
        return None
    return {
        "head": [*HEAD[:-1], "takes"],
        "rows": _rows(account),
        "reasons": [(part.title, reason_for(account, part)) for part in account.parts],
        "together": [
            {"head": list(head), "rows": rows}
            for head, rows in (
                (HEAD_OF_GROUPS, account.rows_of_groups()),
                (HEAD_OF_BLOCKS, account.rows_of_blocks()),
                (HEAD_OF_CHOICES, account.rows_of_choices()),
            )
            if rows
        ],
        "head_of_devices": list(HEAD_OF_DEVICES),
        "rows_of_devices": account.rows_of_devices(),
        "remarks": account.remarks(),
        "seconds": account.seconds,
        "takes": duration(account.seconds, account.spread),
    }


def _rows(account: Account) -> list[tuple[str, ...]]:
    """The rows of the plan with times in the units that the page has elsewhere."""
    parts = [part for part in account.shown for _ in part.rows]
    return [
        (*row[:-1], duration(part.seconds, part.spread) if row[-1] else "")
        for row, part in zip(account.rows(), parts, strict=True)
    ]


def _json(document: Any) -> str:
    """JSON that neither ends the element that it stands in nor begins another."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@functools.lru_cache
def asset(name: str) -> str:
    """The text of a file of the page: its style, or a part of its script."""
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
