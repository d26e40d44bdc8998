"""Programs as the passes left them, kept on disk: what is placed again as before is not taken through them again.

An entry is taken for the same trace, the same passes, and the same devices with all that passes read of these, by the
same sources of dovetail. It has the text of the program after its last pass but for the schedule, which is written anew
of it; it was verified before it was kept. Not kept are programs that groups of devices compute together, for what is
said of their states is said once a process, and those of which passes warned. Reading one runs no code.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

from ..compiler.errors import DovetailError
from ..compiler.ir.program import Program
from ..compiler.text.parser import parse_program
from ..compiler.text.printer import lines_of
from ..passes.infra.manager import PassManager
from ..passes.lowering.lower import Lower
from ..passes.lowering.verification import Verify
from . import folder, traces
from .answers import CannotBeKeptError, environment, own_sources, plain
from .head import LOWERED, NoEntry
from .sealed import read_sealed, sealed

logger = logging.getLogger(__name__)
_ours = logging.getLogger(__name__.partition(".")[0])

_NAMESPACES = frozenset({"aten", "dovetail"})


def key_of(traced: Program, how: object) -> str:
    """The key of what passes make of a trace; empty where it may not be kept.

    Args:
        traced: the trace, with the devices and all else that passes read of it.
        how: the passes and what they read beside the graph, of plain values.
    """
    trace = traces.key_of_trace(traced)
    is_quiet = _ours.isEnabledFor(logging.WARNING) and not _ours.isEnabledFor(logging.INFO)  # passes say the same
    if not trace or not is_quiet or not folder.is_on() or folder.why_not_believed():
        return ""
    try:
        told = trace, plain(how), plain(traced.rig), _sources(), environment()
    except CannotBeKeptError as why:
        logger.debug("what becomes of a %s is not kept on disk: %s", traced.name, str(why))
        return ""
    return hashlib.blake2b(repr(told).encode(errors="surrogatepass"), digest_size=20).hexdigest()


def read(key: str, traced: Program) -> Program | None:
    """The program of a key, made of a trace; None where there is none, or it is damaged or is not to be believed."""
    path = folder.path_of(key, folder.PROGRAM)
    try:
        program = _completed(parse_program(read_sealed(path, LOWERED, key).decode()), traced)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, NoEntry, DovetailError, ValueError, KeyError) as error:
        logger.warning("the kept program %s is not used: %s; it is made and written again", path, str(error))
        return None
    folder.touch(key, folder.PROGRAM)
    return program


def keep(key: str, program: Program) -> None:
    """Writes a program that passes made, in a thread of its own, which the end of the process waits for."""
    if program.is_grouped or not all(_is_kept(node.target) for node in program.ops()):
        return
    traces.in_background(_keep, key, program)


def _keep(key: str, program: Program) -> None:
    lines = list(lines_of(program))
    if any(" opaque " in line for line in lines) or _stamped() != _IMPORTED:
        return  # opaque values are not in the text; sources that were replaced meanwhile have made nothing of this
    text = "\n".join(lines).encode()
    try:
        folder.write(key, [sealed(LOWERED, program.name, key, text), text], folder.limit(), folder.PROGRAM)
    except OSError as error:
        logger.info("the program is not kept in %s: %s", folder.place(), str(error))


def _completed(parsed: Program, traced: Program) -> Program:
    """A program that was read with what its text does not have: the numbers of devices, constants, and its schedule."""
    own = [weight.name for weight in parsed.weights.values() if weight.kind == "constant"]
    program = replace(
        parsed,
        rig=traced.rig,
        constants={name: traced.constants[name] for name in own},
        keeps_staged=traced.keeps_staged,
        given=traced.given,
    )
    PassManager((Lower(),)).run(program)
    program.facts |= Verify.ensures
    program.history = (*program.history, str(Verify()))
    return program


def _is_kept(target: object) -> bool:
    """Whether an operation means the same in every process: one of a library of somebody's own may not."""
    return getattr(target, "namespace", "aten") in _NAMESPACES


def _stamped() -> object:
    """The files of dovetail with their sizes and times; None where they cannot be listed."""
    try:
        return own_sources()
    except (CannotBeKeptError, OSError):
        return None


_IMPORTED = _stamped()
"""The files when this was imported: where they are others later, nobody knows which of them are in memory."""


def _sources() -> object:
    if _IMPORTED is None:
        raise CannotBeKeptError("the files of dovetail cannot be listed")
    return _IMPORTED
