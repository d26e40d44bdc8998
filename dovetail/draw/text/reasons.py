"""Why each component of a plan is where it is, in a sentence of facts."""

from __future__ import annotations

from collections.abc import Iterator

from ...compiler.devices.rig import Rig
from ...compiler.spec.residency import Residency
from ...compiler.units import format_bytes
from ...passes.states.states import split_mode_of
from ...planning.parts import Part, Row
from ...planning.table import Account

_PLACES = {Residency.HOST: "in RAM", Residency.DISK: "on disk"}


def reason_for(account: Account, part: Part) -> str:
    """What decides where a program of the plan runs and where its weights are kept, in sentences."""
    return f"{_who_decided(account, part)}: {'. '.join(_facts(part, account.generation.rig))}."


def _who_decided(account: Account, part: Part) -> str:
    """Whether the devices of a part were typed or searched; elsewhere its weights may be kept as a search found.

    Of a part that is not split as was asked, that it is not.
    """
    asked, mode = account.modes.get(part.call.component, "layer"), split_mode_of(part.call.program)
    if asked not in ("layer", mode) and not part.call.copied:
        return f"In place of split mode {asked}, which is not possible here"
    if account.searched is None:
        return "As asked"
    loads = account.decision.loads if account.decision else ()
    is_typed = any(load.asked.devices for load in loads if load.name == part.call.component)
    return "As asked" if is_typed else "Found by search"


def _facts(part: Part, rig: Rig) -> Iterator[str]:
    program = part.call.program
    devices = " & ".join(row.device.name for row in part.rows) or program.main.name
    mode = split_mode_of(program)
    how = {"layer": "by blocks", "row": "by rows"}.get(mode, f"by {mode}")
    working = {row.device for row in part.rows}
    idle = [device.name for device in program.devices if device not in working and working]
    nothing = f", and nothing of it on {' & '.join(idle)}" if idle else ""
    over = f"split {how} over {devices}" if len(part.rows) > 1 else f"all of it runs on {devices}, so nothing crosses"
    yield f"{over}{nothing}"
    for row in part.rows:
        yield from _kept(row, part, rig)
    if part.chunks > 1:
        yield f"It is computed in {part.chunks} chunks, to take less memory for values"
    if part.micro_batches > 1:
        yield f"Its pictures go through the devices in {part.micro_batches} micro-batches, so that these work at once"
    if part.tile:
        yield f"It works in tiles of {part.tile}, to take less memory for values"


def _kept(row: Row, part: Part, rig: Rig) -> Iterator[str]:
    """Where weights of a device are kept, why they cannot all stay there if that is so, and when they are copied."""
    places = [f"{format_bytes(nbytes)} {_PLACES[place]}" for place, nbytes in row.rests.items() if place in _PLACES]
    if not places:
        return
    total = sum(weight.nbytes for weight in part.call.program.weights.values())
    free = rig[row.device].free
    why = f", because {row.device} has only {format_bytes(free)} for {format_bytes(total)}" if total > free else ""
    whose = f"The weights that {row.device} reads" if len(part.rows) > 1 else "Its weights"
    yield f"{whose} are kept elsewhere, {' and '.join(places)}{why}"
    stay = f"{format_bytes(row.weights)} stay on {row.device}" if row.weights else ""
    copied = f"{format_bytes(row.streamed)} are copied in every call" if row.streamed else ""
    if stay or copied:
        yield f"While {part.call.phase}, {'; '.join(filter(None, (stay, copied)))}"
