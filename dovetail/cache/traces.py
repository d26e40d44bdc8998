"""Traces a module, or takes the program that an earlier process has traced of the same from disk.

An entry is taken where everything that a trace depends on is as it was (``content.py``, ``surroundings.py``), and where
what it says of the weights fits the module; otherwise the module is traced, and the program is written beside the work
of the process. What goes wrong with the folder is said once and costs nothing but the time of a trace.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..compiler.frontend import trace as tracing
from ..compiler.frontend.trace_lock import alone
from ..compiler.ir.program import Program
from ..compiler.spec.devices import HOST
from . import entry, folder
from .head import NoEntry
from .key import key_of
from .surroundings import sources

logger = logging.getLogger(__name__)

_writers: set[threading.Thread] = set()
_told: set[str] = set()


def trace(
    module: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Mapping[str, Any] | None = None,
    kind: str = HOST,
) -> Program:
    """What ``compiler.frontend.trace.trace`` yields of the same arguments, from disk where it is kept there.

    Raises TraceError where it does.
    """
    most = folder.limit() if folder.is_on() else 0
    with alone():  # another thread's trace has fakes in the places of the weights meanwhile
        key = key_of(module, args, kwargs or {}, dynamic_shapes, kind) if most else None
    found = read(key, module) if key is not None else None
    if found is not None:
        return found
    before = sources() if key is not None else ""
    program = tracing.trace(module, args, kwargs, dynamic_shapes=dynamic_shapes, kind=kind)
    if key is not None and before == sources():
        keep(key, program, most)
    return program


def read(key: str, module: nn.Module) -> Program | None:
    """The program of an entry; None where there is none, or one that is damaged or does not fit the module."""
    started = time.perf_counter()
    path = folder.path_of(key)
    try:
        program = entry.read(path, key)
    except FileNotFoundError:
        return None
    except (OSError, NoEntry) as error:
        _tell(f"the kept trace {path} is not used: {error}; it is traced and written anew")
        return None
    if not _fits(program, module):
        _tell(f"the kept trace {path} is not used: it is of other weights; it is traced and written anew")
        return None
    folder.touch(key)
    logger.info("took the trace of a %s from %s in %.2f s", program.name, path, time.perf_counter() - started)
    return program


def keep(key: str, program: Program, most: int) -> None:
    """Writes a traced program to disk in a thread of its own, which the end of the process waits for."""
    try:
        parts = entry.written(key, program)
    except NoEntry as why:
        logger.debug("the trace of a %s is not kept on disk: %s", program.name, why)
        return
    if sum(map(len, parts)) <= most:
        writer = threading.Thread(target=_write, args=(key, parts, most), name="dovetail-cache")
        _writers.add(writer)
        writer.start()


def wait() -> None:
    """Waits until everything is written."""
    for writer in list(_writers):
        writer.join()


def _write(key: str, parts: list[bytes], most: int) -> None:
    try:
        folder.write(key, parts, most)
    except OSError as error:
        _tell(f"traces are not kept in {folder.place()}: {error.strerror or error}: name another folder "
              f"({folder.PLACE}), or switch the cache off ({folder.SWITCH}=0)")  # fmt: skip
    finally:
        _writers.discard(threading.current_thread())


def _tell(message: str) -> None:
    """Warns of something once."""
    if message not in _told:
        _told.add(message)
        logger.warning(message)


def _fits(program: Program, module: nn.Module) -> bool:
    """Whether a program has the weights of a module, and no others."""
    held = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    for weight in program.weights.values():
        one = held.get(weight.name)
        if weight.kind == "constant":
            continue
        if one is None or tuple(one.shape) != weight.shape or one.dtype != weight.dtype:
            return False
    return program.name == type(module).__name__
