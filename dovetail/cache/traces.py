"""Traces a module, or takes the program that an earlier process has traced of the same from disk.

An entry is taken where everything that a trace depends on is as it was (``content.py``, ``surroundings.py``), and where
what it says of the weights fits the module; otherwise the module is traced, and the program is written beside the work
of the process. What goes wrong with the folder is said once and costs nothing but the time of a trace.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from ..compiler.devices.device import HOST
from ..compiler.errors import TraceError
from ..compiler.frontend import trace as tracing
from ..compiler.frontend.trace_lock import alone
from ..compiler.ir.asked import TRACED
from ..compiler.ir.program import Program
from ..conventions import modes
from . import entry, folder
from .head import NoEntry
from .key import Key, key_of
from .patched import replaced_method
from .surroundings import sources
from .written import written

logger = logging.getLogger(__name__)

Named = Mapping[str, Path]
"""Entries beside the plans that somebody named: the content of a trace → its file."""

LOOKED_UP: Counter[str] = Counter()
"""How many programs were ``read`` from disk in this process, and how many were ``made``."""

_writers: set[threading.Thread] = set()
_told: set[str] = set()
_keys: WeakKeyDictionary[Program, str] = WeakKeyDictionary()
_collecting: ContextVar[dict[Program, bytes] | None] = ContextVar("dovetail collecting", default=None)


def trace(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    kind: str = HOST,
    named: Named | None = None,
    key: Key | None = None,
) -> Program:
    """What ``compiler.frontend.trace.trace`` yields of the same arguments, from disk where it is kept there.

    It is a trace without modes that somebody has put around this. ``key`` is that of these arguments, if it is known.
    Raises TraceError where that does.
    """
    with modes.taken_off():
        return _trace(module, args, kwargs or {}, dynamic_shapes, kind, named or {}, key)


def _trace(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Mapping[str, Any] | None,
    kind: str,
    named: Named,
    key: Key | None,
) -> Program:
    if method := replaced_method():
        raise TraceError(
            f"{type(module).__name__} cannot be traced while {method} is somebody's own, which PyTorch calls once more "
            "for each mode of a trace: give it back, or subclass the layers that call it"
        )
    most = folder.limit() if folder.is_on() and _is_believed() else 0
    is_wanted = most or named or _collecting.get() is not None
    with alone():  # another thread's trace has fakes in the places of the weights meanwhile
        key = (key or key_of(module, args, kwargs, dynamic_shapes, kind)) if is_wanted else None
    if key is None:
        LOOKED_UP["made"] += 1
        made = tracing.trace(module, args, kwargs, dynamic_shapes=dynamic_shapes, kind=kind, beside=written(module))
        _tell_of_ways(made)
        return made
    found = _named(key, module, named) or (read(key, module) if most else None)
    if found is not None and found[0].signature.takes(args, kwargs):
        program, parts = found
        _collect(program, parts)
    else:
        before = sources()
        program = tracing.trace(module, args, kwargs, dynamic_shapes=dynamic_shapes, kind=kind, beside=written(module))
        most = most if before == sources() else 0
        if most or _collecting.get() is not None:
            keep(key, program, most)
    LOOKED_UP["made" if found is None else "read"] += 1
    if most:
        _keys[program] = key.full
    _tell_of_ways(program)
    return program


def key_of_trace(program: Program) -> str:
    """The key of a program that was traced or read, as long as it may be kept on disk; else nothing."""
    return _keys.get(program, "")


def read(key: Key, module: nn.Module) -> tuple[Program, list[bytes]] | None:
    """The program of an entry of the cache and its bytes; None where there is none, it is damaged or does not fit."""
    found = _read(folder.path_of(key.full), key, module)
    if found is not None:
        folder.touch(key.full)
    return found


@contextlib.contextmanager
def collected() -> Iterator[Mapping[Program, bytes]]:
    """Has the entries of programs that are traced or read meanwhile at hand, to be written beside plans."""
    found: dict[Program, bytes] = {}
    token = _collecting.set(found)
    try:
        yield found
    finally:
        _collecting.reset(token)


def keep(key: Key, program: Program, most: int) -> None:
    """Writes a traced program to disk in a thread of its own, which the end of the process waits for."""
    try:
        parts = entry.written(key, program)
    except NoEntry as why:
        logger.debug("the trace of a %s is not kept on disk: %s", program.name, str(why))
        return
    _collect(program, parts)
    if sum(map(len, parts)) <= most:
        in_background(_write, key.full, parts, most)


def in_background(write: Callable[..., None], *given: Any) -> None:
    """Has something be written in a thread of its own, which the end of the process waits for."""
    writer = threading.Thread(target=write, args=given, name="dovetail-cache")
    writer.start()
    _writers.difference_update([one for one in list(_writers) if not one.is_alive()])
    _writers.add(writer)  # which others may wait for, and so must have started


def _collect(program: Program, parts: list[bytes]) -> None:
    collecting = _collecting.get()
    if collecting is not None:
        collecting[program] = b"".join(parts)


def wait() -> None:
    """Waits until everything is written."""
    for writer in list(_writers):
        writer.join()
        _writers.discard(writer)


def _tell_of_ways(program: Program) -> None:
    """Says once of a model that it computes something else for tensors without values."""
    if TRACED not in program.signature.asked or program.name in _told:
        return
    _told.add(program.name)
    logger.info(
        "%s looks at values of its inputs unless it is being traced, as to leave out a mask that hides nothing: its "
        "program does what it does when traced, which is the same but for the last bits if the model's two ways agree: "
        "compare a call with eager",
        program.name,
    )


def _named(key: Key, module: nn.Module, named: Named) -> tuple[Program, list[bytes]] | None:
    path = named.get(key.content)
    return _read(path, key, module, is_named=True) if path is not None else None


def _read(path: Path, key: Key, module: nn.Module, is_named: bool = False) -> tuple[Program, list[bytes]] | None:
    started = time.perf_counter()
    try:
        program, parts = entry.read(path, key, is_named)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, NoEntry) as error:
        _tell(f"the kept trace {path} is not used: {error}; it is traced and written again")
        return None
    if not _fits(program, module):
        _tell(f"the kept trace {path} is not used: it is of other weights; it is traced and written again")
        return None
    logger.info("took the trace of a %s from %s in %.2f s", program.name, path, time.perf_counter() - started)
    return program, parts


def _write(key: str, parts: list[bytes], most: int) -> None:
    try:
        folder.write(key, parts, most)
    except OSError as error:
        _tell(
            f"traces are not kept in {folder.place()}: {error.strerror or error}: name another folder "
            f"({folder.PLACE}), or switch the cache off ({folder.SWITCH}=0)"
        )


def _is_believed() -> bool:
    why = folder.why_not_believed()
    if why:
        _tell(f"traces are neither taken from {folder.place()} nor kept there: {why}, or name another ({folder.PLACE})")
    return not why


def _tell(message: str) -> None:
    """Warns of something once."""
    if message not in _told:
        _told.add(message)
        logger.warning(message)


def _fits(program: Program, module: nn.Module) -> bool:
    """Whether the weights of a program are those of a module."""
    held = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for weight in program.weights.values():
        one = held.get(weight.name)
        if weight.kind == "constant":
            continue
        if one is None or tuple(one.shape) != weight.shape or one.dtype != weight.dtype:
            return False
    return program.name == type(module).__name__
