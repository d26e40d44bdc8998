"""Describes what a trace depends on by content, so that two processes that would trace alike describe alike.

A trace runs the Python of a model: of its classes, of the objects in its attributes, and of every function that these
call. All of it is written into one digest, in three ways:

- what the model holds: attributes by value, tensors by their bytes;
- what lies in memory: from function to function, each by bytecode with its defaults, its closure, and the globals and
  members of classes that it names. Of each class and module on the way, all functions are told, named or not, so that
  one that was put in the place of another changes the digest, however it is called;
- what lies in files (``files.py``): all of every file that these functions come from, and of what these import. So an
  edit changes the digest by whatever way a forward reaches what was edited.

The code of PyTorch outside of ``torch.nn`` and ``torch.distributions``, of Python's own library, of dovetail, and of
installed packages that no class of the model comes from is not followed: a function of these is told by its own
bytecode, for their versions are in the key beside this.

What has no content that can be told (an open file, a generator of random numbers), a function that reads the world
beside the model (``world.py``), and code that was typed into a session or is of the script that runs, raises
HasNoContent.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from types import CellType, FunctionType, ModuleType
from typing import Any

from torch import nn

from ..conventions import libraries
from ..conventions.replacements import Replacement
from .code import digest_of, home_of, imports_in, is_installed, is_of_python, is_own, loads_in, module_of, names_in
from .files import files_of, is_as_imported
from .values import HasNoContent, Values
from .world import variables_of, what_it_reads

_DESCRIPTORS = (staticmethod, classmethod)
_FRAME = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OF_CLASSES = frozenset(
    """
    __module__ __doc__ __dict__ __weakref__ __annotations__ __slots__ __reduce__ __reduce_ex__ __repr__ __str__ __hash__
    __getstate__ __setstate__ __copy__ __deepcopy__ __del__ __dir__ __init_subclass__ __class_getitem__ __parameters__
    __orig_bases__ __abstractmethods__ __dataclass_fields__ __dataclass_params__ __match_args__ __firstlineno__
    __static_attributes__ __annotate__ __annotate_func__ __annotations_cache__ __subclasshook__ __qualname__ _abc_impl
    __signature__ __slotnames__ __sizeof__ __format__ __getnewargs__ __orig_class__ __subclasscheck__ __instancecheck__
    """.split()
)
"""What classes have that no call of an object runs, or that says of them what their other members say too."""
_MAKES = ("__init__", "__new__", "__post_init__")
_BY_TEXT = frozenset({"getattr", "attrgetter", "methodcaller", "getattr_static"})
_BY_ANYTHING = frozenset({"globals", "locals", "vars", "dir", "__dict__", "modules", "getmembers"})
"""What looks a name up that is in no bytecode: by a text in part, or by any."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (FunctionType, *_DESCRIPTORS, property, functools.cached_property)
_ASKED = "__getattr__"
"""What a module has that answers for the names that it lacks."""


class Content(Values):
    """Collects what a trace depends on into one digest."""

    def __init__(self) -> None:
        super().__init__()
        self._functions: deque[FunctionType] = deque()
        self._classes: dict[type, None] = {}
        self._made: set[type] = set()
        self._modules: dict[str, None] = {}
        self._imported: dict[str, None] = {}
        self._parts: set[str] = set()
        self._is_open = False  # whether somebody's own code looks up any name

    def module(self, module: nn.Module) -> None:
        """Adds a module with all that is in it, and the code of its forward."""
        self._value(module)

    def arguments(self, value: Any) -> None:
        """Adds arguments of a call: tensors without their data."""
        self._call(value)

    def finish(self) -> str:
        """The digest, after the code that runs was followed to its end."""
        self._follow()
        for cls in self._classes:
            self._unnamed(f"{cls.__module__}.{cls.__qualname__}", vars(cls), is_whole=is_own(cls.__module__))
        for module in self._modules:
            is_whole = is_own(module) and (self._is_open or not is_as_imported(module))
            self._unnamed(module, vars(sys.modules[module]), is_whole)
        self.say("files", *files_of([*self._modules, *self._imported], self._is_followed))
        return self._digest.hexdigest()

    def _follow(self) -> None:
        self._is_state = False
        done: dict[tuple[type, str], None] = {}
        while True:
            self._bodies()
            wanted = [(one, name) for one in list(self._classes) for name in self._members(one)]
            new = [pair for pair in wanted if pair not in done]
            if not new:
                return
            done.update(dict.fromkeys(new))
            for cls, name in new:
                self.say("member", self._met[id(cls)][0], name)
                self._is_owned = is_own(module_of(cls))
                self._member(vars(cls)[name])

    def _bodies(self) -> None:
        while self._functions:
            self._body(self._functions.popleft())

    def _unnamed(self, home: str, members: Mapping[str, Any], is_whole: bool) -> None:
        """All functions that a class or module has, and what is plain of one whose members any way may lead to."""
        told: list[object] = []
        for name, value in list(members.items()):
            if isinstance(value, _CODE):
                if id(value) in self._met:
                    told.append((name, self._met[id(value)][0]))
                else:
                    told += [(name, f.__module__, f.__qualname__, digest_of(f.__code__)) for f in _functions_in(value)]
            elif is_whole and isinstance(value, _PLAIN) and not (name.startswith("__") and name.endswith("__")):
                told.append((name, value))
        self.say("of", home, told)

    def _refuse_session(self, module: str, name: str) -> None:
        if module in ("__main__", "builtins", "None"):
            self._refuse(f"{name}, which is of the script or session that runs")

    def _refuse(self, what: str) -> None:
        raise HasNoContent(what)

    def _note(self, module: str) -> None:
        if module in sys.modules:
            self._modules[module] = None

    def _is_followed(self, module: str) -> bool:
        """Whether the code of a module is told by content all the way, and not by the version of its package."""
        root = module.partition(".")[0]
        if root == "torch":
            return module.startswith(("torch.nn.", "torch.distributions."))
        return root in self._homes or not (root == "dovetail" or is_of_python(module) or is_installed(root))

    def _module(self, module: nn.Module) -> None:
        own = vars(module)
        self.say("module")
        self._value(type(module))
        for name, tensor in own["_parameters"].items():
            self.say("parameter", name)
            self._parameter(tensor)
        for name, tensor in own["_buffers"].items():
            self.say("buffer", name, name in module._non_persistent_buffers_set)
            self._value(tensor)
        for name, child in own["_modules"].items():
            self.say("part", name)
            self._value(child)
        for name in _HOOKS:
            self.say(name, len(own[name]), len(own[f"{name}_with_kwargs"]))
            for hook in own[name].values():
                self._value(hook)
        self._settings(own)

    def _settings(self, own: Mapping[str, Any]) -> None:
        for name in sorted(own.keys() - _FRAME - libraries.BOOKKEEPING):
            if isinstance(own[name], Replacement):
                raise HasNoContent(f"the attribute {name}, which is compiled")
            self.say("attribute", name)
            self._value(own[name])

    def _class(self, cls: type) -> None:
        """A class by name; its members follow as far as some function names them."""
        home = module_of(cls)
        self.say("class", home, cls.__qualname__)
        if not self._is_followed(home):
            return
        self._refuse_session(home, cls.__qualname__)
        self._classes[cls] = None
        self._note(home)
        for base in cls.__bases__:
            self._value(base)
        if type(cls) is not type:
            self._value(type(cls))

    def _members(self, cls: type) -> list[str]:
        own = vars(cls)
        special = {name for name in own if name.startswith("__") and name not in _OF_CLASSES and name not in _MAKES}
        made = {name for name in _MAKES if name in own} if cls in self._made else set()
        named = own.keys() & self._names | (self._reached(own) if is_own(module_of(cls)) else set())
        return sorted((named - _OF_CLASSES - {*_MAKES}) | special | made)

    def _reached(self, own: Mapping[str, Any]) -> set[str]:
        """The names among some that code may put together, from what the model holds or from parts of names."""
        if self._is_open:
            return {name for name in own if not name.startswith("__")}
        if not self._parts:
            return set()
        return {name for name in own if name in self._texts or any(_is_part(part, name) for part in self._parts)}

    def _member(self, value: Any) -> None:
        if isinstance(value, _DESCRIPTORS):
            self.say(type(value).__name__)
            self._value(value.__func__)
        elif isinstance(value, property):
            self.say("property")
            for function in (value.fget, value.fset):
                self._value(function)
        elif isinstance(value, functools.cached_property):
            self.say("cached property")
            self._value(value.func)
        else:
            self._value(value)

    def _function(self, function: FunctionType) -> None:
        self.say("function", function.__module__, function.__qualname__, digest_of(function.__code__))
        if self._is_followed(home_of(function)):
            self._refuse_session(home_of(function), function.__qualname__)
            self._note(home_of(function))
        self._functions.append(function)

    def _body(self, function: FunctionType) -> None:
        """What a function refers to: its defaults, its closure, and the globals that it names."""
        self.say("body", self._met[id(function)][0])
        self._is_owned = is_own(home_of(function))
        if self._is_owned:
            self._value(vars(function))
        self._value(function.__defaults__)
        self._value(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self._cell(cell)
        if self._is_followed(home_of(function)):  # a decorator of PyTorch's keeps what it decorates in its closure
            names = names_in(function.__code__)
            self._names.update(names)
            self._outside(function, names)
            self._globals(function.__globals__, names)
            self._imports(imports_in(function.__code__, function.__globals__.get("__package__") or ""), names)

    def _cell(self, cell: CellType) -> None:
        try:
            held = cell.cell_contents
        except ValueError:
            self.say("empty")
        else:
            self._value(held)

    def _outside(self, function: FunctionType, names: tuple[str, ...]) -> None:
        """What a function asks beside its arguments and Python objects; raises HasNoContent where nobody can tell."""
        own = is_own(home_of(function))
        variables = variables_of(function, own)
        if variables:
            self.say("environment", *variables)
        if not own:
            return
        reads = what_it_reads(function) if variables is not None else "environment variables that it does not name"
        if reads:
            self._refuse(f"what {home_of(function)}.{function.__qualname__} reads: {reads}")
        if _BY_TEXT.intersection(names):
            self._parts.update(names)
        self._is_open |= bool(_BY_ANYTHING & {*names, *loads_in(function.__code__)})

    def _imports(self, modules: Iterable[str], names: tuple[str, ...]) -> None:
        """What a function imports when it is called: what is named of it, where it is imported by now."""
        for module in modules:
            if is_of_python(module) or module.partition(".")[0] == "torch":
                continue
            self._imported[module] = None
            if module in sys.modules:
                self._globals(vars(sys.modules[module]), names)

    def _globals(self, own: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """The globals of these names, and of the modules among them what has these names too."""
        waiting, seen = [own], {id(own)}
        while waiting:
            held = waiting.pop()
            self._is_owned = is_own(str(held.get("__name__")))
            more = self._reached(held) if self._is_owned else ()
            for name in (_ASKED, *names, *sorted(set(more).difference(names))):
                if name not in held or (name.startswith("__") and name != _ASKED) or name in libraries.OF_ONE_PROCESS:
                    continue
                value = held[name]
                if isinstance(value, ModuleType):
                    if id(vars(value)) not in seen and not is_of_python(value.__name__):
                        seen.add(id(vars(value)))
                        waiting.append(vars(value))
                    continue
                if isinstance(value, type) and not issubclass(value, nn.Module):
                    self._made.add(value)
                self._looked_up(held, name)
                self._value(value)

    def _looked_up(self, held: Mapping[str, Any], name: str) -> None:
        self.say("global", name)


def _is_part(part: str, name: str) -> bool:
    """Whether code may put a name together from a text: one letter counts where the name begins with it."""
    return part in name if len(part) > 1 else name.startswith(part)


def _functions_in(value: Any) -> list[FunctionType]:
    if isinstance(value, property):
        found = [value.fget, value.fset]
    elif isinstance(value, functools.cached_property):
        found = [value.func]
    else:
        found = [getattr(value, "__func__", value)]
    return [one for one in found if isinstance(one, FunctionType)]
