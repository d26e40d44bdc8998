"""The order of the passes, and their spelling as text."""

from __future__ import annotations

import difflib
import inspect
import logging
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from ..compiler.errors import PassError, SpecError, UsageError
from ..compiler.ir.program import Program
from ..compiler.spec.modes import TOGETHER
from ..compiler.units import parse_bytes
from .batches.divide import MicroBatches
from .batches.interleave import Interleave
from .infra.base import Pass
from .infra.manager import Callback, PassManager
from .lowering.keep import Keep
from .lowering.lower import Lower
from .lowering.verification import Verify
from .placement.assignment import Assign, Assignment
from .placement.blocks import FindBlocks
from .placement.cut import Cut
from .placement.hoist import Hoist
from .placement.pin import Pin
from .placement.place import Place
from .placement.rows import Rows
from .placement.sink import Sink
from .rewrites.chunk import Chunk
from .rewrites.inductor import Inductor
from .rewrites.lora import Lora
from .rewrites.lower_packed import Quantize
from .rewrites.reorder import Reorder
from .rewrites.reuse import Reuse
from .rewrites.simplify import Simplify
from .states.arrange import Arrange
from .states.kept import KeptStates
from .states.states import States, split_mode_of

logger = logging.getLogger(__name__)

P = TypeVar("P", bound=Pass)

PASSES: dict[str, type[Pass]] = {
    step.name: step
    for step in (
        Simplify,
        Quantize,
        FindBlocks,
        Lora,
        MicroBatches,
        Chunk,
        Place,
        Rows,
        States,
        Keep,
        Pin,
        Hoist,
        Sink,
        Interleave,
        Cut,
        Reuse,
        Reorder,
        Arrange,
        Inductor,
        Lower,
        Verify,
    )
}
_OWN = frozenset(PASSES)
ENTRY_POINTS = "dovetail.passes"
"""The group of entry points by which an installed package names passes of its own."""

_NAME = re.compile(r"[\w-]+")
_ITEM = re.compile(rf"\s*({_NAME.pattern})\s*(?:\{{([^}}]*)\}})?\s*(?:,|$)")


def default_passes(
    shares: Sequence[float] = (),
    headroom: int | None = None,
    *,
    split_mode: str = "layer",
    keep: bool = False,
    chunk: int = 1,
    inductor: bool = False,
    micro_batches: int = 1,
    terms: str = "",
) -> tuple[Pass, ...]:
    """From a fresh trace to a verified schedule, for a ``layer`` split, a ``row`` split, or one of all values' states.

    With ``keep``, as many weights stay on their devices as fit there, wherever they would rest. Wide parts are computed
    in ``chunk`` chunks, which may change last bits if there are more than one. With ``inductor`` equal blocks are
    compiled once by Inductor, which may change last bits too. With ``micro_batches`` the pictures of a call go
    through a layer split in so many parts, one after another, which may change last bits likewise. ``terms`` is the
    dtype in which devices send terms of float32 sums, ``bfloat16``, which changes bits.
    """
    in_parts = micro_batches > 1 and split_mode == "layer"
    return (
        Simplify(),
        Quantize(),
        FindBlocks(),
        Lora(),
        *((MicroBatches(micro_batches),) if in_parts else ()),
        *((Chunk(chunk),) if chunk > 1 else ()),
        _placing(split_mode, tuple(shares), headroom, terms),
        *((Keep(),) if keep else ()),
        Pin(),
        Hoist(),
        Sink(),
        *((Interleave(),) if in_parts else ()),
        Cut(),
        Reuse(),
        Reorder(),
        *((Arrange(),) if split_mode in TOGETHER else ()),
        *((Inductor(),) if inductor else ()),
        Lower(),
        Verify(),
    )


def _placing(split_mode: str, shares: tuple[float, ...], headroom: int | None, terms: str) -> Pass:
    """The pass that places weights in a split mode."""
    if split_mode in TOGETHER:
        return States(split_mode, shares, headroom, terms)
    return {"layer": Place, "row": Rows}[split_mode](shares=shares, headroom=headroom)


def lowered(
    program: Program, assignment: Assignment, *, headroom: int | None = None, callbacks: Sequence[Callback] = ()
) -> Program:
    """A traced program lowered under an assignment, up to its verified schedule; the program itself stays as it is.

    Args:
        program: one with devices whose weights have no place yet; passes before ``place`` may have run.
        assignment: what each of its weights gets; those that nothing reads may be missing, or there.
        headroom: bytes in place of what is alive on a device.
        callbacks: called after each pass.

    Raises UsageError for an assignment that is none of this program, DoesNotFitError where a device lacks memory.
    """
    steps = with_assignment(default_passes(headroom=headroom), assignment)
    before = [type(one) for one in steps].index(Assign) if "blocks found" in program.facts else 0
    return PassManager(steps[before:], callbacks).run(program.copy())


def with_assignment(steps: Sequence[Pass], assignment: Assignment) -> list[Pass]:
    """Passes of which those that would decide where weights are place them as assigned instead."""
    return [Assign(assignment, one.headroom) if isinstance(one, (Place, Rows)) else one for one in steps]


def as_planned(steps: Sequence[Pass], plan: Program, assignment: Assignment) -> list[Pass]:
    """Passes of which those that would decide where weights are, or in which states values are, take it from a plan.

    ``assignment`` is what the plan has each weight get.
    """
    mode = split_mode_of(plan)
    kept = [KeptStates(one, plan) if isinstance(one, States) and one.mode == mode else one for one in steps]
    return with_assignment(kept, assignment)


def register(step: type[P]) -> type[P]:
    """Makes a pass known by its name, so that texts can name it: a decorator for its class.

    Raises UsageError for the name of a pass of dovetail's own, for a name that no text can have, and for no pass.
    """
    name = _checked(step).name
    if name in _OWN:
        raise UsageError(f"there is a pass {name} already: give yours another name")
    if not _NAME.fullmatch(name):
        raise UsageError(f"no pass can be called {name!r}: give yours a name of letters, digits, _ and -")
    PASSES[name] = step
    return step


def known_passes() -> dict[str, type[Pass]]:
    """All passes by name: dovetail's own, registered ones, and those that installed packages name.

    One of a package that cannot be imported is left out, and this is said.
    """
    found = dict(PASSES)
    for name, entries in _others().items():
        try:
            found[name] = _loaded(entries)
        except PassError as error:
            logger.warning("%s", error)
    return found


def _others() -> dict[str, list[EntryPoint]]:
    """The entry points of installed packages that name passes which are not registered, by name."""
    found: dict[str, list[EntryPoint]] = {}
    for one in entry_points(group=ENTRY_POINTS):
        if one.name not in PASSES:
            found.setdefault(one.name, []).append(one)
    return found


def _loaded(entries: Sequence[EntryPoint]) -> type[Pass]:
    """The pass of all entry points of one name; raises PassError where it is none, or not the same of all."""
    entry, places = entries[0], {one.value for one in entries}
    if len(places) > 1:
        raise PassError(
            f"installed packages have several passes {entry.name} ({', '.join(sorted(places))}): keep one of them"
        )
    try:
        return _checked(entry.load())
    except UsageError as error:
        raise PassError(f"pass {entry.name} of {entry.value} is no class of passes: {error}") from error
    except Exception as error:
        raise PassError(f"pass {entry.name} cannot be imported from {entry.value}: {error}") from error


def _checked(step: type[P]) -> type[P]:
    """A class of passes with a name and a ``run``; raises UsageError for anything else."""
    if not (isinstance(step, type) and issubclass(step, Pass)):
        raise UsageError(f"{step!r} is no pass: derive its class from Pass")
    if not isinstance(getattr(step, "name", None), str) or inspect.isabstract(step):
        raise UsageError(f"{step.__name__} is no whole pass: give it a name, a text, and a method run")
    return step


def parse_passes(text: str) -> tuple[Pass, ...]:
    """The passes of a text such as ``simplify,blocks,place{headroom=2GiB},pin,hoist,sink,cut,schedule,verify``.

    ``str`` of a pass is its item in such a text. Raises UsageError for an unknown pass, option or value.
    """
    passes: list[Pass] = []
    position = 0
    while position < len(text):
        match = _ITEM.match(text, position)
        if match is None:
            raise UsageError(f"cannot read passes at {text[position:]!r}: expected name{{option=value,…}} and a comma")
        passes.append(_make(match[1], match[2] or ""))
        position = match.end()
    return tuple(passes)


def _make(name: str, options: str) -> Pass:
    step = _named(name)
    known = {field.name: field for field in fields(step)}
    given: dict[str, Any] = {}
    for option in filter(None, (part.strip() for part in options.split(","))):
        key, _, value = option.partition("=")
        if key not in known:
            raise UsageError(f"pass {name} has no option {key!r}; it has: {', '.join(known) or 'none'}")
        given[key] = _read(name, key, value)
    for key, one in known.items():
        if key not in given and one.default is MISSING and one.default_factory is MISSING:
            raise UsageError(f"pass {name} needs the option {key}: write {name}{{{key}=…}}")
    return step(**given)


def _named(name: str) -> type[Pass]:
    """The pass of a name; of others' packages only the one that has it is imported."""
    if name in PASSES:
        return PASSES[name]
    others = _others()
    if name in others:
        return _loaded(others[name])
    there = [*PASSES, *others]
    near = difflib.get_close_matches(name, there, 1)
    hint = f", did you mean {near[0]}?" if near else "."
    raise UsageError(f"no pass is called {name!r}{hint} There are: {', '.join(there)}")


def _read(name: str, key: str, value: str) -> Any:
    """An option's value: a mode by its name, shares as ``3:1``, sizes as ``2GiB`` or in bytes."""
    try:
        if key in ("mode", "terms"):
            return value
        if key == "shares":
            return tuple(float(share) for share in value.split(":"))
        return int(value) if value.isascii() and value.isdigit() else parse_bytes(value)
    except (ValueError, SpecError) as error:
        expected = "shares such as 3:1" if key == "shares" else "bytes, or a size such as 2GiB"
        raise UsageError(f"pass {name} cannot take {key}={value}: expected {expected}") from error
