"""What some code stores to, and which of the containers that it names it may change, by its bytecode.

Other threads write to globals and classes too, while a model is traced. So what its code only reads is never given back
what it held before. Where nobody can tell, code counts as writing: a container that is handed on may be changed by
whoever gets it.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType

_STORES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF")
_INTO_CONTAINERS = ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_BY_TEXT = frozenset(
    "setattr delattr globals locals vars exec eval __dict__ __setattr__ __delattr__ __setitem__ __delitem__".split()
)
"""What stores under a name that is in no instruction."""
_CHANGING = frozenset(
    """
    append appendleft extend extendleft insert add update setdefault pop popleft popitem remove discard clear sort
    reverse rotate move_to_end subtract intersection_update difference_update symmetric_difference_update heappush
    heappop heapify insort shuffle
    """.split()
)
_READING = ("LOAD_ATTR", "LOAD_METHOD", "CONTAINS_OP", "IS_OP", "COMPARE_OP", "TO_BOOL", "UNARY_NOT")
_READERS = frozenset({"len", "bool", "isinstance", "id", "type"})
ANY = ("",)
"""The name of what anything may change."""
_SILENT = frozenset(("PRECALL", "CACHE", "NOP", "EXTENDED_ARG", "PUSH_NULL", "NOT_TAKEN"))


class Stores:
    """What some functions store to.

    ``names`` are those of attributes, globals and variables of closures; ``is_open`` says that it may be any.
    """

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        codes = dict.fromkeys(code for function in functions for code in _codes_in(function.__code__))
        told = list(map(_told, codes))
        self.names = frozenset[str]().union(*(stored for stored, _, _ in told))
        self._changed = frozenset[object]().union(*(changed for _, changed, _ in told))
        self.is_open = any(is_open for _, _, is_open in told)

    def change(self, names: Iterable[str]) -> bool:
        """Whether a container or tensor may be changed in place that goes by these names."""
        return self.is_open or not self._changed.isdisjoint(names) or not set(ANY).isdisjoint(names)


@functools.lru_cache(maxsize=4096)
def _told(code: CodeType) -> tuple[frozenset[str], frozenset[object], bool]:
    """The names that code stores to, those of what it may change in place, and whether that may be anything."""
    read = [one for one in dis.get_instructions(code) if one.opname not in _SILENT]
    stored = frozenset(str(one.argval) for one in read if one.opname in _STORES)
    changes = any(map(_is_change, read))
    changed = [name for at, one in enumerate(read) if changes or not _is_only_read(read, at) for name in _loaded(one)]
    return stored, frozenset(changed), any(not _BY_TEXT.isdisjoint(_loaded(one)) for one in read)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes_in(one)


def _loaded(one: dis.Instruction) -> tuple[object, ...]:
    """The name that an instruction loads, or the names."""
    if "LOAD_" not in one.opname:
        return ()
    return one.argval if isinstance(one.argval, tuple) and one.opname != "LOAD_CONST" else (one.argval,)


def _is_change(one: dis.Instruction) -> bool:
    in_place = one.opname.startswith("INPLACE_") or (one.opname == "BINARY_OP" and one.argrepr.endswith("="))
    return in_place or one.opname in _INTO_CONTAINERS or any(map(_is_changing, _loaded(one)))


def _is_changing(name: object) -> bool:
    """Whether a method of this name changes a container, or a tensor (``add_``)."""
    return isinstance(name, str) and (name in _CHANGING or (name.endswith("_") and not name.startswith("__")))


def _is_only_read(read: list[dis.Instruction], at: int) -> bool:
    """Whether what is loaded there is asked for something, compared, or given to what only reads it."""
    behind, first = read[at + 1] if at + 1 < len(read) else None, at
    while first and read[first].opname == "LOAD_ATTR":
        first -= 1
    if behind is None or behind.opname.startswith("POP_JUMP") or behind.opname in _READING:
        return True
    if isinstance(read[at].argval, tuple) and read[at].opname != "LOAD_CONST":  # several names at once
        return False
    if behind.opname == "BINARY_OP":  # it is the second operand, and not in place
        return True
    return bool(first) and read[first - 1].argval in _READERS and behind.opname.startswith("CALL")
