"""The form of an entry on disk: the text of a traced program and the constants that it met, with a digest of both.

A first line names the form, a second one has the lengths and the digest; the text form (compiler/text) and a
safetensors file follow. Reading one runs no code, and takes time and memory in proportion to its size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..compiler.errors import ProgramTextError
from ..compiler.ir.program import Program
from ..compiler.text.parser import parse_program
from ..compiler.text.printer import lines_of

_FORM = b"dovetail trace 1\n"
_LONGEST = 4096
_LARGEST = 2**30


class NoEntry(Exception):
    """A file is no entry, or a damaged one; or a program has no form on disk."""


def written(key: str, program: Program) -> list[bytes]:
    """The bytes of an entry, in parts; raises NoEntry for a program that would not be read back as it is."""
    lines = list(lines_of(program))
    if any(" opaque " in line for line in lines) or any(not _is_kept(node.target) for node in program.ops()):
        raise NoEntry("it has arguments or operations that have no text form")
    text = "\n".join(lines).encode()
    if not all(one.is_contiguous() and type(one) is torch.Tensor for one in program.constants.values()):
        raise NoEntry("it has constants that do not lie as they would be read back")
    try:
        tensors = save({name: one.detach().clone() for name, one in program.constants.items()})
    except (SafetensorError, KeyError, ValueError) as error:
        raise NoEntry(f"its constants cannot be saved: {error}") from error
    head = {"key": key, "program": len(text), "tensors": len(tensors), "digest": _digest(text, tensors)}
    return [_FORM, json.dumps(head).encode() + b"\n", text, tensors]


def read(path: Path, key: str) -> Program:
    """The program of an entry; raises NoEntry for a file that is none of this key, OSError where there is no file."""
    with path.open("rb") as file:
        if file.readline(len(_FORM)) != _FORM:
            raise NoEntry("it is of another form")
        text, tensors = _parts(file.readline(_LONGEST), key, file.read(_LARGEST))
    try:
        program = parse_program(text.decode())
        found = load(tensors)
    except (ProgramTextError, SafetensorError, ValueError) as error:
        raise NoEntry(str(error)) from error
    program.constants = dict(_constants(program, found))
    return program


def _parts(line: bytes, key: str, rest: bytes) -> tuple[bytes, bytes]:
    try:
        head = json.loads(line)
        known, lengths, digest = head["key"], (head["program"], head["tensors"]), head["digest"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NoEntry("its head cannot be read") from error
    if known != key or not all(type(one) is int and one >= 0 for one in lengths) or sum(lengths) != len(rest):
        raise NoEntry("its head speaks of another entry")
    text, tensors = rest[: lengths[0]], rest[lengths[0] :]
    if _digest(text, tensors) != digest:
        raise NoEntry("it is damaged")
    return text, tensors


def _constants(program: Program, found: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The constants of a program; raises NoEntry where one is missing or is another tensor."""
    for weight in program.weights.values():
        if weight.kind != "constant":
            continue
        one = found.get(weight.name)
        if one is None or tuple(one.shape) != weight.shape or one.dtype != weight.dtype:
            raise NoEntry(f"the constant {weight.name} is missing or another one")
        yield weight.name, one


def _is_kept(target: object) -> bool:
    """Whether an operation means the same in every process: one of a library of somebody's own may not."""
    return getattr(target, "namespace", "aten") == "aten"


def _digest(text: bytes, tensors: bytes) -> str:
    found = hashlib.blake2b(text, digest_size=20)
    found.update(tensors)
    return found.hexdigest()
