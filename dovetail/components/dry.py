"""A dry run: the components of a pipeline answer calls with zeros, and it is noted which calls there were.

While one is going on in a thread, a component traces a call that it does not know and computes nothing. The answer has
the shapes, dtypes and strides that the trace says, and lies where the real one would. So the pipeline's own code goes
on as it would, and makes the calls that it would make.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError
from ..compiler.ir.program import Program
from ..compiler.units import format_bytes
from ..conventions.picture import Picture
from ..passes.simulate.cost import OpCost
from ..runtime.devices.accelerator import accelerator_of
from ..runtime.devices.transfers import home_of
from ..runtime.store.origin import HOST
from .alternating import Rotation, put_off
from .as_before import AsBefore, left_as_is
from .own_work import OwnWork
from .zeros import like, zeros_like, zeros_of

if TYPE_CHECKING:
    from .calls import Call
    from .component import Component
    from .decisions import Decisions

WAYS = "ask for a smaller size or batch, or give the pipeline's largest component another device (--backend)"
"""What helps where the pipeline's own tensors do not fit."""


class CannotBePlannedError(Exception):
    """Ends a dry run at a call that can be answered by computing alone; the rest is planned when it is called."""


@dataclass(frozen=True, eq=False)
class DryCall:
    """A kind of call of a component, or of a part of one: its key among the call's programs, and its trace."""

    component: Component
    call: Call
    key: tuple[Any, ...]
    traced: Program

    @property
    def title(self) -> str:
        """The component, and its part or method where that is not the whole: ``transformer``, ``vae.decode``."""
        name = self.component.name
        return name if str(self.call) == "forward" else f"{name}.{str(self.call).lstrip('_')}"


@dataclass(frozen=True)
class Moment:
    """A call of a dry run, or its end (None): what the pipeline held then, and at most since the one before, by device.

    ``changed`` are the attributes of the pipeline that were not as before the call any more: a later call has in the
    others what this one leaves. ``after`` is what it holds once it has the answer, which a program brings where it does
    not compute.

    ``turn`` is the number of a call that may go on while its caller does, among those that nobody has read, which are
    ``going``. ``unread`` is the most that the pipeline held from the call before on until somebody read one.
    """

    key: tuple[Call, Any] | None
    held: Mapping[torch.device, int]
    since: Counter[torch.device]
    changed: frozenset[Hashable]
    after: Mapping[torch.device, int] = field(default_factory=dict)
    turn: int = 0
    going: tuple[Going, ...] = ()
    unread: Mapping[torch.device, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Going:
    """A call of a dry run that goes on while its caller does: which, and the bytes of its results where they belong."""

    key: tuple[Call, Any]
    turn: int
    results: Mapping[torch.device, int]


@dataclass(frozen=True)
class Skips:
    """How often a cache of steps has decided whether a component computes some parts, and had to say yes."""

    calls: int = 0
    needed: int = 0


@dataclass(frozen=True)
class _Ran:
    """A call that ran its own Python and left nothing behind: what it returned, and the calls of parts within it.

    ``before`` is what the pipeline held when it began, ``rest`` at most since the last of these calls, or since it
    began; ``own`` is what it computed itself.
    """

    component: Component
    result: Any
    moments: tuple[Moment, ...]
    before: Counter[torch.device]
    rest: Counter[torch.device]
    own: Counter[OpCost]


@dataclass
class DryRun:
    """What a dry run has met: each kind of call once, in the order of the first ones, and how often there was one.

    ``moments`` has each call, with what the pipeline held at it: all that is there now and was not ``before``, on
    devices that count their bytes, and earlier answers on others. ``inputs`` has for each input of a kind of call the
    device on which it lay, None where that differed. ``changed`` says what `Moment` has. ``main`` is the device of the
    pipeline's own tensors, which stands for its main device: another one, or the host, where devices are open, are not
    here or have no room for them. ``own`` has by component what its own Python computes between the parts that it
    calls. ``room`` has the bytes beyond ``before`` that may be held; a call with whose answer it would be more raises
    DoesNotFitError.
    """

    before: dict[torch.device, int] = field(default_factory=dict)
    room: Mapping[Device, int] = field(default_factory=dict)
    changed: Callable[[], frozenset[Hashable]] = frozenset
    moments: list[Moment] = field(default_factory=list)
    inputs: dict[tuple[Call, Any], tuple[torch.device | None, ...]] = field(default_factory=dict)
    main: torch.device = HOST
    decided: Mapping[Component, Decisions] = field(default_factory=dict)
    """What is decided of components meanwhile, where that is not what holds."""
    draft: Any = None
    """The draft of the whole pipeline that this is of, which a dry run may have decide more."""

    again: Callable[[Any], DryRun] | None = None
    """Makes the same call dry again, as a draft places all."""

    picture: Picture = field(default_factory=Picture)
    """What the call makes, as far as it is known."""

    leaves: Any = None
    """What it leaves in the pipeline, if it was made to its end."""

    calls: dict[tuple[Call, Any], DryCall] = field(default_factory=dict)
    times: Counter[tuple[Call, Any]] = field(default_factory=Counter)
    own: dict[str, Counter[OpCost]] = field(default_factory=dict)
    skips: dict[str, Skips] = field(default_factory=dict)
    """What caches of steps may leave out, by component."""

    _rotations: defaultdict[Component, Rotation] = field(default_factory=lambda: defaultdict(Rotation))
    _going: list[Going] = field(default_factory=list)
    _unread: Counter[torch.device] = field(default_factory=Counter)
    _since: Counter[torch.device] = field(default_factory=Counter)  # held at most before what is asked for next
    _work: OwnWork | None = None
    _stand_ins: dict[tuple[torch.dtype, torch.device], torch.Tensor] = field(default_factory=dict)
    _known: dict[tuple[Call, Any], _Ran] = field(default_factory=dict)
    _left: dict[frozenset[Hashable], Counter[torch.device]] = field(default_factory=dict)
    _alive: weakref.WeakKeyDictionary[torch.Tensor, None] = field(default_factory=weakref.WeakKeyDictionary)
    _before: dict[Component, AsBefore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.before = dict(self.before)
        self._most()  # from now on

    @property
    def is_on_host(self) -> bool:
        """Whether the pipeline's own tensors are on the host, where nobody counts them."""
        return accelerator_of(self.main).is_host

    def stand_in(self, one: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What stands for a weight on a device: one number that looks like all of it; the pipeline does not hold it."""
        key = one.dtype, device
        if key not in self._stand_ins:
            used = accelerator_of(device).memory()[0] if device in self.before else 0
            with self.beside():
                self._stand_ins[key] = torch.zeros((), dtype=one.dtype, device=device)
            if device in self.before:
                self.before[device] += accelerator_of(device).memory()[0] - used
        return self._stand_ins[key].expand(one.shape)

    def answer(self, made: DryCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Notes a call, and answers it with zeros where the program would leave its results."""
        key = made.call, made.key
        self.calls.setdefault(key, made)
        self.times[key] += 1
        component, is_launched = made.component, _may_be_launched(made)
        rotation = self._rotations[component]
        if not is_launched or rotation.is_full(len(component.devices)):
            self._read(component)
        self.note(key)
        inputs = made.traced.signature.flatten(args, kwargs)
        there = [tensor.device for tensor in inputs]
        before = self.inputs.get(key, there)
        self.inputs[key] = tuple(one if one == now else None for one, now in zip(before, there, strict=True))
        frame = made.component.parts.frame
        home = frame.here if frame else home_of(inputs) or made.component.whole_on.torch
        self._check_room(made, inputs, home)
        result = zeros_of(made.traced, inputs, home)
        leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self._alive.update((leaf, None) for leaf in leaves)
        self.moments[-1] = replace(self.moments[-1], after=self._bytes_alive())
        self._most()  # an answer is of the call
        if not is_launched:
            return result
        turn, results = rotation.take(), {home: sum(leaf.nbytes for leaf in leaves)}
        self.moments[-1] = replace(self.moments[-1], turn=turn)
        self._going.append(Going(key, turn, results))
        return put_off(result, partial(self._read, component))

    def _read(self, component: Component) -> None:
        """Notes that somebody reads what a call of a component has given: all of them that go on are waited for."""
        if any(self._is_of(one.key, component) for one in self._going):
            self._unread = self._unread | self._bytes_alive() | self._most()
        self._going = [one for one in self._going if not self._is_of(one.key, component)]
        self._rotations[component].end()

    def _is_of(self, key: tuple[Call, Any] | None, component: Component) -> bool:
        return key is not None and self.calls[key].component is component

    def parts_of(self, component: Component) -> int:
        """How many calls of a component follow each other at most of which none reads what the others give."""
        return max((1 + one.turn for one in self.moments if self._is_of(one.key, component)), default=1)

    def _check_room(self, made: DryCall, inputs: Sequence[torch.Tensor], home: torch.device) -> None:
        """Raises DoesNotFitError where the pipeline has held more than there is room for, or would with an answer."""
        latest = self.moments[-1]
        for device, room in self.room.items():
            held, come = latest.held.get(device.torch, 0), 0
            if device.torch == home:
                leaves = pytree.tree_leaves(zeros_of(made.traced, inputs, torch.device("meta")))
                come = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
            most = max(held + come, latest.since.get(device.torch, 0))
            if most > room:
                raise DoesNotFitError(
                    f"the pipeline holds {format_bytes(most)} of its own on {device} at {made.title}, results of "
                    f"components among them, and {format_bytes(room)} are free there",
                    {device: most - room},
                    WAYS,
                )

    def note(self, key: tuple[Call, Any] | None) -> None:
        """Notes what the pipeline holds at a call, or at the end."""
        since, held = self._taken() | self._most(), self._bytes_alive()
        going, unread, self._unread = tuple(self._going), self._unread, Counter[torch.device]()
        self.moments.append(Moment(key, held, held | since, self.changed(), going=going, unread=unread))

    def end(self, beyond: Callable[[frozenset[Hashable]], Counter[torch.device]]) -> None:
        """Notes the end of the pipeline's call, and what it leaves ``beyond`` it."""
        self.note(None)
        for changed in dict.fromkeys(one.changed for one in self.moments):
            self._left[changed] = beyond(changed)

    def left(self, moment: Moment) -> Counter[torch.device]:
        """What an earlier call has left of each device, that is still there at a moment."""
        return self._left.get(moment.changed, Counter())

    def _taken(self) -> Counter[torch.device]:
        """What was held at most before what is asked for next, which is noted once."""
        since, self._since = self._since, Counter()
        return since

    def _most(self) -> Counter[torch.device]:
        """The most bytes that the pipeline held since this was asked last, on devices that count them."""
        most = {device: accelerator_of(device).recent_peak() - before for device, before in self.before.items()}
        return +Counter(most)

    def keep(self, component: Component) -> None:
        """Notes what the module of a component keeps, before its own Python runs; `give_back` makes it so again."""
        if component not in self._before:
            self._before[component] = AsBefore(component.module, component.view.store)

    def give_back(self) -> None:
        """Makes the modules that ran as they are what they were before, and holds nothing on devices any more."""
        self._stand_ins.clear()
        while self._before:
            self._before.popitem()[1].give_back()

    def once(self, component: Component, call: Call, key: Any, run: Callable[[], Any]) -> Any:
        """What a call returns whose own Python runs: once for each kind, unless it leaves something in its module.

        From the second time on it is zeros, and the calls of parts within it are noted as they were.
        """
        known = self._known.get((call, key))
        if known is not None:
            return self._again(known)
        is_left, before, first = left_as_is(component.module), self._bytes_alive(), len(self.moments)
        own, since = Counter[OpCost](), self._taken() | self._most()
        with self._noting(own):
            result = run()
        self._add(component, own)
        rest = self._taken() | self._most()
        if is_left():
            moments = tuple(self.moments[first:])
            self._known[call, key] = _Ran(component, pytree.tree_map(like, result), moments, before, rest, own)
        self._put(first, since, rest)
        return result

    def _put(self, first: int, since: Counter[torch.device], rest: Counter[torch.device]) -> None:
        """Adds what was held at most before a call to its first moment, and after its last one to what comes next."""
        if first < len(self.moments):
            self.moments[first] = replace(self.moments[first], since=self.moments[first].since | since)
            since = Counter()
        self._since = since | rest

    def note_skip(self, component: str, is_needed: bool) -> None:
        """Notes that parts of a component, by its name, may be left out, unless they are needed whatever comes."""
        known = self.skips.get(component, Skips())
        self.skips[component] = Skips(known.calls + 1, known.needed + is_needed)

    def _add(self, component: Component, own: Counter[OpCost]) -> None:
        self.own[component.name] = self.own.get(component.name, Counter()) + own

    @contextlib.contextmanager
    def _noting(self, own: Counter[OpCost]) -> Iterator[None]:
        """Notes what is computed meanwhile, but for what is `beside` it."""
        before, self._work = self._work, OwnWork(own)
        try:
            with self._work:
                yield
        finally:
            self._work = before

    def beside(self) -> contextlib.AbstractContextManager[None]:
        """Within it nothing is noted of what is computed: a part is traced, say."""
        return self._work.paused() if self._work is not None else contextlib.nullcontext()

    def _again(self, ran: _Ran) -> Any:
        """Notes the calls within a call once more, by what the pipeline holds now, and returns zeros."""
        self._add(ran.component, ran.own)
        now, since, changed = self._bytes_alive(), self._taken() | self._most(), self.changed()
        first = len(self.moments)
        for one in ran.moments:
            held, most = _moved(one.held, ran.before, now), _moved(one.since, ran.before, now)
            after = _moved(one.after, ran.before, now) if one.after else {}
            self.moments.append(Moment(one.key, held, most, changed, after))
            if one.key is not None:
                self.times[one.key] += 1
        result = pytree.tree_map(zeros_like, ran.result)
        self._most()  # the result is of the call
        self._put(first, since, _moved(ran.rest, ran.before, now))
        return result

    def _bytes_alive(self) -> Counter[torch.device]:
        """The bytes that the pipeline holds, by device."""
        alive = {leaf.untyped_storage()._cdata: leaf for leaf in self._alive}
        found: Counter[torch.device] = Counter()
        for leaf in alive.values():
            found[leaf.device] += leaf.nbytes
        for device, before in self.before.items():
            found[device] = max(0, accelerator_of(device).memory()[0] - before)
        return found


def _may_be_launched(made: DryCall) -> bool:
    """Whether devices of a component may take turns with a call of it; whether they do is decided of its program."""
    component = made.component
    is_whole = made.call.module is component.module and component.parts.frame is None
    return component.plan.may_take_turns and is_whole and not made.traced.symbols


def _moved(
    held: Mapping[torch.device, int], before: Mapping[torch.device, int], now: Mapping[torch.device, int]
) -> Counter[torch.device]:
    """The bytes that were held at a moment, if what was there ``before`` is what is there ``now``."""
    devices = {*held, *before, *now}
    return +Counter({one: held.get(one, 0) - before.get(one, 0) + now.get(one, 0) for one in devices})


_GOING_ON: ContextVar[DryRun | None] = ContextVar("dovetail dry run", default=None)


def dry_run() -> DryRun | None:
    """The dry run that is going on in this thread."""
    return _GOING_ON.get()


@contextlib.contextmanager
def running_dry(run: DryRun | None) -> Iterator[None]:
    """Has components answer calls of this thread with zeros meanwhile; with None, as they do otherwise."""
    token = _GOING_ON.set(run)
    try:
        yield
    finally:
        _GOING_ON.reset(token)


_SAVED: ContextVar[Mapping[str, torch.Tensor] | None] = ContextVar("dovetail saved latents", default=None)


@contextlib.contextmanager
def going_on_from(latents: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Runs dry until a VAE decodes, and really from there on, with these in the place of what it is given."""
    token, run = _SAVED.set(latents), DryRun()
    try:
        with running_dry(run):
            yield
    finally:
        run.give_back()
        _SAVED.reset(token)


def latents_to_go_on_from() -> Mapping[str, torch.Tensor] | None:
    """The latents that VAEs decode in this thread in place of what they are given."""
    return _SAVED.get()


def leave_dry_run() -> None:
    """Has components of this thread compute from now on, with what they kept before."""
    run = dry_run()
    if run is not None:
        run.give_back()
    _GOING_ON.set(None)
