"""The files of the Python modules that a trace may run code of: all of each, whichever way it is reached.

Which function a forward calls may stand in no bytecode: ``getattr(self, f"go_{self.mode}")``, ``globals()[name]``. What
can be called lies in the files of the modules that were met, and in those that these import, and so on. So all of these
are told by content. A file that is younger than this process may not be what was imported from it; `is_as_imported`
says of which that is certain.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .code import imports_in, is_own, module_of

_digests: dict[str, tuple[tuple[int, ...], str]] = {}
_known: dict[str, tuple[weakref.ref[ModuleType], tuple[str, ...]]] = {}
_compiled: dict[str, tuple[str, CodeType | None]] = {}


def _start() -> float:
    """When this process loaded the module of logs, in seconds since the epoch: PyTorch, and so every model, does."""
    record = logging.makeLogRecord({})
    return record.created - record.relativeCreated / 1000


_STARTED = int(_start() * 1e9)


def digest_of_file(path: str) -> str:
    """A digest of a file, read again only after it changed; empty where it cannot be read."""
    try:
        found = os.stat(path)
        stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
        if _digests.get(path, ((), ""))[0] != stamp:
            with open(path, "rb") as file:
                _digests[path] = stamp, hashlib.blake2b(file.read(), digest_size=16).hexdigest()
    except OSError:
        return ""
    return _digests[path][1]


def is_as_imported(module: str) -> bool:
    """Whether the file of a module is certainly what was imported: nobody wrote it since the process began."""
    try:
        found = os.stat(getattr(sys.modules.get(module), "__file__", None) or "")
    except OSError:
        return False
    return max(found.st_mtime_ns, found.st_ctime_ns) < _STARTED


def files_of(modules: Iterable[str], is_followed: Callable[[str], bool]) -> list[tuple[str, str]]:
    """The names of modules, and of those that they import, with digests of their files, in the order of the names."""
    found: dict[str, str] = {}
    waiting = deque(modules)
    while waiting:
        name = waiting.popleft()
        if name in found or not is_followed(name):
            continue
        module = sys.modules.get(name)
        path = file_of(name)
        found[name] = digest_of_file(path) if path else ""
        waiting.extend(_imported_by(name, path) if module is None else _neighbours(name, module))
    return sorted(found.items())


def file_of(name: str) -> str:
    """The file of a module, which need not be imported; empty where there is none."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None) or ""
    package, _, last = name.rpartition(".")
    if not package:
        spec = PathFinder.find_spec(name)
        return (spec.origin if spec is not None else None) or ""
    home = file_of(package)
    folders = getattr(sys.modules.get(package), "__path__", None) or [os.path.dirname(home)] * (
        os.path.basename(home) == "__init__.py"
    )
    names = [os.path.join(folder, *end) for folder in folders for end in ((f"{last}.py",), (last, "__init__.py"))]
    return next((one for one in names if os.path.isfile(one)), "")


def _neighbours(name: str, module: ModuleType) -> Iterable[str]:
    """The modules that a module leads to; those that one of a library leads to are looked for once."""
    if is_own(name):
        return _leads_to(name, module)
    known = _known.get(name)
    if known is None or known[0]() is not module:
        known = _known[name] = weakref.ref(module), tuple(dict.fromkeys(_leads_to(name, module)))
    return known[1]


def _leads_to(name: str, module: ModuleType) -> Iterator[str]:
    """The modules that the globals of a module are or are of, and those that functions of somebody's own import."""
    if type(module) is not ModuleType:  # those of libraries import what they are asked for
        return
    own = is_own(name)
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            if own or not value.__name__.startswith(f"{name}."):
                yield value.__name__
        elif isinstance(value, (type, FunctionType)):
            home = value.__module__
            if isinstance(home, str):
                yield home
            if own and home == name:
                yield from _imports_of(value, module)
        elif own:
            yield module_of(type(value))
    if own and name.rpartition(".")[0]:
        yield name.rpartition(".")[0]


def _imports_of(value: Any, module: ModuleType) -> Iterator[str]:
    members = vars(value).values() if isinstance(value, type) else (value,)
    package = getattr(module, "__package__", None) or ""
    for one in members:
        one = getattr(one, "fget", None) or getattr(one, "__func__", one)
        if isinstance(one, FunctionType):
            yield from imports_in(one.__code__, package)


def _imported_by(name: str, path: str) -> tuple[str, ...]:
    """What a module would import that was not imported yet."""
    if not path.endswith(".py"):
        return ()
    digest = digest_of_file(path)
    if _compiled.get(path, ("", None))[0] != digest:
        try:
            with open(path, "rb") as file:
                _compiled[path] = digest, compile(file.read(), path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError):
            _compiled[path] = digest, None
    code = _compiled[path][1]
    package = name if os.path.basename(path) == "__init__.py" else name.rpartition(".")[0]
    return imports_in(code, package) if code is not None else ()
