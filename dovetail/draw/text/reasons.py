"""Why each component of a plan is where it is, in a sentence of facts."""

from __future__ import annotations

from collections.abc import Iterator

from ...compiler.spec.devices import Rig
from ...compiler.spec.residency import Residency
from ...compiler.spec.units import format_bytes
from ...planning.table import Account, Part, Row

_PLACES = {Residency.HOST: "in host memory", Residency.DISK: "on disk"}


def reason_for(account: Account, part: Part) -> str:
    """What decides where a program of the plan runs and where its weights rest."""
    first = "Found by search" if account.searched is not None else "As asked"
    return f"{first}: {'; '.join(_facts(part, account.generation.rig))}."


def _facts(part: Part, rig: Rig) -> Iterator[str]:
    program = part.call.program
    total = sum(weight.nbytes for weight in program.weights.values())
    devices = " & ".join(row.device.name for row in part.rows) or program.main.name
    how = "by rows" if program.is_sliced else "by blocks"
    yield f"split {how} over {devices}" if len(part.rows) > 1 else f"all of it runs on {devices}, so nothing crosses"
    for row in part.rows:
        yield from _resting(row, total, rig)
    if part.chunks > 1:
        yield f"computed in {part.chunks} chunks, to take less memory for values"
    if part.tile:
        yield f"in tiles of {part.tile}, to take less memory for values"


def _resting(row: Row, total: int, rig: Rig) -> Iterator[str]:
    """Where weights of a device rest, why they cannot all stay there if that is so, and when they come."""
    places = [f"{format_bytes(nbytes)} {_PLACES[place]}" for place, nbytes in row.rests.items() if place in _PLACES]
    if not places:
        return
    free = rig[row.device].free
    why = f", for {format_bytes(total)} are more than the {format_bytes(free)} that {row.device} may use"
    yield f"weights of {row.device} rest {' and '.join(places)}{why if total > free else ''}"
    if row.weights:
        yield f"{format_bytes(row.weights)} of them are there for the whole phase, and leave with it"
    if row.streamed:
        yield f"{format_bytes(row.streamed)} of them come anew in every call"
