"""Where a model's code looks beside the model: the classes whose members it calls, and the globals that it names.

What the key of a kept trace goes by between processes, a running process goes by between calls (components/stamp.py).
Code is followed as `content` does; nothing is digested, and nothing refused: what cannot be followed is passed by, and
so are the objects of dovetail's own that stand in what is compiled.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from types import CellType, FunctionType
from typing import Any

import torch
from torch import nn

from ..compiler.frontend.outside import is_ours
from ..conventions.replacements import Replacement
from .code import home_of, is_own, module_of
from .content import Content
from .values import DEEPEST
from .world import asked_of_environment

logger = logging.getLogger(__name__)


class Reach(Content):
    """Follows the code of some classes and functions.

    ``classes`` are those that were met and followed. ``globals`` are the namespaces that were looked into, each with
    the names that are named of it, and whether it is of somebody's own. ``functions`` are those of somebody's own,
    ``cells`` the variables of their closures, and ``variables`` what they may ask of the environment.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        super().__init__()
        self.globals: list[tuple[Mapping[str, Any], tuple[str, ...], bool]] = []
        self.cells: list[CellType] = []
        self.functions: list[FunctionType] = []
        self.variables: dict[str, None] = {}
        self._deeper: deque[tuple[bool, Any]] = deque()  # what is held too deep, and whether by somebody's own code
        self._looked: dict[int, tuple[Mapping[str, Any], dict[str, None]]] = {}
        for root in roots:
            self._homes.add((module_of(root) if isinstance(root, type) else str(root.__module__)).partition(".")[0])
        self._is_state = False
        for root in roots:
            self._value(root)
        self._follow()
        for held, names in self._looked.values():
            self.globals.append((held, tuple(names), is_own(str(held.get("__name__")))))

    @property
    def classes(self) -> list[type]:
        """The classes that were met."""
        return list(self._classes)

    def say(self, *words: object) -> None:
        """Nothing is digested."""

    def _object(self, value: Any) -> None:
        """A compiled module is no way on: whoever asks for its code follows that from its classes."""
        if not is_ours(value) and not (isinstance(value, nn.Module) and _is_compiled(value)):
            super()._object(value)

    def _imports(self, modules: Iterable[str], names: tuple[str, ...]) -> None:
        """Functions of PyTorch too, which the key of a kept trace knows by the version: somebody may replace them."""
        super()._imports(modules, names)
        of_torch = [one for one in modules if one.partition(".")[0] == "torch" and one in sys.modules]
        for held in map(vars, map(sys.modules.__getitem__, of_torch)):
            for name in filter(held.__contains__, names):
                self._looked_up(held, name)

    def _looked_up(self, held: Mapping[str, Any], name: str) -> None:
        self._looked.setdefault(id(held), (held, {}))[1][name] = None

    def _bodies(self) -> None:
        super()._bodies()
        while self._deeper:
            self._is_owned, value = self._deeper.popleft()
            self._value(value)
            super()._bodies()

    def _value(self, value: Any) -> None:
        depth = self._depth
        if depth == DEEPEST:
            self._deeper.append((self._is_owned, value))
            return
        try:
            super()._value(value)
        except Exception as error:  # whatever lies in somebody's globals: the rest is followed
            self._depth = depth
            _note(error)

    def _body(self, function: FunctionType) -> None:
        try:
            self._look_into(function)
        except Exception as error:
            _note(error)

    def _look_into(self, function: FunctionType) -> None:
        if is_own(home_of(function)):
            self.cells += function.__closure__ or ()
            self.functions.append(function)
            self.variables.update(dict.fromkeys(asked_of_environment(function)))
        super()._body(function)

    def _function(self, function: FunctionType) -> None:
        self._functions.append(function)

    def _parameter(self, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            self._hung_on(tensor)

    def _tensor(self, tensor: torch.Tensor) -> None:
        return

    def _array(self, array: Any) -> None:
        return

    def _refuse(self, what: str) -> None:
        return


def _is_compiled(module: nn.Module) -> bool:
    return any(isinstance(one, Replacement) for one in list(vars(module).values()))


def _note(error: Exception) -> None:
    logger.debug("code is followed in part: %s: %s", type(error).__name__, str(error))
