"""What a module shows of its weights, which a store holds: tensors with data, or stand-ins that look like them.

The module still knows its weights wherever these are: saving, loading, ``.device`` and ``.dtype`` go on working, and
undoing brings every weight back to where it was.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch
from torch import nn

from ...compiler.devices.device import Device
from ...compiler.errors import UsageError
from ...compiler.ir.program import Program
from ...compiler.spec.residency import ALIKE, Amounts, Residency
from ...lora.adapters import plain_name
from ...runtime.store.fetching import is_in_file
from ...runtime.store.objects import attributes_on
from ...runtime.store.origin import HOST
from ...runtime.store.program_weights import ProgramWeights
from ...runtime.store.staging import Staging
from ...runtime.store.store import Origins, Store
from ...runtime.store.stored_weight import StoredWeight

_KEPT_BYTES = 1 << 20
"""A parameter of a component's own module that is no larger stays on its device, for pipelines may compute with it."""


class _Stored(Protocol):
    store: Store


_S = TypeVar("_S", bound=_Stored)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def locked(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Has one thread at a time look weights of a store up or move them."""

    @functools.wraps(method)
    def within(self: _S, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self.store.lock:
            return method(self, *args, **kwargs)

    return cast("Callable[Concatenate[_S, _P], _R]", within)


class ModuleView:
    """The weights of one component as its module shows them.

    Args:
        module: the component.
        origins: where the weights come from that are on meta; without them every weight must have data.
        store: holds the weights of all components of a pipeline.
        residency: where parameters are kept while nobody reads them.
        amounts: bytes of them that are kept elsewhere all the same.

    Raises UsageError when weights shall rest on disk that lie in no file.
    """

    def __init__(
        self,
        module: nn.Module,
        origins: Origins | None = None,
        *,
        store: Store | None = None,
        residency: Residency = Residency.DEVICE,
        amounts: Amounts = ALIKE,
    ) -> None:
        self._module = weakref.ref(module)
        self.residency, self.amounts = residency, amounts
        self.store = store or Store(plain_name)
        self.store.add(module, origins, residency)
        if amounts:
            self.store.rest_in(module, residency, amounts)
        self.staging = Staging()
        self._lent: set[StoredWeight] = set()
        self.kept: weakref.WeakSet[StoredWeight] = weakref.WeakSet()
        """Small weights that stay on their device wherever the others rest."""
        self._users = 0
        self._is_due = False
        self.moved: Callable[[], None] = lambda: None
        """Called when weights may have moved since they were looked at."""
        self._names = {one.name for one in self.weights()}
        self._own = weakref.WeakSet(self.weights())
        # parameters without data are planned without weights: who computes with them has their files
        self._has_origins = origins is not None or not any(self._parameters_with_data())
        self.lacks_files = origins is None and self._has_origins and not all(one.has_data for one in self.weights())
        """Whether its weights are planned as if they lay in files, which are not here."""
        self._homeless = self._in_no_file()
        self._home = next((one.tensor.device for one in self.weights() if one.is_here), HOST)
        if residency is Residency.DISK:
            self.check_files()

    @property
    def is_in_files(self) -> bool:
        """Whether all parameters but those of adapters lie in files, so that they may rest on disk."""
        return self._has_origins and not self._homeless

    @locked
    def rest_in(self, residency: Residency, amounts: Amounts = ALIKE) -> None:
        """Has parameters rest elsewhere from now on, and some bytes of them otherwise.

        Raises UsageError where they shall rest on disk without files.
        """
        self.residency, self.amounts = residency, amounts
        self.store.rest_in(self.module, residency, amounts)
        if residency is Residency.DISK:
            self.check_files()

    @locked
    def resting(self, residency: Residency, amounts: Amounts = ALIKE) -> dict[StoredWeight, Residency]:
        """Where parameters would rest that rest so; nothing is changed."""
        return self.store.resting(self.module, residency, amounts)

    @property
    def module(self) -> nn.Module:
        """The component's module; raises ReferenceError when nobody has it any more."""
        module = self._module()
        if module is None:
            raise ReferenceError("the module of these weights is gone")
        return module

    @locked
    def survey(self) -> None:
        """Looks where the module holds its weights; to be called when its structure may have changed.

        Those of parts that were taken out of it go back to where they were.
        """
        self.store.survey()
        self.store.let_go()

    def weights(self, module: nn.Module | None = None) -> list[StoredWeight]:
        """The weights of the component or of a part of it, each once; none when nobody has the module any more."""
        module = self._module() if module is None else module
        return [] if module is None else list(dict.fromkeys(self.store.of_module(module).values()))

    def by_name(self, module: nn.Module) -> dict[str, StoredWeight]:
        """The weights of a part of the component, under every name that they have without adapters."""
        return {plain_name(name): one for name, one in self.store.of_module(module).items()}

    def of_program(self, module: nn.Module, program: Program) -> ProgramWeights:
        """What gives a program of the component, or of a part of it, its weights; it keeps no module alive."""
        reference, store = weakref.ref(module), self.store
        view = weakref.ref(self)

        def find() -> dict[str, StoredWeight]:
            part, owner = reference(), view()
            assert part is not None
            assert owner is not None
            with store.lock:
                store.survey()
                return owner.by_name(part)

        return ProgramWeights(store, program, find, staging=self.staging)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights of the component as they rest, each counted once."""
        return sum(one.nbytes for one in self.weights())

    @locked
    def keep(self, tensors: Iterable[torch.Tensor], device: Device) -> None:
        """Brings small weights to their device, where they stay wherever the others rest.

        Those with data that rest elsewhere stay there, unless no program will ever read them.
        """
        stays = self._has_origins or type(self.module).forward is nn.Module.forward
        for one in map(self.store.of, list(tensors)):
            if one.nbytes <= _KEPT_BYTES and (stays or one.residency is Residency.DEVICE):
                one.residency = Residency.DEVICE
                self.store.place(one, device)
                self.kept.add(one)

    @locked
    def lend(self, one: StoredWeight, device: Device) -> None:
        """Brings a weight to a device for modules that run as they are; one that rests elsewhere until `release`."""
        if one.residency is Residency.DEVICE:
            self.store.place(one, device)
        elif not one.is_on(device.torch):
            self.store.bring(one, device.torch)
            self._lent.add(one)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """Keeps what is staged and lent where it is meanwhile; what others release leaves with the last user."""
        entered = False
        try:
            with self.store.lock:
                self._users += 1
                entered = True
            yield
        finally:
            with self.store.lock:
                self._users -= entered
                if not self._users and self._is_due:
                    self.release()

    @locked
    def release(self) -> None:
        """Lets go of everything that was staged or lent, and of the memory that views of files take.

        What calls are using now leaves when the last of them ends.
        """
        self._is_due = self._users > 0
        if self._is_due:
            return
        self.staging.drop()
        self.store.release([one for one in self.weights() if one.staged or one.slots])
        if self._lent:
            for one in self._lent:
                self.store.rest(one, one.tensor.device)
            self._lent = set()
        self.moved()

    @locked
    def rest(self) -> None:
        """Brings weights that have data to where they rest, after that was changed."""
        for one in self.weights():
            if one.is_here:
                self.store.rest(one, one.tensor.device)
        self.moved()

    @locked
    def leave_devices(self) -> None:
        """Brings weights off accelerators that they are not to stay on any more: to where they rest, or were before."""
        for one in self.weights():
            lies = one.tensor.device if one.is_here else HOST
            stays = one.residency is Residency.DEVICE
            if lies == HOST or (stays and one.home is not None and lies == one.home.torch):
                continue
            before = self._was_on(one)
            if not stays:
                self.store.rest(one, lies)
            elif is_in_file(one):
                self.store.take_out(one, one.read_from)
            else:
                self.store.bring(one, HOST if before in (None, lies) or before.type == "meta" else before)
        self.moved()

    @locked
    def data_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a copy of the module has in the place of a weight: it has data, and no simulated device."""
        one = self.store.known(tensor)
        if one is None or (one.is_here and not _is_elsewhere(one)):
            return tensor if one is None else one.tensor
        data = one.whole(HOST)
        data = nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data
        attributes_on(data, tensor)
        return data

    @contextlib.contextmanager
    def on_file_terms(self) -> Iterator[None]:
        """Every weight has data meanwhile, and none is on a device that file writers do not know."""
        self.survey()
        away = [one for one in self.weights() if not one.is_here or _is_elsewhere(one)]
        back = [(one, _content(one), one.origin, one.read_from, one.is_as_noted()) for one in away]
        try:
            for one in away:
                self.store.bring(one, HOST)
            yield
        finally:
            for known in back:
                self.store.put_back(*known)

    @locked
    def undo(self) -> None:
        """Brings every weight back to where it was; one that had no data goes to host memory.

        A weight that fails leaves the others as they are: the first error is raised when all were tried, as is
        DoesNotFitError where there is no room. What failed is brought back when this is called again.
        """
        self.survey()
        failed: list[Exception] = []
        for one in self.weights():
            try:
                with torch.inference_mode(False), torch.no_grad():  # what is made within that mode is never trained
                    self._bring_back(one)
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]
        self._lent.clear()
        self._is_due = False

    def _bring_back(self, one: StoredWeight) -> None:
        self.store.forget_parts(one)
        before = self._was_on(one)
        target = HOST if before is None or before.type == "meta" else before
        moves = before is not None and one.is_here and not one.is_on(target)
        if moves or (not one.is_here and one.file is not None):
            self.store.bring(one, target, "that is where it was before: free memory there, and call undo() again")
        self.store.give_back(one)
        one.home = one.before = None
        one.bounds = ()

    def _was_on(self, one: StoredWeight) -> torch.device | None:
        """Where a weight was before it was brought elsewhere; one that came meanwhile belongs where others were.

        Where such a one lay may be where another compiled model had it.
        """
        return one.before if one.name in self._names and one in self._own else self._home

    @locked
    def forget_copies(self) -> None:
        """Lets go of all that lies beside the module's tensors, after these were changed; it is made again."""
        for one in self.weights():
            self.store.forget_parts(one)

    def _in_no_file(self) -> list[str]:
        """The parameters that lie in no file now; what comes later, or is written, rests in host memory."""
        return [one.name for one in self._parameters_with_data() if one.file is None]

    def _parameters_with_data(self) -> Iterator[StoredWeight]:
        return (one for one in self.weights() if isinstance(one.tensor, nn.Parameter) and one.has_data)

    def check_files(self) -> None:
        """Raises UsageError where parameters lie in no file, so that they cannot rest in one."""
        if homeless := self._homeless:
            raise UsageError(
                f"{len(homeless)} weights of {type(self.module).__name__} ({', '.join(homeless[:3])}"
                f"{', …' if len(homeless) > 3 else ''}) are in no file and cannot be kept on disk: load them with "
                "load_pipeline, or keep them in host memory (params_backend=cpu)"
            )


def _content(one: StoredWeight) -> torch.Tensor | None:
    """The data of a weight, which its tensor may not have later; None where it has none."""
    if not one.is_here:
        return None
    return one.tensor.detach() if one.lasts else one.tensor


def _is_elsewhere(one: StoredWeight) -> bool:
    """Whether a weight with data lies where no file writer reads it, also if somebody else put it there."""
    there = one.tensor.device
    return Device(there.type, there.index or 0).is_simulated
