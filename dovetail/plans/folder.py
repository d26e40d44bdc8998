"""Plans of a pipeline's components, as ``dovetail compile -o FOLDER`` writes them, for the pipeline to run by.

A plan says which device each weight is on and where it rests. It is taken for a call of the same form, of a component
with the same weights on the same devices; the passes, the verifier and the check of memory then go over it as over any
placement. Beside a plan lies the trace that it was made of: where the model and the call are the same by content, it is
lowered without tracing. What does not match is said, and traced and placed anew.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..cache.head import NoEntry, open_entry, read_head
from ..compiler.devices.device import Device
from ..compiler.errors import UsageError
from ..compiler.ir.eligibility import marks_by_name
from ..compiler.ir.program import Program
from ..compiler.ir.signature import Signature, TensorLeaf, is_same
from ..compiler.ir.structure import is_leaf, show_structure
from ..compiler.spec.modes import parse_split_mode, shares_out_weights
from ..compiler.spec.residency import Residency
from ..conventions.spellings import Settings
from ..passes.batches.divide import micro_batches_asked
from ..passes.infra.base import Pass
from ..passes.pipeline import as_planned
from ..passes.placement.assignment import Assigned
from ..passes.rewrites.chunk import chunks_of
from ..passes.states.states import States, has_short_terms, split_mode_asked, split_mode_of
from .reading import read_plan

logger = logging.getLogger(__name__)

TRACE = ".trace"
"""What the file of a trace beside a plan ends with."""
_TOLD = 3
"""So many plans are named of those that could be of a call and are not; a module that runs by parts has many."""


@dataclass(frozen=True)
class KeptPlan:
    """One plan file, and the component that its name says it is of."""

    path: Path
    program: Program

    @property
    def component(self) -> str:
        """The attribute of the pipeline: ``vae`` of ``vae.decode.json``."""
        return self.path.stem.partition(".")[0]


class Plans:
    """The plans in a folder, or one plan file.

    Raises:
        UsageError: there is no such folder, or no plan in it.
        PlanFileError, ProgramTextError, VerificationError: a file is no plan, or breaks a rule.
    """

    def __init__(self, place: str | os.PathLike[str]) -> None:
        self.place = Path(place)
        files = sorted(self.place.glob("*.json")) if self.place.is_dir() else [self.place]
        if not files or not self.place.exists():
            asked = shlex.quote(str(self.place))
            raise UsageError(f"{self.place} has no plans: make them with dovetail compile -o {asked}")
        self._plans = [KeptPlan(file, read_plan(file)[0]) for file in files]
        self._told: set[str] = set()
        self.traces: Mapping[str, Path] = dict(_traces(files))

    def completed(self, request: Settings, roles: Mapping[str, str] | None = None) -> Settings:
        """A request for devices in which what a person left out is as the plans have it.

        ``roles`` are those of the components by name. Raises SpecError for a split mode that is none.
        """
        roles, found = roles or {}, Settings(**request)
        said = parse_split_mode(found.get("split_mode"), roles)
        if not found.get("backend"):
            devices: defaultdict[str, dict[Device, None]] = defaultdict(dict)  # the parts of one may be on several
            for one in self._plans:
                devices[one.component] |= dict.fromkeys(one.program.devices)
            found["backend"] = {name: "&".join(map(str, some)) for name, some in devices.items()}
            modes = {one.component: split_mode_of(one.program) for one in self._plans}
            others = {
                name: mode
                for name, mode in modes.items()
                if mode != "layer" and said.get(name, roles.get(name, "")) is None
            }
            said = replace(said, named=(*said.named, *others.items()))
            if others:
                found["split_mode"] = dict(said.named)  # there is no default, or nothing would be left out
        modes_said = [(one, said.get(one.component, roles.get(one.component, "")) or "") for one in self._plans]
        if any(shares_out_weights(mode) and has_short_terms(one.program) for one, mode in modes_said):
            found["bf16_partials"] = True
        if not found.get("params_backend"):
            kept = {one.component: one.program.kept for one in self._plans}
            away = {name: where.value for name, where in kept.items() if where is not Residency.DEVICE}
            found["params_backend"] = away or None
        if not found.get("chunk"):
            chunks = sorted((chunks_of(one.program), one.component) for one in self._plans)
            found["chunk"] = {name: count for count, name in chunks if count > 1} or None  # the most of a component
        if not found.get("micro_batches"):
            parts = sorted((micro_batches_asked(one.program), one.component) for one in self._plans)
            found["micro_batches"] = {name: count for count, name in parts if count > 1} or None
        return found

    def passes(
        self, steps: Sequence[Pass], component: str, traced: Program, residency: Residency
    ) -> Sequence[Pass] | None:
        """Passes that place a traced call by the plan of it; None, which is said with the reason, where none fits."""
        plans = [one for one in self._plans if one.component == component]
        alike = [one for one in plans if one.program.name == traced.name]
        reasons = []
        for plan in alike or plans:
            why = _why_not(plan.program, traced, residency) or _why_not_so(plan.program, steps)
            if not why:
                logger.info("%s is placed by the plan %s", component, plan.path)
                return as_planned(steps, plan.program, dict(_assigned(plan.program, traced)))
            reasons.append(f"in {plan.path.name} {why}")
        more = f"; and {len(reasons) - _TOLD} more" if len(reasons) > _TOLD else ""
        problem = "; ".join(reasons[:_TOLD]) + more or "there is no plan of it"
        self._tell(f"no plan in {self.place} is used for a call of {component}: {problem}: it is placed again")
        return None

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning(message)


def _traces(files: list[Path]) -> Iterator[tuple[str, Path]]:
    """The traces beside plans, by their content; what is no trace is left to be found so when it is asked for."""
    for path in (file.with_suffix(TRACE) for file in files):
        try:
            with open_entry(path) as opened:
                yield read_head(opened).content, path
        except FileNotFoundError:
            continue
        except (OSError, NoEntry) as error:
            logger.warning("the trace %s is not used: %s: compile the plan again", path, str(error))


def _assigned(plan: Program, traced: Program) -> Iterator[tuple[str, Assigned]]:
    """What each weight gets; a bias is sliced along with its matrix, which an assignment does not say.

    On the host alone, weights that a plan has there may rest in their files too.
    """
    marks = marks_by_name(plan) if plan.bounds else {}
    rests = traced.residency if _is_on_host(plan) and plan.kept is Residency.DEVICE else plan.residency
    for name, home in plan.home.items():
        if name in traced.weights:
            bounds = plan.bounds.get(name, ()) if not marks.get(name) else ()
            yield name, Assigned(home, bounds, rests.get(name, Residency.DEVICE))


def _why_not(plan: Program, traced: Program, residency: Residency) -> str:
    """Why a plan is not of a traced call: the first difference; empty where there is none."""
    if plan.name != traced.name:
        return f"is a {plan.name}, and here a {traced.name}"
    why = _why_not_called_so(plan.signature, traced.signature)
    if why:
        return why
    for name, weight in plan.weights.items():
        mine = traced.weights.get(name)
        if weight.kind in ("parameter", "buffer") and (mine is None or mine.stored != weight.stored):
            here = "is not there" if mine is None else f"is {mine.stored[1]}{list(mine.stored[0])} here"
            return f"the weight {name} is {weight.stored[1]}{list(weight.stored[0])}, and {here}"
    if plan.main != traced.main or set(plan.devices) != set(traced.devices):
        return f"it is on {' & '.join(map(str, plan.devices))}, and here on {' & '.join(map(str, traced.devices))}"
    may_rest = _is_on_host(plan) and plan.kept is Residency.DEVICE and residency is Residency.DISK
    if residency not in plan.residency.values() and plan.kept is not residency and not may_rest:
        return f"weights are kept on {_rests(plan.kept)}, and here on {_rests(residency)}"
    moved = [name for name, home in traced.home.items() if name in plan.home and plan.home[name] != home]
    return (
        f"{moved[0]} is on {plan.home[moved[0]]}, and another call has it on {traced.home[moved[0]]}" if moved else ""
    )


def _why_not_so(plan: Program, steps: Sequence[Pass]) -> str:
    """Why a plan is not of what passes would do: the first difference of their split modes; empty where there is none.

    What was to be split under a mode and could not be is by layers, as passes of either mode would have it.
    """
    if len(plan.devices) == 1:
        return ""
    own, mode = split_mode_of(plan), split_mode_asked(map(str, steps))
    if mode not in (own, split_mode_asked(plan.history)):
        return f"it is split by {own}, and here by {mode}"
    is_short = any(isinstance(one, States) and one.has_short_terms for one in steps)
    if shares_out_weights(own) and has_short_terms(plan) and not is_short:
        return "its devices send partial sums in bfloat16 (bf16_partials), and here as they are"
    return ""


def _is_on_host(plan: Program) -> bool:
    return all(device.is_host for device in plan.devices)


def _rests(residency: Residency) -> str:
    return "their devices" if residency is Residency.DEVICE else f"the {residency.value}"


def _why_not_called_so(plan: Signature, traced: Signature) -> str:
    """The first difference of two calls; empty where there is none."""
    if plan.names != traced.names or _structures(plan) != _structures(traced):
        return f"the arguments are {', '.join(plan.names)}, and here {', '.join(traced.names)}"
    if len(plan.leaves) != len(traced.leaves):
        return "the arguments have another structure"
    for theirs, mine in zip(plan.leaves, traced.leaves, strict=True):
        if isinstance(theirs, TensorLeaf) and isinstance(mine, TensorLeaf):
            same = (theirs.shape, theirs.dtype, theirs.stride) == (mine.shape, mine.dtype, mine.stride)
        else:
            same = type(theirs) is type(mine) and is_same(theirs.value, mine.value)  # type: ignore[union-attr]
        if not same:
            shown = (_shown(theirs), _shown(mine))
            if shown[0] == shown[1]:
                shown = (f"{shown[0]} of strides {theirs.stride}", f"{shown[1]} of strides {mine.stride}")  # type: ignore[union-attr]
            return f"{theirs.path} is {shown[0]}, and here {shown[1]}"
    return ""


def _structures(signature: Signature) -> list[str]:
    return ["" if is_leaf(spec) else show_structure(spec) for spec in signature.specs]


def _shown(leaf: Any) -> str:
    if not isinstance(leaf, TensorLeaf):
        return f"{leaf.value!r:.60}"
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]".removeprefix("torch.")
