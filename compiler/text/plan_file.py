"""The plan file: a program and its placement as JSON data, one line a node, with no weights and no code.

Tensors that are in no checkpoint (constants that the trace met, buffers that the module makes for itself) lie beside it
in a safetensors file of the same name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from ..atomic_write import written_beside
from ..checkpoints.entries import clipped
from ..checkpoints.safetensors_header import read_safetensors
from ..devices.device import Device
from ..devices.rig import Rig
from ..errors import NoPlanError, PlanFileError, ProgramTextError, SpecError, WeightError
from ..ir.program import Program
from .parser import parse_program
from .printer import lines_of

_FORMAT, _OPENING = b'"dovetail plan"', 1000
_TOLD = {
    "literal_error": "should be {expected}, and is {found}",
    "missing": "is missing",
    "extra_forbidden": "is nothing that a plan has",
    "string_type": "is no text, but {found}",
    "list_type": "is no list, but {found}",
    "dict_type": "is no object, but {found}",
    "model_type": "is no object, but {found}",
}
"""What is said of a value that the schema does not take, by pydantic's name of why."""
_NO_JSON = {
    "Expecting value": "a value is expected",
    "Expecting property name enclosed in double quotes": "a name in quotes is expected",
    "Illegal trailing comma before end of object": "nothing may stand between a comma and a closing brace",
    "Illegal trailing comma before end of array": "nothing may stand between a comma and a closing bracket",
    "Expecting ':' delimiter": "a colon is expected",
    "Expecting ',' delimiter": "a comma or a closing bracket is expected",
    "Invalid control character at": "text has no such character",
    "Extra data": "the plan has ended",
}
"""What is said where a file stops to be JSON, by how the reader of JSON begins to say it."""


class Plan(BaseModel):
    """The schema of a plan file."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["dovetail plan"]
    version: Literal[7]
    torch: str = Field(description="the version of torch that traced the program")
    rig: str = Field(description="the devices it was compiled for, as --rig takes them")
    tensors: dict[str, str] = Field(description="name → dtype and shape of each tensor in the safetensors file beside")
    program: list[str] = Field(description="the program's text form, line by line")
    component: str = Field("", description="what the program is called in its pipeline: transformer, vae.decode")


def save_plan(
    path: str | os.PathLike[str],
    program: Program,
    rig: Rig,
    tensors: Mapping[str, torch.Tensor],
    component: str = "",
) -> None:
    """Writes a plan file, and its tensors beside it where there are any; ``component`` is its name in a pipeline.

    Raises PlanFileError when the folder cannot be written to; what was there before stays.
    """
    shown = {name: f"{tensor.dtype}{list(tensor.shape)}" for name, tensor in tensors.items()}
    plan = Plan(
        format="dovetail plan",
        version=7,
        torch=torch.__version__,
        rig=str(rig),
        tensors=shown,
        component=component,
        program=list(lines_of(program)),
    )
    try:
        if tensors:
            with written_beside(_beside(path)) as draft:
                draft.write_bytes(save({name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}))
        with written_beside(path) as draft:
            draft.write_text(json.dumps(plan.model_dump(), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise PlanFileError(
            f"cannot write the plan {path}: {error.strerror}: name a folder that can be written"
        ) from error


def load_plan(path: str | os.PathLike[str]) -> tuple[Program, Rig, dict[str, torch.Tensor]]:
    """Reads a plan file: the program up to its schedule, the rig, and the tensors beside it. It runs no code.

    Raises PlanFileError when the file is not there, not a plan, or of another version.
    """
    plan = _read(path)
    try:
        rig = Rig.parse(plan.rig)
    except SpecError as error:
        raise PlanFileError(f"{path} is damaged: rig: {error.on_one_line}: compile it again") from error
    try:
        program = parse_program("\n".join(plan.program))
    except ProgramTextError as error:
        raise ProgramTextError(f"{path} is damaged: program: {error}: compile it again") from error
    missing = [device.name for device in program.devices if not _has(rig, device)]
    if missing:
        raise PlanFileError(
            f"{path} is damaged: rig: {plan.rig} has no {missing[0]}, where the program runs: compile it again"
        )
    return program, rig, _read_tensors(path, plan, program) if plan.tensors else {}


def _has(rig: Rig, device: Device) -> bool:
    """Whether a rig has a device, or makes it where it is asked for."""
    try:
        return rig[device].total > 0
    except KeyError:
        return False


def component_in(path: str | os.PathLike[str]) -> str:
    """What the program of a plan file is called in its pipeline, or the file's name; errors are those of a plan."""
    return _read(path).component or Path(path).stem


def is_plan(path: str | os.PathLike[str]) -> bool:
    """Whether a file opens as plans do; false where it cannot be read, or is no file."""
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            return _FORMAT in file.read(_OPENING)
    except OSError:
        return False


def _read(path: str | os.PathLike[str]) -> Plan:
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise PlanFileError(
            f"cannot read the plan {path}: {error.strerror}: compile one with dovetail compile"
        ) from error
    if _FORMAT not in text[:_OPENING]:
        raise NoPlanError(f"{path} is no plan: name a file that dovetail compile -o wrote")
    try:
        return Plan.model_validate(json.loads(text))
    except ValidationError as error:
        raise PlanFileError(f"{path} is {_told(error.errors()[0])}: compile it again") from error
    except (ValueError, RecursionError) as error:
        raise PlanFileError(f"{path} is damaged: {_place(error)}: compile it again") from error


def _told(first: ErrorDetails) -> str:
    """What is wrong with a value that the schema does not take: where it is, what is there, and what should be."""
    where = clipped("".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])[1:])
    found = f"{json.dumps(first['input'], ensure_ascii=False):.60}"
    told = _TOLD.get(first["type"], "cannot be {found}").format(
        **{"expected": "", **first.get("ctx", {}), "found": found}
    )
    is_of_another = where == "version" or first["type"] == "extra_forbidden"
    problem = "not a plan of this version of dovetail" if is_of_another else "damaged"
    return f"{problem}: {where or 'the whole'} {told}"


def _place(error: Exception) -> str:
    """Where a file stops to be JSON, and why."""
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno} is no JSON: {_why_no_json(error)}"
    if isinstance(error, UnicodeDecodeError):
        return "it is no text of UTF-8"
    return "it is nested too deeply" if isinstance(error, RecursionError) else "a number in it has too many digits"


def _why_no_json(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos :].strip()
    if not rest or error.msg.startswith("Unterminated"):
        return "the file ends in the middle"
    why = next((told for begin, told in _NO_JSON.items() if error.msg.startswith(begin)), "nothing such is expected")
    return f"{why}, and {rest.splitlines()[0][:30]!r} stands there"


def _read_tensors(path: str | os.PathLike[str], plan: Plan, program: Program) -> dict[str, torch.Tensor]:
    """The tensors beside a plan: those that it names, each as large as the weight that it is, before any is read."""
    beside = _beside(path)
    try:
        entries, _ = read_safetensors(beside)
    except WeightError as error:
        raise PlanFileError(f"the plan {path} needs its tensors in {beside}: {error}: keep the two together") from error
    shown = {name: f"{entry.dtype}{list(entry.shape)}" for name, entry in entries.items()}
    weights = {name: f"{w.dtype}{list(w.shape)}" for name, w in program.weights.items() if not w.quant}
    if shown != plan.tensors or any(weights.get(name) != kind for name, kind in shown.items()):
        raise PlanFileError(f"{beside} holds other tensors than the plan {path} names: save the two together again")
    try:
        return load_file(beside)
    except (OSError, SafetensorError) as error:
        raise PlanFileError(f"the plan {path} needs its tensors in {beside}: {error}: keep the two together") from error


def _beside(path: str | os.PathLike[str]) -> Path:
    return Path(path).with_suffix(".safetensors")
