"""Why each component of a plan is where it is, in a sentence of facts."""

from __future__ import annotations

from collections.abc import Iterator

from ..compiler.spec.devices import Device, Rig
from ..compiler.spec.residency import Residency
from ..compiler.spec.units import format_bytes
from ..planning.table import Account, Part

_PLACES = {Residency.HOST: "host memory", Residency.DISK: "disk"}


def reason_for(account: Account, part: Part) -> str:
    """What decides where a program of the plan runs and where its weights rest."""
    first = "Found by search: " if account.searched is not None else "As asked: "
    return first + "; ".join(_facts(part, account.generation.rig)) + "."


def _facts(part: Part, rig: Rig) -> Iterator[str]:
    program = part.call.program
    total = sum(weight.nbytes for weight in program.weights.values())
    devices = " & ".join(row.device.name for row in part.rows) or program.main.name
    how = "by rows" if program.is_sliced else "by blocks"
    yield f"split {how} over {devices}" if len(part.rows) > 1 else f"all of it runs on {devices}, so nothing crosses"
    for row in part.rows:
        yield from _of_rests(row.rests, row.streamed, row.weights, row.device, total, rig)
    if part.chunks > 1:
        yield f"computed in {part.chunks} chunks to take less memory for values"
    if part.tile:
        yield f"in tiles of {part.tile} to take less memory for values"


def _of_rests(rests: object, streamed: int, weights: int, device: Device, total: int, rig: Rig) -> Iterator[str]:
    places = [f"{format_bytes(nbytes)} in {_PLACES[place]}" for place, nbytes in rests.items() if place in _PLACES]
    if not places:
        return
    free = rig[device].free
    yield f"of its weights {' and '.join(places)} rest away from {device}"
    if total > free:
        yield f"{format_bytes(total)} of weights are more than the {format_bytes(free)} that {device} may use"
    if streamed:
        yield f"{format_bytes(streamed)} of them come anew in every call"
    elif weights:
        yield f"they are on {device} for its phase only, and leave room to the others"
