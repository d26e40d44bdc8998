"""`dovetail cache`: the traces, programs and answers that are kept on disk for the next start."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from ...cache import folder
from ...compiler.errors import UsageError
from ...compiler.units import counted, format_bytes
from ..options.shared import Debug, Json
from ..output.results import print_json, print_table

Action = Annotated[
    Literal["list", "clear", "path"],
    typer.Argument(help="list: what is kept; clear: remove all of it; path: where it is."),
]

_WHAT = {folder.TRACE: "class", folder.ANSWER: "answer", folder.PROGRAM: "program"}
"""What the name of an entry is, as data, by its kind."""


def cache(action: Action = "list", json: Json = False, debug: Debug = False) -> None:
    """List what is kept of earlier runs, so that a second start is quick, or remove it.

    So are weights that were packed by --quant, which count apart, for they are large.
    DOVETAIL_CACHE=0 keeps nothing, DOVETAIL_CACHE_DIR names another folder, DOVETAIL_CACHE_SIZE how large it may grow.
    """
    if action == "list":
        _list(json)
    elif action == "clear":
        _clear(json)
    else:
        print_json({"path": str(folder.place())}) if json else print(folder.place())


def _list(json: bool) -> None:
    from ...quant import kept

    weights = list(kept.files())
    found, most = folder.entries(), folder.limit()
    names = [folder.name_of(entry) for entry in found]
    if json:
        facts = [
            {"key": one.key, _WHAT[one.kind]: name, "bytes": one.nbytes, "used": one.used}
            for one, name in zip(found, names, strict=True)
        ]
        print_json({"path": str(folder.place()), "on": folder.is_on(), "limit_bytes": most, "entries": facts,
                    "weights": kept.facts()})  # fmt: skip
        return
    rows = [
        (name or "damaged", format_bytes(one.nbytes), _age(one.used), one.key[:12])
        for one, name in zip(found, names, strict=True)
    ]
    print_table(("kept of", "size", "used", "key"), rows, right=(1, 2))
    total = format_bytes(sum(one.nbytes for one in found))
    print(f"{counted(len(found), 'entry', 'entries')}, {total} of at most {format_bytes(most)}, in {folder.place()}")
    if weights:
        packed = [(kept.title_of(path), format_bytes(size), _age(when), path.stem[:12]) for path, size, when in weights]
        print()
        print_table(("packed weights", "size", "made", "key"), packed, right=(1, 2))
        print(f"{format_bytes(sum(size for _, size, _ in weights))} of packed weights, in {kept.place()}")
    if not folder.is_on():
        print(f"switched off by {folder.SWITCH}")


def _clear(json: bool) -> None:
    from ...quant import kept

    try:
        counts, sizes = zip(folder.clear(), kept.clear(), strict=True)
    except OSError as error:
        raise UsageError(f"cannot clear {folder.place()}: {error.strerror}: remove the folder by hand") from error
    count, nbytes = sum(counts), sum(sizes)
    if json:
        print_json({"path": str(folder.place()), "removed": count, "bytes": nbytes})
    else:
        print(f"removed {counted(count, 'entry', 'entries')} ({format_bytes(nbytes)}) from {folder.place()}")


def _age(used: float) -> str:
    """How long ago that was, in the largest unit of which there is one."""
    seconds = max(0.0, time.time() - used)
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= unit:
            number = round(seconds / unit)
            return f"{number} {name}{'s' * (number != 1)} ago"
    return "just now"
