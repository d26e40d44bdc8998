"""A component that cannot be traced whole is compiled by its parts.

Its own Python runs, and each part that it calls answers with a program, or, if it cannot be traced either, by its own
parts. That is so on one device too, so that a plan has what the parts take. Where a call hands on objects that keep
state, or makes one token after another, nothing is compiled, and a block runs as it is on the device of its weights.

What a module computes between its parts it computes on one device, where the weights that belong to it alone lie: the
main device, or for what lies within one block that block's (``sites.py``). So a value comes back there after each part,
which costs about twice the copies of a program of the whole. Rows are not split by parts: blocks are placed whole.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ..compiler.devices.device import Device
from ..compiler.errors import DovetailError, SideEffectError, TraceError
from ..compiler.frontend.diagnostics import OR_A_PART
from ..compiler.frontend.refusals import STANDS_FOR
from ..compiler.frontend.rollback import containers_of
from ..conventions.hooks import has_foreign_hooks
from ..conventions.modes import are_taken_off, put_back
from ..conventions.replacements import Replacement
from ..lora.adapters import adds_branches
from ..runtime.devices.out_of_memory import ran_out
from ..runtime.devices.transfers import home_of
from ..runtime.store.objects import attributes_on
from ..runtime.store.stored_weight import StoredWeight
from .arguments.call_key import call_key
from .arguments.crossing import Crossing, is_stateful
from .arguments.homeward import Homeward
from .calls import BY_PARTS, ByParts, Call, OfComponent, call_of, moved
from .compiled import CompiledModule
from .dry import CannotBePlannedError, DryRun, dry_run
from .reads import Reads, unread
from .sites import Site

if TYPE_CHECKING:
    from .component import Component
    from .plan import ComponentPlan

logger = logging.getLogger(__name__)

_TRIES = 3
"""So often a call is traced for other shapes or constants after it could not be; then it is not tried again."""
_SHAPES = 4
"""For so many kinds of calls a part is compiled; one whose lengths depend on data then runs as it is."""
_TOGETHER = "_compiled_call_impl"
"""What PyTorch calls in place of a module's hooks and function, if it is there."""


@dataclass(frozen=True)
class _Frame:
    """A module whose own Python is running: where, and what the parts that it calls do.

    ``plain`` parts are called as they are, ``keeps`` are not compiled, for the call hands on objects that keep state.
    """

    here: torch.device
    plain: bool = False
    keeps: bool = False


class _Hooked(Replacement):
    """What stands in a part in place of its hooks and function, as they run together, while its component runs."""

    __slots__ = ("_call", "_parts")

    def __init__(self, parts: Parts, call: Call) -> None:
        self._parts, self._call = parts, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs them where the part's weights are."""
        frame = self._parts.frame
        own: Callable[..., Any] = self._call.module._call_impl
        if frame is None or frame.plain:  # the call of another thread, or of what runs as it is all the same
            return own(*args, **kwargs)
        with unread():
            return self._parts.run_own(self._call, own, args, kwargs)

    def put(self) -> None:
        """Puts it there, unless somebody has."""
        vars(self._call.module).setdefault(_TOGETHER, self)

    def take_out(self) -> None:
        """Takes it out again."""
        if vars(self._call.module).get(_TOGETHER) is self:
            del self._call.module.__dict__[_TOGETHER]


class Parts(OfComponent):
    """Runs calls of a component by its parts.

    ``reasons`` has, by the name of the call, why it was not compiled whole. The component keeps this alive, and not the
    other way round. Weights lie in the module where its Python reads them meanwhile, so it is used by who has the turn.
    """

    def __init__(self, component: Component) -> None:
        super().__init__(component)
        self.reasons: dict[str, str] = {}
        self._changing: set[str] = set()
        self._untried: dict[str, Call] = {}
        """The calls of ``reasons`` that have not run by their parts within a call that ended well; callers first."""
        self._has_warned = False
        self._local = threading.local()

    @property
    def frame(self) -> _Frame | None:
        """The module of this component whose own Python is running in this thread."""
        return getattr(self._local, "frame", None)

    @property
    def _keeping(self) -> bool:
        return getattr(self._local, "keeping", False) or are_taken_off() or has_foreign_hooks()

    @contextlib.contextmanager
    def keeping(self) -> Iterator[None]:
        """Has no call compiled meanwhile in this thread: blocks run as they are, each where its weights are.

        For loops that call the component with one length after another, such as ``generate``.
        """
        before = getattr(self._local, "keeping", False)
        self._local.keeping = True
        try:
            yield
        finally:
            self._local.keeping = before

    def takes(self, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call goes by its parts without being traced first."""
        if self._keeping or (self.frame and (self.frame.keeps or not _has_weights(call.module))):
            return True
        if adds_branches(call.module):
            return True
        return self.component.sites.contain_left(call.module) or is_stateful((*args, *kwargs.values()))

    def refuse(self, call: Call, error: TraceError) -> ByParts:
        """What answers a call that could not be traced: it runs by its parts; says so once, when it has run so."""
        call.failures += 1
        if isinstance(error, SideEffectError):
            self._changing.add(str(call))
        if call.failures >= _TRIES:
            call.whole = BY_PARTS
        why = str(error)
        if self.component.name and why.endswith(OR_A_PART):
            why = f"{why.removesuffix(OR_A_PART)}, or leave it so: the results are the same"
        if str(call) not in self.reasons:
            self._untried[str(call)] = call
        self.reasons[str(call)] = why
        return BY_PARTS

    def run(self, call: Call, /, *args: Any, **kwargs: Any) -> Any:
        """Runs a call by its parts: its own Python on one device, its parts compiled, each where its weights are."""
        try:
            result = self.run_own(call, call.original, args, kwargs)
        except Exception as error:
            if not isinstance(error, (CannotBePlannedError, DovetailError)) and not ran_out(error):
                self._take_back(call)
            raise
        if self.frame is None:
            tried, self._untried = self._untried, {}
            for one in tried.values():
                self._tell(one)
        return result

    def _take_back(self, call: Call) -> None:
        """Forgets that a call could not be traced which cannot be run either: another one may well be traced.

        So may its parts that could not be traced within it.
        """
        for name in [*dropwhile(lambda one: one != str(call), self._untried)]:
            self._untried.pop(name).forget_refusals()
            del self.reasons[name]

    def run_own(self, call: Call, own: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Runs what a module does itself at a call: its function, or that and the hooks around it."""
        dry, run = dry_run(), partial(self._run, call, own, args, kwargs)
        if dry is None:
            return run()
        if str(call) in self._changing:
            raise CannotBePlannedError(f"{self.component.title(call)} changes itself at each call")
        if self._keeping:
            raise CannotBePlannedError(f"{self.component.title(call)} is called for one token after another")
        return self._run_dry(dry, call, run, args, kwargs)

    def _run_dry(
        self, dry: DryRun, call: Call, run: Callable[[], Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Runs a call in a dry run, with zeros for weights, once for each kind where it leaves nothing behind."""
        dry.keep(self.component)
        if self.frame or is_stateful((*args, *kwargs.values())):
            return run()
        return dry.once(self.component, call, call_key(args, kwargs, call.asked), run)

    def _run(self, call: Call, own: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        frame, main = self.frame, self.component.whole_on
        keeps = self._keeping or bool(frame and frame.keeps) or is_stateful((*args, *kwargs.values()))
        is_unsteady = self.is_unsteady(call, len(call.traced) if dry_run() else 0)
        site = self.component.sites.of(call.module, keeps or is_unsteady)
        # What others put in place of a part's forward may share state with their other functions: all run in one place.
        stays = frame is not None and (call.is_patched or not site.device)
        there = frame.here if frame is not None and stays else (site.device or main).torch
        back = frame.here if frame else _home(args, kwargs) or there
        crossing = Crossing(there, frame.here if frame else None, back)
        there_args = [crossing.take(value) for value in args]
        there_kwargs = {name: crossing.take(value) for name, value in kwargs.items()}
        with (
            self._hooks_within(call.module, site),
            self._within(_Frame(there, not site.opens, keeps)),
            self._at_hand(call.module, site, there),
            self._looking(site, there),
        ):
            with put_back():
                result = own(*there_args, **there_kwargs)
            with unread():
                result = crossing.give(result)
        crossing.write_back()
        if frame:
            return result
        return Homeward(back, (args, kwargs), partial(containers_of, self.component.module)).bring(result)

    def answer(self, program: CompiledModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a program returns, on the device where the module that calls it runs."""
        result = program(*args, **kwargs)
        return moved(result, self.frame.here) if self.frame else result

    def is_at_hand(self, call: Call) -> bool:
        """Whether a part without parts of its own is called as it is, for all that it reads lies where its caller runs.

        It is an operation or two: its program, which a plan has, takes the same memory, and more time to be called.
        """
        frame, module = self.frame, call.module
        if frame is None or module._modules or not call.programs or call.is_patched or dry_run() is not None:
            return False
        held = (*module._parameters.values(), *module._buffers.values())
        with torch._C.DisableTorchFunction():  # `Reads` says of each weight that it is where its reader runs
            return all(tensor is None or tensor.device == frame.here for tensor in held)

    def is_unsteady(self, call: Call, traced: int = 0) -> bool:
        """Whether a part has been compiled, or ``traced``, for so many kinds of calls that it is not for another."""
        return self.frame is not None and len(call.programs) + traced >= _SHAPES

    @contextlib.contextmanager
    def _within(self, frame: _Frame) -> Iterator[None]:
        before = self.frame
        self._local.frame = frame
        try:
            yield
        except BaseException:
            if before is None:
                self.component.view.release()
            raise
        finally:
            self._local.frame = before

    @contextlib.contextmanager
    def _hooks_within(self, module: nn.Module, site: Site) -> Iterator[None]:
        """Has the hooks of parts that run as they are run with these, where their weights lie, and not before them.

        Of a part that has a program the weights are brought, for those of PyTorch's hooks that compute them anew.
        """
        parts = module.modules() if site.opens and self.frame is None else ()
        hooked = [one for one in parts if one is not module and getattr(one, "_forward_pre_hooks", None)]
        calls = list(filter(None, map(call_of, hooked)))
        placed = [_Hooked(self, one) for one in calls if self._is_left(one)]
        for call in calls if dry_run() is None else ():
            if call.programs:
                self._lend(self.component.sites.of(call.module))
        try:
            for one in placed:
                one.put()
            yield
        finally:
            for one in placed:
                one.take_out()

    def _is_left(self, call: Call) -> bool:
        """Whether a part is left as it is, or cannot be traced and has no parts that answer for themselves."""
        if call.module in self.component.sites.left:
            return True
        return call.whole is BY_PARTS and not self.component.sites.of(call.module).opens

    def _lend(self, site: Site) -> None:
        for held in site.needs:
            if site.device and held.home in (None, site.device) and not held.is_on(site.device.torch):
                self.component.view.lend(held, site.device)

    @contextlib.contextmanager
    def _at_hand(self, module: nn.Module, site: Site, there: torch.device) -> Iterator[None]:
        """Has the weights that a module itself reads lie where it runs; those that live elsewhere as copies.

        In a dry run stand-ins take the places of all of them, for the module may write them.
        """
        view = self.component.view
        dry = dry_run()
        away = [held for held in site.needs if dry or not held.is_on(there)]
        for held in (*away, *site.stays) if dry is None else ():
            if site.device and (held.home or site.device).torch == there and not held.is_on(there):
                view.lend(held, site.device)
        lacking = [held for held in away if dry or not held.is_on(there)]
        others = {
            id(one.tensor): dry.stand_in(one.tensor, there) if dry else view.store.copy_on(one, there)
            for one in lacking
        }
        replaced = list(_replace(module, others))
        try:
            yield
        finally:
            for place, key, tensor in replaced:
                place[key] = tensor

    def _looking(self, site: Site, there: torch.device) -> contextlib.AbstractContextManager[object]:
        """Has weights be brought that the Python of a module reads of parts that it does not call.

        In a dry run nothing lies where it will.
        """
        if not site.is_looked_at and not (site.opens and dry_run()):
            return contextlib.nullcontext()
        devices = self.component.devices
        device = next((one for one in devices if one.torch == there), self.component.whole_on)
        view, bring = self.component.view, partial(self._bring, device, there)
        return Reads(view.store, there, bring, self.component.refresh_weights, is_dry=dry_run() is not None)

    def _bring(self, device: Device, there: torch.device, held: StoredWeight) -> torch.Tensor:
        """A weight as it is read on a device."""
        view, dry = self.component.view, dry_run()
        if device.torch == there:
            self.component.sites.note_read(held, device)
        if dry is not None:
            return dry.stand_in(held.tensor, there)
        if held.is_on(there):
            return held.tensor
        if device.torch == there and held.home in (None, device) and not held.quant:
            view.lend(held, device)
        with torch.inference_mode(False):  # a copy that is made in that mode counts no writes
            return held.tensor if held.is_on(there) else view.store.copy_on(held, there)

    def _tell(self, call: Call) -> None:
        """Says of a call that it runs by its parts, with a warning of the first that is not a part of another such."""
        component = self.component
        title, main = component.title(call), component.whole_on
        main = main if main in component.devices else component.devices[0]
        warns, self._has_warned = not self._has_warned, True
        if component.tell_of_option():
            warns = False
        if component.sites.of(call.module).opens:
            how = "cannot be compiled whole and is compiled by its parts: what it computes between them it computes on "
            how += str(main)
            how += ", so that values cross about twice as often" if len(component.devices) > 1 else ""
            how += split_told(component.plan)
        else:
            where = component.sites.of(call.module).device or main
            how = f"cannot be compiled and runs as it is, whole on {where}, without its activations being freed early"
        logger.log(logging.WARNING if warns else logging.INFO, "%s %s: %s", title, how, self.reasons[str(call)])


def split_told(plan: ComponentPlan) -> str:
    """What becomes of a mode that splits what devices compute together, of which parts know nothing."""
    if plan.by_rows:
        return "; its blocks are placed whole, for rows cannot be split by parts"
    if plan.is_together:
        return f"; its blocks are placed whole, for split mode {plan.mode} takes a component that is compiled whole"
    return ""


def _home(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    return home_of(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _replace(
    module: nn.Module, others: Mapping[int, torch.Tensor]
) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
    """Puts other tensors in place of weights of a module and its parts; yields what was where."""
    for child in module.modules() if others else ():
        places: tuple[dict[str, Any], ...] = (child._parameters, child._buffers)
        for place in places:
            for key, tensor in list(place.items()):
                if tensor is not None and id(tensor) in others:
                    data = others[id(tensor)]
                    is_parameter = isinstance(tensor, nn.Parameter)
                    place[key] = nn.Parameter(data, tensor.requires_grad) if is_parameter else data
                    attributes_on(place[key], tensor)
                    setattr(place[key], STANDS_FOR, type(tensor))
                    yield place, key, tensor
