"""What a function says, by content: its bytecode and constants, the same in every process that has loaded the same."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

_digests: dict[int, tuple[CodeType, str]] = {}
_names: dict[int, tuple[CodeType, tuple[str, ...]]] = {}
_imports: dict[int, tuple[CodeType, tuple[str, ...]]] = {}
_ROOTS = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
_IMPORT = dis.opmap["IMPORT_NAME"]


def digest_of(code: CodeType) -> str:
    """A digest of a code object and those in it: what was loaded, whatever its file says by now.

    Lines are in it, for they are in what a trace says of its nodes; where its file lies is not.
    """
    known = _digests.get(id(code))
    if known is None:
        known = _digests[id(code)] = code, _digest(code)  # which keeps the code alive, and so its id
    return known[1]


def names_in(code: CodeType) -> tuple[str, ...]:
    """The names that a code object and those in it look up, globals and attributes, and text that could be one."""
    known = _names.get(id(code))
    if known is None:
        known = _names[id(code)] = code, tuple(sorted(set(_names_in(code))))
    return known[1]


def imports_in(function: FunctionType) -> tuple[str, ...]:
    """The full names of the modules that a function imports when it is called."""
    code = function.__code__
    known = _imports.get(id(code))
    if known is None:
        package = function.__globals__.get("__package__") or ""
        known = _imports[id(code)] = code, tuple(sorted(set(_imports_in(code, package))))
    return known[1]


def digest_of_file(module: str) -> str:
    """A digest of the file of a module that is not imported yet; empty where it is in no package that is."""
    package, _, name = module.rpartition(".")
    for place in getattr(sys.modules.get(package), "__path__", ()):
        for file in (Path(place, f"{name}.py"), Path(place, name, "__init__.py")):
            if file.is_file():
                return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    return ""


def is_of_python(module: str) -> bool:
    """Whether a module is of Python's own library, which the version of Python says."""
    return module.partition(".")[0] in sys.stdlib_module_names


@functools.cache
def is_installed(package: str) -> bool:
    """Whether a package lies where packages are installed, so that its version says what is in it."""
    found = sys.modules.get(package)
    places = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return any(place.startswith(root + os.sep) for place in places for root in _ROOTS)


def home_of(function: FunctionType) -> str:
    """The module whose globals a function has, which a decorator does not change."""
    return str(function.__globals__.get("__name__"))


def _digest(code: CodeType) -> str:
    found = hashlib.blake2b(code.co_code, digest_size=16)
    lists = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_firstlineno)
    found.update(repr((code.co_name, lists, numbers)).encode(errors="surrogatepass"))
    found.update(getattr(code, "co_exceptiontable", b""))
    for constant in code.co_consts:
        found.update(_constant(constant).encode(errors="surrogatepass"))
    return found.hexdigest()


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _digest(value)
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_constant, value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def _imports_in(code: CodeType, package: str) -> Iterator[str]:
    if _IMPORT in code.co_code[::2]:
        before: list[dis.Instruction] = []
        for one in dis.get_instructions(code):
            if one.opcode == _IMPORT:
                level = next((was.argval for was in before[-2:] if type(was.argval) is int), 0)
                yield _resolved("." * level + str(one.argval), package)
            before = [*before[-1:], one]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_in(constant, package)


def _resolved(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except (ImportError, ValueError):  # a function without a package of its own
        return name
