"""What a function says, by content: its bytecode and constants, the same in every process that has loaded the same."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from ..conventions import libraries

_digests: dict[int, tuple[CodeType, str]] = {}
_names: dict[int, tuple[CodeType, tuple[str, ...]]] = {}
_loads: dict[int, tuple[CodeType, frozenset[str]]] = {}
_imports: dict[tuple[int, str], tuple[CodeType, tuple[str, ...]]] = {}
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_IMPORT = dis.opmap["IMPORT_NAME"]
_GLOBAL = frozenset(dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME"))


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


def loads_in(code: CodeType) -> frozenset[str]:
    """The names that a code object and those in it look up as globals or builtins, and not as attributes."""
    known = _loads.get(id(code))
    if known is None:
        known = _loads[id(code)] = code, frozenset(_loads_in(code))
    return known[1]


def strings_in(code: CodeType) -> set[str]:
    """The texts among the constants of a code object and those in it."""
    found = {one for one in code.co_consts if isinstance(one, str)}
    return found.union(*(strings_in(one) for one in code.co_consts if isinstance(one, CodeType)))


def imports_in(code: CodeType, package: str) -> tuple[str, ...]:
    """The full names of the modules that code of a package imports when it runs, and of what it takes out of them."""
    known = _imports.get((id(code), package))
    if known is None:
        known = _imports[id(code), package] = code, tuple(sorted(set(_imports_in(code, package))))
    return known[1]


@functools.cache
def is_of_python(module: str) -> bool:
    """Whether a module is of Python's own library, which the version of Python says."""
    return module.partition(".")[0] in sys.stdlib_module_names


@functools.cache
def is_installed(package: str) -> bool:
    """Whether a package is a library of models, or lies where packages are installed: so that it has a version."""
    found = sys.modules.get(package)
    places = [getattr(found, "__file__", None) or "", *getattr(found, "__path__", ())]
    return package in libraries.NAMES or any(_INSTALLED.intersection(Path(place).parts) for place in places)


@functools.cache
def is_own(module: str) -> bool:
    """Whether a module is somebody's own: of no library that has a version."""
    package = module.partition(".")[0]
    return not (package in ("torch", "dovetail") or is_of_python(module) or is_installed(package))


def module_of(kind: type) -> str:
    """The name of the module that a class says it is of; compiled ones may have something else in that place."""
    named = kind.__module__
    return named if isinstance(named, str) else "builtins"


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
        elif isinstance(constant, str) and all(map(str.isidentifier, parts := constant.split("."))):
            yield from parts  # of one, or of several for ``attrgetter``


def _loads_in(code: CodeType) -> Iterator[str]:
    yield from (one.argval for one in dis.get_instructions(code) if one.opcode in _GLOBAL)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loads_in(constant)


def _imports_in(code: CodeType, package: str) -> Iterator[str]:
    if _IMPORT in code.co_code[::2]:
        before: list[dis.Instruction] = []
        module = ""
        for one in dis.get_instructions(code):
            if one.opcode == _IMPORT:
                level = next((was.argval for was in before[-2:] if type(was.argval) is int), 0)
                module = _resolved("." * level + str(one.argval), package)
                yield module
            elif one.opname == "IMPORT_FROM":
                yield f"{module}.{one.argval}"
            before = [*before[-1:], one]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imports_in(constant, package)


def _resolved(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except (ImportError, ValueError):  # a function without a package of its own
        return name
