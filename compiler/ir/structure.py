"""The structure of arguments and results as text, and reading it back without importing anything.

The text is what PyTorch writes of a pytree (`torch.utils._pytree.treespec_dumps`): JSON with the name of each
container's class, its context (the keys of a dict) and its children. PyTorch's own reader imports modules that the text
names; this one builds lists, tuples, dicts, named tuples and output classes that this process has registered, and
nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import OrderedDict
from functools import lru_cache
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import CallError, TextError, TraceError

_PLAIN: dict[str, type] = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "torch.Size": torch.Size,
}
_NAMED_TUPLE = "collections.namedtuple"
_RETURNED = "torch.return_types."
_DEEPEST = 64
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def show_structure(spec: pytree.TreeSpec | str) -> str:
    """The text of a structure. Raises TraceError for one with a named tuple or class that has no name in text."""
    if isinstance(spec, str):
        return spec
    try:
        return pytree.treespec_dumps(spec)
    except NotImplementedError:  # PyTorch has no name for what its own operations return
        return json.dumps([1, _tree_of(spec)])


def _tree_of(spec: pytree.TreeSpec) -> dict[str, Any]:
    """A structure as the text has it, with the tuples that operations such as ``topk`` return."""
    if spec.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    children = list(spec.children() if hasattr(spec, "children") else spec.children_specs)
    name = getattr(spec.type, "__name__", "")
    if getattr(torch.return_types, name, None) is spec.type:
        head = {"type": f"{_RETURNED}{name}", "context": None}
    else:
        leaves = [pytree.tree_structure(0) for _ in children]
        head = _head(pytree.TreeSpec(spec.type, spec.context, leaves))
    return {**head, "children_spec": [_tree_of(child) for child in children]}


def _head(spec: pytree.TreeSpec) -> dict[str, Any]:
    try:
        return dict(json.loads(pytree.treespec_dumps(spec))[1])
    except NotImplementedError as error:
        cls = spec.context if isinstance(spec.context, type) else spec.type
        name = f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else str(cls)
        raise TraceError(
            f"the arguments or results have a {name}, of which nobody has told PyTorch the name that it has in a file, "
            "so that the program can be called, and neither printed nor saved: use a dict or a tuple in its place, or "
            f"register it first (torch.utils._pytree._register_namedtuple({name.rpartition('.')[2]}, "
            f"serialized_type_name={name!r}) for a named tuple)"
        ) from error


def count_leaves(spec: pytree.TreeSpec | str) -> int:
    """How many leaves a structure has; a text is checked on the way.

    Raises ValueError for text that is not a structure: wrong fields, too deep, keys that do not fit the children.
    """
    if isinstance(spec, pytree.TreeSpec):
        return spec.num_leaves
    return _summary(spec)[0] if spec else 1


def is_leaf(spec: pytree.TreeSpec | str) -> bool:
    """Whether a structure is a single leaf."""
    if isinstance(spec, pytree.TreeSpec):
        return spec.is_leaf()
    return not spec or _summary(spec)[1]


def read_structure(spec: pytree.TreeSpec | str) -> pytree.TreeSpec:
    """A structure, read from its text where it comes from a file; no module is imported for it.

    Raises CallError for a class that this process has not registered, or that is no container that a call may have.
    """
    if isinstance(spec, pytree.TreeSpec):
        return spec
    if spec:
        count_leaves(spec)
    return _build(_schema(spec)) if spec else pytree.tree_structure(0)


def read_json(text: str) -> Any:
    """JSON whose brackets are not nested too deeply; raises TextError for anything else."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > 2 * _DEEPEST:
            raise TextError(f"brackets are nested more than {2 * _DEEPEST} deep")
    try:
        return json.loads(text)
    except ValueError as error:
        raise TextError(f"the structure is no JSON from character {getattr(error, 'pos', 0) + 1} on") from error


@lru_cache(maxsize=256)
def _summary(text: str) -> tuple[int, bool]:
    """How many leaves the structure of a text has, and whether it is a leaf itself."""
    tree = _schema(text)
    return _count(tree), tree["type"] is None


def _schema(text: str) -> dict[str, Any]:
    read = read_json(text)
    if not isinstance(read, list) or len(read) != 2 or read[0] != 1:
        raise TextError("a structure is a list of the protocol 1 and a tree")
    if not isinstance(read[1], dict) or "type" not in read[1]:
        raise TextError("a tree has a type, a context and children_spec")
    return read[1]


def _count(tree: Any) -> int:
    """The leaves of a tree; raises TextError where it is none."""
    if not isinstance(tree, dict) or tree.keys() != {"type", "context", "children_spec"}:
        raise TextError("a tree has a type, a context and children_spec")
    kind, context, children = tree["type"], tree["context"], tree["children_spec"]
    if kind is None and context is None and children == []:
        return 1
    if not isinstance(kind, str) or not isinstance(context, str | None) or not isinstance(children, list):
        raise TextError("a tree's type and context are text, its children a list")
    if kind not in ("builtins.tuple", "builtins.list", "torch.Size") and context:
        _check_context(kind, read_json(context) if kind != _NAMED_TUPLE else context, len(children))
    return sum(map(_count, children))


def _check_context(kind: str, context: Any, children: int) -> None:
    """Keys and names are plain data, and there is one for each child of a dict."""
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = isinstance(context, list) and all(isinstance(key, str | int | float | None) for key in context)
        if not keys or len(context) != children or len(set(context)) != children:
            raise TextError(f"a {kind} has a key for each of its {children} children")
    elif not _is_plain(context):
        raise TextError(f"the context of {kind[:120]} is no plain data")


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, str | int | float | None)


def _build(tree: dict[str, Any]) -> pytree.TreeSpec:
    kind, context = tree["type"], tree["context"]
    if kind is None:
        return pytree.tree_structure(0)
    children = [_build(child) for child in tree["children_spec"]]
    if kind == _NAMED_TUPLE:
        return pytree.TreeSpec(*_named_tuple(str(context), len(children)), children)
    if kind.startswith(_RETURNED):
        return pytree.TreeSpec(_returned(kind.removeprefix(_RETURNED), len(children)), None, children)
    cls = _PLAIN.get(kind) or _registered(kind)
    return pytree.TreeSpec(cls, None if context is None else read_json(context), children)


def _named_tuple(name: str, fields: int) -> tuple[Any, Any]:
    """What PyTorch keeps of a named tuple that this process has registered: the kind, and the class as its context."""
    cls = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    names = getattr(cls, "_fields", None)
    if not isinstance(cls, type) or not issubclass(cls, tuple) or not isinstance(names, tuple) or len(names) != fields:
        raise CallError(f"the named tuple {name:.120} in the structure is not known yet: import its module first")
    kind: Any = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[_NAMED_TUPLE]
    return kind, cls


def _returned(name: str, fields: int) -> Any:
    """The tuple that an operation of PyTorch returns, such as ``topk``."""
    cls = getattr(torch.return_types, name, None)
    if not isinstance(cls, type) or not issubclass(cls, tuple) or getattr(cls, "n_sequence_fields", None) != fields:
        raise CallError(f"the structure has a {_RETURNED}{name:.120} of {fields}, which PyTorch does not return")
    return cls


def _registered(name: str) -> type:
    """An output class by the name under which a library has registered it: a mapping, or a dataclass."""
    cls = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    if cls is None:
        raise CallError(f"a class in the structure, {name:.120}, is not known yet: import its module first")
    allowed = isinstance(cls, type) and (issubclass(cls, dict) or dataclasses.is_dataclass(cls))
    if not allowed:
        raise CallError(f"the structure has a {name:.120}, which is no list, tuple, dict or output class")
    return cls
