"""What a function of somebody's own reads beside its arguments and Python objects: files, the clock, chance, machines.

What it reads then is in the trace, and no key can tell it. Environment variables that a function names can be told.
Functions of libraries with versions are not asked: much of what is met of them loads or saves models, and runs in no
forward.
"""

from __future__ import annotations

import os
from types import FunctionType, ModuleType
from typing import Any

from .code import imports_in, loads_in, names_in, strings_in

_BUILTINS = frozenset({"open", "eval", "exec", "compile", "__import__", "input"})
_METHODS = frozenset(
    """
    open read_text read_bytes iterdir stat lstat exists is_file is_dir is_symlink is_mount samefile readlink rglob cwd
    __subclasses__
    """.split()
)
_ANY = frozenset(
    """
    random time secrets uuid socket subprocess tempfile glob shutil datetime urllib importlib fileinput linecache
    sqlite3 requests io runpy pkgutil ctypes platform getpass http safetensors multiprocessing
    """.split()
)
"""Modules of which nothing but what lies outside is asked."""
_NAMED = {
    "os": frozenset(
        """
        listdir scandir stat lstat fstat statvfs open read walk access readlink urandom popen system getcwd getpid
        getppid getuid getlogin uname times getloadavg cpu_count sched_getaffinity
        """.split()
    ),
    "os.path": frozenset(
        """
        exists lexists isfile isdir islink ismount samefile getmtime getatime getctime getsize expanduser abspath
        realpath
        """.split()
    ),
    "sys": frozenset({"argv", "stdin", "flags"}),
    "numpy": frozenset("load fromfile memmap loadtxt genfromtxt random".split()),
    "torch": frozenset(
        """
        load initial_seed get_rng_state get_num_threads from_file get_device_properties get_device_name
        get_device_capability mem_get_info memory_allocated memory_reserved device_count is_available current_device
        """.split()
    ),
}
_PLACES = {"posixpath": "os.path", "ntpath": "os.path", "posix": "os", "nt": "os"}
_ENVIRONMENT = frozenset({"environ", "getenv", "environb"})
_SHORTEST = 3
"""A constant of fewer letters names no variable."""


def what_it_reads(function: FunctionType) -> str:
    """What of the world a function names, apart from environment variables; empty where that is nothing."""
    code = function.__code__
    names, loads = frozenset(names_in(code)), loads_in(code)
    own = function.__globals__
    builtin = [name for name in loads & _BUILTINS if name not in own]
    found = [*builtin, *(names & _METHODS)]
    found += [name for name in imports_in(code, own.get("__package__") or "") if name.partition(".")[0] in _ANY]
    found += [what for name in loads if name in own and (what := _of(own[name], names))]
    return min(found, default="")


def variables_of(function: FunctionType, is_own: bool) -> list[tuple[str, str]] | None:
    """The environment variables that a function names, as they are now; None where it does not say which it reads."""
    names = names_in(function.__code__)
    if not _asks_environment(function, is_own):
        return []
    if not is_own:
        return sorted((name, os.environ[name]) for name in names if name in os.environ)
    texts = asked_of_environment(function)
    return sorted(one for one in os.environ.items() if any(text in one[0] for text in texts)) if texts else None


def asked_of_environment(function: FunctionType) -> list[str]:
    """The texts in a function of somebody's own that may be names of environment variables, or parts of such."""
    if not _asks_environment(function, is_own=True):
        return []
    own = function.__globals__
    named = {own[name] for name in loads_in(function.__code__) if isinstance(own.get(name), str)}
    texts = strings_in(function.__code__) | named
    return sorted(text for text in texts if len(text) >= _SHORTEST and " " not in text)


def _asks_environment(function: FunctionType, is_own: bool) -> bool:
    code = function.__code__
    return bool(_ENVIRONMENT.intersection(names_in(code))) or any(
        function.__globals__.get(name) is os.environ for name in (loads_in(code) if is_own else ())
    )


def _of(value: Any, names: frozenset[str]) -> str:
    """What a global is or has of these."""
    if isinstance(value, ModuleType):
        name = _PLACES.get(value.__name__, value.__name__)
        if name.partition(".")[0] in _ANY:
            return name
        asked = names & _NAMED.get(name, frozenset()) or names & _NAMED.get(name.partition(".")[0], frozenset())
        if name == "os" and "path" in names:
            asked = asked or names & _NAMED["os.path"]
        return f"{name}.{min(asked)}" if asked else ""
    owner = getattr(value, "__self__", None)
    home = getattr(value, "__module__", None) or (type(owner).__module__ if owner is not None else "")
    home = _PLACES.get(str(home), str(home))
    if home.partition(".")[0] in _ANY:
        return home
    name = getattr(value, "__name__", "")
    return f"{home}.{name}" if callable(value) and name in _NAMED.get(home, ()) else ""
