"""What a compiled diffusers pipeline has besides: at ``pipe.dovetail``."""

from __future__ import annotations

import contextlib
import difflib
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import torch

from ..compiler.devices.device import Device
from ..compiler.errors import DoesNotFitError, UsageError
from ..components.dry import going_on_from
from ..conventions.checked import TENSORS
from ..conventions.copied import FOLDER, generate_line
from ..conventions.spellings import Settings
from ..explain.sentences import explain_plan
from ..fitting.asked import asked_of, said_of_places, settings_of_request
from ..fitting.decide import machine_of
from ..lora.requested import Loras, check_mode, read_loras
from ..passes.states.states import has_short_terms
from ..planning.generation import Generation, numbered
from ..planning.idle import idle_devices, tell_of_idle, unused_gpus
from ..planning.isolated import isolated
from ..planning.notes import encoder_notes, file_notes, memory_notes, packing_notes, staging_notes
from ..planning.shared_work import SHORTENED
from ..planning.skipped import skipped_in
from ..planning.table import Account
from ..planning.tiling import AUTO, typed
from ..progress.phases import PLANNING
from ..progress.phases import phase as progress_phase
from ..progress.refusals import telling
from ..runtime.failures import exhaustion_told
from .described import as_html, as_line, as_text
from .exchanging import Exchanging
from .loras import apply_loras
from .pipeline_state import bring_state_home
from .plan import Options
from .sharing import leader_of
from .subclass import become_as_before, become_compiled, handle_of
from .wrong_calls import WRONG, wrong_calls_told

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from typing_extensions import Unpack

    from ..draw.page.page import Page

logger = logging.getLogger(__name__)

UNCOMPILED = "memory and seconds are those of blocks as they are, not compiled by Inductor"


class CompiledPipeline(Exchanging):
    """What dovetail has of a compiled pipeline, which is at ``pipe.dovetail``.

    ``components`` has a Component by name, ``programs`` what was compiled, ``rig`` the devices, ``decision`` what a
    search found. Used in a ``with`` statement it undoes itself at the end: ``with pipe.dovetail: …``.

    It does not keep the pipeline alive: all is freed as soon as nobody has the pipeline. What needs the pipeline raises
    UsageError then, and after `undo`.
    """

    def __init__(
        self,
        pipe: DiffusionPipeline,
        request: Settings,
        *,
        lora: Loras = None,
        lora_apply_mode: str = "auto",
        **options: Unpack[Options],
    ) -> None:
        check_mode(lora_apply_mode)
        self.called: Generation | None = None
        """The plan of the call that goes on, or went on last, of this pipeline; None where it could not be planned."""
        self.follows = False
        """Whether the components are those of another pipeline, all of them."""
        self._told: set[str] = set()
        loras = read_loras(lora)
        super().__init__(pipe, request, **options)
        try:
            become_compiled(pipe, self)
            apply_loras(self, loras, lora_apply_mode)
        except BaseException:
            self.undo()
            raise

    def plan(self, *args: object, **kwargs: object) -> Generation | None:
        """Compiles all that a call with these arguments needs, and checks that it fits; computes and reads nothing.

        Each call of the pipeline does so itself, once for each kind of call. Returns None where the call cannot be
        planned, or calls no component. Raises DoesNotFitError where it does not fit; all is as before then.
        """
        with self.turn, self.turn:
            self._check_there()
            try:
                told = wrong_calls_told(self.name, kwargs, (*WRONG, RuntimeError))  # as nothing is computed
                with told, exhaustion_told(f"{self.name} outside its components"), self.using_borrowed():
                    return self._planner.plan(self, args, kwargs, strict=True)
            finally:
                self._planner.end()

    def plan_ahead(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Plans a call that comes next, as far as that goes; raises DoesNotFitError as `plan` does."""
        self.called = None
        with progress_phase(PLANNING):
            generation = self.called = self._planner.plan(self, args, kwargs)
        if generation is None or generation.is_told:
            return
        generation.is_told = True
        tell_of_idle(self._idle(generation), self._told)
        if self.decision is not None and (unused := unused_gpus(generation)):
            tell_of_idle([unused], self._told, logging.INFO)

    def _idle(self, generation: Generation) -> list[str]:
        """A line for each component of which devices that were named for it get nothing."""
        return idle_devices(generation, self._named())

    def _named(self) -> dict[str, tuple[Device, ...]]:
        """The devices that were named for each component."""
        return {name: asked_of(self._request, name, one.role).devices for name, one in self.components.items()}

    def account(self, generation: Generation) -> Account:
        """What is to be said of a plan: bytes and seconds, the options that ask for the same, why devices are used.

        Raises UsageError for anything but what `plan` returned.
        """
        if not isinstance(generation, Generation):
            raise UsageError(f"account takes what plan(...) returned, and no {type(generation).__name__}")
        by_rows = dict.fromkeys(call.component for call in generation.calls if call.program.is_grouped)
        decision = self.decision and replace(self.decision, by_rows=tuple(by_rows))
        alone = [name for name, one in self.components.items() if len(one.devices) == 1]
        settings = settings_of_request(self._request, self._roles, alone)
        if decision:
            settings = {**decision.plan.settings, **said_of_places(self._asked, settings)}
        else:
            settings.setdefault("--backend", next(iter(self.components.values())).devices[0].name)
        if self._plans:
            settings["--plans"] = str(self._plans.place)
        is_short = any(has_short_terms(call.program) for call in generation.calls)
        if is_short:
            settings["--bf16-partials"] = ""
        if self._request.inductor:
            settings["--inductor"] = ""
        tile = next(iter(generation.tiles.values()), self._tiles.asked)
        if tile != AUTO:
            settings["--vae-tiling"] = typed(tile)
        models = self._diffusing()
        for one in self._addons:
            settings |= one.settings(models)
        return Account(
            generation,
            machine_of(self._request).speeds,
            settings,
            decision.searched if decision else None,
            (
                *self._idle(generation),
                *(decision.explained().notes if decision else ()),
                *encoder_notes(
                    self._named(), {one.name: one.devices for one in self._own().values() if one.role == "te"}
                ),
                *staging_notes(generation),
                *packing_notes({name: one.view.weights() for name, one in self._own().items()}),
                *memory_notes(generation, self._asked_rig),
                *file_notes({name: one.view.nbytes for name, one in self._own().items() if one.view.lacks_files}),
                *((SHORTENED,) if is_short else ()),
                *((UNCOMPILED,) if self._request.inductor else ()),
                *dict.fromkeys(note for one in self._addons for note in one.notes(models)),
            ),
            decision,
            modes={name: one.plan.mode for name, one in self.components.items() if one.plan.places_itself},
            skipped=tuple(found for one in self._addons for found in skipped_in(generation, one.cache)),
        )

    def explain(self, *args: object, **kwargs: object) -> str:
        """Says in sentences where a call with these arguments runs and why, and what would change that.

        It names what limits each device, what each cut costs, and what more memory or faster links would change.
        The call is planned for it and not made. Raises DoesNotFitError as `plan` does, and UsageError for a call that
        cannot be planned.
        """
        generation = self.plan(*args, **kwargs)
        if generation is None:
            raise UsageError(f"this call of {self.name} cannot be planned, so there is nothing to explain")
        return "\n\n".join(explain_plan(self.account(generation)))

    def show(self, *args: object, **kwargs: object) -> Page:
        """The page of pictures of a call with these arguments: text of HTML, which notebooks show; `save` writes it.

        In an interpreter that somebody types into it is opened in a browser, where there is one.

        Raises UsageError where the call cannot be planned, and DoesNotFitError as `plan` does.
        """
        from ..draw.page.browser import has_browser, is_notebook, is_watched
        from ..draw.page.page import page  # which is not needed to paint

        generation = self.plan(*args, **kwargs)
        if generation is None:
            raise UsageError(f"this call of {self.name} cannot be planned, so that there is nothing to show")
        titles = numbered(call.title for call in generation.calls)
        programs = {title: call.program for title, call in zip(titles, generation.calls, strict=True)}
        account = self.account(generation)
        folder = getattr(self.pipe, "name_or_path", None) or FOLDER
        made = page(programs, account, title=self.name, line=generate_line(str(folder), account.settings))
        if is_watched() and has_browser() and not is_notebook():
            made.open()
        return made

    def prepare(self, *args: object, **kwargs: object) -> None:
        """Plans calls like this one, and brings all weights to their devices that stay there.

        Raises DoesNotFitError where they do not fit; nothing was read then.
        """
        with self.turn, self.turn:
            self._prepare(args, kwargs)

    def _prepare(self, args: Sequence[object], kwargs: Mapping[str, Any]) -> None:
        plan = self.plan(*args, **kwargs)
        if plan is None:
            self.pipe(*args, **{"num_inference_steps": 1, **kwargs})
            return
        planned = {id(call.program) for call in plan.calls}
        for component in self.components.values():
            for one in component.ready_to_load(planned):
                one.load()
                self.release()  # of slots, which come again with the call that uses them

    def refresh(self, *names: str) -> None:
        """Forgets the programs of the named components, or of all, after a change that is not seen by itself."""
        self._planner.forget()
        known = list(self.components)
        wrong = [str(name) for name in names if name not in known]
        if wrong:
            raise UsageError(f"this {self.name} has no {wrong[0]} that is compiled; it has {', '.join(known)}")
        for name in names or self.components:
            self.components[name].refresh()

    def computes_on(self, device: torch.device) -> bool:
        """Whether the pipeline's own tensors are on a device, or are to be; without an index, on any of its kind."""
        draft = self._traced or self.now()
        main = draft.main.torch if not draft.plan.is_open else next((one.torch for one in self.rig.gpus), None)
        return main is not None and device in (main, torch.device(main.type))

    def undo(self) -> None:
        """Makes the pipeline what it was: its own calls, and every weight back where it was, bit for bit.

        A module holds the parameters again that it had before, if somebody has them still (an optimizer, another
        model), with what was written meanwhile to them or to the module. Where both were written, and differ, the
        module keeps its numbers in a parameter of its own, and a warning names it. Gradients, attributes and
        ``requires_grad`` follow the same rule.

        A weight that cannot be brought back leaves the others as they are: call it again after the error.
        """
        if self._leader() is None:
            self._restore()
            self._part()
        pipe = self._pipe()
        if pipe is not None and handle_of(pipe) is self:
            become_as_before(pipe)
            bring_state_home(pipe)

    def faced(self, pipe: DiffusionPipeline) -> CompiledPipeline:
        """What another pipeline over the same components has at its own ``.dovetail``: these, as its calls use them."""
        face = object.__new__(type(self))
        vars(face).update(vars(self))
        face._pipe, face.follows, face.name = weakref.ref(pipe), True, type(pipe).__name__
        self._pipes.append(face._pipe)
        return face

    @property
    def faces(self) -> list[CompiledPipeline]:
        """What the pipelines over these components have at ``.dovetail``, the one that placed them first.

        Those that are gone, or were undone, are not among them.
        """
        there = (handle_of(pipe) for reference in self._pipes if (pipe := reference()) is not None)
        return [one for one in there if one is not None and one.common is self.common]

    def _leader(self) -> CompiledPipeline | None:
        """The pipeline whose components these are, or the next that follows where it is gone; None if that is this."""
        first = next(iter(self.faces), self) if self.follows else self
        return None if first is self else first

    def _part(self) -> None:
        """Has pipelines that followed, and whose components these are no more, be as diffusers' own."""
        for reference in self._pipes:
            pipe = reference()
            handle = handle_of(pipe) if pipe is not None else None
            if pipe is not None and handle is not None and handle is not self and leader_of(pipe) is None:
                become_as_before(pipe)

    def go_on(self, latents: Mapping[str, torch.Tensor], *args: object, **kwargs: object) -> Any:
        """Decodes latents that an earlier call of the same arguments left, and returns what that would have returned.

        Nothing is encoded or sampled.

        Args:
            latents: what was in ``latents`` when that call had failed.
            args, kwargs: the arguments of the call.

        Raises UsageError where the latents are not those of such a call.
        """
        self._check_there()
        if not TENSORS.accepts(latents):
            raise UsageError(f"go_on takes for latents {TENSORS.words}, and no {type(latents).__name__}")
        with self.turn, self.turn:
            return self._go_on(latents, args, kwargs)

    def _go_on(self, latents: Mapping[str, torch.Tensor], args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
        base = getattr(type(self.pipe), "_dovetail_base", type(self.pipe))
        with self.running(), telling(None), contextlib.suppress(DoesNotFitError):
            self.plan_ahead(args, kwargs)  # for tiles; what is not decoded need not fit
        with (
            wrong_calls_told(self.name, kwargs),
            self.running(),
            isolated(self.pipe, base, args, kwargs, ()) as call,
            going_on_from(latents),
        ):
            return call()

    @property
    def latents(self) -> dict[str, torch.Tensor]:
        """What VAEs were given to decode in the last call, if that failed meanwhile; to be given to `go_on`.

        With ``keeps_latents`` it is there after a call that succeeded too.
        """
        return dict(self._recovery.decoding)

    def _check_there(self) -> None:
        """Raises UsageError where the pipeline is gone, or compiled by this no more."""
        if handle_of(self.pipe) is not self:
            raise UsageError(f"this {self.name} was undone: compile it again")

    def __enter__(self) -> CompiledPipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)  # which says what it lacks itself
        near = difflib.get_close_matches(name, [one for one in dir(type(self)) if not one.startswith("_")], n=1)
        hint = f", did you mean {near[0]!r}?" if near and not name.startswith("_") else ""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}", name=name, obj=self)

    def __repr__(self) -> str:
        return as_line(self)

    def __str__(self) -> str:
        return as_text(self)

    @property
    def planned(self) -> Generation | None:
        """The plan that was made or used last, if there is one."""
        return self._planner.latest

    def _repr_html_(self) -> str:
        planned = self.planned
        return as_html(self, Account(planned, machine_of(self._request).speeds) if planned is not None else None)

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        raise UsageError("pipe.dovetail cannot be copied or pickled: copy the pipeline, and compile the copy")
