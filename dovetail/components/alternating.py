"""Calls of one step that go on at the same time: each device of a component holds it whole, and calls take turns.

Pipelines whose guidance parts are calls of their own call a component several times a step, and none of these calls
reads what another gave. So each is launched on the next device, and its result is handed out before it is there
(`runtime/unfinished.py`); whoever reads one waits for all that were launched. Each call is the whole model on one
device, so that no bit changes where devices are of one kind.

Calls are launched within a call of the pipeline alone, and all are over when that ends. A dry run counts turns by the
same rules, and so foresees which calls go on together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..compiler.devices.rig import Rig
from ..compiler.ir.program import Program, tensors_of
from ..conventions.modes import are_taken_off, has_foreign_modes
from ..runtime.devices.fork import ForkSafeLock
from ..runtime.devices.recording import is_watched
from ..runtime.devices.transfers import handed, home_of
from ..runtime.failures import exhaustion_told
from ..runtime.launching import Launched
from ..runtime.threads import is_observed
from ..runtime.unfinished import Awaited, Unfinished
from .compiled import CompiledModule

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST = 4
"""So many calls a device are launched at most before their results are waited for, if nobody reads them."""

Recover = Callable[[BaseException], bool]
"""Frees memory after an error; says whether the call is to be made once more."""


class Rotation:
    """Whose turn it is: calls whose results are not read yet go to one device after another, from the first one on."""

    def __init__(self) -> None:
        self.count = 0

    def is_full(self, devices: int) -> bool:
        """Whether results must be waited for before another call is launched."""
        return self.count >= _MOST * devices

    def take(self) -> int:
        """The number of a call among those that nobody has read."""
        self.count += 1
        return self.count - 1

    def end(self) -> None:
        """Begins again, for a result is read."""
        self.count = 0


class Alternating(CompiledModule):
    """A program on each device of a component, of which calls take turns; alone it is that of the first device."""

    def __init__(self, each: Sequence[CompiledModule], rig: Rig, base: Program) -> None:
        first = each[0]
        super().__init__(first.program, rig, first._weights, base)
        self._others = tuple(each[1:])
        self.launches: Launches | None = None
        self._adapters: Mapping[str, torch.Tensor] | None = None

    @property
    def each(self) -> tuple[CompiledModule, ...]:
        """The programs, one a device; weights come to a device when a call is first launched there."""
        return (self, *self._others)

    def held(self) -> list[torch.Tensor]:
        """The weights that it has on devices."""
        return [*super().held(), *(tensor for one in self._others for tensor in one.held())]

    def exchange(self, adapters: Mapping[str, torch.Tensor]) -> None:
        """Takes other weights for its adapters, when no call goes on that reads those before."""
        if adapters is not self._adapters:
            self._wait()
            self._adapters = adapters
        super().exchange(adapters)
        for one in self._others:
            one.exchange(adapters)

    def unload(self) -> None:
        """Lets go of the weights, when no call goes on that reads them."""
        self._wait()
        super().unload()
        for one in self._others:
            one.unload()

    def _wait(self) -> None:
        if self.launches is not None:
            self.launches.settle()


class Launches:
    """The launched calls of a component whose results were not all read."""

    def __init__(self) -> None:
        self.is_open = False
        """Whether a call of the pipeline goes on, within which calls are launched."""
        self._rotation = Rotation()
        self._going: list[_Going] = []
        self._unread: weakref.WeakSet[_Going] = weakref.WeakSet()
        self._failed: list[_Going] = []
        self._last: dict[torch.device, Launched] = {}
        self._lock = ForkSafeLock()  # any thread may read a result

    @property
    def may_launch(self) -> bool:
        """Whether a call may go on while its caller does: nobody watches it, or asks for gradients."""
        watched = is_observed() or is_watched() or has_foreign_modes() or are_taken_off()
        return self.is_open and not watched and not torch.is_grad_enabled()

    def call(
        self, program: Alternating, title: str, args: Sequence[Any], kwargs: Mapping[str, Any], recover: Recover
    ) -> Any:
        """Launches a call on the next device, and returns its results before they are there."""
        if self._rotation.is_full(len(program.each)):
            self.settle()
        program.launches = self
        one = program.each[self._rotation.count % len(program.each)]
        inputs = one.taken(args, kwargs)
        device = one.program.main.torch
        home = home_of(inputs) or device
        with exhaustion_told(f"the inputs of {title}"):
            launched = Launched(title, device, one._executor, inputs, self._last.get(device))
        going = _Going(self, one, launched, home, recover)
        self._rotation.take()
        self._going.append(going)
        self._unread.add(going)
        self._last[device] = launched
        launched.start()
        return program.program.signature.unflatten(list(going.results()))

    def settle(self) -> None:
        """Waits for all that were launched; an interrupt meanwhile is raised when they are done."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        interrupted: BaseException | None = None
        for going in list(self._going):
            while not going.launched.is_over:
                try:
                    going.launched.join()
                except BaseException as error:  # an interrupt, of which there may be several
                    interrupted = error
            going.launched.wait()
        self._failed += [one for one in self._going if one.launched.error is not None]
        self._going.clear()
        self._last.clear()
        self._rotation.end()
        if interrupted is not None:
            raise interrupted

    def forget(self, going: _Going) -> None:
        """Notes that somebody has read a call."""
        self._unread.discard(going)
        self._failed = [one for one in self._failed if one is not going]

    def end(self, failed: bool) -> None:
        """Ends all: what somebody still holds is brought to where it belongs.

        The error of a call that nobody has read is raised, unless the pipeline's own call has ``failed``.
        """
        try:
            self.is_open = False
            self.settle()
            unread = [*self._failed, *self._unread]
            for going in () if failed else unread:
                going.leaves()
        finally:
            self._failed.clear()
            self._unread.clear()


class _Going:
    """A launched call, and its results where they belong."""

    def __init__(
        self, launches: Launches, one: CompiledModule, launched: Launched, home: torch.device, recover: Recover
    ) -> None:
        self._launches = weakref.ref(launches)
        self._one, self.launched, self._home = one, launched, home
        self._recover = recover
        self._leaves: list[Any] | None = None
        self._lock = ForkSafeLock()

    def results(self) -> list[Any]:
        """The leaves of the result, unfinished ones in the place of tensors."""
        leaves = self._one.program.output.args[0]
        assert isinstance(leaves, (tuple, list))
        return [self._result(at, one) if isinstance(one, Node) else one for at, one in enumerate(leaves)]

    def _result(self, at: int, node: Node) -> Unfinished:
        (kind,) = tensors_of(node)
        stride = [step for step in kind.stride if isinstance(step, int)]  # all are
        form = torch.empty_strided(kind.sizes, stride, dtype=kind.dtype, device="meta")
        return Unfinished.of(Awaited(partial(self._leaf, at)), form, self._home)

    def _leaf(self, at: int) -> torch.Tensor:
        found: torch.Tensor = self.leaves()[at]
        return found

    def leaves(self) -> list[Any]:
        """The leaves where they belong; raises what the call has failed with, and says which call it was."""
        with self._lock:
            if self._leaves is None:
                self._leaves = self._waited()
            return self._leaves

    def _waited(self) -> list[Any]:
        launches = self._launches()
        if launches is not None:
            launches.settle()
        try:
            found = self._read()
        except Exception as error:
            _name(error, self.launched)
            raise
        finally:
            if launches is not None:
                launches.forget(self)
        self.launched.end()
        return found

    def _read(self) -> list[Any]:
        error = self.launched.error
        if isinstance(error, Exception) and self._recover(error):
            self.launched.again()
        leaves = self.launched.leaves()
        if self._one._weights:
            self._one._weights.check()
        with exhaustion_told(f"the results of {self.launched.name}"):
            return [handed(one, self._home) if isinstance(one, torch.Tensor) else one for one in leaves]


def _name(error: Exception, launched: Launched) -> None:
    """Says of an error, once, which call it is of: it is raised where that is read."""
    note = f"in {launched.name}, which was launched on {launched.device} beside others and is read here"
    notes = getattr(error, "__notes__", [])
    if note not in notes:
        error.__notes__ = [*notes, note]  # as `add_note` does, which Python 3.10 lacks


def put_off(result: Any, read: Callable[[], None]) -> Any:
    """The answer of a dry run as a launched call would give it: ``read`` is told when it is read first."""

    def get(tensor: torch.Tensor) -> torch.Tensor:
        read()
        return tensor

    def unfinished(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return Unfinished.of(Awaited(partial(get, leaf)), leaf, leaf.device)

    return pytree.tree_map(unfinished, result)
