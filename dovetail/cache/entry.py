"""The form of an entry on disk: the text of a traced program and the constants that it met, with a digest of both.

A first line names the form, a second one has the lengths and the digest; the text form (compiler/text) and a
safetensors file follow. Reading one runs no code, and takes time and memory in proportion to its size.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ..compiler.errors import ProgramTextError, TraceError, VerificationError
from ..compiler.ir.program import Program
from ..compiler.text.late import parse_late
from ..compiler.text.parser import parse_program
from ..compiler.text.printer import lines_of
from ..passes.verify.types import verify_types
from .head import Head, NoEntry, open_entry, read_head
from .key import Key
from .trust import doubt


def written(key: Key, program: Program) -> list[bytes]:
    """The bytes of an entry, in parts; raises NoEntry for a program that would not be read back as it is."""
    try:
        lines = list(lines_of(program))
    except TraceError as error:
        raise NoEntry(str(error)) from error
    if any(" opaque " in line for line in lines) or any(not _is_kept(node.target) for node in program.ops()):
        raise NoEntry("it has arguments or operations that have no text form")
    text = "\n".join(lines).encode()
    if not all(one.is_contiguous() and type(one) is torch.Tensor for one in program.constants.values()):
        raise NoEntry("it has constants that do not lie as they would be read back")
    try:
        tensors = save({name: one.detach().clone() for name, one in program.constants.items()})
    except (SafetensorError, KeyError, ValueError) as error:
        raise NoEntry(f"its constants cannot be saved: {error}") from error
    head = Head(key.full, key.content, program.name, len(text), len(tensors), _digest(text, tensors))
    return [bytes(head), text, tensors]


def read(path: Path, key: Key, is_named: bool = False) -> tuple[Program, list[bytes]]:
    """The program of an entry and its bytes, as ``written`` would yield them: writing it once more takes long.

    One in a file that somebody names may be of another machine, and of another user. Raises NoEntry for a file that is
    none of this key, OSError where there is no file.
    """
    with open_entry(path) as file:
        why = "" if is_named else doubt(os.fstat(file.fileno()), path)
        if why:
            raise NoEntry(why)
        head = read_head(file)
        is_of_key = head.content == key.content if is_named else head.key == key.full
        if not is_of_key or head.program + head.tensors != os.fstat(file.fileno()).st_size - file.tell():
            raise NoEntry("its head speaks of another entry")
        text, tensors = file.read(head.program), file.read(head.tensors)
    if _digest(text, tensors) != head.digest:
        raise NoEntry("it is damaged")
    try:
        program = _parsed(text.decode(), is_named)
        found = load(tensors)
    except (ProgramTextError, VerificationError, SafetensorError, ValueError) as error:
        raise NoEntry(str(error)) from error
    program.constants = dict(_constants(program, found))
    return program, [bytes(replace(head, key=key.full)), text, tensors]


def _parsed(text: str, is_named: bool) -> Program:
    """The program of a text; an entry of the cache is what was traced here, for nobody else can write there."""
    if not is_named:
        return parse_late(text)
    program = parse_program(text)
    verify_types(program)
    return program


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
